//! The coordinator: it divides queries among the workers that answer, and begins them again if one is lost.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::execute_stream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion_distributed::{
    DistributedExt, DistributedMetricsFormat, GetWorkerInfoRequest, rewrite_distributed_plan_with_metrics,
};
use futures::future::{BoxFuture, join_all};
use futures::{FutureExt, StreamExt};
use keyaki::{Cluster, ClusterQuery, Error, Explained, PlannedQuery, QuerySplit, RecordBatch, Result, WORKERS_MAX};
use url::Url;

use crate::channel::{Channels, QueryChannels};
use crate::codec::StageCodec;
use crate::error::of_query;
use crate::security::Security;
use crate::stages::{Divided, divide};
use crate::version::VERSION;

/// A worker that does not answer within this time is not used.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// A result of at most this many rows is complete before the first one is returned: until then, the query can begin again.
const HELD_ROWS_MAX: usize = 16_384;
/// A query begins at most this many times.
const ATTEMPTS_MAX: usize = 4;

/// The workers of a cluster, for the sessions of a coordinator.
#[derive(Clone)]
pub struct Coordinator {
    workers: Vec<Worker>,
    channels: Arc<Channels>,
    split: QuerySplit,
}

/// A worker and its address as given.
#[derive(Debug, Clone)]
struct Worker {
    address: String,
    url: Url,
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinator").field("workers", &self.workers).finish_non_exhaustive()
    }
}

impl Coordinator {
    /// A cluster of the workers with the addresses `host:port`.
    ///
    /// # Errors
    /// `InvalidParameter` for an invalid address or token, and for no addresses.
    pub fn new(workers: &[String], security: Security) -> Result<Coordinator> {
        security.metadata()?;
        let scheme = security.scheme();
        let invalid = |address: &str| Error::InvalidParameter {
            name: "workers".into(),
            value: address.into(),
            expected: "addresses of workers, host:port, separated by commas".into(),
        };
        let worker = |address: &String| {
            let url = Url::parse(&format!("{scheme}://{address}")).map_err(|_| invalid(address))?;
            let is_address = url.host_str().is_some()
                && address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
                && url.path() == "/"
                && url.query().is_none()
                && url.username().is_empty();
            if is_address { Ok(Worker { address: address.clone(), url }) } else { Err(invalid(address)) }
        };
        let workers = workers.iter().map(worker).collect::<Result<Vec<_>>>()?;
        if workers.is_empty() || workers.len() > WORKERS_MAX {
            return Err(invalid(&format!("{} addresses", workers.len())));
        }
        Ok(Coordinator { workers, channels: Arc::new(Channels::new(security)), split: QuerySplit::default() })
    }

    /// Sets the smallest shares of scans and pipelines.
    pub fn with_split(self, split: QuerySplit) -> Coordinator {
        Coordinator { split, ..self }
    }

    /// The workers that answer. The addresses of the others are logged.
    ///
    /// # Errors
    /// `Cluster` if none answers, or if one is of another version or does not accept the token.
    async fn answering(&self) -> Result<Vec<Worker>> {
        let answers = join_all(self.workers.iter().map(|worker| self.version(worker))).await;
        let mut answering = Vec::new();
        let mut reasons = Vec::new();
        for (worker, answer) in self.workers.iter().zip(answers) {
            match answer {
                Ok(version) if version == VERSION => answering.push(worker.clone()),
                Ok(version) => {
                    let address = &worker.address;
                    return Err(Error::Cluster(format!("worker {address} is {version}, and this is {VERSION}")));
                }
                Err(Refusal::Refused(reason)) => {
                    return Err(Error::Cluster(format!("worker {} refuses: {reason}", worker.address)));
                }
                Err(Refusal::Silent(reason)) => {
                    tracing::warn!(worker = worker.address, reason, "a worker does not answer");
                    reasons.push(format!("{}: {reason}", worker.address));
                }
            }
        }
        match answering.is_empty() {
            true => Err(Error::Cluster(format!("no worker of the cluster answers ({})", reasons.join("; ")))),
            false => Ok(answering),
        }
    }

    /// The version of a worker.
    async fn version(&self, worker: &Worker) -> std::result::Result<String, Refusal> {
        let request = async {
            let mut client = self.channels.client(&worker.url)?;
            client.get_worker_info(GetWorkerInfoRequest {}).await
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, request).await {
            Ok(Ok(info)) => Ok(info.version),
            Ok(Err(error)) => Err(Refusal::of(&error)),
            Err(_) => Err(Refusal::Silent("no answer in time".into())),
        }
    }

    /// Plans a query for the workers that answer; `None` if a single machine is to execute it. Workers are asked only if it is
    /// divided.
    async fn prepare(&self, query: &ClusterQuery) -> Result<Decision> {
        let Ok(prepared) = self.prepare_for(query, self.workers.clone()).await else {
            // The session has functions and files that workers do not have, and otherwise reports the error in its terms.
            return Ok(Decision::Undivided { reason: "it cannot be planned for workers".into(), planned: None });
        };
        if matches!(prepared, Decision::Undivided { .. }) {
            return Ok(prepared);
        }
        let answering = self.answering().await?;
        match answering.len() == self.workers.len() {
            true => Ok(prepared),
            false => self.prepare_for(query, answering).await,
        }
    }

    async fn prepare_for(&self, query: &ClusterQuery, workers: Vec<Worker>) -> Result<Decision> {
        let planned = Box::new(query.plan(workers.len(), self.split).await?);
        if let Some(reason) = planned.obstacle.clone() {
            return Ok(Decision::Undivided { reason, planned: Some(planned) });
        }
        let urls = workers.iter().map(|worker| worker.url.clone()).collect();
        Ok(match divide(&planned, urls).await? {
            Some(divided) => Decision::Divided(Box::new(Prepared { workers, planned, divided })),
            None => Decision::Undivided { reason: "its scans are small".into(), planned: Some(planned) },
        })
    }

    /// Begins the execution of a plan.
    fn start(&self, prepared: &Prepared) -> Result<SendableRecordBatchStream> {
        let Prepared { planned, divided, .. } = prepared;
        let channels = QueryChannels::new(self.channels.clone(), &planned.query, divided.digest())?;
        let state = SessionStateBuilder::new_from_existing(divided.state.clone())
            .with_distributed_user_codec(StageCodec)
            .with_distributed_channel_resolver(channels)
            .build();
        Ok(execute_stream(divided.plan.clone(), state.task_ctx())?)
    }

    /// The error of a query, or the reason to begin it again.
    async fn judge(&self, error: DataFusionError, workers: &[Worker]) -> Failure {
        let error = match of_query(error) {
            Ok(error) => return Failure::OfQuery(error),
            Err(error) => error,
        };
        let answers = join_all(workers.iter().map(|worker| self.version(worker))).await;
        let lost = workers.iter().zip(answers).filter(|(_, answer)| answer.is_err());
        let lost: Vec<&str> = lost.map(|(worker, _)| worker.address.as_str()).collect();
        Failure::OfWorker(match lost.as_slice() {
            [] => error,
            lost => Error::Cluster(format!("the cluster has lost worker {} ({error})", lost.join(", "))),
        })
    }

    /// The rows of a query. It begins again after a failure of workers, unless it has returned rows.
    async fn rows(&self, query: &Arc<ClusterQuery>) -> Result<Option<SendableRecordBatchStream>> {
        let Decision::Divided(prepared) = self.prepare(query).await? else { return Ok(None) };
        let started = self.start(&prepared)?;
        let schema = started.schema();
        let running = Running {
            coordinator: self.clone(),
            query: query.clone(),
            prepared,
            rows: Some(started),
            attempts: 1,
            held: VecDeque::new(),
            has_rows: false,
        };
        let shown = running.prepared.planned.shown_by();
        let batches = futures::stream::unfold(running, |mut running| async move {
            let batch = running.next().await?;
            Some((batch.map_err(DataFusionError::from), running))
        });
        let rows = Box::pin(RecordBatchStreamAdapter::new(schema, batches.fuse()));
        Ok(Some(shown(rows)))
    }
}

/// Why a worker is not used.
enum Refusal {
    Refused(String),
    Silent(String),
}

impl Refusal {
    fn of(error: &DataFusionError) -> Refusal {
        let status = match error {
            DataFusionError::External(error) => error.downcast_ref::<tonic::Status>(),
            _ => None,
        };
        match status.map(|status| (status.code(), status.message())) {
            Some((tonic::Code::Unauthenticated | tonic::Code::Unimplemented, message)) => {
                Refusal::Refused(message.into())
            }
            Some((_, message)) => Refusal::Silent(message.into()),
            None => Refusal::Silent(error.to_string()),
        }
    }
}

/// The cause of an error.
enum Failure {
    /// The query fails on every machine.
    OfQuery(Error),
    /// A worker or a connection.
    OfWorker(Error),
}

/// Whether a query is divided.
enum Decision {
    Divided(Box<Prepared>),
    /// For this reason. The plan is that of a single machine; `None` if there is none.
    Undivided {
        reason: String,
        planned: Option<Box<PlannedQuery>>,
    },
}

/// A divided query.
struct Prepared {
    workers: Vec<Worker>,
    planned: Box<PlannedQuery>,
    divided: Divided,
}

/// A query that is executed.
struct Running {
    coordinator: Coordinator,
    query: Arc<ClusterQuery>,
    prepared: Box<Prepared>,
    /// `None` after the end.
    rows: Option<SendableRecordBatchStream>,
    attempts: usize,
    /// The first rows of this attempt, which are returned at the end or when there are many.
    held: VecDeque<RecordBatch>,
    /// Rows were returned.
    has_rows: bool,
}

impl Running {
    /// The next rows.
    async fn next(&mut self) -> Option<Result<RecordBatch>> {
        loop {
            if (self.has_rows || self.rows.is_none())
                && let Some(batch) = self.held.pop_front()
            {
                return Some(Ok(batch));
            }
            let rows = self.rows.as_mut()?;
            let error = match rows.next().await {
                Some(Ok(batch)) => {
                    self.held.push_back(batch);
                    self.has_rows |= self.held.iter().map(RecordBatch::num_rows).sum::<usize>() > HELD_ROWS_MAX;
                    continue;
                }
                Some(Err(error)) => error,
                None => {
                    self.rows = None;
                    continue;
                }
            };
            self.rows = None;
            self.held.clear();
            let error = match self.coordinator.judge(error, &self.prepared.workers).await {
                Failure::OfQuery(error) => return Some(Err(error)),
                Failure::OfWorker(error) if self.has_rows || self.attempts == ATTEMPTS_MAX => return Some(Err(error)),
                Failure::OfWorker(error) => error,
            };
            tracing::warn!(%error, "the query begins again");
            if let Err(error) = self.begin_again(error).await {
                return Some(Err(error));
            }
        }
    }

    async fn begin_again(&mut self, error: Error) -> Result<()> {
        self.attempts += 1;
        // The query depends on the workers only by their number: with any, it is divided or not.
        self.rows = Some(match self.coordinator.prepare(&self.query).await? {
            Decision::Divided(prepared) => {
                self.prepared = prepared;
                self.coordinator.start(&self.prepared)?
            }
            // One worker is left: it would execute all of it.
            Decision::Undivided { planned: Some(planned), .. } => {
                execute_stream(planned.plan.clone(), planned.state.task_ctx())?
            }
            Decision::Undivided { planned: None, .. } => return Err(error),
        });
        Ok(())
    }
}

impl Cluster for Coordinator {
    fn run<'a>(&'a self, query: &'a Arc<ClusterQuery>) -> BoxFuture<'a, Result<Option<SendableRecordBatchStream>>> {
        self.rows(query).boxed()
    }

    fn explain<'a>(&'a self, query: &'a Arc<ClusterQuery>, executes: bool) -> BoxFuture<'a, Result<Explained>> {
        async move {
            let prepared = match self.prepare(query).await? {
                Decision::Divided(prepared) => prepared,
                Decision::Undivided { reason, .. } => return Ok(Explained::Undivided(reason)),
            };
            if !executes {
                return Ok(Explained::Stages(prepared.divided.text()));
            }
            let mut rows = self.start(&prepared)?;
            while let Some(batch) = rows.next().await {
                if let Err(error) = batch {
                    return match self.judge(error, &prepared.workers).await {
                        Failure::OfQuery(error) | Failure::OfWorker(error) => Err(error),
                    };
                }
            }
            let plan = prepared.divided.plan.clone();
            let figures = rewrite_distributed_plan_with_metrics(plan, DistributedMetricsFormat::Aggregated);
            // A task that was not needed sends none.
            let Ok(plan) = tokio::time::timeout(ANSWER_TIMEOUT, figures).await else {
                return Ok(Explained::Stages(prepared.divided.text()));
            };
            let plan = plan?;
            Ok(Explained::Stages(DisplayableExecutionPlan::with_metrics(plan.as_ref()).indent(true).to_string()))
        }
        .boxed()
    }
}

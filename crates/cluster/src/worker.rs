//! A worker: it executes tasks for coordinators that have its token or certificate.
//!
//! A worker opens the databases that coordinators name, with its own credentials, and keeps some open. The first task of a
//! query on a worker needs the database, so it waits until it is open.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::SessionConfig;
use datafusion_distributed::{DistributedConfig, DistributedExt, Worker, WorkerQueryContext};
use keyaki::{Database, Options, WORKERS_MAX};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Status};
use url::Url;

use crate::channel::{Channels, Exchanges, query};
use crate::codec::{StageCodec, StagePlans};
use crate::error::portable;
use crate::security::Security;
use crate::stages::divide;
use crate::version::VERSION;

/// Databases that a worker keeps open. Another one replaces the one that was used least recently.
const DATABASES_MAX: usize = 4;
/// Maximum size of the metadata of a request in bytes: a query, and the speed of the store.
const METADATA_BYTES_MAX: u32 = 1 << 20;
/// The time between pings of a connection, and for the answer of one.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Options of a worker.
#[derive(Debug, Clone, Default)]
pub struct WorkerOptions {
    /// The coordinators that the worker accepts.
    pub security: Security,
    /// Options of the databases that it opens. All of them have the whole memory.
    pub database: Options,
    /// The beginnings of the URLs of databases that coordinators may name; empty for any.
    pub allowed: Vec<String>,
}

/// Executes tasks for coordinators that connect to `listener`, until `shutdown` is ready.
///
/// # Errors
/// `Cluster` if connections cannot be accepted; `InvalidParameter` for invalid certificates.
pub async fn serve(
    listener: TcpListener,
    options: WorkerOptions,
    shutdown: impl Future<Output = ()>,
) -> keyaki::Result<()> {
    let invalid = |error: tonic::transport::Error| keyaki::Error::InvalidParameter {
        name: "certificate".into(),
        value: "the given one".into(),
        expected: format!("PEM files of a certificate, its key and its authority ({})", causes(&error)),
    };
    let security = options.security.clone();
    let worker = Worker::from_session_builder(TaskSessions::new(options)).with_version(VERSION);
    let admit = {
        let security = security.clone();
        move |request: Request<()>| match security.admits(request.metadata()) {
            true => Ok(request),
            false => Err(Status::unauthenticated("the token of the cluster is missing or wrong")),
        }
    };
    let mut server = Server::builder()
        .http2_max_header_list_size(METADATA_BYTES_MAX)
        .http2_adaptive_window(Some(true))
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_INTERVAL));
    if let Some(tls) = &security.tls {
        server = server.tls_config(tls.of_server()).map_err(invalid)?;
    }
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let service = InterceptedService::new(worker.into_worker_server(), admit);
    let served = server.add_service(service).serve_with_incoming_shutdown(incoming, shutdown).await;
    served.map_err(|error| keyaki::Error::Cluster(format!("the worker cannot accept connections: {}", causes(&error))))
}

/// An error with the errors that have caused it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// True for the URL of a database at a place, or below it.
fn is_within(url: &str, base: &str) -> bool {
    let below = url.strip_prefix(base.trim_end_matches('/'));
    below.is_some_and(|below| below.starts_with(['/', '@']) || below.is_empty())
        && !url.split('/').any(|part| part == "..")
}

/// Makes the sessions of tasks.
struct TaskSessions {
    options: WorkerOptions,
    channels: Arc<Channels>,
    /// The open databases by URL, the most recently used one last.
    databases: Mutex<Vec<(String, Arc<OnceCell<Database>>)>>,
}

impl TaskSessions {
    fn new(options: WorkerOptions) -> Self {
        let channels = Arc::new(Channels::new(options.security.clone()));
        TaskSessions { options, channels, databases: Mutex::default() }
    }

    /// The database at a URL, which is opened if it is not open.
    async fn database(&self, url: &str) -> keyaki::Result<Database> {
        if !self.options.allowed.is_empty() && !self.options.allowed.iter().any(|base| is_within(url, base)) {
            return Err(keyaki::Error::Cluster(format!("the worker may not open {url}")));
        }
        let cell = {
            let mut databases = self.databases.lock();
            let known = databases.iter().position(|(known, _)| known == url);
            let entry = match known {
                Some(place) => databases.remove(place),
                None => (url.to_string(), Arc::default()),
            };
            let cell = entry.1.clone();
            databases.push(entry);
            if databases.len() > DATABASES_MAX {
                databases.remove(0);
            }
            cell
        };
        let (path, options) = (url.to_string(), self.options.database.clone());
        let failed = |error: tokio::task::JoinError| keyaki::Error::Internal(format!("a task failed: {error}"));
        // The task continues when the request is cancelled, so that the next request finds the database open.
        let opening = tokio::spawn(async move {
            let open = || async {
                let opened = tokio::task::spawn_blocking(move || {
                    if !keyaki::is_url(&path) {
                        return Err(keyaki::Error::Cluster(format!("{path} is no URL of a published database")));
                    }
                    Database::open(path, options)
                });
                opened.await.map_err(failed)?
            };
            cell.get_or_try_init(open).await.cloned()
        });
        let opened = opening.await.map_err(failed)?;
        if opened.is_err() {
            self.databases.lock().retain(|(known, cell)| known != url || cell.initialized());
        }
        opened
    }

    /// The state for one task: it has the stages of the plan.
    async fn state(&self, mut context: WorkerQueryContext) -> Result<SessionState> {
        let query = query(&context.headers)?;
        let database = self.database(&query.database).await?;
        // The addresses do not matter for the plan.
        let unknown = Url::parse("http://worker").map_err(|error| DataFusionError::External(error.into()))?;
        let workers = vec![unknown; query.workers.clamp(1, WORKERS_MAX)];
        // Each task has operators of its own: those of several tasks must not share their state.
        let planned = database.plan_remote(query).await?;
        if let Some(obstacle) = &planned.obstacle {
            return Err(DataFusionError::Internal(format!("a worker executes no such query: {obstacle}")));
        }
        let divided = divide(&planned, workers).await?;
        let divided = divided.ok_or_else(|| DataFusionError::Internal("a worker did not divide the query".into()))?;
        let mut config = context.builder.config().take().unwrap_or_default();
        let distributed = config.options().extensions.get::<DistributedConfig>().cloned();
        *config.options_mut() = planned.state.config_options().as_ref().clone();
        if let Some(distributed) = distributed {
            config.options_mut().extensions.insert(distributed);
        }
        let config: SessionConfig = config.with_extension(Arc::new(StagePlans::of(&divided)));
        let state = SessionStateBuilder::new_from_existing(planned.state)
            .with_config(config)
            .with_distributed_user_codec(StageCodec)
            .with_distributed_channel_resolver(Exchanges(self.channels.clone()))
            .build();
        Ok(state)
    }
}

#[async_trait::async_trait]
impl datafusion_distributed::WorkerSessionBuilder for TaskSessions {
    async fn build_session_state(&self, context: WorkerQueryContext) -> Result<SessionState> {
        self.state(context).await.map_err(portable)
    }
}

#[cfg(test)]
mod tests {
    use super::is_within;

    #[test]
    fn urls_within_a_place() {
        for url in ["s3://b/shop@1", "s3://b/shop/x@2", "s3://b/shop"] {
            assert!(
                is_within(url, "s3://b/shop") && is_within(url, "s3://b/shop/") && is_within(url, "s3://b"),
                "{url}"
            );
        }
        for url in ["s3://b/shopping@1", "s3://b/shop/../x@1", "s3://other/shop@1", "file:///etc"] {
            assert!(!is_within(url, "s3://b/shop"), "{url}");
        }
    }
}

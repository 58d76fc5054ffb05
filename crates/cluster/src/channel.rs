//! Connections to workers.
//!
//! A connection is made at the first request, and again after it was lost. Pings find machines that have vanished.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use datafusion::arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion_distributed::grpc::{BoxCloneSyncChannel, create_worker_client};
use datafusion_distributed::{
    ChannelResolver, CoordinatorToWorkerMsg, ExecuteTaskRequest, GetWorkerInfoRequest, GetWorkerInfoResponse,
    MaybeEncoded, SetPlanRequest, WorkerChannel, WorkerToCoordinatorMsg,
};
use futures::stream::BoxStream;
use http::{HeaderMap, HeaderValue};
use keyaki::RemoteQuery;
use parking_lot::Mutex;
use tonic::transport::Endpoint;
use tower::ServiceExt;
use url::Url;

use crate::codec::StageExec;
use crate::security::Security;

/// The metadata of a request for a task that has the query.
const QUERY: &str = "keyaki-query";
/// A worker answers a connection within this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The time between pings of a connection with requests, and for the answer of one.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// The connections of one machine to workers.
#[derive(Debug)]
pub(crate) struct Channels {
    security: Security,
    open: Mutex<HashMap<Url, BoxCloneSyncChannel>>,
}

impl Channels {
    pub fn new(security: Security) -> Self {
        Channels { security, open: Mutex::default() }
    }

    /// The connection to a worker, which may not be made yet.
    ///
    /// # Errors
    /// For an invalid address, certificate or token.
    fn channel(&self, url: &Url) -> Result<BoxCloneSyncChannel> {
        let mut open = self.open.lock();
        if let Some(channel) = open.get(url) {
            return Ok(channel.clone());
        }
        let invalid = |error: tonic::transport::Error| DataFusionError::External(Box::new(error));
        let mut endpoint = Endpoint::from_shared(url.to_string()).map_err(invalid)?;
        if let Some(tls) = &self.security.tls {
            endpoint = endpoint.tls_config(tls.of_client()).map_err(invalid)?;
        }
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_INTERVAL)
            .http2_adaptive_window(true);
        let metadata = self.security.metadata()?;
        let token = metadata.and_then(|value| {
            let mut value = HeaderValue::from_bytes(value.as_bytes()).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        let channel = endpoint.connect_lazy().map_request(move |mut request: http::Request<tonic::body::Body>| {
            if let Some(token) = &token {
                request.headers_mut().insert(Security::metadata_name(), token.clone());
            }
            request
        });
        let channel = BoxCloneSyncChannel::new(channel);
        open.insert(url.clone(), channel.clone());
        Ok(channel)
    }

    /// A client of a worker.
    ///
    /// # Errors
    /// As [`Channels::channel`].
    pub fn client(&self, url: &Url) -> Result<Box<dyn WorkerChannel>> {
        self.channel(url).map(create_worker_client)
    }
}

/// The connections of a worker, which takes rows from others.
#[derive(Debug, Clone)]
pub(crate) struct Exchanges(pub Arc<Channels>);

#[async_trait]
impl ChannelResolver for Exchanges {
    async fn get_worker_client_for_url(&self, url: &Url) -> Result<Box<dyn WorkerChannel>> {
        self.0.client(url)
    }
}

/// The connections of a coordinator for one query.
#[derive(Debug, Clone)]
pub(crate) struct QueryChannels {
    channels: Arc<Channels>,
    query: HeaderValue,
    digest: u64,
}

impl QueryChannels {
    /// Connections that start tasks of a query whose divided plan has the digest.
    ///
    /// # Errors
    /// If the query cannot be encoded.
    pub fn new(channels: Arc<Channels>, query: &RemoteQuery, digest: u64) -> Result<Self> {
        let json = serde_json::to_vec(query).map_err(|error| DataFusionError::External(error.into()))?;
        let query = HeaderValue::try_from(STANDARD.encode(json));
        let query = query.map_err(|error| DataFusionError::External(error.into()))?;
        Ok(QueryChannels { channels, query, digest })
    }
}

/// The query of a request for a task.
///
/// # Errors
/// `Execution` if there is none.
pub(crate) fn query(headers: &HeaderMap) -> Result<RemoteQuery> {
    let decoded = headers.get(QUERY).and_then(|value| STANDARD.decode(value.as_bytes()).ok());
    let query = decoded.and_then(|json| serde_json::from_slice(&json).ok());
    query.ok_or_else(|| DataFusionError::Execution("a request for a task has no query".into()))
}

#[async_trait]
impl ChannelResolver for QueryChannels {
    async fn get_worker_client_for_url(&self, url: &Url) -> Result<Box<dyn WorkerChannel>> {
        let inner = self.channels.client(url)?;
        Ok(Box::new(TaskChannel { inner, query: self.query.clone(), digest: self.digest }))
    }
}

/// A connection that starts tasks: it sends stages without their operators, and the query.
struct TaskChannel {
    inner: Box<dyn WorkerChannel>,
    query: HeaderValue,
    digest: u64,
}

#[async_trait]
impl WorkerChannel for TaskChannel {
    async fn coordinator_channel(
        &mut self,
        mut headers: HeaderMap,
        mut request: SetPlanRequest,
        messages: BoxStream<'static, CoordinatorToWorkerMsg>,
        metrics: ExecutionPlanMetricsSet,
        context: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<WorkerToCoordinatorMsg>>> {
        headers.insert(QUERY, self.query.clone());
        if let MaybeEncoded::Decoded(plan) = &request.plan {
            let stage = StageExec::new(request.task_key.stage_id, self.digest, plan);
            request.plan = MaybeEncoded::Decoded(Arc::new(stage));
        }
        self.inner.coordinator_channel(headers, request, messages, metrics, context).await
    }

    async fn execute_task(
        &mut self,
        headers: HeaderMap,
        request: ExecuteTaskRequest,
        metrics: ExecutionPlanMetricsSet,
        context: &Arc<TaskContext>,
    ) -> Result<Vec<BoxStream<'static, Result<RecordBatch>>>> {
        self.inner.execute_task(headers, request, metrics, context).await
    }

    async fn get_worker_info(&mut self, request: GetWorkerInfoRequest) -> Result<GetWorkerInfoResponse> {
        self.inner.get_worker_info(request).await
    }
}

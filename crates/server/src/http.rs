//! Figures and states of the server over HTTP, for monitoring.
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | figures in the text format of Prometheus |
//! | `/health` | 200 while the server runs |
//! | `/ready` | 200 while it accepts connections, 503 in a shutdown |

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::AsArray;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use bytes::Bytes;
use futures::TryStreamExt;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use keyaki::Outcome;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::shared::Shared;

/// Maximum number of connections; more are closed.
const CONNECTIONS_MAX: usize = 16;
/// Maximum time for a request and its answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a request.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Wait after an error of `accept`.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers requests.
pub async fn serve(shared: Arc<Shared>, listener: TcpListener) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(permit) = permits.clone().try_acquire_owned() else { continue };
                let shared = shared.clone();
                tokio::spawn(async move {
                    if timeout(TIMEOUT, connection(shared, stream)).await.is_err() {
                        tracing::debug!("a request for figures took too long");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(shared: Arc<Shared>, stream: TcpStream) {
    let service = service_fn(|request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(answer(&shared, &request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .max_buf_size(REQUEST_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a request for figures failed");
    }
}

async fn answer(shared: &Shared, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => {
            let store = store(shared).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "could not read the figures of the store");
                Vec::new()
            });
            (StatusCode::OK, shared.metrics.text(shared.registry.len(), &store))
        }
        (&Method::GET, "/health") => (StatusCode::OK, "running\n".into()),
        (&Method::GET, "/ready") if shared.registry.is_closed() => {
            (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n".into())
        }
        (&Method::GET, "/ready") => (StatusCode::OK, "ready\n".into()),
        (&Method::GET, _) => (StatusCode::NOT_FOUND, "not found\n".into()),
        _ => (StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n".into()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// The names and values of the view `keyaki_store`.
async fn store(shared: &Shared) -> keyaki::Result<Vec<(String, f64)>> {
    let Outcome::Rows(stream) = shared.database.session().query("SELECT * FROM keyaki_store").await? else {
        return Ok(Vec::new());
    };
    let batches: Vec<_> = stream.try_collect().await?;
    let mut figures = Vec::new();
    for batch in batches.iter().filter(|batch| batch.num_rows() > 0) {
        for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
            let Ok(column) = cast(column, &DataType::Float64) else { continue };
            let column = column.as_primitive::<Float64Type>();
            figures.extend(column.iter().next().flatten().map(|value| (field.name().clone(), value)));
        }
    }
    Ok(figures)
}

//! The faults around the service of s3s.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_RANGE, RANGE};
use hyper::{Method, Request, Response, StatusCode};
use s3s::service::S3Service;
use s3s::{Body, HttpError};
use tokio::sync::Mutex;

use crate::STATS;
use crate::faults::{Fate, State};

/// `Clone` returns another handle.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    inner: S3Service,
    /// The directory of the buckets.
    root: Arc<Path>,
    state: Arc<State>,
    /// s3s looks whether an object exists and writes it in two steps.
    puts: Arc<Mutex<()>>,
}

type Answer = Result<Response<Body>, HttpError>;

impl Service {
    pub fn new(inner: S3Service, root: &Path, state: Arc<State>) -> Service {
        Service { inner, root: root.into(), state, puts: Arc::default() }
    }

    async fn answer(self, request: Request<Incoming>) -> Answer {
        if request.uri().path() == STATS {
            return Ok(Response::new(Body::from(self.state.stats().to_string())));
        }
        let counter = match *request.method() {
            Method::GET => &self.state.gets,
            Method::PUT => &self.state.puts,
            _ => &self.state.others,
        };
        add(counter, 1);
        let now = self.state.concurrent.fetch_add(1, Ordering::Relaxed) + 1;
        self.state.concurrent_max.fetch_max(now, Ordering::Relaxed);
        let _ends = Concurrent(&self.state.concurrent);
        let fate = self.state.fate();
        tokio::time::sleep(fate.delay).await;
        if fate.is_refused {
            add(&self.state.refused, 1);
            let mut refusal = Response::new(Body::from("<Error><Code>SlowDown</Code></Error>".to_owned()));
            *refusal.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            return Ok(refusal);
        }
        if let Some(part) = self.part(&request) {
            return self.changed(part, fate).await;
        }
        let is_put = *request.method() == Method::PUT;
        let puts = if is_put { Some(self.puts.lock().await) } else { None };
        let answer = hyper::service::Service::call(&self.inner, request).await?;
        drop(puts);
        self.changed(answer, fate).await
    }

    /// A part of an object, read directly; `None` for other requests. s3s would compute a checksum of the whole object. The
    /// signature is not checked.
    fn part(&self, request: &Request<Incoming>) -> Option<Response<Body>> {
        let range = request.headers().get(RANGE)?.to_str().ok()?.strip_prefix("bytes=")?;
        let (start, last) = range.split_once('-')?;
        let (start, last) = (start.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        let path = request.uri().path().strip_prefix('/')?;
        if *request.method() != Method::GET || path.contains("..") || path.contains('%') {
            return None;
        }
        let file = File::open(self.root.join(path)).ok()?;
        let bytes = file.metadata().ok().filter(|metadata| metadata.is_file())?.len();
        let last = last.min(bytes.checked_sub(1)?);
        let mut body = vec![0; usize::try_from((last + 1).checked_sub(start)?).ok()?];
        file.read_exact_at(&mut body, start).ok()?;
        let head = Response::builder().status(StatusCode::PARTIAL_CONTENT);
        head.header(CONTENT_RANGE, format!("bytes {start}-{last}/{bytes}")).body(Body::from(body)).ok()
    }

    async fn changed(&self, answer: Response<Body>, fate: Fate) -> Answer {
        let is_part = answer.headers().contains_key(CONTENT_RANGE);
        let (head, body) = answer.into_parts();
        let body = body.collect().await.map_err(HttpError::new)?.to_bytes();
        add(&self.state.bytes_sent, body.len() as u64);
        let body = match is_part && !body.is_empty() {
            true if fate.is_truncated => {
                add(&self.state.truncated, 1);
                truncated(&body, fate.random)
            }
            true if fate.is_wrong => {
                add(&self.state.wrong, 1);
                let (mut bytes, at) = (body.to_vec(), fate.random as usize % body.len());
                bytes[at] ^= 1 << (fate.random % 8);
                Body::from(bytes)
            }
            _ => Body::from(body),
        };
        Ok(Response::from_parts(head, body))
    }
}

/// A body whose connection breaks.
fn truncated(body: &Bytes, random: u64) -> Body {
    let sent = body.slice(..random as usize % body.len());
    let broken = std::io::Error::new(std::io::ErrorKind::BrokenPipe, "the connection breaks here");
    let frames = [Ok(Frame::data(sent)), Err(broken)];
    Body::http_body_unsync(StreamBody::new(stream::iter(frames)))
}

/// A request that is being answered.
struct Concurrent<'a>(&'a AtomicU64);

impl Drop for Concurrent<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response<Body>;
    type Error = HttpError;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        Box::pin(self.clone().answer(request))
    }
}

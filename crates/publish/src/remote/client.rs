//! The client of an object store.
//!
//! ```text
//! read ─► attempt 1 ──────────── ok? ─► verified? ─► value
//!              └ slow: second request ┘        │ no: wait, attempt 2, …
//! ```
//!
//! *Attempts.* An attempt of a read includes the verification of its body, so that a wrong body is an error like any
//! other. A slow attempt sends a second request, and the first valid response wins. After a failure the client waits:
//! the base doubles with each attempt, and a random half of the wait is left out, so that clients do not return at
//! the same time. Refused permissions and missing objects are final.
//!
//! *Time.* A request has a fixed time and one second for each MiB of its body. If the length of an object is not known
//! before, its response has the fixed time to begin, and its header has the length. A listing consists of a request for
//! each 1000 objects, each of which has the fixed time.
//!
//! *Writes.* If the name of an object that must not be replaced is taken, the client compares the bytes: an earlier
//! attempt may have succeeded without an answer.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::TryStreamExt;
use keyaki_primitives::Random;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use super::counters::Counters;
use super::latencies::Latencies;
use super::options::RequestOptions;
use super::tasks::Tasks;
use crate::error::{Error, Result};
use crate::format::FRAME_BYTES;

/// An object store, with the threads on which requests to it run.
#[derive(Debug)]
pub(crate) struct Remote {
    store: Arc<dyn ObjectStore>,
    options: RequestOptions,
    permits: Semaphore,
    latencies: Latencies,
    random: Mutex<Random>,
    tasks: Tasks,
    pub counters: Counters,
}

/// The metadata of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub path: Path,
    /// Time of the store's clock, in microseconds since 1970.
    pub modified_us: i64,
    /// Length in bytes.
    pub bytes: u64,
}

impl From<ObjectMeta> for Listed {
    fn from(meta: ObjectMeta) -> Self {
        Listed { path: meta.location, modified_us: meta.last_modified.timestamp_micros(), bytes: meta.size }
    }
}

/// A failed attempt.
#[derive(Debug)]
enum Failure {
    Request(object_store::Error),
    TimedOut,
    /// A wrong body.
    Damaged(String),
}

impl Failure {
    /// True if the next attempt will fail too.
    fn is_final(&self) -> bool {
        use object_store::Error as E;
        let Failure::Request(error) = self else { return false };
        matches!(
            error,
            E::NotFound { .. }
                | E::AlreadyExists { .. }
                | E::Precondition { .. }
                | E::InvalidPath { .. }
                | E::NotSupported { .. }
                | E::NotImplemented { .. }
                | E::PermissionDenied { .. }
                | E::Unauthenticated { .. }
                | E::UnknownConfigurationKey { .. }
        ) || status(error).is_some_and(|status| FINAL_STATUSES.contains(&status))
    }
}

/// Statuses of answers that repetition does not change: another place, wrong credentials, no permission, no bucket.
const FINAL_STATUSES: [u16; 4] = [301, 401, 403, 404];

/// The status of an answer that the client of a store does not distinguish, such as that of a refused listing. Its type
/// is not public, but its message names the status.
fn status(error: &object_store::Error) -> Option<u16> {
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        next = error.source();
        // The messages of errors contain those of their causes: the status is in that of the last one.
        if next.is_none() {
            let message = error.to_string();
            return message.split_once("status code: ")?.1.get(..3)?.parse().ok();
        }
    }
    None
}

impl Remote {
    pub fn new(store: Arc<dyn ObjectStore>, options: RequestOptions) -> Result<Remote> {
        Ok(Remote {
            store,
            permits: Semaphore::new(options.requests_max.clamp(1, Semaphore::MAX_PERMITS)),
            latencies: Latencies::default(),
            random: Mutex::new(Random::new(options.seed)),
            tasks: Tasks::new()?,
            counters: Counters::default(),
            options,
        })
    }

    /// The median latency of recent reads, of the shortest ones that there were.
    pub fn read_latency(&self) -> Option<Duration> {
        self.latencies.shortest()
    }

    /// The runtime of the requests.
    pub fn handle(&self) -> &Handle {
        self.tasks.handle()
    }

    /// Runs a future of requests to its end. Blocks.
    pub fn run<T: Send + 'static>(&self, future: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        self.tasks.run(future)
    }

    /// Reads a range of an object, or all of it, until `check` accepts the body: it returns the value, or what is
    /// wrong.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Damaged`], [`Error::Request`], [`Error::TimedOut`].
    pub async fn read<T>(
        &self,
        path: &Path,
        range: Option<Range<u64>>,
        check: impl Fn(Bytes) -> Result<T, String>,
    ) -> Result<T> {
        let offset = range.as_ref().map_or(0, |range| range.start);
        self.latencies.add_read();
        let attempt = || self.read_hedged(path, &range, &check);
        self.attempt("read", path, offset, attempt).await
    }

    /// One attempt of a read, with a second request if the first one is slow.
    async fn read_hedged<T>(
        &self,
        path: &Path,
        range: &Option<Range<u64>>,
        check: &impl Fn(Bytes) -> Result<T, String>,
    ) -> Result<T, Failure> {
        let frames = range.as_ref().map(|range| (range.end - range.start).div_ceil(FRAME_BYTES));
        let started = Instant::now();
        let first = self.read_once(path, range, check);
        let slow = frames.zip(self.options.hedge_after).and_then(|(frames, least)| {
            let after = self.latencies.hedge_after(frames)?;
            Some(after.max(least))
        });
        let (first, result) = match slow {
            Some(slow) => {
                let mut first = Box::pin(first);
                match timeout(slow, &mut first).await {
                    Ok(result) => (true, result),
                    Err(_) if self.latencies.take_hedge() => {
                        self.counters.hedges.add(1);
                        let second = Box::pin(self.read_once(path, range, check));
                        either(first, second).await
                    }
                    Err(_) => (true, first.await),
                }
            }
            None => (true, first.await),
        };
        if let Some(frames) = frames.filter(|_| first && result.is_ok()) {
            self.latencies.add(frames, started.elapsed());
        }
        result
    }

    async fn read_once<T>(
        &self,
        path: &Path,
        range: &Option<Range<u64>>,
        check: &impl Fn(Bytes) -> Result<T, String>,
    ) -> Result<T, Failure> {
        self.counters.reads.add(1);
        let body = match range {
            Some(range) => self.within(range.end - range.start, self.store.get_range(path, range.clone())).await?,
            None => {
                let response = self.within(0, self.store.get(path)).await?;
                self.within(response.meta.size, response.bytes()).await?
            }
        };
        self.counters.bytes_read.add(body.len() as u64);
        let expected = range.as_ref().map(|range| range.end - range.start);
        let checked = match expected {
            Some(expected) if expected != body.len() as u64 => Err(format!("{} of {expected} bytes", body.len())),
            _ => check(body),
        };
        checked.map_err(|detail| {
            self.counters.damaged.add(1);
            Failure::Damaged(detail)
        })
    }

    /// Writes an object, and replaces one of this name.
    ///
    /// # Errors
    /// [`Error::Request`], [`Error::TimedOut`].
    pub async fn write(&self, path: &Path, bytes: Bytes) -> Result<()> {
        self.put(path, &bytes, PutMode::Overwrite).await
    }

    /// Writes an object unless there is one of this name. Returns false if there is another one. After any other
    /// error than a refusal, the object may exist.
    ///
    /// # Errors
    /// [`Error::Request`], [`Error::TimedOut`].
    pub async fn create(&self, path: &Path, bytes: Bytes) -> Result<bool> {
        let (mut different, mut absences): (Option<Bytes>, u32) = (None, 0);
        loop {
            let refused = match self.put(path, &bytes, PutMode::Create).await {
                Ok(()) => return Ok(true),
                Err(error) if matches!(&error, Error::Request { source, .. } if is_taken(source)) => error,
                Err(error) => return Err(error),
            };
            // An attempt without an answer may have written it.
            match self.read(path, None, Ok).await {
                Ok(found) if found == bytes => return Ok(true),
                // One answer alone may be damaged.
                Ok(found) if different.as_ref() == Some(&found) => return Ok(false),
                Ok(found) if different.is_none() => different = Some(found),
                // Another request is still under way.
                Err(Error::Missing { .. }) if absences + 1 < self.options.attempts_max => {
                    absences += 1;
                    self.counters.retries.add(1);
                    sleep(self.wait_after(absences)).await;
                }
                Ok(_) | Err(Error::Missing { .. }) => return Err(refused),
                Err(error) => return Err(error),
            }
        }
    }

    async fn put(&self, path: &Path, bytes: &Bytes, mode: PutMode) -> Result<()> {
        let attempt = || async {
            self.counters.writes.add(1);
            self.counters.bytes_written.add(bytes.len() as u64);
            let options = PutOptions::from(mode.clone());
            let put = self.store.put_opts(path, PutPayload::from_bytes(bytes.clone()), options);
            self.within(bytes.len() as u64, put).await.map(drop)
        };
        self.attempt("write", path, 0, attempt).await
    }

    /// Removes an object. No error if there is none.
    ///
    /// # Errors
    /// [`Error::Request`], [`Error::TimedOut`].
    pub async fn remove(&self, path: &Path) -> Result<()> {
        let attempt = || async {
            self.counters.others.add(1);
            self.within(0, self.store.delete(path)).await
        };
        match self.attempt("remove", path, 0, attempt).await {
            Err(Error::Missing { .. }) => Ok(()),
            removed => removed,
        }
    }

    /// The metadata of an object.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Request`], [`Error::TimedOut`].
    pub async fn head(&self, path: &Path) -> Result<Listed> {
        let attempt = || async {
            self.counters.others.add(1);
            self.within(0, self.store.head(path)).await
        };
        Ok(self.attempt("query", path, 0, attempt).await?.into())
    }

    /// The metadata of all objects under a prefix, sorted by their paths.
    ///
    /// # Errors
    /// [`Error::Request`], [`Error::TimedOut`].
    pub async fn list(&self, prefix: &Path) -> Result<Vec<Listed>> {
        let attempt = || async {
            self.counters.others.add(1);
            let (mut listed, mut objects) = (Vec::new(), self.store.list(Some(prefix)));
            while let Some(object) = self.within(0, objects.try_next()).await? {
                listed.push(Listed::from(object));
            }
            Ok(listed)
        };
        let mut listed = self.attempt("list", prefix, 0, attempt).await?;
        listed.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(listed)
    }

    /// Limits the time of a request of `bytes` bytes.
    async fn within<T>(
        &self,
        bytes: u64,
        request: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Failure> {
        let limit = self.options.timeout + Duration::from_secs(bytes >> 20);
        timeout(limit, request).await.map_err(|_| Failure::TimedOut)?.map_err(Failure::Request)
    }

    /// Repeats an attempt at a request from `offset` on, until it succeeds.
    async fn attempt<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        operation: &'static str,
        path: &Path,
        offset: u64,
        attempt: impl Fn() -> F,
    ) -> Result<T> {
        let mut attempts = 1;
        loop {
            let failure = {
                let _permit = self.permits.acquire().await.map_err(|_| Error::Cancelled)?;
                match attempt().await {
                    Ok(value) => return Ok(value),
                    Err(failure) => failure,
                }
            };
            if attempts >= self.options.attempts_max || failure.is_final() {
                return Err(failed(operation, path, offset, attempts, failure));
            }
            tracing::debug!(operation, path = path.as_ref(), attempts, ?failure, "request to the object store failed");
            self.counters.retries.add(1);
            sleep(self.wait_after(attempts)).await;
            attempts += 1;
        }
    }

    /// The wait after so many attempts: half of the limit that doubles, and a random part of the other half.
    fn wait_after(&self, attempts: u32) -> Duration {
        let doubled = self.options.backoff.saturating_mul(1 << (attempts - 1).min(16));
        let half = doubled.min(self.options.backoff_max) / 2;
        let part = self.random.lock().below(1 << 16) as u32;
        half + half * part / (1 << 16)
    }
}

fn is_taken(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. })
}

fn failed(operation: &'static str, path: &Path, offset: u64, attempts: u32, failure: Failure) -> Error {
    let path = path.to_string();
    match failure {
        Failure::Request(object_store::Error::NotFound { .. }) => Error::Missing { path },
        Failure::Request(source) => Error::Request { operation, path, attempts, source: Arc::new(source) },
        Failure::TimedOut => Error::TimedOut { operation, path, attempts },
        Failure::Damaged(detail) => Error::Damaged { path, offset, detail, attempts },
    }
}

/// The first success of two futures, or the last failure. True if it is that of the first one.
async fn either<T, E>(
    first: impl Future<Output = Result<T, E>> + Unpin,
    second: impl Future<Output = Result<T, E>> + Unpin,
) -> (bool, Result<T, E>) {
    use futures::future::{Either, select};
    match select(first, second).await {
        Either::Left((Err(_), second)) => (false, second.await),
        Either::Left((first, _)) => (true, first),
        Either::Right((Err(_), first)) => (true, first.await),
        Either::Right((second, _)) => (false, second),
    }
}

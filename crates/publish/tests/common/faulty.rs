//! A wrapper of an object store that fails requests, changes bodies, delays them, and has a clock of its own.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use keyaki_primitives::Random;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

/// The fault of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// An error as of status 503.
    Unavailable,
    /// The request takes effect, and the answer is an error.
    LostAnswer,
    /// The body ends early, or a listing fails in the middle.
    Truncated,
    /// A bit of the body is flipped.
    Flipped,
    /// The body is another part of the object.
    Shifted,
    /// The response begins after this time.
    Slow(Duration),
    /// The body ends this long after the response has begun.
    SlowBody(Duration),
    /// No answer.
    Hangs,
    /// An error that repetition does not help.
    Denied,
}

/// Decides about a request: its kind (`"get"`, `"head"`, `"put"`, `"list"`, `"delete"`), and its path.
pub type Decide = dyn Fn(&str, &str) -> Option<Fault> + Send + Sync;

pub struct Faulty {
    inner: Arc<dyn ObjectStore>,
    decide: Mutex<Option<Arc<Decide>>>,
    random: Mutex<Random>,
    /// Times of the objects, in seconds.
    dates: Mutex<HashMap<Path, i64>>,
    clock: AtomicI64,
    /// Ranges of bodies that were requested, by path.
    pub requested: Mutex<Vec<(String, Option<Range<u64>>)>>,
    pub gets: AtomicU64,
    pub puts: AtomicU64,
    pub lists: AtomicU64,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty({})", self.inner)
    }
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faulty({})", self.inner)
    }
}

impl Faulty {
    pub fn new(inner: Arc<dyn ObjectStore>) -> Arc<Faulty> {
        Arc::new(Faulty {
            inner,
            decide: Mutex::new(None),
            random: Mutex::new(Random::new(8)),
            dates: Mutex::default(),
            clock: AtomicI64::new(1_700_000_000),
            requested: Mutex::default(),
            gets: AtomicU64::new(0),
            puts: AtomicU64::new(0),
            lists: AtomicU64::new(0),
        })
    }

    pub fn in_memory() -> Arc<Faulty> {
        Faulty::new(Arc::new(object_store::memory::InMemory::new()))
    }

    /// Sets the faults of further requests.
    pub fn set(&self, decide: impl Fn(&str, &str) -> Option<Fault> + Send + Sync + 'static) {
        *self.decide.lock() = Some(Arc::new(decide));
    }

    /// Faults of random requests: one of `faults` in one of `one_in` requests of a kind.
    pub fn set_random(&self, seed: u64, kind: &'static str, one_in: u64, faults: &'static [Fault]) {
        let random = Mutex::new(Random::new(seed));
        self.set(move |of, _| {
            let mut random = random.lock();
            (of == kind && random.one_in(one_in)).then(|| *random.pick(faults))
        });
    }

    pub fn set_none(&self) {
        *self.decide.lock() = None;
    }

    /// Moves the clock of the store forward.
    pub fn pass(&self, time: Duration) {
        self.clock.fetch_add(time.as_secs() as i64, Ordering::Relaxed);
    }

    /// The objects whose paths contain a text.
    pub fn paths(&self, part: &str) -> Vec<String> {
        let dates = self.dates.lock();
        let mut paths: Vec<String> = dates.keys().map(ToString::to_string).filter(|path| path.contains(part)).collect();
        paths.sort();
        paths
    }

    /// The bytes of an object, without faults.
    pub async fn body(&self, path: &str) -> Bytes {
        let found = self.inner.get_opts(&Path::from(path), GetOptions::default()).await.unwrap();
        found.bytes().await.unwrap()
    }

    /// Sets the bytes of an object, without faults.
    pub async fn replace(&self, path: &str, bytes: Vec<u8>) {
        self.inner.put_opts(&Path::from(path), bytes.into(), PutOptions::default()).await.unwrap();
        self.dates.lock().insert(Path::from(path), self.clock.load(Ordering::Relaxed));
    }

    fn fault(&self, kind: &str, path: &str) -> Option<Fault> {
        let decide = self.decide.lock().clone();
        decide.and_then(|decide| decide(kind, path))
    }

    fn dated(&self, mut meta: ObjectMeta) -> ObjectMeta {
        if let Some(&seconds) = self.dates.lock().get(&meta.location) {
            let seconds = Duration::from_secs(seconds as u64);
            meta.last_modified = (std::time::SystemTime::UNIX_EPOCH + seconds).into();
        }
        meta
    }

    fn unavailable() -> object_store::Error {
        object_store::Error::Generic { store: "Faulty", source: "503 Slow Down".into() }
    }

    fn denied(path: &Path) -> object_store::Error {
        object_store::Error::PermissionDenied { path: path.to_string(), source: "403 Forbidden".into() }
    }

    /// The fault of a request that must happen before it takes effect.
    async fn before(&self, kind: &str, path: &Path) -> Result<Option<Fault>> {
        tokio::task::yield_now().await;
        let fault = self.fault(kind, path.as_ref());
        match fault {
            Some(Fault::Unavailable) => Err(Faulty::unavailable()),
            Some(Fault::Denied) => Err(Faulty::denied(path)),
            Some(Fault::Hangs) => {
                futures::future::pending::<()>().await;
                Ok(None)
            }
            Some(Fault::Slow(delay)) => {
                tokio::time::sleep(delay).await;
                Ok(None)
            }
            fault => Ok(fault),
        }
    }

    fn changed(&self, fault: Fault, body: Bytes, whole: &Bytes) -> Bytes {
        let mut random = self.random.lock();
        match fault {
            _ if body.is_empty() => body,
            Fault::Truncated => body.slice(..random.index(body.len())),
            Fault::Shifted if whole.len() > body.len() => {
                let start = random.index(whole.len() - body.len() + 1);
                whole.slice(start..start + body.len())
            }
            _ => {
                let mut changed = body.to_vec();
                let at = random.index(changed.len());
                changed[at] ^= 1 << random.below(8);
                changed.into()
            }
        }
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.puts.fetch_add(1, Ordering::Relaxed);
        let fault = self.before("put", path).await?;
        let put = self.inner.put_opts(path, payload, options).await?;
        self.dates.lock().insert(path.clone(), self.clock.load(Ordering::Relaxed));
        if fault == Some(Fault::LostAnswer) { Err(Faulty::unavailable()) } else { Ok(put) }
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        if options.head {
            if self.before("head", path).await?.is_some() {
                return Err(Faulty::unavailable());
            }
            let found = self.inner.get_opts(path, options).await?;
            return Ok(GetResult { meta: self.dated(found.meta.clone()), ..found });
        }
        self.gets.fetch_add(1, Ordering::Relaxed);
        let range = match &options.range {
            Some(object_store::GetRange::Bounded(range)) => Some(range.clone()),
            _ => None,
        };
        self.requested.lock().push((path.to_string(), range));
        let fault = self.before("get", path).await?;
        if fault == Some(Fault::LostAnswer) {
            return Err(Faulty::unavailable());
        }
        let found = self.inner.get_opts(path, options).await?;
        let (meta, range, attributes) = (self.dated(found.meta.clone()), found.range.clone(), found.attributes.clone());
        let mut body = found.bytes().await?;
        let mut delay = Duration::ZERO;
        if let Some(Fault::SlowBody(by)) = fault {
            delay = by;
        } else if let Some(fault) = fault {
            let whole = self.inner.get_opts(path, GetOptions::default()).await?.bytes().await?;
            body = self.changed(fault, body, &whole);
        }
        let payload = stream::once(async move {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            Ok(body)
        });
        let payload = GetResultPayload::Stream(payload.boxed());
        Ok(GetResult { payload, meta, range, attributes })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        // One at a time, in the test's thread of control.
        let paths: Vec<Path> = futures::executor::block_on(locations.filter_map(|path| async { path.ok() }).collect());
        let fault = paths.iter().find_map(|path| Some((path, self.fault("delete", path.as_ref())?)));
        let failure = match fault {
            None => None,
            Some((path, Fault::Denied)) => Some(Faulty::denied(path)),
            Some((_, Fault::LostAnswer)) => {
                paths.iter().for_each(|path| _ = self.dates.lock().remove(path));
                let removed = self.inner.delete_stream(stream::iter(paths.clone().into_iter().map(Ok)).boxed());
                futures::executor::block_on(removed.for_each(|_| async {}));
                Some(Faulty::unavailable())
            }
            Some(_) => Some(Faulty::unavailable()),
        };
        if let Some(error) = failure {
            return stream::once(async move { Err(error) }).boxed();
        }
        paths.iter().for_each(|path| _ = self.dates.lock().remove(path));
        self.inner.delete_stream(stream::iter(paths.into_iter().map(Ok)).boxed())
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        let path = prefix.map(ToString::to_string).unwrap_or_default();
        let fault = self.fault("list", &path);
        match fault {
            None | Some(Fault::Truncated) => {}
            Some(Fault::Hangs) => return stream::pending().boxed(),
            Some(Fault::Denied) => {
                let error = Faulty::denied(&Path::from(path));
                return stream::once(async move { Err(error) }).boxed();
            }
            Some(_) => return stream::once(async { Err(Faulty::unavailable()) }).boxed(),
        }
        let listed = futures::executor::block_on(self.inner.list(prefix).collect::<Vec<_>>());
        let mut dated: Vec<_> = listed.into_iter().map(|meta| meta.map(|meta| self.dated(meta))).collect();
        if fault == Some(Fault::Truncated) {
            dated.truncate(dated.len() / 2);
            dated.push(Err(Faulty::unavailable()));
        }
        stream::iter(dated).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

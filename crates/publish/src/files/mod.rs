//! Objects as files: a database reads and writes Parquet files in a bucket, for example, beside its own objects.
//!
//! The methods are for threads that may block. The clients of `object_store` repeat failed requests themselves here: the
//! bodies have no checksums of ours by which a wrong one could be found.

mod reader;
mod writer;

use std::collections::HashMap;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use futures::{Future, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use parking_lot::Mutex;
use url::Url;

use crate::remote::{Retries, Tasks, connect};
use crate::repository::check_url;
pub use reader::{ObjectFile, ObjectReader};
pub use writer::ObjectWriter;

/// Time between two looks at [`Stop`].
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// Returns true if a request is not needed any more.
pub type Stop = Arc<dyn Fn() -> bool + Send + Sync>;

/// The buckets that a program uses, with the credentials of the environment and settings that take precedence.
#[derive(Debug)]
pub struct Buckets {
    settings: Vec<(String, String)>,
    /// By scheme and host.
    open: Mutex<HashMap<String, Bucket>>,
    /// The threads of the requests, from the first one on.
    tasks: Mutex<Option<Arc<Tasks>>>,
}

/// A bucket: all objects whose URLs have a scheme and a host. Clones are handles of the same one.
#[derive(Debug, Clone)]
pub struct Bucket {
    /// `s3://bucket`
    root: Arc<str>,
    store: Arc<dyn ObjectStore>,
    tasks: Arc<Tasks>,
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFile {
    /// The URL.
    pub url: String,
    /// Length in bytes.
    pub len: u64,
}

impl Buckets {
    /// No bucket is connected yet. `settings` are those of [`Repository::from_url_with`](crate::Repository::from_url_with).
    pub fn new(settings: Vec<(String, String)>) -> Buckets {
        Buckets { settings, open: Mutex::default(), tasks: Mutex::default() }
    }

    /// The bucket of a URL, and the name of an object in it: what follows the host, without any decoding. Makes no
    /// request.
    ///
    /// # Errors
    /// `InvalidInput` for what is no URL of a bucket, and for unknown settings; those of starting threads.
    pub fn find<'u>(&self, url: &'u str) -> Result<(Bucket, &'u str)> {
        let invalid = |detail: String| Error::new(ErrorKind::InvalidInput, detail);
        let (scheme, rest) = url.split_once("://").ok_or_else(|| invalid("it is no URL".into()))?;
        let (host, name) = rest.split_once('/').unwrap_or((rest, ""));
        if scheme.eq_ignore_ascii_case("file") || host.is_empty() {
            return Err(invalid("it names no bucket".into()));
        }
        let root = format!("{}://{host}", scheme.to_ascii_lowercase());
        let mut open = self.open.lock();
        if let Some(bucket) = open.get(&root) {
            return Ok((bucket.clone(), name));
        }
        check_url(&root).map_err(invalid)?;
        let parsed = Url::parse(&root).map_err(|error| invalid(error.to_string()))?;
        let (store, _) =
            connect(&parsed, crate::remote::variables(), &self.settings, Retries::Client).map_err(invalid)?;
        let tasks = self.tasks()?;
        let bucket = Bucket { root: root.as_str().into(), store, tasks };
        open.insert(root, bucket.clone());
        Ok((bucket, name))
    }

    fn tasks(&self) -> Result<Arc<Tasks>> {
        let mut tasks = self.tasks.lock();
        if let Some(tasks) = &*tasks {
            return Ok(tasks.clone());
        }
        let new = Arc::new(Tasks::new().map_err(Error::other)?);
        *tasks = Some(new.clone());
        Ok(new)
    }
}

impl Bucket {
    /// The bucket with the objects of a store, under this name.
    ///
    /// # Errors
    /// Those of starting threads.
    pub fn of_store(root: &str, store: Arc<dyn ObjectStore>) -> Result<Bucket> {
        Ok(Bucket { root: root.into(), store, tasks: Arc::new(Tasks::new().map_err(Error::other)?) })
    }

    /// The URL of the bucket, without a slash at its end.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The client, for asynchronous readers.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// The objects below a folder, all levels of it; an empty name is that of the bucket. Runs on any runtime.
    ///
    /// # Errors
    /// Those of requests.
    pub async fn list(&self, folder: &str) -> Result<Vec<ListedFile>> {
        let (store, folder) = (self.store.clone(), path(folder)?);
        let prefix = Some(folder).filter(|folder| !folder.as_ref().is_empty());
        let request = async move { store.list(prefix.as_ref()).try_collect::<Vec<ObjectMeta>>().await };
        let listed = self.tasks.handle().spawn(request).await.map_err(|_| lost())?.map_err(io_error)?;
        let file = |meta: ObjectMeta| ListedFile { url: format!("{}/{}", self.root, meta.location), len: meta.size };
        Ok(listed.into_iter().map(file).collect())
    }

    /// An object for reading. Blocks.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, others of requests; `InvalidInput` for names that no object can have.
    pub fn open(&self, name: &str) -> Result<ObjectFile> {
        let (store, path) = (self.store.clone(), object(name)?);
        let meta = self.run(async move { store.head(&path).await })?;
        Ok(self.file(meta))
    }

    /// An object that is known from a listing of its store, for reading. Makes no request.
    pub fn file(&self, meta: ObjectMeta) -> ObjectFile {
        ObjectFile::new(self.clone(), meta)
    }

    /// A writer of an object, which appears, or is replaced, when it is finished. Its calls end early when `stop` says so.
    /// Makes no request.
    ///
    /// # Errors
    /// `InvalidInput` for names that no object can have.
    pub fn create(&self, name: &str, stop: Stop) -> Result<ObjectWriter> {
        Ok(ObjectWriter::new(self.clone(), object(name)?, stop))
    }

    /// Runs a future that makes requests by the [client](Bucket::store) to its end. Blocks.
    ///
    /// # Errors
    /// `Other` if it panics.
    pub fn block_on<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Result<T> {
        self.run(async move { Ok(future.await) })
    }

    /// Runs a request to its end. Blocks.
    fn run<T: Send + 'static>(
        &self,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.start(request).wait()
    }

    /// Starts a request.
    fn start<T: Send + 'static>(
        &self,
        request: impl Future<Output = object_store::Result<T>> + Send + 'static,
    ) -> Started<T> {
        let (sender, receiver) = sync_channel(1);
        self.tasks.handle().spawn(async move {
            // The receiver may have lost interest.
            let _ = sender.send(request.await);
        });
        Started(receiver)
    }
}

/// A request under way.
#[derive(Debug)]
struct Started<T>(Receiver<object_store::Result<T>>);

impl<T> Started<T> {
    /// Blocks.
    fn wait(self) -> Result<T> {
        self.wait_unless(&|| false)
    }

    /// Blocks until the request ends, or `stop` returns true: an error of the kind `TimedOut`.
    fn wait_unless(self, stop: &dyn Fn() -> bool) -> Result<T> {
        loop {
            match self.0.recv_timeout(STOP_INTERVAL) {
                Ok(ended) => return ended.map_err(io_error),
                Err(RecvTimeoutError::Disconnected) => return Err(lost()),
                Err(RecvTimeoutError::Timeout) if stop() => {
                    return Err(Error::new(ErrorKind::TimedOut, "the request was given up"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Blocks until the request ends or the time has come.
    fn wait_until(self, deadline: Instant) -> Result<T> {
        self.wait_unless(&|| Instant::now() >= deadline)
    }
}

fn lost() -> Error {
    Error::other("a task of the object store client ended without a result")
}

/// The name of an object.
fn object(name: &str) -> Result<Path> {
    match name.is_empty() || name.ends_with('/') {
        true => Err(Error::new(ErrorKind::InvalidInput, "is not the name of an object")),
        false => path(name),
    }
}

fn path(name: &str) -> Result<Path> {
    Path::parse(name).map_err(|error| Error::new(ErrorKind::InvalidInput, error))
}

fn io_error(error: object_store::Error) -> Error {
    use object_store::Error as E;
    match error {
        // Listings have no kind of error for it.
        error if error.to_string().contains("NoSuchBucket") => Error::new(ErrorKind::NotFound, "no such bucket"),
        E::NotFound { .. } => Error::new(ErrorKind::NotFound, "no such object"),
        E::Precondition { .. } => Error::other("the object was replaced while it was read"),
        error @ (E::PermissionDenied { .. } | E::Unauthenticated { .. }) => {
            Error::new(ErrorKind::PermissionDenied, error)
        }
        error => Error::other(error),
    }
}

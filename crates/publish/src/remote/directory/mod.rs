//! A local directory as an object store that survives power failures.
//!
//! ```text
//! put:    new/<random> (written, synced) ─► rename, or link if the name must be free ─► sync of the directory
//! delete: removal ─► sync of the directory
//! ```
//!
//! A request is durable when it returns, so a manifest never becomes durable before the objects that were written
//! before it. A name appears only after its bytes are durable, so no power failure leaves an object in part. A
//! directory is synced in its parent before the first object is written below it.
//!
//! Reads and listings are those of [`LocalFileSystem`], which does not sync. A process that ends early leaves its file
//! in `new`, below the prefix of the repository, where the [collector](crate::collector) finds it.

mod files;
#[cfg(test)]
mod simulated;

use std::collections::HashSet;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use keyaki_primitives::Random;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

use files::{Files, LocalFiles};

/// Removals in flight of one call.
const REMOVALS: usize = 10;

/// The objects in the directories of a file system. Writes are staged below a prefix.
#[derive(Debug)]
pub(super) struct Directory {
    reads: LocalFileSystem,
    writes: Arc<Writes<LocalFiles>>,
    /// The folder of files under construction.
    staging: Path,
    random: Mutex<Random>,
}

impl Directory {
    /// The whole file system, with files under construction in `staging`. `random` makes their names.
    pub fn new(staging: Path, random: Random) -> Directory {
        let (reads, writes) = (LocalFileSystem::new(), Arc::new(Writes::new(LocalFiles)));
        Directory { reads, writes, staging, random: Mutex::new(random) }
    }
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reads.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Directory {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let replaces = match options.mode {
            PutMode::Overwrite => true,
            PutMode::Create => false,
            PutMode::Update(_) => return Err(unsupported("updates")),
        };
        let staged = self.staging.clone().join(format!("{:016x}", self.random.lock().next_u64()));
        let (staged, path) = (self.reads.path_to_filesystem(&staged)?, self.reads.path_to_filesystem(path)?);
        let writes = self.writes.clone();
        let put = move || writes.put(&staged, &path, &payload, replaces).map_err(|error| failed(&path, error));
        tokio::task::spawn_blocking(put).await??;
        Ok(PutResult { e_tag: None, version: None })
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        Err(unsupported("multipart uploads"))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.reads.get_opts(path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (reads, writes) = (self.reads.clone(), self.writes.clone());
        let remove = move |path: Result<Path>| {
            let (reads, writes) = (reads.clone(), writes.clone());
            async move {
                let path = path?;
                reads.delete(&path).await?;
                let file = reads.path_to_filesystem(&path)?;
                let sync = move || writes.sync_parent(&file).map_err(|error| failed(&file, error));
                tokio::task::spawn_blocking(sync).await??;
                Ok(path)
            }
        };
        paths.map(remove).buffered(REMOVALS).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.reads.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.reads.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(unsupported("copies"))
    }
}

fn unsupported(operation: &str) -> Error {
    Error::NotSupported { source: format!("directories have no {operation}").into() }
}

fn failed(path: &FilePath, error: io::Error) -> Error {
    let text = path.display().to_string();
    match error.kind() {
        ErrorKind::AlreadyExists => Error::AlreadyExists { path: text, source: error.into() },
        ErrorKind::PermissionDenied => Error::PermissionDenied { path: text, source: error.into() },
        _ => Error::Generic { store: "Directory", source: format!("{text}: {error}").into() },
    }
}

/// The durable writes of a process.
#[derive(Debug)]
struct Writes<F> {
    files: F,
    /// Directories that are durable entries of their parents.
    known: Mutex<HashSet<PathBuf>>,
}

impl<F: Files> Writes<F> {
    fn new(files: F) -> Self {
        Writes { files, known: Mutex::default() }
    }

    /// Makes a durable file. Without `replaces`, [`ErrorKind::AlreadyExists`] if there is one, which is durable then.
    fn put(&self, staged: &FilePath, path: &FilePath, payload: &PutPayload, replaces: bool) -> io::Result<()> {
        let put = self.try_put(staged, path, payload, replaces);
        if put.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            // Another process has removed a directory. The next attempt makes it again.
            self.known.lock().clear();
        }
        put
    }

    fn try_put(&self, staged: &FilePath, path: &FilePath, payload: &PutPayload, replaces: bool) -> io::Result<()> {
        for file in [staged, path] {
            self.make_directory(parent(file)?)?;
        }
        let named = self.files.create(staged, payload).and_then(|()| match replaces {
            true => self.files.rename(staged, path),
            false => self.files.link(staged, path),
        });
        if !replaces || named.is_err() {
            // The collector removes what stays.
            let _ = self.files.remove(staged);
        }
        match named {
            // Another writer may not have synced it yet.
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
            named => self.sync_parent(path).and(named),
        }
    }

    /// Makes changes of the directory of a file durable.
    fn sync_parent(&self, file: &FilePath) -> io::Result<()> {
        self.files.sync_directory(parent(file)?)
    }

    /// Makes a directory and those above it, as durable entries of their parents.
    fn make_directory(&self, directory: &FilePath) -> io::Result<()> {
        let Some(parent) = directory.parent() else { return Ok(()) };
        if self.known.lock().contains(directory) {
            return Ok(());
        }
        self.make_directory(parent)?;
        let made = self.files.create_directory(directory);
        let exists = made.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists);
        if !exists {
            made?;
        }
        match self.files.sync_directory(parent) {
            // A user who may not read the parent has not made the directory.
            Err(error) if exists && error.kind() == ErrorKind::PermissionDenied => {}
            synced => synced?,
        }
        self.known.lock().insert(directory.into());
        Ok(())
    }
}

fn parent(file: &FilePath) -> io::Result<&FilePath> {
    file.parent().ok_or_else(|| ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::simulated::SimulatedFiles;
    use super::*;

    const OBJECT: &str = "/srv/shop/objects/ab/object";
    const VERSION: &str = "/srv/shop/versions/1";
    const LEASE: &str = "/srv/shop/leases/1";

    /// A lease, an object, a version, and a renewal of the lease. Returns the number of puts that have returned.
    fn publish(files: &SimulatedFiles) -> io::Result<usize> {
        let writes = Writes::new(files.clone());
        let puts =
            [(LEASE, "lease", true), (OBJECT, "object", true), (VERSION, "version", false), (LEASE, "life", true)];
        for (number, (path, text, replaces)) in puts.into_iter().enumerate() {
            let staged = PathBuf::from(format!("/srv/shop/new/{number}"));
            if writes.put(&staged, path.as_ref(), &PutPayload::from(text.to_owned()), replaces).is_err() {
                return Ok(number);
            }
        }
        Ok(puts.len())
    }

    #[test]
    fn writes_survive_a_power_failure_at_any_call() {
        let mut crash_at = 0;
        loop {
            for seed in 0..20 {
                let files = SimulatedFiles::new(crash_at);
                let returned = publish(&files).unwrap();
                let (text, found) = (format!("call {crash_at}, seed {seed}"), files.after_power_failure(seed));
                let body = |path: &str| found.get(FilePath::new(path)).map(|body| String::from_utf8_lossy(body));
                let (lease, object, version) = (body(LEASE), body(OBJECT), body(VERSION));
                assert!(lease.is_none_or(|body| body == "lease" || body == "life"), "{text}: {found:?}");
                assert!(object.as_ref().is_none_or(|body| body == "object"), "{text}: {found:?}");
                assert!(version.as_ref().is_none_or(|body| body == "version"), "{text}: {found:?}");
                assert!(returned < 1 || found.contains_key(FilePath::new(LEASE)), "{text}: {found:?}");
                assert!((returned < 2 && version.is_none()) || object.is_some(), "{text}: {found:?}");
                assert!(returned < 3 || version.is_some(), "{text}: {found:?}");
                if returned == 4 {
                    assert_eq!(body(LEASE).as_deref(), Some("life"), "{text}");
                }
            }
            if publish(&SimulatedFiles::new(crash_at)).unwrap() == 4 {
                break;
            }
            crash_at += 1;
        }
        assert!(crash_at > 20, "{crash_at} calls");
    }

    #[test]
    fn a_taken_name_stays_and_is_durable() {
        let files = SimulatedFiles::new(usize::MAX);
        // Another process has linked it, and has not synced the directory.
        let (others, writes) = (Writes::new(files.clone()), Writes::new(files.clone()));
        others.make_directory("/srv/shop/versions".as_ref()).unwrap();
        files.create("/srv/other".as_ref(), &"others".to_owned().into()).unwrap();
        files.link("/srv/other".as_ref(), VERSION.as_ref()).unwrap();
        let taken = writes.put("/srv/shop/new/1".as_ref(), VERSION.as_ref(), &"ours".to_owned().into(), false);
        assert_eq!(taken.unwrap_err().kind(), ErrorKind::AlreadyExists);
        for seed in 0..20 {
            assert_eq!(files.after_power_failure(seed)[FilePath::new(VERSION)], b"others");
        }
    }

    #[test]
    fn directories_hold_objects() {
        let root = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let prefix = Path::from_absolute_path(root.path()).unwrap();
            let store = Directory::new(prefix.clone().join("new"), Random::new(1));
            let path = prefix.clone().join("a b%20c").join("object");
            assert!(store.list(Some(&prefix)).next().await.is_none());
            store.put(&path, "first".into()).await.unwrap();
            store.put(&path, "second".into()).await.unwrap();
            let taken = store.put_opts(&path, "third".into(), PutMode::Create.into()).await;
            assert!(matches!(taken, Err(Error::AlreadyExists { .. })), "{taken:?}");
            assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "second");
            let listed: Vec<_> = store.list(Some(&prefix)).collect().await;
            assert!(listed.len() == 1 && listed[0].as_ref().unwrap().location == path, "{listed:?}");
            // Another process removes the directories.
            std::fs::remove_dir_all(root.path().join("new")).unwrap();
            assert!(store.put(&path, "fourth".into()).await.is_err());
            store.put(&path, "fourth".into()).await.unwrap();
            store.delete(&path).await.unwrap();
            assert!(matches!(store.delete(&path).await, Err(Error::NotFound { .. })));
            assert!(store.list(Some(&prefix)).next().await.is_none());
        });
    }
}

//! The device of the operating system's file systems.
//!
//! [`OsDevice`] implements the blocking calls (paths, directories, locks, [`OsFile`]). A [`Backend`] creates the queues;
//! `uring` and `threads` implement it.

mod file;
mod locks;
mod paths;

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

pub(crate) use file::{Caching, OsFile};

use crate::interface::{Device, Error, File, Lock, OpenMode, Operation, Queue, Result};

/// The operating system's file systems.
#[derive(Debug)]
pub(crate) struct OsDevice<B> {
    backend: B,
    caching: Caching,
    started: Instant,
}

/// An implementation of queues over [`OsFile`]s.
pub(crate) trait Backend: Send + Sync + Debug {
    /// The name of devices with this backend.
    const NAME: &'static str;

    /// Creates a queue; see [`Device::queue`].
    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>>;

    /// Creates a queue that is not bound to a thread; see [`Device::movable_queue`].
    fn movable_queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        self.queue(depth)
    }
}

impl<B: Backend> OsDevice<B> {
    pub(crate) fn new(backend: B, caching: Caching) -> Self {
        OsDevice { backend, caching, started: Instant::now() }
    }
}

impl<B: Backend> Device for OsDevice<B> {
    fn name(&self) -> &'static str {
        B::NAME
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        Ok(Arc::new(OsFile::open(path, mode, self.caching)?))
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        self.backend.queue(depth)
    }

    fn movable_queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        self.backend.movable_queue(depth)
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        std::fs::create_dir(path).map_err(|error| Error::new(Operation::CreateDir, path, error))
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        paths::list(dir).map_err(|error| Error::new(Operation::List, dir, error))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        path.try_exists().map_err(|error| Error::new(Operation::Exists, path, error))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        paths::remove(path).map_err(|error| Error::new(Operation::Remove, path, error))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        std::fs::rename(from, to).map_err(|error| Error::new(Operation::Rename, from, error))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        paths::sync_dir(dir).map_err(|error| Error::new(Operation::SyncDir, dir, error))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        let lock = locks::OsLock::take(path, true).map_err(|kind| Error::new(Operation::Lock, path, kind))?;
        Ok(Box::new(lock))
    }

    fn lock_existing(&self, path: &Path) -> Result<Box<dyn Lock>> {
        let lock = locks::OsLock::take(path, false).map_err(|kind| Error::new(Operation::Lock, path, kind))?;
        Ok(Box::new(lock))
    }

    fn mark(&self, path: &Path, number: u64) -> Result<Box<dyn Lock>> {
        let mark = locks::mark(path, number).map_err(|kind| Error::new(Operation::Mark, path, kind))?;
        Ok(Box::new(mark))
    }

    fn marks(&self, path: &Path) -> Result<Vec<u64>> {
        locks::marks(path).map_err(|kind| Error::new(Operation::Mark, path, kind))
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}

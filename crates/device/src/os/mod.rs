//! Files of the operating system, under either way of keeping requests in flight.
//!
//! [`OsDevice`] does everything that blocks (paths, directories, locks, [`OsFile`]); its [`Backend`] makes the queues.

mod file;
mod paths;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

pub(crate) use file::OsFile;

use crate::threads::{Pool, ThreadsQueue};
#[cfg(target_os = "linux")]
use crate::uring::{Setup, UringQueue};
use crate::{Device, Error, File, Lock, OpenMode, Queue, Result};

/// The operating system's file systems.
#[derive(Debug)]
pub(crate) struct OsDevice {
    backend: Backend,
    started: Instant,
}

/// Who keeps a queue's requests in flight.
#[derive(Debug)]
pub(crate) enum Backend {
    #[cfg(target_os = "linux")]
    Uring(Setup),
    Threads(Arc<Pool>),
}

impl OsDevice {
    pub(crate) fn new(backend: Backend) -> Self {
        OsDevice { backend, started: Instant::now() }
    }
}

impl Device for OsDevice {
    fn name(&self) -> &'static str {
        match self.backend {
            #[cfg(target_os = "linux")]
            Backend::Uring(_) => "uring",
            Backend::Threads(_) => "threads",
        }
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        Ok(Arc::new(OsFile::open(path, mode)?))
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        match &self.backend {
            #[cfg(target_os = "linux")]
            Backend::Uring(setup) => Ok(Box::new(UringQueue::new(depth, *setup)?)),
            Backend::Threads(pool) => Ok(Box::new(ThreadsQueue::new(pool.clone(), depth))),
        }
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        std::fs::create_dir(path).map_err(|error| Error::on_path("create_dir", path, error))
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        paths::list(dir).map_err(|error| Error::on_path("list", dir, error))
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        path.try_exists().map_err(|error| Error::on_path("exists", path, error))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        paths::remove(path).map_err(|error| Error::on_path("remove", path, error))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        std::fs::rename(from, to).map_err(|error| Error::on_path("rename", from, error))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        paths::sync_dir(dir).map_err(|error| Error::on_path("sync_dir", dir, error))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        let lock = paths::OsLock::take(path).map_err(|error| Error::on_path("lock", path, error))?;
        Ok(Box::new(lock))
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}

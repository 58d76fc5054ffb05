//! The device of a version.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyaki_device::{Device, Error, ErrorKind, File, Lock, OpenMode, Operation, Queue, Result};

use super::fetch::{Fetcher, ReadStats};
use super::file::{VersionFile, read_only};
use super::map::DataMap;
use super::queue::VersionQueue;

/// A published version as a device: a directory with the file `data`, which can only be read. Opened by
/// [`Repository::open_version`](crate::Repository::open_version).
#[derive(Debug)]
pub struct VersionDevice {
    fetcher: Arc<Fetcher>,
    number: u64,
    directory: PathBuf,
    opened: Instant,
}

impl VersionDevice {
    pub(super) fn new(fetcher: Arc<Fetcher>, number: u64, name: &str) -> Self {
        VersionDevice { fetcher, number, directory: format!("{name}@{number}").into(), opened: Instant::now() }
    }

    /// The directory of the database: the name of the repository, `@`, and the number of the version.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The number of the version.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The requests and cache hits so far.
    pub fn stats(&self) -> ReadStats {
        self.fetcher.stats()
    }

    /// The median latency of recent reads of the store, of the shortest ones that there were; `None` before the first one.
    pub fn latency(&self) -> Option<Duration> {
        self.fetcher.remote().read_latency()
    }

    pub(crate) fn map(&self) -> &DataMap {
        self.fetcher.map()
    }

    fn is_data(&self, path: &Path) -> bool {
        path.parent() == Some(&*self.directory) && path.file_name() == Some("data".as_ref())
    }
}

fn not_found(operation: Operation, path: &Path) -> Error {
    Error::new(operation, path, ErrorKind::NotFound)
}

impl Device for VersionDevice {
    fn name(&self) -> &'static str {
        "object"
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        match mode {
            OpenMode::Read if self.is_data(path) => Ok(Arc::new(VersionFile::new(self.fetcher.clone(), path))),
            OpenMode::Read => Err(not_found(Operation::Open, path)),
            OpenMode::ReadWrite | OpenMode::CreateNew => Err(read_only(Operation::Open, path)),
        }
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        Ok(Box::new(VersionQueue::new(depth)))
    }

    fn movable_queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        self.queue(depth)
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        Err(read_only(Operation::CreateDir, path))
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        if dir == self.directory { Ok(vec!["data".into()]) } else { Err(not_found(Operation::List, dir)) }
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        Ok(path == self.directory || self.is_data(path))
    }

    fn remove(&self, path: &Path) -> Result<()> {
        Err(read_only(Operation::Remove, path))
    }

    fn rename(&self, from: &Path, _: &Path) -> Result<()> {
        Err(read_only(Operation::Rename, from))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        Err(read_only(Operation::SyncDir, dir))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        Err(read_only(Operation::Lock, path))
    }

    fn lock_existing(&self, path: &Path) -> Result<Box<dyn Lock>> {
        Err(not_found(Operation::Lock, path))
    }

    fn mark(&self, path: &Path, _: u64) -> Result<Box<dyn Lock>> {
        Err(not_found(Operation::Mark, path))
    }

    fn marks(&self, path: &Path) -> Result<Vec<u64>> {
        Err(not_found(Operation::Mark, path))
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

//! A device that counts the requests of another one and measures their latencies, by kind of file.
//!
//! The meters cost two readings of the clock and some relaxed atomic operations for each request.
//!
//! ```
//! use keyaki_device::metered::{Issued, Metering};
//! use keyaki_device::simulated::{Simulated, SimulatedOptions};
//! use keyaki_device::{BLOCK, Buffer, Device, OpenMode, Operation};
//!
//! let device = Metering::new(Simulated::new(SimulatedOptions::default()).device(), &["data"], |_| 0);
//! let file = device.open("/f".as_ref(), OpenMode::CreateNew)?;
//! file.write_at(0, &Buffer::zeroed(BLOCK))?;
//! let written = device.meters().snapshot("data", Operation::Write, Issued::Blocking);
//! assert_eq!((written.completed, written.bytes), (1, BLOCK as u64));
//! # Ok::<(), keyaki_device::Error>(())
//! ```

mod file;
mod meter;
mod queue;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use crate::interface::{Device, File, Lock, OpenMode, Operation, Queue, Result};
use file::MeteredFile;
use queue::MeteredQueue;

pub use meter::{Meter, Metered};

/// How a request was issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Issued {
    /// By a blocking call.
    Blocking,
    /// Through a queue.
    Queued,
}

/// The operations that are measured.
pub const OPERATIONS: [Operation; 3] = [Operation::Read, Operation::Write, Operation::Sync];

/// The meters of a device.
#[derive(Debug)]
pub struct Meters {
    kinds: &'static [&'static str],
    /// For each kind of file and operation: blocking and queued requests.
    meters: Vec<[[Meter; 2]; OPERATIONS.len()]>,
}

impl Meters {
    fn meter(&self, kind: usize, operation: Operation, issued: Issued) -> &Meter {
        let operation = match operation {
            Operation::Write => 1,
            Operation::Sync => 2,
            _ => 0,
        };
        &self.meters[kind][operation][usize::from(issued == Issued::Queued)]
    }

    /// The kinds of files.
    pub fn kinds(&self) -> &'static [&'static str] {
        self.kinds
    }

    /// The requests of one of [`OPERATIONS`] to files of a kind; nothing for other operations and kinds.
    pub fn snapshot(&self, kind: &str, operation: Operation, issued: Issued) -> Metered {
        let kind = self.kinds.iter().position(|name| *name == kind);
        match kind.filter(|_| OPERATIONS.contains(&operation)) {
            Some(kind) => self.meter(kind, operation, issued).snapshot(),
            None => Metered::default(),
        }
    }
}

/// A device that measures another one.
#[derive(Debug)]
pub struct Metering {
    inner: Arc<dyn Device>,
    meters: Arc<Meters>,
    kind_of: fn(&Path) -> usize,
}

impl Metering {
    /// Measures `inner`. `kind_of` returns the place of a file's kind in `kinds`, the last one for greater numbers.
    ///
    /// # Panics
    /// If there are no kinds.
    pub fn new(inner: Arc<dyn Device>, kinds: &'static [&'static str], kind_of: fn(&Path) -> usize) -> Self {
        assert!(!kinds.is_empty(), "files have a kind");
        let meters = kinds.iter().map(|_| Default::default()).collect();
        Metering { inner, meters: Arc::new(Meters { kinds, meters }), kind_of }
    }

    /// The meters. They go on after the device was dropped, as long as files are open.
    pub fn meters(&self) -> &Arc<Meters> {
        &self.meters
    }
}

impl Device for Metering {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let kind = (self.kind_of)(path).min(self.meters.kinds.len() - 1);
        let inner = self.inner.open(path, mode)?;
        Ok(Arc::new(MeteredFile::new(inner, self.inner.clone(), self.meters.clone(), kind)))
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        Ok(Box::new(MeteredQueue::new(self.inner.queue(depth)?, self.inner.clone(), self.meters.clone())))
    }

    fn movable_queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        Ok(Box::new(MeteredQueue::new(self.inner.movable_queue(depth)?, self.inner.clone(), self.meters.clone())))
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.inner.create_dir(path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        self.inner.list(dir)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.inner.exists(path)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.inner.remove(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.inner.rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.inner.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn Lock>> {
        self.inner.lock(path)
    }

    fn lock_existing(&self, path: &Path) -> Result<Box<dyn Lock>> {
        self.inner.lock_existing(path)
    }

    fn mark(&self, path: &Path, number: u64) -> Result<Box<dyn Lock>> {
        self.inner.mark(path, number)
    }

    fn marks(&self, path: &Path) -> Result<Vec<u64>> {
        self.inner.marks(path)
    }

    fn now_ns(&self) -> u64 {
        self.inner.now_ns()
    }
}

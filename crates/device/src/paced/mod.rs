//! A device in real time that is as slow as a model says: another device, whose completions are held back.
//!
//! [`Paced`] performs every request on the device that it wraps, and delivers the completion when the [`Model`]'s
//! service time is over. Computation takes its own time, so a program behaves as it would on the modelled device, as
//! long as the wrapped device is faster. All files and queues share one service: a request delays the later ones of
//! other threads as well.
//!
//! ```text
//! submit ──> service: due time ──> wrapped queue ──> completed ──> due ──> complete
//! ```
//!
//! Reads, writes and syncs pay; a sync costs one latency. Everything else is free: opening, lengths, truncation,
//! allocation, directories and locks.
//!
//! *Precision.* A request never completes before its due time. It completes later by the time that the operating system
//! needs to wake the thread: 24 to 36 µs on average with one read in flight, on a virtual machine with two busy cores.
//! Linux adds its timer slack of 50 µs to every wait by default, so each thread that waits here sets its slack to 1 ns.
//! Nothing spins. With many requests in flight the delays overlap and cost no throughput.
//!
//! ```
//! use keyaki_device::model::Model;
//! use keyaki_device::paced::Paced;
//! use keyaki_device::{BLOCK, Buffer, Device, OpenMode, open_cached};
//!
//! let directory = tempfile::tempdir()?;
//! let device = Paced::new(open_cached()?, Model::disk());
//! let file = device.open(&directory.path().join("f"), OpenMode::CreateNew)?;
//! let start_ns = device.now_ns();
//! file.write_at(0, &Buffer::zeroed(BLOCK))?;
//! assert!(device.now_ns() - start_ns >= 4_000_000, "a disk needs 8 ms, give or take a half");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod clock;
mod file;
mod queue;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::interface::{Device, File, Lock, OpenMode, Queue, Result};
use crate::model::{Model, Service};
use clock::Clock;
use file::PacedFile;
use queue::PacedQueue;

/// A device that is as slow as a model says.
#[derive(Debug)]
pub struct Paced {
    inner: Arc<dyn Device>,
    pace: Arc<Pace>,
}

/// The service that all files and queues of a device share.
#[derive(Debug)]
struct Pace {
    clock: Clock,
    service: Mutex<Service>,
}

impl Pace {
    /// The completion time of a request that arrives now.
    fn due_ns(&self, address: u64, bytes: u64) -> u64 {
        let mut service = self.service.lock();
        service.completion_ns(self.clock.now_ns(), address, bytes)
    }
}

impl Paced {
    /// Slows `inner` down to the speed of a model. `inner` must run in real time.
    pub fn new(inner: Arc<dyn Device>, model: Model) -> Self {
        // The seed of the jitter. Runs in real time differ anyway.
        const SEED: u64 = 0;
        let pace = Pace { clock: Clock::start(), service: Mutex::new(Service::new(model, SEED)) };
        Paced { inner, pace: Arc::new(pace) }
    }
}

impl Device for Paced {
    fn name(&self) -> &'static str {
        "paced"
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        let inner = self.inner.open(path, mode)?;
        Ok(Arc::new(PacedFile::new(inner, self.pace.clone())))
    }

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        Ok(Box::new(PacedQueue::new(self.inner.queue(depth)?, depth, self.pace.clone())))
    }

    fn movable_queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        Ok(Box::new(PacedQueue::new(self.inner.movable_queue(depth)?, depth, self.pace.clone())))
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
        self.pace.clock.now_ns()
    }
}

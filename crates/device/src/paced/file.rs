//! A file of a paced device: its blocking calls end at the due time.

use std::any::Any;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use super::Pace;
use crate::interface::{File, Result};
use crate::memory::Buffer;

/// An open file.
#[derive(Debug)]
pub(super) struct PacedFile {
    pub(super) inner: Arc<dyn File>,
    pace: Arc<Pace>,
    /// The position of the file's first byte on the modelled medium.
    start: u64,
}

impl PacedFile {
    pub(super) fn new(inner: Arc<dyn File>, pace: Arc<Pace>) -> Self {
        let mut hasher = DefaultHasher::new();
        inner.path().hash(&mut hasher);
        PacedFile { start: hasher.finish() << 44, inner, pace }
    }

    /// True if the file belongs to the device with this pace.
    pub(super) fn belongs_to(&self, pace: &Arc<Pace>) -> bool {
        Arc::ptr_eq(&self.pace, pace)
    }

    /// The position of a byte on the modelled medium.
    pub(super) fn address(&self, offset: u64) -> u64 {
        self.start.wrapping_add(offset)
    }

    /// Runs a call, and sleeps until the due time of a request of `bytes` that arrived before it.
    fn pay<T>(&self, offset: u64, bytes: usize, call: impl FnOnce() -> T) -> T {
        let due_ns = self.pace.due_ns(self.address(offset), bytes as u64);
        let result = call();
        self.pace.clock.sleep_until(due_ns);
        result
    }
}

impl File for PacedFile {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut Buffer) -> Result<()> {
        self.pay(offset, buffer.len(), || self.inner.read_at(offset, buffer))
    }

    fn write_at(&self, offset: u64, buffer: &Buffer) -> Result<()> {
        self.pay(offset, buffer.len(), || self.inner.write_at(offset, buffer))
    }

    fn sync_data(&self) -> Result<()> {
        self.pay(0, 0, || self.inner.sync_data())
    }

    fn truncate(&self, len: u64) -> Result<()> {
        self.inner.truncate(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.allocate(offset, len)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

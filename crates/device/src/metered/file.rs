//! A file of a metered device.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use super::{Issued, Meters};
use crate::interface::{Device, File, Operation, Result};
use crate::memory::Buffer;

/// An open file.
#[derive(Debug)]
pub(super) struct MeteredFile {
    pub(super) inner: Arc<dyn File>,
    clock: Arc<dyn Device>,
    meters: Arc<Meters>,
    /// The place of the file's kind.
    pub(super) kind: usize,
}

impl MeteredFile {
    pub(super) fn new(inner: Arc<dyn File>, clock: Arc<dyn Device>, meters: Arc<Meters>, kind: usize) -> Self {
        MeteredFile { inner, clock, meters, kind }
    }

    /// True if the file belongs to the device with these meters.
    pub(super) fn belongs_to(&self, meters: &Arc<Meters>) -> bool {
        Arc::ptr_eq(&self.meters, meters)
    }

    fn measure(&self, operation: Operation, bytes: usize, call: impl FnOnce() -> Result<()>) -> Result<()> {
        let meter = self.meters.meter(self.kind, operation, Issued::Blocking);
        meter.start(bytes);
        let started_ns = self.clock.now_ns();
        let result = call();
        meter.complete(self.clock.now_ns().saturating_sub(started_ns), result.is_ok());
        result
    }
}

impl File for MeteredFile {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn len(&self) -> Result<u64> {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut Buffer) -> Result<()> {
        self.measure(Operation::Read, buffer.len(), || self.inner.read_at(offset, buffer))
    }

    fn write_at(&self, offset: u64, buffer: &Buffer) -> Result<()> {
        self.measure(Operation::Write, buffer.len(), || self.inner.write_at(offset, buffer))
    }

    fn sync_data(&self) -> Result<()> {
        self.measure(Operation::Sync, 0, || self.inner.sync_data())
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

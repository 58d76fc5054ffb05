//! The write-ahead log: segments of records, group commit, recovery.

use std::path::Path;
use std::sync::Arc;

use keyaki_device::Device;

use crate::{Durability, Result};

/// A place in the log: a segment's number and an offset in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LogPosition {
    pub segment: u64,
    pub offset: u64,
}

/// The log of one store. Records carry consecutive sequence numbers; all methods take `&self`.
#[derive(Debug)]
pub struct Log {
    _todo: (),
}

impl Log {
    /// Reads every sound record from `from` on, in order, giving `(sequence number, payload)` to `apply`, and opens the
    /// log for appending after them. `first` is the sequence number expected first. A log that does not exist yet is
    /// created (at `from`).
    ///
    /// # Errors
    /// [`crate::Error::Damaged`] when a record that had been acknowledged is damaged: a torn, never acknowledged tail is
    /// cut off silently, anything else is not.
    pub fn open(
        _device: Arc<dyn Device>,
        _dir: &Path,
        _from: LogPosition,
        _first: u64,
        _durability: Durability,
        _apply: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<Log> {
        todo!()
    }
    /// Appends a record in memory. Calls must come in sequence order (the caller holds its commit lock). Never waits for
    /// the device, except when the log's memory is full.
    pub fn append(&self, _sequence: u64, _payload: &[u8]) -> Result<()> {
        todo!()
    }
    /// Waits as the durability asks: `Full`: until the record is synced (callers that arrive together share a sync, one
    /// of them doing it for all); else returns at once.
    pub fn commit(&self, _sequence: u64) -> Result<()> {
        todo!()
    }
    /// Writes and syncs everything appended, whatever the durability.
    pub fn sync(&self) -> Result<()> {
        todo!()
    }
    /// The newest sequence number known to be on the medium.
    pub fn durable(&self) -> u64 {
        todo!()
    }
    /// Where the next record will start. What follows is written from there on (begins a new segment if need be so that
    /// everything before can be removed).
    pub fn cut(&self) -> Result<LogPosition> {
        todo!()
    }
    /// Removes segments that lie entirely before `position` (a checkpoint made them superfluous).
    pub fn remove_before(&self, _position: LogPosition) -> Result<()> {
        todo!()
    }
    /// Bytes written since `open` or the last `cut`.
    pub fn bytes_since_cut(&self) -> u64 {
        todo!()
    }
    /// Stops everything: later calls return [`crate::Error::Poisoned`].
    pub fn poison(&self, _cause: &str) {
        todo!()
    }
    pub fn set_durability(&self, _durability: Durability) {
        todo!()
    }
}

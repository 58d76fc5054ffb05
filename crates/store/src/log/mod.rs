//! The write-ahead log: segments of records, group commit, recovery.
//!
//! `append` copies a record into a group in memory. Whoever needs it on the medium first becomes the leader: takes all
//! groups, writes and syncs them once, and wakes the others; what arrives meanwhile is the next leader's turn.
//!
//! ```text
//!   append ──> state: open group, sealed groups ──> turn of a leader ──> segment file
//!   commit ──> leads, or waits for the turn that has its record
//! ```
//!
//! Invariants:
//! - A block is written once. New groups start at a fresh block, so that no write can damage acknowledged data.
//! - Groups are written in order of their sequence numbers, by one leader at a time.
//! - After a failed write or sync nothing is written any more: what reached the medium is unknown.
//!
//! The bytes, the recovery rules and their proof are in `docs/format.md`.

mod format;
mod recover;
mod segment;
mod state;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use keyaki_device::{BLOCK, Device};
use parking_lot::Mutex;

use self::segment::Segments;
use self::state::State;
use self::writer::{SyncTarget, Writer};
use crate::base::{Durability, Error, Result};

/// A place in the log: a segment's number and an offset in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LogPosition {
    pub segment: u64,
    pub offset: u64,
}

/// The log of one store. Records carry consecutive sequence numbers; all methods take `&self`.
///
/// Closing or dropping it writes what is pending (and syncs it, unless durability is `Off`).
#[derive(Debug)]
pub struct Log {
    writer: Arc<Writer>,
    /// None: the log is closed.
    background: Mutex<Option<JoinHandle<()>>>,
}

impl Log {
    /// Reads every sound record from `from` on, in order, giving `(sequence number, payload)` to `apply`, and opens the
    /// log for appending after them. `first` (at least 1) is the sequence number expected first; records before it are
    /// checked and passed over. A log that does not exist yet is created with its first record, if `from` is the default
    /// position; at any other position a missing log is damage.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] when a record that had been acknowledged is damaged: a torn, never acknowledged tail is
    /// cut off silently, anything else is not.
    pub fn open(
        device: Arc<dyn Device>,
        dir: &Path,
        from: LogPosition,
        first: u64,
        durability: Durability,
        apply: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<Log> {
        assert!(first > 0, "sequence numbers start at 1");
        assert!(from.offset.is_multiple_of(BLOCK as u64), "the log cannot start at {from:?}");
        let found = recover::recover(&device, dir, from, first, apply)?;
        let log_id = found.log_id.unwrap_or_else(random_id);
        let segments = Segments { device, dir: dir.to_path_buf(), log_id };
        let state = State::new(durability, found.next_segment, found.next_sequence - 1, found.tail);
        let writer = Arc::new(Writer::new(segments, state, found.bytes));
        let background = std::thread::Builder::new()
            .name("keyaki-log".into())
            .spawn({
                let writer = writer.clone();
                move || writer.run_background()
            })
            .map_err(|source| Error::StartThread { thread: "keyaki-log", source: Arc::new(source) })?;
        Ok(Log { writer, background: Mutex::new(Some(background)) })
    }

    /// Appends a record in memory. Calls must come in sequence order (the caller holds its commit lock). Never waits for
    /// the device, except when the log's memory is full or a segment ends.
    ///
    /// # Errors
    /// [`Error::DiskFull`] when the disk has no room for another segment: the record was not taken, and may be tried
    /// again.
    pub fn append(&self, sequence: u64, payload: &[u8]) -> Result<()> {
        self.writer.append(sequence, payload)
    }

    /// Waits as the durability asks: `Full`: until the record is synced (callers that arrive together share a sync, one
    /// of them doing it for all); else returns at once.
    pub fn commit(&self, sequence: u64) -> Result<()> {
        self.writer.commit(sequence)
    }

    /// Writes and syncs everything appended, whatever the durability.
    pub fn sync(&self) -> Result<()> {
        self.writer.reach_appended(SyncTarget::Synced)
    }

    /// The newest sequence number known to be on the medium.
    pub fn durable(&self) -> u64 {
        self.writer.durable()
    }

    /// Where the next record will start. What follows is written from there on: begins a new segment, unless the current
    /// one is empty, so that everything before can be removed; on a full disk, a place in the current one. The position is
    /// durable on return. Nobody may append meanwhile (the caller holds its commit lock).
    ///
    /// # Errors
    /// [`Error::DiskFull`], if the current segment has no room either: nothing has changed, and the log goes on.
    pub fn cut(&self) -> Result<LogPosition> {
        self.writer.cut()
    }

    /// Removes segments that lie entirely before `position`, which the last `cut` gave (a checkpoint made them superfluous).
    /// A failure leaves the log in order; the next call removes what is left.
    pub fn remove_before(&self, position: LogPosition) -> Result<()> {
        self.writer.remove_before(position)
    }

    /// Bytes of records that no checkpoint has made superfluous: read by `open` or appended since, and not before the
    /// position of a `remove_before`.
    pub fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    /// # Errors
    /// [`crate::Error::Poisoned`].
    pub fn check(&self) -> Result<()> {
        self.writer.check()
    }

    /// Stops everything: later calls return [`crate::Error::Poisoned`].
    pub fn poison(&self, cause: &str) {
        self.writer.poison(cause);
    }

    pub fn set_durability(&self, durability: Durability) {
        self.writer.set_durability(durability);
    }

    /// Writes what is pending; the files are not touched after it. Nobody may append any more.
    pub fn close(&self) {
        self.writer.stop_background();
        let Some(thread) = self.background.lock().take() else { return };
        if thread.join().is_err() {
            self.writer.poison("the log's thread panicked");
        }
        if let Err(error) = self.writer.close() {
            tracing::warn!(%error, "the log was not closed cleanly");
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.close();
    }
}

/// Tells one log from another; need not be unpredictable.
fn random_id() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::SystemTime::now())
}

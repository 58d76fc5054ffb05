//! The write-ahead log: segments of records, group commit, recovery.
//!
//! `append` copies a record into a group in memory. The first committer whose record must be durable becomes the
//! leader. It takes all groups, writes and syncs them once, and wakes the other committers. Records that arrive
//! meanwhile are written in the next turn.
//!
//! ```text
//!   append ──> state: open group, sealed groups ──> turn of a leader ──> segment file
//!   commit ──> leads a turn, or waits for the turn that contains its record
//! ```
//!
//! Invariants:
//! - A new group starts at a fresh block, so that no write can damage acknowledged data.
//! - Groups are written in the order of their sequence numbers, by one leader at a time.
//! - Ordinary records are refused unless there is a spare segment, so that on a full disk there is space for records of
//!   commits that free space, and for the cut of a checkpoint.
//! - After a failed write or sync nothing more is written, because the contents of the medium are unknown.
//!
//! The bytes, the recovery rules and their proof are in `docs/format.md`.

mod format;
mod gate;
mod groups;
mod recover;
mod segment;
mod state;
mod tail;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

pub use recover::SalvagedLog;
pub(crate) use tail::{LogTail, Record};

use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use keyaki_device::{BLOCK, Device};
use keyaki_primitives::sync::Mutex;
use keyaki_primitives::sync::thread::{Builder, JoinHandle};

use self::segment::LogSegments;
use self::state::State;
use self::writer::{SyncTarget, Writer};
use crate::base::{Durability, Error, Result};

/// A position in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LogPosition {
    /// Number of the segment.
    pub segment: u64,
    /// Offset in the segment in bytes, a multiple of 4096.
    pub offset: u64,
}

/// The use of the space that the log keeps for a full disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogReserve {
    /// The record is refused if it would leave no spare segment.
    Keep,
    /// The record may use all space of the log, because its commit frees space.
    Use,
}

/// The log of one store. Records have consecutive sequence numbers. All methods take `&self`.
///
/// Closing or dropping the log writes pending records, and syncs them unless the durability is `Off`.
#[derive(Debug)]
pub struct Log {
    writer: Arc<Writer>,
    /// `None` once the log is closed.
    background: Mutex<Option<JoinHandle<()>>>,
}

impl Log {
    /// Recovers the log and opens it for appending. Calls `apply` with the sequence number and the payload of each
    /// valid record from position `from` on, in order. `first` (at least 1) is the first sequence number to apply;
    /// earlier records are verified and skipped. If there is no log and `from` is the default position, the log is
    /// created with its first record. At any other position a missing log is damage. With `is_short`, new segments and the
    /// spare one are short at first, until [`lengthen`](Self::lengthen).
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] if an acknowledged record is damaged or missing. (A torn tail, which was never
    /// acknowledged, is truncated without an error.) [`Error::FormatVersion`] for another format version,
    /// [`Error::StartThread`], errors of the device and of `apply`.
    pub fn open(
        device: Arc<dyn Device>,
        dir: &Path,
        from: LogPosition,
        first: u64,
        durability: Durability,
        is_short: bool,
        apply: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<Log> {
        assert!(first > 0, "sequence numbers start at 1");
        assert!(from.offset.is_multiple_of(BLOCK as u64), "log position {from:?} is not block-aligned");
        let found = recover::recover(&device, dir, from, first, apply)?;
        let log_id = found.log_id.unwrap_or_else(random_id);
        let segments = LogSegments::new(device, dir, log_id, is_short);
        let mut state = State::new(durability, found.next_segment, found.next_sequence - 1, found.tail);
        // A new log needs no reserve before its first record.
        state.spare = if found.log_id.is_some() { segments.recover_spare()? } else { None };
        let writer = Arc::new(Writer::new(segments, state, found.bytes));
        let background = Builder::new()
            .name("keyaki-log".into())
            .spawn({
                let writer = writer.clone();
                move || writer.run_background()
            })
            .map_err(|source| Error::StartThread { thread: "keyaki-log", source: Arc::new(source) })?;
        Ok(Log { writer, background: Mutex::new(Some(background)) })
    }

    /// A log that refuses all records and has no files, for a database that is only read.
    pub fn without_files(device: Arc<dyn Device>, dir: &Path) -> Log {
        let segments = LogSegments::new(device, dir, 0, false);
        let writer = Arc::new(Writer::new(segments, State::new(Durability::Off, 0, 0, None), 0));
        writer.poison("the database is open read-only");
        Log { writer, background: Mutex::new(None) }
    }

    /// As [`open`](Self::open), for a damaged log, without writing: calls `apply` with the records before the first damaged
    /// or missing one.
    ///
    /// # Errors
    /// Device errors other than of reads; errors of `apply`. Damage is part of the result.
    pub fn salvage(
        device: &Arc<dyn Device>,
        dir: &Path,
        from: LogPosition,
        first: u64,
        apply: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<SalvagedLog> {
        recover::salvage(device, dir, from, first, apply)
    }

    /// True if the first segment of the log exists, so that it may have all records.
    ///
    /// # Errors
    /// Device errors.
    pub fn has_beginning(device: &dyn Device, dir: &Path) -> Result<bool> {
        Ok(LogSegments::list(device, dir)?.first() == Some(&0))
    }

    /// The path of the first segment.
    pub fn path_of_beginning(dir: &Path) -> PathBuf {
        dir.join(format::segment_name(0))
    }

    /// Appends a record in memory. Sequence numbers must be consecutive. Waits for the device only if the memory of the
    /// log is full or a new segment is needed.
    ///
    /// # Errors
    /// [`Error::DiskFull`] if the disk has no space for another segment, or for the spare one that `reserve` keeps: the
    /// record was not appended, and the call can be retried. [`Error::TooLarge`] if the payload exceeds 2 GiB.
    /// [`Error::Poisoned`].
    ///
    /// # Panics
    /// If `sequence` does not follow the last record.
    pub fn append(&self, sequence: u64, payload: &[u8], reserve: LogReserve) -> Result<()> {
        self.writer.append(sequence, payload, reserve)
    }

    /// With durability `Full`, waits until record `sequence` is synced; concurrent callers share a sync. Otherwise
    /// returns at once.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn commit(&self, sequence: u64) -> Result<()> {
        self.writer.commit(sequence)
    }

    /// Like [`commit`](Self::commit), without blocking: the thread of the log syncs.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub async fn committed(&self, sequence: u64) -> Result<()> {
        let mut arrived = false;
        poll_fn(|context| self.writer.poll_commit(sequence, &mut arrived, context.waker())).await
    }

    /// Writes and syncs all appended records, independent of the durability.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn sync(&self) -> Result<()> {
        self.writer.reach_appended(SyncTarget::Synced)
    }

    /// The newest sequence number that is known to be synced.
    pub fn durable(&self) -> u64 {
        self.writer.durable()
    }

    /// Returns the position of the next record, from which recovery replays after a checkpoint. Starts a new segment
    /// unless the current one is empty, so that all earlier segments can be removed. On a full disk the position is in
    /// the current segment. The position is durable on return. No record may be appended during the call.
    ///
    /// # Errors
    /// [`Error::DiskFull`] if the current segment has no space either: nothing has changed, and the log remains usable.
    /// [`Error::Poisoned`].
    pub fn cut(&self) -> Result<LogPosition> {
        self.writer.cut()
    }

    /// Removes the segments that lie entirely before `position`, the result of the last [`cut`](Self::cut), after a
    /// checkpoint was written. If this fails, the log remains valid, and the next call removes the remaining segments.
    pub fn remove_before(&self, position: LogPosition) -> Result<()> {
        self.writer.remove_before(position)
    }

    /// Gives the segments of a short log their usual lengths, because the database will not be small any more: extends the
    /// current segment and the spare one to 4 MiB. From then on, ordinary records need such a spare segment. Does nothing if the log is not
    /// short.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: the log remains short. [`Error::Poisoned`]; device errors, which poison the log.
    pub fn lengthen(&self) -> Result<()> {
        self.writer.lengthen()
    }

    /// Sets whether ordinary records need a short spare segment only. Changes no segment.
    pub fn set_short(&self, is_short: bool) {
        self.writer.set_short(is_short);
    }

    /// Number of the newest segment; `None` before the first.
    pub fn newest_segment(&self) -> Option<u64> {
        self.writer.newest_segment()
    }

    /// Provides the spare segment, if the disk has the space. Returns true if there is one of the required length.
    ///
    /// # Errors
    /// [`Error::Poisoned`]; device errors, which poison the log.
    pub fn keep_spare(&self) -> Result<bool> {
        self.writer.keep_spare()
    }

    /// Bytes of records since the last checkpoint: read by [`open`](Self::open) or appended later, and not before the
    /// position of a [`remove_before`](Self::remove_before).
    pub fn bytes(&self) -> u64 {
        self.writer.bytes()
    }

    /// Checks that the log accepts records.
    ///
    /// # Errors
    /// [`crate::Error::Poisoned`] after a failed write or sync.
    pub fn check(&self) -> Result<()> {
        self.writer.check()
    }

    /// Stops the log. Later calls return [`crate::Error::Poisoned`].
    pub fn poison(&self, cause: &str) {
        self.writer.poison(cause);
    }

    pub fn set_durability(&self, durability: Durability) {
        self.writer.set_durability(durability);
    }

    /// Writes pending records and closes the log. The files are not accessed afterwards. No record may be appended
    /// after this call.
    pub fn close(&self) {
        self.writer.stop_background();
        let Some(thread) = self.background.lock().take() else { return };
        if thread.join().is_err() {
            self.writer.poison("the background thread of the log panicked");
        }
        if let Err(error) = self.writer.close() {
            tracing::warn!(%error, "could not close the log cleanly");
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.close();
    }
}

/// An id that distinguishes logs. It need not be unpredictable.
pub(crate) fn random_id() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::SystemTime::now())
}

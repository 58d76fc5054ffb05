//! The part of the log in memory: groups that `append` fills and leaders write.
//!
//! The position of a group in its segment is fixed when the group is started, and a record is accepted only if the
//! segment has space for it. A full disk is therefore detected when a segment is created, before the record is
//! accepted, and never later.
//!
//! ```text
//!            written groups │ in flight (leader) │ sealed … │ open │  free
//! segment  ├────────────────┴────────────────────┴──────────┴──────┴────────┤ capacity
//!                                                                  ^ tail.offset
//! ```

use std::sync::Arc;
use std::task::Waker;

use keyaki_device::{BLOCK, Buffer, File};

use super::format::{GroupHeader, HEADER_BYTES, MAX_BODY_BYTES, RECORD_HEADER_BYTES, encode_record, round_up};
use super::segment::Spare;
use crate::base::Durability;

/// Maximum length of a group in bytes. A longer record forms a group of its own.
pub(super) const GROUP_BYTES: usize = if cfg!(test) { 16 << 10 } else { 1 << 20 };
/// Bytes of zeros written ahead of small groups.
const ZERO_BYTES: usize = if cfg!(test) { 32 << 10 } else { 256 << 10 };
/// Number of group buffers kept for reuse.
const POOLED_BUFFERS: usize = 4;

/// Bytes at the end of a segment that are kept for a mark, see [`State::push_mark`].
pub(super) const MARK_BYTES: u64 = BLOCK as u64;

const _: () = {
    assert!(GROUP_BYTES.is_multiple_of(BLOCK) && GROUP_BYTES > HEADER_BYTES + RECORD_HEADER_BYTES);
    assert!(ZERO_BYTES.is_multiple_of(BLOCK));
};

/// The segment that is being filled.
#[derive(Debug)]
pub(super) struct Tail {
    pub number: u64,
    pub file: Arc<dyn File>,
    /// Bytes allocated.
    pub capacity: u64,
    /// Offset of the next group.
    pub offset: u64,
    /// End of the part of the file that was written with groups or zeros. A sync of writes before it needs no metadata.
    pub written_to: u64,
}

/// A group in memory.
#[derive(Debug)]
pub(super) struct Group {
    pub file: Arc<dyn File>,
    pub segment: u64,
    pub offset: u64,
    first_sequence: u64,
    count: u32,
    /// Bytes of `buffer` in use, header included.
    used: usize,
    /// Bytes of `buffer` that may be used: limited by the end of the segment and by the maximum length of a body.
    limit: usize,
    buffer: Buffer,
}

impl Group {
    /// Appends a record. Returns false if the group has no space for it.
    fn push(&mut self, sequence: u64, payload: &[u8]) -> bool {
        if self.limit - self.used < RECORD_HEADER_BYTES + payload.len() {
            return false;
        }
        self.used += encode_record(&mut self.buffer[self.used..], sequence, payload);
        self.count += 1;
        true
    }

    /// Bytes that the group occupies in the segment.
    fn span(&self) -> usize {
        round_up(self.used)
    }

    /// Writes the header and zeroes the padding. Returns the bytes to write, or `None` if they are the whole buffer of
    /// the group.
    pub(super) fn seal(&mut self, log_id: u64, synced_through: u64) -> Option<Buffer> {
        let header = GroupHeader {
            log_id,
            segment: self.segment,
            offset: self.offset,
            first_sequence: self.first_sequence,
            synced_through,
            count: self.count,
            body_len: (self.used - HEADER_BYTES) as u64,
            body_crc: crc32c::crc32c(&self.buffer[HEADER_BYTES..self.used]),
        };
        header.assert_sound();
        header.encode(&mut self.buffer);
        let span = self.span();
        if span == self.buffer.len() {
            self.buffer[self.used..].fill(0);
            return None;
        }
        let mut exact = Buffer::zeroed(span);
        exact[..self.used].copy_from_slice(&self.buffer[..self.used]);
        Some(exact)
    }

    pub(super) fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

/// A range of zeros to be written ahead of groups.
#[derive(Debug)]
pub(super) struct Zeros {
    pub file: Arc<dyn File>,
    pub offset: u64,
    pub len: usize,
}

/// The data protected by the mutex of the log.
#[derive(Debug)]
pub(super) struct State {
    pub durability: Durability,
    /// The failure after which the log refuses writes.
    pub poison: Option<String>,
    /// The segment being filled; `None` until the first record after opening.
    pub tail: Option<Tail>,
    /// Number of the next segment to create.
    pub next_segment: u64,
    /// The file of the next segment. `None` while a thread uses it, if the log is new, and if the disk is full.
    pub spare: Option<Spare>,
    /// Offset of the last group of the segment, if it is a mark.
    mark: Option<u64>,
    /// True while a thread creates a segment outside the mutex. Appends wait for it.
    pub rolling: bool,
    /// Full groups, oldest first. `open` is the group being filled.
    sealed: Vec<Group>,
    open: Option<Group>,
    pool: Vec<Buffer>,
    /// Bytes appended and not yet written.
    pub pending_bytes: usize,
    /// Newest sequence number that is appended (`appended`), written (`written`) and known to be synced (`durable`).
    pub appended: u64,
    pub written: u64,
    pub durable: u64,
    /// True while a leader writes the records up to `in_flight`, in turn number `turn`.
    pub leading: bool,
    pub in_flight: u64,
    pub turn: u64,
    /// Number of commits that arrived for the next turn (`arrivals`) and for the newest turn (`arrivals_before`).
    pub arrivals: u64,
    pub arrivals_before: u64,
    /// Wakers of commits that wait for a sync without a thread, with the sequence numbers of their records. All are
    /// newer than `durable`.
    pub wakers: Vec<(u64, Waker)>,
    /// Files with writes that are not synced yet.
    pub unsynced: Vec<Arc<dyn File>>,
    /// True once the log is being closed.
    pub closing: bool,
}

impl State {
    /// The state of a log whose records up to `durable` are synced.
    pub(super) fn new(durability: Durability, next_segment: u64, durable: u64, tail: Option<Tail>) -> State {
        State {
            durability,
            poison: None,
            tail,
            next_segment,
            spare: None,
            mark: None,
            rolling: false,
            sealed: Vec::new(),
            open: None,
            pool: Vec::new(),
            pending_bytes: 0,
            appended: durable,
            written: durable,
            durable,
            leading: false,
            in_flight: durable,
            turn: 0,
            arrivals: 0,
            arrivals_before: 0,
            wakers: Vec::new(),
            unsynced: Vec::new(),
            closing: false,
        }
    }

    /// Appends a record. Returns false if the segment has no space for it.
    pub(super) fn push(&mut self, sequence: u64, payload: &[u8]) -> bool {
        if !self.open.as_mut().is_some_and(|group| group.push(sequence, payload)) {
            self.close_group();
            let Some(mut group) = self.begin_group(sequence, payload.len(), MARK_BYTES) else { return false };
            self.mark = None;
            let pushed = group.push(sequence, payload);
            assert!(pushed, "a new group has room for its first record");
            self.open = Some(group);
        }
        let bytes = RECORD_HEADER_BYTES + payload.len();
        self.appended = sequence;
        self.pending_bytes += bytes;
        true
    }

    /// Starts a group at the tail of the segment; `None` if the segment has no space for its first record and `kept`
    /// bytes behind it.
    fn begin_group(&mut self, first_sequence: u64, payload: usize, kept: u64) -> Option<Group> {
        let tail = self.tail.as_ref()?;
        let needed = group_span(payload);
        let room = usize::try_from((tail.capacity - tail.offset).saturating_sub(kept)).unwrap_or(usize::MAX);
        if room < needed {
            return None;
        }
        let buffer = if needed > GROUP_BYTES {
            Buffer::zeroed(needed)
        } else {
            self.pool.pop().unwrap_or_else(|| Buffer::zeroed(GROUP_BYTES))
        };
        Some(Group {
            file: tail.file.clone(),
            segment: tail.number,
            offset: tail.offset,
            first_sequence,
            count: 0,
            used: HEADER_BYTES,
            limit: buffer.len().min(room).min(HEADER_BYTES + MAX_BODY_BYTES as usize),
            buffer,
        })
    }

    /// Ends the group being filled, which fixes its length.
    fn close_group(&mut self) {
        if let (Some(group), Some(tail)) = (self.open.take(), self.tail.as_mut()) {
            assert_eq!(group.offset, tail.offset, "groups of a segment follow each other");
            tail.offset += group.span() as u64;
            assert!(tail.offset <= tail.capacity, "a group ends at {}, the segment at {}", tail.offset, tail.capacity);
            self.sealed.push(group);
        }
    }

    /// All groups not yet written, oldest first.
    pub(super) fn take_groups(&mut self) -> Vec<Group> {
        self.close_group();
        std::mem::take(&mut self.sealed)
    }

    /// Adds a group without records at the tail, unless the last one has none, and returns its offset; `None` if the
    /// segment has no space for it.
    pub(super) fn push_mark(&mut self) -> Option<u64> {
        if self.mark.is_none() {
            self.close_group();
            self.open = self.begin_group(self.appended + 1, 0, 0);
            self.mark = Some(self.open.as_ref()?.offset);
            self.close_group();
        }
        self.mark
    }

    /// Returns true if everything is written and synced.
    pub(super) fn is_synced(&self) -> bool {
        self.open.is_none() && self.sealed.is_empty() && self.unsynced.is_empty()
    }

    /// Returns the zeros to write behind `groups`, which have just been taken. File systems mark allocated space as
    /// unwritten, and the first sync after a write to it also syncs the extent map of the file. One larger write of
    /// zeros saves this for many small syncs.
    pub(super) fn take_zeros(&mut self, groups: &[Group]) -> Option<Zeros> {
        let tail = self.tail.as_mut()?;
        let span: usize = groups.iter().map(Group::span).sum();
        if span == 0 || span > ZERO_BYTES / 4 || tail.offset < tail.written_to {
            tail.written_to = tail.written_to.max(tail.offset);
            return None;
        }
        let end = tail.capacity.min(tail.offset + ZERO_BYTES as u64);
        tail.written_to = end;
        let len = (end - tail.offset) as usize;
        (len > 0).then(|| Zeros { file: tail.file.clone(), offset: tail.offset, len })
    }

    /// Ends the current segment. Its pending groups stay pending.
    pub(super) fn replace_tail(&mut self, tail: Tail) {
        self.close_group();
        assert!(self.tail.as_ref().is_none_or(|old| old.number < tail.number), "segment numbers ascend");
        self.tail = Some(tail);
        self.mark = None;
    }

    /// Returns true if the current segment has no record, written or pending.
    pub(super) fn tail_is_empty(&self) -> bool {
        self.open.is_none() && self.tail.as_ref().is_some_and(|tail| tail.offset == BLOCK as u64)
    }

    /// Returns the buffers of written groups to the pool.
    pub(super) fn recycle(&mut self, groups: Vec<Group>) {
        for group in groups {
            if self.pool.len() < POOLED_BUFFERS && group.buffer.len() == GROUP_BYTES {
                self.pool.push(group.buffer);
            }
        }
    }
}

/// Bytes that a group with one record of `payload` bytes occupies in a segment.
pub(super) fn group_span(payload: usize) -> usize {
    round_up(HEADER_BYTES + RECORD_HEADER_BYTES + payload)
}

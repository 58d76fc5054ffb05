//! What the log holds in memory: groups that are filled by `append` and wait to be written.
//!
//! A group's place in its segment is fixed when it is begun, and a record is only taken when the segment has room for it.
//! So a full disk shows itself when a segment is to be created, before the record is accepted, and never later.
//!
//! ```text
//!            written groups │ in flight (leader) │ sealed … │ open │  free
//! segment  ├────────────────┴────────────────────┴──────────┴──────┴────────┤ capacity
//!                                                                  ^ tail.offset
//! ```

use std::sync::Arc;

use keyaki_device::{BLOCK, Buffer, File};

use super::format::{GroupHeader, HEADER_BYTES, MAX_BODY_BYTES, RECORD_HEADER_BYTES, encode_record, round_up};
use crate::base::Durability;

/// A group is closed when it has this many bytes (a larger record is a group by itself).
pub(super) const GROUP_BYTES: usize = if cfg!(test) { 16 << 10 } else { 1 << 20 };
/// Zeros written ahead of small groups.
const ZERO_BYTES: usize = if cfg!(test) { 32 << 10 } else { 256 << 10 };
/// Group buffers kept for reuse.
const POOLED_BUFFERS: usize = 4;

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
    /// Where the next group starts.
    pub offset: u64,
    /// Up to here the file has been written, with groups or zeros, so that a sync there needs no metadata.
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
    /// Bytes of `buffer` that may be used: the segment may end before the buffer does, and a body has a largest length.
    limit: usize,
    buffer: Buffer,
}

impl Group {
    fn push(&mut self, sequence: u64, payload: &[u8]) -> bool {
        if self.limit - self.used < RECORD_HEADER_BYTES + payload.len() {
            return false;
        }
        self.used += encode_record(&mut self.buffer[self.used..], sequence, payload);
        self.count += 1;
        true
    }

    /// Bytes it takes in the segment.
    fn span(&self) -> usize {
        round_up(self.used)
    }

    /// Completes the header and zeroes the padding; the bytes to write are in the returned buffer or, if that is none, in
    /// the whole of the group's own one.
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

/// Zeros to write ahead.
#[derive(Debug)]
pub(super) struct Zeros {
    pub file: Arc<dyn File>,
    pub offset: u64,
    pub len: usize,
}

/// Everything under the log's mutex.
#[derive(Debug)]
pub(super) struct State {
    pub durability: Durability,
    /// Why the log takes no more writes.
    pub poison: Option<String>,
    /// The segment being filled; none until the first record after opening.
    pub tail: Option<Tail>,
    /// Number of the next segment to create.
    pub next_segment: u64,
    /// Somebody is creating a segment, outside the mutex; appends wait.
    pub rolling: bool,
    /// Full groups, oldest first, and the one being filled.
    sealed: Vec<Group>,
    open: Option<Group>,
    pool: Vec<Buffer>,
    /// Bytes appended and not yet written.
    pub pending_bytes: usize,
    /// Newest sequence number appended, written, known to be on the medium.
    pub appended: u64,
    pub written: u64,
    pub durable: u64,
    /// A leader is writing everything up to `in_flight`; it is the `turn`th.
    pub leading: bool,
    pub in_flight: u64,
    pub turn: u64,
    /// Commits that have come to wait for the next turn, and that came for the newest one.
    pub arrivals: u64,
    pub arrivals_before: u64,
    /// Files with writes that no sync has followed yet.
    pub unsynced: Vec<Arc<dyn File>>,
    /// The handle is being dropped.
    pub closing: bool,
}

impl State {
    /// A log whose records up to `durable` are on the medium.
    pub(super) fn new(durability: Durability, next_segment: u64, durable: u64, tail: Option<Tail>) -> State {
        State {
            durability,
            poison: None,
            tail,
            next_segment,
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
            unsynced: Vec::new(),
            closing: false,
        }
    }

    /// Takes a record if the segment has room for it.
    pub(super) fn push(&mut self, sequence: u64, payload: &[u8]) -> bool {
        if !self.open.as_mut().is_some_and(|group| group.push(sequence, payload)) {
            self.close_group();
            let Some(mut group) = self.begin_group(sequence, payload.len()) else { return false };
            let pushed = group.push(sequence, payload);
            assert!(pushed, "a new group has room for its first record");
            self.open = Some(group);
        }
        let bytes = RECORD_HEADER_BYTES + payload.len();
        self.appended = sequence;
        self.pending_bytes += bytes;
        true
    }

    /// An empty group at the segment's tail; none if the segment has no room for its first record.
    fn begin_group(&mut self, first_sequence: u64, payload: usize) -> Option<Group> {
        let tail = self.tail.as_ref()?;
        let needed = group_span(payload);
        let room = usize::try_from(tail.capacity - tail.offset).unwrap_or(usize::MAX);
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

    /// Ends the group being filled: its place and length are fixed now.
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

    /// Adds a group without records at the tail, if there is room for it; returns its offset.
    pub(super) fn push_mark(&mut self) -> Option<u64> {
        self.close_group();
        self.open = self.begin_group(self.appended + 1, 0);
        let offset = self.open.as_ref()?.offset;
        self.close_group();
        Some(offset)
    }

    /// Nothing is left to be written or synced.
    pub(super) fn is_synced(&self) -> bool {
        self.open.is_none() && self.sealed.is_empty() && self.unsynced.is_empty()
    }

    /// The zeros to write behind `groups`, which have just been taken: the file system allocates space that counts as
    /// unwritten, and the first sync after a write there must also sync its map of the file. One larger write of zeros
    /// spares many small syncs this.
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

    /// Ends the current segment. What is pending for it stays pending.
    pub(super) fn replace_tail(&mut self, tail: Tail) {
        self.close_group();
        assert!(self.tail.as_ref().is_none_or(|old| old.number < tail.number), "segment numbers ascend");
        self.tail = Some(tail);
    }

    /// The current segment has no record, written or pending.
    pub(super) fn tail_is_empty(&self) -> bool {
        self.open.is_none() && self.tail.as_ref().is_some_and(|tail| tail.offset == BLOCK as u64)
    }

    /// Keeps the buffers of written groups.
    pub(super) fn recycle(&mut self, groups: Vec<Group>) {
        for group in groups {
            if self.pool.len() < POOLED_BUFFERS && group.buffer.len() == GROUP_BYTES {
                self.pool.push(group.buffer);
            }
        }
    }
}

/// Bytes that a group with one record takes in a segment.
pub(super) fn group_span(payload: usize) -> usize {
    round_up(HEADER_BYTES + RECORD_HEADER_BYTES + payload)
}

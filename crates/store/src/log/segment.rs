//! Segment files: creation, extension, truncation of a torn tail, removal.
//!
//! Invariants: segment n + 1 is created only after segment n, its opening group and its directory entry are durable, and
//! no other group is written to a segment before its opening group is durable.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use keyaki_device::{BLOCK, Buffer, Device, File, OpenMode};

use super::format::{GroupHeader, HEADER_BYTES, parse_segment_name, segment_name};
use super::state::Tail;
use crate::base::Result;

/// Length of a segment in bytes, if the disk has the space. Tests use short segments so that logs have many.
pub(super) const SEGMENT_BYTES: u64 = if cfg!(test) { 128 << 10 } else { 64 << 20 };
/// Length of a segment in bytes if the disk is nearly full.
const SMALL_SEGMENT_BYTES: u64 = SEGMENT_BYTES / 16;

const _: () = {
    assert!(SEGMENT_BYTES.is_multiple_of(BLOCK as u64) && SMALL_SEGMENT_BYTES.is_multiple_of(BLOCK as u64));
    assert!(SMALL_SEGMENT_BYTES >= 2 * BLOCK as u64, "an opening group and another one");
};

/// The segments of a log in their directory.
#[derive(Debug)]
pub(super) struct LogSegments {
    pub device: Arc<dyn Device>,
    pub dir: PathBuf,
    pub log_id: u64,
}

impl LogSegments {
    pub(super) fn path(&self, number: u64) -> PathBuf {
        self.dir.join(segment_name(number))
    }

    /// Numbers of the segments that exist, ascending.
    pub(super) fn list(device: &dyn Device, dir: &Path) -> Result<Vec<u64>> {
        let mut numbers: Vec<u64> = device.list(dir)?.iter().filter_map(|name| parse_segment_name(name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Creates segment `number` with its opening group and space for a group of `needed` bytes. `next_sequence` is the
    /// sequence number of its first record. The segment is durable on return.
    pub(super) fn create(&self, number: u64, next_sequence: u64, synced_through: u64, needed: u64) -> Result<Tail> {
        assert!(needed.is_multiple_of(BLOCK as u64), "group of {needed} bytes is not block-aligned");
        let path = self.path(number);
        // The file is left from an attempt that failed on a full disk. It has no acknowledged record.
        if self.device.exists(&path)? {
            self.device.remove(&path)?;
        }
        let file = self.device.open(&path, OpenMode::CreateNew)?;
        match self.open_segment(&*file, number, next_sequence, synced_through, needed) {
            Ok(capacity) => Ok(Tail { number, file, capacity, offset: BLOCK as u64, written_to: BLOCK as u64 }),
            Err(error) => {
                drop(file);
                if let Err(error) = self.device.remove(&path) {
                    tracing::warn!(%error, "could not remove an unfinished log segment");
                }
                Err(error)
            }
        }
    }

    fn open_segment(
        &self,
        file: &dyn File,
        number: u64,
        next_sequence: u64,
        synced_through: u64,
        needed: u64,
    ) -> Result<u64> {
        let capacity = allocate(file, 0, needed + BLOCK as u64)?;
        file.write_at(0, &empty_group(self.log_id, number, 0, next_sequence, synced_through))?;
        file.sync_data()?;
        self.device.sync_dir(&self.dir)?;
        Ok(capacity)
    }

    /// Removes the segments before `number`, oldest first.
    pub(super) fn remove_before(&self, number: u64) -> Result<()> {
        let old: Vec<u64> = LogSegments::list(&*self.device, &self.dir)?.into_iter().filter(|&n| n < number).collect();
        for &segment in &old {
            self.device.remove(&self.path(segment))?;
        }
        if !old.is_empty() {
            self.device.sync_dir(&self.dir)?;
        }
        Ok(())
    }
}

/// Allocates at least `needed` bytes from offset `from` on, and more if the disk has the space. Returns the new length
/// of the file.
pub(super) fn allocate(file: &dyn File, from: u64, needed: u64) -> Result<u64> {
    for end in [SEGMENT_BYTES, SMALL_SEGMENT_BYTES] {
        if end <= from + needed {
            continue;
        }
        match file.allocate(from, end - from) {
            Ok(()) => return Ok(end),
            // Part of the range may have been allocated.
            Err(error) if error.is_no_space() => file.truncate(from)?,
            Err(error) => return Err(error.into()),
        }
    }
    file.allocate(from, needed)?;
    Ok(from + needed)
}

/// Truncates a segment at `offset`, durably. Before that, overwrites the group headers at the offsets `stale` with
/// zeros.
pub(super) fn cut_tail(file: &dyn File, offset: u64, stale: &[u64]) -> Result<()> {
    let zeros = Buffer::zeroed(BLOCK);
    for &header in stale {
        file.write_at(header, &zeros)?;
    }
    if !stale.is_empty() {
        file.sync_data()?;
    }
    if file.len()? > offset {
        file.truncate(offset)?;
    }
    Ok(file.sync_data()?)
}

/// A group without records. Its header states the newest durable record and the next sequence number.
pub(super) fn empty_group(log_id: u64, segment: u64, offset: u64, next_sequence: u64, synced_through: u64) -> Buffer {
    let header = GroupHeader {
        log_id,
        segment,
        offset,
        first_sequence: next_sequence,
        synced_through,
        count: 0,
        body_len: 0,
        body_crc: crc32c::crc32c(&[]),
    };
    let mut block = Buffer::zeroed(BLOCK);
    header.assert_sound();
    header.encode(&mut block[..HEADER_BYTES]);
    block
}

//! Free space of the data file. It is not stored but derived: space that no checkpointed or live extent uses is free.
//!
//! Free ranges are kept coalesced in two orders: by offset, to merge neighbours, and by (length, offset), to find the
//! best fit with the lowest offset. All operations but growth are O(log n) in the number of free ranges.
//!
//! A part of the free space is a reserve for full disks, see [`Purpose`]: a thirty-second of the file, at least 16 slots
//! and at most 256 MiB. It is not stored either. An allocation that would not leave the reserve makes the file grow
//! first. Fragmented space would be useless for an extent, so the reserve is counted in *slots*: a free range has as
//! many slots as extents of the length that flushes write on a full disk fit into it.
//!
//! While data and buffered messages take less than half a slot together, and less than 168 KiB, the file is *small*: one slot, which is
//! contiguous, is the reserve and the room for the runs of the messages: it has space for all of these runs, and for all leaves
//! written again. On a full disk, a shorter range is enough for shorter runs. A file leaves this state before it accepts more
//! rows, and only with the whole reserve. It becomes small again when it is opened, or when rows are refused on a full disk.
//!
//! Invariants: free ranges are block-aligned, not empty, disjoint, not adjacent, and lie between the superblock slots
//! and the end of the file. Freeing a range twice, or a range that was never allocated, is a bug and panics.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use keyaki_device::{BLOCK, File};
use keyaki_primitives::sync::Mutex;

use crate::base::{Error, Result};
use crate::pages::RESERVED_BYTES;

/// Growth of the file in bytes, if the disk has the space: half of a small file within these bounds, a thirty-second of a
/// large one.
const GROWTH_BYTES: RangeInclusive<u64> = 4 << 20..=64 << 20;
const GROWTH_SHARE: u64 = 32;

/// Allocated bytes after which a checkpoint frees what they have replaced: this share of the bytes in use, and at least
/// this many.
const TAKEN_SHARE: u64 = 32;
const TAKEN_BYTES_MIN: u64 = 64 << 20;

/// Maximum length of the reserve in bytes, unless that is less than two slots.
const RESERVE_BYTES_MAX: u64 = 256 << 20;
/// The reserve is this part of the file.
const RESERVE_SHARE: u64 = 32;
/// Minimum number of slots of the reserve, unless these are longer than [`RESERVE_BYTES_MAX`].
const RESERVE_SLOTS_MIN: u64 = 16;
/// Maximum data and buffered messages of a small file in bytes, unless half a slot is shorter.
const SMALL_BYTES_MAX: u64 = 168 << 10;
/// A full disk counts as full until this part of the reserve more is free.
const FULL_DISK_EXCESS_SHARE: u64 = 4;

/// The purpose of an allocation decides how much of the reserve it may use if the file cannot grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Loads and uncommitted transactions use nothing of it.
    Load,
    /// Messages that move down the tree, which frees space in the end, use half of it.
    Settle,
    /// Runs of root buffers and node tables, which every checkpoint needs, use all of it.
    Checkpoint,
}

/// Free space at the end of the file that a trim keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    /// The reserve, the room that commits have needed since the last trim, and one growth step.
    Growth,
    /// The reserve and the room.
    Room,
    /// The reserve, because other files need the space.
    Reserve,
}

/// Allocates and frees block-aligned ranges of the data file: best fit, then lowest offset. Grows the file in large
/// steps. All methods take `&self`.
#[derive(Debug)]
pub struct Space {
    file: Arc<dyn File>,
    free: Mutex<Free>,
    /// The last growth of the file failed for lack of space, and there has been no room since.
    is_full: AtomicBool,
    /// Bytes that are allocated but not in use.
    spare_bytes: AtomicU64,
    /// See [`Space::of_read_only`].
    is_read_only: bool,
}

/// The free ranges.
#[derive(Debug, Default)]
struct Free {
    /// Offset → length.
    by_offset: BTreeMap<u64, u64>,
    /// (length, offset).
    by_len: BTreeSet<(u64, u64)>,
    free_bytes: u64,
    file_len: u64,
    /// Maximum length of an extent that flushes write on a full disk.
    slot_bytes: u64,
    /// Number of slots in all free ranges.
    slots: u64,
    /// The most slots that commits have needed beside the reserve since the last trim.
    room_slots: u64,
    /// Bytes allocated since the last trim. Most of them replace extents of the newest checkpoint, which are free only
    /// after the next one.
    taken_bytes: u64,
    /// See the [module](self).
    is_small: bool,
}

impl Space {
    /// Derives the free space from `used`, the (offset, length) of every range in use behind the superblock slots, in
    /// any order. Flushes on a full disk write extents of at most `slot_bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a range is empty, not block-aligned, outside the file, or overlaps another one; device
    /// errors.
    pub fn new(file: Arc<dyn File>, mut used: Vec<(u64, u64)>, slot_bytes: u64) -> Result<Space> {
        assert!(slot_bytes > 0 && is_aligned(slot_bytes), "slots of {slot_bytes} bytes are not block-aligned");
        // A partial block at the end, which this program never writes, is not used.
        let file_len = (file.len()? / BLOCK as u64 * BLOCK as u64).max(RESERVED_BYTES);
        used.sort_unstable();
        let mut free = Free { file_len, slot_bytes, ..Free::default() };
        let mut end = RESERVED_BYTES;
        for (offset, len) in used {
            let detail = if len == 0 || !is_aligned(offset) || !is_aligned(len) {
                "not block-aligned"
            } else if offset < end {
                "used twice"
            } else if offset.checked_add(len).is_none_or(|after| after > file_len) {
                "beyond the end of the file"
            } else {
                if offset > end {
                    free.insert(end, offset - end);
                }
                end = offset + len;
                continue;
            };
            let detail = format!("a range of {len} bytes is {detail}");
            let (path, offset) = (file.path().to_path_buf(), Some(offset));
            return Err(Error::Corrupt { path, what: "space map", offset, detail });
        }
        if end < file_len {
            free.insert(end, file_len - end);
        }
        let (is_full, spare_bytes) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Space { file, free: Mutex::new(free), is_full, spare_bytes, is_read_only: false })
    }

    /// The space of a file that is only read. All of it is in use, and ranges that are freed stay in use.
    pub fn of_read_only(file: Arc<dyn File>) -> Space {
        let file_len = file.len().unwrap_or(0);
        let free = Free { slot_bytes: BLOCK as u64, file_len, ..Free::default() };
        let (is_full, spare_bytes) = (AtomicBool::new(false), AtomicU64::new(0));
        Space { file, free: Mutex::new(free), is_full, spare_bytes, is_read_only: true }
    }

    /// Allocates `len` bytes (a positive multiple of 4096) and returns their offset.
    ///
    /// # Errors
    /// [`Error::DiskFull`] if the file cannot grow and `purpose` forbids to use the reserve. Nothing changes then.
    pub fn allocate(&self, len: u64, purpose: Purpose) -> Result<u64> {
        assert!(!self.is_read_only, "allocation of {len} bytes in a file that is only read");
        assert!(len > 0 && is_aligned(len), "allocation of {len} bytes is not block-aligned");
        let mut free = self.free.lock();
        let was_small = free.is_small;
        // A load is accepted with the whole reserve only.
        free.is_small &= purpose != Purpose::Load;
        let allocated = self.allocate_from(&mut free, len, purpose);
        free.is_small |= was_small && allocated.is_err();
        allocated
    }

    fn allocate_from(&self, free: &mut Free, len: u64, purpose: Purpose) -> Result<u64> {
        let kept_by_load = free.reserve_slots();
        if !free.leaves(len, kept_by_load) {
            let kept = match purpose {
                Purpose::Load => kept_by_load,
                Purpose::Settle => kept_by_load / 2,
                Purpose::Checkpoint => 0,
            };
            let needed = if free.is_small { free.growth_by_slot(len) } else { len + free.growth_to(kept_by_load + 1) };
            match self.grow(free, needed) {
                Err(Error::DiskFull { .. }) if free.leaves(len, kept) => {}
                grown => grown?,
            }
        }
        let Some(offset) = free.take(len) else { unreachable!("there is a range of at least {len} bytes") };
        Ok(offset)
    }

    /// Allocates `len` bytes without growing the file, in the reserve, too.
    pub fn find(&self, len: u64) -> Option<u64> {
        self.free.lock().take(len)
    }

    /// Allocates `len` bytes at the lowest possible offset, so that they end at `end` or before it, without growing the
    /// file and outside of the reserve. O(n) in the number of free ranges.
    pub fn find_below(&self, len: u64, end: u64) -> Option<u64> {
        let mut free = self.free.lock();
        let (offset, found) =
            free.by_offset.iter().map(|(&offset, &found)| (offset, found)).find(|range| range.1 >= len)?;
        let left = free.slots - found / free.slot_bytes + (found - len) / free.slot_bytes;
        if offset + len > end || left < free.reserve_slots() {
            return None;
        }
        free.take_from(offset, found, len);
        Some(offset)
    }

    /// Allocates all free ranges, (offset, length) each.
    pub fn withhold(&self) -> Vec<(u64, u64)> {
        let mut free = self.free.lock();
        let ranges: Vec<(u64, u64)> = free.by_offset.iter().map(|(&offset, &len)| (offset, len)).collect();
        for &(offset, len) in &ranges {
            free.remove(offset, len);
        }
        ranges
    }

    /// The length of the file in bytes if there were no free space in it but the reserve.
    pub fn dense_len(&self) -> u64 {
        let free = self.free.lock();
        let used = free.file_len - free.free_bytes;
        used + free.reserve_slots_of(used) * free.slot_bytes
    }

    /// As [`become_small`](Self::become_small), when the file is opened. Deletes on a full disk may have made a small file
    /// a little larger, which has no whole reserve then.
    pub fn open_small(&self, bytes: u64) -> bool {
        let mut free = self.free.lock();
        free.is_small = false;
        let has_reserve = free.slots >= free.reserve_slots();
        let was_small = !has_reserve && free.slots <= 2 && free.is_within(bytes, 2 * free.slot_bytes);
        free.is_small = free.is_little(bytes) || was_small;
        free.is_small
    }

    /// Makes the file small if it has little data beside `bytes` bytes that the runs of buffered messages need. Returns true if it
    /// is small.
    pub fn become_small(&self, bytes: u64) -> bool {
        let mut free = self.free.lock();
        free.is_small |= !self.is_read_only && free.is_little(bytes);
        free.is_small
    }

    /// True if the file is small, and will be with `bytes` bytes for the runs of buffered messages.
    pub fn remains_small(&self, bytes: u64) -> bool {
        let free = self.free.lock();
        free.is_small && free.is_little(bytes)
    }

    /// True if the file is small, see the [module](self).
    pub fn is_small(&self) -> bool {
        self.free.lock().is_small
    }

    /// Makes sure that a small file has a free range for `bytes` bytes of runs, and for the leaves that they become with the data.
    ///
    /// # Errors
    /// [`Error::DiskFull`] if the file cannot grow. Nothing changes then.
    pub fn make_small_room(&self, bytes: u64) -> Result<()> {
        let mut free = self.free.lock();
        let longest = free.by_len.last().map_or(0, |&(len, _)| len);
        if longest < 2 * bytes + free.data_bytes() {
            let needed = free.growth_by_slot(0);
            self.grow(&mut free, needed)?;
        }
        self.is_full.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Makes sure that there are `bytes` free bytes beside the reserve, for the runs of buffered messages; on a full
    /// disk, a part of the reserve more. The file is not small afterwards.
    ///
    /// # Errors
    /// [`Error::DiskFull`] if the file cannot grow. Nothing changes then.
    pub fn make_room(&self, bytes: u64) -> Result<()> {
        let mut free = self.free.lock();
        let was_small = std::mem::take(&mut free.is_small);
        let made = self.make_slots(&mut free, bytes);
        free.is_small = was_small && made.is_err();
        made
    }

    fn make_slots(&self, free: &mut Free, bytes: u64) -> Result<()> {
        let mut slots = bytes.div_ceil(free.slot_bytes);
        free.room_slots = free.room_slots.max(slots);
        if self.is_full() {
            // Otherwise every commit on a nearly full disk would need a checkpoint that frees a little.
            slots += free.reserve_slots() / FULL_DISK_EXCESS_SHARE;
        }
        if free.slots < slots + free.reserve_slots() {
            let needed = free.growth_to(slots + free.reserve_slots());
            self.grow(free, needed)?;
            assert!(
                free.slots >= slots + free.reserve_slots(),
                "growth by {needed} bytes for {slots} slots was too small"
            );
        }
        if self.is_full() {
            self.is_full.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Provides the reserve, if the disk has the space.
    pub fn top_up(&self) -> Result<()> {
        let mut free = self.free.lock();
        let slots = free.reserve_slots();
        if free.slots >= slots {
            return Ok(());
        }
        let needed = if free.is_small { free.growth_by_slot(0) } else { free.growth_to(slots) };
        match self.grow(&mut free, needed) {
            Err(Error::DiskFull { .. }) => Ok(()),
            grown => grown,
        }
    }

    /// True if the file could not grow for lack of space, and there has been no room since.
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// True if so much has been allocated since the last trim, which follows each checkpoint, that the file would become
    /// long without another one.
    pub fn needs_checkpoint(&self) -> bool {
        let free = self.free.lock();
        let used = free.file_len - free.free_bytes;
        free.taken_bytes > TAKEN_BYTES_MIN.max(used / TAKEN_SHARE)
    }

    /// Sets the number of bytes that are allocated but not in use.
    pub fn set_spare_bytes(&self, bytes: u64) {
        self.spare_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Frees a range.
    ///
    /// # Panics
    /// If the range, or part of it, is free already or outside the file.
    pub fn free(&self, offset: u64, len: u64) {
        if self.is_read_only {
            return;
        }
        let sound = self.free.lock().give_back(offset, len);
        assert!(sound, "{len} bytes at {offset} were freed twice or never allocated");
    }

    /// Returns free space at the end of the file to the file system, except for `kept`.
    pub fn trim(&self, kept: Kept) -> Result<()> {
        let mut free = self.free.lock();
        free.taken_bytes = 0;
        let Some((offset, len)) = free.last() else { return Ok(()) };
        let before = free.slots - len / free.slot_bytes;
        let (reserve, room_slots) = (free.reserve_slots(), std::mem::take(&mut free.room_slots));
        let bytes = |slots: u64| slots.saturating_sub(before) * free.slot_bytes;
        let kept = match kept {
            Kept::Growth if free.is_small => bytes(reserve).max(BLOCK as u64),
            Kept::Growth => bytes(reserve + room_slots).max(growth_bytes(offset)),
            Kept::Room => bytes(reserve + room_slots).max(BLOCK as u64),
            Kept::Reserve => bytes(reserve).max(BLOCK as u64),
        };
        if len <= kept {
            return Ok(());
        }
        self.file.truncate(offset + kept)?;
        free.remove(offset, len);
        free.insert(offset, kept);
        free.file_len = offset + kept;
        Ok(())
    }

    /// Bytes in use, and the length of the file in bytes.
    pub fn usage(&self) -> (u64, u64) {
        let free = self.free.lock();
        let used = free.file_len - free.free_bytes;
        (used.saturating_sub(self.spare_bytes.load(Ordering::Relaxed)), free.file_len)
    }

    /// Grows the file by at least `needed` bytes; by a larger step if the disk has the space and the file is not small.
    fn grow(&self, free: &mut Free, needed: u64) -> Result<()> {
        let end = free.file_len;
        let mut step = if free.is_small { needed } else { growth_bytes(end).max(needed) };
        loop {
            let after = end.checked_add(step).ok_or_else(|| {
                let limit = u64::MAX - end;
                Error::TooLarge { what: "extent", bytes: needed, limit }
            })?;
            match self.file.allocate(end, step) {
                Ok(()) => {
                    free.file_len = after;
                    free.insert_merged(end, step);
                    return Ok(());
                }
                Err(error) if error.is_no_space() => {
                    // Part of the range may have been allocated. If the truncation fails, the extra space is harmless.
                    if let Err(error) = self.file.truncate(end) {
                        tracing::warn!(%error, "could not truncate the data file after a failed extension");
                    }
                    if step == needed {
                        self.is_full.store(true, Ordering::Relaxed);
                        return Err(error.into());
                    }
                    step = (step / 4 / BLOCK as u64 * BLOCK as u64).max(needed);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Free {
    /// True if the data and `bytes` bytes more are so few that one slot is enough for them on a full disk.
    fn is_little(&self, bytes: u64) -> bool {
        self.is_within(bytes, SMALL_BYTES_MAX.min(self.slot_bytes / 2))
    }

    /// True if the data and `bytes` bytes more are shorter than `limit`.
    fn is_within(&self, bytes: u64, limit: u64) -> bool {
        self.data_bytes().saturating_add(bytes) < limit
    }

    /// Bytes in use behind the superblock.
    fn data_bytes(&self) -> u64 {
        (self.file_len - self.free_bytes).saturating_sub(RESERVED_BYTES)
    }

    /// Number of slots of the reserve.
    fn reserve_slots(&self) -> u64 {
        self.reserve_slots_of(self.file_len)
    }

    /// Number of slots of the reserve of a file of `file_len` bytes.
    fn reserve_slots_of(&self, file_len: u64) -> u64 {
        if self.is_small {
            return 1;
        }
        let least = (RESERVE_BYTES_MAX / self.slot_bytes).clamp(2, RESERVE_SLOTS_MIN);
        (file_len / RESERVE_SHARE).min(RESERVE_BYTES_MAX).div_ceil(self.slot_bytes).max(least)
    }

    /// True if [`take`](Self::take) of `len` bytes succeeds and leaves `kept` slots.
    fn leaves(&self, len: u64, kept: u64) -> bool {
        let Some(&(found, _)) = self.by_len.range((len, 0)..).next() else { return false };
        self.slots - found / self.slot_bytes + (found - len) / self.slot_bytes >= kept
    }

    /// Growth of the file in bytes after which there are `slots` slots, and as many more as the reserve has grown by.
    fn growth_to(&self, slots: u64) -> u64 {
        // A slot for the last range, which is not aligned to slots, and one for the rounding of the reserve.
        let needed = (slots.saturating_sub(self.slots) + 2) * self.slot_bytes;
        // The reserve grows by a thirty-second of this.
        (needed + needed / 16).next_multiple_of(BLOCK as u64)
    }

    /// Growth of a small file in bytes after which it ends with `len` bytes and a slot that are free.
    fn growth_by_slot(&self, len: u64) -> u64 {
        let last = self.last().map_or(0, |(_, last)| last);
        (len + self.slot_bytes).saturating_sub(last).max(BLOCK as u64)
    }

    /// Takes `len` bytes from the best-fitting free range and returns their offset; `None` if no range is long enough.
    fn take(&mut self, len: u64) -> Option<u64> {
        let &(found, offset) = self.by_len.range((len, 0)..).next()?;
        self.take_from(offset, found, len);
        Some(offset)
    }

    /// Takes the first `len` bytes of a free range of `found` bytes.
    fn take_from(&mut self, offset: u64, found: u64, len: u64) {
        self.remove(offset, found);
        self.taken_bytes += len;
        if found > len {
            self.insert(offset + len, found - len);
        }
    }

    /// Adds a freed range. Returns false and changes nothing if part of the range is free already, or not in the file.
    fn give_back(&mut self, offset: u64, len: u64) -> bool {
        let inside = len > 0
            && is_aligned(offset)
            && is_aligned(len)
            && offset >= RESERVED_BYTES
            && offset.checked_add(len).is_some_and(|end| end <= self.file_len);
        if !inside {
            return false;
        }
        let before = self.by_offset.range(..offset + len).next_back();
        if before.is_some_and(|(&start, &free)| start + free > offset) {
            return false;
        }
        self.insert_merged(offset, len);
        true
    }

    /// Adds a range that overlaps no free range, and merges it with adjacent ones.
    fn insert_merged(&mut self, mut offset: u64, mut len: u64) {
        if let Some((&start, &free)) = self.by_offset.range(..offset).next_back()
            && start + free == offset
        {
            self.remove(start, free);
            offset = start;
            len += free;
        }
        if let Some(&free) = self.by_offset.get(&(offset + len)) {
            self.remove(offset + len, free);
            len += free;
        }
        self.insert(offset, len);
    }

    fn insert(&mut self, offset: u64, len: u64) {
        assert!(
            len > 0 && is_aligned(offset) && is_aligned(len),
            "free range of {len} bytes at {offset} is not block-aligned"
        );
        let before = self.by_offset.insert(offset, len);
        assert!(before.is_none() && self.by_len.insert((len, offset)), "two free ranges at {offset}");
        self.free_bytes += len;
        self.slots += len / self.slot_bytes;
    }

    fn remove(&mut self, offset: u64, len: u64) {
        let found = self.by_offset.remove(&offset);
        assert!(found == Some(len) && self.by_len.remove(&(len, offset)), "no free range of {len} bytes at {offset}");
        assert!(len <= self.free_bytes, "{len} bytes taken from {} free ones", self.free_bytes);
        self.free_bytes -= len;
        self.slots -= len / self.slot_bytes;
    }

    /// Offset and length of the free range at the end of the file.
    fn last(&self) -> Option<(u64, u64)> {
        let (&offset, &len) = self.by_offset.last_key_value()?;
        (offset + len == self.file_len).then_some((offset, len))
    }
}

fn is_aligned(bytes: u64) -> bool {
    bytes.is_multiple_of(BLOCK as u64)
}

/// Growth step in bytes of a file of `len` bytes.
fn growth_bytes(len: u64) -> u64 {
    let blocks = |bytes: u64| bytes / BLOCK as u64 * BLOCK as u64;
    blocks(len / 2).clamp(*GROWTH_BYTES.start(), *GROWTH_BYTES.end()).max(blocks(len / GROWTH_SHARE))
}

#[cfg(test)]
mod tests;

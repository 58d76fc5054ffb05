//! Free space of the data file. It is not stored but derived: space that no checkpointed or live extent uses is free.
//!
//! Free ranges are kept coalesced in two orders: by offset, to merge neighbours, and by (length, offset), to find the
//! best fit with the lowest offset. All operations but growth are O(log n) in the number of free ranges.
//!
//! Only a checkpoint frees space, so one must be possible on a full disk. Two parts of the free space are reserved for it:
//!
//! - *Slots.* The free space is counted in slots: a free range of `n` bytes has `n / slot_bytes` of them, rounded down. An
//!   allocation of at most `slot_bytes` bytes succeeds if there is a slot, and uses up at most one: if it is taken from a
//!   range of `n` bytes, `(n - len) / slot_bytes >= n / slot_bytes - 1`. A free range that is returned or merged never has
//!   fewer slots than its parts. A reserve of `k` slots is therefore enough for `k` such allocations, however fragmented the
//!   free space is. See [`Purpose`] for the users of the reserve.
//! - *Tables.* A node table is one range of any length, so the ranges for the next two tables are set aside.
//!
//! Invariants: free ranges are block-aligned, not empty, disjoint, not adjacent, and lie between the superblock slots
//! and the end of the file. Freeing a range twice, or a range that was never allocated, is a bug and panics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use keyaki_device::{BLOCK, File};
use parking_lot::Mutex;

use crate::base::{Error, Result};
use crate::pages::RESERVED_BYTES;

/// Minimum growth of the file in bytes, if the disk has the space.
const GROWTH_BYTES_MIN: u64 = 64 << 20;
/// Number of extents for which there is space beside the reserve, so that flushes can rewrite leaves on a full disk.
const WORKING_EXTENTS: u64 = 8;
/// A file with so many times the reserved slots is not full, even if the disk is.
const ROOMY_FACTOR: u64 = 4;
/// Number of ranges that are set aside for node tables. One table is in use, so the next two checkpoints have a range each, and
/// each checkpoint returns the range of the table before.
const TABLES: usize = 2;

/// The purpose of an allocation, which determines how much free space it leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Rows and messages of statements that have not committed: leaves the reserve and the space in which flushes work.
    Load,
    /// Work of flushes that can be postponed, such as the rewriting of leaves: leaves the reserve.
    Flush,
    /// A part of a checkpoint: uses the reserve.
    Checkpoint,
}

/// Allocates and frees block-aligned ranges of the data file: best fit, then lowest offset. Grows the file in large
/// steps. All methods take `&self`.
#[derive(Debug)]
pub struct Space {
    file: Arc<dyn File>,
    /// Slots that are reserved for the next checkpoint.
    reserve: AtomicU64,
    /// Slots that are kept beside the reserve for commits that free space, and those in which flushes work.
    allowance: u64,
    working: u64,
    /// True if the file system refused the last growth step or a part of it.
    is_full: AtomicBool,
    /// Bytes of the range of the newest node table behind the table.
    surplus: AtomicU64,
    free: Mutex<Free>,
}

/// The division of free space into slots.
#[derive(Debug, Clone, Copy)]
pub struct Slots {
    /// Length of a slot in bytes, unless a large message needs longer ones.
    pub slot_bytes: u64,
    /// Number of slots kept for commits that free space.
    pub allowance: u64,
    /// Target length of an extent in bytes.
    pub extent_bytes: u64,
}

/// The free ranges.
#[derive(Debug, Default)]
struct Free {
    /// Offset → length.
    by_offset: BTreeMap<u64, u64>,
    /// (length, offset).
    by_len: BTreeSet<(u64, u64)>,
    free_bytes: u64,
    /// Number of slots in all ranges.
    slots: u64,
    slot_bytes: u64,
    /// (length, offset) of the ranges that are set aside for node tables. They are not among the free ranges.
    tables: Vec<(u64, u64)>,
    file_len: u64,
}

impl Space {
    /// Derives the free space from `used`, the (offset, length) of every range in use behind the superblock slots, in any
    /// order.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a range is empty, not block-aligned, outside the file, or overlaps another one; device
    /// errors.
    pub fn new(file: Arc<dyn File>, mut used: Vec<(u64, u64)>, slots: Slots) -> Result<Space> {
        // A partial block at the end, which this program never writes, is not used.
        let file_len = (file.len()? / BLOCK as u64 * BLOCK as u64).max(RESERVED_BYTES);
        used.sort_unstable();
        let mut free = Free { file_len, slot_bytes: slots.slot_bytes, ..Free::default() };
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
        let working = (WORKING_EXTENTS * slots.extent_bytes).div_ceil(slots.slot_bytes);
        let (reserve, surplus) = (AtomicU64::new(0), AtomicU64::new(0));
        let (is_full, free) = (AtomicBool::new(false), Mutex::new(free));
        Ok(Space { file, reserve, allowance: slots.allowance, working, is_full, surplus, free })
    }

    /// Allocates `len` bytes (a positive multiple of 4096) and returns their offset.
    ///
    /// # Errors
    /// [`Error::DiskFull`] if the file cannot grow, and has no space beyond what the purpose leaves. Nothing changes then.
    pub fn allocate(&self, len: u64, purpose: Purpose) -> Result<u64> {
        assert!(len > 0 && is_aligned(len), "allocation of {len} bytes is not block-aligned");
        let reserve = self.reserve.load(Ordering::Relaxed);
        let left = match purpose {
            Purpose::Load => reserve + self.allowance + self.working,
            Purpose::Flush => reserve + self.allowance,
            Purpose::Checkpoint => 0,
        };
        self.take(&mut self.free.lock(), len, left)
    }

    /// Takes `len` bytes so that at least `left` slots remain, unless the allocation uses up none. Grows the file if necessary.
    fn take(&self, free: &mut Free, len: u64, left: u64) -> Result<u64> {
        if free.slots_without(len).is_none() {
            self.grow(free, len)?;
        }
        let after = free.slots_without(len).unwrap_or(0);
        if after < left && after < free.slots {
            self.extend(free, left - after)?;
        }
        let Some(offset) = free.take(len) else { unreachable!("the file has grown by at least {len} bytes") };
        Ok(offset)
    }

    /// Reserves `slots` slots for the next checkpoint, if `beyond` further ones are free. The file grows if there are
    /// fewer.
    ///
    /// # Errors
    /// [`Error::DiskFull`] if there are fewer, and the file cannot grow. The reserve is not changed then.
    pub fn set_reserve(&self, slots: u64, beyond: u64) -> Result<()> {
        let mut free = self.free.lock();
        let missing = (slots + beyond).saturating_sub(free.slots);
        if missing > 0 {
            self.extend(&mut free, missing)?;
        }
        self.reserve.store(slots, Ordering::Relaxed);
        Ok(())
    }

    /// Slots that are reserved for the next checkpoint.
    pub fn reserve(&self) -> u64 {
        self.reserve.load(Ordering::Relaxed)
    }

    /// Sets the reserve although fewer slots may be free: the messages are there already.
    pub fn force_reserve(&self, slots: u64) {
        self.reserve.store(slots, Ordering::Relaxed);
    }

    /// Slots beside the reserve that commits which add rows leave free.
    pub fn kept_slots(&self) -> u64 {
        self.allowance + self.working
    }

    /// Changes the length of a slot.
    pub fn set_slot_bytes(&self, slot_bytes: u64) {
        assert!(slot_bytes > 0, "slots have at least one byte");
        let mut free = self.free.lock();
        if free.slot_bytes != slot_bytes {
            free.slot_bytes = slot_bytes;
            free.slots = free.by_offset.values().map(|len| len / slot_bytes).sum();
        }
    }

    /// Length of a slot in bytes.
    pub fn slot_bytes(&self) -> u64 {
        self.free.lock().slot_bytes
    }

    /// Sets ranges of at least `len` bytes aside for the next `count` node tables. `left` slots remain free beside the
    /// reserve.
    ///
    /// # Errors
    /// [`Error::DiskFull`].
    pub fn keep_tables(&self, len: u64, count: usize, left: u64) -> Result<()> {
        assert!(count <= TABLES, "{count} node tables");
        let mut free = self.free.lock();
        while free.tables.iter().filter(|(found, _)| *found >= len).count() < count {
            let exact = len.next_multiple_of(BLOCK as u64);
            let left = self.reserve.load(Ordering::Relaxed) + left;
            // With a quarter more, most later tables fit.
            let generous = (exact + exact / 4).next_multiple_of(BLOCK as u64);
            let (taken, offset) = match self.take(&mut free, generous, left) {
                Ok(offset) => (generous, offset),
                Err(Error::DiskFull { .. }) => (exact, self.take(&mut free, exact, left)?),
                Err(error) => return Err(error),
            };
            free.put_table(taken, offset);
        }
        Ok(())
    }

    /// Sets free ranges aside for node tables of `len` bytes, as far as there are long ones. The file does not grow.
    pub fn find_tables(&self, len: u64) {
        let mut free = self.free.lock();
        let len = len.next_multiple_of(BLOCK as u64).max(BLOCK as u64);
        for len in [len + (len / 4).next_multiple_of(BLOCK as u64), len] {
            while free.tables.len() < TABLES
                && let Some(offset) = free.take(len)
            {
                free.put_table(len, offset);
            }
        }
    }

    /// Takes a range that was set aside for a node table of `len` bytes. Returns its offset and its length.
    pub fn take_table(&self, len: u64) -> Option<(u64, u64)> {
        let mut free = self.free.lock();
        let at = free.tables.iter().position(|(found, _)| *found >= len)?;
        let (len, offset) = free.tables.remove(at);
        Some((offset, len))
    }

    /// Sets the range of a node table aside that is no longer needed.
    pub fn return_table(&self, offset: u64, len: u64) {
        self.free.lock().put_table(len, offset);
    }

    /// Changes the bytes in the range of the newest node table behind the table.
    pub fn set_surplus(&self, bytes: u64) {
        self.surplus.store(bytes, Ordering::Relaxed);
    }

    /// True if the file system has refused a growth of the file since the file last grew.
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Frees a range.
    ///
    /// # Panics
    /// If the range, or part of it, is free already or outside the file.
    pub fn free(&self, offset: u64, len: u64) {
        let sound = self.free.lock().give_back(offset, len);
        assert!(sound, "{len} bytes at {offset} were freed twice or never allocated");
    }

    /// Returns free space at the end of the file to the file system, except for the reserve and, unless the disk is full, one
    /// growth step.
    pub fn trim(&self, is_full: bool) -> Result<()> {
        let reserve = self.reserve.load(Ordering::Relaxed) + self.allowance + self.working;
        let mut free = self.free.lock();
        if free.slots > ROOMY_FACTOR * reserve {
            self.is_full.store(false, Ordering::Relaxed);
        }
        let Some((offset, len)) = free.last() else { return Ok(()) };
        let others = free.slots - len / free.slot_bytes;
        let missing = (reserve.saturating_sub(others) * free.slot_bytes).next_multiple_of(BLOCK as u64);
        let kept = if is_full { missing.max(BLOCK as u64) } else { missing.max(growth_bytes(offset)) };
        if len <= kept {
            return Ok(());
        }
        self.file.truncate(offset + kept)?;
        free.remove(offset, len);
        free.insert(offset, kept);
        free.file_len = offset + kept;
        Ok(())
    }

    /// Bytes in use without the ranges that are set aside, and the length of the file in bytes.
    pub fn usage(&self) -> (u64, u64) {
        let free = self.free.lock();
        let tables: u64 = free.tables.iter().map(|(len, _)| len).sum();
        let kept = tables + self.surplus.load(Ordering::Relaxed);
        (free.file_len - free.free_bytes - kept, free.file_len)
    }

    /// Grows the file until its last free range has at least `len` bytes; by a larger step if the disk has the space.
    fn grow(&self, free: &mut Free, len: u64) -> Result<()> {
        let at_end = free.last().map_or(0, |(_, len)| len);
        // `allocate` found no free range of `len` bytes, so `needed` is positive.
        let needed = len - at_end.min(len);
        self.grow_by(free, needed)
    }

    /// Grows the file until there are at least `missing` more slots.
    fn extend(&self, free: &mut Free, missing: u64) -> Result<()> {
        let needed = missing.checked_mul(free.slot_bytes).map(|bytes| bytes.next_multiple_of(BLOCK as u64));
        let Some(needed) = needed else {
            return Err(Error::TooLarge { what: "reserve", bytes: u64::MAX, limit: u64::MAX / free.slot_bytes });
        };
        self.grow_by(free, needed)
    }

    /// Grows the file by at least `needed` bytes.
    fn grow_by(&self, free: &mut Free, needed: u64) -> Result<()> {
        let end = free.file_len;
        let mut step = growth_bytes(end).max(needed);
        let mut shortened = false;
        loop {
            let after = end.checked_add(step).ok_or_else(|| {
                let limit = u64::MAX - end;
                Error::TooLarge { what: "extent", bytes: needed, limit }
            })?;
            match self.file.allocate(end, step) {
                Ok(()) => {
                    free.file_len = after;
                    free.insert_merged(end, step);
                    self.is_full.store(shortened, Ordering::Relaxed);
                    return Ok(());
                }
                Err(error) if error.is_no_space() => {
                    // Part of the range may have been allocated. If the truncation fails, the extra space is harmless.
                    if let Err(error) = self.file.truncate(end) {
                        tracing::warn!(%error, "could not truncate the data file after a failed extension");
                    }
                    shortened = true;
                    self.is_full.store(true, Ordering::Relaxed);
                    if step == needed {
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
    /// The number of slots after [`take`](Self::take) of `len` bytes; `None` if no range is long enough.
    fn slots_without(&self, len: u64) -> Option<u64> {
        let &(found, _) = self.by_len.range((len, 0)..).next()?;
        Some(self.slots - found / self.slot_bytes + (found - len) / self.slot_bytes)
    }

    /// Sets a range aside, and frees the shortest one if there are too many. The ranges are ordered by length.
    fn put_table(&mut self, len: u64, offset: u64) {
        self.tables.push((len, offset));
        self.tables.sort_unstable();
        while self.tables.len() > TABLES {
            let (len, offset) = self.tables.remove(0);
            assert!(self.give_back(offset, len), "a range set aside was free: {len} bytes at {offset}");
        }
    }

    /// Takes `len` bytes from the best-fitting free range and returns their offset; `None` if no range is long enough.
    fn take(&mut self, len: u64) -> Option<u64> {
        let &(found, offset) = self.by_len.range((len, 0)..).next()?;
        self.remove(offset, found);
        if found > len {
            self.insert(offset + len, found - len);
        }
        Some(offset)
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
    GROWTH_BYTES_MIN.max(len / 8 / BLOCK as u64 * BLOCK as u64)
}

#[cfg(test)]
mod tests;

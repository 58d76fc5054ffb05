//! Free space of the data file. It is not stored but derived: space that no checkpointed or live extent uses is free.
//!
//! Free ranges are kept coalesced in two orders: by offset, to merge neighbours, and by (length, offset), to find the
//! best fit with the lowest offset. All operations but growth are O(log n) in the number of free ranges.
//!
//! Invariants: free ranges are block-aligned, not empty, disjoint, not adjacent, and lie between the superblock slots
//! and the end of the file. Freeing a range twice, or a range that was never allocated, is a bug and panics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use keyaki_device::{BLOCK, File};
use parking_lot::Mutex;

use crate::base::{Error, Result};
use crate::pages::RESERVED_BYTES;

/// Minimum growth of the file in bytes, if the disk has the space.
const GROWTH_BYTES_MIN: u64 = 64 << 20;

/// Allocates and frees block-aligned ranges of the data file: best fit, then lowest offset. Grows the file in large
/// steps. All methods take `&self`.
#[derive(Debug)]
pub struct Space {
    file: Arc<dyn File>,
    free: Mutex<Free>,
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
}

impl Space {
    /// Derives the free space from `used`, the (offset, length) of every range in use behind the superblock slots, in any
    /// order.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a range is empty, not block-aligned, outside the file, or overlaps another one; device
    /// errors.
    pub fn new(file: Arc<dyn File>, mut used: Vec<(u64, u64)>) -> Result<Space> {
        // A partial block at the end, which this program never writes, is not used.
        let file_len = (file.len()? / BLOCK as u64 * BLOCK as u64).max(RESERVED_BYTES);
        used.sort_unstable();
        let mut free = Free { file_len, ..Free::default() };
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
        Ok(Space { file, free: Mutex::new(free) })
    }

    /// Allocates `len` bytes (a positive multiple of 4096) and returns their offset.
    ///
    /// # Errors
    /// [`Error::DiskFull`] if the file cannot grow. Nothing changes then.
    pub fn allocate(&self, len: u64) -> Result<u64> {
        assert!(len > 0 && is_aligned(len), "allocation of {len} bytes is not block-aligned");
        let mut free = self.free.lock();
        if let Some(offset) = free.take(len) {
            return Ok(offset);
        }
        self.grow(&mut free, len)?;
        let Some(offset) = free.take(len) else { unreachable!("the file has grown by at least {len} bytes") };
        Ok(offset)
    }

    /// Frees a range.
    ///
    /// # Panics
    /// If the range, or part of it, is free already or outside the file.
    pub fn free(&self, offset: u64, len: u64) {
        let sound = self.free.lock().give_back(offset, len);
        assert!(sound, "{len} bytes at {offset} were freed twice or never allocated");
    }

    /// Returns free space at the end of the file to the file system, except for one growth step.
    pub fn trim(&self) -> Result<()> {
        let mut free = self.free.lock();
        let Some((offset, len)) = free.last() else { return Ok(()) };
        let kept = growth_bytes(offset);
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
        (free.file_len - free.free_bytes, free.file_len)
    }

    /// Grows the file until its last free range has at least `len` bytes; by a larger step if the disk has the space.
    fn grow(&self, free: &mut Free, len: u64) -> Result<()> {
        let end = free.file_len;
        let at_end = free.last().map_or(0, |(_, len)| len);
        // `allocate` found no free range of `len` bytes, so `needed` is positive.
        let needed = len - at_end.min(len);
        let mut step = growth_bytes(end).max(needed);
        loop {
            let after = end.checked_add(step).ok_or_else(|| {
                let limit = u64::MAX - end;
                Error::TooLarge { what: "extent", bytes: len, limit }
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
    }

    fn remove(&mut self, offset: u64, len: u64) {
        let found = self.by_offset.remove(&offset);
        assert!(found == Some(len) && self.by_len.remove(&(len, offset)), "no free range of {len} bytes at {offset}");
        assert!(len <= self.free_bytes, "{len} bytes taken from {} free ones", self.free_bytes);
        self.free_bytes -= len;
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

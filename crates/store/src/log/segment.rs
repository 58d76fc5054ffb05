//! Segment files: creation, extension, truncation of a torn tail, removal.
//!
//! A segment is created from the spare segment, a file with a name of its own that keeps space on a full disk. A
//! segment that is no longer needed becomes the spare one. Its old groups are invalid in another segment, because a
//! header has the number of its segment.
//!
//! Invariants: segment n + 1 is created only after segment n, its opening group and its directory entry are durable, and
//! no other group is written to a segment before its opening group is durable.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use keyaki_device::{BLOCK, Buffer, Device, File, OpenMode};

use super::format::{GroupHeader, HEADER_BYTES, parse_segment_name, segment_name};
use super::state::{MARK_BYTES, Tail};
use crate::base::{Error, Result};

/// Length of a segment in bytes, if the disk has the space. Tests use short segments so that logs have many.
pub(super) const SEGMENT_BYTES: u64 = if cfg!(test) { 128 << 10 } else { 64 << 20 };
/// Length of a segment in bytes if the disk is nearly full.
pub(super) const SMALL_SEGMENT_BYTES: u64 = if cfg!(test) { SEGMENT_BYTES / 4 } else { SEGMENT_BYTES / 16 };
/// The file name of the spare segment.
pub(super) const SPARE_NAME: &str = "log.spare";

const _: () = {
    assert!(SEGMENT_BYTES.is_multiple_of(BLOCK as u64) && SMALL_SEGMENT_BYTES.is_multiple_of(BLOCK as u64));
    assert!(SMALL_SEGMENT_BYTES >= 2 * BLOCK as u64 + MARK_BYTES, "an opening group, another one, and a mark");
};

/// A file without records that becomes the next segment.
#[derive(Debug)]
pub(super) struct Spare {
    file: Arc<dyn File>,
    /// Bytes allocated.
    capacity: u64,
    /// Bytes that were written before, so that a sync of further writes to them needs no metadata.
    written_to: u64,
}

impl Spare {
    /// True if it has the length of a segment.
    pub(super) fn is_long(&self) -> bool {
        self.capacity >= SEGMENT_BYTES
    }

    /// Gives back the space that a closed log does not need.
    pub(super) fn shorten(self) -> Result<()> {
        if self.capacity > SMALL_SEGMENT_BYTES {
            self.file.truncate(SMALL_SEGMENT_BYTES)?;
        }
        Ok(())
    }
}

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

    fn spare_path(&self) -> PathBuf {
        self.dir.join(SPARE_NAME)
    }

    /// True if there is a spare segment.
    pub(super) fn has_spare(&self) -> Result<bool> {
        Ok(self.device.exists(&self.spare_path())?)
    }

    /// The spare segment that an earlier process has left, or a new one. `None` if the disk has no space for it.
    pub(super) fn recover_spare(&self) -> Result<Option<Spare>> {
        let spare = if self.device.exists(&self.spare_path())? {
            let file = self.device.open(&self.spare_path(), OpenMode::ReadWrite)?;
            let len = file.len()? / BLOCK as u64 * BLOCK as u64;
            if len >= SMALL_SEGMENT_BYTES && is_allocated(&*file, len)? {
                // A crash may have undone the creation of a segment after its opening group was written.
                file.write_at(0, &Buffer::zeroed(BLOCK))?;
                file.sync_data()?;
                Ok(Spare { file, capacity: len, written_to: 0 })
            } else {
                file.truncate(0)?;
                self.allocate_spare(file)
            }
        } else {
            self.create_spare()
        };
        spare.map(Some).or_else(|error| if matches!(error, Error::DiskFull { .. }) { Ok(None) } else { Err(error) })
    }

    /// Creates the spare segment.
    ///
    /// # Errors
    /// [`Error::DiskFull`], other device errors. There is no spare segment then.
    pub(super) fn create_spare(&self) -> Result<Spare> {
        let path = self.spare_path();
        if self.device.exists(&path)? {
            self.device.remove(&path)?;
        }
        self.allocate_spare(self.device.open(&path, OpenMode::CreateNew)?)
    }

    fn allocate_spare(&self, file: Arc<dyn File>) -> Result<Spare> {
        match file.allocate(0, SMALL_SEGMENT_BYTES) {
            Ok(()) => Ok(Spare { file, capacity: SMALL_SEGMENT_BYTES, written_to: 0 }),
            Err(error) => {
                drop(file);
                self.device.remove(&self.spare_path())?;
                Err(error.into())
            }
        }
    }

    /// Makes `spare` segment `number`, with its opening group and space for a group of `needed` bytes. `next_sequence`
    /// is the sequence number of its first record. The segment is durable on return.
    ///
    /// # Errors
    /// [`Error::DiskFull`] if the segment has no space for the group; other device errors. The spare segment is
    /// returned if it can be used again.
    pub(super) fn create(
        &self,
        mut spare: Spare,
        number: u64,
        next_sequence: u64,
        synced_through: u64,
        needed: u64,
    ) -> std::result::Result<Tail, (Error, Option<Spare>)> {
        assert!(needed.is_multiple_of(BLOCK as u64), "group of {needed} bytes is not block-aligned");
        if let Err(error) = extend(&mut spare, needed + BLOCK as u64) {
            return Err((error, Some(spare)));
        }
        let Spare { file: unnamed, capacity, written_to } = spare;
        drop(unnamed);
        let open = || {
            let path = self.path(number);
            self.device.rename(&self.spare_path(), &path)?;
            let file = self.device.open(&path, OpenMode::ReadWrite)?;
            file.write_at(0, &empty_group(self.log_id, number, 0, next_sequence, synced_through))?;
            file.sync_data()?;
            self.device.sync_dir(&self.dir)?;
            Ok(file)
        };
        match open() {
            Ok(file) => {
                Ok(Tail { number, file, capacity, offset: BLOCK as u64, written_to: written_to.max(BLOCK as u64) })
            }
            Err(error) => Err((self.abandon(number, error), None)),
        }
    }

    /// Removes a segment that was not completed. Returns the error that the log reports.
    fn abandon(&self, number: u64, error: Error) -> Error {
        let path = self.path(number);
        match self.device.exists(&path).and_then(|exists| if exists { self.device.remove(&path) } else { Ok(()) }) {
            Ok(()) => error,
            Err(removal) => {
                tracing::warn!(%error, "could not complete a log segment");
                removal.into()
            }
        }
    }

    /// Removes the segments before `number`, oldest first, except the last one, which it returns.
    pub(super) fn remove_all_but_last(&self, number: u64) -> Result<Option<u64>> {
        let old: Vec<u64> = LogSegments::list(&*self.device, &self.dir)?.into_iter().filter(|&n| n < number).collect();
        let Some((&last, others)) = old.split_last() else { return Ok(None) };
        for &segment in others {
            self.device.remove(&self.path(segment))?;
        }
        Ok(Some(last))
    }

    pub(super) fn sync_dir(&self) -> Result<()> {
        Ok(self.device.sync_dir(&self.dir)?)
    }

    /// Makes a segment the spare one if there is none, or a shorter one, and removes it otherwise. Its space is never free
    /// for other files in between.
    pub(super) fn recycle(&self, segment: u64, spare: Option<Spare>) -> Result<Option<Spare>> {
        let path = self.path(segment);
        let file = self.device.open(&path, OpenMode::ReadWrite)?;
        let len = file.len()? / BLOCK as u64 * BLOCK as u64;
        let needed = spare.as_ref().map_or(SMALL_SEGMENT_BYTES, |spare| spare.capacity + 1);
        if len < needed || !is_allocated(&*file, len)? {
            drop(file);
            self.device.remove(&path)?;
            return Ok(spare);
        }
        drop((spare, file));
        self.device.rename(&path, &self.spare_path())?;
        let file = self.device.open(&self.spare_path(), OpenMode::ReadWrite)?;
        if len > SEGMENT_BYTES {
            file.truncate(SEGMENT_BYTES)?;
        }
        let capacity = len.min(SEGMENT_BYTES);
        Ok(Some(Spare { file, capacity, written_to: capacity }))
    }
}

/// Makes sure that all of a file of `len` bytes is allocated: a crash may have undone a part of the allocation. Returns
/// false if the disk has no space for it.
fn is_allocated(file: &dyn File, len: u64) -> Result<bool> {
    match file.allocate(0, len) {
        Ok(()) => Ok(true),
        Err(error) if error.is_no_space() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Length of a segment that ends at `offset`, with the allocated space behind it.
pub(super) fn capacity_of(file: &dyn File, offset: u64) -> Result<u64> {
    let len = file.len()? / BLOCK as u64 * BLOCK as u64;
    if len <= offset || is_allocated(file, len)? {
        return Ok(len.max(offset));
    }
    file.truncate(offset)?;
    Ok(offset)
}

/// Extends a spare segment to the length of a segment, or at least to `needed` bytes.
fn extend(spare: &mut Spare, needed: u64) -> Result<()> {
    let missing = needed.saturating_sub(spare.capacity);
    if missing == 0 && spare.is_long() {
        return Ok(());
    }
    match spare.file.allocate(spare.capacity, SEGMENT_BYTES.max(needed) - spare.capacity) {
        Ok(()) => spare.capacity = SEGMENT_BYTES.max(needed),
        Err(error) if error.is_no_space() => {
            // Part of the range may have been allocated.
            spare.file.truncate(spare.capacity)?;
            if missing > 0 {
                spare.file.allocate(spare.capacity, missing)?;
                spare.capacity = needed;
            }
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
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

/// Ends a segment at `offset`, durably: overwrites the group headers at the offsets `stale` with zeros and, if
/// `truncates`, truncates the file, except for the space that makes it the spare segment later.
pub(super) fn cut_tail(file: &dyn File, offset: u64, stale: &[u64], truncates: bool) -> Result<()> {
    let zeros = Buffer::zeroed(BLOCK);
    for &header in stale {
        file.write_at(header, &zeros)?;
    }
    if !stale.is_empty() {
        file.sync_data()?;
    }
    let kept = offset.max(SMALL_SEGMENT_BYTES);
    if truncates && file.len()? > kept {
        file.truncate(kept)?;
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

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
use keyaki_primitives::sync::atomic::{AtomicBool, Ordering};

use super::format::{GroupHeader, HEADER_BYTES, parse_segment_name, segment_name};
use super::state::{MARK_BYTES, Tail};
use crate::base::{Error, Result};

/// Length of a segment in bytes, if the disk has the space and the log is not short. Tests use short segments so that logs
/// have many.
pub(super) const SEGMENT_BYTES: u64 = if cfg!(test) { 128 << 10 } else { 64 << 20 };
/// Length of a segment in bytes if the disk is nearly full.
const SMALL_SEGMENT_BYTES: u64 = if cfg!(test) { SEGMENT_BYTES / 4 } else { SEGMENT_BYTES / 16 };
/// Length of the first segment and of the spare segment of a short log in bytes.
const SHORT_SEGMENT_BYTES: u64 = if cfg!(test) { SMALL_SEGMENT_BYTES / 2 } else { 128 << 10 };
/// The file name of the spare segment.
pub(super) const SPARE_NAME: &str = "log.spare";

const _: () = {
    assert!(SEGMENT_BYTES.is_multiple_of(BLOCK as u64) && SMALL_SEGMENT_BYTES.is_multiple_of(BLOCK as u64));
    assert!(SHORT_SEGMENT_BYTES.is_multiple_of(BLOCK as u64) && SHORT_SEGMENT_BYTES < SMALL_SEGMENT_BYTES);
    assert!(SHORT_SEGMENT_BYTES >= 2 * BLOCK as u64 + MARK_BYTES, "an opening group, another one, and a mark");
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

    /// True if it has at least `len` bytes.
    pub(super) fn has(&self, len: u64) -> bool {
        self.capacity >= len
    }

    /// Gives back all but `kept` bytes.
    pub(super) fn shorten(self, kept: u64) -> Result<()> {
        if self.capacity > kept {
            self.file.truncate(kept)?;
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
    /// True while the database is small: the first segments and the spare one are short, and take little space.
    is_short: AtomicBool,
}

impl LogSegments {
    pub(super) fn new(device: Arc<dyn Device>, dir: &Path, log_id: u64, is_short: bool) -> LogSegments {
        LogSegments { device, dir: dir.to_path_buf(), log_id, is_short: AtomicBool::new(is_short) }
    }

    /// Length of the spare segment in bytes, and of segments if the disk is nearly full.
    pub(super) fn spare_bytes(&self) -> u64 {
        if self.is_short() { SHORT_SEGMENT_BYTES } else { SMALL_SEGMENT_BYTES }
    }

    /// True while segments are short.
    pub(super) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    pub(super) fn set_short(&self, is_short: bool) {
        self.is_short.store(is_short, Ordering::Relaxed);
    }

    /// Length in bytes of the segment after `tail`, if the disk has the space. In a short log it is twice as long as a used one,
    /// so that many commits to a small database start few segments.
    pub(super) fn bytes_after(&self, tail: Option<&Tail>) -> u64 {
        if !self.is_short() {
            return SEGMENT_BYTES;
        }
        let double = |tail: &Tail| if tail.offset > tail.capacity / 2 { 2 * tail.capacity } else { tail.capacity };
        tail.map_or(0, double).clamp(SHORT_SEGMENT_BYTES, SEGMENT_BYTES)
    }

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
            if len >= SHORT_SEGMENT_BYTES && is_allocated(&*file, len)? {
                // A crash may have undone the creation of a segment after its opening group was written.
                file.write_at(0, &Buffer::zeroed(BLOCK))?;
                file.sync_data()?;
                let mut spare = Spare { file, capacity: len, written_to: 0 };
                extend(&mut spare, self.spare_bytes(), len).map(|()| spare)
            } else {
                file.truncate(0)?;
                self.allocate_spare(file)
            }
        } else {
            self.create_spare()
        };
        spare.map(Some).or_else(|error| if matches!(error, Error::DiskFull { .. }) { Ok(None) } else { Err(error) })
    }

    /// Makes sure that the spare segment has its length: extends `spare`, or creates one.
    ///
    /// # Errors
    /// [`Error::DiskFull`], other device errors, with the spare segment that there is.
    pub(super) fn provide_spare(&self, spare: Option<Spare>) -> std::result::Result<Spare, (Error, Option<Spare>)> {
        let Some(mut spare) = spare else { return self.create_spare().map_err(|error| (error, None)) };
        let len = self.spare_bytes();
        match extend(&mut spare, len, len) {
            Ok(()) => Ok(spare),
            Err(error) => Err((error, Some(spare))),
        }
    }

    /// Creates the spare segment.
    ///
    /// # Errors
    /// [`Error::DiskFull`], other device errors. There is no spare segment then.
    fn create_spare(&self) -> Result<Spare> {
        let path = self.spare_path();
        if self.device.exists(&path)? {
            self.device.remove(&path)?;
        }
        self.allocate_spare(self.device.open(&path, OpenMode::CreateNew)?)
    }

    fn allocate_spare(&self, file: Arc<dyn File>) -> Result<Spare> {
        let capacity = self.spare_bytes();
        match file.allocate(0, capacity) {
            Ok(()) => Ok(Spare { file, capacity, written_to: 0 }),
            Err(error) => {
                drop(file);
                self.device.remove(&self.spare_path())?;
                Err(error.into())
            }
        }
    }

    /// Makes `spare` segment `number`, with its opening group and space for a group of `needed` bytes, and with `len` bytes
    /// if the disk has the space. `next_sequence` is the sequence number of its first record. The segment is durable on
    /// return.
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
        len: u64,
        needed: u64,
    ) -> std::result::Result<Tail, (Error, Option<Spare>)> {
        assert!(needed.is_multiple_of(BLOCK as u64), "group of {needed} bytes is not block-aligned");
        if let Err(error) = extend(&mut spare, len, needed + BLOCK as u64) {
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
        let needed = spare.as_ref().map_or(SHORT_SEGMENT_BYTES, |spare| spare.capacity + 1);
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

/// Extends a spare segment to `len` bytes, or at least to `needed` bytes.
fn extend(spare: &mut Spare, len: u64, needed: u64) -> Result<()> {
    let (len, missing) = (len.max(needed), needed.saturating_sub(spare.capacity));
    if spare.has(len) {
        return Ok(());
    }
    let from = spare.capacity;
    spare.capacity = match extend_file(&*spare.file, from, len) {
        Ok(()) => len,
        Err(Error::DiskFull { .. }) if needed < len => {
            if missing > 0 {
                extend_file(&*spare.file, from, needed)?;
            }
            from.max(needed)
        }
        Err(error) => return Err(error),
    };
    Ok(())
}

/// Extends a file from `from` to `len` bytes.
pub(super) fn extend_file(file: &dyn File, from: u64, len: u64) -> Result<()> {
    file.allocate(from, len - from).or_else(|error| {
        if error.is_no_space() {
            // Part of the range may have been allocated.
            file.truncate(from)?;
        }
        Err(error.into())
    })
}

/// Allocates at least `needed` bytes from offset `from` on, and more, up to one of the lengths `ends`, if the disk has the
/// space. Returns the new length of the file.
pub(super) fn allocate(file: &dyn File, ends: [u64; 2], from: u64, needed: u64) -> Result<u64> {
    for end in ends {
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

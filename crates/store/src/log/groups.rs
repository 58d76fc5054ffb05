//! The stream of groups in the segments of a log, as it is read.
//!
//! A group belongs to the stream if its header and its records are valid, and its first record is the next one. The
//! stream ends at the first place where there is no such group.

use std::path::Path;
use std::sync::Arc;

use keyaki_device::{BLOCK, Buffer, Device, File, OpenMode};

use super::LogPosition;
use super::format::{GroupHeader, HEADER_BYTES, NoHeader, split_record};
use super::segment::LogSegments;
use crate::base::{Error, FORMAT_VERSION, Result};

/// Maximum number of bytes read at a time, unless a group is longer.
const WINDOW_BYTES: u64 = 4 << 20;

/// The state of a reader of the stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub segments: LogSegments,
    pub log_id: Option<u64>,
    /// Records before this one are in the checkpoint.
    pub first: u64,
    /// The next sequence number, once the first group was read.
    pub expected: Option<u64>,
}

/// The reason why the stream of records ends.
#[derive(Debug)]
pub(super) enum Stop {
    /// The segment ends, or was never written from here on.
    End,
    /// The bytes are not the next group of the stream.
    Unsound(String),
}

pub(super) fn damaged(path: &Path, offset: u64, detail: String) -> Error {
    Error::Corrupt { path: path.to_path_buf(), what: "log", offset: Some(offset), detail }
}

impl Stream {
    /// The stream of the records from `first` on.
    pub(super) fn new(device: &Arc<dyn Device>, dir: &Path, first: u64) -> Stream {
        let segments = LogSegments::new(device.clone(), dir, 0, false);
        Stream { segments, log_id: None, first, expected: None }
    }

    /// The header and the body of the next group, if there is one at `offset`.
    ///
    /// # Errors
    /// [`Error::FormatVersion`] for a header of another version, device errors.
    pub(super) fn next<'r>(
        &mut self,
        reader: &'r mut Reader,
        offset: u64,
    ) -> Result<std::result::Result<(GroupHeader, &'r [u8]), Stop>> {
        let header = match reader.header(offset)? {
            Ok(header) => header,
            Err(NoHeader::Empty) => return Ok(Err(Stop::End)),
            Err(NoHeader::Unsound) => return Ok(Err(Stop::Unsound("no valid group header".into()))),
            Err(NoHeader::Version(found)) => {
                let path = reader.file.path().to_path_buf();
                return Err(Error::FormatVersion { path, found, supported: FORMAT_VERSION });
            }
        };
        if let Err(detail) = self.continues(&header) {
            return Ok(Err(Stop::Unsound(detail)));
        }
        let Some(bytes) = reader.bytes(offset, HEADER_BYTES as u64 + header.body_len)? else {
            return Ok(Err(Stop::Unsound("the segment ends inside the group".into())));
        };
        let body = &bytes[HEADER_BYTES..];
        if crc32c::crc32c(body) != header.body_crc || !well_formed(&header, body) {
            return Ok(Err(Stop::Unsound("the checksum or a record of the group is wrong".into())));
        }
        self.log_id = Some(header.log_id);
        self.expected = header.next_sequence();
        Ok(Ok((header, body)))
    }

    /// Checks that a group is the next one of the stream.
    fn continues(&self, header: &GroupHeader) -> std::result::Result<(), String> {
        if self.log_id.is_some_and(|id| id != header.log_id) {
            return Err("a group of another log".into());
        }
        let found = header.first_sequence;
        let expected = self.expected.unwrap_or(self.first);
        // Records that the checkpoint contains may be missing.
        if Some(found) == self.expected || (found <= self.first && self.expected.is_none_or(|next| next < found)) {
            Ok(())
        } else {
            Err(format!("a group begins with record {found} instead of {expected}"))
        }
    }

    /// Searches behind the end of the stream for a group header which proves that a missing record was durable; this is
    /// damage. Returns the offsets of the group headers in the rest of the segment in which the stream ends.
    pub(super) fn check_end(
        &self,
        from: LogPosition,
        numbers: &[u64],
        index: usize,
        offset: u64,
        stop: &Stop,
    ) -> Result<Vec<u64>> {
        let path = self.segments.path(numbers[index]);
        let missing = self.missing();
        let detail = match stop {
            Stop::End => "the log ends here",
            Stop::Unsound(detail) => detail.as_str(),
        };
        if self.expected.is_none() && from != LogPosition::default() {
            return Err(damaged(
                &path,
                offset,
                format!("{detail}, but the checkpoint expects the log to continue here"),
            ));
        }
        let mut stale = Vec::new();
        for (at, &number) in numbers.iter().enumerate().skip(index) {
            let mut reader = Reader::open(&self.segments, number)?;
            let last = at + 1 == numbers.len();
            let opened = matches!(reader.header(0)?, Ok(header) if self.is_ours(&header));
            if (!last && !opened) || (opened && self.expected.is_none()) {
                let detail = "invalid opening group".into();
                return Err(damaged(reader.file.path(), 0, detail));
            }
            let headers = self.find_headers(&mut reader, if at == index { offset } else { 0 })?;
            // Without a valid opening group, every other group proves damage: the opening group was durable before it.
            if let Some((witness, _)) = headers.iter().find(|(_, synced)| *synced >= missing || !opened) {
                let file = reader.file.path().display();
                let detail = format!(
                    "{detail}, but the group at offset {witness} of {file} proves that record {missing} was durable"
                );
                return Err(damaged(&path, offset, detail));
            }
            if at == index {
                stale = headers.into_iter().map(|(offset, _)| offset).collect();
            }
        }
        Ok(stale)
    }

    /// Returns the offset and the `synced_through` of each valid group header from `start` on.
    fn find_headers(&self, reader: &mut Reader, start: u64) -> Result<Vec<(u64, u64)>> {
        let mut found = Vec::new();
        for offset in (start..reader.len).step_by(BLOCK) {
            if let Ok(header) = reader.header(offset)?
                && self.is_ours(&header)
            {
                found.push((offset, header.synced_through));
            }
        }
        Ok(found)
    }

    /// Sequence number of the first record that was not found.
    pub(super) fn missing(&self) -> u64 {
        self.expected.map_or(self.first, |expected| expected.max(self.first))
    }

    /// The error for a segment that does not exist.
    pub(super) fn missing_segment(&self, number: u64) -> Error {
        damaged(&self.segments.path(number), 0, "the segment is missing".into())
    }

    /// True unless the header belongs to another log.
    pub(super) fn is_ours(&self, header: &GroupHeader) -> bool {
        self.log_id.is_none_or(|id| id == header.log_id)
    }
}

/// Returns true if the body consists of the records that the header declares.
fn well_formed(header: &GroupHeader, mut body: &[u8]) -> bool {
    for (expected, _) in (header.first_sequence..).zip(0..header.count) {
        match split_record(body) {
            Some((sequence, _, rest)) if sequence == expected => body = rest,
            _ => return false,
        }
    }
    body.is_empty()
}

/// Reads a segment in large pieces.
#[derive(Debug)]
pub(super) struct Reader {
    pub file: Arc<dyn File>,
    number: u64,
    /// Length in bytes, whole blocks.
    pub len: u64,
    /// Bytes read at a time, unless a group is longer.
    window_bytes: u64,
    window: Buffer,
    start: u64,
}

impl Reader {
    pub(super) fn open(segments: &LogSegments, number: u64) -> Result<Reader> {
        let file = segments.device.open(&segments.path(number), OpenMode::Read)?;
        let len = file.len()? / BLOCK as u64 * BLOCK as u64;
        Ok(Reader { file, number, len, window_bytes: WINDOW_BYTES, window: Buffer::zeroed(0), start: 0 })
    }

    /// Forgets the bytes that were read, for a segment that is written meanwhile. The next reads are short at first.
    pub(super) fn refresh(&mut self) -> Result<()> {
        self.len = self.file.len()? / BLOCK as u64 * BLOCK as u64;
        (self.window_bytes, self.window) = (BLOCK as u64, Buffer::zeroed(0));
        Ok(())
    }

    /// The group header at `offset` (a multiple of the block length).
    pub(super) fn header(&mut self, offset: u64) -> Result<std::result::Result<GroupHeader, NoHeader>> {
        let number = self.number;
        Ok(match self.bytes(offset, HEADER_BYTES as u64)? {
            Some(bytes) => GroupHeader::decode(bytes, number, offset),
            None => Err(NoHeader::Empty),
        })
    }

    /// `len` bytes from `offset` (a multiple of the block length) on; `None` if the segment ends before.
    pub(super) fn bytes(&mut self, offset: u64, len: u64) -> Result<Option<&[u8]>> {
        let Some(end) = offset.checked_add(len).filter(|&end| end <= self.len) else { return Ok(None) };
        if offset < self.start || end > self.start + self.window.len() as u64 {
            let wanted = len.next_multiple_of(BLOCK as u64).max(self.window_bytes).min(self.len - offset);
            self.window_bytes = (self.window_bytes * 4).min(WINDOW_BYTES);
            if self.window.len() as u64 != wanted {
                self.window = Buffer::zeroed(wanted as usize);
            }
            let needed = len.next_multiple_of(BLOCK as u64).min(self.len - offset);
            let mut read = self.file.read_at(offset, &mut self.window);
            if read.is_err() && needed < wanted {
                // A block after the needed ones may be unreadable.
                self.window = Buffer::zeroed(needed as usize);
                read = self.file.read_at(offset, &mut self.window);
            }
            if let Err(error) = read {
                self.window = Buffer::zeroed(0);
                return Err(error.into());
            }
            self.start = offset;
        }
        let at = (offset - self.start) as usize;
        Ok(Some(&self.window[at..at + len as usize]))
    }
}

//! Reading the log when a store is opened.
//!
//! Groups are read in order as long as they are sound and their sequence numbers continue without a gap. Where that ends,
//! either the newest writes were torn by a crash before they were acknowledged, or acknowledged data is damaged. Every
//! group tells what was durable when it was written (`synced_through`), and a segment's opening group is durable before
//! anything else is written there; so each sound group header found later is a witness. If a witness says that a missing
//! record was durable, that is damage and an error. Otherwise what follows is a torn tail, which was never acknowledged:
//! it is cut off, durably, before anything new is written.
//!
//! The newest groups may have been read from a cache and not be on the medium, after the death of the process alone; after
//! a failed sync not even a later one need bring them there. So groups that no other one testifies to are written again,
//! the same bytes to the same place, and synced.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use keyaki_device::{BLOCK, Buffer, Device, File, OpenMode};

use super::LogPosition;
use super::format::{GroupHeader, HEADER_BYTES, NoHeader, split_record};
use super::segment::{Segments, cut_tail};
use super::state::Tail;
use crate::base::{Error, FORMAT_VERSION, Result};

/// Bytes read at a time.
const WINDOW_BYTES: usize = 4 << 20;

/// What was found.
#[derive(Debug)]
pub(super) struct Recovered {
    /// None if there was no log.
    pub log_id: Option<u64>,
    /// The next sequence number.
    pub next_sequence: u64,
    pub next_segment: u64,
    /// Bytes of records applied.
    pub bytes: u64,
    /// The last segment, if it has no records yet and can be filled.
    pub tail: Option<Tail>,
}

/// Gives every record from `first` on to `apply`, cuts off a torn tail and makes everything that was read durable.
pub(super) fn recover(
    device: &Arc<dyn Device>,
    dir: &Path,
    from: LogPosition,
    first: u64,
    apply: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<Recovered> {
    let numbers: Vec<u64> =
        Segments::list(&**device, dir)?.into_iter().filter(|&number| number >= from.segment).collect();
    let segments = Segments { device: device.clone(), dir: dir.to_path_buf(), log_id: 0 };
    let gap =
        (from.segment..=u64::MAX).zip(0..numbers.len().max(1)).find(|&(number, i)| numbers.get(i) != Some(&number));
    if let Some((missing, _)) = gap {
        // A log that was never cut may not exist yet: the database is being created.
        if numbers.is_empty() && from == LogPosition::default() {
            return Ok(Recovered { log_id: None, next_sequence: first, next_segment: 0, bytes: 0, tail: None });
        }
        return Err(damaged(&segments.path(missing), 0, "the segment is missing".into()));
    }
    let mut recovery =
        Recovery { segments, log_id: None, first, expected: None, bytes: 0, unproven: VecDeque::new(), apply };
    recovery.run(from, &numbers)
}

fn damaged(path: &Path, offset: u64, detail: String) -> Error {
    Error::Corrupt { path: path.to_path_buf(), what: "log", offset: Some(offset), detail }
}

struct Recovery<'a> {
    segments: Segments,
    log_id: Option<u64>,
    /// Records before this one are in the checkpoint.
    first: u64,
    /// The next sequence number, once the first group is known.
    expected: Option<u64>,
    bytes: u64,
    /// Groups that no later one says are durable, oldest first.
    unproven: VecDeque<Unproven>,
    apply: &'a mut dyn FnMut(u64, &[u8]) -> Result<()>,
}

struct Unproven {
    segment: u64,
    offset: u64,
    span: u64,
    /// Its last record, or the next one if it has none.
    last: u64,
}

/// Why reading stopped at a place.
enum Stop {
    /// The segment ends, or was never written from here on.
    End,
    /// Something else is there.
    Unsound(String),
}

impl Recovery<'_> {
    fn run(&mut self, from: LogPosition, numbers: &[u64]) -> Result<Recovered> {
        // The place where the stream of records ends: index into `numbers`, offset, and what is there.
        let mut end: Option<(usize, u64, Stop)> = None;
        for (index, &number) in numbers.iter().enumerate() {
            let mut reader = Reader::open(&self.segments, number)?;
            let start = if index == 0 { from.offset } else { 0 };
            let (offset, stop) = self.read_segment(&mut reader, start)?;
            if index > 0 && offset == 0 {
                // Not the continuation of the segment before: the stream ended there.
                break;
            }
            end = Some((index, offset, stop));
        }
        let Some((index, offset, stop)) = end else {
            unreachable!("there is a first segment, and reading it gave an end");
        };
        let stale = self.judge(from, numbers, index, offset, &stop)?;
        if self.expected.is_none() {
            return self.discard_unopened(numbers);
        }
        self.finish(numbers, index, offset, &stale)
    }

    /// Applies the groups of one segment; returns where and why that ended.
    fn read_segment(&mut self, reader: &mut Reader, start: u64) -> Result<(u64, Stop)> {
        let mut offset = start;
        loop {
            let header = match reader.header(offset)? {
                Ok(header) => header,
                Err(NoHeader::Empty) => return Ok((offset, Stop::End)),
                Err(NoHeader::Unsound) => return Ok((offset, Stop::Unsound("no sound group header".into()))),
                Err(NoHeader::Version(found)) => {
                    let path = reader.file.path().to_path_buf();
                    return Err(Error::FormatVersion { path, found, supported: FORMAT_VERSION });
                }
            };
            if let Err(detail) = self.continues(&header) {
                return Ok((offset, Stop::Unsound(detail)));
            }
            let Some(bytes) = reader.bytes(offset, HEADER_BYTES as u64 + header.body_len)? else {
                return Ok((offset, Stop::Unsound("the segment ends inside the group".into())));
            };
            let body = &bytes[HEADER_BYTES..];
            if crc32c::crc32c(body) != header.body_crc || !well_formed(&header, body) {
                return Ok((offset, Stop::Unsound("the checksum of the group is wrong".into())));
            }
            self.apply_group(&header, body)?;
            offset += header.span();
        }
    }

    /// Whether a group is the next one of the stream.
    fn continues(&self, header: &GroupHeader) -> std::result::Result<(), String> {
        if self.log_id.is_some_and(|id| id != header.log_id) {
            return Err("a group of another log".into());
        }
        let found = header.first_sequence;
        let expected = self.expected.unwrap_or(self.first);
        // What the checkpoint contains may be missing here.
        if Some(found) == self.expected || (found <= self.first && self.expected.is_none_or(|next| next < found)) {
            Ok(())
        } else {
            Err(format!("a group begins with record {found} instead of {expected}"))
        }
    }

    fn apply_group(&mut self, header: &GroupHeader, mut body: &[u8]) -> Result<()> {
        self.log_id = Some(header.log_id);
        self.expected = header.next_sequence();
        self.bytes += header.body_len;
        while self.unproven.front().is_some_and(|group| group.last <= header.synced_through) {
            self.unproven.pop_front();
        }
        let last = header.first_sequence + u64::from(header.count).saturating_sub(1);
        let (segment, offset) = (header.segment, header.offset);
        self.unproven.push_back(Unproven { segment, offset, span: header.span(), last });
        while let Some((sequence, payload, rest)) = split_record(body) {
            if sequence >= self.first {
                (self.apply)(sequence, payload).map_err(|error| match is_unsound(&error) {
                    true => damaged(&self.segments.path(segment), offset, format!("record {sequence}: {error}")),
                    false => error,
                })?;
            }
            body = rest;
        }
        Ok(())
    }

    /// Looks at everything behind the end of the stream for a witness that a record from there on had been durable.
    /// Returns where group headers are in the rest of the segment in which the stream ends.
    fn judge(&self, from: LogPosition, numbers: &[u64], index: usize, offset: u64, stop: &Stop) -> Result<Vec<u64>> {
        let path = self.segments.path(numbers[index]);
        let missing = self.missing();
        let detail = match stop {
            Stop::End => "the log ends here",
            Stop::Unsound(detail) => detail.as_str(),
        };
        if self.expected.is_none() && from != LogPosition::default() {
            return Err(damaged(&path, offset, format!("{detail}, where a checkpoint says that the log continues")));
        }
        let mut stale = Vec::new();
        for (at, &number) in numbers.iter().enumerate().skip(index) {
            let mut reader = Reader::open(&self.segments, number)?;
            let last = at + 1 == numbers.len();
            let opened = matches!(reader.header(0)?, Ok(header) if self.is_ours(&header));
            if (!last && !opened) || (opened && self.expected.is_none()) {
                let detail = "the opening group is not the one that was written".into();
                return Err(damaged(reader.file.path(), 0, detail));
            }
            let headers = self.find_headers(&mut reader, if at == index { offset } else { 0 })?;
            // Without a sound opening group any other one is a witness: the opening group was durable before it.
            if let Some((witness, _)) = headers.iter().find(|(_, synced)| *synced >= missing || !opened) {
                let file = reader.file.path().display();
                let detail =
                    format!("{detail}; record {missing} was durable, says the group at offset {witness} of {file}");
                return Err(damaged(&path, offset, detail));
            }
            if at == index {
                stale = headers.into_iter().map(|(offset, _)| offset).collect();
            }
        }
        Ok(stale)
    }

    /// Where from `start` on sound group headers are, and what they say was durable.
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

    /// The first record that was not found.
    fn missing(&self) -> u64 {
        self.expected.map_or(self.first, |expected| expected.max(self.first))
    }

    fn is_ours(&self, header: &GroupHeader) -> bool {
        self.log_id.is_none_or(|id| id == header.log_id)
    }

    /// The creation of the first segment was interrupted: removes it.
    fn discard_unopened(&self, numbers: &[u64]) -> Result<Recovered> {
        self.remove_from(numbers)?;
        Ok(Recovered { log_id: None, next_sequence: self.first, next_segment: 0, bytes: 0, tail: None })
    }

    /// Cuts off what follows the stream, and makes the stream durable.
    fn finish(&self, numbers: &[u64], index: usize, offset: u64, stale: &[u64]) -> Result<Recovered> {
        self.remove_from(&numbers[index + 1..])?;
        let mut last = None;
        for &number in &numbers[..=index] {
            let file = self.segments.device.open(&self.segments.path(number), OpenMode::ReadWrite)?;
            for group in self.unproven.iter().filter(|group| group.segment == number) {
                write_again(&*file, group)?;
            }
            if number == numbers[index] {
                cut_tail(&*file, offset, stale)?;
            } else {
                file.sync_data()?;
            }
            last = Some(Tail { number, file, capacity: offset, offset, written_to: offset });
        }
        self.segments.device.sync_dir(&self.segments.dir)?;
        let number = numbers[index];
        let next_segment = number.checked_add(1).ok_or_else(|| {
            damaged(&self.segments.path(number), 0, "there is no segment number above this one".into())
        })?;
        // Only an opening group: it may be filled, if it says what comes next.
        let tail = last.filter(|tail| tail.offset == BLOCK as u64 && self.expected == Some(self.missing()));
        Ok(Recovered { log_id: self.log_id, next_sequence: self.missing(), next_segment, bytes: self.bytes, tail })
    }

    /// Removes segments, newest first, so that there is never a gap.
    fn remove_from(&self, numbers: &[u64]) -> Result<()> {
        for &number in numbers.iter().rev() {
            self.segments.device.remove(&self.segments.path(number))?;
            self.segments.device.sync_dir(&self.segments.dir)?;
        }
        Ok(())
    }
}

/// Whether a record was refused for its bytes: a commit with such a record would have failed.
fn is_unsound(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidBatch { .. }
            | Error::InvalidKey { .. }
            | Error::InvalidRow { .. }
            | Error::TooLarge { .. }
            | Error::TooMany { .. }
            | Error::TreeExists(_)
            | Error::TreeNotFound(_)
            | Error::WrongTreeKind { .. }
    )
}

/// Writes the same bytes once more.
fn write_again(file: &dyn File, group: &Unproven) -> Result<()> {
    let mut buffer = Buffer::zeroed(group.span as usize);
    file.read_at(group.offset, &mut buffer)?;
    Ok(file.write_at(group.offset, &buffer)?)
}

/// Whether the body consists of the records that the header announces.
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
struct Reader {
    file: Arc<dyn File>,
    number: u64,
    /// Length in bytes, whole blocks.
    len: u64,
    window: Buffer,
    start: u64,
}

impl Reader {
    fn open(segments: &Segments, number: u64) -> Result<Reader> {
        let file = segments.device.open(&segments.path(number), OpenMode::Read)?;
        let len = file.len()? / BLOCK as u64 * BLOCK as u64;
        Ok(Reader { file, number, len, window: Buffer::zeroed(0), start: 0 })
    }

    /// The group header at `offset` (a multiple of the block length).
    fn header(&mut self, offset: u64) -> Result<std::result::Result<GroupHeader, NoHeader>> {
        let number = self.number;
        Ok(match self.bytes(offset, HEADER_BYTES as u64)? {
            Some(bytes) => GroupHeader::decode(bytes, number, offset),
            None => Err(NoHeader::Empty),
        })
    }

    /// `len` bytes from `offset` (a multiple of the block length) on; none if the segment ends before.
    fn bytes(&mut self, offset: u64, len: u64) -> Result<Option<&[u8]>> {
        let Some(end) = offset.checked_add(len).filter(|&end| end <= self.len) else { return Ok(None) };
        if offset < self.start || end > self.start + self.window.len() as u64 {
            let wanted = len.next_multiple_of(BLOCK as u64).max(WINDOW_BYTES as u64).min(self.len - offset);
            if self.window.len() as u64 != wanted {
                self.window = Buffer::zeroed(wanted as usize);
            }
            self.file.read_at(offset, &mut self.window)?;
            self.start = offset;
        }
        let at = (offset - self.start) as usize;
        Ok(Some(&self.window[at..at + len as usize]))
    }
}

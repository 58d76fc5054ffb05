//! Recovery of the log when a store is opened.
//!
//! Groups are read in order as long as they are valid and their sequence numbers continue without a gap. This stream
//! ends either because a crash tore the newest writes before they were acknowledged, or because acknowledged data is
//! damaged. The group headers behind the end distinguish the two cases. Each header states the newest sequence number
//! that was durable when the group was written (`synced_through`), and the opening group of a segment is durable before
//! any other group is written there. If a valid header proves that a missing record was durable, recovery fails with an
//! error. Otherwise the rest is a torn tail that was never acknowledged. It is truncated, durably, before anything new
//! is written.
//!
//! If only the process died, the newest groups may have been read from the cache of the operating system and not be on
//! the medium. After a failed sync, even a later sync need not bring them there. Groups whose durability no other group
//! proves are therefore written again, the same bytes to the same position, and synced.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use keyaki_device::{BLOCK, Buffer, Device, File, OpenMode};

use super::LogPosition;
use super::format::{GroupHeader, segment_name, split_record};
use super::groups::{Reader, Stop, Stream, damaged};
use super::segment::{LogSegments, capacity_of, cut_tail};
use super::state::Tail;
use crate::base::{Error, Result};

/// The result of recovery.
#[derive(Debug)]
pub(super) struct Recovered {
    /// `None` if there was no log.
    pub log_id: Option<u64>,
    /// The next sequence number.
    pub next_sequence: u64,
    pub next_segment: u64,
    /// Bytes of the records read.
    pub bytes: u64,
    /// The last segment, if it has no records yet and can be filled.
    pub tail: Option<Tail>,
}

/// The part of a damaged log that could be read.
#[derive(Debug)]
pub struct SalvagedLog {
    /// Sequence number of the last record applied, or of the checkpoint if no record was applied.
    pub last: u64,
    /// The newest sequence number in any group header. Later records may have existed.
    pub newest_known: u64,
    /// The reason for missing records; `None` if no durable record is missing.
    pub problem: Option<Error>,
}

/// Calls `apply` with every record from `first` on, truncates a torn tail, and makes the records that were read
/// durable.
pub(super) fn recover(
    device: &Arc<dyn Device>,
    dir: &Path,
    from: LogPosition,
    first: u64,
    apply: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<Recovered> {
    let Found { numbers, missing, .. } = Found::list(device, dir, from)?;
    // A log that was never cut may not exist yet, while the database is being created.
    if numbers.is_empty() && from == LogPosition::default() {
        return Ok(Recovered { log_id: None, next_sequence: first, next_segment: 0, bytes: 0, tail: None });
    }
    missing.map_or(Ok(()), Err)?;
    Recovery::new(device, dir, first, apply).run(from, &numbers)
}

/// The segments of a log from a position on.
struct Found {
    numbers: Vec<u64>,
    /// Number of adjacent segments from the first one on.
    adjacent: usize,
    /// The error of the first missing segment.
    missing: Option<Error>,
}

impl Found {
    fn list(device: &Arc<dyn Device>, dir: &Path, from: LogPosition) -> Result<Found> {
        let mut numbers = LogSegments::list(&**device, dir)?;
        numbers.retain(|&number| number >= from.segment);
        let adjacent = (from.segment..=u64::MAX).zip(&numbers).take_while(|(number, found)| number == *found).count();
        let missing = (adjacent == 0 || adjacent < numbers.len()).then(|| {
            let path = dir.join(segment_name(from.segment.saturating_add(adjacent as u64)));
            damaged(&path, 0, "the segment is missing".into())
        });
        Ok(Found { numbers, adjacent, missing })
    }
}

/// Calls `apply` with the records from `first` on, up to the first one that is damaged or missing. Writes nothing.
pub(super) fn salvage(
    device: &Arc<dyn Device>,
    dir: &Path,
    from: LogPosition,
    first: u64,
    apply: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<SalvagedLog> {
    let Found { numbers, adjacent, missing } = Found::list(device, dir, from)?;
    if numbers.is_empty() && from == LogPosition::default() {
        return Ok(SalvagedLog { last: first - 1, newest_known: first - 1, problem: None });
    }
    let mut last = first - 1;
    let mut apply = |sequence: u64, payload: &[u8]| {
        apply(sequence, payload)?;
        last = sequence;
        Ok(())
    };
    let mut recovery = Recovery::new(device, dir, first, &mut apply);
    let found = &numbers[..adjacent];
    let read = match adjacent {
        0 => Ok(()),
        _ => recovery
            .read_segments(from, found)
            .and_then(|(index, offset, stop)| recovery.stream.check_end(from, found, index, offset, &stop).map(drop)),
    };
    let problem = match read {
        Ok(()) => missing,
        Err(error) if error.is_damage() || matches!(error, Error::FormatVersion { .. }) => Some(error),
        Err(error) => return Err(error),
    };
    let newest_known = if problem.is_some() { recovery.newest_known(&numbers) } else { 0 };
    let newest_known = newest_known.max(last);
    Ok(SalvagedLog { last, newest_known, problem })
}

struct Recovery<'a> {
    stream: Stream,
    bytes: u64,
    /// Groups whose durability no later group proves, oldest first.
    unproven: VecDeque<Unproven>,
    apply: &'a mut dyn FnMut(u64, &[u8]) -> Result<()>,
}

struct Unproven {
    segment: u64,
    offset: u64,
    span: u64,
    /// Sequence number of its last record, or of the next record if it is empty.
    last: u64,
}

impl<'a> Recovery<'a> {
    fn new(
        device: &Arc<dyn Device>,
        dir: &Path,
        first: u64,
        apply: &'a mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Recovery<'a> {
        Recovery { stream: Stream::new(device, dir, first), bytes: 0, unproven: VecDeque::new(), apply }
    }

    fn run(&mut self, from: LogPosition, numbers: &[u64]) -> Result<Recovered> {
        let (index, offset, stop) = self.read_segments(from, numbers)?;
        let stale = self.stream.check_end(from, numbers, index, offset, &stop)?;
        if self.stream.expected.is_none() {
            return self.discard_unopened(numbers);
        }
        self.finish(numbers, index, offset, &stale)
    }

    /// Applies the groups of the segments `numbers`. Returns the end of the stream of records: index into `numbers`,
    /// offset, and reason.
    fn read_segments(&mut self, from: LogPosition, numbers: &[u64]) -> Result<(usize, u64, Stop)> {
        let mut end: Option<(usize, u64, Stop)> = None;
        for (index, &number) in numbers.iter().enumerate() {
            let mut reader = Reader::open(&self.stream.segments, number)?;
            let start = if index == 0 { from.offset } else { 0 };
            let (offset, stop) = self.read_segment(&mut reader, start)?;
            if index > 0 && offset == 0 {
                // The segment does not continue the one before, so the stream ended there.
                break;
            }
            end = Some((index, offset, stop));
        }
        Ok(end.unwrap_or_else(|| unreachable!("reading the first segment sets an end")))
    }

    /// Applies the groups of a segment from offset `start` on. Returns offset and reason of the end.
    fn read_segment(&mut self, reader: &mut Reader, start: u64) -> Result<(u64, Stop)> {
        let mut offset = start;
        loop {
            match self.stream.next(reader, offset)? {
                Ok((header, body)) => {
                    self.apply_group(&header, body)?;
                    offset += header.span();
                }
                Err(stop) => return Ok((offset, stop)),
            }
        }
    }

    fn apply_group(&mut self, header: &GroupHeader, mut body: &[u8]) -> Result<()> {
        self.bytes += header.body_len;
        while self.unproven.front().is_some_and(|group| group.last <= header.synced_through) {
            self.unproven.pop_front();
        }
        let last = header.first_sequence + u64::from(header.count).saturating_sub(1);
        let (segment, offset) = (header.segment, header.offset);
        self.unproven.push_back(Unproven { segment, offset, span: header.span(), last });
        while let Some((sequence, payload, rest)) = split_record(body) {
            if sequence >= self.stream.first {
                (self.apply)(sequence, payload).map_err(|error| match is_unsound(&error) {
                    true => damaged(&self.stream.segments.path(segment), offset, format!("record {sequence}: {error}")),
                    false => error,
                })?;
            }
            body = rest;
        }
        Ok(())
    }

    /// The newest sequence number of a record that a valid group header of the segments states. Unreadable parts are
    /// skipped.
    fn newest_known(&self, numbers: &[u64]) -> u64 {
        let mut newest = 0;
        for mut reader in numbers.iter().filter_map(|&number| Reader::open(&self.stream.segments, number).ok()) {
            for offset in (0..reader.len).step_by(BLOCK) {
                if let Ok(Ok(header)) = reader.header(offset)
                    && self.stream.is_ours(&header)
                {
                    newest = newest.max(header.next_sequence().map_or(0, |next| next - 1));
                }
            }
        }
        newest
    }

    /// Removes the first segment, whose creation was interrupted.
    fn discard_unopened(&self, numbers: &[u64]) -> Result<Recovered> {
        self.remove_from(numbers)?;
        Ok(Recovered { log_id: None, next_sequence: self.stream.first, next_segment: 0, bytes: 0, tail: None })
    }

    /// Truncates the log at the end of the stream, and makes the stream durable.
    fn finish(&self, numbers: &[u64], index: usize, offset: u64, stale: &[u64]) -> Result<Recovered> {
        self.remove_from(&numbers[index + 1..])?;
        // The disk is full, so the log continues in its last segment.
        let continues = !self.stream.segments.has_spare()? && self.stream.expected == Some(self.stream.missing());
        let mut last = None;
        for &number in &numbers[..=index] {
            let file = self.stream.segments.device.open(&self.stream.segments.path(number), OpenMode::ReadWrite)?;
            for group in self.unproven.iter().filter(|group| group.segment == number) {
                write_again(&*file, group)?;
            }
            if number == numbers[index] {
                cut_tail(&*file, offset, stale, !continues)?;
            } else {
                file.sync_data()?;
            }
            let capacity = if number == numbers[index] { capacity_of(&*file, offset)? } else { offset };
            last = Some(Tail { number, file, capacity, offset, written_to: offset });
        }
        self.stream.segments.device.sync_dir(&self.stream.segments.dir)?;
        let number = numbers[index];
        let next_segment = number
            .checked_add(1)
            .ok_or_else(|| damaged(&self.stream.segments.path(number), 0, "segment numbers are exhausted".into()))?;
        // A segment with only an opening group can be filled, if this group states the next sequence number.
        let tail = last.filter(|tail| {
            continues || tail.offset == BLOCK as u64 && self.stream.expected == Some(self.stream.missing())
        });
        Ok(Recovered {
            log_id: self.stream.log_id,
            next_sequence: self.stream.missing(),
            next_segment,
            bytes: self.bytes,
            tail,
        })
    }

    /// Removes segments, newest first, so that no gap arises.
    fn remove_from(&self, numbers: &[u64]) -> Result<()> {
        for &number in numbers.iter().rev() {
            self.stream.segments.device.remove(&self.stream.segments.path(number))?;
            self.stream.segments.device.sync_dir(&self.stream.segments.dir)?;
        }
        Ok(())
    }
}

/// Returns true if the bytes of a record were rejected. A commit of such a record would have failed, so the log is
/// damaged.
fn is_unsound(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidBatch { .. }
            | Error::InvalidKey { .. }
            | Error::InvalidRow { .. }
            | Error::TooLarge { .. }
            | Error::TooMany { .. }
            | Error::TreeExists(_)
            | Error::TreeMismatch { .. }
            | Error::TreeNotFound(_)
            | Error::WrongTreeKind { .. }
    )
}

/// Writes the bytes of a group to the same position again.
fn write_again(file: &dyn File, group: &Unproven) -> Result<()> {
    let mut buffer = Buffer::zeroed(group.span as usize);
    file.read_at(group.offset, &mut buffer)?;
    Ok(file.write_at(group.offset, &buffer)?)
}

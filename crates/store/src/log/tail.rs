//! Reading the log beside the process that writes it.
//!
//! A [`LogTail`] is a position in the log. Each read returns the records of the groups that were completed behind it. A
//! group that is being written fails its checksum, and is read again by the next call. The tail moves to the next segment
//! once its opening group continues the stream, which proves that the current segment gets no more groups.
//!
//! The writer may remove segments after a checkpoint, so that a tail finds nothing any more. The reader then begins a
//! new one at the position of that checkpoint.

use std::path::Path;
use std::sync::Arc;

use keyaki_device::Device;

use super::LogPosition;
use super::format::{GroupHeader, RECORD_HEADER_BYTES, split_record};
use super::groups::{Reader, Stop, Stream};
use super::segment::LogSegments;
use crate::base::{Error, Result};

/// The sequence number and the payload of a record.
pub(crate) type Record = (u64, Box<[u8]>);

/// Attempts to read segments that become shorter meanwhile.
const ATTEMPTS: usize = 10;

/// A position in a log that another process may be writing.
#[derive(Debug)]
pub(crate) struct LogTail {
    stream: Stream,
    /// The position from which the tail was begun.
    from: LogPosition,
    segment: u64,
    offset: u64,
    /// The current segment; `None` if it did not exist at the last read.
    reader: Option<Reader>,
}

impl LogTail {
    /// The tail from a position on, whose records begin with sequence number `first`.
    pub fn new(device: &Arc<dyn Device>, dir: &Path, from: LogPosition, first: u64) -> LogTail {
        let LogPosition { segment, offset } = from;
        LogTail { stream: Stream::new(device, dir, first), from, segment, offset, reader: None }
    }

    /// The next complete records in order; none at the end. Stops behind the group with which the payloads reach
    /// `bytes_max` bytes.
    ///
    /// # Errors
    /// [`crate::Error::FormatVersion`], device errors.
    pub fn read(&mut self, bytes_max: usize) -> Result<Vec<Record>> {
        let (mut records, mut bytes) = (Vec::new(), 0);
        if self.stream.expected.is_none() {
            // A recovering process may have replaced the segment.
            self.reader = None;
        }
        match &mut self.reader {
            Some(reader) => reader.refresh()?,
            None => self.reader = open(&self.stream, self.segment)?,
        }
        while bytes < bytes_max
            && let Some(reader) = &mut self.reader
        {
            match next_group(&mut self.stream, reader, self.offset)? {
                Some((header, mut body)) => {
                    while let Some((sequence, payload, rest)) = split_record(body) {
                        if sequence >= self.stream.first {
                            bytes += RECORD_HEADER_BYTES + payload.len();
                            records.push((sequence, payload.into()));
                        }
                        body = rest;
                    }
                    self.offset += header.span();
                }
                None => match self.next_segment()? {
                    true => {}
                    false => break,
                },
            }
        }
        Ok(records)
    }

    /// Moves to the next segment if its opening group continues the stream.
    fn next_segment(&mut self) -> Result<bool> {
        // Without a group, the position itself does not exist yet, or no longer.
        let Some(number) = self.segment.checked_add(1).filter(|_| self.stream.expected.is_some()) else {
            return Ok(false);
        };
        let Some(mut reader) = open(&self.stream, number)? else { return Ok(false) };
        reader.refresh()?;
        let (id, expected) = (self.stream.log_id, self.stream.expected);
        if next_group(&mut self.stream, &mut reader, 0)?.is_none() {
            return Ok(false);
        }
        // The group is read again from the new position.
        (self.stream.log_id, self.stream.expected) = (id, expected);
        (self.segment, self.offset, self.reader) = (number, 0, Some(reader));
        Ok(true)
    }

    /// Checks that no acknowledged record behind the tail is missing. The caller has read to the end. If the writer has
    /// written a group since, the result may be an error nevertheless, and another read returns that group.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] if a record is missing, device errors.
    pub fn check_end(&mut self) -> Result<()> {
        let mut attempts = 1..ATTEMPTS;
        loop {
            match self.check_end_once() {
                // The writer has shortened a segment since its length was read.
                Err(Error::Device(error)) if error.is_end_of_file() && attempts.next().is_some() => {}
                checked => return checked,
            }
        }
    }

    fn check_end_once(&mut self) -> Result<()> {
        let mut numbers = LogSegments::list(&*self.stream.segments.device, &self.stream.segments.dir)?;
        numbers.retain(|&number| number >= self.segment);
        if numbers.first() != Some(&self.segment) {
            let is_new = numbers.is_empty() && self.from == LogPosition::default();
            return if is_new { Ok(()) } else { Err(self.stream.missing_segment(self.segment)) };
        }
        self.stream.check_end(self.from, &numbers, 0, self.offset, &Stop::End).map(drop)
    }
}

/// The next group, if it is complete. The writer may have shortened the segment since its length was read.
fn next_group<'r>(stream: &mut Stream, reader: &'r mut Reader, offset: u64) -> Result<Option<(GroupHeader, &'r [u8])>> {
    match stream.next(reader, offset) {
        Err(Error::Device(error)) if error.is_end_of_file() => Ok(None),
        next => Ok(next?.ok()),
    }
}

/// The reader of a segment; `None` if it does not exist.
fn open(stream: &Stream, number: u64) -> Result<Option<Reader>> {
    match Reader::open(&stream.segments, number) {
        Ok(reader) => Ok(Some(reader)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

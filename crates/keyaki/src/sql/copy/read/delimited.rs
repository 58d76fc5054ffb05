//! Reader of CSV files and dbgen's tbl files.
//!
//! The file is read in blocks. One pass over a block finds the bounds of all fields of its complete records; an
//! incomplete record at the end moves to the next block. Columns are view arrays into the block, so only fields with
//! escapes are copied. The arrow-csv crate is not used: it does not distinguish a null (nothing between two delimiters)
//! from an empty string (`""`), and its errors do not name row and column.
//!
//! A record ends with `\n` or `\r\n`. Empty lines are skipped unless records have a single field. A quote is special
//! only as the first character of a field. A comment ends with its line; a line that begins with one is skipped.
//!
//! With `ignore_errors`, malformed records are left out and counted. Reading continues with the next line.

use arrow::array::{AsArray, BooleanArray, StringViewArray, StringViewBuilder};
use arrow::buffer::Buffer;
use arrow::compute::filter;

use super::{FileRows, bad};
use crate::sql::copy::options::Dialect;
use crate::sql::copy::source::Source;
use crate::{Error, Result};

const BLOCK_BYTES: usize = 1 << 20;
/// Maximum length of a record: positions in a block have 32 bits.
const RECORD_BYTES_MAX: usize = 1 << 30;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

pub(in crate::sql) struct DelimitedReader {
    source: Source,
    dialect: Dialect,
    /// Bytes read and not yet returned.
    rest: Vec<u8>,
    /// The file has no bytes after `rest`.
    at_end: bool,
    /// Records returned, without the header.
    records: u64,
    /// Bytes of the header and of all records returned.
    bytes: u64,
    /// Lines before `rest`.
    lines: u64,
    /// Records left out.
    skipped: u64,
    /// Fields of the records in the current block, record by record.
    fields: Vec<Field>,
    /// The block returned last, for the lines of its records.
    returned: Option<Returned>,
}

/// A block of records.
struct Returned {
    block: Buffer,
    /// Lines before the block.
    lines: u64,
    /// Fields of each record; a record that was left out does not count.
    width: usize,
}

/// Bounds of a field in the block.
#[derive(Debug, Clone, Copy)]
struct Field {
    start: u32,
    end: u32,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    /// Quoted without escapes; `start` and `end` exclude the quotes.
    Quoted,
    /// Quoted with escapes; `start` and `end` exclude the quotes.
    Escaped,
}

/// The next record of a block.
enum Next {
    /// The record ends before this position. Its fields were appended.
    Record(usize),
    /// A malformed record, which ends before this position.
    Malformed(usize, &'static str),
    /// The file has no further record, or the block has no further complete record.
    End,
}

/// Result of scanning a record.
enum Scan {
    /// The record is complete; the next one starts at `next`.
    Record { next: usize },
    /// The block ends inside the record.
    Incomplete,
    /// A quoted field is followed by a character other than a delimiter or a line end.
    AfterQuote,
}

impl DelimitedReader {
    pub fn open(source: Source, dialect: Dialect) -> Result<Self> {
        let mut reader = DelimitedReader {
            source,
            dialect,
            rest: Vec::new(),
            at_end: false,
            records: 0,
            bytes: 0,
            lines: 0,
            skipped: 0,
            fields: Vec::new(),
            returned: None,
        };
        reader.fill(BLOCK_BYTES)?;
        if reader.rest.starts_with(BYTE_ORDER_MARK) {
            reader.rest.drain(..BYTE_ORDER_MARK.len());
        } else if reader.rest.starts_with(b"\xff\xfe") || reader.rest.starts_with(b"\xfe\xff") {
            return Err(bad(reader.source.path(), None, "the file is in UTF-16 (convert it to UTF-8)"));
        }
        reader.skip()?;
        Ok(reader)
    }

    /// Records returned and their bytes.
    pub fn progress(&self) -> (u64, u64) {
        (self.records, self.bytes)
    }

    pub fn is_compressed(&self) -> bool {
        self.source.is_compressed()
    }

    /// Records left out because they were malformed.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The values of the first record, without consuming it; `None` if the file is empty.
    pub fn peek(&mut self) -> Result<Option<Vec<Option<String>>>> {
        self.fields.clear();
        let Some(next) = self.first_record()? else { return Ok(None) };
        let block = Buffer::from(&self.rest[..next]);
        let fields = std::mem::take(&mut self.fields);
        let (columns, wrong) = self.columns(block, &fields, fields.len());
        if let Some((_, column)) = wrong.first() {
            return Err(self.not_utf8(0, *column));
        }
        Ok(Some(columns.iter().map(|column| column.iter().next().flatten().map(str::to_string)).collect()))
    }

    /// Numbers of fields of the first records, at most `count`, which are not consumed. Stops before a malformed one.
    pub fn widths(&mut self, count: usize) -> Result<Vec<usize>> {
        let (mut widths, mut at) = (Vec::new(), 0);
        while widths.len() < count {
            self.fields.clear();
            match self.next_record(widths.len(), 0, at)? {
                Next::Record(next) => at = next,
                Next::Malformed(..) | Next::End => break,
            }
            widths.push(self.fields.len());
        }
        Ok(widths)
    }

    /// Skips the first record.
    pub fn skip_header(&mut self) -> Result<()> {
        self.fields.clear();
        if let Some(next) = self.first_record()? {
            self.consume(next);
        }
        Ok(())
    }

    /// The end of the first record.
    fn first_record(&mut self) -> Result<Option<usize>> {
        match self.next_record(0, 0, 0)? {
            Next::Record(next) => Ok(Some(next)),
            Next::Malformed(_, message) => Err(self.malformed(0, 0, message)),
            Next::End => Ok(None),
        }
    }

    /// Skips the lines before the header.
    fn skip(&mut self) -> Result<()> {
        let mut left = self.dialect.skip;
        while left > 0 && !self.rest.is_empty() {
            let last = usize::try_from(left - 1).ok().and_then(|last| memchr::memchr_iter(b'\n', &self.rest).nth(last));
            let before = self.lines;
            self.consume(last.map_or(self.rest.len(), |last| last + 1));
            left -= self.lines - before;
            self.fill(BLOCK_BYTES)?;
        }
        Ok(())
    }

    fn consume(&mut self, end: usize) {
        self.lines += lines(&self.rest[..end]);
        self.rest.drain(..end);
        self.bytes += end as u64;
    }

    /// The complete records of the next block; `None` at the end of the file.
    ///
    /// # Errors
    /// `Import` if a record does not have `width` fields, is not valid UTF-8, or is malformed.
    pub fn next(&mut self, width: usize) -> Result<Option<FileRows>> {
        loop {
            self.fields.clear();
            self.returned = None;
            if self.rest.len() < BLOCK_BYTES {
                self.fill(BLOCK_BYTES)?;
            }
            let (end, count) = self.scan_block(width)?;
            if end == 0 {
                return Ok(None);
            }
            let rest = self.rest.split_off(end);
            let block = Buffer::from_vec(std::mem::replace(&mut self.rest, rest));
            let returned = Returned { block: block.clone(), lines: self.lines, width };
            self.bytes += end as u64;
            self.lines += lines(&block);
            self.returned = Some(returned);
            if count == 0 {
                // All records of the block were left out.
                continue;
            }
            let fields = std::mem::take(&mut self.fields);
            let (columns, wrong) = self.columns(block, &fields, width);
            self.fields = fields;
            if !wrong.is_empty() {
                let rows = self.without(&columns, count, &wrong)?;
                self.records += count as u64;
                return Ok(Some(FileRows::Text(rows)));
            }
            self.records += count as u64;
            return Ok(Some(FileRows::Text(columns)));
        }
    }

    /// Finds the complete records of the block. Returns their end and their number.
    fn scan_block(&mut self, width: usize) -> Result<(usize, usize)> {
        let (mut end, mut count) = (0, 0);
        loop {
            let problem = match self.next_record(count, width, end)? {
                Next::End => return Ok((end, count)),
                Next::Malformed(next, message) => Some((next, message.to_string())),
                Next::Record(next) => match self.check_width(count, width) {
                    None => {
                        end = next;
                        count += 1;
                        None
                    }
                    Some(message) => Some((next, message)),
                },
            };
            if let Some((next, message)) = problem {
                if !self.dialect.ignore_errors {
                    return Err(self.malformed(count, end, message));
                }
                self.fields.truncate(count * width);
                self.skipped += 1;
                end = next;
            }
        }
    }

    /// The line in which a record of the batch returned last begins, counted from 1.
    pub fn line(&self, row: usize) -> Option<u64> {
        let Returned { block, lines: before, width } = self.returned.as_ref()?;
        let start = self.fields.get(row * width)?.start as usize;
        Some(before + lines(&block[..start]) + 1)
    }

    /// The error for the record after `count` others of the block, which begins at `start`.
    fn malformed(&self, count: usize, start: usize, message: impl std::fmt::Display) -> Error {
        let empty = self.rest[start..].iter().take_while(|byte| matches!(byte, b'\n' | b'\r')).count();
        let line = self.lines + lines(&self.rest[..start + empty]) + 1;
        let row = self.records + count as u64 + 1;
        bad(self.source.path(), Some(row), format!("{message} (line {line})"))
    }

    fn not_utf8(&self, row: usize, column: usize) -> Error {
        let message = format!("value {} is not valid UTF-8", column + 1);
        bad(self.source.path(), Some(self.records + row as u64 + 1), message)
    }

    /// The batch without the records that are not valid UTF-8.
    fn without(
        &mut self,
        columns: &[StringViewArray],
        count: usize,
        wrong: &[(usize, usize)],
    ) -> Result<Vec<StringViewArray>> {
        if !self.dialect.ignore_errors {
            let (row, column) = wrong.iter().min().copied().unwrap_or_default();
            return Err(self.not_utf8(row, column));
        }
        let mut kept = vec![true; count];
        wrong.iter().for_each(|(row, _)| kept[*row] = false);
        self.skipped += kept.iter().filter(|kept| !**kept).count() as u64;
        let kept = BooleanArray::from(kept);
        let kept = columns.iter().map(|column| Ok(filter(column, &kept)?.as_string_view().clone()));
        kept.collect()
    }

    /// Scans the record at `start`, which is number `count` of the block, and appends its fields. If the record does not
    /// end inside the block, the block is extended for `start` 0; otherwise the record becomes the first of the next block.
    /// `width` is the expected number of fields, or 0 if it is unknown.
    fn next_record(&mut self, count: usize, width: usize, start: usize) -> Result<Next> {
        loop {
            let fields = self.fields.len();
            let Some(begin) = self.skip_lines(start, width) else {
                if self.at_end || start > 0 {
                    return Ok(Next::End);
                }
                self.extend(count, start)?;
                continue;
            };
            let next = match self.scan(begin) {
                Scan::Record { next } => Some(Next::Record(next)),
                Scan::AfterQuote => {
                    let message = "a closing quote must be followed by a delimiter or a line end";
                    let end = memchr::memchr(b'\n', &self.rest[begin..]).map(|len| begin + len + 1);
                    match end {
                        Some(end) => Some(Next::Malformed(end, message)),
                        None if self.at_end || !self.dialect.ignore_errors => {
                            Some(Next::Malformed(self.rest.len(), message))
                        }
                        None => None,
                    }
                }
                Scan::Incomplete if self.at_end => {
                    Some(Next::Malformed(self.rest.len(), "unterminated quoted value at end of file"))
                }
                Scan::Incomplete => None,
            };
            if let Some(next) = next {
                return Ok(next);
            }
            self.fields.truncate(fields);
            if start > 0 {
                return Ok(Next::End);
            }
            self.extend(count, begin)?;
        }
    }

    /// Doubles the bytes after `start`, where record `count` of the block begins.
    fn extend(&mut self, count: usize, start: usize) -> Result<()> {
        let read = self.rest.len() - start;
        if read >= RECORD_BYTES_MAX {
            return Err(self.malformed(count, start, "a row exceeds 1 GiB (a closing quote may be missing)"));
        }
        self.fill(self.rest.len() + read.max(BLOCK_BYTES))
    }

    /// The position of the first record at or after `start`, behind empty lines and lines with comments; `None` if the block
    /// ends before it.
    fn skip_lines(&self, start: usize, width: usize) -> Option<usize> {
        let (block, mut at) = (&self.rest[..], start);
        loop {
            let first = block.get(at)?;
            // Spaces may precede a comment.
            let spaces =
                self.dialect.comment.map_or(0, |_| block[at..].iter().take_while(|byte| **byte == b' ').count());
            match first {
                _ if self.dialect.comment.is_some_and(|comment| block.get(at + spaces) == Some(&comment)) => {
                    let end = memchr::memchr(b'\n', &block[at..]);
                    at = match end {
                        Some(len) => at + len + 1,
                        None if self.at_end => block.len(),
                        None => return None,
                    };
                }
                b'\n' if width != 1 => at += 1,
                b'\r' if width != 1 && block.get(at + 1) == Some(&b'\n') => at += 2,
                _ => return Some(at),
            }
        }
    }

    /// Reads until `rest` has `target` bytes or the file ends.
    fn fill(&mut self, target: usize) -> Result<()> {
        if self.at_end || self.rest.len() >= target {
            return Ok(());
        }
        let wanted = target - self.rest.len();
        let read = self.source.read(wanted, &mut self.rest)?;
        self.at_end = read < wanted;
        Ok(())
    }

    /// Appends the fields of the record at `start` to `fields`.
    fn scan(&mut self, start: usize) -> Scan {
        let (block, delimiter) = (&self.rest[..], self.dialect.delimiter);
        let mut at = start;
        loop {
            let (field, end) = match (self.dialect.quote, block.get(at)) {
                (Some(quote), Some(first)) if *first == quote => {
                    match quoted(block, at + 1, quote, self.dialect.escape, self.at_end) {
                        Some((field, end)) => (field, end),
                        None => return Scan::Incomplete,
                    }
                }
                _ => {
                    let rest = block[at..].iter();
                    let len = match self.dialect.comment {
                        None => rest.copied().position(|byte| byte == delimiter || byte == b'\n'),
                        Some(comment) => rest.copied().position(|byte| [delimiter, b'\n', comment].contains(&byte)),
                    };
                    let end = match len {
                        Some(len) => at + len,
                        None if self.at_end => block.len(),
                        None => return Scan::Incomplete,
                    };
                    // A carriage return before a line feed is part of the line end.
                    let crlf = end > at && block[end - 1] == b'\r' && block.get(end) != Some(&delimiter);
                    let value_end = if crlf { end - 1 } else { end };
                    (Field { start: at as u32, end: value_end as u32, kind: Kind::Plain }, end)
                }
            };
            self.fields.push(field);
            match block.get(end) {
                Some(&byte) if byte == delimiter => at = end + 1,
                Some(&byte) if Some(byte) == self.dialect.comment => {
                    return match memchr::memchr(b'\n', &block[end..]) {
                        Some(len) => Scan::Record { next: end + len + 1 },
                        None if self.at_end => Scan::Record { next: block.len() },
                        None => Scan::Incomplete,
                    };
                }
                Some(b'\n') => return Scan::Record { next: end + 1 },
                Some(b'\r') if block.get(end + 1) == Some(&b'\n') => return Scan::Record { next: end + 2 },
                Some(b'\r') if end + 1 == block.len() => {
                    return if self.at_end { Scan::Record { next: end + 1 } } else { Scan::Incomplete };
                }
                None if self.at_end => return Scan::Record { next: end },
                None => return Scan::Incomplete,
                Some(_) => return Scan::AfterQuote,
            }
        }
    }

    /// Checks that the last record has `width` fields, after removing the empty field behind a trailing delimiter.
    /// `count` is the number of records before it. Returns the problem.
    fn check_width(&mut self, count: usize, width: usize) -> Option<String> {
        let found = self.fields.len() - count * width;
        let empty_last = self.fields.last().is_some_and(|field| field.start == field.end && field.kind == Kind::Plain);
        if self.dialect.trailing_delimiter && found == width + 1 && empty_last {
            self.fields.pop();
            return None;
        }
        (found != width).then(|| format!("row has {found} values, expected {width}"))
    }

    /// The columns of the records, and the rows and columns of values that are not valid UTF-8.
    fn columns(&self, block: Buffer, fields: &[Field], width: usize) -> (Vec<StringViewArray>, Vec<(usize, usize)>) {
        let mut wrong = Vec::new();
        let columns = (0..width).map(|column| {
            let of_column = fields.iter().skip(column).step_by(width);
            self.column(&block, of_column, |row| wrong.push((row, column)))
        });
        (columns.collect(), wrong)
    }

    fn column<'f>(
        &self,
        block: &Buffer,
        fields: impl ExactSizeIterator<Item = &'f Field>,
        mut wrong: impl FnMut(usize),
    ) -> StringViewArray {
        let mut builder = StringViewBuilder::with_capacity(fields.len());
        let block_number = builder.append_block(block.clone());
        let mut unescaped = Vec::new();
        for (row, field) in fields.enumerate() {
            let bytes = &block[field.start as usize..field.end as usize];
            let appended = match field.kind {
                Kind::Plain if self.is_null(bytes) => {
                    builder.append_null();
                    true
                }
                Kind::Quoted if self.dialect.quoted_nulls && self.is_null(bytes) => {
                    builder.append_null();
                    true
                }
                Kind::Plain | Kind::Quoted => {
                    builder.try_append_view(block_number, field.start, field.end - field.start).is_ok()
                }
                Kind::Escaped => {
                    self.unescape(bytes, &mut unescaped);
                    if self.dialect.quoted_nulls && self.is_null(&unescaped) {
                        builder.append_null();
                    } else if let Ok(text) = std::str::from_utf8(&unescaped) {
                        builder.append_value(text);
                    } else {
                        builder.append_null();
                        wrong(row);
                    }
                    true
                }
            };
            if !appended {
                builder.append_null();
                wrong(row);
            }
        }
        builder.finish()
    }

    fn is_null(&self, bytes: &[u8]) -> bool {
        self.dialect.nulls.iter().any(|null| null.as_bytes() == bytes)
    }

    /// Copies a quoted field to `out` without its escape characters.
    fn unescape(&self, bytes: &[u8], out: &mut Vec<u8>) {
        out.clear();
        let mut bytes = bytes.iter().copied().peekable();
        while let Some(byte) = bytes.next() {
            let escapes = byte == self.dialect.escape
                && bytes.peek().is_some_and(|next| Some(*next) == self.dialect.quote || *next == self.dialect.escape);
            out.push(if escapes { bytes.next().unwrap_or(byte) } else { byte });
        }
    }
}

/// Line ends within `bytes`.
fn lines(bytes: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', bytes).count() as u64
}

/// The quoted field whose content starts at `start`, and the position after its closing quote; `None` if the block ends
/// before the closing quote is certain.
fn quoted(block: &[u8], start: usize, quote: u8, escape: u8, at_end: bool) -> Option<(Field, usize)> {
    let mut kind = Kind::Quoted;
    let mut at = start;
    loop {
        at += block[at..].iter().position(|&byte| byte == quote || byte == escape)?;
        match block.get(at + 1) {
            Some(&next) if block[at] == escape && (next == quote || next == escape) => {
                kind = Kind::Escaped;
                at += 2;
            }
            None if !at_end => return None,
            _ if block[at] == quote => return Some((Field { start: start as u32, end: at as u32, kind }, at + 1)),
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests;

//! Reader of CSV files and dbgen's tbl files.
//!
//! The file is read in blocks. One pass over a block finds the bounds of all fields of its complete records; an
//! incomplete record at the end moves to the next block. Columns are view arrays into the block, so only fields with
//! escapes are copied. The arrow-csv crate is not used: it does not distinguish a null (nothing between two delimiters)
//! from an empty string (`""`), and its errors do not name row and column.
//!
//! A record ends with `\n` or `\r\n`. Empty lines are skipped unless records have a single field. A quote is special
//! only as the first character of a field.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use arrow::array::{StringViewArray, StringViewBuilder};
use arrow::buffer::Buffer;

use super::{FileRows, bad};
use crate::sql::copy::options::Dialect;
use crate::{Error, Result};

const BLOCK_BYTES: usize = 1 << 20;
/// Maximum length of a record: positions in a block have 32 bits.
const RECORD_BYTES_MAX: usize = 1 << 30;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

pub(crate) struct DelimitedReader {
    path: PathBuf,
    file: File,
    dialect: Dialect,
    /// Bytes read and not yet returned.
    rest: Vec<u8>,
    /// The file has no bytes after `rest`.
    at_end: bool,
    /// Records returned, without the header.
    records: u64,
    /// Bytes of the header and of all records returned.
    bytes: u64,
    /// Fields of the records in the current block, record by record.
    fields: Vec<Field>,
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
    pub fn open(path: &Path, dialect: Dialect) -> Result<Self> {
        let failed = |error: std::io::Error| Error::io("read", path, error);
        let file = File::open(path).map_err(failed)?;
        let mut reader = DelimitedReader {
            path: path.to_path_buf(),
            file,
            dialect,
            rest: Vec::new(),
            at_end: false,
            records: 0,
            bytes: 0,
            fields: Vec::new(),
        };
        reader.fill(BLOCK_BYTES)?;
        if reader.rest.starts_with(BYTE_ORDER_MARK) {
            reader.rest.drain(..BYTE_ORDER_MARK.len());
        } else if reader.rest.starts_with(b"\xff\xfe") || reader.rest.starts_with(b"\xfe\xff") {
            return Err(bad(path, None, "the file is in UTF-16 (convert it to UTF-8)"));
        } else if reader.rest.starts_with(b"\x1f\x8b") || reader.rest.starts_with(b"\x28\xb5\x2f\xfd") {
            return Err(bad(path, None, "the file is compressed (decompress it first)"));
        }
        Ok(reader)
    }

    /// Records returned and their bytes.
    pub fn progress(&self) -> (u64, u64) {
        (self.records, self.bytes)
    }

    /// The first record as strings, without consuming it; `None` if the file is empty.
    pub fn peek(&mut self) -> Result<Option<Vec<String>>> {
        self.fields.clear();
        let Some(next) = self.next_record(0, 0, 0)? else { return Ok(None) };
        let block = Buffer::from(&self.rest[..next]);
        let fields = std::mem::take(&mut self.fields);
        let columns = self.columns(block, &fields, fields.len())?;
        Ok(Some(columns.iter().map(|column| column.iter().next().flatten().unwrap_or_default().to_string()).collect()))
    }

    /// Skips the first record.
    pub fn skip_header(&mut self) -> Result<()> {
        self.fields.clear();
        if let Some(next) = self.next_record(0, 0, 0)? {
            self.rest.drain(..next);
            self.bytes += next as u64;
        }
        Ok(())
    }

    /// The complete records of the next block; `None` at the end of the file.
    ///
    /// # Errors
    /// `Import` if a record does not have `width` fields, is not valid UTF-8, or is malformed.
    pub fn next(&mut self, width: usize) -> Result<Option<FileRows>> {
        self.fields.clear();
        if self.rest.len() < BLOCK_BYTES {
            self.fill(BLOCK_BYTES)?;
        }
        let (mut end, mut count) = (0, 0);
        while let Some(next) = self.next_record(count, width, end)? {
            count = self.check_width(count, width)?;
            end = next;
        }
        if count == 0 {
            return Ok(None);
        }
        let rest = self.rest.split_off(end);
        let block = std::mem::replace(&mut self.rest, rest);
        self.bytes += end as u64;
        let fields = std::mem::take(&mut self.fields);
        let columns = self.columns(Buffer::from_vec(block), &fields, width)?;
        self.fields = fields;
        self.records += count as u64;
        Ok(Some(FileRows::Text(columns)))
    }

    /// Scans the record at `start`, which is number `count` of the block, and appends its fields. Returns the position
    /// of the next record, or `None` at the end of the file. If the record does not end inside the block, the block is
    /// extended for `count` 0; otherwise the result is `None`, and the record becomes the first of the next block.
    /// `width` is the expected number of fields, or 0 if it is unknown.
    fn next_record(&mut self, count: usize, width: usize, mut start: usize) -> Result<Option<usize>> {
        loop {
            // Skip empty lines.
            while width != 1 && matches!(self.rest.get(start), Some(b'\n' | b'\r')) {
                let crlf = self.rest[start] == b'\r' && self.rest.get(start + 1) == Some(&b'\n');
                if self.rest[start] == b'\r' && !crlf {
                    break;
                }
                start += 1 + usize::from(crlf);
            }
            let fields = self.fields.len();
            if start == self.rest.len() && self.at_end {
                return Ok(None);
            }
            let row = Some(self.records + count as u64 + 1);
            match self.scan(start) {
                Scan::Record { next } => return Ok(Some(next)),
                Scan::AfterQuote => {
                    let message = "a closing quote must be followed by a delimiter or a line end";
                    return Err(bad(&self.path, row, message));
                }
                Scan::Incomplete if self.at_end => {
                    return Err(bad(&self.path, row, "unterminated quoted value at end of file"));
                }
                Scan::Incomplete if count > 0 => {
                    self.fields.truncate(fields);
                    return Ok(None);
                }
                Scan::Incomplete => {
                    self.fields.truncate(fields);
                    let read = self.rest.len() - start;
                    if read >= RECORD_BYTES_MAX {
                        return Err(bad(&self.path, row, "a row exceeds 1 GiB (a closing quote may be missing)"));
                    }
                    self.fill(self.rest.len() + read.max(BLOCK_BYTES))?;
                }
            }
        }
    }

    /// Reads until `rest` has `target` bytes or the file ends.
    fn fill(&mut self, target: usize) -> Result<()> {
        if self.at_end || self.rest.len() >= target {
            return Ok(());
        }
        let wanted = target - self.rest.len();
        self.rest.reserve(wanted);
        let read = (&mut self.file).take(wanted as u64).read_to_end(&mut self.rest);
        let read = read.map_err(|error| Error::io("read", &self.path, error))?;
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
                    let len = block[at..].iter().position(|&byte| byte == delimiter || byte == b'\n');
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
    /// `count` is the number of records before it. Returns the number of records including it.
    fn check_width(&mut self, count: usize, width: usize) -> Result<usize> {
        let found = self.fields.len() - count * width;
        let empty_last = self.fields.last().is_some_and(|field| field.start == field.end && field.kind == Kind::Plain);
        if self.dialect.trailing_delimiter && found == width + 1 && empty_last {
            self.fields.pop();
        } else if found != width {
            let row = Some(self.records + count as u64 + 1);
            return Err(bad(&self.path, row, format!("row has {found} values, expected {width}")));
        }
        Ok(count + 1)
    }

    fn columns(&self, block: Buffer, fields: &[Field], width: usize) -> Result<Vec<StringViewArray>> {
        (0..width).map(|column| self.column(&block, fields.iter().skip(column).step_by(width), column)).collect()
    }

    fn column<'f>(
        &self,
        block: &Buffer,
        fields: impl ExactSizeIterator<Item = &'f Field>,
        column: usize,
    ) -> Result<StringViewArray> {
        let mut builder = StringViewBuilder::with_capacity(fields.len());
        let block_number = builder.append_block(block.clone());
        let null = self.dialect.null.as_bytes();
        let mut unescaped = Vec::new();
        for (row, field) in fields.enumerate() {
            let bytes = &block[field.start as usize..field.end as usize];
            let appended = match field.kind {
                Kind::Plain if bytes == null => {
                    builder.append_null();
                    true
                }
                Kind::Plain | Kind::Quoted => {
                    builder.try_append_view(block_number, field.start, field.end - field.start).is_ok()
                }
                Kind::Escaped => {
                    self.unescape(bytes, &mut unescaped);
                    std::str::from_utf8(&unescaped).is_ok_and(|text| {
                        builder.append_value(text);
                        true
                    })
                }
            };
            if !appended {
                let row = self.records + row as u64 + 1;
                let message = format!("value {} is not valid UTF-8", column + 1);
                return Err(bad(&self.path, Some(row), message));
            }
        }
        Ok(builder.finish())
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
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn csv() -> Dialect {
        Dialect { delimiter: b',', quote: Some(b'"'), escape: b'"', null: String::new(), trailing_delimiter: false }
    }

    fn tbl() -> Dialect {
        Dialect { delimiter: b'|', quote: None, escape: b'"', null: "\\N".into(), trailing_delimiter: true }
    }

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(bytes).expect("write");
        file
    }

    type Record = Vec<Option<String>>;

    fn read(bytes: &[u8], dialect: Dialect, width: usize) -> std::result::Result<Vec<Record>, String> {
        let file = file(bytes);
        let mut reader = DelimitedReader::open(file.path(), dialect).map_err(|error| error.to_string())?;
        let mut records = Vec::new();
        while let Some(rows) = reader.next(width).map_err(|error| error.to_string())? {
            let FileRows::Text(columns) = rows else { panic!("text") };
            assert_eq!(columns.len(), width);
            for row in 0..columns[0].iter().len() {
                let value = |column: &StringViewArray| column.iter().nth(row).flatten().map(str::to_string);
                records.push(columns.iter().map(value).collect());
            }
        }
        Ok(records)
    }

    fn record(values: &[Option<&str>]) -> Record {
        values.iter().map(|value| value.map(str::to_string)).collect()
    }

    #[test]
    fn nulls_quotes_and_line_ends() {
        let text = b"a,b\r\n,\"\"\n\n\"x\"\"y,\nz\",it\"s\n\"\\N\",\" \"\r\nlast,\"end\"";
        let expected = [
            record(&[Some("a"), Some("b")]),
            record(&[None, Some("")]),
            record(&[Some("x\"y,\nz"), Some("it\"s")]),
            record(&[Some("\\N"), Some(" ")]),
            record(&[Some("last"), Some("end")]),
        ];
        assert_eq!(read(text, csv(), 2).expect("records"), expected);
        assert_eq!(read(b"", csv(), 2).expect("records"), Vec::<Record>::new());
        assert_eq!(read(b"\n\r\n", csv(), 2).expect("records"), Vec::<Record>::new());
        assert_eq!(
            read(b"\n\"\"\nx", csv(), 1).expect("records"),
            [record(&[None]), record(&[Some("")]), record(&[Some("x")])]
        );
        assert_eq!(read(b"\xef\xbb\xbfa,b\n", csv(), 2).expect("records"), [record(&[Some("a"), Some("b")])]);
    }

    #[test]
    fn another_escape_and_quote() {
        let dialect = Dialect { quote: Some(b'\''), escape: b'\\', ..csv() };
        let expected = [record(&[Some("a'b\\c\\d"), Some("\"x\"")])];
        assert_eq!(read(b"'a\\'b\\\\c\\d',\"x\"\n", dialect, 2).expect("records"), expected);
    }

    #[test]
    fn dbgen_files() {
        let expected = [record(&[Some("1"), Some("\"a"), Some("")]), record(&[Some("2"), None, Some("x y")])];
        assert_eq!(read(b"1|\"a||\n2|\\N|x y|\n", tbl(), 3).expect("records"), expected);
        assert_eq!(read(b"1|\"a|\n2|\\N|x y", tbl(), 3).expect("records"), expected);
    }

    #[test]
    fn errors_name_the_row() {
        let message = |bytes: &[u8]| read(bytes, csv(), 2).expect_err("an error");
        assert!(message(b"a,b\nc\n").ends_with("row 2: row has 1 values, expected 2"));
        assert!(message(b"a,b\nc,d,e\n").ends_with("row 2: row has 3 values, expected 2"));
        assert!(message(b"a,b\n\nc,\"d").contains("row 2: unterminated quoted value"));
        assert!(message(b"a,\"b\"c\n").contains("row 1: a closing quote"));
        assert!(message(b"a,b\nc,\xff\xfe\n").contains("row 2: value 2 is not valid UTF-8"));
        assert!(message(b"a,b\nc,\"\"\"\xff\"\n").contains("row 2: value 2 is not valid UTF-8"));
        assert!(message(b"\xff\xfea\0,\0").contains("UTF-16"));
        assert!(message(b"\x1f\x8b\x08\0").contains("compressed"));
        assert_eq!(read(b"a\0b,c\n", csv(), 2).expect("a record"), [record(&[Some("a\0b"), Some("c")])]);
    }

    #[test]
    fn header_is_peeked_and_skipped() {
        let file = file(b"\n\"a\"\"b\",c\n1,2\n");
        let mut reader = DelimitedReader::open(file.path(), csv()).expect("a reader");
        assert_eq!(reader.peek().expect("peek"), Some(vec!["a\"b".to_string(), "c".to_string()]));
        reader.skip_header().expect("skip");
        assert_eq!(reader.next(2).expect("next").map(|rows| rows.len()), Some(1));
        assert!(reader.next(2).expect("next").is_none());
    }

    #[test]
    fn records_longer_than_blocks() {
        let long = "x".repeat(3 * BLOCK_BYTES) + "\"\n,";
        let quoted = format!("\"{}\"", long.replace('"', "\"\""));
        let text = format!("1,a\n2,{quoted}\n3,{quoted}\n4,d\n");
        let records = read(text.as_bytes(), csv(), 2).expect("records");
        let expected = [("1", "a"), ("2", &long), ("3", &long), ("4", "d")];
        assert!(records == expected.map(|(a, b)| record(&[Some(a), Some(b)])));
    }

    #[test]
    fn many_blocks() {
        let text: String = (0..400_000).map(|i| format!("{i},\"text {i}\"\n")).collect();
        let records = read(text.as_bytes(), csv(), 2).expect("records");
        assert_eq!(records.len(), 400_000);
        for (i, values) in records.iter().enumerate().step_by(997) {
            assert_eq!(*values, record(&[Some(&i.to_string()), Some(&format!("text {i}"))]));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn arbitrary_bytes_yield_rows_or_an_error(bytes in prop::collection::vec(prop::sample::select(
            vec![b'a', b',', b'"', b'\n', b'\r', b'\\', 0xff, 0xc3, 0]), 0..60), width in 1usize..4) {
            let _ = read(&bytes, csv(), width);
            let _ = read(&bytes, tbl(), width);
        }
    }
}

//! Reader of JSON files: a sequence of objects, usually one per line, or one array of objects.
//!
//! Values are decoded as text and then converted like those of a CSV file: numbers keep all their digits, and errors
//! name row and column. In an array of objects, [`ArrayScan`] overwrites the outer brackets and commas with white
//! space, so the decoder sees a sequence of objects.

use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::ReaderBuilder;
use arrow::json::reader::{Decoder, infer_json_schema_from_iterator};
use serde_json::Value;

use super::{FileRows, bad, within};
use crate::base::arrays::{self, list_of};
use crate::sql::copy::source::Source;
use crate::{Error, Result};

const BLOCK_BYTES: usize = 1 << 20;
const BATCH_ROWS: usize = 8192;
/// Maximum size of the rows of a batch.
const BATCH_BYTES_MAX: usize = 2 << 30;

pub(in crate::sql) struct JsonReader {
    text: JsonText,
    schema: SchemaRef,
    /// Objects have only these columns.
    is_strict: bool,
    decoder: Decoder,
    /// Bytes decoded since the last batch. After an error they are decoded again, object by object, to find the row.
    undone: Vec<u8>,
    records: u64,
    bytes: u64,
}

/// The bytes of a file as a sequence of objects.
pub(in crate::sql) struct JsonText {
    source: Source,
    /// Current block of the file.
    block: Vec<u8>,
    /// Position of the first byte of `block` that is not read.
    at: usize,
    at_end: bool,
    array: ArrayScan,
    /// The error that has ended [`JsonText::infer`].
    failure: Option<Error>,
}

impl JsonText {
    pub fn new(source: Source) -> Self {
        JsonText { source, block: Vec::new(), at: 0, at_end: false, array: ArrayScan::default(), failure: None }
    }

    /// The bytes that are not read, of the next block if there are none; empty at the end of the file.
    ///
    /// # Errors
    /// `Io`; `Import` if the file is no array of objects, or damaged.
    fn rest(&mut self) -> Result<&[u8]> {
        if self.at == self.block.len() && !self.at_end {
            self.block.clear();
            self.at = 0;
            self.at_end = self.source.read(BLOCK_BYTES, &mut self.block)? < BLOCK_BYTES;
            self.array.blank(&mut self.block, self.source.path())?;
        }
        Ok(&self.block[self.at..])
    }

    /// All bytes were read.
    fn is_finished(&self) -> bool {
        self.at_end && self.at == self.block.len()
    }

    /// Infers the columns from the first `count` objects.
    ///
    /// # Errors
    /// `Io`; `Import` if the file has something else than objects, or values that fit no type.
    pub fn infer(&mut self, count: usize) -> Result<Schema> {
        let path = self.source.path().to_path_buf();
        let mut row = 0;
        let objects = serde_json::Deserializer::from_reader(BufReader::new(&mut *self)).into_iter::<Value>();
        let objects = objects.take(count).map(|object| {
            row += 1;
            object.map_err(|error| ArrowError::JsonError(error.to_string()))
        });
        let inferred = infer_json_schema_from_iterator(objects);
        inferred.map_err(|error| match self.failure.take() {
            Some(failure) => failure,
            None => describe(&path, Some(row).filter(|row| *row > 0), &error),
        })
    }
}

impl Read for JsonText {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let rest = match self.rest() {
            Ok(rest) => rest,
            Err(error) => {
                let other = std::io::Error::other(error.to_string());
                self.failure = Some(error);
                return Err(other);
            }
        };
        let count = rest.len().min(bytes.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}

impl JsonReader {
    /// Reads a file for a table. `columns` are the names that objects may have, compared without case against the first
    /// object. The values of those with `dimensions` are arrays.
    ///
    /// # Errors
    /// `Io`; `Import` if the start of the file is not a sequence or an array of objects.
    pub fn open(source: Source, columns: &[String], dimensions: &[u8]) -> Result<Self> {
        let mut text = JsonText::new(source);
        let spelling = spelling(text.rest()?, columns);
        let ty = |dimensions: u8| (0..dimensions).fold(DataType::Utf8View, |element, _| list_of(element));
        let field = |(name, dimensions): (&String, &u8)| Field::new(name, ty(*dimensions), true);
        let fields: Vec<Field> = spelling.iter().zip(dimensions).map(field).collect();
        JsonReader::of(text, Arc::new(Schema::new(fields)), true)
    }

    /// Reads the columns of a schema. Objects may have others.
    ///
    /// # Errors
    /// As [`JsonReader::open`].
    pub fn typed(source: Source, schema: SchemaRef) -> Result<Self> {
        JsonReader::of(JsonText::new(source), schema, false)
    }

    fn of(text: JsonText, schema: SchemaRef, is_strict: bool) -> Result<Self> {
        let decoder = decoder(&schema, BATCH_ROWS, is_strict);
        let decoder = decoder.map_err(|error| describe(text.source.path(), None, &error))?;
        Ok(JsonReader { text, schema, is_strict, decoder, undone: Vec::new(), records: 0, bytes: 0 })
    }

    /// Records returned and their bytes.
    pub fn progress(&self) -> (u64, u64) {
        (self.records, self.bytes)
    }

    pub fn is_compressed(&self) -> bool {
        self.text.source.is_compressed()
    }

    /// The next batch of objects as one column of text per name; `None` at the end of the file.
    pub fn next(&mut self) -> Result<Option<FileRows>> {
        self.next_batch()?.map(|batch| texts(&batch)).transpose()
    }

    /// The next batch of objects; `None` at the end of the file.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            let rest = self.text.rest()?;
            let decoded = match self.decoder.decode(rest) {
                Ok(decoded) => decoded,
                Err(error) => {
                    self.undone.extend_from_slice(rest);
                    return Err(self.locate(&error));
                }
            };
            self.undone.extend_from_slice(&rest[..decoded]);
            let is_block_decoded = decoded == rest.len();
            self.text.at += decoded;
            let finished = self.text.is_finished();
            if !finished && is_block_decoded {
                if self.undone.len() > BATCH_BYTES_MAX {
                    let row = Some(self.records + self.decoder.len() as u64);
                    return Err(bad(self.text.source.path(), row, "the rows around this one are too long"));
                }
                continue;
            }
            if finished && self.decoder.has_partial_record() {
                let row = self.records + self.decoder.len() as u64;
                return Err(bad(self.text.source.path(), Some(row.max(1)), "unterminated object at end of file"));
            }
            let batch = match self.decoder.flush() {
                Ok(batch) => batch,
                Err(error) => return Err(self.locate(&error)),
            };
            self.bytes += std::mem::take(&mut self.undone).len() as u64;
            match batch {
                Some(batch) => {
                    self.records += batch.num_rows() as u64;
                    return Ok(Some(batch));
                }
                None if finished => {
                    return self.text.array.finish(self.text.source.path()).map(|()| None);
                }
                None => {}
            }
        }
    }

    /// Finds the row of an error: decodes the bytes since the last batch again, one object at a time.
    fn locate(&self, error: &ArrowError) -> crate::Error {
        let path = self.text.source.path();
        let Ok(mut decoder) = decoder(&self.schema, 1, self.is_strict) else { return describe(path, None, error) };
        let (mut at, mut row) = (0, self.records);
        loop {
            row += 1;
            let decoded = decoder.decode(&self.undone[at..]).and_then(|decoded| {
                at += decoded;
                decoder.flush()
            });
            match decoded {
                Err(error) => return describe(path, Some(row), &error),
                Ok(None) => return describe(path, Some(row), error),
                Ok(Some(_)) => {}
            }
        }
    }
}

fn decoder(schema: &SchemaRef, batch_rows: usize, is_strict: bool) -> std::result::Result<Decoder, ArrowError> {
    ReaderBuilder::new(schema.clone())
        .with_batch_size(batch_rows)
        .with_coerce_primitive(true)
        .with_strict_mode(is_strict)
        .build_decoder()
}

fn describe(path: &Path, row: Option<u64>, error: &ArrowError) -> crate::Error {
    let error = match error {
        // arrow-json's text is "column 'x' missing from schema".
        ArrowError::JsonError(message) if message.ends_with(" missing from schema") => {
            let column = message.trim_end_matches(" missing from schema").replace('\'', "\"");
            Error::InvalidFile(format!("{column} of the file is not a column of the table"))
        }
        ArrowError::JsonError(message) => Error::InvalidFile(message.clone()),
        other => Error::from(other),
    };
    within(path, row, error)
}

fn texts(batch: &RecordBatch) -> Result<FileRows> {
    Ok(FileRows::Text(batch.columns().iter().map(column_texts).collect::<Result<_>>()?))
}

/// Texts as they are, and the texts of arrays of them.
fn column_texts(column: &ArrayRef) -> Result<StringViewArray> {
    let Some(lists) = arrays::lists(column)? else { return Ok(column.as_string_view().clone()) };
    let is_nested = arrays::is_list(lists.values().data_type());
    Ok(arrays::texts(&lists, &column_texts(lists.values())?, is_nested))
}

/// The names of the columns as the first object spells them.
fn spelling(block: &[u8], columns: &[String]) -> Vec<String> {
    use serde_json::{Deserializer, Map};
    let first = Deserializer::from_slice(block).into_iter::<Map<String, Value>>().next();
    let Some(Ok(first)) = first else { return columns.to_vec() };
    let spelled = |column: &String| {
        let exact = first.contains_key(column);
        let other = first.keys().find(|key| key.eq_ignore_ascii_case(column)).filter(|_| !exact);
        other.unwrap_or(column).clone()
    };
    columns.iter().map(spelled).collect()
}

/// Overwrites the brackets and commas of an outer array with white space, block by block.
#[derive(Debug, Default)]
struct ArrayScan {
    /// True if the file is an array; `None` until its first character is read.
    array: Option<bool>,
    depth: u32,
    in_text: bool,
    escaped: bool,
    closed: bool,
    /// True if an object has started since the last comma of the array.
    value: bool,
    commas: u64,
}

impl ArrayScan {
    fn blank(&mut self, block: &mut [u8], path: &Path) -> Result<()> {
        let mut start = 0;
        if self.array.is_none() {
            if block.starts_with(b"\xef\xbb\xbf") {
                block[..3].fill(b' ');
            }
            let Some(first) = block.iter().position(|byte| !byte.is_ascii_whitespace()) else { return Ok(()) };
            self.array = Some(block[first] == b'[');
            if self.array == Some(true) {
                block[first] = b' ';
                start = first + 1;
            }
        }
        if self.array != Some(true) {
            return Ok(());
        }
        for byte in &mut block[start..] {
            if !self.step(byte) {
                let row = Some(self.commas + 1);
                return Err(bad(path, row, "the file is not an array of objects"));
            }
        }
        Ok(())
    }

    /// Processes a byte; returns false if the byte is not allowed at its position.
    fn step(&mut self, byte: &mut u8) -> bool {
        if self.closed {
            return byte.is_ascii_whitespace();
        }
        if self.in_text {
            match *byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return true;
        }
        match *byte {
            b'"' if self.depth > 0 => self.in_text = true,
            b'{' if self.depth == 0 && self.value => return false,
            b'{' => {
                self.depth += 1;
                self.value = true;
            }
            b'[' if self.depth > 0 => self.depth += 1,
            b'}' | b']' if self.depth > 0 => self.depth -= 1,
            b']' if self.value || self.commas == 0 => {
                *byte = b' ';
                self.closed = true;
            }
            b',' if self.depth == 0 && self.value => {
                *byte = b'\n';
                self.value = false;
                self.commas += 1;
            }
            other => return self.depth > 0 || other.is_ascii_whitespace(),
        }
        true
    }

    fn finish(&self, path: &Path) -> Result<()> {
        if self.array == Some(true) && !self.closed {
            return Err(bad(path, None, "unterminated array at end of file"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::sql::copy::options::Compression;
    use crate::sql::files::Files;

    fn read(text: &[u8]) -> std::result::Result<Vec<Vec<Option<String>>>, String> {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text).expect("write");
        let columns = ["a".to_string(), "b".to_string()];
        let source = Source::open(file.path(), &Files::default(), Compression::None);
        let reader = source.and_then(|source| JsonReader::open(source, &columns, &vec![0; columns.len()]));
        let mut reader = reader.map_err(|error| error.to_string())?;
        let mut records = Vec::new();
        while let Some(rows) = reader.next().map_err(|error| error.to_string())? {
            let FileRows::Text(columns) = rows else { panic!("text") };
            for row in 0..columns[0].iter().len() {
                records.push(columns.iter().map(|c| c.iter().nth(row).flatten().map(str::to_string)).collect());
            }
        }
        Ok(records)
    }

    fn rows(rows: &[[Option<&str>; 2]]) -> Vec<Vec<Option<String>>> {
        rows.iter().map(|row| row.iter().map(|value| value.map(str::to_string)).collect()).collect()
    }

    #[test]
    fn lines_and_arrays() {
        let expected = rows(&[
            [Some("12345678901234567890.5"), Some("x\n,]")],
            [None, Some("true")],
            [None, None],
            [Some("-1e5"), Some("")],
        ]);
        let objects = [
            r#"{"a": 12345678901234567890.5, "b": "x\n,]"}"#,
            r#"{"b": true, "a": null}"#,
            "{}",
            r#"{"a":-1e5,"b":""}"#,
        ];
        assert_eq!(read(objects.join("\n").as_bytes()).expect("lines"), expected);
        assert_eq!(read(objects.join(" ").as_bytes()).expect("objects"), expected);
        assert_eq!(read(format!(" [ {} ]\n", objects.join(" ,\n")).as_bytes()).expect("an array"), expected);
        for empty in ["", " \n", "[]", " [ ] "] {
            assert_eq!(read(empty.as_bytes()).expect("nothing"), rows(&[]), "{empty:?}");
        }
        assert_eq!(
            read(br#"{"A": 1, "B": 2} {"A": 3}"#).expect("capitals"),
            rows(&[[Some("1"), Some("2")], [Some("3"), None]])
        );
    }

    #[test]
    fn errors_name_the_row() {
        let message = |text: &str| read(text.as_bytes()).expect_err(text);
        let many = r#"{"a":1}"#.to_string() + &"\n{\"a\":1}".repeat(9999);
        assert!(
            message(&format!("{many}\n{{\"c\":1}}"))
                .ends_with("row 10001: column \"c\" of the file is not a column of the table")
        );
        assert!(message("{\"a\":1}\n{\"a\":oops}").contains("row 2: "));
        assert!(message("{\"a\":1}\n{\"a\":2").contains("row 2: unterminated object at end of file"));
        assert!(message("{\"a\":1}\n{\"a\":[1,2]}\n").contains("row 2: "));
        assert!(message("{\"a\":1}\n7\n").contains("row 2: "));
        assert!(message("[{\"a\":1}, {\"a\":2}").contains("unterminated array at end of file"));
        for text in ["[{}{}]", "[{},]", "[,{}]", "[1]", "[{}] x", "[[{}]]", "[\"a\"]"] {
            assert!(message(text).contains("not an array of objects"), "{text}: {}", message(text));
        }
        assert!(read(b"{\"a\":\"\xff\"}").is_err());
    }

    #[test]
    fn arrays_longer_than_blocks() {
        let count = 120_000;
        let objects: Vec<String> = (0..count).map(|i| format!("{{\"a\":{i},\"b\":\"[{{\\\"{i}\"}}")).collect();
        let records = read(format!("[{}]", objects.join(",")).as_bytes()).expect("an array");
        assert_eq!(records.len(), count);
        assert_eq!(records[77_777], [Some("77777".to_string()), Some("[{\"77777".to_string())]);
    }
}

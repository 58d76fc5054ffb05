//! CSV, tbl and JSON files.
//!
//! CSV: a null is written as the text of the option NULL, empty by default. Values equal to that text, empty values,
//! and values with a delimiter, quote or line end are quoted. tbl: there are no quotes, so such values other than empty
//! ones are errors. JSON: one object per line; integers, decimals and finite floats are numbers, other floats and bytes
//! are strings.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::runtime::SpawnedTask;
use futures::{Stream, StreamExt, stream};

use super::compressed::TextFile;
use super::{Part, Sink, column_type, convert, unsupported};
use crate::sql::copy::options::Dialect;
use crate::sql::copy::output::Target;
use crate::write::text::{Formatter, elements_of};
use crate::{Error, Result};

/// About the longest text of a task in bytes, unless a single row is longer.
const TEXT_BYTES: usize = 4 << 20;
/// Memory that is reserved for the rows of a batch if they are as long as the first one, in bytes at most.
const RESERVED_MAX: usize = 1 << 20;

/// Parts of a batch whose values take about [`TEXT_BYTES`] each.
fn divided(batch: &RecordBatch) -> Vec<RecordBatch> {
    let bytes: usize = batch.columns().iter().map(value_bytes).sum();
    let rows = batch.num_rows();
    let part = rows.div_ceil(bytes.div_ceil(TEXT_BYTES).max(1)).max(1);
    match part >= rows {
        true => vec![batch.clone()],
        false => (0..rows).step_by(part).map(|start| batch.slice(start, part.min(rows - start))).collect(),
    }
}

fn value_bytes(array: &ArrayRef) -> usize {
    match array.data_type() {
        DataType::Utf8View => array.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => array.as_binary_view().total_buffer_bytes_used(),
        // An error means that the length is unknown.
        _ => array.to_data().get_slice_memory_size().unwrap_or(0),
    }
}

/// Encodes rows. Batches are independent of each other, so that threads share them.
pub(in crate::sql::copy) struct TextEncoder {
    names: Vec<String>,
    style: Style,
}

enum Style {
    Delimited(Box<Delimited>),
    /// The column names as JSON strings.
    Json(Vec<String>),
}

/// A dialect, and what follows from it for each value.
struct Delimited {
    dialect: Dialect,
    /// The bytes that need quotes.
    is_special: [bool; 256],
    /// Whether a number can need quotes.
    checks_numbers: bool,
}

/// Encoded rows.
pub(in crate::sql::copy) struct Text {
    text: String,
    rows: u64,
}

impl Part for Text {
    fn rows(&self) -> u64 {
        self.rows
    }
}

impl TextEncoder {
    /// # Errors
    /// `Unsupported` for types that text files cannot have.
    pub fn delimited(schema: &SchemaRef, dialect: Dialect) -> Result<Self> {
        TextEncoder::new(schema, Style::Delimited(Box::new(Delimited::new(dialect))))
    }

    /// # Errors
    /// As of [`TextEncoder::delimited`].
    pub fn json(schema: &SchemaRef) -> Result<Self> {
        let names = schema.fields().iter().map(|field| {
            let mut name = String::new();
            json_text(field.name(), &mut name);
            name
        });
        TextEncoder::new(schema, Style::Json(names.collect()))
    }

    fn new(schema: &SchemaRef, style: Style) -> Result<Self> {
        for field in schema.fields() {
            if column_type(field.data_type()).is_none() {
                return Err(unsupported(field.name(), field.data_type()));
            }
        }
        let names = schema.fields().iter().map(|field| field.name().clone()).collect();
        Ok(TextEncoder { names, style })
    }

    /// The line of the column names.
    pub fn header(&self) -> String {
        let mut line = String::new();
        if let Style::Delimited(format) = &self.style {
            for (i, name) in self.names.iter().enumerate() {
                if i > 0 {
                    line.push(char::from(format.dialect.delimiter));
                }
                match format.needs_quotes(name) {
                    true => quote(name, &format.dialect, &mut line),
                    false => line.push_str(name),
                }
            }
            line.push('\n');
        }
        line
    }

    /// Encodes the batches of a query on the threads of its runtime, `threads` of them at a time, in their order.
    pub fn encode_all(
        self,
        batches: impl Stream<Item = Result<RecordBatch>>,
        threads: usize,
    ) -> impl Stream<Item = Result<Text>> {
        let encoder = Arc::new(self);
        let mut rows = 0;
        let parts = batches.flat_map(|batch| {
            let parts = match batch {
                Ok(batch) => divided(&batch).into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            };
            stream::iter(parts)
        });
        let encoded = parts.map(move |batch| {
            let (encoder, rows_before) = (encoder.clone(), rows);
            rows += batch.as_ref().map_or(0, RecordBatch::num_rows) as u64;
            async move {
                let batch = batch?;
                let task = SpawnedTask::spawn(async move { encoder.encode(&batch, rows_before) });
                task.join().await.map_err(|error| Error::task(&error))?
            }
        });
        encoded.buffered(threads.max(1))
    }

    /// Encodes a batch. `rows_before` is the number of rows before it, for messages.
    pub fn encode(&self, batch: &RecordBatch, rows_before: u64) -> Result<Text> {
        let arrays = batch.columns().iter().zip(&self.names).map(|(column, name)| convert(column, name));
        let arrays = arrays.collect::<Result<Vec<_>>>()?;
        let columns = arrays.iter().zip(&self.names).map(|(array, name)| Column::new(array, name));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let (mut text, mut value) = (String::new(), String::new());
        for row in 0..batch.num_rows() {
            match &self.style {
                Style::Delimited(format) => {
                    let failed = |column: usize| self.unquotable(column, rows_before + row as u64 + 1, format);
                    delimited_row(row, &columns, format, &mut value, &mut text).map_err(failed)?;
                }
                Style::Json(names) => json_row(row, &columns, names, &mut value, &mut text),
            }
            if row == 0 {
                text.reserve((text.len() * batch.num_rows()).min(RESERVED_MAX));
            }
        }
        Ok(Text { text, rows: batch.num_rows() as u64 })
    }

    /// The error of a value that needs quotes in a format without quotes.
    fn unquotable(&self, column: usize, row: u64, format: &Delimited) -> Error {
        let null = format.null();
        let problem = format!("a tbl file cannot hold a delimiter, a line end or \"{null}\" in a value");
        Error::Import {
            path: None,
            row: Some(row),
            column: Some(self.names[column].clone()),
            source: Box::new(Error::InvalidFile(problem)),
        }
    }
}

/// Writes encoded rows.
pub(in crate::sql::copy) struct TextSink {
    file: TextFile,
}

impl TextSink {
    /// A sink whose file begins with `header`.
    pub fn new(mut file: TextFile, header: &str) -> Result<Self> {
        file.write_all(header.as_bytes()).map_err(failed)?;
        Ok(TextSink { file })
    }
}

impl Sink for TextSink {
    type Part = Text;

    fn write(&mut self, part: &Text) -> Result<()> {
        self.file.write_all(part.text.as_bytes()).map_err(failed)
    }

    fn finish(self) -> Result<Target> {
        self.file.finish().map_err(failed)
    }
}

fn failed(error: std::io::Error) -> Error {
    Error::io("write", Path::new(""), error)
}

struct Column<'a> {
    /// `None` if the array has no nulls.
    nulls: Option<&'a ArrayRef>,
    formatter: Formatter<'a>,
    is_number: bool,
}

impl<'a> Column<'a> {
    fn new(array: &'a ArrayRef, name: &str) -> Result<Self> {
        let Some(formatter) = Formatter::new(array) else { return Err(unsupported(name, array.data_type())) };
        let nulls = Some(array).filter(|array| array.null_count() > 0);
        let is_number = formatter.is_number() || matches!(formatter, Formatter::Float32(_) | Formatter::Float64(_));
        Ok(Column { nulls, formatter, is_number })
    }

    fn is_null(&self, row: usize) -> bool {
        self.nulls.is_some_and(|array| array.is_null(row))
    }
}

impl Delimited {
    fn new(dialect: Dialect) -> Self {
        let mut is_special = [false; 256];
        for byte in [Some(dialect.delimiter), dialect.quote, Some(b'\n'), Some(b'\r')].into_iter().flatten() {
            is_special[usize::from(byte)] = true;
        }
        // Digits, signs, exponents, Infinity and NaN.
        let in_numbers = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        let checks_numbers = in_numbers(dialect.delimiter)
            || dialect.quote.is_some_and(in_numbers)
            || dialect.nulls.first().is_some_and(|null| !null.is_empty());
        Delimited { dialect, is_special, checks_numbers }
    }

    /// The text that stands for null.
    fn null(&self) -> &str {
        self.dialect.nulls.first().map_or("", String::as_str)
    }

    /// True if the value without quotes would be read as a different value.
    fn needs_quotes(&self, value: &str) -> bool {
        value.is_empty() || value == self.null() || value.bytes().any(|byte| self.is_special[usize::from(byte)])
    }
}

/// Appends a row. `value` is scratch space.
///
/// # Errors
/// The number of a column whose value needs quotes in a format that has none.
fn delimited_row(
    row: usize,
    columns: &[Column<'_>],
    format: &Delimited,
    value: &mut String,
    out: &mut String,
) -> std::result::Result<(), usize> {
    let dialect = &format.dialect;
    for (i, column) in columns.iter().enumerate() {
        if i > 0 {
            out.push(char::from(dialect.delimiter));
        }
        if column.is_null(row) {
            out.push_str(format.null());
            continue;
        }
        let start = out.len();
        column.formatter.write(row, out);
        if (column.is_number && !format.checks_numbers) || !format.needs_quotes(&out[start..]) {
            continue;
        }
        if dialect.quote.is_some() {
            value.clear();
            value.push_str(&out[start..]);
            out.truncate(start);
            quote(value, dialect, out);
        } else if out.len() > start {
            return Err(i);
        }
    }
    if dialect.trailing_delimiter {
        out.push(char::from(dialect.delimiter));
    }
    out.push('\n');
    Ok(())
}

/// Appends a JSON object in a line of its own. `text` is scratch space.
fn json_row(row: usize, columns: &[Column<'_>], names: &[String], text: &mut String, out: &mut String) {
    out.push('{');
    for (i, (column, name)) in columns.iter().zip(names).enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push_str(name);
        out.push(':');
        match column.is_null(row) {
            true => out.push_str("null"),
            false => json_value(&column.formatter, row, text, out),
        }
    }
    out.push_str("}\n");
}

/// Appends a value that is not null. `text` is scratch space.
fn json_value(formatter: &Formatter<'_>, row: usize, text: &mut String, out: &mut String) {
    if let Formatter::List(lists, elements) = formatter {
        out.push('[');
        for (i, element) in elements_of(lists, row).enumerate() {
            if i > 0 {
                out.push(',');
            }
            match lists.values().is_null(element) {
                true => out.push_str("null"),
                false => json_value(elements, element, text, out),
            }
        }
        return out.push(']');
    }
    text.clear();
    formatter.write(row, text);
    match formatter {
        formatter if formatter.is_number() => out.push_str(text),
        Formatter::Boolean(_) => out.push_str(text),
        // JSON has no numbers for "Infinity" and "NaN".
        Formatter::Float32(_) | Formatter::Float64(_) if text.ends_with(|c: char| c.is_ascii_digit()) => {
            out.push_str(text);
        }
        _ => json_text(text, out),
    }
}

/// Appends a value in quotes, or as it is if the dialect has none.
fn quote(value: &str, dialect: &Dialect, out: &mut String) {
    let Some(quote) = dialect.quote else { return out.push_str(value) };
    let (quote, escape) = (char::from(quote), char::from(dialect.escape));
    out.push(quote);
    for character in value.chars() {
        if character == quote || character == escape {
            out.push(escape);
        }
        out.push(character);
    }
    out.push(quote);
}

fn json_text(value: &str, out: &mut String) {
    // Serialising a string into memory cannot fail.
    out.push_str(&serde_json::to_string(value).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringViewArray};

    use super::*;

    #[test]
    fn batches_with_long_values_are_divided() {
        let batch = |length: usize| {
            let texts = StringViewArray::from_iter_values((0..10).map(|row| format!("{row}").repeat(length)));
            let numbers = Int64Array::from_iter_values(0..10);
            RecordBatch::try_from_iter([("n", Arc::new(numbers) as ArrayRef), ("t", Arc::new(texts) as ArrayRef)])
                .unwrap()
        };
        let rows = |length| divided(&batch(length)).iter().map(RecordBatch::num_rows).collect::<Vec<_>>();
        assert_eq!(rows(1), [10]);
        assert_eq!(rows(1 << 20), [4, 4, 2]);
        assert_eq!(rows(8 << 20), [1; 10]);
        let joined = arrow::compute::concat_batches(&batch(1 << 20).schema(), &divided(&batch(1 << 20))).unwrap();
        assert_eq!(joined, batch(1 << 20));
        assert_eq!(divided(&batch(1).slice(0, 0)).len(), 1);
    }
}

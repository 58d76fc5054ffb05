//! CSV, tbl and JSON files.
//!
//! CSV: a null is written as the text of the option NULL, empty by default. Values equal to that text, empty values,
//! and values with a delimiter, quote or line end are quoted. tbl: there are no quotes, so such values other than empty
//! ones are errors. JSON: one object per line; integers, decimals and finite floats are numbers, other floats and bytes
//! are strings.

use std::fs::File;
use std::path::Path;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;

use super::compressed::TextFile;
use super::{Sink, column_type, convert, unsupported};
use crate::sql::copy::options::Dialect;
use crate::write::text::{Formatter, elements_of};
use crate::{Error, Result};

const BUFFER_BYTES: usize = 1 << 20;

pub(super) struct TextSink {
    file: TextFile,
    names: Vec<String>,
    style: Style,
    buffer: String,
    value: String,
    rows: u64,
}

enum Style {
    Delimited(Dialect),
    /// The column names as JSON strings.
    Json(Vec<String>),
}

impl TextSink {
    pub fn delimited(file: TextFile, schema: &SchemaRef, dialect: Dialect, header: bool) -> Result<Self> {
        let mut sink = TextSink::new(file, schema, Style::Delimited(dialect.clone()))?;
        if header {
            for (i, name) in sink.names.iter().enumerate() {
                if i > 0 {
                    sink.buffer.push(char::from(dialect.delimiter));
                }
                quote_if_needed(name, &dialect, &mut sink.buffer);
            }
            sink.buffer.push('\n');
        }
        Ok(sink)
    }

    pub fn json(file: TextFile, schema: &SchemaRef) -> Result<Self> {
        let names = schema.fields().iter().map(|field| {
            let mut name = String::new();
            json_text(field.name(), &mut name);
            name
        });
        TextSink::new(file, schema, Style::Json(names.collect()))
    }

    fn new(file: TextFile, schema: &SchemaRef, style: Style) -> Result<Self> {
        for field in schema.fields() {
            if column_type(field.data_type()).is_none() {
                let (name, ty) = (field.name(), field.data_type());
                return Err(unsupported(name, ty));
            }
        }
        let names = schema.fields().iter().map(|field| field.name().clone()).collect();
        Ok(TextSink { file, names, style, buffer: String::new(), value: String::new(), rows: 0 })
    }

    fn delimited_row(&mut self, row: usize, columns: &[Column<'_>], dialect: &Dialect) -> Result<()> {
        for (i, column) in columns.iter().enumerate() {
            if i > 0 {
                self.buffer.push(char::from(dialect.delimiter));
            }
            if column.array.is_null(row) {
                self.buffer.push_str(null_of(dialect));
                continue;
            }
            self.value.clear();
            column.formatter.write(row, &mut self.value);
            if dialect.quote.is_some() {
                quote_if_needed(&self.value, dialect, &mut self.buffer);
            } else if needs_quotes(&self.value, dialect) && !self.value.is_empty() {
                let (name, row) = (&self.names[i], self.rows + 1);
                let problem =
                    format!("a tbl file cannot hold a delimiter, a line end or \"{}\" in a value", null_of(dialect));
                return Err(Error::Import {
                    path: None,
                    row: Some(row),
                    column: Some(name.clone()),
                    source: Box::new(Error::InvalidFile(problem)),
                });
            } else {
                self.buffer.push_str(&self.value);
            }
        }
        if dialect.trailing_delimiter {
            self.buffer.push(char::from(dialect.delimiter));
        }
        self.buffer.push('\n');
        Ok(())
    }

    fn json_row(&mut self, row: usize, columns: &[Column<'_>], names: &[String]) {
        self.buffer.push('{');
        for (i, (column, name)) in columns.iter().zip(names).enumerate() {
            if i > 0 {
                self.buffer.push(',');
            }
            self.buffer.push_str(name);
            self.buffer.push(':');
            if column.array.is_null(row) {
                self.buffer.push_str("null");
                continue;
            }
            json_value(&column.formatter, row, &mut self.value, &mut self.buffer);
        }
        self.buffer.push_str("}\n");
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write_all(self.buffer.as_bytes()).map_err(|error| Error::io("write", Path::new(""), error))?;
        self.buffer.clear();
        Ok(())
    }
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

struct Column<'a> {
    array: &'a ArrayRef,
    formatter: Formatter<'a>,
}

impl Sink for TextSink {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let arrays = batch.columns().iter().zip(&self.names).map(|(column, name)| convert(column, name));
        let arrays = arrays.collect::<Result<Vec<_>>>()?;
        let column = |(array, name): (_, &String)| match Formatter::new(array) {
            Some(formatter) => Ok(Column { array, formatter }),
            None => Err(unsupported(name, array.data_type())),
        };
        let columns = arrays.iter().zip(&self.names).map(column).collect::<Result<Vec<_>>>()?;
        let style = std::mem::replace(&mut self.style, Style::Json(Vec::new()));
        let written = (0..batch.num_rows()).try_for_each(|row| {
            match &style {
                Style::Delimited(dialect) => self.delimited_row(row, &columns, dialect)?,
                Style::Json(names) => self.json_row(row, &columns, names),
            }
            self.rows += 1;
            if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
        });
        self.style = style;
        written
    }

    fn finish(mut self: Box<Self>) -> Result<File> {
        self.flush()?;
        self.file.finish().map_err(|error| Error::io("write", Path::new(""), error))
    }
}

/// The text that stands for null.
fn null_of(dialect: &Dialect) -> &str {
    dialect.nulls.first().map_or("", String::as_str)
}

/// True if the value without quotes would be read as a different value.
fn needs_quotes(value: &str, dialect: &Dialect) -> bool {
    let special = |byte: u8| byte == dialect.delimiter || byte == b'\n' || byte == b'\r' || Some(byte) == dialect.quote;
    value.is_empty() || value == null_of(dialect) || value.bytes().any(special)
}

fn quote_if_needed(value: &str, dialect: &Dialect, out: &mut String) {
    let Some(quote) = dialect.quote.filter(|_| needs_quotes(value, dialect)) else { return out.push_str(value) };
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

//! Result rows as text: [`Mode`] names an output format, and its [`Format`] writes batch after batch in bounded memory.

mod delimited;
mod lines;
mod table;

use std::io::{self, Write};

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use clap::ValueEnum;

use crate::failure::{Failure, Result};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// A boxed table; on a terminal, wide values are truncated
    #[default]
    Table,
    /// Comma-separated values with a header
    Csv,
    /// An array of JSON objects
    Json,
    /// One "column = value" line per value
    Line,
    /// A Markdown table
    Markdown,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Table => "table",
            Mode::Csv => "csv",
            Mode::Json => "json",
            Mode::Line => "line",
            Mode::Markdown => "markdown",
        }
    }

    /// A writer of results with this schema. `width` is the number of columns of the terminal; none means no limit.
    pub fn format(self, schema: SchemaRef, width: Option<usize>) -> Box<dyn Format> {
        let printable = if self == Mode::Json { keyaki::printable_as_json } else { keyaki::printable };
        let format: Box<dyn Format> = match self {
            Mode::Table => Box::new(table::Table::new(schema, width)),
            Mode::Csv => Box::new(delimited::Csv::new(schema)),
            Mode::Json => Box::new(delimited::Json::new()),
            Mode::Line => Box::new(lines::Line::new(schema)),
            Mode::Markdown => Box::new(lines::Markdown::new(schema)),
        };
        Box::new(Printable { format, printable })
    }

    /// True if a footer such as "(3 rows, 0.01 s)" may follow the result.
    pub fn has_footer(self) -> bool {
        matches!(self, Mode::Table | Mode::Line | Mode::Markdown)
    }
}

/// Batches as a boxed table; an empty text for no batches.
///
/// # Errors
/// [`Failure::Output`] if a value cannot be formatted.
pub fn table_of(batches: &[RecordBatch]) -> Result<String> {
    let Some(first) = batches.first() else { return Ok(String::new()) };
    let (mut format, mut text) = (Mode::Table.format(first.schema(), None), Vec::new());
    let written = batches.iter().try_for_each(|batch| format.batch(batch, &mut text));
    written.and_then(|()| format.end(&mut text)).map_err(Failure::Output)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Writes one result: any number of batches, then the end.
pub trait Format {
    /// Writes the rows of a batch, or keeps them for later.
    ///
    /// # Errors
    /// Errors of `out`, and [`io::ErrorKind::InvalidData`] if a value cannot be formatted.
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()>;
    /// Writes the remaining rows and the end of the result.
    fn end(&mut self, out: &mut dyn Write) -> io::Result<()>;
}

/// A format of rows whose values Arrow prints as SQL.
struct Printable {
    format: Box<dyn Format>,
    printable: fn(&RecordBatch) -> RecordBatch,
}

impl Format for Printable {
    fn batch(&mut self, batch: &RecordBatch, out: &mut dyn Write) -> io::Result<()> {
        self.format.batch(&(self.printable)(batch), out)
    }

    fn end(&mut self, out: &mut dyn Write) -> io::Result<()> {
        self.format.end(out)
    }
}

/// Formatters for the columns of a batch. They write NULL as the text `null`.
fn formatters<'a>(columns: &'a [ArrayRef], null: &'static str) -> io::Result<Vec<ArrayFormatter<'a>>> {
    let options = FormatOptions::default().with_null(null).with_display_error(true);
    columns.iter().map(|column| ArrayFormatter::try_new(column, &options).map_err(to_io)).collect()
}

/// The I/O error inside an Arrow error; other errors become [`io::ErrorKind::InvalidData`].
fn to_io(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use arrow::array::{Decimal128Array, Int64Array, RecordBatch, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    pub fn batch(ids: &[Option<i64>], names: &[Option<&str>]) -> RecordBatch {
        let schema = Schema::new(vec![
            Field::new("id", DataType::Int64, true),
            Field::new("name", DataType::Utf8, true),
            Field::new("total", DataType::Decimal128(12, 2), true),
        ]);
        let totals = Decimal128Array::from_iter(ids.iter().map(|id| id.map(|id| i128::from(id) * 150)))
            .with_precision_and_scale(12, 2)
            .expect("12,2 is valid");
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(ids.to_vec())),
            Arc::new(StringArray::from(names.to_vec())),
            Arc::new(totals),
        ];
        RecordBatch::try_new(Arc::new(schema), columns).expect("columns match the schema")
    }

    pub fn written(mode: Mode, width: Option<usize>, batches: &[RecordBatch]) -> String {
        let mut out = Vec::new();
        let mut format = mode.format(batches[0].schema(), width);
        for batch in batches {
            format.batch(batch, &mut out).expect("writes to memory");
        }
        format.end(&mut out).expect("writes to memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn every_mode_shows_an_empty_result() {
        let empty = batch(&[], &[]);
        assert_eq!(written(Mode::Csv, None, std::slice::from_ref(&empty)), "id,name,total\n");
        assert_eq!(written(Mode::Json, None, std::slice::from_ref(&empty)), "[]\n");
        assert_eq!(written(Mode::Line, None, std::slice::from_ref(&empty)), "");
        assert!(written(Mode::Table, None, std::slice::from_ref(&empty)).contains("total"));
        assert!(written(Mode::Markdown, None, &[empty]).starts_with("| id | name | total |\n"));
    }
}

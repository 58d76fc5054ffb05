//! Readers of COPY FROM, one for each format. A reader returns batches of rows, and errors with file and row.

mod delimited;
mod json;
mod object_pages;
mod parquet;

use std::path::Path;

use arrow::array::{RecordBatch, StringViewArray};

pub(in crate::sql) use delimited::DelimitedReader;
pub(in crate::sql) use json::{JsonReader, JsonText};
pub(in crate::sql) use object_pages::ObjectPages;
pub(super) use parquet::ParquetReader;

use crate::Error;

/// A batch of rows before conversion to the column types of the table.
#[derive(Debug)]
pub(in crate::sql) enum FileRows {
    /// Typed values, from Parquet.
    Typed(RecordBatch),
    /// One array of text for each column, all of equal length.
    Text(Vec<StringViewArray>),
}

impl FileRows {
    pub fn len(&self) -> usize {
        match self {
            FileRows::Typed(batch) => batch.num_rows(),
            FileRows::Text(columns) => columns.first().map_or(0, arrow::array::Array::len),
        }
    }
}

/// An `Import` error with an `InvalidFile` cause. `row` is counted from 1.
pub(in crate::sql) fn bad(path: &Path, row: Option<u64>, message: impl Into<String>) -> Error {
    within(path, row, Error::InvalidFile(message.into()))
}

fn within(path: &Path, row: Option<u64>, error: Error) -> Error {
    Error::Import { path: Some(path.to_path_buf()), row, column: None, source: Box::new(error) }
}

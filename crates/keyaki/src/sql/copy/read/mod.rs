//! Readers of files: each gives batches of rows, and knows how to say where something is wrong.

mod delimited;
mod json;
mod parquet;

use std::path::Path;

use arrow::array::{RecordBatch, StringViewArray};

pub(super) use delimited::DelimitedReader;
pub(super) use json::JsonReader;
pub(super) use parquet::ParquetReader;

use crate::Error;

/// Rows of a file, before they are given the types of a table.
#[derive(Debug)]
pub(super) enum FileRows {
    /// Values with types of their own.
    Typed(RecordBatch),
    /// Text, a column each; all of one length.
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

/// Something wrong at a place of a file; `row` counts from 1.
fn bad(path: &Path, row: Option<u64>, message: impl Into<String>) -> Error {
    within(path, row, Error::InvalidFile(message.into()))
}

fn within(path: &Path, row: Option<u64>, error: Error) -> Error {
    Error::Import { path: Some(path.to_path_buf()), row, column: None, source: Box::new(error) }
}

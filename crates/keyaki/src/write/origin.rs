//! The files that rows come from, for error messages.

use std::path::PathBuf;

/// Where rows come from, for messages: knows the file and the row in it of row `n` of the stream.
pub(crate) trait Origin: std::fmt::Debug + Send + Sync {
    /// File and row (from 1) of a row of the stream (from 0); none if it is not from a file.
    fn locate(&self, row: u64) -> Option<(PathBuf, u64)>;
    /// How many rows there are, as far as known when the first have come.
    fn total_rows(&self) -> Option<u64>;
}

/// Rows that are not from a file.
#[derive(Debug)]
pub(crate) struct NoOrigin;

impl Origin for NoOrigin {
    fn locate(&self, _: u64) -> Option<(PathBuf, u64)> {
        None
    }
    fn total_rows(&self) -> Option<u64> {
        None
    }
}

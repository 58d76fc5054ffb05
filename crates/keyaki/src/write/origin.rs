//! Positions of rows in files and loads, for error messages.

use std::path::PathBuf;

/// Maps rows of a stream to their positions in the source.
pub(crate) trait Origin: std::fmt::Debug + Send + Sync {
    /// File and row (counted from 1) of row `row` of the stream (counted from 0); no file for rows of a program. `None`
    /// for rows without a position.
    fn locate(&self, row: u64) -> Option<(Option<PathBuf>, u64)>;
    /// Estimated rows of the stream; `None` before the first batch of a file is read, and without an estimate.
    fn total_rows(&self) -> Option<u64>;
}

/// The origin of rows without positions.
#[derive(Debug)]
pub(crate) struct NoOrigin;

impl Origin for NoOrigin {
    fn locate(&self, _: u64) -> Option<(Option<PathBuf>, u64)> {
        None
    }
    fn total_rows(&self) -> Option<u64> {
        None
    }
}

/// The origin of rows that a program appends: `first` earlier rows precede the stream.
#[derive(Debug)]
pub(crate) struct AppendedRows {
    pub first: u64,
}

impl Origin for AppendedRows {
    fn locate(&self, row: u64) -> Option<(Option<PathBuf>, u64)> {
        Some((None, self.first + row + 1))
    }
    fn total_rows(&self) -> Option<u64> {
        None
    }
}

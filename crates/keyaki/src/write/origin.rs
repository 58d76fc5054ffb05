//! Positions of rows in files, for error messages.

use std::path::PathBuf;

/// Maps rows of a stream to the files that contain them.
pub(crate) trait Origin: std::fmt::Debug + Send + Sync {
    /// File and row (counted from 1) of row `row` of the stream (counted from 0); `None` for rows without a file.
    fn locate(&self, row: u64) -> Option<(PathBuf, u64)>;
    /// Estimated rows of the stream; `None` before the first batch of a file is read, and without an estimate.
    fn total_rows(&self) -> Option<u64>;
}

/// The origin of rows that do not come from files.
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

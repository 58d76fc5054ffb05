//! Progress reports of long statements.

use std::fmt::Debug;

/// Receiver of progress reports of COPY, CREATE INDEX, ANALYZE, loads, and of opening a database.
///
/// Calls come from several threads, about once per batch of rows, and must return quickly.
pub trait Progress: Debug + Send + Sync {
    /// Starts a phase, for example `"loading lineitem"`, with its estimated number of rows. A phase ends when the next
    /// one starts.
    fn start(&self, phase: &str, total: Option<u64>);
    /// Adds rows processed in the current phase. The sum may exceed the estimate.
    fn advance(&self, rows: u64);
    /// Ends the last phase. A statement that fails may omit the call.
    fn finish(&self);
}

/// A receiver that ignores all reports.
#[derive(Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&self, _: &str, _: Option<u64>) {}
    fn advance(&self, _: u64) {}
    fn finish(&self) {}
}

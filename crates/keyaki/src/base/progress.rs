//! Progress of long statements, for whoever shows it.

use std::fmt::Debug;

/// Told by COPY, CREATE INDEX, ANALYZE and long queries how far they are. Calls are rare (every few thousand rows).
pub trait Progress: Debug + Send + Sync {
    /// A phase begins, e.g. `"reading lineitem.parquet"`; `total` rows if known.
    fn start(&self, phase: &str, total: Option<u64>);
    /// Rows done in this phase.
    fn advance(&self, rows: u64);
    fn finish(&self);
}

/// Shows nothing.
#[derive(Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&self, _: &str, _: Option<u64>) {}
    fn advance(&self, _: u64) {}
    fn finish(&self) {}
}

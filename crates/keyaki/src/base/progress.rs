//! Progress reports of long statements.

use std::fmt::Debug;

use parking_lot::Mutex;

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

/// Reports a phase by the numbers of rows done so far and in total, which may arrive out of order.
pub(crate) struct Counted<'a> {
    progress: &'a dyn Progress,
    phase: &'a str,
    /// The rows reported so far; `None` before the phase has started.
    shown: Mutex<Option<u64>>,
}

impl<'a> Counted<'a> {
    /// A phase that starts with the first call of [`reach`](Counted::reach).
    pub fn new(progress: &'a dyn Progress, phase: &'a str) -> Counted<'a> {
        Counted { progress, phase, shown: Mutex::new(None) }
    }

    /// `done` of `total` rows are done.
    pub fn reach(&self, done: u64, total: u64) {
        let mut shown = self.shown.lock();
        let before = shown.unwrap_or_else(|| {
            self.progress.start(self.phase, Some(total));
            0
        });
        self.progress.advance(done.saturating_sub(before));
        *shown = Some(done.max(before));
    }
}

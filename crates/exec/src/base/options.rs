//! Options of the executor.

/// Size and limits of an [`Executor`](crate::Executor).
#[derive(Debug, Clone)]
pub struct ExecutorOptions {
    /// Worker threads; 0 means one per processor.
    pub workers: usize,
    /// Queue depth: reads in flight per worker, at most. 0 counts as 1.
    pub queue_depth: usize,
    /// Credits of a pipeline, per worker: fibers that run its tasks at the same time, at most. 0 counts as 1.
    pub tasks_in_flight: usize,
    /// Longest gap between two pages that are read together, in bytes.
    pub coalesce_gap_bytes: usize,
    /// Longest read of several pages, in bytes. A single page may be longer.
    pub coalesce_max_bytes: usize,
    /// Bytes that a scan reads ahead of its cursor, at most; 0 disables read-ahead.
    pub read_ahead_bytes: usize,
}

impl Default for ExecutorOptions {
    fn default() -> Self {
        ExecutorOptions {
            workers: 0,
            queue_depth: 256,
            tasks_in_flight: 2048,
            coalesce_gap_bytes: 0,
            coalesce_max_bytes: 256 << 10,
            read_ahead_bytes: 4 << 20,
        }
    }
}

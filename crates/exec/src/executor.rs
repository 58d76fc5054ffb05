//! The pool of workers.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::Stream;
use keyaki_store::Store;

use crate::{Pipeline, Result, Scan, Stats};

#[derive(Debug, Clone)]
pub struct ExecutorOptions {
    /// Worker threads; 0: one per core.
    pub workers: usize,
    /// Reads in flight per worker at the most.
    pub queue_depth: usize,
    /// Lookups in progress per worker and pipeline at the most (the credits of a pipeline).
    pub tasks_in_flight: usize,
    /// Neighbouring pages become one read if the gap between them is at most this long …
    pub coalesce_gap_bytes: usize,
    /// … and the read at most this long.
    pub coalesce_max_bytes: usize,
    /// How far a scan reads ahead.
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

/// Worker threads with a device queue each. `Clone` shares them; they end with the last handle.
#[derive(Debug, Clone)]
pub struct Executor {
    _todo: Arc<()>,
}

impl Executor {
    pub fn new(_store: Store, _options: ExecutorOptions) -> Result<Executor> {
        todo!()
    }
    /// Starts a pipeline. Rows come in no particular order (in order of the driver in [`crate::Mode::InOrder`]).
    pub fn pipeline(&self, _pipeline: Pipeline) -> Rows {
        todo!()
    }
    /// Starts a scan; rows come in key order. I/O runs on the workers, decoding where the stream is polled.
    pub fn scan(&self, _scan: Scan, _mode: crate::Mode) -> Rows {
        todo!()
    }
    pub fn options(&self) -> &ExecutorOptions {
        todo!()
    }
}

/// The output of a pipeline or scan. Dropping it cancels what is still running.
#[derive(Debug)]
pub struct Rows {
    _todo: (),
}

impl Rows {
    pub fn schema(&self) -> &SchemaRef {
        todo!()
    }
    pub fn stats(&self) -> &Stats {
        todo!()
    }
}

impl Stream for Rows {
    type Item = Result<RecordBatch>;
    fn poll_next(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        todo!()
    }
}

//! In-order execution: the query runs on a thread of its own, which may block on reads and on a slow consumer.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use crate::base::error::panicked;
use crate::query::Query;
use crate::query::flow::Flow;
use crate::query::output::Output;
use crate::{Error, Result};

/// What the thread of a query shares with its consumer.
#[derive(Debug)]
pub(crate) struct InOrder {
    pub query: Arc<Query>,
    pub flow: Arc<Flow>,
    /// The output's level in `flow`.
    level: usize,
    output: Output,
}

impl InOrder {
    /// `flow` ends with the level of the output.
    pub fn new(query: Arc<Query>, schema: &SchemaRef, batch_rows: usize, flow: Flow) -> Self {
        let level = flow.last();
        InOrder { query, flow: Arc::new(flow), level, output: Output::new(schema.clone(), batch_rows) }
    }

    /// Does the work of the query on the calling thread.
    pub fn run(&self, work: impl FnOnce() -> Result<()>) {
        let _announced = self.query.cache.as_ref().map(|cache| cache.governor.enter(cache.class));
        let result = std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| Err(panicked(payload)));
        self.output.end(result);
        self.query.stats.end();
    }

    /// Hands rows to the consumer; blocks while too many wait for it.
    pub fn emit(&self, rows: RecordBatch) -> Result<()> {
        let bytes = rows.get_array_memory_size();
        self.flow.add(self.level, bytes);
        self.output.push(rows, bytes);
        self.output.wait_until(|| self.flow.has_room(self.level));
        self.check()
    }

    /// # Errors
    /// [`Error::Cancelled`] once the query is stopped.
    pub fn check(&self) -> Result<()> {
        if self.query.is_stopped() { Err(Error::Cancelled) } else { Ok(()) }
    }

    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Result<RecordBatch>>> {
        let taken = ready!(self.output.poll_take(context));
        Poll::Ready(taken.map(|taken| {
            let (rows, bytes) = taken?;
            self.flow.subtract(self.level, bytes);
            self.output.notify();
            Ok(rows)
        }))
    }

    pub fn stop(&self, reason: Error) {
        self.query.stop();
        self.output.end(Err(reason));
    }
}

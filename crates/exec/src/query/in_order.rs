//! In-order execution: the query runs on a thread of its own, which blocks on reads and on a slow consumer.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use super::Query;
use super::flow::Flow;
use super::output::Output;
use super::pushed::Pushed;
use crate::base::{Error, Result, panicked};

/// The state that the thread of a query shares with its consumer.
#[derive(Debug)]
pub(crate) struct InOrderQuery {
    pub query: Arc<Query>,
    pub flow: Arc<Flow>,
    output: Output,
    /// The rows of a driver that are pushed; `None` for other drivers.
    pushed: Option<Pushed>,
}

impl InOrderQuery {
    /// The last level of `flow` is that of the output.
    pub fn new(query: Arc<Query>, schema: &SchemaRef, batch_rows: usize, flow: Flow) -> Self {
        let flow = Arc::new(flow);
        InOrderQuery { query, output: Output::new(schema.clone(), batch_rows, &flow), flow, pushed: None }
    }

    /// The same query, with a driver whose rows are pushed.
    pub fn with_pushed_rows(self) -> Self {
        InOrderQuery { pushed: Some(Pushed::default()), ..self }
    }

    /// The pushed rows.
    pub fn pushed(&self) -> Option<&Pushed> {
        self.pushed.as_ref()
    }

    /// Does the work of the query on the calling thread, and ends the output with its result or panic.
    pub fn run(&self, work: impl FnOnce() -> Result<()>) {
        let _entered = self.query.cache.as_ref().map(|cache| cache.governor.enter(cache.class));
        let result = std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| Err(panicked(payload)));
        self.output.end(result);
        self.query.stats.end();
    }

    /// Passes rows to the consumer, and blocks until the output has room again.
    ///
    /// # Errors
    /// [`Error::Cancelled`] once the query is stopped.
    pub fn emit(&self, rows: RecordBatch) -> Result<()> {
        self.output.push(rows);
        self.output.wait_for_room();
        self.check()
    }

    /// # Errors
    /// [`Error::Cancelled`] once the query is stopped.
    pub fn check(&self) -> Result<()> {
        if self.query.is_stopped() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// The next batch, for the consumer.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Result<RecordBatch>>> {
        let taken = ready!(self.output.poll_take(context));
        self.output.notify();
        Poll::Ready(taken.map(|taken| taken.map(|taken| taken.batch)))
    }

    /// Stops the query; its thread ends at its next check.
    pub fn stop(&self, reason: Error) {
        self.query.stop();
        self.output.end(Err(reason));
        if let Some(pushed) = &self.pushed {
            pushed.stop();
        }
    }
}

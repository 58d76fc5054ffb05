//! The stream of a query's batches.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::Stream;

use super::pool::Pool;
use crate::base::{Error, Result};
use crate::operators::{PipelineExecution, PolledScan};
use crate::query::{InOrderQuery, Stats};

/// The output of a pipeline or scan: a stream of batches, none of which is empty.
///
/// Dropping it cancels the query.
#[derive(Debug)]
pub struct Rows {
    pub(super) schema: SchemaRef,
    pub(super) stats: Stats,
    pub(super) producer: RowProducer,
    pub(super) _pool: Arc<Pool>,
}

/// The operator behind a stream.
pub(super) enum RowProducer {
    Pipeline(Arc<PipelineExecution>),
    Scan(PolledScan),
    InOrder(Arc<InOrderQuery>),
    /// The query could not be started.
    Failed(Option<Error>),
}

impl std::fmt::Debug for RowProducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RowProducer::Pipeline(execution) => execution.fmt(f),
            RowProducer::Scan(_) => f.write_str("Scan"),
            RowProducer::InOrder(run) => run.fmt(f),
            RowProducer::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
        }
    }
}

impl Rows {
    /// The schema of all batches; empty if the query could not be started.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The counters of the query.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }
}

impl Stream for Rows {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut self.producer {
            RowProducer::Pipeline(execution) => execution.poll_next(context),
            RowProducer::Scan(scan) => scan.poll_next(context),
            RowProducer::InOrder(run) => run.poll_next(context),
            RowProducer::Failed(error) => Poll::Ready(error.take().map(Err)),
        }
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        match &mut self.producer {
            RowProducer::Pipeline(execution) => execution.stop(Error::Cancelled),
            RowProducer::Scan(scan) => scan.stop(),
            RowProducer::InOrder(run) => run.stop(Error::Cancelled),
            RowProducer::Failed(_) => {}
        }
    }
}

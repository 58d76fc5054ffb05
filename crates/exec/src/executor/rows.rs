//! The stream of a query's batches.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::Stream;

use super::pool::Pool;
use crate::base::{Error, PlanError, Result, batch, compact};
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
    /// The schema of the rows to push; `None` if the pipeline has another driver, or they have ended.
    pub(super) pushed: Option<SchemaRef>,
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

    /// Resolves when the pipeline takes more rows. Never resolves for a driver whose rows are not pushed, or have ended.
    pub fn poll_push(&self, context: &mut Context<'_>) -> Poll<()> {
        match (&self.pushed, &self.producer) {
            (None, _) => Poll::Pending,
            (_, RowProducer::Pipeline(execution)) => execution.poll_push(context),
            (_, RowProducer::InOrder(run)) => run.pushed().map_or(Poll::Pending, |pushed| pushed.poll_push(context)),
            (_, RowProducer::Scan(_) | RowProducer::Failed(_)) => Poll::Pending,
        }
    }

    /// Adds rows to a pipeline with [`Driver::Pushed`](crate::Driver::Pushed). It may exceed its memory by one batch: call
    /// [`Rows::poll_push`] before.
    ///
    /// # Errors
    /// [`PlanError::PushedColumns`], and those of Arrow.
    ///
    /// # Panics
    /// If the driver is another one, or the rows have ended.
    pub fn push(&self, rows: &RecordBatch) -> Result<()> {
        let Some(schema) = &self.pushed else { panic!("rows are pushed to a pipeline that takes none") };
        let types = |schema: &SchemaRef| schema.fields().iter().map(|field| field.data_type().clone()).collect();
        let (expected, found): (Vec<_>, Vec<_>) = (types(schema), types(rows.schema_ref()));
        if expected != found {
            return Err(PlanError::PushedColumns { expected, found }.into());
        }
        let columns = rows.columns().iter().cloned().map(compact).collect();
        let rows = batch(schema, columns, rows.num_rows())?;
        match &self.producer {
            RowProducer::Pipeline(execution) => execution.push(rows),
            RowProducer::InOrder(run) => {
                run.pushed().into_iter().for_each(|pushed| pushed.push(rows.clone()));
                Ok(())
            }
            RowProducer::Scan(_) | RowProducer::Failed(_) => Ok(()),
        }
    }

    /// No more rows will be pushed.
    pub fn end_push(&mut self) {
        if self.pushed.take().is_none() {
            return;
        }
        match &self.producer {
            RowProducer::Pipeline(execution) => execution.end_push(),
            RowProducer::InOrder(run) => run.pushed().into_iter().for_each(|pushed| pushed.end()),
            RowProducer::Scan(_) | RowProducer::Failed(_) => {}
        }
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

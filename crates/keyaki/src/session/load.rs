//! Loads batches of rows from a program, without a file.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};

use super::Session;
use crate::base::interrupt::Execution;
use crate::catalog::Table;
use crate::sql::access;
use crate::sql::dml::defaults;
use crate::sql::expressions;
use crate::values::zone::Zone;
use crate::write::{Conform, Defaults, Given, NoOrigin, insert_loaded};
use crate::{Error, Result};

/// Capacity of the channel between iterator and load, in batches.
const BATCHES_AHEAD: usize = 4;

type Batches = BoxStream<'static, Result<RecordBatch>>;

impl Session {
    /// Loads all rows of `batches` into a table and returns their number. The load is one transaction, like COPY.
    ///
    /// Columns are matched by name, and their values are converted by assignment casts. Missing columns get their
    /// defaults. Rows in primary key order load fastest.
    ///
    /// # Errors
    /// The first error of the stream; `NotFound`; `Import` with the row for a value that cannot be converted;
    /// `UndefinedColumn`, `DuplicateColumn` and `Constraint`; `Cancelled`. The table is then unchanged.
    pub async fn load(
        &self,
        table: &str,
        batches: impl Stream<Item = Result<RecordBatch>> + Send + 'static,
    ) -> Result<u64> {
        self.load_boxed(table, batches.boxed()).await
    }

    fn load_boxed<'a>(&'a self, table: &'a str, batches: Batches) -> BoxFuture<'a, Result<u64>> {
        Box::pin(async move {
            let _active = self.begin(format!("COPY {table} FROM STDIN").into())?;
            let execution = self.execution();
            self.run(&execution, self.load_in(&execution, table, batches)).await
        })
    }

    async fn load_in(&self, execution: &Execution<'_>, table: &str, batches: Batches) -> Result<u64> {
        let writer = self.sql.writer(execution, "INSERT").await?;
        let (catalog, _) = self.sql.engine.latest(&writer);
        let table = catalog.table(&self.sql.named(&catalog, table)?)?.clone();
        access::insertion(&self.sql, &catalog, &table)?;
        expressions::compiled(&self.sql, &table)?;
        let defaults = defaults::physical(&self.sql, &writer, &table)?;
        let (into, schema) = (table.clone(), table.arrow.clone());
        let mut conform: Option<(arrow::datatypes::SchemaRef, Conform)> = None;
        let zone = self.sql.zone();
        let mut row: u64 = 0;
        let rows = batches.map(move |batch| {
            let batch = batch?;
            let known = conform.take().filter(|(schema, _)| *schema == batch.schema());
            let current = known.map_or_else(|| for_batch(&into, &batch, &defaults, zone), Ok)?;
            let rows = current.1.typed(&batch).map_err(|bad| {
                let row = bad.row.map(|at| row + at as u64 + 1);
                Error::Import { path: None, row, column: None, source: bad.error }
            })?;
            conform = Some(current);
            row += rows.num_rows() as u64;
            Ok(rows)
        });
        let rows = Box::pin(RecordBatchStreamAdapter::new(schema, rows));
        insert_loaded(self.sql.write(writer), &table, rows, Arc::new(NoOrigin)).await
    }

    /// Like [`Session::load`], from an iterator, which runs on a thread of its own. Returns when the iterator has been dropped.
    /// The load keeps other transactions from writing: the iterator must not wait for one.
    ///
    /// # Errors
    /// As [`Session::load`].
    pub async fn load_iter(
        &self,
        table: &str,
        batches: impl Iterator<Item = Result<RecordBatch>> + Send + 'static,
    ) -> Result<u64> {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(BATCHES_AHEAD);
        let (running, ended) = tokio::sync::oneshot::channel::<()>();
        let iterator = tokio::task::spawn_blocking(move || {
            // Dropped after the iterator, also by a panic.
            let _running = running;
            for batch in batches {
                // The load has failed or was cancelled.
                if sender.blocking_send(batch).is_err() {
                    break;
                }
            }
        });
        let received = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
        // An iterator that panics has not come to its end.
        let end = futures::stream::once(iterator);
        let end = end.filter_map(async |ended| ended.err().map(|error| Err(Error::task(&error))));
        let loaded = self.load(table, received.chain(end)).await;
        // Its data may be used by the caller when the load has ended.
        let _ = ended.await;
        loaded
    }
}

/// The conversion of batches with the schema of `batch`.
fn for_batch(
    table: &Arc<Table>,
    batch: &RecordBatch,
    defaults: &Defaults,
    zone: Zone,
) -> Result<(arrow::datatypes::SchemaRef, Conform)> {
    let names: Vec<String> = batch.schema().fields().iter().map(|field| field.name().clone()).collect();
    let all: Vec<usize> = (0..table.def.columns.len()).collect();
    Ok((batch.schema(), Conform::new(table, &all, Given::Named(&names), defaults)?.in_zone(zone)))
}

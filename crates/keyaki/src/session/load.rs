//! Loading from a program: batches of rows without a file.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::{Stream, StreamExt};

use super::Session;
use crate::catalog::Table;
use crate::sql::dml::defaults;
use crate::write::{Conform, Defaults, Given, NoOrigin, insert_loaded};
use crate::{Error, Result};

/// Batches made ahead of the load.
const BATCHES_AHEAD: usize = 4;

impl Session {
    /// Adds all rows of `batches` to a table, or none, and returns their number.
    ///
    /// Columns are matched by name, and converted; columns of the table that are not given get their defaults. Rows in
    /// the order of the primary key are the fastest. The statement of a bulk load is one transaction, like `COPY`.
    ///
    /// # Errors
    /// The first error of the stream; `NotFound`; values that do not fit; duplicate keys.
    pub async fn load(
        &self,
        table: &str,
        batches: impl Stream<Item = Result<RecordBatch>> + Send + 'static,
    ) -> Result<u64> {
        let writer = self.sql.engine.writer().await;
        let (catalog, _) = self.sql.engine.latest(&writer);
        let table = catalog.table(table)?.clone();
        let defaults = defaults::physical(&self.sql, &writer, &table)?;
        let (into, schema) = (table.clone(), table.arrow.clone());
        let mut conform: Option<(arrow::datatypes::SchemaRef, Conform)> = None;
        let mut row: u64 = 0;
        let rows = batches.map(move |batch| {
            let batch = batch?;
            let known = conform.take().filter(|(schema, _)| *schema == batch.schema());
            let current = known.map_or_else(|| for_batch(&into, &batch, &defaults), Ok)?;
            let rows = current.1.typed(&batch).map_err(|bad| {
                let row = bad.row.map(|at| row + at as u64 + 1);
                Error::Import { path: None, row, column: None, source: bad.error }
            })?;
            conform = Some(current);
            row += rows.num_rows() as u64;
            Ok(rows)
        });
        let rows = Box::pin(RecordBatchStreamAdapter::new(schema, rows));
        insert_loaded(&self.sql.write(&writer), &table, rows, Arc::new(NoOrigin)).await
    }

    /// As [`Session::load`], from an iterator, which runs on a thread of its own.
    pub async fn load_iter(
        &self,
        table: &str,
        batches: impl Iterator<Item = Result<RecordBatch>> + Send + 'static,
    ) -> Result<u64> {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(BATCHES_AHEAD);
        tokio::task::spawn_blocking(move || {
            for batch in batches {
                // The load has ended early.
                if sender.blocking_send(batch).is_err() {
                    break;
                }
            }
        });
        self.load(table, futures::stream::poll_fn(move |context| receiver.poll_recv(context))).await
    }
}

fn for_batch(
    table: &Arc<Table>,
    batch: &RecordBatch,
    defaults: &Defaults,
) -> Result<(arrow::datatypes::SchemaRef, Conform)> {
    let names: Vec<String> = batch.schema().fields().iter().map(|field| field.name().clone()).collect();
    let all: Vec<usize> = (0..table.def.columns.len()).collect();
    Ok((batch.schema(), Conform::new(table, &all, Given::Named(&names), defaults)?))
}

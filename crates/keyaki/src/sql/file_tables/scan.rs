//! The table of text files, and its scan. Files are divided among the partitions; each partition reads its files one after the
//! other on a thread of the blocking pool.

use std::fmt::Debug;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{DataFusionError, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};

use crate::sql::copy::bad;
use crate::{Error, Result};

/// Capacity of the channel between reader and query, in batches.
const BATCHES_AHEAD: usize = 4;

/// The columns that a query needs.
#[derive(Debug, Clone)]
pub(super) struct Projection {
    /// Positions of the columns in the table.
    pub columns: Vec<usize>,
    pub schema: SchemaRef,
}

/// Files that are read row by row.
pub(super) trait TextFiles: Debug + Send + Sync {
    /// The number of files.
    fn count(&self) -> usize;
    fn path(&self, file: usize) -> &Path;
    /// Reads a file. `send` receives its rows, and returns false if no more are needed.
    ///
    /// # Errors
    /// `Io`, `FileAccess`; others with the file and, if possible, the line.
    fn read(&self, file: usize, projection: &Projection, send: &mut dyn FnMut(RecordBatch) -> bool) -> Result<()>;
}

#[derive(Debug)]
pub(super) struct TextTable {
    pub schema: SchemaRef,
    pub files: Arc<dyn TextFiles>,
    /// Estimated number of rows.
    pub rows: f64,
}

#[async_trait]
impl TableProvider for TextTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn statistics(&self) -> Option<Statistics> {
        Some(Statistics { num_rows: Precision::Inexact(self.rows as usize), ..Statistics::new_unknown(&self.schema) })
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        limit: Option<usize>,
    ) -> datafusion::error::Result<Arc<dyn ExecutionPlan>> {
        let columns = projection.cloned().unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        let fields = columns.iter().map(|column| self.schema.fields()[*column].clone());
        let schema: SchemaRef = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let projection = Projection { columns, schema: schema.clone() };
        let count = self.files.count();
        let partitions = state.config().target_partitions().clamp(1, count);
        let partition = |number: usize| -> Arc<dyn PartitionStream> {
            let range = number * count / partitions..(number + 1) * count / partitions;
            Arc::new(Partition { files: self.files.clone(), range, projection: projection.clone() })
        };
        let partitions = (0..partitions).map(partition).collect();
        Ok(Arc::new(StreamingTableExec::try_new(schema, partitions, None, None, false, limit)?))
    }
}

#[derive(Debug)]
struct Partition {
    files: Arc<dyn TextFiles>,
    range: Range<usize>,
    projection: Projection,
}

impl PartitionStream for Partition {
    fn schema(&self) -> &SchemaRef {
        &self.projection.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let mut stream = RecordBatchReceiverStream::builder(self.projection.schema.clone(), BATCHES_AHEAD);
        let sender = stream.tx();
        let (files, range, projection) = (self.files.clone(), self.range.clone(), self.projection.clone());
        let batch_rows = context.session_config().batch_size();
        stream.spawn_blocking(move || {
            let mut send = |batch: RecordBatch| {
                let parts = (0..batch.num_rows()).step_by(batch_rows);
                let mut parts = parts.map(|first| batch.slice(first, batch_rows.min(batch.num_rows() - first)));
                parts.all(|part| sender.blocking_send(Ok(part)).is_ok())
            };
            for file in range {
                if sender.is_closed() {
                    break;
                }
                let read = catch_unwind(AssertUnwindSafe(|| files.read(file, &projection, &mut send)));
                // The decoders of other crates may panic on damaged files.
                let damaged = |_| Err(bad(files.path(file), None, "the file is damaged"));
                read.unwrap_or_else(damaged).map_err(|error: Error| DataFusionError::from(error))?;
            }
            Ok(())
        });
        stream.build()
    }
}

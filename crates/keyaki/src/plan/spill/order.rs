//! The order of a join in parts.
//!
//! A hash join returns its rows in the order of its right input, and the matches of a right row in the order of the left
//! input. The join of two parts does the same. To restore the order of the whole join, the right rows get numbers before
//! they are split. The joins of the parts return the number as an additional last column. Their results are written to
//! files, because the hash tables of all parts do not fit into memory together, and then merged by number:
//!
//! ```text
//! right ── numbers ── split ─┬─ L1 ⋈ R1 ── file 1 ─┐
//!                            ├─ L2 ⋈ R2 ── file 2 ─┼─ merge ── without numbers ──> result
//!                            └─ …                  ─┘
//! ```
//!
//! All rows with the same number come from one part, so that the merge is unambiguous. A part that is split again has
//! numbers already.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::JoinType;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryLimit, MemoryPool, UnboundedMemoryPool};
use datafusion::execution::spill_file::SpillFile;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet};
use datafusion::physical_plan::sorts::streaming_merge::StreamingMergeBuilder;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{EmptyRecordBatchStream, SpillManager};
use futures::StreamExt;

use super::files::PARTS;

/// Name of the column of numbers. Columns are found by position: other columns may have the same name.
const NUMBER: &str = "keyaki_number";
/// The merge holds a batch of each part. Batches in files are so small that those of all partitions of a join are one
/// part in this many of the query memory.
const MERGE_SHARE: usize = 32;
/// Bytes of a batch in a file, at least and at most. A single row may be larger.
const BATCH_BYTES: (usize, usize) = (8 << 10, 256 << 10);

/// The order in which a join returns its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Any: no operator above relies on the order.
    Any,
    /// The order of the right input.
    Right,
    /// The order of the right input, whose last column is a number that rises with each row. It is also the last column
    /// of the result.
    Numbered,
}

impl Order {
    /// The order of the joins of parts.
    pub fn of_parts(self) -> Order {
        match self {
            Order::Any => Order::Any,
            Order::Right | Order::Numbered => Order::Numbered,
        }
    }

    /// The schema of the joins of parts of a join with this order and a schema, or of the parts of its right input.
    pub fn schema_of_parts(self, schema: &SchemaRef) -> SchemaRef {
        if self != Order::Right {
            return schema.clone();
        }
        let number = Arc::new(Field::new(NUMBER, DataType::UInt64, false));
        let fields: Vec<_> = schema.fields().iter().cloned().chain([number]).collect();
        Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
    }
}

/// Adds the column of numbers to rows that begin with a number.
pub(super) fn numbered(batch: &RecordBatch, schema: SchemaRef, first: u64) -> Result<RecordBatch> {
    let numbers: Range<u64> = first..first + batch.num_rows() as u64;
    let numbers: ArrayRef = Arc::new(UInt64Array::from_iter_values(numbers));
    let columns = batch.columns().iter().cloned().chain([numbers]).collect();
    Ok(RecordBatch::try_new(schema, columns)?)
}

/// The order of the numbers in the last column.
pub(super) fn by_number(schema: &SchemaRef) -> LexOrdering {
    let number = Column::new(NUMBER, schema.fields().len() - 1);
    [PhysicalSortExpr::new_default(Arc::new(number))].into()
}

/// The columns of a join's result, followed by the number of the right row, as positions in the join of inputs of which
/// the right one has numbers.
pub(super) fn numbered_columns(join: &HashJoinExec) -> Vec<usize> {
    let (left, right) = (join.left().schema().fields().len(), join.right().schema().fields().len());
    let number = match join.join_type() {
        JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => right,
        _ => left + right,
    };
    // The mark of a mark join follows the right columns.
    let moved = |column: usize| if column < number { column } else { column + 1 };
    let columns: Vec<usize> = match &join.projection {
        Some(projection) => projection.to_vec(),
        None => (0..join.join_schema().fields().len()).collect(),
    };
    columns.into_iter().map(moved).chain([number]).collect()
}

/// The results of parts in files, each ordered by the numbers in its last column.
pub(super) struct Runs {
    manager: SpillManager,
    context: Arc<TaskContext>,
    files: Vec<Arc<dyn SpillFile>>,
    rows: usize,
    bytes: usize,
    /// Bytes of the largest batch.
    batch_bytes_max: usize,
}

impl Runs {
    pub fn new(manager: SpillManager, context: Arc<TaskContext>) -> Runs {
        Runs { manager, context, files: Vec::new(), rows: 0, bytes: 0, batch_bytes_max: 0 }
    }

    /// Bytes of a batch in a file.
    fn batch_bytes(&self) -> usize {
        let partitions = self.context.session_config().target_partitions().max(1);
        let (min, max) = BATCH_BYTES;
        match self.context.memory_pool().memory_limit() {
            MemoryLimit::Finite(bytes) => (bytes / (MERGE_SHARE * PARTS * partitions)).clamp(min, max),
            MemoryLimit::Infinite | MemoryLimit::Unknown => max,
        }
    }

    /// Writes the result of a part.
    pub async fn write(&mut self, mut rows: SendableRecordBatchStream) -> Result<()> {
        let batch_bytes = self.batch_bytes();
        let mut file = self.manager.create_in_progress_file("the result of a join")?;
        let mut size = 1;
        while let Some(batch) = rows.next().await {
            let (batch, mut first) = (batch?, 0);
            while first < batch.num_rows() {
                let count = size.min(batch.num_rows() - first);
                let bytes = file.append_batch(&batch.slice(first, count))?;
                first += count;
                self.rows += count;
                self.bytes += bytes;
                self.batch_bytes_max = self.batch_bytes_max.max(bytes);
                // The next rows are probably as long as these.
                size = (count * batch_bytes / bytes.max(1)).clamp(1, 2 * size);
            }
        }
        self.files.extend(file.finish()?);
        Ok(())
    }

    /// Merges the results. `schema` has the columns of the join: without the numbers, if these have been added.
    pub fn merge(self, partition: usize, schema: SchemaRef) -> Result<SendableRecordBatchStream> {
        let numbered = self.manager.schema().clone();
        // The merge holds one batch of each file, and the batches from which it builds its next batch.
        let row_bytes = (self.bytes / self.rows.max(1)).max(1);
        let batch_rows = PARTS * self.batch_bytes() / row_bytes;
        let batch_rows = batch_rows.clamp(1, self.context.session_config().batch_size());
        let held = MemoryConsumer::new(format!("HashJoinMerge[{partition}]")).register(self.context.memory_pool());
        held.try_grow(self.files.len() * self.batch_bytes_max + batch_rows * row_bytes)?;
        let open = self.files.into_iter().map(|file| self.manager.read_spill_as_stream_unbuffered(file, None));
        let mut files = open.collect::<Result<Vec<_>>>()?;
        let merged = if files.len() > 1 {
            // Batches share the buffers of files, whose size the merge would count for each of them.
            let uncounted: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
            StreamingMergeBuilder::new()
                .with_streams(files)
                .with_expressions(&by_number(&numbered))
                .with_schema(numbered)
                .with_batch_size(batch_rows)
                .with_metrics(BaselineMetrics::new(&ExecutionPlanMetricsSet::new(), partition))
                .with_reservation(MemoryConsumer::new("HashJoinMerge").register(&uncounted))
                .with_round_robin_tie_breaker(false)
                .build()?
        } else {
            files.pop().unwrap_or_else(|| Box::pin(EmptyRecordBatchStream::new(numbered)))
        };
        let columns: Vec<usize> = (0..schema.fields().len()).collect();
        let rows = merged.map(move |batch| {
            // The stream owns the reservation.
            let _held = &held;
            batch?.project(&columns).map_err(DataFusionError::from)
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

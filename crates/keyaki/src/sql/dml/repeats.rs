//! Rows with the same key in statements that are applied in parts ([`super::parts`]).
//!
//! A statement with many rows sorts them by the key ([`sorted`]), so that rows with the same key are in the same part, or in
//! parts that follow each other ([`Repeats`]). Parts of sorted rows also read a small range of the table each, if they are
//! joined with it.

use std::fmt::{self, Formatter};
use std::sync::Arc;

use arrow::array::{Int64Array, RecordBatch};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::expressions::Column;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{EmptyRecordBatchStream, ExecutionPlan};
use futures::StreamExt;
use parking_lot::Mutex;

use crate::Result;
use crate::write::rows::Keys;

/// The rows of a stream in ascending order of their columns `keys`, in batches of `batch_rows` rows. Rows with the same values
/// keep their order. Rows that do not fit into the memory are in temporary files.
///
/// # Errors
/// `Internal` if there are no keys.
pub(super) fn sorted(
    state: &SessionState,
    rows: SendableRecordBatchStream,
    keys: &[usize],
    batch_rows: usize,
) -> Result<SendableRecordBatchStream> {
    let schema = rows.schema();
    let number = Arc::new(Field::new("__number", DataType::Int64, false));
    let numbered = Arc::new(Schema::new(schema.fields().iter().cloned().chain([number]).collect::<Vec<_>>()));
    let (of_batch, mut next) = (numbered.clone(), 0);
    let rows = rows.map(move |batch| {
        let batch = batch?;
        let numbers = Int64Array::from_iter_values(next..next + batch.num_rows() as i64);
        next += batch.num_rows() as i64;
        let columns = batch.columns().iter().cloned().chain([Arc::new(numbers) as _]);
        Ok(RecordBatch::try_new(of_batch.clone(), columns.collect())?)
    });
    let rows: SendableRecordBatchStream = Box::pin(RecordBatchStreamAdapter::new(numbered.clone(), rows));
    let source = Source { schema: numbered.clone(), rows: Mutex::new(Some(rows)) };
    let source = StreamingTableExec::try_new(numbered.clone(), vec![Arc::new(source)], None, [], false, None)?;
    let by = |column: usize| {
        let options = SortOptions { descending: false, nulls_first: true };
        PhysicalSortExpr::new(Arc::new(Column::new(numbered.field(column).name(), column)), options)
    };
    let order = LexOrdering::new(keys.iter().copied().chain([schema.fields().len()]).map(by));
    let order = order.ok_or_else(|| crate::Error::Internal("rows are sorted by a key".into()))?;
    let task = TaskContext::from(state);
    let config = task.session_config().clone().with_batch_size(batch_rows);
    let sorted = SortExec::new(order, Arc::new(source)).execute(0, Arc::new(task.with_session_config(config)))?;
    let columns = schema.fields().len();
    let sorted = sorted.map(move |batch| {
        let mut batch = batch?;
        batch.remove_column(columns);
        Ok(batch)
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, sorted)))
}

/// The rows to sort, which are read once.
struct Source {
    schema: SchemaRef,
    rows: Mutex<Option<SendableRecordBatchStream>>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl PartitionStream for Source {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }
    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let rows = self.rows.lock().take();
        rows.unwrap_or_else(|| Box::pin(EmptyRecordBatchStream::new(self.schema.clone())))
    }
}

/// Tells the rows of a statement whose keys earlier rows have. Rows with the same key are in one part, or in parts that follow
/// each other.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// The keys of the part before.
    previous: Keys,
}

impl Repeats {
    /// The first row of each key of the next part that the parts before do not have, ascending.
    pub fn first(&mut self, keys: Keys) -> Vec<u32> {
        let rows = keys.distinct_rows_except(&self.previous);
        if keys.len() > 0 {
            self.previous = keys;
        }
        rows
    }
}

//! Rows of a table as rows of one of its trees.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;

use super::table::Table;
use crate::Result;

/// Selects the columns of a tree from batches of rows of its table, and the rows of a partial index.
#[derive(Debug)]
pub(crate) struct Projection {
    /// For each column of the tree, its position in the batches.
    columns: Vec<usize>,
    schema: SchemaRef,
    partial: Option<Partial>,
}

/// A partial index.
#[derive(Debug)]
struct Partial {
    table: Arc<Table>,
    index: usize,
    /// The positions in the batches of the columns that the predicate uses.
    columns: Vec<usize>,
}

impl Projection {
    /// The rows of the table's own tree. `place` is the position of a table column in the batches; `None` is the hidden rowid.
    pub fn of_table(table: &Table, place: impl FnMut(Option<usize>) -> usize) -> Projection {
        let columns = table.table_columns().into_iter().map(place).collect();
        Projection { columns, schema: table.schema.arrow().clone(), partial: None }
    }

    /// The entries of an index, for `place` as for [`Projection::of_table`].
    ///
    /// # Errors
    /// `Internal` if the predicate of a partial index has not been compiled.
    pub fn of_index(
        table: &Arc<Table>,
        index: usize,
        mut place: impl FnMut(Option<usize>) -> usize,
    ) -> Result<Projection> {
        let columns = table.index_columns(index).into_iter().map(&mut place).collect();
        let partial = table.predicate(index)?.map(|predicate| Partial {
            table: table.clone(),
            index,
            columns: predicate.columns.iter().map(|&column| place(Some(column))).collect(),
        });
        Ok(Projection { columns, schema: table.index_schemas[index].arrow().clone(), partial })
    }

    /// The rows of the tree.
    ///
    /// # Errors
    /// Errors of the predicate of a partial index.
    pub fn apply(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let take = |columns: &[usize]| -> Vec<ArrayRef> {
            columns.iter().map(|&column| batch.column(column).clone()).collect()
        };
        let rows = RecordBatch::try_new(self.schema.clone(), take(&self.columns))?;
        let Some(Partial { table, index, columns }) = &self.partial else { return Ok(rows) };
        let Some(predicate) = table.predicate(*index)? else { return Ok(rows) };
        Ok(filter_record_batch(&rows, &predicate.select(take(columns), batch.num_rows())?)?)
    }
}

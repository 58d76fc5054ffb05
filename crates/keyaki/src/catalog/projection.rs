//! Rows of a table as rows of one of its trees.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch};
use arrow::compute::filter;
use arrow::datatypes::SchemaRef;

use super::table::Table;
use crate::Result;

/// Selects the columns of a tree from batches of rows of its table, and the rows of a partial index.
#[derive(Debug)]
pub(crate) struct Projection {
    table: Arc<Table>,
    columns: Vec<Source>,
    schema: SchemaRef,
    /// A partial index, and the positions in the batches of the columns that its predicate uses.
    partial: Option<(usize, Vec<usize>)>,
}

/// The source of a column of a tree.
#[derive(Debug)]
enum Source {
    /// A column at this position in the batches.
    Column(usize),
    /// A virtual column, and the positions in the batches of the columns that it uses.
    Virtual(usize, Vec<usize>),
    /// A dropped column.
    Dropped(usize),
}

impl Projection {
    /// The rows of the table's own tree. `place` is the position of a table column in the batches; `None` is the hidden rowid.
    pub fn of_table(table: &Arc<Table>, mut place: impl FnMut(Option<usize>) -> usize) -> Projection {
        let source = |column: Option<usize>| match column.filter(|column| table.dropped_columns().contains(column)) {
            Some(dropped) => Source::Dropped(dropped),
            None => Source::Column(place(column)),
        };
        let columns = table.table_columns().into_iter().map(source).collect();
        Projection { table: table.clone(), columns, schema: table.schema.arrow().clone(), partial: None }
    }

    /// The entries of an index, for `place` as for [`Projection::of_table`].
    ///
    /// # Errors
    /// `Internal` if the expressions of the table have not been compiled.
    pub fn of_index(
        table: &Arc<Table>,
        index: usize,
        mut place: impl FnMut(Option<usize>) -> usize,
    ) -> Result<Projection> {
        let mut columns = Vec::new();
        for column in table.index_columns(index) {
            columns.push(match column.filter(|column| table.virtual_columns().contains(column)) {
                Some(column) => {
                    let used = table.virtual_value(column)?.value.columns.iter();
                    Source::Virtual(column, used.map(|&used| place(Some(used))).collect())
                }
                None => Source::Column(place(column)),
            });
        }
        let partial = table.predicate(index)?.map(|predicate| {
            let used = predicate.condition.columns.iter();
            (index, used.map(|&used| place(Some(used))).collect())
        });
        Ok(Projection { table: table.clone(), columns, schema: table.index_schemas[index].arrow().clone(), partial })
    }

    /// The rows of the tree. The expressions of a partial index are evaluated for its rows only: they may fail for others.
    ///
    /// # Errors
    /// Errors of the expressions and the predicate of an index.
    pub fn apply(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let selected = match &self.partial {
            Some((index, used)) => self.table.predicate(*index)?.map(|predicate| {
                predicate.select(used.iter().map(|&column| batch.column(column).clone()).collect(), batch.num_rows())
            }),
            None => None,
        };
        let selected = selected.transpose()?;
        let rows = selected.as_ref().map_or(batch.num_rows(), BooleanArray::true_count);
        let take = |column: usize| -> Result<ArrayRef> {
            let column = batch.column(column);
            selected.as_ref().map_or(Ok(column.clone()), |selected| Ok(filter(column, selected)?))
        };
        let column = |source: &Source| match source {
            Source::Column(column) => take(*column),
            Source::Dropped(column) => Ok(self.table.dropped_values(*column, rows)),
            Source::Virtual(column, used) => {
                let used = used.iter().map(|&column| take(column)).collect::<Result<Vec<_>>>()?;
                self.table.virtual_value(*column)?.evaluate(used, rows)
            }
        };
        let columns = self.columns.iter().map(column).collect::<Result<Vec<_>>>()?;
        Ok(RecordBatch::try_new(self.schema.clone(), columns)?)
    }
}

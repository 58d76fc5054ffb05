//! Secondary indexes: their entries are sorted while rows come, and written when all have come.

use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::{Stream, StreamExt};
use keyaki_exec::{Mode, Scan};
use keyaki_store::{Direction, KeyRange, TreeView};

use super::arrow_error;
use super::job::{Job, Part, Projection, Work};
use super::sort::{BATCH_ROWS, Sorter};
use super::unique::Unique;
use crate::database::Table;
use crate::{Result, Session};

pub(super) struct IndexSorter {
    job: Arc<Job>,
    index: usize,
    projection: Projection,
    sorter: Sorter,
}

impl IndexSorter {
    /// `projection` makes an index's entries of what is pushed.
    pub fn new(job: &Arc<Job>, index: usize, projection: Projection) -> Result<Self> {
        let schema = &job.table.index_schemas[index];
        let (arrow, keys) = (schema.arrow().clone(), schema.key_columns());
        let sorter = Sorter::new(arrow, keys, job.sort_bytes, job.spill.clone())?;
        Ok(IndexSorter { job: job.clone(), index, projection, sorter })
    }
}

impl Work for IndexSorter {
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        self.sorter.push(&self.projection.apply(batch)?)
    }

    fn finish(self) -> Result<Part> {
        let IndexSorter { job, index, sorter, .. } = self;
        let tree = job.table.def.indexes[index].tree;
        let mut unique = Unique::of_index(&job, index)?;
        let mut writer = job.inner.store.bulk_writer(tree, &job.table.index_schemas[index]);
        let mut merge = sorter.finish(Vec::new())?;
        while let Some(batch) = merge.next()? {
            job.check()?;
            unique.check_neighbours(&batch)?;
            unique.check_existing(&batch).map_err(|(error, _)| error)?;
            writer.push(&batch)?;
            job.progress.advance(batch.num_rows() as u64);
        }
        Ok(Part::Tree(tree, writer.finish()?))
    }
}

/// The entries of an index, from the rows of its table.
pub(super) fn entries(
    session: &Session,
    table: &Arc<Table>,
    index: usize,
    view: TreeView,
) -> impl Stream<Item = Result<RecordBatch>> + Unpin + use<> {
    // The hidden rowid is the first column of the table's tree.
    let column = |column: Option<usize>| column.map_or(0, |column| table.tree_column[column]);
    let scan = Scan {
        view,
        ranges: vec![KeyRange::all()],
        direction: Direction::Ascending,
        columns: table.index_columns(index).into_iter().map(column).collect(),
        filter: None,
        limit: None,
        batch_rows: BATCH_ROWS,
    };
    let schema = table.index_schemas[index].arrow().clone();
    session
        .database
        .inner
        .executor
        .scan(scan, Mode::OutOfOrder)
        .map(move |batch| RecordBatch::try_new(schema.clone(), batch?.columns().to_vec()).map_err(arrow_error))
}

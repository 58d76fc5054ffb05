//! Writes the change log of an index that CREATE INDEX CONCURRENTLY is building: the primary keys of the loaded rows.

use std::sync::Arc;

use arrow::array::RecordBatch;

use super::job::{Job, Part, Work};
use super::sort::Sorter;
use crate::Result;
use crate::catalog::IndexBuild;

/// Worker that sorts the entries of a change log and writes them.
pub(super) struct LogSorter {
    job: Arc<Job>,
    build: IndexBuild,
    /// Positions of the key columns of the table's tree in the batches.
    places: Vec<usize>,
    sorter: Sorter,
}

impl LogSorter {
    pub fn new(job: &Arc<Job>, build: &IndexBuild) -> Result<Self> {
        let keys = job.table.schema.key_columns();
        let places = job.table.table_columns()[..keys].iter().map(|&column| job.place(column)).collect();
        let (arrow, columns) = (build.schema.arrow().clone(), build.schema.key_columns());
        let sorter = Sorter::new(arrow, columns, job.sort_bytes, job.spill.clone())?;
        Ok(LogSorter { job: job.clone(), build: build.clone(), places, sorter })
    }
}

impl Work for LogSorter {
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let keys = self.places.iter().map(|&place| batch.column(place).clone()).collect();
        self.sorter.push(&self.build.entries(keys, batch.num_rows())?)
    }

    fn finish(self) -> Result<Part> {
        let LogSorter { job, build, sorter, .. } = self;
        let mut writer = job.engine.store.bulk_writer(build.log, &build.schema);
        let mut merge = sorter.finish(Vec::new())?;
        while let Some(batch) = merge.next()? {
            job.check()?;
            writer.push(&batch)?;
        }
        // No other entry has the stamps of these.
        Ok(Part::Tree(build.log, writer.finish()?.claim_new_keys()))
    }
}

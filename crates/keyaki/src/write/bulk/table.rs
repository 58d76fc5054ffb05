//! Writes the table's own tree.
//!
//! Batches are written to leaves directly while their keys ascend. From the first batch that does not follow its
//! predecessor, all batches go to an external sort. At the end, the sorted rows are merged with the leaves written
//! before into a second, final sequence of leaves. Rows in order therefore cost nothing extra; if rows are out of
//! order, the rows before them are written twice and the others are sorted once.

use std::sync::Arc;

use arrow::array::RecordBatch;
use keyaki_store::{BulkWriter, Direction, Error as StoreError, KeyRange, Loaded};

use super::job::{Job, Part, Work};
use super::merge::Input;
use super::sort::Sorter;
use super::unique::{Unique, at};
use crate::catalog::Projection;
use crate::write::statistics;
use crate::{Error, Result};

pub(super) struct TableWriter {
    job: Arc<Job>,
    projection: Projection,
    unique: Unique,
    /// Writer of the rows that arrive in order.
    writer: BulkWriter,
    /// Sorter of all rows from the first batch out of order; `None` before.
    sorter: Option<Sorter>,
    /// Rows received in earlier batches.
    rows: u64,
}

impl TableWriter {
    pub fn new(job: &Arc<Job>) -> Result<Self> {
        let table = &job.table;
        Ok(TableWriter {
            job: job.clone(),
            projection: Projection::of_table(table, |column| job.place(column)),
            unique: Unique::of_table(job)?,
            writer: job.engine.store.bulk_writer(table.def.tree, &table.schema),
            sorter: None,
            rows: 0,
        })
    }

    /// Writes a batch. Returns false, without writing, if it is not in order.
    fn write(&mut self, batch: &RecordBatch) -> Result<bool> {
        let before = self.writer.rows();
        match self.writer.push(batch) {
            Ok(()) => {
                self.unique.check_existing(batch).map_err(|found| self.at_row(found, self.rows))?;
                Ok(true)
            }
            Err(StoreError::DuplicateKey { row }) => {
                let at = (row - before) as usize;
                Err(self.at_row((self.unique.duplicate(batch, at)?, at), self.rows))
            }
            Err(StoreError::OutOfOrder { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds file and row to an error about row `row` of the current batch. The position is known only while rows arrive
    /// in order.
    fn at_row(&self, (error, row): (Error, usize), before: u64) -> Error {
        at(error, &*self.job.origin, before + row as u64)
    }

    /// Merges the written leaves with the sorted rows.
    fn merge(job: &Job, unique: &mut Unique, written: &Loaded, sorter: Sorter) -> Result<Loaded> {
        let (tree, schema) = (job.table.def.tree, &job.table.schema);
        let pages = job.engine.store.blocking();
        let view = written.view(&job.engine.store, tree, schema);
        let cursor = view.cursor(&pages, KeyRange::all(), Direction::Ascending);
        let mut merge = sorter.finish(vec![Input::Tree(Box::new(cursor))])?;
        let mut writer = job.engine.store.bulk_writer(tree, schema);
        while let Some(batch) = merge.next()? {
            job.check()?;
            let before = writer.rows();
            match writer.push(&batch) {
                Ok(()) => unique.check_existing(&batch).map_err(|(error, _)| error)?,
                Err(StoreError::DuplicateKey { row }) => {
                    return Err(unique.duplicate(&batch, (row - before) as usize)?);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(writer.finish()?)
    }
}

impl Work for TableWriter {
    fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let batch = self.projection.apply(batch)?;
        if self.sorter.is_none() && !self.write(&batch)? {
            let schema = &self.job.table.schema;
            tracing::debug!(
                rows = self.rows,
                table = %self.job.table.def.name,
                "rows are out of key order, sorting the remaining rows"
            );
            let (arrow, keys) = (schema.arrow().clone(), schema.key_columns());
            self.sorter = Some(Sorter::new(arrow, keys, self.job.sort_bytes, self.job.spill.clone())?);
        }
        if let Some(sorter) = &mut self.sorter {
            sorter.push(&batch)?;
        }
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    fn finish(mut self) -> Result<Part> {
        let written = self.writer.finish()?;
        let loaded = match self.sorter {
            None => written,
            Some(sorter) => Self::merge(&self.job, &mut self.unique, &written, sorter)?,
        };
        let table = &self.job.table;
        let sample = loaded.sample(&self.job.engine.store)?;
        let sample = sample.unwrap_or_else(|| unreachable!("the trees of tables are sampled"));
        let statistics = statistics::of_sample(&sample, &table.tree_column)?;
        // `unique` has compared the keys with the existing rows, or they are new rowids.
        Ok(Part::Table(loaded.claim_new_keys(), statistics))
    }
}

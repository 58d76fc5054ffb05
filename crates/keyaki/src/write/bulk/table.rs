//! The table's own tree.
//!
//! Rows are written as they come while their keys ascend. From the first batch that does not follow its predecessor, rows
//! go to an external sort instead; at the end they are merged with what was written before into a second, final sequence
//! of leaves. Rows in order thus cost nothing extra, whatever their number; rows out of order are sorted once.

use std::sync::Arc;

use arrow::array::RecordBatch;
use keyaki_store::{BulkWriter, Direction, Error as StoreError, KeyRange, Loaded};

use super::job::{Job, Part, Projection, Work};
use super::merge::Input;
use super::sort::Sorter;
use super::unique::{Unique, at};
use crate::{Error, Result};

pub(super) struct TableWriter {
    job: Arc<Job>,
    projection: Projection,
    unique: Unique,
    /// Rows that came in order.
    writer: BulkWriter,
    /// Set from the first batch that was not.
    sorter: Option<Sorter>,
    rows: u64,
}

impl TableWriter {
    pub fn new(job: &Arc<Job>) -> Result<Self> {
        let table = &job.table;
        Ok(TableWriter {
            job: job.clone(),
            projection: Projection::new(table, &table.table_columns(), &table.schema),
            unique: Unique::of_table(job)?,
            writer: job.engine.store.bulk_writer(table.def.tree, &table.schema),
            sorter: None,
            rows: 0,
        })
    }

    /// Writes a batch if it is in order; false if it is not.
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

    /// The error with the place of the row, which is known while rows come in order.
    fn at_row(&self, (error, row): (Error, usize), before: u64) -> Error {
        at(error, &*self.job.origin, before + row as u64)
    }

    /// Merges what was written in order with what was sorted.
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
            tracing::debug!(rows = self.rows, table = self.job.table.def.name, "rows out of key order: sorting");
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
        Ok(Part::Tree(self.job.table.def.tree, loaded))
    }
}

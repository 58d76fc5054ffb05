//! The rows that a query has read, and the locks of their keys.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::{concat, concat_batches, take_record_batch};
use arrow::datatypes::SchemaRef;
use keyaki_store::{KeyRange, TreeId};

use super::clauses::WhenLocked;
use super::plan::LockedTable;
use crate::base::row_locks::{LockHolder, LockMode, ROWS_MAX, RowId, RowLocks, Wait};
use crate::engine::Writer;
use crate::write::RowBuffer;
use crate::write::apply::present_keys;
use crate::write::rows::{Keys, TableRows, as_stored};
use crate::{Error, Result};

/// The row of a table is missing: it is that of an outer join.
const NONE: u32 = u32::MAX;

/// The rows of a query.
pub(super) struct Rows<'a> {
    locks: &'a RowLocks,
    buffer: &'a RowBuffer,
    schema: &'a SchemaRef,
    tables: Vec<TableKeys<'a>>,
}

/// The keys of the rows in one table.
struct TableKeys<'a> {
    table: &'a LockedTable,
    keys: Keys,
    /// For each row, its position in `keys`, or [`NONE`].
    of_rows: Vec<u32>,
}

/// The result of locking rows.
pub(super) enum Found {
    /// The positions of the rows that are locked, ascending.
    Locked(Vec<u32>),
    /// Another transaction has a row.
    Wait(Wait),
    /// A commit has changed a row since the snapshot.
    Outdated,
}

impl<'a> Rows<'a> {
    /// The rows in `buffer`, with the keys of `tables`.
    ///
    /// # Errors
    /// None is expected.
    pub fn new(
        locks: &'a RowLocks,
        tables: &'a [LockedTable],
        buffer: &'a RowBuffer,
        schema: &'a SchemaRef,
    ) -> Result<Rows<'a>> {
        let tables = tables.iter().map(|table| TableKeys::new(table, buffer)).collect::<Result<_>>()?;
        Ok(Rows { locks, buffer, schema, tables })
    }

    /// Locks the rows, or the first `needed` ones that others have not locked.
    ///
    /// # Errors
    /// `LockNotAvailable` if another holder has a row and the statement does not wait; `Conflict` if a row has changed and the
    /// transaction keeps its snapshot; `Deadlock`, `TooManyLocks`.
    pub fn lock(&self, holder: &Arc<LockHolder>, writer: &Writer, waits: bool, needed: Option<usize>) -> Result<Found> {
        let (selected, is_outdated) = self.select(holder, writer, needed)?;
        for keys in self.tables.iter().filter(|keys| keys.when_locked() != WhenLocked::Skip) {
            let is_selected =
                |row: usize| selected.len() == self.buffer.rows || selected.binary_search(&(row as u32)).is_ok();
            // In the order of the keys: queries that lock the same rows do not wait for each other.
            let rows = keys.keys.sorted().filter(|i| is_selected(keys.keys.row(*i)));
            let mut rows = rows.map(|i| keys.lock(self.locks, i));
            let locked = match keys.when_locked() == WhenLocked::Wait && waits {
                true => holder.lock(rows)?,
                false if rows.all(|(row, mode)| holder.try_lock(row, mode)) => None,
                false => {
                    return Err(Error::LockNotAvailable { relation: keys.table.table.def.name.name.to_string() });
                }
            };
            if let Some(wait) = locked {
                return Ok(Found::Wait(wait));
            }
        }
        if holder.len() >= ROWS_MAX {
            return Err(Error::TooManyLocks);
        }
        if is_outdated || !writer.outdated(&self.ranges(&selected))?.is_empty() {
            return Ok(Found::Outdated);
        }
        Ok(Found::Locked(selected))
    }

    /// The first `needed` rows that no other holder has, of tables with SKIP LOCKED. They are locked. Also true if there are
    /// too few because a commit has changed others.
    fn select(&self, holder: &LockHolder, writer: &Writer, needed: Option<usize>) -> Result<(Vec<u32>, bool)> {
        let skipping: Vec<&TableKeys<'_>> =
            self.tables.iter().filter(|keys| keys.when_locked() == WhenLocked::Skip).collect();
        if skipping.is_empty() {
            return Ok(((0..self.buffer.rows as u32).collect(), false));
        }
        let needed = needed.unwrap_or(usize::MAX);
        let (mut selected, mut rest, mut found_outdated) = (Vec::new(), 0..self.buffer.rows, false);
        loop {
            let first = selected.len();
            while selected.len() < needed
                && holder.len() < ROWS_MAX
                && let Some(row) = rest.next()
            {
                let mut locks = skipping.iter().filter_map(|keys| keys.of_row(row).map(|i| keys.lock(self.locks, i)));
                if locks.all(|(row, mode)| holder.try_lock(row, mode)) {
                    selected.push(row as u32);
                }
            }
            // A row that a commit has changed since the snapshot was locked in the meantime.
            let mut keys = Vec::new();
            for &row in &selected[first..] {
                keys.extend(skipping.iter().filter_map(|of| {
                    let i = of.of_row(row as usize)?;
                    Some((row, of.lock(self.locks, i).0, of.range(i)))
                }));
            }
            let ranges: Vec<_> = keys.iter().map(|(_, _, range)| range.clone()).collect();
            let outdated = writer.outdated(&ranges)?;
            if outdated.is_empty() {
                break;
            }
            found_outdated = true;
            holder.release_rows(outdated.iter().map(|&i| keys[i].1));
            let rows: Vec<u32> = outdated.into_iter().map(|i| keys[i].0).collect();
            selected.retain(|row| rows.binary_search(row).is_err());
        }
        let is_short = selected.len() < needed;
        Ok((selected, found_outdated && is_short))
    }

    /// Calls `depend` with the tree and the key of each row that is locked.
    pub fn keep(&self, selected: &[u32], mut depend: impl FnMut(TreeId, KeyRange)) {
        self.ranges(selected).into_iter().for_each(|(tree, range)| depend(tree, range));
    }

    fn ranges(&self, selected: &[u32]) -> Vec<(TreeId, KeyRange)> {
        let mut ranges = Vec::new();
        for keys in &self.tables {
            ranges.extend(selected.iter().filter_map(|&row| keys.of_row(row as usize).map(|i| keys.range(i))));
        }
        ranges
    }

    /// The rows at some positions, with all columns.
    ///
    /// # Errors
    /// None is expected.
    pub fn result(&self, selected: &[u32]) -> Result<Vec<RecordBatch>> {
        if selected.len() == self.buffer.rows {
            return Ok(self.buffer.batches.clone());
        }
        let all = concat_batches(self.schema, &self.buffer.batches)?;
        Ok(vec![take_record_batch(&all, &UInt32Array::from(selected.to_vec()))?])
    }
}

impl<'a> TableKeys<'a> {
    fn new(table: &'a LockedTable, buffer: &RowBuffer) -> Result<TableKeys<'a>> {
        let len = buffer.rows;
        let mut of_rows = vec![NONE; len];
        let arrays = table.key.iter().map(|&place| {
            let parts: Vec<&dyn Array> = buffer.batches.iter().map(|batch| batch.column(place).as_ref()).collect();
            Ok(concat(&parts)?)
        });
        let arrays: Vec<ArrayRef> = if len == 0 { Vec::new() } else { arrays.collect::<Result<_>>()? };
        let def = &table.table.def;
        let mut rows = TableRows { len, columns: vec![None; def.columns.len()], rowid: None };
        // A key has no nulls: they are those of an outer join.
        let first = arrays.first().cloned();
        match def.hidden_rowid {
            true => rows.rowid = first.clone(),
            false => {
                for (array, &column) in arrays.iter().zip(&def.primary_key) {
                    rows.columns[column] = Some(as_stored(array, &def.columns[column])?);
                }
            }
        }
        let is_missing = |row: usize| first.as_ref().is_some_and(|first| first.is_null(row));
        let keys = present_keys(&table.table, &rows, is_missing)?;
        for i in 0..keys.len() {
            of_rows[keys.row(i)] = i as u32;
        }
        Ok(TableKeys { table, keys, of_rows })
    }

    fn when_locked(&self) -> WhenLocked {
        self.table.request.when_locked
    }

    /// The position of the key of a row.
    fn of_row(&self, row: usize) -> Option<usize> {
        Some(self.of_rows[row]).filter(|i| *i != NONE).map(|i| i as usize)
    }

    fn lock(&self, locks: &RowLocks, i: usize) -> (RowId, LockMode) {
        (locks.row(self.table.table.def.tree, self.keys.get(i)), self.table.request.mode)
    }

    fn range(&self, i: usize) -> (TreeId, KeyRange) {
        (self.table.table.def.tree, KeyRange::point(self.keys.get(i).to_vec()))
    }
}

//! Checks the uniqueness of a primary key or unique index: among the loaded rows, and against the existing rows of the
//! table.
//!
//! Loaded rows arrive in key order, so equal keys are neighbours. Existing rows are looked up in the same order. A
//! lookup skips all loaded keys below the key that it finds: a batch whose keys are above all existing ones costs one
//! lookup. Nulls are never equal.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch};
use keyaki_store::{KeyCodec, Schema, TreeId, TreeView};

use super::job::Job;
use super::sort::SortKey;
use crate::catalog::Table;
use crate::write::apply::{describe, find_existing, unique_keys};
use crate::write::origin::Origin;
use crate::write::rows::{Keys, TableRows};
use crate::{ConstraintKind, Error, Result};

/// The uniqueness check of one tree; checks nothing if the tree has no constraint.
pub(super) struct Unique {
    job: Arc<Job>,
    constraint: Option<Constraint>,
}

struct Constraint {
    kind: ConstraintKind,
    name: String,
    schema: Arc<Schema>,
    /// Number of leading columns that are unique.
    columns: usize,
    key: SortKey,
    /// The existing tree; `None` if it is empty.
    existing: Option<TreeView>,
    /// Key of the last row checked; `None` if it contains a null.
    last: Option<Vec<u8>>,
}

impl Unique {
    pub fn of_table(job: &Arc<Job>) -> Result<Self> {
        let table = &job.table;
        // Reserved rowids are unique.
        if table.def.hidden_rowid {
            return Ok(Unique { job: job.clone(), constraint: None });
        }
        let name = table.def.primary_key_name();
        let kind = ConstraintKind::PrimaryKey;
        Self::new(job, kind, table.def.tree, name, &table.schema, table.schema.key_columns())
    }

    pub fn of_index(job: &Arc<Job>, position: usize) -> Result<Self> {
        let index = &job.table.def.indexes[position];
        if !index.unique {
            return Ok(Unique { job: job.clone(), constraint: None });
        }
        let (kind, name) = (ConstraintKind::Unique, index.name.clone());
        Self::new(job, kind, index.tree, name, &job.table.index_schemas[position], index.keys.len())
    }

    fn new(
        job: &Arc<Job>,
        kind: ConstraintKind,
        tree: TreeId,
        name: String,
        schema: &Arc<Schema>,
        columns: usize,
    ) -> Result<Self> {
        let existing = match job.snapshot.tree(tree) {
            Ok(view) => Some(view).filter(|view| !view.is_empty()),
            // The load creates the tree.
            Err(keyaki_store::Error::TreeNotFound(_)) => None,
            Err(error) => return Err(error.into()),
        };
        let key = SortKey::new(schema.arrow(), columns)?;
        let constraint = Constraint { kind, name, schema: schema.clone(), columns, key, existing, last: None };
        Ok(Unique { job: job.clone(), constraint: Some(constraint) })
    }

    /// Checks neighbouring rows against each other. All batches of the load must be passed in key order.
    ///
    /// # Errors
    /// `Constraint` with the first duplicate key.
    pub fn check_neighbours(&mut self, batch: &RecordBatch) -> Result<()> {
        let Some(constraint) = &mut self.constraint else { return Ok(()) };
        let columns = &batch.columns()[..constraint.columns];
        let keys = constraint.key.encode(batch)?;
        let mut last = constraint.last.as_deref();
        for (row, key) in keys.iter().enumerate() {
            let key = (!has_null(columns, row)).then(|| key.data());
            if key.is_some() && key == last {
                return Err(self.duplicate(batch, row)?);
            }
            last = key;
        }
        constraint.last = last.map(<[u8]>::to_vec);
        Ok(())
    }

    /// Checks rows in key order against the existing rows. An error comes with the row's position in the batch.
    pub fn check_existing(&mut self, batch: &RecordBatch) -> std::result::Result<(), (Error, usize)> {
        let Some(constraint) = &self.constraint else { return Ok(()) };
        let Some(view) = &constraint.existing else { return Ok(()) };
        let columns = &batch.columns()[..constraint.columns];
        let new = unique_keys(&KeyCodec::new(&constraint.schema), columns, batch.num_rows(), None);
        let found = find_existing(&new, &Keys::default(), constraint.columns, &self.job.engine.store, view)
            .map_err(|error| (error, 0))?;
        let Some(key) = found else { return Ok(()) };
        let row = new.sorted().find(|&i| new.get(i) == key).map_or(0, |i| new.row(i));
        Err((self.duplicate(batch, row).unwrap_or_else(|error| error), row))
    }

    /// The `Constraint` error for a row whose key exists.
    pub fn duplicate(&self, batch: &RecordBatch, row: usize) -> Result<Error> {
        let Some(constraint) = &self.constraint else {
            return Ok(Error::Internal(format!("rowids of table \"{}\" repeat", self.job.table.def.name)));
        };
        let columns = &batch.columns()[..constraint.columns];
        Ok(Error::Constraint {
            kind: constraint.kind,
            table: self.job.table.def.name.to_string(),
            name: constraint.name.clone(),
            key: Some(describe(&constraint.schema, columns, row)?),
        })
    }
}

fn has_null(columns: &[ArrayRef], row: usize) -> bool {
    columns.iter().any(|column| column.null_count() > 0 && column.is_null(row))
}

/// Adds file and row to a constraint violation at row `row` of the stream, if the row has a position.
pub(in crate::write) fn at(error: Error, origin: &dyn Origin, row: u64) -> Error {
    match (error, origin.locate(row)) {
        (
            error @ (Error::Constraint { .. } | Error::CheckViolation { .. } | Error::MissingReference { .. }),
            Some((path, row)),
        ) => Error::Import { path, row: Some(row), column: None, source: Box::new(error) },
        (error, _) => error,
    }
}

/// Adds file and row to a constraint violation: searches `batches`, which `before` rows precede, for the last row with the
/// duplicate key.
pub(in crate::write) fn locate_duplicate(
    error: Error,
    table: &Table,
    before: u64,
    batches: &[RecordBatch],
    origin: &dyn Origin,
) -> Error {
    let Error::Constraint { name: constraint, key: Some(key), .. } = &error else { return error };
    if origin.locate(0).is_none() {
        return error;
    }
    let of_index = table.def.indexes.iter().position(|index| index.name == *constraint);
    let (schema, mut columns, keys) = match of_index {
        Some(index) => (&table.index_schemas[index], table.index_columns(index), table.def.indexes[index].keys.len()),
        None => (&table.schema, table.table_columns(), table.schema.key_columns()),
    };
    columns.truncate(keys);
    let mut end: u64 = batches.iter().map(|batch| batch.num_rows() as u64).sum();
    for batch in batches.iter().rev() {
        let start = end - batch.num_rows() as u64;
        let Ok((arrays, selected)) = keys_of(table, of_index, &columns, batch) else { return error };
        let has_key = |&row: &usize| {
            selected.as_ref().is_none_or(|selected| selected.value(row))
                && describe(schema, &arrays, row).is_ok_and(|described| described == *key)
        };
        let row = (0..batch.num_rows()).rev().find(has_key);
        if let Some(row) = row {
            return at(error, origin, before + start + row as u64);
        }
        end = start;
    }
    error
}

/// The values of tree columns in a batch of rows, and for a partial index whether it has an entry for each row.
fn keys_of(
    table: &Table,
    index: Option<usize>,
    columns: &[Option<usize>],
    batch: &RecordBatch,
) -> Result<(Vec<ArrayRef>, Option<BooleanArray>)> {
    let of_table = batch.columns().iter().take(table.def.columns.len()).cloned().map(Some).collect();
    let mut rows = TableRows { len: batch.num_rows(), columns: of_table, rowid: None };
    rows.add_virtual(table)?;
    let predicate = index.map_or(Ok(None), |index| table.predicate(index))?;
    Ok((rows.of_tree(columns)?, predicate.map(|predicate| rows.selected(predicate)).transpose()?))
}

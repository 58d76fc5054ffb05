//! CHECK constraints of new rows.
//!
//! A condition is evaluated for whole batches. A row violates a constraint if its condition is false; NULL passes. An
//! UPDATE evaluates only conditions over assigned columns: the others hold for the old row.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;

use super::apply::TableChange;
use super::bulk;
use super::origin::Origin;
use super::rows::TableRows;
use crate::catalog::{Check, Compiled, Table};
use crate::{Error, Result};

/// Checks the new rows of a change.
///
/// # Errors
/// `CheckViolation`, errors of the conditions.
pub(super) fn verify_change(change: &mut TableChange) -> Result<()> {
    if change.new.len == 0 || change.table.def.checks.is_empty() {
        return Ok(());
    }
    // A repeated row has no effect.
    change.drop_repeats()?;
    verify_rows(&change.table, &change.new, change.assigned.as_deref())
}

/// Checks rows with all columns. Conditions without any column in `assigned` are not evaluated.
///
/// # Errors
/// `CheckViolation`, errors of the conditions.
pub(crate) fn verify_rows(table: &Table, rows: &TableRows, assigned: Option<&[usize]>) -> Result<()> {
    if table.def.checks.is_empty() || rows.len == 0 {
        return Ok(());
    }
    let columns = rows.columns.iter().cloned().collect::<Option<Vec<_>>>();
    let columns = columns.ok_or_else(|| Error::Internal("a CHECK constraint needs all columns".into()))?;
    verify(table, &batch(table, columns, rows.len)?, assigned).map_err(|(error, _)| error)
}

/// Checks batches of rows with all columns.
///
/// # Errors
/// As [`verify_rows`].
pub(crate) fn verify_batches(table: &Table, batches: &[RecordBatch]) -> Result<()> {
    batches.iter().try_for_each(|batch| verify(table, batch, None).map_err(|(error, _)| error))
}

/// Checks existing rows against the constraints of a new definition.
///
/// # Errors
/// As [`verify_rows`].
pub(super) fn verify_existing(table: &Table, batch: &RecordBatch) -> Result<()> {
    if table.def.checks.is_empty() {
        return Ok(());
    }
    verify(table, batch, None).map_err(|(error, _)| match error {
        Error::CheckViolation { table, name, .. } => Error::CheckViolation { table, name, is_new_row: false },
        other => other,
    })
}

/// Passes on rows with all columns, until one violates a constraint. The error has the row's position in `origin`.
pub(super) fn verified(
    rows: SendableRecordBatchStream,
    table: &Arc<Table>,
    origin: &Arc<dyn Origin>,
) -> SendableRecordBatchStream {
    if table.def.checks.is_empty() {
        return rows;
    }
    let (table, origin, schema) = (table.clone(), origin.clone(), rows.schema());
    let mut before = 0;
    let rows = rows.map(move |batch| {
        let batch = batch?;
        verify(&table, &batch, None).map_err(|(error, row)| bulk::at(error, &*origin, before + row as u64))?;
        before += batch.num_rows() as u64;
        Ok(batch)
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}

fn batch(table: &Table, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(table.arrow.clone(), columns, &options)?)
}

/// Checks the rows of a batch. An error comes with the row's position in the batch.
fn verify(table: &Table, batch: &RecordBatch, assigned: Option<&[usize]>) -> std::result::Result<(), (Error, usize)> {
    let Compiled { checks, .. } = table.compiled().ok_or_else(|| {
        (Error::Internal(format!("the conditions of table \"{}\" are not compiled", table.def.name)), 0)
    })?;
    let concerns = |check: &Check| match assigned {
        Some(assigned) => check.columns.is_empty() || check.columns.iter().any(|column| assigned.contains(column)),
        None => true,
    };
    for (check, def) in checks.iter().zip(&table.def.checks).filter(|(check, _)| concerns(check)) {
        let violation = first_violation(check, batch).map_err(|error| (error, 0))?;
        if let Some(row) = violation {
            let (table, name) = (table.def.name.to_string(), def.name.clone());
            return Err((Error::CheckViolation { table, name, is_new_row: true }, row));
        }
    }
    Ok(())
}

/// The first row for which the condition is false.
fn first_violation(check: &Check, batch: &RecordBatch) -> Result<Option<usize>> {
    let values = check.condition.evaluate(batch)?.into_array(batch.num_rows())?;
    let Some(values) = values.as_boolean_opt() else {
        return Err(Error::Internal(format!("a condition is of type {}", values.data_type())));
    };
    if values.false_count() == 0 {
        return Ok(None);
    }
    Ok((0..values.len()).find(|&row| values.is_valid(row) && !values.value(row)))
}

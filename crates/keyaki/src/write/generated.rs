//! Values of generated columns.
//!
//! A generated column is stored. Its value follows from other columns of the row, so that every new row gets it after the
//! values of the others have been converted to their types, and before constraints are checked.

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};

use super::assign::assign;
use super::rows::TableRows;
use crate::catalog::{ColumnDef, Generated, Table};
use crate::values::zone::Zone;
use crate::{Error, Result};

/// Values in the place of a generated column, until [`complete`] computes them.
pub(crate) fn unset(column: &ColumnDef, rows: usize) -> ArrayRef {
    new_null_array(&column.ty.column.arrow(), rows)
}

/// Computes the generated columns among `columns`, which has an array of `rows` values for each column of the table. The
/// given values of generated columns do not matter, but have the type of the column.
///
/// # Errors
/// `Context` with the column: errors of its expression and of [`assign`].
pub(crate) fn complete(table: &Table, columns: &mut [ArrayRef], rows: usize) -> Result<()> {
    if table.has_generated() {
        compute(table, columns, rows, |_| true)?;
    }
    Ok(())
}

/// As [`complete`], as a batch.
///
/// # Errors
/// As [`complete`].
pub(crate) fn completed(table: &Table, mut columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    let rows = columns.first().map_or(0, |column| column.len());
    complete(table, &mut columns, rows)?;
    Ok(RecordBatch::try_new(table.arrow.clone(), columns)?)
}

/// Computes the generated columns of updated rows that depend on an assigned column.
///
/// # Errors
/// As [`complete`].
pub(crate) fn follow(table: &Table, assigned: &[usize], new: &mut TableRows) -> Result<()> {
    if !table.has_generated() {
        return Ok(());
    }
    let columns = new.columns.iter().cloned().collect::<Option<Vec<_>>>();
    let mut columns = columns.ok_or_else(|| Error::Internal("generated columns need all columns".into()))?;
    compute(table, &mut columns, new.len, |generated| generated.depends_on(assigned))?;
    new.columns = columns.into_iter().map(Some).collect();
    Ok(())
}

/// The assigned columns, and the generated and virtual columns that depend on them.
pub(crate) fn with_dependents(table: &Table, mut assigned: Vec<usize>) -> Vec<usize> {
    let Some(compiled) = table.compiled() else { return assigned };
    let generated = compiled.generation.iter().flat_map(|generation| &generation.columns);
    let generated: Vec<usize> =
        generated.filter(|generated| generated.depends_on(&assigned)).map(|generated| generated.column).collect();
    assigned.extend(generated);
    let depends_on = |column: &usize| {
        let used = &compiled.virtual_values[column - table.virtual_columns().start].value.columns;
        used.iter().any(|column| assigned.contains(column))
    };
    let dependents: Vec<usize> = table.virtual_columns().filter(depends_on).collect();
    assigned.extend(dependents);
    assigned
}

fn compute(table: &Table, columns: &mut [ArrayRef], rows: usize, concerns: impl Fn(&Generated) -> bool) -> Result<()> {
    let generation = table.compiled().and_then(|compiled| compiled.generation.as_ref());
    let generation = generation.ok_or_else(|| {
        Error::Internal(format!("the generated columns of table \"{}\" are not compiled", table.def.name))
    })?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    // No expression uses another generated column.
    let given = RecordBatch::try_new_with_options(generation.schema.clone(), columns.to_vec(), &options)?;
    for generated in generation.columns.iter().filter(|generated| concerns(generated)) {
        let column = &table.def.columns[generated.column];
        let values = generated.value.evaluate(&given).map_err(Error::from);
        let values = values.and_then(|values| Ok(values.into_array(rows)?));
        // The value must not depend on the session's time zone.
        let values = values.and_then(|values| assign(&values, &table.def.name, column, Zone::UTC));
        columns[generated.column] = values.map_err(|error| match error {
            Error::Constraint { .. } => error,
            error => error.without_column().within(format!("generated column \"{}\"", column.name)),
        })?;
    }
    Ok(())
}

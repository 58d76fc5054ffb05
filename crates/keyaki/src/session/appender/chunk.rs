//! Inserts one chunk of appended rows.
//!
//! The table is looked up for each chunk: it may have changed since the appender was made.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::base::interrupt::Execution;
use crate::catalog::{RelationName, Table};
use crate::sql::SqlSession;
use crate::sql::access;
use crate::sql::dml::defaults;
use crate::sql::expressions;
use crate::write::{AppendedRows, Conform, Given, append, assign};
use crate::{Error, Result};

/// Checks that columns without values may be missing.
///
/// # Errors
/// `Constraint` if a NOT NULL column without default is not among `given`.
pub(super) fn check_missing(table: &Table, given: &[usize]) -> Result<()> {
    let columns = table.def.columns.iter().enumerate();
    let mut missing = columns.filter(|(position, column)| {
        !given.contains(position) && !column.nullable && !column.has_default() && column.generated.is_none()
    });
    missing.next().map_or(Ok(()), |(_, column)| Err(assign::not_null(&table.def.name, column)))
}

/// Inserts the rows of a chunk in one commit and returns their number. `columns` are the columns that the batches may
/// have; `first` rows precede the chunk.
///
/// # Errors
/// `Import` with the row for a value that does not fit and for a duplicate key; `NotFound`, `UndefinedColumn`,
/// `DuplicateColumn`; `Constraint` if a NOT NULL column is missing; errors of the commit.
pub(super) async fn insert(
    session: &SqlSession,
    execution: &Execution<'_>,
    table: &RelationName,
    columns: &[&str],
    chunk: Vec<RecordBatch>,
    first: u64,
) -> Result<u64> {
    let writer = session.writer(execution, "INSERT").await?;
    let (catalog, _) = session.engine.latest(&writer);
    let table = catalog.table(table)?.clone();
    access::insertion(session, &catalog, &table)?;
    expressions::compiled(session, &table)?;
    let targets = columns.iter().map(|name| table.column(name)).collect::<Result<Vec<_>>>()?;
    let defaults = defaults::physical(session, &writer, &table)?;
    let mut conform: Option<(SchemaRef, Conform)> = None;
    let mut rows = Vec::with_capacity(chunk.len());
    let mut row = first;
    for batch in chunk {
        let known = conform.take().filter(|(schema, _)| *schema == batch.schema());
        let (schema, conformed) = match known {
            Some(known) => known,
            None => {
                let names: Vec<String> = batch.schema().fields().iter().map(|field| field.name().clone()).collect();
                (
                    batch.schema(),
                    Conform::new(&table, &targets, Given::Named(&names), &defaults)?.in_zone(session.zone()),
                )
            }
        };
        rows.push(conformed.typed(&batch).map_err(|bad| {
            let row = bad.row.map(|at| row + at as u64 + 1);
            Error::Import { path: None, row, column: None, source: bad.error }
        })?);
        row += batch.num_rows() as u64;
        conform = Some((schema, conformed));
    }
    append(session.write(writer), &table, rows, Arc::new(AppendedRows { first })).await
}

//! DELETE: reads the key columns of the selected rows and deletes their entries from all trees of the table.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use datafusion::sql::sqlparser::ast::{Delete, Expr, FromTable, Query, SelectItem, TableWithJoins};
use keyaki_store::WriteBatch;

use super::TargetTable;
use super::parts::{self, Affected, Effects};
use super::returning::Returning;
use super::update::key_columns;
use crate::base::interrupt::Execution;
use crate::catalog::{Catalog, Privileges, Table};
use crate::engine::Writer;
use crate::sql::Outcome;
use crate::sql::SqlSession;
use crate::sql::access;
use crate::sql::expressions;
use crate::sql::prepared::add_types;
use crate::sql::short::{Change, ChangeKind, Read, ShortPlan};
use crate::sql::state::StatementState;
use crate::write::BatchLimits;
use crate::write::apply::TableChange;
use crate::write::rebuild;
use crate::write::rows::{TableRows, as_stored};
use crate::{Error, Result};

/// DELETE of all rows of a table with at least this many rows replaces its trees, as TRUNCATE does. A changed definition makes
/// all prepared statements be planned again, which takes longer than the deletion of fewer rows.
const TRUNCATED_ROWS_MIN: u64 = 10_000;

pub(crate) async fn run(session: &SqlSession, execution: &Execution<'_>, delete: Delete) -> Result<Outcome> {
    let Clauses { relation, using, selection, returning } = clauses(delete)?;
    let writer = session.writer(execution, "DELETE").await?;
    let (catalog, snapshot) = session.engine.latest(&writer);
    let state = StatementState::new(session, catalog, snapshot)?;
    let of_target = of_target(using.is_some() || selection.is_some() || returning.is_some());
    let target = TargetTable::new(&state, &relation, of_target)?;
    let table = target.table.clone();
    expressions::compiled(session, &table)?;
    let repeats = using.is_some();
    if selection.is_none()
        && using.is_none()
        && returning.is_none()
        && let Some(rows) = rows_to_truncate(session, &state, &writer, &table)?
    {
        let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&state.catalog));
        rebuild::empty(&session.engine, &mut changed, &mut batch, &table, false)?;
        session.engine.commit_catalog(&writer, batch, changed).await?;
        return Ok(Outcome::rows("DELETE", rows));
    }
    let relations = using.as_deref().unwrap_or_default();
    let mut returning =
        Returning::of(returning, target.alias().clone()).map(|returning| returning.joined(&table, relations));
    let others = returning.as_ref().map_or_else(Vec::new, |returning| returning.others().to_vec());
    let needed = if returning.is_some() { (0..table.def.columns.len()).collect() } else { needed(&table)? };
    let extra = others.len();
    let plan = state.plan_query(affected_rows(&target, &needed, others, using, selection)?).await?;
    let effects = Effects { deletes: true, ..Effects::default() };
    let limits = match parts::can_divide((&state.catalog, &table), &writer, effects)? {
        true => Some(BatchLimits::of_part(&session.engine, &table)),
        false => None,
    };
    let change_of = |batches: &[RecordBatch]| {
        let parts = batches.iter().map(|batch| {
            let mut old = rows_of(&table, &needed, batch)?;
            old.columns.extend(batch.columns()[batch.num_columns() - extra..].iter().cloned().map(Some));
            Ok(old)
        });
        let old = TableRows::concat(&parts.collect::<Result<Vec<_>>>()?)?;
        Ok(TableChange { old_repeats: repeats, ..TableChange::deletion(&table, old) })
    };
    let rows = state.run(&plan).await?;
    if let Some(returning) = &mut returning {
        returning.set_types(&rows.schema());
    }
    let affected = Affected::read(session, "DELETE", rows, limits).await?;
    // The query returns the needed columns, and the hidden rowid.
    let place = |column: usize| needed.iter().position(|needed| *needed == column).unwrap_or(needed.len());
    let key: Vec<usize> = key_columns(&table).into_iter().map(place).collect();
    let key = repeats.then_some(key.as_slice());
    parts::apply(session, &state, writer, ("DELETE", affected, key), returning, change_of).await
}

/// The number of rows of a table that new empty trees may replace: it is exact and large, and the table loses nothing but its
/// rows. The statement is a transaction of its own.
fn rows_to_truncate(
    session: &SqlSession,
    state: &StatementState,
    writer: &Writer,
    table: &Table,
) -> Result<Option<u64>> {
    let engine = &session.engine;
    let is_referenced = state.catalog.referencing(&table.def.name).any(|(other, _)| other.def.name != table.def.name);
    if is_referenced || writer.is_in_transaction() || !engine.cache.pins.list(&engine.store).is_empty() {
        return Ok(None);
    }
    engine.check_writable(table)?;
    let rows = state.snapshot.tree(table.def.tree)?.live_rows();
    Ok(rows.filter(|rows| *rows >= TRUNCATED_ROWS_MIN))
}

/// Adds the types of the parameters, and compiles the statement for the short path if it has the form.
///
/// # Errors
/// As [`run`], up to the execution.
pub(crate) async fn describe(
    state: &StatementState,
    delete: &Delete,
    types: &mut [Option<DataType>],
) -> Result<Option<ShortPlan>> {
    let Clauses { relation, using, selection, returning } = clauses(delete.clone())?;
    let of_target = of_target(using.is_some() || selection.is_some() || returning.is_some());
    let target = TargetTable::new(state, &relation, of_target)?;
    let table = target.table.clone();
    let alone = using.is_none() && returning.is_none();
    let query = affected_rows(&target, &needed(&table)?, Vec::new(), using, selection)?;
    let Ok(plan) = state.plan_query(query).await else { return Ok(None) };
    add_types(types, &plan);
    let Some(types) = types.iter().cloned().collect::<Option<Vec<_>>>().filter(|_| alone) else { return Ok(None) };
    let Some(read) = Read::compile(&plan, &state.state, &types) else { return Ok(None) };
    Ok(Some(ShortPlan::Change(Box::new(Change { read, kind: ChangeKind::Delete, table }))))
}

/// The table and the query of the affected rows, for EXPLAIN.
///
/// # Errors
/// As [`run`], up to the execution.
pub(super) fn explained(state: &StatementState, delete: Delete) -> Result<(Arc<Table>, Query)> {
    let Clauses { relation, using, selection, returning } = clauses(delete)?;
    let of_target = of_target(using.is_some() || selection.is_some() || returning.is_some());
    let target = TargetTable::new(state, &relation, of_target)?;
    let query = affected_rows(&target, &needed(&target.table)?, Vec::new(), using, selection)?;
    Ok((target.table, query))
}

/// The privileges for the target, which the statement also reads if `reads`.
fn of_target(reads: bool) -> access::Target {
    access::Target::new(Privileges::DELETE, reads)
}

/// The supported clauses of a DELETE.
struct Clauses {
    relation: TableWithJoins,
    using: Option<Vec<TableWithJoins>>,
    selection: Option<Expr>,
    returning: Option<Vec<SelectItem>>,
}

fn clauses(delete: Delete) -> Result<Clauses> {
    let refuse = |refused: bool, what: &str| match refused {
        true => Err(Error::Unsupported(format!("DELETE … {what}"))),
        false => Ok(()),
    };
    let Delete {
        delete_token: _,
        optimizer_hints: _,
        tables,
        from,
        using,
        selection,
        returning,
        output,
        order_by,
        limit,
    } = delete;
    refuse(!tables.is_empty(), "of several tables")?;
    refuse(output.is_some(), "OUTPUT (use RETURNING)")?;
    refuse(!order_by.is_empty() || limit.is_some(), "ORDER BY and LIMIT")?;
    let (FromTable::WithFromKeyword(mut from) | FromTable::WithoutKeyword(mut from)) = from;
    match (from.pop(), from.is_empty()) {
        (Some(relation), true) => Ok(Clauses { relation, using, selection, returning }),
        _ => Err(Error::Unsupported("DELETE FROM several tables".into())),
    }
}

/// The query of the affected rows: `columns`, and the hidden rowid if there is one.
fn affected_rows(
    target: &TargetTable,
    columns: &[usize],
    others: Vec<Expr>,
    using: Option<Vec<TableWithJoins>>,
    selection: Option<Expr>,
) -> Result<Query> {
    let table = &target.table;
    let mut expressions: Vec<Expr> = columns.iter().map(|&c| target.column(&table.def.columns[c].name)).collect();
    expressions.extend(target.rowid());
    expressions.extend(others);
    target.select(expressions, using.unwrap_or_default(), selection)
}

/// The rows of a batch of this query for the columns that keys consist of.
///
/// # Errors
/// As [`needed`].
pub(crate) fn old_rows(table: &Table, batch: &RecordBatch) -> Result<TableRows> {
    rows_of(table, &needed(table)?, batch)
}

///
/// # Errors
/// None is expected.
pub(super) fn rows_of(table: &Table, needed: &[usize], batch: &RecordBatch) -> Result<TableRows> {
    let mut columns = vec![None; table.def.columns.len()];
    for (&column, values) in needed.iter().zip(batch.columns()) {
        columns[column] = Some(as_stored(values, &table.def.columns[column])?);
    }
    Ok(TableRows { len: batch.num_rows(), columns, rowid: batch.columns().get(needed.len()).cloned() })
}

/// Columns that the keys of the table and of its indexes consist of, and those of the expressions and predicates of indexes, ascending.
///
/// # Errors
/// `Internal` if the expressions of the table have not been compiled.
pub(super) fn needed(table: &Table) -> Result<Vec<usize>> {
    let def = &table.def;
    let mut columns = def.primary_key.clone();
    for (position, index) in def.indexes.iter().enumerate() {
        columns.extend(index.key_columns());
        columns.extend(table.predicate(position)?.iter().flat_map(|predicate| &predicate.condition.columns));
    }
    for column in table.virtual_columns() {
        columns.extend(&table.virtual_value(column)?.value.columns);
    }
    columns.sort_unstable();
    columns.dedup();
    Ok(columns)
}

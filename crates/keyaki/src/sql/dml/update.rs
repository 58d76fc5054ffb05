//! UPDATE: reads the selected rows with their new values, and replaces the old rows by the new ones in all trees whose
//! columns are assigned. UPDATE by key is compiled for the short path.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::sqlparser::ast::{
    Assignment, AssignmentTarget, Expr, Query, SelectItem, TableWithJoins, Update, UpdateTableFromKind,
};

use super::parts::{self, Affected, Effects};
use super::returning::Returning;
use super::{TargetTable, assigned_column, defaults};
use crate::base::interrupt::Execution;
use crate::base::tree::Tree;
use crate::catalog::{Privileges, Table};
use crate::sql::Outcome;
use crate::sql::SqlSession;
use crate::sql::access;
use crate::sql::expressions;
use crate::sql::prepared::{add_types, lone_parameter};
use crate::sql::row_values::columns_of;
use crate::sql::sequences;
use crate::sql::short::{Change, ChangeKind, Read, ShortPlan};
use crate::sql::state::StatementState;
use crate::values::zone::Zone;
use crate::write::BatchLimits;
use crate::write::apply::TableChange;
use crate::write::assign::assign;
use crate::write::generated;
use crate::write::rows::{TableRows, as_stored};
use crate::{Error, Result};

pub(crate) async fn run(session: &SqlSession, execution: &Execution<'_>, update: Update) -> Result<Outcome> {
    let Clauses { relation, assignments, others, selection, returning } = clauses(update)?;
    let writer = session.writer(execution, "UPDATE").await?;
    let (catalog, snapshot) = session.engine.latest(&writer);
    let state = StatementState::new(session, catalog, snapshot)?;
    let of_target = of_target(!others.is_empty() || selection.is_some() || returning.is_some(), &assignments);
    let target = TargetTable::new(&state, &relation, of_target)?;
    let table = target.table.clone();
    expressions::compiled(session, &table)?;
    let (assigned, values) = assignments_of(&table, assignments)?;
    let mut returning =
        Returning::of(returning, target.alias().clone()).map(|returning| returning.joined(&table, &others));
    let mut expressions = values;
    expressions.extend(returning.iter().flat_map(Returning::others).cloned());
    let joins = !others.is_empty();
    let plan = state.plan_query(affected_rows(&target, expressions, others, selection)?).await?;
    // A set-returning function in SET repeats rows, too.
    let repeats = joins || plan.exists_dyn(&mut |node| Ok(matches!(node, LogicalPlan::Unnest(_))))?;
    let effects = Effects { assigned: &assigned, ..Effects::default() };
    let limits = match parts::can_divide((&state.catalog, &table), &writer, effects)? {
        true => Some(BatchLimits::of_part(&session.engine, &table)),
        false => None,
    };
    let width = target.all_columns().len();
    let change_of = |batches: &[RecordBatch]| {
        let parts = batches.iter().map(|batch| {
            let (old, mut new) = old_and_new(&table, &assigned, batch, session.zone())?;
            new.columns.extend(batch.columns()[width + assigned.len()..].iter().cloned().map(Some));
            Ok((old, new))
        });
        let (old, new): (Vec<TableRows>, Vec<TableRows>) = parts.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let (old, new) = (TableRows::concat(&old)?, TableRows::concat(&new)?);
        Ok(TableChange { old_repeats: true, ..TableChange::update(&table, old, new, assigned.clone()) })
    };
    let rows = state.run(&plan).await?;
    if let Some(returning) = &mut returning {
        returning.set_types(&rows.schema());
    }
    let affected = Affected::read(session, "UPDATE", rows, limits).await?;
    let key = key_columns(&table);
    let key = repeats.then_some(key.as_slice());
    parts::apply(session, &state, writer, ("UPDATE", affected, key), returning, change_of).await
}

/// Adds the types of the parameters, and compiles the statement for the short path if it has the form.
///
/// # Errors
/// As [`run`], up to the execution.
pub(crate) async fn describe(
    session: &SqlSession,
    state: &StatementState,
    update: &Update,
    types: &mut [Option<DataType>],
) -> Result<Option<ShortPlan>> {
    let Clauses { relation, assignments, others, selection, returning } = clauses(update.clone())?;
    let of_target = of_target(!others.is_empty() || selection.is_some() || returning.is_some(), &assignments);
    let target = TargetTable::new(state, &relation, of_target)?;
    let table = target.table.clone();
    expressions::compiled(session, &table)?;
    let (assigned, mut values) = assignments_of(&table, assignments)?;
    let mut parameters = Vec::new();
    for (place, value) in values.iter_mut().enumerate() {
        if let Some(parameter) = lone_parameter(value) {
            // The value is converted to the column's type, and takes the place of the null.
            types[parameter].get_or_insert(table.def.columns[assigned[place]].ty.column.arrow());
            parameters.push((place, parameter));
            *value = Expr::Value(datafusion::sql::sqlparser::ast::Value::Null.into());
        }
    }
    let alone = others.is_empty() && returning.is_none();
    let Ok(plan) = state.plan_query(affected_rows(&target, values, others, selection)?).await else {
        return Ok(None);
    };
    add_types(types, &plan);
    let Some(types) = types.iter().cloned().collect::<Option<Vec<_>>>().filter(|_| alone) else { return Ok(None) };
    let Some(read) = Read::compile(&plan, &state.state, &types) else { return Ok(None) };
    let kind = ChangeKind::Update { assigned, parameters };
    Ok(Some(ShortPlan::Change(Box::new(Change { read, kind, table }))))
}

/// The table, the assigned columns, and the query of the affected rows, for EXPLAIN.
///
/// # Errors
/// As [`run`], up to the execution.
pub(super) fn explained(state: &StatementState, update: Update) -> Result<(Arc<Table>, Vec<usize>, Query)> {
    let Clauses { relation, assignments, others, selection, returning } = clauses(update)?;
    let of_target = of_target(!others.is_empty() || selection.is_some() || returning.is_some(), &assignments);
    let target = TargetTable::new(state, &relation, of_target)?;
    let (assigned, values) = assignments_of(&target.table, assignments)?;
    let query = affected_rows(&target, values, others, selection)?;
    Ok((target.table, assigned, query))
}

/// The privileges for the target. The statement also reads it if `reads`, or if new values are not constants.
fn of_target(reads: bool, assignments: &[Assignment]) -> access::Target {
    let values = assignments.iter().map(|assignment| &assignment.value);
    let target = access::Target::new(Privileges::UPDATE, reads || access::reads(values));
    target.with_default(defaults::are_assigned(assignments))
}

/// The supported clauses of an UPDATE.
struct Clauses {
    relation: TableWithJoins,
    assignments: Vec<Assignment>,
    others: Vec<TableWithJoins>,
    selection: Option<Expr>,
    returning: Option<Vec<SelectItem>>,
}

fn clauses(update: Update) -> Result<Clauses> {
    let refuse = |refused: bool, what: &str| match refused {
        true => Err(Error::Unsupported(format!("UPDATE … {what}"))),
        false => Ok(()),
    };
    let Update {
        update_token: _,
        optimizer_hints: _,
        table: relation,
        assignments,
        from,
        selection,
        returning,
        output,
        or,
        order_by,
        limit,
    } = update;
    refuse(output.is_some(), "OUTPUT (use RETURNING)")?;
    refuse(or.is_some(), "OR")?;
    refuse(!order_by.is_empty() || limit.is_some(), "ORDER BY and LIMIT")?;
    let others = match from {
        None => Vec::new(),
        Some(UpdateTableFromKind::AfterSet(from)) => from,
        Some(UpdateTableFromKind::BeforeSet(_)) => return Err(Error::Unsupported("UPDATE FROM … SET".into())),
    };
    Ok(Clauses { relation, assignments, others, selection, returning })
}

/// The query of the affected rows: all columns, the hidden rowid if there is one, and the assigned values.
fn affected_rows(
    target: &TargetTable,
    values: Vec<Expr>,
    others: Vec<TableWithJoins>,
    selection: Option<Expr>,
) -> Result<Query> {
    let mut expressions: Vec<Expr> = target.table.def.columns.iter().map(|c| target.column(&c.name)).collect();
    expressions.extend(target.rowid());
    expressions.extend(values);
    target.select(expressions, others, selection)
}

/// The places of the key among all columns of a table, followed by the hidden rowid.
pub(super) fn key_columns(table: &Table) -> Vec<usize> {
    match table.def.hidden_rowid {
        true => vec![table.def.columns.len()],
        false => table.def.primary_key.clone(),
    }
}

/// The assigned columns and their expressions, in parallel. DEFAULT is replaced by the column's default.
pub(super) fn assignments_of(table: &Table, assignments: Vec<Assignment>) -> Result<(Vec<usize>, Vec<Expr>)> {
    let mut columns = Vec::new();
    let mut values = Vec::new();
    for Assignment { target, value } in assignments {
        match (target, value) {
            (AssignmentTarget::ColumnName(name), value) => {
                columns.push(assigned_column(table, &name)?);
                values.push(value);
            }
            (AssignmentTarget::Tuple(names), Expr::Tuple(tuple)) if names.len() == tuple.len() => {
                for (name, value) in names.iter().zip(tuple) {
                    columns.push(assigned_column(table, name)?);
                    values.push(value);
                }
            }
            (AssignmentTarget::Tuple(names), Expr::Subquery(subquery)) => {
                for (name, value) in names.iter().zip(columns_of(&subquery, names.len())?) {
                    columns.push(assigned_column(table, name)?);
                    values.push(value);
                }
            }
            (AssignmentTarget::Tuple(_), value) => {
                return Err(Error::Unsupported(format!("assignment of {value} to several columns")));
            }
        }
    }
    if let Some((_, twice)) = columns.iter().enumerate().find(|(i, column)| columns[..*i].contains(column)) {
        let name = &table.def.columns[*twice].name;
        return Err(Error::syntax(format!("multiple assignments to same column \"{name}\"")));
    }
    sequences::check_given(table, &columns, true, |position| defaults::is_default(&values[position]))?;
    // Generated columns follow the others.
    let given = columns.into_iter().zip(values).filter(|(column, _)| table.def.columns[*column].generated.is_none());
    let (columns, mut values): (Vec<usize>, Vec<Expr>) = given.unzip();
    for (column, value) in columns.iter().zip(&mut values) {
        if defaults::is_default(value) {
            *value = defaults::sql(&table.def.columns[*column])?;
        }
    }
    Ok((columns, values))
}

/// Splits a batch of the input query into old and new rows. The batch has all table columns, the hidden rowid if there
/// is one, and the assigned values.
pub(crate) fn old_and_new(
    table: &Table,
    assigned: &[usize],
    batch: &RecordBatch,
    zone: Zone,
) -> Result<(TableRows, TableRows)> {
    let columns = table.def.columns.len();
    let rowid = table.def.hidden_rowid.then(|| batch.column(columns).clone());
    let values = columns + usize::from(table.def.hidden_rowid);
    let stored = batch.columns().iter().zip(&table.def.columns).map(|(values, column)| as_stored(values, column));
    let stored = stored.map(|values| values.map(Some)).collect::<Result<Vec<_>>>()?;
    let old = TableRows { len: batch.num_rows(), columns: stored, rowid };
    let mut new = old.clone();
    for (i, &column) in assigned.iter().enumerate() {
        let value = assign(batch.column(values + i), &table.def.name, &table.def.columns[column], zone)?;
        new.columns[column] = Some(value);
    }
    generated::follow(table, assigned, &mut new)?;
    Ok((old, new))
}

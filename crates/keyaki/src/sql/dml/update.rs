//! UPDATE: reads the selected rows with their new values, and replaces the old rows by the new ones in all trees whose
//! columns are assigned.

use arrow::array::RecordBatch;
use datafusion::sql::sqlparser::ast::{Assignment, AssignmentTarget, Expr, Update, UpdateTableFromKind};

use super::{TargetTable, assigned_column, defaults};
use crate::catalog::Table;
use crate::sql::Outcome;
use crate::sql::SqlSession;
use crate::sql::state::StatementState;
use crate::write::RowBuffer;
use crate::write::apply::TableChange;
use crate::write::assign::assign;
use crate::write::rows::TableRows;
use crate::{Error, Result};

pub(crate) async fn run(session: &SqlSession, update: Update) -> Result<Outcome> {
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
    refuse(returning.is_some() || output.is_some(), "RETURNING")?;
    refuse(or.is_some(), "OR")?;
    refuse(!order_by.is_empty() || limit.is_some(), "ORDER BY and LIMIT")?;
    let others = match from {
        None => Vec::new(),
        Some(UpdateTableFromKind::AfterSet(from)) => from,
        Some(UpdateTableFromKind::BeforeSet(_)) => return Err(Error::Unsupported("UPDATE FROM … SET".into())),
    };

    let writer = session.engine.writer().await;
    let (catalog, snapshot) = session.engine.latest(&writer);
    let state = StatementState::new(session, catalog, snapshot)?;
    let target = TargetTable::new(&state, &relation)?;
    let table = target.table.clone();
    let (assigned, values) = assignments_of(&table, assignments)?;
    let mut expressions: Vec<Expr> = table.def.columns.iter().map(|c| target.column(&c.name)).collect();
    expressions.extend(target.rowid());
    expressions.extend(values);
    let old_repeats = !others.is_empty();
    let plan = state.plan_query(target.select(expressions, others, selection)?).await?;
    let affected = RowBuffer::reserved(&session.engine, "UPDATE").collect(state.run(&plan).await?).await?;

    let parts = affected.batches.iter().map(|batch| old_and_new(&table, &assigned, batch));
    let (old, new): (Vec<TableRows>, Vec<TableRows>) = parts.collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let change = TableChange {
        table,
        old: TableRows::concat(&old)?,
        new: TableRows::concat(&new)?,
        old_repeats,
        assigned: Some(assigned),
    };
    let rows = crate::write::commit(&session.write(&writer), state.snapshot.clone(), change).await?;
    Ok(Outcome::rows("UPDATE", rows))
}

/// The assigned columns and their expressions, in parallel. DEFAULT is replaced by the column's default.
fn assignments_of(table: &Table, assignments: Vec<Assignment>) -> Result<(Vec<usize>, Vec<Expr>)> {
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
            (AssignmentTarget::Tuple(_), value) => {
                return Err(Error::Unsupported(format!("assignment of {value} to several columns")));
            }
        }
    }
    if let Some((_, twice)) = columns.iter().enumerate().find(|(i, column)| columns[..*i].contains(column)) {
        let name = &table.def.columns[*twice].name;
        return Err(Error::syntax(format!("multiple assignments to same column \"{name}\"")));
    }
    for (column, value) in columns.iter().zip(&mut values) {
        if defaults::is_default(value) {
            *value = defaults::sql(&table.def.columns[*column])?;
        }
    }
    Ok((columns, values))
}

/// Splits a batch of the input query into old and new rows. The batch has all table columns, the hidden rowid if there
/// is one, and the assigned values.
fn old_and_new(table: &Table, assigned: &[usize], batch: &RecordBatch) -> Result<(TableRows, TableRows)> {
    let columns = table.def.columns.len();
    let rowid = table.def.hidden_rowid.then(|| batch.column(columns).clone());
    let values = columns + usize::from(table.def.hidden_rowid);
    let old = TableRows {
        len: batch.num_rows(),
        columns: batch.columns()[..columns].iter().cloned().map(Some).collect(),
        rowid,
    };
    let mut new = old.clone();
    for (i, &column) in assigned.iter().enumerate() {
        let value = assign(batch.column(values + i), &table.def.name, &table.def.columns[column])?;
        new.columns[column] = Some(value);
    }
    Ok((old, new))
}

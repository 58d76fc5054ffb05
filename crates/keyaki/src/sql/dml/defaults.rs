//! DEFAULT values of columns.
//!
//! A default is an expression without columns and subqueries. The catalog stores its text. Constants are evaluated once
//! for each definition ([`crate::sql::expressions`]). Other defaults are planned for each statement: functions such as
//! `now()` have one value for all rows of the statement, functions such as `random()` a value for each row. CREATE TABLE
//! evaluates each default once to find errors.

use std::sync::Arc;

use arrow::array::ArrayRef;
use datafusion::common::DFSchema;
use datafusion::logical_expr::{Expr as Logical, lit};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast::{Assignment, Expr};

use crate::catalog::Table;
use crate::catalog::{ColumnDef, TableDef};
use crate::engine::Writer;
use crate::sql::SqlSession;
use crate::sql::expressions;
use crate::sql::names::{full_sql, stored_name};
use crate::sql::qualify;
use crate::sql::sequences;
use crate::sql::state::StatementState;
use crate::sql::visit::check_literals;
use crate::write::assign::assign;
use crate::write::evaluate;
use crate::{Error, Result};

/// True for the keyword DEFAULT.
pub(super) fn is_default(expr: &Expr) -> bool {
    matches!(expr, Expr::Identifier(ident) if ident.quote_style.is_none() && ident.value.eq_ignore_ascii_case("default"))
}

/// True if an assignment has the value DEFAULT.
pub(super) fn are_assigned(assignments: &[Assignment]) -> bool {
    assignments.iter().any(|assignment| match &assignment.value {
        Expr::Tuple(values) => values.iter().any(is_default),
        value => is_default(value),
    })
}

/// The default of a column as SQL; NULL if it has none.
pub(crate) fn sql(column: &ColumnDef) -> Result<Expr> {
    match &column.identity {
        Some(identity) => {
            let name = full_sql(&identity.sequence.name).replace('\'', "''");
            crate::sql::parse_expr(&format!("nextval('{name}')"))
        }
        None => {
            let mut expr = crate::sql::parse_expr(column.default.as_deref().unwrap_or("NULL"))?;
            qualify::calls(&mut expr, |name| stored_name(name).ok());
            Ok(expr)
        }
    }
}

/// The text of a default in a definition.
///
/// # Errors
/// As [`qualify::stored`].
pub(crate) fn text(state: &StatementState, expr: &Expr) -> Result<String> {
    let mut expr = expr.clone();
    qualify::stored(&mut expr, &state.catalog, &state.path)?;
    let text = expr.to_string();
    check_literals(&expr, &text, crate::sql::parse_expr)?;
    Ok(text)
}

/// The default of a column as a logical expression; NULL if it has none.
pub(super) fn logical(state: &StatementState, column: &ColumnDef) -> Result<Logical> {
    match column.has_default() {
        false => Ok(lit(ScalarValue::Null)),
        true => expressions::logical(&state.state, sql(column)?, &DFSchema::empty()),
    }
}

/// The default of each table column as a physical expression (`None` without a default), for loads that bypass the
/// planner.
pub(crate) fn physical(
    session: &SqlSession,
    writer: &Writer,
    table: &Table,
) -> Result<Vec<Option<Arc<dyn PhysicalExpr>>>> {
    if table.def.columns.iter().all(|column| !column.has_default()) {
        return Ok(vec![None; table.def.columns.len()]);
    }
    let (catalog, snapshot) = session.engine.latest(writer);
    let state = StatementState::new(session, catalog, snapshot)?;
    // The caller has checked that it may insert rows.
    sequences::permit_identity(&state.state, &table.def);
    let default = |column: &ColumnDef| column.has_default().then(|| of_statement(&state, column)).transpose();
    table.def.columns.iter().map(default).collect()
}

/// The default of a column for one statement; NULL if it has none.
///
/// # Errors
/// Errors of planning.
pub(crate) fn of_statement(state: &StatementState, column: &ColumnDef) -> Result<Arc<dyn PhysicalExpr>> {
    let schema = Arc::new(DFSchema::empty());
    let expr = expressions::analyzed(&state.state, logical(state, column)?, &schema)?;
    expressions::physical(&state.state, expr, &schema)
}

/// The value of a column's default that all rows of a statement have, not yet converted to the type of the column; `None`
/// for a volatile default.
///
/// # Errors
/// Errors of planning and evaluation.
pub(crate) fn of_all_rows(state: &StatementState, column: &ColumnDef) -> Result<Option<ArrayRef>> {
    match logical(state, column)?.is_volatile() {
        true => Ok(None),
        false => evaluate(&of_statement(state, column)?, 1).map(Some),
    }
}

/// Evaluates each default of a new table once and checks that its value can be assigned to the column.
///
/// # Errors
/// As [`check_column`].
pub(crate) fn check(state: &StatementState, def: &TableDef) -> Result<()> {
    def.columns.iter().try_for_each(|column| check_column(state, &def.name, column))
}

/// Evaluates the default of a column once and checks that its value can be assigned to the column.
///
/// # Errors
/// `Context` with the column: `Unsupported` for subqueries, `Grouping` for aggregates, `UndefinedColumn` for columns,
/// errors of the evaluation, and errors of [`assign`].
pub(crate) fn check_column(state: &StatementState, table: &str, column: &ColumnDef) -> Result<()> {
    if column.default.is_none() {
        return Ok(());
    }
    let wrong = |error: Error| error.without_column().within(format!("DEFAULT of column \"{}\"", column.name));
    let checked = || -> Result<()> {
        expressions::refuse_queries(&sql(column)?, "DEFAULT")?;
        expressions::refuse_forms(&logical(state, column)?, "DEFAULT")?;
        if sequences::calls_sequence(&sql(column)?) {
            // The evaluation would take a value.
            return of_statement(state, column).map(drop);
        }
        let value: ArrayRef = evaluate(&of_statement(state, column)?, 1)?;
        // DEFAULT NULL is allowed for every column. A NOT NULL column rejects the null when a row is inserted.
        if value.logical_null_count() == 0 {
            assign(&value, table, column, state.zone)?;
        }
        Ok(())
    };
    checked().map_err(wrong)
}

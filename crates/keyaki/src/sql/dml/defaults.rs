//! DEFAULT values of columns.
//!
//! A default is an expression without columns and subqueries. The catalog stores its text. It is planned for each
//! statement and evaluated for each row. CREATE TABLE evaluates it once to find errors.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::ArrayRef;
use datafusion::common::DFSchema;
use datafusion::logical_expr::{Expr as Logical, LogicalPlan, LogicalPlanBuilder, Projection, lit};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast::{Expr, ExprWithAlias, Query, Visit, Visitor};

use crate::catalog::Table;
use crate::catalog::{ColumnDef, TableDef};
use crate::engine::Writer;
use crate::sql::SqlSession;
use crate::sql::state::StatementState;
use crate::write::RowBuffer;
use crate::write::assign::assign;
use crate::{Error, Result};

/// True for the keyword DEFAULT.
pub(super) fn is_default(expr: &Expr) -> bool {
    matches!(expr, Expr::Identifier(ident) if ident.quote_style.is_none() && ident.value.eq_ignore_ascii_case("default"))
}

/// The default of a column as SQL; NULL if it has none.
pub(super) fn sql(column: &ColumnDef) -> Result<Expr> {
    crate::sql::parse_expr(column.default.as_deref().unwrap_or("NULL"))
}

/// The default of a column as a logical expression; NULL if it has none.
pub(super) fn logical(state: &StatementState, column: &ColumnDef) -> Result<Logical> {
    match &column.default {
        None => Ok(lit(ScalarValue::Null)),
        Some(_) => {
            let mut expr = sql(column)?;
            crate::sql::zones::as_calls(&mut expr)?;
            let expr = ExprWithAlias { expr, alias: None };
            Ok(state.state.create_logical_expr_from_sql_expr(expr, &DFSchema::empty())?)
        }
    }
}

/// The default of each table column as a physical expression (`None` without a default), for loads that bypass the
/// planner.
pub(crate) fn physical(
    session: &SqlSession,
    writer: &Writer,
    table: &Table,
) -> Result<Vec<Option<Arc<dyn PhysicalExpr>>>> {
    let (catalog, snapshot) = session.engine.latest(writer);
    let state = StatementState::new(session, catalog, snapshot)?;
    let schema = DFSchema::empty();
    let default = |column: &ColumnDef| match column.default {
        None => Ok(None),
        Some(_) => {
            let expr = analyzed(&state, logical(&state, column)?)?;
            Ok(Some(state.state.create_physical_expr(expr, &schema)?))
        }
    };
    table.def.columns.iter().map(default).collect()
}

/// An expression without columns after the analyzer's rules.
fn analyzed(state: &StatementState, expr: Logical) -> Result<Logical> {
    let plan = LogicalPlanBuilder::empty(true).project([expr])?.build()?;
    let options = state.state.config_options();
    match state.state.analyzer().execute_and_check(plan, options, |_, _| {})? {
        LogicalPlan::Projection(Projection { mut expr, .. }) if expr.len() == 1 => Ok(expr.remove(0).unalias()),
        other => Err(Error::Internal(format!("a default became {other}"))),
    }
}

/// Evaluates each default of a new table once and checks that its value can be assigned to the column.
///
/// # Errors
/// `Context` with the column: `Unsupported` for subqueries, `UndefinedColumn` for columns, errors of the evaluation,
/// and errors of [`assign`].
pub(crate) async fn check(session: &SqlSession, state: &StatementState, def: &TableDef) -> Result<()> {
    for column in def.columns.iter().filter(|column| column.default.is_some()) {
        let wrong = |error: Error| error.without_column().within(format!("DEFAULT of column \"{}\"", column.name));
        if sql(column)?.visit(&mut HasQuery).is_break() {
            return Err(wrong(Error::Unsupported("subqueries in DEFAULT".into())));
        }
        let value = evaluate(session, state, column).await.map_err(wrong)?;
        // DEFAULT NULL is allowed for every column. A NOT NULL column rejects the null when a row is inserted.
        if value.logical_null_count() == 0 {
            assign(&value, &def.name, column, state.zone).map_err(wrong)?;
        }
    }
    Ok(())
}

async fn evaluate(session: &SqlSession, state: &StatementState, column: &ColumnDef) -> Result<ArrayRef> {
    let plan = LogicalPlanBuilder::empty(true).project([logical(state, column)?])?.build()?;
    let rows = RowBuffer::reserved(&session.engine, "DEFAULT").collect(state.run(&plan).await?).await?;
    let first = rows.batches.first().map(|batch| batch.column(0).clone());
    first.ok_or_else(|| Error::Internal("an expression without columns gave no row".into()))
}

struct HasQuery;

impl Visitor for HasQuery {
    type Break = ();
    fn pre_visit_query(&mut self, _: &Query) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

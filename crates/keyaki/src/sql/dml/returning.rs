//! RETURNING: a query over the changed rows, as they are after INSERT and UPDATE, as they were before DELETE.
//!
//! The rows are computed before the change is committed, so that an error of an expression leaves no change. Subqueries
//! see the state before the statement.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::datasource::MemTable;
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::sql::sqlparser::ast::{
    ExcludeSelectItem, Expr, FunctionArguments, Ident, ObjectName, Query, SelectItem, SetExpr, TableAlias, TableFactor,
    TableWithJoins, visit_expressions, visit_expressions_mut,
};
use futures::StreamExt;

use crate::catalog::{RelationName, Table};
use crate::sql::columns::shown_schema;
use crate::sql::state::StatementState;
use crate::sql::{Outcome, SqlSession};
use crate::write::RowBuffer;
use crate::write::rows::TableRows;
use crate::{Error, Result};

/// Prefix of the name of the table of changed rows.
pub(crate) const RETURNED_PREFIX: &str = "__returned_";
/// The column of `merge_action()`.
const ACTION: &str = "__merge_action";

/// The clause, with its result.
pub(super) struct Returning {
    items: Vec<SelectItem>,
    /// The name of the table in expressions.
    alias: Ident,
    /// The rows have a column with the action that has changed them.
    has_action: bool,
    /// The result for the rows so far, with its schema.
    result: Option<(SchemaRef, RowBuffer)>,
}

impl Returning {
    /// The clause of a statement whose target table has the name `alias`.
    pub fn new(items: Vec<SelectItem>, alias: Ident) -> Returning {
        Returning { items, alias, has_action: false, result: None }
    }

    /// The clause of a statement whose target table has the name `alias`; `None` without the clause.
    pub fn of(items: Option<Vec<SelectItem>>, alias: Ident) -> Option<Returning> {
        items.map(|items| Returning::new(items, alias))
    }

    /// The clause of a MERGE, in which `merge_action()` is `INSERT`, `UPDATE` or `DELETE`.
    pub fn of_merge(mut items: Vec<SelectItem>, alias: Ident) -> Returning {
        let action = || Expr::CompoundIdentifier(vec![alias.clone(), Ident::with_quote('"', ACTION)]);
        let mut has_action = false;
        for item in &mut items {
            let SelectItem::UnnamedExpr(expr) = item else { continue };
            let has_action = visit_expressions(expr, |expr| match is_merge_action(expr) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            });
            if has_action.is_break() {
                let name = if is_merge_action(expr) { "merge_action".into() } else { expr.to_string() };
                *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('"', name) };
            }
        }
        let _ = visit_expressions_mut(&mut items, |expr| {
            if is_merge_action(expr) {
                (*expr, has_action) = (action(), true);
            }
            ControlFlow::<()>::Continue(())
        });
        if has_action {
            for item in &mut items {
                if let SelectItem::Wildcard(options) | SelectItem::QualifiedWildcard(_, options) = item {
                    let action = ObjectName::from(vec![Ident::with_quote('"', ACTION)]);
                    options.opt_exclude = Some(ExcludeSelectItem::Single(action));
                }
            }
        }
        Returning { items, alias, has_action, result: None }
    }

    /// The columns of the result.
    ///
    /// # Errors
    /// Errors of planning.
    pub async fn schema(&self, state: &StatementState, table: &Arc<Table>) -> Result<SchemaRef> {
        let plan = state.plan_query(self.query(state, table, Vec::new())?).await?;
        Ok(shown_schema(plan.schema().inner()))
    }

    /// Adds the result for changed rows, which have all columns.
    ///
    /// # Errors
    /// Errors of the expressions; `OutOfMemory`.
    pub async fn rows(
        &mut self,
        session: &SqlSession,
        state: &StatementState,
        table: &Arc<Table>,
        rows: &TableRows,
    ) -> Result<()> {
        self.add(session, state, table, vec![self.batch(table, rows, "")?]).await
    }

    /// As [`rows`](Self::rows), for rows by the action that has changed them.
    pub async fn actions(
        &mut self,
        session: &SqlSession,
        state: &StatementState,
        table: &Arc<Table>,
        rows: &[(&str, Vec<TableRows>)],
    ) -> Result<()> {
        let batches = rows.iter().flat_map(|(action, rows)| rows.iter().map(|rows| self.batch(table, rows, action)));
        self.add(session, state, table, batches.collect::<Result<_>>()?).await
    }

    async fn add(
        &mut self,
        session: &SqlSession,
        state: &StatementState,
        table: &Arc<Table>,
        batches: Vec<RecordBatch>,
    ) -> Result<()> {
        let plan = state.plan_query(self.query(state, table, batches)?).await?;
        let mut stream = state.run(&plan).await?;
        let schema = stream.schema();
        let (_, result) =
            self.result.get_or_insert_with(|| (schema, RowBuffer::reserved(&session.engine, "RETURNING")));
        while let Some(batch) = stream.next().await {
            result.push(batch?)?;
        }
        Ok(())
    }

    /// The result for all rows that were added.
    ///
    /// # Errors
    /// `Internal` if there was no call that adds rows.
    pub fn outcome(self) -> Result<Outcome> {
        let (schema, rows) = self.result.ok_or_else(|| Error::Internal("RETURNING of no change".into()))?;
        Ok(Outcome::Rows(Box::pin(MemoryStream::try_new(rows.batches, schema, None)?)))
    }

    /// Columns of the table, and that of the action.
    fn columns(&self, table: &Table) -> SchemaRef {
        if !self.has_action {
            return table.arrow.clone();
        }
        let action = Arc::new(Field::new(ACTION, DataType::Utf8View, false));
        Arc::new(Schema::new(table.arrow.fields().iter().cloned().chain([action]).collect::<Vec<_>>()))
    }

    fn batch(&self, table: &Table, rows: &TableRows, action: &str) -> Result<RecordBatch> {
        let schema = self.columns(table);
        if rows.len == 0 {
            return Ok(RecordBatch::new_empty(schema));
        }
        let columns = rows.columns.iter().cloned().collect::<Option<Vec<_>>>();
        let mut columns = columns.ok_or_else(|| Error::Internal("RETURNING needs all columns".into()))?;
        if self.has_action {
            columns.push(Arc::new(StringViewArray::from_iter_values(std::iter::repeat_n(action, rows.len))));
        }
        Ok(RecordBatch::try_new(schema, columns)?)
    }

    /// `SELECT items FROM rows AS alias`, with the rows registered as a table of the statement.
    fn query(&self, state: &StatementState, table: &Arc<Table>, rows: Vec<RecordBatch>) -> Result<Query> {
        let name = format!("{RETURNED_PREFIX}{}", table.def.name.qualified());
        state.add_table(RelationName::public(&name), Arc::new(MemTable::try_new(self.columns(table), vec![rows])?));
        let mut query = *crate::sql::parse_query(&format!("SELECT 1 FROM \"{RETURNED_PREFIX}\" AS \"t\""))?;
        let SetExpr::Select(select) = query.body.as_mut() else {
            return Err(Error::Internal("the parser returned another kind of query for SELECT".into()));
        };
        select.projection.clone_from(&self.items);
        for TableWithJoins { relation, .. } in &mut select.from {
            if let TableFactor::Table { name: table, alias, .. } = relation {
                *table = ObjectName::from(vec![Ident::with_quote('"', &name)]);
                let name = self.alias.clone();
                *alias = Some(TableAlias { explicit: true, name, columns: Vec::new(), at: None });
            }
        }
        Ok(query)
    }
}

fn is_merge_action(expr: &Expr) -> bool {
    let Expr::Function(function) = expr else { return false };
    let has_arguments = match &function.args {
        FunctionArguments::None => true,
        FunctionArguments::List(list) => !list.args.is_empty(),
        FunctionArguments::Subquery(_) => true,
    };
    !has_arguments && function.name.to_string().eq_ignore_ascii_case("merge_action")
}

//! RETURNING: a query over the changed rows, as they are after INSERT and UPDATE, as they were before DELETE.
//!
//! The rows are computed before the change is committed, so that an error of an expression leaves no change. Subqueries
//! see the state before the statement.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::datasource::MemTable;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::sql::sqlparser::ast::{
    AccessExpr, ExcludeSelectItem, Expr, FunctionArguments, Ident, ObjectName, Query, SelectItem, SetExpr, TableAlias,
    TableFactor, TableWithJoins, VisitorMut,
};
use futures::StreamExt;

use crate::base::json_fields::{json_type, with_json_type};
use crate::catalog::{RelationName, Table};
use crate::sql::columns::shown_schema;
use crate::sql::names::plain_ident;
use crate::sql::state::StatementState;
use crate::sql::visit::{visit_expressions, visit_expressions_mut, walk_mut};
use crate::sql::{Outcome, SqlSession, documents};
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
    /// The columns of other relations of the statement that the items use, and those of the changed rows in their places.
    others: Vec<Expr>,
    other_fields: Vec<FieldRef>,
    /// The result for the rows so far, with its schema.
    result: Option<(SchemaRef, RowBuffer)>,
}

impl Returning {
    /// The clause of a statement whose target table has the name `alias`.
    pub fn new(items: Vec<SelectItem>, alias: Ident) -> Returning {
        Returning { items, alias, has_action: false, others: Vec::new(), other_fields: Vec::new(), result: None }
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
        Returning { has_action, ..Returning::new(items, alias) }
    }

    /// The clause of a statement that joins its target `table` with `relations`, whose columns the items may use.
    pub fn joined(mut self, table: &Table, relations: &[TableWithJoins]) -> Returning {
        let mut names = Vec::new();
        relations.iter().for_each(|relation| add_names(relation, &mut names));
        names.retain(|name| *name != plain_ident(&self.alias));
        if relations.is_empty() {
            return self;
        }
        let mut others = OtherColumns { names, table, alias: &self.alias, depth: 0, found: Vec::new() };
        for item in &mut self.items {
            let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item else { continue };
            let before = expr.clone();
            let _ = walk_mut(expr, &mut others);
            if let SelectItem::UnnamedExpr(expr) = item
                && *expr != before
            {
                let name = match &before {
                    Expr::Identifier(column) => plain_ident(column),
                    Expr::CompoundIdentifier(parts) => parts.last().map(plain_ident).unwrap_or_default(),
                    expr => expr.to_string(),
                };
                *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('"', name) };
            }
        }
        self.others = others.found;
        self
    }

    /// The columns that the query of the changed rows has to return last ([`set_types`](Self::set_types)).
    pub fn others(&self) -> &[Expr] {
        &self.others
    }

    /// Takes the types of the [`others`](Self::others) from the schema of a query that returns them last.
    pub fn set_types(&mut self, query: &Schema) {
        let first = query.fields().len() - self.others.len();
        let fields = query.fields()[first..].iter().enumerate();
        let named = fields.map(|(i, field)| {
            let named = Arc::new(Field::new(other_name(i), field.data_type().clone(), true));
            with_json_type(&named, json_type(field))
        });
        self.other_fields = named.collect();
    }

    /// The columns of the result.
    ///
    /// # Errors
    /// Errors of planning.
    pub async fn schema(&self, state: &StatementState, table: &Arc<Table>) -> Result<SchemaRef> {
        let plan = self.plan(state, table, Vec::new()).await?;
        Ok(documents::typed(shown_schema(plan.schema().inner()), &plan))
    }

    /// Adds the result for changed rows, which have all columns of the table, and then those of other relations.
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
        let plan = self.plan(state, table, batches).await?;
        let mut stream = state.run(&plan).await?;
        let schema = stream.schema();
        let (_, result) =
            self.result.get_or_insert_with(|| (schema, RowBuffer::reserved(&session.engine, "RETURNING")));
        while let Some(batch) = stream.next().await {
            result.push(batch?)?;
        }
        Ok(())
    }

    /// The query over `rows`, each of which gives one row of the result.
    ///
    /// # Errors
    /// `Grouping` for aggregate functions; `Unsupported` for window functions and set-returning functions.
    async fn plan(&self, state: &StatementState, table: &Arc<Table>, rows: Vec<RecordBatch>) -> Result<LogicalPlan> {
        let plan = state.plan_query(self.query(state, table, rows)?).await?;
        let mut node = &plan;
        // Subqueries are expressions, or other inputs of joins.
        while let [input] = node.inputs().as_slice() {
            match node {
                LogicalPlan::Aggregate(_) => {
                    return Err(Error::Grouping("aggregate functions are not allowed in RETURNING".into()));
                }
                LogicalPlan::Window(_) => return Err(Error::Unsupported("window functions in RETURNING".into())),
                LogicalPlan::Unnest(_) => {
                    return Err(Error::Unsupported("set-returning functions in RETURNING".into()));
                }
                _ => node = input,
            }
        }
        Ok(plan)
    }

    /// The result for all rows that were added.
    ///
    /// # Errors
    /// `Internal` if there was no call that adds rows.
    pub fn outcome(self) -> Result<Outcome> {
        let (schema, rows) = self.result.ok_or_else(|| Error::Internal("RETURNING of no change".into()))?;
        Ok(Outcome::Rows(Box::pin(MemoryStream::try_new(rows.batches, schema, None)?)))
    }

    /// Columns of the table, of other relations, and that of the action.
    fn columns(&self, table: &Table) -> SchemaRef {
        let action = self.has_action.then(|| Arc::new(Field::new(ACTION, DataType::Utf8View, false)));
        let own = table.arrow.fields().iter().zip(&table.def.columns);
        let own = own.map(|(field, column)| with_json_type(field, column.ty.json));
        let fields = own.chain(self.other_fields.iter().cloned()).chain(action);
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    /// The items, whose `*` stands for the columns of the table.
    fn projection(&self) -> Vec<SelectItem> {
        let others = self.other_fields.iter().map(|field| field.name().as_str());
        let hidden: Vec<ObjectName> = others
            .chain(self.has_action.then_some(ACTION))
            .map(|name| ObjectName::from(vec![Ident::with_quote('"', name)]))
            .collect();
        let mut items = self.items.clone();
        for item in &mut items {
            if let SelectItem::Wildcard(options) | SelectItem::QualifiedWildcard(_, options) = item
                && !hidden.is_empty()
            {
                options.opt_exclude = Some(ExcludeSelectItem::Multiple(hidden.clone()));
            }
        }
        items
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
        select.projection = self.projection();
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

/// The name of the `number`th column of another relation in the table of changed rows.
fn other_name(number: usize) -> String {
    format!("__other_{number}")
}

/// Adds the names of the relations in expressions.
fn add_names(relation: &TableWithJoins, names: &mut Vec<String>) {
    for factor in [&relation.relation].into_iter().chain(relation.joins.iter().map(|join| &join.relation)) {
        match factor {
            TableFactor::NestedJoin { table_with_joins, alias: None } => add_names(table_with_joins, names),
            TableFactor::Table { name, alias: None, .. } => {
                names.extend(name.0.last().and_then(|part| part.as_ident()).map(plain_ident));
            }
            TableFactor::Table { alias: Some(alias), .. }
            | TableFactor::Derived { alias: Some(alias), .. }
            | TableFactor::TableFunction { alias: Some(alias), .. }
            | TableFactor::Function { alias: Some(alias), .. }
            | TableFactor::UNNEST { alias: Some(alias), .. }
            | TableFactor::NestedJoin { alias: Some(alias), .. } => names.push(plain_ident(&alias.name)),
            _ => {}
        }
    }
}

/// Replaces columns of other relations by columns of the changed rows. Those in subqueries stay.
struct OtherColumns<'a> {
    /// The names of the other relations.
    names: Vec<String>,
    table: &'a Table,
    /// The name of the changed rows.
    alias: &'a Ident,
    /// Subqueries around the expression.
    depth: usize,
    found: Vec<Expr>,
}

impl OtherColumns<'_> {
    /// Makes the column of a relation the root of `relation.column[1]`, in which the parser sees a relation's field.
    fn separate_relation(&self, expr: &mut Expr) {
        let Expr::CompoundFieldAccess { root, access_chain } = expr else { return };
        if let Expr::Identifier(relation) = root.as_ref()
            && let Some(AccessExpr::Dot(Expr::Identifier(column))) = access_chain.first()
            && (plain_ident(relation) == plain_ident(self.alias) || self.names.contains(&plain_ident(relation)))
        {
            let column = Expr::CompoundIdentifier(vec![relation.clone(), column.clone()]);
            **root = Expr::Nested(Box::new(column));
            access_chain.remove(0);
        }
    }
}

impl VisitorMut for OtherColumns<'_> {
    type Break = ();
    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }
    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }
    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        self.separate_relation(expr);
        let is_other = match expr {
            Expr::CompoundIdentifier(parts) => matches!(
                parts.as_slice(), [relation, _] if self.names.contains(&plain_ident(relation))
            ),
            Expr::Identifier(column) => self.table.column(&plain_ident(column)).is_err(),
            _ => false,
        };
        if is_other && self.depth == 0 {
            let number = self.found.iter().position(|found| found == expr).unwrap_or(self.found.len());
            let column = vec![self.alias.clone(), Ident::with_quote('"', other_name(number))];
            let other = std::mem::replace(expr, Expr::CompoundIdentifier(column));
            if number == self.found.len() {
                self.found.push(other);
            }
        }
        ControlFlow::Continue(())
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

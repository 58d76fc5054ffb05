//! INSERT, UPDATE, DELETE and MERGE, with ON CONFLICT ([`conflict`], [`blind`]), RETURNING ([`returning`]) and the actions of
//! foreign keys ([`foreign_keys`]).
//!
//! Each statement is one atomic write batch or bulk load. Its input is an ordinary query, planned by DataFusion over
//! the newest committed state under the writer lock. UPDATE and DELETE read the affected rows from the target table
//! under a reserved name, so WHERE, FROM and USING mean the same as in a query. The rows are collected, checked as a
//! whole and applied by key ([`crate::write::apply`]), or part by part ([`parts`]).
//!
//! *Invariant.* Constraints hold at the end of each statement; intermediate states are not checked.

pub(crate) mod blind;
pub(crate) mod conflict;
pub(crate) mod defaults;
pub(crate) mod delete;
pub(crate) mod explain;
pub(crate) mod foreign_keys;
pub(crate) mod insert;
mod literals;
pub(crate) mod merge;
mod parts;
mod repeats;
mod returning;
mod unique_keys;
pub(crate) mod update;

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::sql::sqlparser::ast::{
    AssignmentTarget, Expr, FromTable, Ident, Join, ObjectName, Query, SelectItem, SetExpr, Statement, TableAlias,
    TableFactor, TableObject, TableWithJoins, UpdateTableFromKind,
};

pub(crate) use self::returning::RETURNED_PREFIX;
use self::returning::Returning;
use super::names::plain_ident;
use super::prepared::lone_parameter;
use super::state::StatementState;
use super::visit::visit_expressions;
use crate::catalog::{HIDDEN_ROWID, Privileges, RelationName, Table, types};
use crate::sql::{access, documents, sequences};
use crate::{Error, JsonType, Result};

/// Prefix of the name under which UPDATE and DELETE read their target table.
pub(crate) const TARGET_PREFIX: &str = "__target_";

/// Quotes the alias of the target table in expressions that a statement adds itself. No text of a statement has it.
const TARGET_QUOTE: char = '`';

/// True for the qualifier of a column of the target in an expression that a statement adds itself.
pub(super) fn is_target(qualifier: &Ident) -> bool {
    qualifier.quote_style == Some(TARGET_QUOTE)
}

/// The target table of an UPDATE or DELETE.
pub(super) struct TargetTable {
    pub table: Arc<Table>,
    /// Qualifier of its columns in expressions: the alias, or the table name.
    alias: Ident,
    /// The target in the FROM list of the input query.
    relation: TableWithJoins,
}

impl TargetTable {
    /// Registers the target with the statement, including its hidden rowid.
    ///
    /// # Errors
    /// `NotFound`; `InsufficientPrivilege` without the privileges that the statement needs for the target.
    pub fn new(state: &StatementState, relation: &TableWithJoins, needed: access::Target) -> Result<TargetTable> {
        let TableFactor::Table { name, alias, .. } = &relation.relation else {
            return Err(Error::Unsupported(format!("{relation} as the target of UPDATE or DELETE")));
        };
        if !relation.joins.is_empty() {
            return Err(Error::Unsupported("joins in the target of UPDATE or DELETE (use FROM or USING)".into()));
        }
        let table = state.table(name)?;
        needed.check(&state.authority, &state.catalog, &table)?;
        if needed.takes_identities() {
            sequences::permit_identity(&state.state, &table.def);
        }
        let alias = match alias {
            None => Ident::with_quote('"', table.def.name.name.clone()),
            Some(TableAlias { name, columns, .. }) if columns.is_empty() => name.clone(),
            Some(alias) => return Err(Error::Unsupported(format!("column names in the alias {alias}"))),
        };
        Ok(TargetTable::register(state, table, alias, relation.clone()))
    }

    /// As [`TargetTable::new`], for a table that has the name `alias` in expressions.
    pub fn of(state: &StatementState, table: &Arc<Table>, alias: Ident) -> Result<TargetTable> {
        Ok(TargetTable::register(state, table.clone(), alias, any_relation()?))
    }

    /// Registers the target with the statement, and makes `relation` refer to it.
    fn register(state: &StatementState, table: Arc<Table>, alias: Ident, mut relation: TableWithJoins) -> TargetTable {
        let own_name = format!("{TARGET_PREFIX}{}", table.def.name.qualified());
        state.add_table(RelationName::public(&own_name), Arc::new(state.provider(&table).with_rowid()));
        if let TableFactor::Table { name, alias: table_alias, .. } = &mut relation.relation {
            *name = ObjectName::from(vec![Ident::with_quote('"', own_name)]);
            *table_alias = Some(TableAlias { explicit: true, name: alias.clone(), columns: Vec::new(), at: None });
        }
        TargetTable { table, alias, relation }
    }

    /// The name of the table in expressions.
    pub fn alias(&self) -> &Ident {
        &self.alias
    }

    /// All columns, and the hidden rowid if there is one.
    pub fn all_columns(&self) -> Vec<Expr> {
        let columns = self.table.def.columns.iter().map(|column| self.column(&column.name));
        columns.chain(self.rowid()).collect()
    }

    /// A column of the target as a qualified expression.
    pub fn column(&self, name: &str) -> Expr {
        let alias = Ident::with_quote(TARGET_QUOTE, plain_ident(&self.alias));
        Expr::CompoundIdentifier(vec![alias, Ident::with_quote('"', name)])
    }

    /// The hidden rowid, if the table has one.
    pub fn rowid(&self) -> Option<Expr> {
        self.table.def.hidden_rowid.then(|| self.column(HIDDEN_ROWID))
    }

    /// `SELECT expressions FROM target joins`.
    pub fn select_joined(&self, expressions: Vec<Expr>, joins: Vec<Join>) -> Result<Query> {
        let mut query = self.select(expressions, Vec::new(), None)?;
        if let SetExpr::Select(select) = query.body.as_mut() {
            select.from.iter_mut().for_each(|from| from.joins.clone_from(&joins));
        }
        Ok(query)
    }

    /// `SELECT expressions FROM target, others WHERE selection`.
    pub fn select(
        &self,
        expressions: Vec<Expr>,
        others: Vec<TableWithJoins>,
        selection: Option<Expr>,
    ) -> Result<Query> {
        let mut query = *super::parse_query("SELECT 1")?;
        let SetExpr::Select(select) = query.body.as_mut() else {
            return Err(Error::Internal("the parser returned another kind of query for SELECT".into()));
        };
        let named = expressions
            .into_iter()
            .enumerate()
            .map(|(i, expr)| SelectItem::ExprWithAlias { expr, alias: Ident::with_quote('"', format!("__{i}")) });
        select.projection = named.collect();
        select.from = vec![self.relation.clone()];
        select.from.extend(others);
        select.selection = selection;
        Ok(query)
    }
}

/// An item of a FROM list, whose name and alias the caller replaces.
fn any_relation() -> Result<TableWithJoins> {
    let relation = match *super::parse_query("SELECT 1 FROM t")?.body {
        SetExpr::Select(mut select) => select.from.pop(),
        _ => None,
    };
    relation.ok_or_else(|| Error::Internal("the parser returned another kind of query".into()))
}

/// Position of an assigned column, whose name may be qualified with the target's name.
///
/// # Errors
/// `UndefinedColumn`.
pub(super) fn assigned_column(table: &Table, name: &ObjectName) -> Result<usize> {
    let parts = name.0.iter().map(|part| part.as_ident().map(plain_ident)).collect::<Option<Vec<_>>>();
    match parts.as_deref() {
        Some([column]) => table.column(column),
        Some([qualifier, column]) if *qualifier == table.def.name.name => table.column(column),
        _ => Err(Error::undefined_column(name.to_string(), &table.def.name)),
    }
}

/// For each of `count` parameters, the type of documents that it has by a cast, or as the value of a column.
pub(super) fn document_parameters(
    state: &StatementState,
    statement: &Statement,
    count: usize,
) -> Vec<Option<JsonType>> {
    let mut found = vec![None; count];
    if count == 0 {
        return found;
    }
    let mut note = |expr: &Expr, json: Option<JsonType>| {
        if let Some(known) = lone_parameter(expr).and_then(|parameter| found.get_mut(parameter)) {
            *known = known.or(json);
        }
    };
    let _ = visit_expressions(statement, |expr| {
        if let Expr::Cast { expr, data_type, .. } = expr {
            note(expr, types::from_sql(data_type).ok().and_then(|ty| ty.json));
        }
        ControlFlow::<()>::Continue(())
    });
    match statement {
        Statement::Insert(insert) => {
            if let TableObject::TableName(name) = &insert.table
                && let Ok(table) = state.table(name)
                && let Some(SetExpr::Values(values)) = insert.source.as_ref().map(|query| query.body.as_ref())
            {
                let columns = insert::target_columns(&table, insert).ok().flatten();
                let columns = columns.unwrap_or_else(|| (0..table.def.columns.len()).collect());
                for row in &values.rows {
                    let cells = row.content.iter().zip(&columns);
                    cells.for_each(|(cell, column)| note(cell, table.def.columns[*column].ty.json));
                }
            }
        }
        Statement::Update(update) => {
            if let TableFactor::Table { name, .. } = &update.table.relation
                && let Ok(table) = state.table(name)
            {
                for assignment in &update.assignments {
                    if let AssignmentTarget::ColumnName(name) = &assignment.target
                        && let Ok(column) = assigned_column(&table, name)
                    {
                        note(&assignment.value, table.def.columns[column].ty.json);
                    }
                }
            }
        }
        _ => {}
    }
    found
}

/// The columns of the result of a statement with RETURNING; `None` without the clause.
///
/// # Errors
/// Errors of planning.
pub(super) async fn returned_columns(state: &StatementState, statement: &Statement) -> Result<Option<SchemaRef>> {
    let (items, relation, others) = match statement {
        Statement::Insert(insert) => {
            let Some(items) = &insert.returning else { return Ok(None) };
            let TableObject::TableName(name) = &insert.table else { return Ok(None) };
            let table = state.table(name)?;
            let returning = Returning::new(items.clone(), insert::alias(insert, &table));
            return returning.schema(state, &table).await.map(Some);
        }
        Statement::Merge(merge) => {
            let relation = |relation: &TableFactor| TableWithJoins { relation: relation.clone(), joins: Vec::new() };
            (merge::returned(merge)?.cloned(), relation(&merge.table), vec![relation(&merge.source)])
        }
        Statement::Update(update) => {
            let others = match &update.from {
                Some(UpdateTableFromKind::AfterSet(from) | UpdateTableFromKind::BeforeSet(from)) => from.clone(),
                None => Vec::new(),
            };
            (update.returning.clone(), update.table.clone(), others)
        }
        Statement::Delete(delete) => {
            let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &delete.from;
            let Some(relation) = from.first() else { return Ok(None) };
            (delete.returning.clone(), relation.clone(), delete.using.clone().unwrap_or_default())
        }
        _ => return Ok(None),
    };
    let Some(items) = items else { return Ok(None) };
    let target = TargetTable::new(state, &relation, access::Target::new(Privileges::SELECT, true))?;
    let alias = target.alias().clone();
    let returning = match statement {
        Statement::Merge(_) => Returning::of_merge(items, alias),
        _ => Returning::new(items, alias),
    };
    let mut returning = returning.joined(&target.table, &others);
    if !returning.others().is_empty() {
        let plan = state.plan_query(target.select(returning.others().to_vec(), others, None)?).await?;
        returning.set_types(&documents::typed(plan.schema().inner().clone(), &plan));
    }
    returning.schema(state, &target.table).await.map(Some)
}

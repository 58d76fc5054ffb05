//! INSERT, UPDATE and DELETE.
//!
//! Each statement is one atomic write batch or bulk load. Its input is an ordinary query, planned by DataFusion over
//! the newest committed state under the writer lock. UPDATE and DELETE read the affected rows from the target table
//! under a reserved name, so WHERE, FROM and USING mean the same as in a query. The rows are collected, checked as a
//! whole and applied by key ([`crate::write::apply`]).
//!
//! *Invariant.* Uniqueness holds at the end of each statement; intermediate states are not checked.

pub(crate) mod defaults;
pub(crate) mod delete;
pub(crate) mod insert;
mod literals;
pub(crate) mod update;

use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, ObjectName, Query, SelectItem, SetExpr, TableAlias, TableFactor, TableWithJoins,
};

use super::names::{plain_ident, relation_name};
use super::state::StatementState;
use crate::catalog::HIDDEN_ROWID;
use crate::catalog::Table;
use crate::{Error, Result};

/// Prefix of the name under which UPDATE and DELETE read their target table.
pub(crate) const TARGET_PREFIX: &str = "__target_";

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
    pub fn new(state: &StatementState, relation: &TableWithJoins) -> Result<TargetTable> {
        let TableFactor::Table { name, alias, .. } = &relation.relation else {
            return Err(Error::Unsupported(format!("{relation} as the target of UPDATE or DELETE")));
        };
        if !relation.joins.is_empty() {
            return Err(Error::Unsupported("joins in the target of UPDATE or DELETE (use FROM or USING)".into()));
        }
        let table = state.catalog.table(&relation_name(name)?)?.clone();
        let alias = match alias {
            None => Ident::with_quote('"', table.def.name.clone()),
            Some(TableAlias { name, columns, .. }) if columns.is_empty() => name.clone(),
            Some(alias) => return Err(Error::Unsupported(format!("column names in the alias {alias}"))),
        };
        let own_name = format!("{TARGET_PREFIX}{}", table.def.name);
        state.add_table(&own_name, Arc::new(state.provider(&table).with_rowid()));
        let mut relation = relation.clone();
        if let TableFactor::Table { name, alias: table_alias, .. } = &mut relation.relation {
            *name = ObjectName::from(vec![Ident::with_quote('"', own_name)]);
            *table_alias = Some(TableAlias { explicit: true, name: alias.clone(), columns: Vec::new(), at: None });
        }
        Ok(TargetTable { table, alias, relation })
    }

    /// A column of the target as a qualified expression.
    pub fn column(&self, name: &str) -> Expr {
        Expr::CompoundIdentifier(vec![self.alias.clone(), Ident::with_quote('"', name)])
    }

    /// The hidden rowid, if the table has one.
    pub fn rowid(&self) -> Option<Expr> {
        self.table.def.hidden_rowid.then(|| self.column(HIDDEN_ROWID))
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

/// Position of an assigned column, whose name may be qualified with the target's name.
///
/// # Errors
/// `UndefinedColumn`.
pub(super) fn assigned_column(table: &Table, name: &ObjectName) -> Result<usize> {
    let parts = name.0.iter().map(|part| part.as_ident().map(plain_ident)).collect::<Option<Vec<_>>>();
    match parts.as_deref() {
        Some([column]) => table.column(column),
        Some([qualifier, column]) if *qualifier == table.def.name => table.column(column),
        _ => Err(Error::undefined_column(name.to_string(), &table.def.name)),
    }
}

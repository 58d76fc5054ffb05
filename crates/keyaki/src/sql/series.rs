//! Names of functions in FROM with constant arguments, as `generate_series(1, 10)`.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::TableReference;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::{LogicalPlan, SubqueryAlias, TableScan, TableScanBuilder};
use datafusion::sql::sqlparser::ast::{Expr, Ident, Query, SetExpr, TableAlias, TableAliasColumnDef, TableFactor};

use super::json_calls;
use super::names::plain_ident;
use super::table_functions::{SERIES, plain};
use crate::base::tree::PlanTree;
use crate::sql::visit::visit_expressions;

/// Gives the series in FROM of a query aliases. The column of a series is `value`; it has the name of the alias, or of
/// the function, if the query uses this as the name of a column, as in PostgreSQL: `SELECT i FROM generate_series(1, 3) i`.
pub(super) fn name(query: &mut Query) {
    each_call(&mut query.body, &mut |function, alias| {
        if SERIES.contains(&function) {
            alias.get_or_insert_with(|| TableAlias {
                explicit: true,
                name: Ident::new(function),
                columns: Vec::new(),
                at: None,
            });
        }
    });
    name_columns(query, |function| SERIES.contains(&function));
}

/// Names the columns of the functions in FROM that return elements of documents as [`name`] does, if they have an alias.
pub(super) fn name_elements(query: &mut Query) {
    name_columns(query, |function| json_calls::columns_in_from(function).is_some_and(|columns| columns.len() == 1));
}

fn name_columns(query: &mut Query, is_named: impl Fn(&str) -> bool) {
    let mut found = false;
    each_call(&mut query.body, &mut |function, alias| found |= alias.is_some() && is_named(function));
    if !found {
        return;
    }
    let used = used_columns(query);
    each_call(&mut query.body, &mut |function, alias| {
        if let Some(alias) = alias
            && is_named(function)
            && alias.columns.is_empty()
            && used.contains(&plain_ident(&alias.name))
        {
            let name = alias.name.clone();
            alias.columns.push(TableAliasColumnDef { name, data_type: None });
        }
    });
}

/// Calls `f` for the functions in FROM and their aliases, without those of subqueries.
fn each_call(body: &mut SetExpr, f: &mut dyn FnMut(&str, &mut Option<TableAlias>)) {
    match body {
        SetExpr::SetOperation { left, right, .. } => {
            each_call(left, f);
            each_call(right, f);
        }
        SetExpr::Select(select) => {
            let factors = select.from.iter_mut().flat_map(|tables| {
                std::iter::once(&mut tables.relation).chain(tables.joins.iter_mut().map(|join| &mut join.relation))
            });
            for factor in factors {
                if let TableFactor::Table { name, args: Some(_), alias, .. } | TableFactor::Function { name, alias, .. } =
                    factor
                    && let Some(function) = plain(name)
                {
                    f(&function, alias);
                }
            }
        }
        _ => {}
    }
}

/// The columns that a query names without a table, or with a table of the same name.
fn used_columns(query: &Query) -> HashSet<String> {
    let mut used = HashSet::new();
    let _ = visit_expressions(query, |expr| {
        match expr {
            Expr::Identifier(ident) => _ = used.insert(plain_ident(ident)),
            // `i.i`
            Expr::CompoundIdentifier(parts) => {
                if let [table, column] = &parts[..]
                    && plain_ident(table) == plain_ident(column)
                {
                    used.insert(plain_ident(column));
                }
            }
            _ => {}
        }
        ControlFlow::<()>::Continue(())
    });
    used
}

/// Gives the scan of each call of a function in FROM a name of its own. `next` numbers them within a statement.
///
/// DataFusion's scans have the name of the function without its arguments, and compare equal if their names do.
pub(super) fn distinguish(plan: LogicalPlan, next: &dyn Fn() -> usize) -> Result<LogicalPlan> {
    let is_call = |scan: &TableScan| scan.table_name.table().ends_with("()");
    let mut has_calls = false;
    plan.apply_with_subqueries_dyn(&mut |node| {
        has_calls |= matches!(node, LogicalPlan::TableScan(scan) if is_call(scan));
        Ok(if has_calls { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if !has_calls {
        return Ok(plan);
    }
    // Several references to a WITH query have the same source.
    let mut numbers = HashMap::new();
    let distinct = plan.transform_up_with_subqueries_dyn(&mut |node| {
        let LogicalPlan::TableScan(scan) = node else { return Ok(Transformed::no(node)) };
        if !is_call(&scan) {
            return Ok(Transformed::no(LogicalPlan::TableScan(scan)));
        }
        let number = *numbers.entry(Arc::as_ptr(&scan.source).cast::<()>()).or_insert_with(next);
        let name = scan.table_name;
        let own_name = TableReference::bare(format!("{} ({number})", name.table()));
        let builder = TableScanBuilder::new(own_name, scan.source).with_projection(scan.projection);
        let scan = builder.with_filters(scan.filters).with_fetch(scan.fetch).build()?;
        let alias = SubqueryAlias::try_new(Arc::new(LogicalPlan::TableScan(scan)), name)?;
        Ok(Transformed::yes(LogicalPlan::SubqueryAlias(alias)))
    });
    Ok(distinct?.data)
}

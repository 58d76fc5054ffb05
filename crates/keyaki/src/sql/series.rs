//! Names of functions in FROM with constant arguments, as `generate_series(1, 10)`.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::common::TableReference;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::{LogicalPlan, SubqueryAlias, TableScan, TableScanBuilder};
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, Query, SetExpr, TableAlias, TableAliasColumnDef, TableFactor, visit_expressions,
};

use super::names::plain_ident;
use super::table_functions::{SERIES, plain};

/// Gives the series in FROM of a query aliases. The column of a series is `value`; it has the name of the alias, or of
/// the function, if the query uses this as the name of a column, as in PostgreSQL: `SELECT i FROM generate_series(1, 3) i`.
pub(super) fn name(query: &mut Query) {
    let mut aliases = Vec::new();
    add_aliases(&mut query.body, &mut aliases);
    if aliases.is_empty() {
        return;
    }
    let used = used_columns(query);
    // The aliases are collected again, because the visit of the query needs it as a whole.
    let mut aliases = Vec::new();
    add_aliases(&mut query.body, &mut aliases);
    for alias in aliases.into_iter().filter(|alias| alias.columns.is_empty()) {
        if used.contains(&plain_ident(&alias.name)) {
            let name = alias.name.clone();
            alias.columns.push(TableAliasColumnDef { name, data_type: None });
        }
    }
}

/// Adds the aliases of the series in FROM, without those of subqueries.
fn add_aliases<'a>(body: &'a mut SetExpr, aliases: &mut Vec<&'a mut TableAlias>) {
    match body {
        SetExpr::SetOperation { left, right, .. } => {
            add_aliases(left, aliases);
            add_aliases(right, aliases);
        }
        SetExpr::Select(select) => {
            let factors = select.from.iter_mut().flat_map(|tables| {
                std::iter::once(&mut tables.relation).chain(tables.joins.iter_mut().map(|join| &mut join.relation))
            });
            for factor in factors {
                let TableFactor::Table { name, args: Some(_), alias, .. } = factor else { continue };
                let Some(function) = plain(name).filter(|name| SERIES.contains(&name.as_str())) else { continue };
                aliases.push(alias.get_or_insert_with(|| TableAlias {
                    explicit: true,
                    name: Ident::new(function),
                    columns: Vec::new(),
                    at: None,
                }));
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
    plan.apply_with_subqueries(|node| {
        has_calls |= matches!(node, LogicalPlan::TableScan(scan) if is_call(scan));
        Ok(if has_calls { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if !has_calls {
        return Ok(plan);
    }
    // Several references to a WITH query have the same source.
    let mut numbers = HashMap::new();
    let distinct = plan.transform_up_with_subqueries(|node| {
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

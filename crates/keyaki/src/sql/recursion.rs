//! LIMIT and types of WITH RECURSIVE.
//!
//! DataFusion ignores LIMIT and ORDER BY of a recursive query, and converts the rows of the recursive term to the types of
//! the first term. [`limited`] makes `t AS (a UNION ALL b LIMIT n)` a query `(SELECT * FROM u LIMIT n)` of
//! `u AS (a UNION ALL b)`. [`check_types`] refuses conversions that change values.

use std::ops::ControlFlow;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{Expr as Logical, ExprSchemable, LogicalPlan};
use datafusion::sql::sqlparser::ast::{
    Cte, Expr, Ident, ObjectName, Query, SelectItem, SetExpr, Statement, TableAlias, TableFactor, Visitor, VisitorMut,
};

use super::columns::repeated;
use super::names::plain_ident;
use crate::base::tree::{PlanTree, Tree};
use crate::base::type_name;
use crate::sql::visit::{walk, walk_mut};
use crate::{Error, Result};

/// Moves LIMIT and OFFSET out of recursive queries.
///
/// # Errors
/// `Unsupported` for ORDER BY in a recursive query.
pub(super) fn limited(statement: &mut Statement) -> Result<()> {
    struct Limited;
    impl VisitorMut for Limited {
        type Break = Error;
        fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
            let Some(with) = query.with.as_mut().filter(|with| with.recursive) else {
                return ControlFlow::Continue(());
            };
            let mut tables = Vec::with_capacity(with.cte_tables.len());
            for cte in std::mem::take(&mut with.cte_tables) {
                match split(cte) {
                    Ok(parts) => tables.extend(parts),
                    Err(error) => return ControlFlow::Break(error),
                }
            }
            with.cte_tables = tables;
            ControlFlow::Continue(())
        }
    }
    match walk_mut(statement, &mut Limited) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// A recursive query without its LIMIT, and the query with it; other queries alone.
fn split(mut cte: Cte) -> Result<Vec<Cte>> {
    let name = plain_ident(&cte.alias.name);
    let is_union = matches!(*cte.query.body, SetExpr::SetOperation { .. });
    if !is_union || !is_used(&cte.query.body, &name) {
        return Ok(vec![cte]);
    }
    if cte.query.order_by.is_some() {
        return Err(Error::Unsupported(format!(
            "ORDER BY in the recursive query \"{name}\" (order the rows of the query that uses it)"
        )));
    }
    if cte.query.limit_clause.is_none() && cte.query.fetch.is_none() {
        return Ok(vec![cte]);
    }
    let all = repeated(&name, 1);
    let mut limited = super::parse_query(&format!("SELECT * FROM {all}"))?;
    limited.limit_clause = cte.query.limit_clause.take();
    limited.fetch = cte.query.fetch.take();
    let _ = walk_mut(&mut cte.query.body, &mut Rename { from: &name, to: &all });
    let columns = cte.alias.columns.clone();
    let alias = std::mem::replace(&mut cte.alias, TableAlias { explicit: true, name: all, columns, at: None });
    let materialized = cte.materialized.take();
    let limited = Cte { alias, query: limited, materialized, ..cte.clone() };
    Ok(vec![cte, limited])
}

/// True for the name of a relation without a schema.
fn is_named(name: &ObjectName, expected: &str) -> bool {
    matches!(&name.0[..], [name] if name.as_ident().is_some_and(|name| plain_ident(name) == expected))
}

fn is_used(body: &SetExpr, name: &str) -> bool {
    struct Find<'a>(&'a str);
    impl Visitor for Find<'_> {
        type Break = ();
        fn pre_visit_relation(&mut self, name: &ObjectName) -> ControlFlow<()> {
            if is_named(name, self.0) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    walk(body, &mut Find(name)).is_break()
}

/// Renames a relation, which keeps its name as alias.
pub(super) struct Rename<'a> {
    pub from: &'a str,
    pub to: &'a Ident,
}

impl VisitorMut for Rename<'_> {
    type Break = ();
    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::Table { name, alias, args: None, .. } = factor
            && is_named(name, self.from)
        {
            alias.get_or_insert_with(|| TableAlias {
                explicit: true,
                name: Ident::with_quote('"', self.from),
                columns: Vec::new(),
                at: None,
            });
            *name = ObjectName::from(vec![self.to.clone()]);
        }
        ControlFlow::Continue(())
    }
}

/// The names of recursive queries, and the positions of the columns that their recursive terms cast themselves.
pub(super) fn casting(statement: &Statement) -> Vec<(String, usize)> {
    #[derive(Default)]
    struct Names(Vec<(String, usize)>);
    impl Visitor for Names {
        type Break = ();
        fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
            for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
                let SetExpr::SetOperation { right, .. } = cte.query.body.as_ref() else { continue };
                let SetExpr::Select(select) = right.as_ref() else { continue };
                let items = select.projection.iter().enumerate();
                let casts = items.filter(|(_, item)| match item {
                    SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => is_cast(expr),
                    _ => false,
                });
                let name = plain_ident(&cte.alias.name);
                self.0.extend(casts.map(|(position, _)| (name.clone(), position)));
            }
            ControlFlow::Continue(())
        }
    }
    let mut names = Names::default();
    _ = walk(statement, &mut names);
    names.0
}

fn is_cast(expr: &Expr) -> bool {
    match expr {
        Expr::Cast { .. } => true,
        Expr::Nested(expr) => is_cast(expr),
        _ => false,
    }
}

/// Refuses aggregates over the rows of a recursive query in its recursive term: they return a row even for none, so that
/// the recursion does not end.
///
/// # Errors
/// `Grouping`.
pub(super) fn check_aggregates(plan: &LogicalPlan) -> Result<()> {
    let mut found = false;
    plan.apply_with_subqueries_dyn(&mut |node| {
        let LogicalPlan::RecursiveQuery(query) = node else { return Ok(TreeNodeRecursion::Continue) };
        let is_own =
            |node: &LogicalPlan| matches!(node, LogicalPlan::TableScan(scan) if scan.table_name.table() == query.name);
        query.recursive_term.apply_dyn(&mut |node| {
            if let LogicalPlan::Aggregate(aggregate) = node
                && !aggregate.aggr_expr.is_empty()
            {
                found |= aggregate.input.exists_dyn(&mut |node| Ok(is_own(node)))?;
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    match found {
        true => {
            let problem = "aggregate functions are not allowed in a recursive query's recursive term";
            Err(Error::Grouping(problem.into()))
        }
        false => Ok(()),
    }
}

/// Refuses recursive queries whose first term has types that do not hold the values of the recursive term. `casting`: the
/// columns that their recursive terms cast themselves.
///
/// # Errors
/// `DatatypeMismatch`.
pub(super) fn check_types(plan: &LogicalPlan, casting: &[(String, usize)]) -> Result<()> {
    let mut mismatch = None;
    plan.apply_with_subqueries_dyn(&mut |node| {
        let LogicalPlan::RecursiveQuery(query) = node else { return Ok(TreeNodeRecursion::Continue) };
        let LogicalPlan::Projection(term) = query.recursive_term.as_ref() else {
            return Ok(TreeNodeRecursion::Continue);
        };
        for (i, expr) in term.expr.iter().enumerate() {
            if casting.contains(&(query.name.clone(), i)) {
                continue;
            }
            let expr = expr.clone().unalias_nested().data;
            let Logical::Cast(cast) = &expr else { continue };
            let (from, to) = (cast.expr.get_type(term.input.schema())?, cast.field.data_type());
            if loses_values(&from, to) {
                mismatch = Some((query.name.clone(), i + 1, type_name(to), type_name(&from)));
                return Ok(TreeNodeRecursion::Stop);
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    match mismatch {
        Some((name, column, first, other)) => Err(Error::DatatypeMismatch(format!(
            "recursive query \"{name}\" column {column} has type {first} in non-recursive term but type {other} overall \
             (cast the column in both terms)"
        ))),
        None => Ok(()),
    }
}

/// True if a conversion can change values.
fn loses_values(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (from, to) if to.is_integer() => !from.is_integer() && *from != DataType::Null,
        (from, DataType::Decimal128(_, to)) => match from {
            DataType::Decimal128(_, from) => from > to,
            from => from.is_floating(),
        },
        _ => false,
    }
}

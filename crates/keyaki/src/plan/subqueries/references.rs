//! References to columns of outer queries.
//!
//! DataFusion marks such a column, but not the query that it belongs to. A reference in a nested subquery belongs to the
//! innermost enclosing query that has the column, as in SQL.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, ExprSchema};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan, Subquery};

use super::lateral::lateral_of;
use crate::base::tree::{PlanTree, Tree};

/// The subquery of an expression.
pub(super) fn subquery_of(expr: &Expr) -> Option<&Subquery> {
    match expr {
        Expr::Exists(Exists { subquery, .. })
        | Expr::InSubquery(InSubquery { subquery, .. })
        | Expr::SetComparison(SetComparison { subquery, .. })
        | Expr::ScalarSubquery(subquery) => Some(subquery),
        _ => None,
    }
}

/// The columns of outer queries that a subquery refers to.
pub(in crate::plan) fn outer_columns(plan: &LogicalPlan) -> Result<BTreeSet<Column>> {
    let mut outer = BTreeSet::new();
    plan.apply_dyn(&mut |node| {
        let scope = merge_schema(&node.inputs());
        node.apply_expressions_dyn(&mut |expr| {
            add_outer_columns(expr, &scope, &mut outer)?;
            Ok(TreeNodeRecursion::Continue)
        })?;
        let LogicalPlan::Join(join) = node else { return Ok(TreeNodeRecursion::Continue) };
        let Some(subquery) = lateral_of(join) else { return Ok(TreeNodeRecursion::Continue) };
        // The left input of a lateral join is an outer query of its right one.
        outer.extend(outer_columns(&join.left)?);
        let lateral = outer_columns(&subquery.subquery)?;
        outer.extend(lateral.into_iter().filter(|column| !join.left.schema().has_column(column)));
        Ok(TreeNodeRecursion::Jump)
    })?;
    Ok(outer)
}

/// Adds the references of an expression to queries outside of `scope`.
fn add_outer_columns(expr: &Expr, scope: &DFSchema, outer: &mut BTreeSet<Column>) -> Result<()> {
    expr.apply_dyn(&mut |expr| {
        if let Expr::OuterReferenceColumn(_, column) = expr {
            outer.insert(column.clone());
        }
        if let Some(subquery) = subquery_of(expr) {
            let nested = outer_columns(&subquery.subquery)?;
            outer.extend(nested.into_iter().filter(|column| !scope.has_column(column)));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// The columns of its own query that an expression uses, also in subqueries.
pub(super) fn used_columns(expr: &Expr) -> Result<BTreeSet<Column>> {
    let mut used: BTreeSet<Column> = expr.column_refs().into_iter().cloned().collect();
    expr.apply_dyn(&mut |expr| {
        if let Some(subquery) = subquery_of(expr) {
            used.extend(outer_columns(&subquery.subquery)?);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(used)
}

/// True if a column of that name occurs anywhere in a plan.
pub(super) fn mentions(plan: &LogicalPlan, column: &Column) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries_dyn(&mut |node| {
        found |= node.schema().has_column(column);
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// Makes the columns of an expression references to the outer query with `schema`.
pub(super) fn to_outer(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let outer = expr.transform_up_dyn(&mut |expr| match expr {
        Expr::Column(column) => {
            let field = schema.field_from_column(&column)?.clone();
            Ok(Transformed::yes(Expr::OuterReferenceColumn(field, column)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(outer.data)
}

/// Replaces references to outer queries. `replace` returns the column in place of an outer one, `None` for columns of
/// queries further out. In nested subqueries, the new column is an outer one.
pub(super) fn bind(expr: Expr, scope: &DFSchema, replace: &dyn Fn(&Column) -> Option<Column>) -> Result<Expr> {
    let bound = expr.transform_up_dyn(&mut |expr| match expr {
        Expr::OuterReferenceColumn(field, column) => Ok(match replace(&column) {
            Some(new) => Transformed::yes(Expr::Column(new)),
            None => Transformed::no(Expr::OuterReferenceColumn(field, column)),
        }),
        expr => with_subquery(expr, |plan| {
            let outside = |column: &Column| if scope.has_column(column) { None } else { replace(column) };
            rename_outer(plan, &outside)
        })
        .map(Transformed::yes),
    })?;
    Ok(bound.data)
}

/// Renames references to outer queries in a nested subquery.
pub(super) fn rename_outer(plan: LogicalPlan, replace: &dyn Fn(&Column) -> Option<Column>) -> Result<LogicalPlan> {
    let renamed = plan.transform_down_dyn(&mut |node| {
        let scope = merge_schema(&node.inputs());
        let names = NamePreserver::new(&node);
        let node = node.map_expressions_dyn(&mut |expr| {
            // A reference alone is a column whose name other nodes use.
            let name = names.save(&expr);
            let renamed = expr.transform_up_dyn(&mut |expr| match expr {
                Expr::OuterReferenceColumn(field, column) => {
                    let column = replace(&column).unwrap_or(column);
                    Ok(Transformed::yes(Expr::OuterReferenceColumn(field, column)))
                }
                expr => with_subquery(expr, |plan| {
                    let outside = |column: &Column| if scope.has_column(column) { None } else { replace(column) };
                    rename_outer(plan, &outside)
                })
                .map(Transformed::yes),
            });
            Ok(renamed?.update_data(|expr| name.restore(expr)))
        })?;
        let mut join = match node.data {
            LogicalPlan::Join(join) if lateral_of(&join).is_some() => join,
            other => return Ok(Transformed::yes(other)),
        };
        let left = rename_outer(join.left.as_ref().clone(), replace)?;
        let outside = |column: &Column| if left.schema().has_column(column) { None } else { replace(column) };
        join.right = Arc::new(rename_outer(join.right.as_ref().clone(), &outside)?);
        join.left = Arc::new(left);
        Ok(Transformed::new(LogicalPlan::Join(join), true, TreeNodeRecursion::Jump))
    })?;
    Ok(renamed.data)
}

/// Replaces the plan of a subquery expression; other expressions stay.
pub(super) fn with_subquery(expr: Expr, change: impl FnOnce(LogicalPlan) -> Result<LogicalPlan>) -> Result<Expr> {
    let new =
        |subquery: Subquery| -> Result<Subquery> { Ok(subquery_from(change(subquery.subquery.as_ref().clone())?)) };
    Ok(match expr {
        Expr::Exists(Exists { subquery, negated }) => Expr::Exists(Exists { subquery: new(subquery)?, negated }),
        Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
            Expr::InSubquery(InSubquery { expr, subquery: new(subquery)?, negated })
        }
        Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) => {
            Expr::SetComparison(SetComparison { expr, subquery: new(subquery)?, op, quantifier })
        }
        Expr::ScalarSubquery(subquery) => Expr::ScalarSubquery(new(subquery)?),
        other => other,
    })
}

/// A plan as subquery.
pub(super) fn subquery_from(plan: LogicalPlan) -> Subquery {
    let outer_ref_columns = plan.all_out_ref_exprs();
    Subquery { subquery: plan.into(), outer_ref_columns, spans: Default::default() }
}

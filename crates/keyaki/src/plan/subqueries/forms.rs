//! The forms of correlated subqueries that DataFusion turns into joins correctly.

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::Result;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator};

use super::is_subquery_in;
use super::references::{outer_columns, subquery_of};
use crate::base::tree::{PlanTree, Tree};

/// True if only filters refer to the outer query, with projections and further filters above them.
pub(super) fn is_simple_set(plan: &LogicalPlan) -> Result<bool> {
    if outer_columns(plan)?.is_empty() {
        return Ok(true);
    }
    match plan {
        LogicalPlan::Filter(filter) => {
            // DataFusion moves a correlated condition to the join, where a subquery cannot be.
            let mut conditions = split_conjunction(&filter.predicate).into_iter();
            let movable = !conditions.any(|condition| {
                condition.contains_outer() && (is_subquery_in(condition) || !has_unique_names(condition, &filter.input))
            });
            Ok(movable && !nested_are_correlated(plan)? && is_simple_set(&filter.input)?)
        }
        LogicalPlan::Projection(projection) => Ok(!projection.expr.iter().any(|expr| expr.contains_outer())
            && !nested_are_correlated(plan)?
            && is_simple_set(&projection.input)?),
        _ => Ok(false),
    }
}

/// True if no column of a condition has the name of another column of the plan. DataFusion gives all of them one qualifier
/// when it moves the condition to the join.
fn has_unique_names(condition: &Expr, plan: &LogicalPlan) -> bool {
    let is_unique = |name: &str| plan.schema().fields().iter().filter(|field| field.name() == name).count() == 1;
    condition.column_refs().into_iter().all(|column| is_unique(&column.name))
}

/// True for aggregates without GROUP BY whose input is filtered by equalities of its columns with outer ones.
pub(super) fn is_simple_scalar(plan: &LogicalPlan) -> Result<bool> {
    if nested_are_correlated(plan)? {
        return Ok(false);
    }
    match plan {
        LogicalPlan::Projection(projection) => {
            Ok(!projection.expr.iter().any(|expr| expr.contains_outer()) && is_simple_scalar(&projection.input)?)
        }
        LogicalPlan::Aggregate(aggregate) if aggregate.group_expr.is_empty() => {
            if aggregate.aggr_expr.iter().any(|expr| expr.contains_outer()) {
                return Ok(false);
            }
            let LogicalPlan::Filter(filter) = aggregate.input.as_ref() else { return Ok(false) };
            let plain = split_conjunction(&filter.predicate)
                .into_iter()
                .all(|e| !e.contains_outer() || (is_equality(e) && !is_subquery_in(e)));
            Ok(plain && !nested_are_correlated(&aggregate.input)? && outer_columns(&filter.input)?.is_empty())
        }
        _ => Ok(false),
    }
}

/// True for `inner = outer`, with a column of the subquery, which may be cast, and an expression of the outer query.
fn is_equality(expr: &Expr) -> bool {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = expr else { return false };
    let inner = |expr: &Expr| match expr {
        Expr::Cast(cast) => matches!(*cast.expr, Expr::Column(_)),
        other => matches!(other, Expr::Column(_)),
    };
    let outer = |expr: &Expr| expr.contains_outer() && !expr.any_column_refs();
    (inner(left) && outer(right)) || (outer(left) && inner(right))
}

/// True if the expressions of a plan's root have a correlated subquery. It would be joined with the plan's input, which
/// must not be correlated itself.
fn nested_are_correlated(plan: &LogicalPlan) -> Result<bool> {
    let mut correlated = false;
    plan.apply_expressions_dyn(&mut |expr| {
        expr.apply_dyn(&mut |expr| {
            if let Some(subquery) = subquery_of(expr) {
                correlated |= !outer_columns(&subquery.subquery)?.is_empty();
            }
            Ok(if correlated { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })
    })?;
    Ok(correlated)
}

//! Conditions that DataFusion copies from one input of a join to the other.
//!
//! For `a JOIN b ON a.x = b.x WHERE f(a.x)` DataFusion also evaluates `f(b.x)`, on rows of `b` that join no row of `a`. If
//! `f` fails for one of them, the query fails although its result does not depend on that row. Only conditions that fail
//! for no value are copied; the others are evaluated where they stand. PostgreSQL copies equalities with constants.

use std::sync::Arc;

use datafusion::common::internal_err;
use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Between, BinaryExpr, InList, Like};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, LogicalPlan, Operator};
use datafusion::optimizer::OptimizerConfig;

use super::Rule;

/// Applies the rule, which pushes filters down, to a join or a filter over one: first with the conditions that may be
/// copied, then with the others, from which a join that is marked as NULL-aware infers nothing.
pub(super) fn push_below_join(
    rule: &Rule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let (conditions, mut join) = match split_filters(plan) {
        (conditions, LogicalPlan::Join(join)) if !join.null_aware => (conditions, join),
        (conditions, plan) => return rule.rewrite(filtered(conditions, plan), config),
    };
    let on = join.filter.take().map_or_else(Vec::new, split_conjunction_owned);
    let (copied, kept): (Vec<_>, Vec<_>) = conditions.into_iter().partition(never_fails);
    let (on_copied, on_kept): (Vec<_>, Vec<_>) = on.into_iter().partition(never_fails);

    join.filter = conjunction(on_copied);
    let push = |conditions, join| {
        let pushed = rule.rewrite(filtered(conditions, LogicalPlan::Join(join)), config)?;
        match split_filters(pushed.data) {
            (above, LogicalPlan::Join(join)) => Ok((pushed.transformed, above, join)),
            (_, other) => internal_err!("filters pushed below a join have replaced it by {}", other.display()),
        }
    };
    let (changed, mut above, mut join) = push(copied, join)?;
    if kept.is_empty() && on_kept.is_empty() {
        return Ok(Transformed::new_transformed(filtered(above, LogicalPlan::Join(join)), changed));
    }
    let on = std::mem::replace(&mut join.filter, conjunction(on_kept));
    join.null_aware = true;
    let (changed_again, above_again, mut join) = push(kept, join)?;
    join.null_aware = false;
    join.filter = conjunction(on.into_iter().chain(join.filter.take()));
    above.extend(above_again);
    Ok(Transformed::new_transformed(filtered(above, LogicalPlan::Join(join)), changed || changed_again))
}

/// The conditions of the filters at the top of a plan, the lowest first, and the plan below.
fn split_filters(plan: LogicalPlan) -> (Vec<Expr>, LogicalPlan) {
    match plan {
        LogicalPlan::Filter(Filter { predicate, input, .. }) => {
            let (mut conditions, plan) = split_filters(Arc::unwrap_or_clone(input));
            for condition in split_conjunction_owned(predicate) {
                if !conditions.contains(&condition) {
                    conditions.push(condition);
                }
            }
            (conditions, plan)
        }
        plan => (vec![], plan),
    }
}

fn filtered(conditions: Vec<Expr>, plan: LogicalPlan) -> LogicalPlan {
    match conjunction(conditions) {
        Some(predicate) => LogicalPlan::Filter(Filter::new(predicate, Arc::new(plan))),
        None => plan,
    }
}

/// True for conditions that have a result for every value of their columns. Functions and casts may have none.
fn never_fails(condition: &Expr) -> bool {
    match condition {
        Expr::Column(_) | Expr::Literal(..) | Expr::Placeholder(_) | Expr::OuterReferenceColumn(..) => true,
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => is_total(*op) && never_fails(left) && never_fails(right),
        Expr::Not(inner)
        | Expr::IsNull(inner)
        | Expr::IsNotNull(inner)
        | Expr::IsTrue(inner)
        | Expr::IsNotTrue(inner)
        | Expr::IsFalse(inner)
        | Expr::IsNotFalse(inner)
        | Expr::IsUnknown(inner)
        | Expr::IsNotUnknown(inner) => never_fails(inner),
        Expr::Between(Between { expr, low, high, .. }) => [expr, low, high].into_iter().all(|expr| never_fails(expr)),
        Expr::InList(InList { expr, list, .. }) => never_fails(expr) && list.iter().all(never_fails),
        Expr::Like(Like { expr, pattern, .. }) => never_fails(expr) && matches!(**pattern, Expr::Literal(..)),
        _ => false,
    }
}

/// True for operators that have a result for all operands.
fn is_total(op: Operator) -> bool {
    use Operator::{And, Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq, Or};
    matches!(op, And | Or | Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

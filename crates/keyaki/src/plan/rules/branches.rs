//! `CASE true WHEN …` (see [`lazy`](super::lazy)) with branches that literals decide.
//!
//! DataFusion removes such branches of `CASE WHEN …` only. It evaluates the last branch for batches without rows, where a
//! division of literals fails.

use datafusion::common::ScalarValue;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::expr::Case;
use datafusion::logical_expr::{Expr, LogicalPlan, lit};
use datafusion::optimizer::OptimizerConfig;

use super::{Rule, lists, rewritten};
use crate::base::tree::{PlanTree, Tree};

/// Simplifies the expressions of a plan's root, and removes decided branches.
pub(super) fn simplify(
    rule: &Rule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    decided(lists::simplify(rule, plan, config)?)
}

fn decided(simplified: Transformed<LogicalPlan>) -> Result<Transformed<LogicalPlan>> {
    let is_decided = |expr: &Expr| matches!(expr, Expr::Case(case) if decision(case).is_some());
    let mut found = false;
    simplified.data.apply_expressions_dyn(&mut |expr| {
        found |= expr.exists_dyn(&mut |expr| Ok(is_decided(expr)))?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if !found {
        return Ok(simplified);
    }
    rewritten(simplified.data, |expr, _| {
        let decision = if let Expr::Case(case) = &expr { decision(case) } else { None };
        Ok(decision.map_or_else(|| Transformed::no(expr), Transformed::yes))
    })
}

/// A CASE without the branches that literals decide; `None` if there are none.
fn decision(case: &Case) -> Option<Expr> {
    let is_literal = |expr: &Expr, value: bool| *expr == lit(value);
    let (operand, branches) = (case.expr.as_deref().filter(|operand| is_literal(operand, true))?, &case.when_then_expr);
    // A NULL is not equal to true.
    let is_false = |when: &Expr| matches!(when, Expr::Literal(ScalarValue::Boolean(Some(false) | None), _));
    let first = branches.iter().find(|(when, _)| !is_false(when));
    match first {
        Some((when, then)) if is_literal(when, true) => Some(then.as_ref().clone()),
        // Its type is that of a branch.
        None if case.else_expr.is_none() => None,
        None => case.else_expr.as_deref().cloned(),
        Some(_) if branches.iter().any(|(when, _)| is_false(when)) => Some(Expr::Case(Case {
            expr: Some(Box::new(operand.clone())),
            when_then_expr: branches.iter().filter(|(when, _)| !is_false(when)).cloned().collect(),
            else_expr: case.else_expr.clone(),
        })),
        Some(_) => None,
    }
}

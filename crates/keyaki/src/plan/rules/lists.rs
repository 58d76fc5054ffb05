//! DataFusion 55 merges two IN lists of one operand by intersecting their expressions.
//!
//! This is wrong for expressions that are not literals (`a IN (b, 2) AND a IN (1, 2)` loses the rows with `b = 1`), for
//! lists with NULL, and for operands that are NULL: `a NOT IN (1, 2) OR a NOT IN (3, 4)` becomes true. [`simplify`] hides
//! lists of an operand that has several from the rule: it gives the operands different aliases and removes them afterwards.
//! Equal lists get the same alias, so that a list that is common to the branches of a disjunction is still recognized.
//! `= ANY` and `<> ALL` of literals become lists before that.
//!
//! DataFusion evaluates the values of a list on an empty batch, and treats those with a scalar as their result as constants.
//! A CASE has one. [`split`] replaces such values by comparisons.
//!
//! A list of one value becomes an equality. DataFusion drops a condition `a = a` of a column of an outer query, although it
//! excludes NULL: the condition becomes `a IS NOT NULL` here.

use std::collections::HashMap;

use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Alias, InList};
use datafusion::logical_expr::expr_rewriter::{NamePreserver, SavedName};
use datafusion::logical_expr::utils::{conjunction, disjunction, merge_schema, split_conjunction};
use datafusion::logical_expr::{BinaryExpr, Expr, Filter, LogicalPlan, Operator, lit};
use datafusion::optimizer::OptimizerConfig;

use super::Rule;
use crate::base::tree::{PlanTree, Tree};
use crate::values::arrays;

/// Start of the aliases of hidden operands.
const HIDDEN: &str = "__keyaki_list_";

/// Simplifies the expressions of a plan's root, without merging lists.
pub(super) fn simplify(
    rule: &Rule,
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let plan = with_lists(plan)?;
    let mut hidden = false;
    plan.apply_expressions_dyn(&mut |expr| {
        hidden |= has_two_lists(expr)?;
        Ok(if hidden { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if !hidden {
        return reflexive(rule.rewrite(plan, config)?);
    }
    let names = NamePreserver::new(&plan);
    let mut saved = Vec::new();
    let mut aliases = HashMap::new();
    let hidden = plan.map_expressions_dyn(&mut |expr| {
        saved.push(names.save(&expr));
        hide(expr, &mut aliases)
    })?;
    let mut saved = saved.into_iter();
    let simplified = rule.rewrite(hidden.data, config)?.data;
    reflexive(simplified.map_expressions_dyn(&mut |expr| {
        let name = saved.next().unwrap_or(SavedName::None);
        Ok(show(expr)?.update_data(|expr| name.restore(expr)))
    })?)
}

/// True for an expression that is a subquery.
pub(super) fn is_subquery(expr: &Expr) -> bool {
    matches!(expr, Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_) | Expr::ScalarSubquery(_))
}

/// Comparisons in place of the values of a list that are computed from columns; `None` if there are none.
pub(super) fn split(list: &InList) -> Option<Expr> {
    let InList { expr, list, negated } = list;
    let is_computed = |value: &Expr| {
        !matches!(value, Expr::Column(_) | Expr::OuterReferenceColumn(..) | Expr::Literal(..))
            && (value.any_column_refs() || value.contains_outer() || value.is_volatile())
    };
    // The operand is evaluated several times then.
    let is_single = expr.is_volatile() || expr.exists_dyn(&mut |expr| Ok(is_subquery(expr))).unwrap_or(true);
    if is_single || !list.iter().any(is_computed) {
        return None;
    }
    let (computed, plain): (Vec<Expr>, Vec<Expr>) = list.iter().cloned().partition(is_computed);
    let rest = (!plain.is_empty()).then(|| expr.as_ref().clone().in_list(plain, *negated));
    let compare = |value| match negated {
        true => expr.as_ref().clone().not_eq(value),
        false => expr.as_ref().clone().eq(value),
    };
    let all = rest.into_iter().chain(computed.into_iter().map(compare));
    if *negated { conjunction(all) } else { disjunction(all) }
}

/// Replaces the conditions `a = a` of outer columns in a filter by `a IS NOT NULL`.
fn reflexive(simplified: Transformed<LogicalPlan>) -> Result<Transformed<LogicalPlan>> {
    let operand = |condition: &Expr| match condition {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) if left == right => {
            (left.contains_outer() && !left.is_volatile()).then(|| Expr::clone(left))
        }
        _ => None,
    };
    let LogicalPlan::Filter(filter) = &simplified.data else { return Ok(simplified) };
    let conditions = split_conjunction(&filter.predicate);
    if !conditions.iter().any(|condition| operand(condition).is_some()) {
        return Ok(simplified);
    }
    let replace = |condition: Expr| operand(&condition).map_or(condition, Expr::is_not_null);
    let conditions = conditions.into_iter().cloned().map(replace);
    let predicate = conjunction(conditions).unwrap_or_else(|| lit(true));
    Ok(Transformed::yes(LogicalPlan::Filter(Filter::try_new(predicate, filter.input.clone())?)))
}

/// Makes lists of comparisons with the elements of literal arrays, and comparisons of computed values in lists.
fn with_lists(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut found = false;
    plan.apply_expressions_dyn(&mut |expr| {
        found |= expr.exists_dyn(&mut |expr| match expr {
            Expr::InList(list) => Ok(split(list).is_some()),
            other => Ok(arrays::is_quantified(other)),
        })?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if !found {
        return Ok(plan);
    }
    let schema = match &plan {
        LogicalPlan::TableScan(scan) => {
            DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())?
        }
        other => merge_schema(&other.inputs()),
    };
    let names = NamePreserver::new(&plan);
    let listed = plan.map_expressions_dyn(&mut |expr| {
        let name = names.save(&expr);
        let listed = expr.transform_up_dyn(&mut |expr| {
            let list = match &expr {
                Expr::InList(list) => split(list),
                other => arrays::as_list(other, &schema)?,
            };
            Ok(list.map_or(Transformed::no(expr), Transformed::yes))
        })?;
        Ok(listed.update_data(|expr| name.restore(expr)))
    })?;
    Ok(listed.data)
}

/// True if the lists of one operand occur in two places of an expression. A disjunction of comparisons with literals
/// counts as a list, because DataFusion makes one of it.
fn has_two_lists(expr: &Expr) -> Result<bool> {
    let mut lists: HashMap<&Expr, usize> = HashMap::new();
    expr.apply_dyn(&mut |expr| {
        Ok(match list_operand(expr) {
            Some(operand) => {
                *lists.entry(operand).or_default() += 1;
                TreeNodeRecursion::Jump
            }
            None => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(lists.values().any(|count| *count > 1))
}

/// The operand of a list, or of a disjunction of comparisons of one column with literals.
fn list_operand(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::InList(InList { expr, .. }) if !matches!(**expr, Expr::Literal(..)) => Some(expr),
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
            let (left, right) = (disjunct_operand(left)?, disjunct_operand(right)?);
            (left == right).then_some(left)
        }
        _ => None,
    }
}

/// The operand of a comparison or list in a disjunction that DataFusion makes a list of.
fn disjunct_operand(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::InList(InList { negated: true, .. }) => None,
        other => compared_column(other).or_else(|| list_operand(other)),
    }
}

/// The column of `column = literal`.
fn compared_column(expr: &Expr) -> Option<&Expr> {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = expr else { return None };
    match (left.as_ref(), right.as_ref()) {
        (column @ Expr::Column(_), Expr::Literal(..)) | (Expr::Literal(..), column @ Expr::Column(_)) => Some(column),
        _ => None,
    }
}

/// Gives the operand of each list, or disjunction that becomes a list, an alias: `aliases` has one for each different list.
fn hide(expr: Expr, aliases: &mut HashMap<Expr, String>) -> Result<Transformed<Expr>> {
    expr.transform_down_dyn(&mut |expr| {
        if list_operand(&expr).is_none() {
            return Ok(Transformed::no(expr));
        }
        let next = aliases.len();
        let name = aliases.entry(expr.clone()).or_insert_with(|| format!("{HIDDEN}{next}")).clone();
        let hidden = expr.transform_down_dyn(&mut |expr| match expr {
            Expr::InList(mut list) => {
                list.expr = Box::new(list.expr.alias(&name));
                Ok(Transformed::new(Expr::InList(list), true, TreeNodeRecursion::Jump))
            }
            expr if compared_column(&expr).is_some() => {
                let Expr::BinaryExpr(BinaryExpr { left, op, right }) = expr else { return Ok(Transformed::no(expr)) };
                let alias = |expr: Box<Expr>| match *expr {
                    Expr::Column(_) => Box::new(expr.alias(&name)),
                    _ => expr,
                };
                let hidden = BinaryExpr { left: alias(left), op, right: alias(right) };
                Ok(Transformed::new(Expr::BinaryExpr(hidden), true, TreeNodeRecursion::Jump))
            }
            other => Ok(Transformed::no(other)),
        })?;
        Ok(Transformed::new(hidden.data, true, TreeNodeRecursion::Jump))
    })
}

/// Removes the aliases, also the one that preserves the name of a hidden expression.
fn show(expr: Expr) -> Result<Transformed<Expr>> {
    let expr = match expr {
        Expr::Alias(Alias { expr, name, .. }) if name.contains(HIDDEN) => *expr,
        other => other,
    };
    expr.transform_up_dyn(&mut |expr| match expr {
        Expr::Alias(Alias { expr, name, .. }) if name.starts_with(HIDDEN) => Ok(Transformed::yes(*expr)),
        other => Ok(Transformed::no(other)),
    })
}

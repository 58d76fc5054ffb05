//! The types of references to outer queries. DataFusion 55 notes them before it converts the expressions of the outer query
//! to common types, so that a reference to `CASE WHEN a THEN 1 ELSE 2.5 END` has the type of the first branch.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ExprSchema};
use datafusion::error::Result;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;
use datafusion::optimizer::analyzer::type_coercion::TypeCoercion;

use super::lateral::is_lateral;
use super::references::with_subquery;
use crate::plan::rules::ConvertOperands;

/// Maximum number of nested queries through which a type is passed on.
const ROUNDS_MAX: usize = 32;

/// The rule: it corrects the types of references and resolves the types of the subqueries again. It follows DataFusion's
/// rule for types.
#[derive(Debug)]
pub(in crate::plan) struct OuterTypes;

impl AnalyzerRule for OuterTypes {
    fn name(&self) -> &str {
        "types_of_outer_references"
    }

    fn analyze(&self, mut plan: LogicalPlan, options: &ConfigOptions) -> Result<LogicalPlan> {
        for _ in 0..ROUNDS_MAX {
            let corrected = correct(plan, &[])?;
            plan = corrected.data;
            if !corrected.transformed {
                break;
            }
            plan = TypeCoercion::new().analyze(ConvertOperands.analyze(plan, options)?, options)?;
        }
        Ok(plan)
    }
}

/// Gives the references of a plan to outer queries, whose columns are `scopes`, the innermost last, the types of the columns.
fn correct(plan: LogicalPlan, scopes: &[Arc<DFSchema>]) -> Result<Transformed<LogicalPlan>> {
    plan.transform_down(|node| {
        if is_lateral(&node) {
            return correct_lateral(node, scopes);
        }
        correct_expressions(node, scopes)
    })
}

/// Corrects the subquery of a lateral join as one within the scope of the left input.
fn correct_lateral(node: LogicalPlan, scopes: &[Arc<DFSchema>]) -> Result<Transformed<LogicalPlan>> {
    let node = correct_expressions(node, scopes)?;
    let LogicalPlan::Join(mut join) = node.data else { return Ok(node) };
    let mut inner = scopes.to_vec();
    inner.push(join.left.schema().clone());
    let left = correct(join.left.as_ref().clone(), scopes)?;
    let right = correct(join.right.as_ref().clone(), &inner)?;
    let transformed = node.transformed || left.transformed || right.transformed;
    (join.left, join.right) = (Arc::new(left.data), Arc::new(right.data));
    Ok(Transformed::new(LogicalPlan::Join(join), transformed, TreeNodeRecursion::Jump))
}

fn correct_expressions(node: LogicalPlan, scopes: &[Arc<DFSchema>]) -> Result<Transformed<LogicalPlan>> {
    let mut inner = scopes.to_vec();
    inner.push(Arc::new(merge_schema(&node.inputs())));
    node.map_expressions(|expr| {
        expr.transform_up(|expr| match expr {
            Expr::OuterReferenceColumn(field, column) => {
                let actual = scopes.iter().rev().find_map(|scope| scope.field_from_column(&column).ok());
                Ok(match actual.filter(|actual| actual.data_type() != field.data_type()) {
                    Some(actual) => {
                        let field = field.as_ref().clone().with_data_type(actual.data_type().clone());
                        Transformed::yes(Expr::OuterReferenceColumn(field.into(), column))
                    }
                    None => Transformed::no(Expr::OuterReferenceColumn(field, column)),
                })
            }
            expr => {
                let mut transformed = false;
                let expr = with_subquery(expr, |plan| {
                    let corrected = correct(plan, &inner)?;
                    transformed |= corrected.transformed;
                    Ok(corrected.data)
                })?;
                Ok(Transformed::new_transformed(expr, transformed))
            }
        })
    })
}

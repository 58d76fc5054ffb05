//! Operators and casts with PostgreSQL's results.
//!
//! DataFusion's integers wrap, and its casts truncate. [`ReplaceOperators`] puts the functions of [`crate::values`] in
//! their place. It runs after the types are resolved, before the optimizer evaluates constants.

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, lit};
use datafusion::optimizer::AnalyzerRule;

use crate::values::floats::Float;
use crate::values::functions::{arithmetic, canonical, is_own};

/// The rule.
#[derive(Debug)]
pub(in crate::plan) struct ReplaceOperators;

impl AnalyzerRule for ReplaceOperators {
    fn name(&self) -> &str {
        "replace_operators"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries(|plan| self.rewrite(plan))?.data)
    }
}

impl ReplaceOperators {
    fn rewrite(&self, plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        if matches!(plan, LogicalPlan::TableScan(_) | LogicalPlan::Limit(_)) {
            return Ok(Transformed::no(plan));
        }
        let schema = merge_schema(&plan.inputs());
        let names = NamePreserver::new(&plan);
        let rewritten = plan.map_expressions(|expr| {
            let name = names.save(&expr);
            Ok(expr.transform_up(|expr| self.replace(expr, &schema))?.update_data(|expr| name.restore(expr)))
        })?;
        match rewritten.transformed {
            true => rewritten.map_data(LogicalPlan::recompute_schema),
            false => Ok(rewritten),
        }
    }

    fn replace(&self, expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
        let replaced = match &expr {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => match (left.get_type(schema), right.get_type(schema)) {
                (Ok(a), Ok(b)) => arithmetic(left, *op, right, (&a, &b)),
                // The type of a parameter may not be known yet.
                _ => None,
            },
            // The difference to zero: of the smallest integer, it is an error, and of 0.0, it is not -0.0.
            Expr::Negative(operand) => match operand.get_type(schema) {
                Ok(ty) if ty.is_integer() || ty.is_floating() => {
                    arithmetic(&lit(ScalarValue::new_zero(&ty)?), Operator::Minus, operand, (&ty, &ty))
                }
                _ => None,
            },
            Expr::Literal(ScalarValue::Float64(Some(value)), metadata) if is_special(*value) => {
                let value = Float::canonical(*value);
                Some(Expr::Literal(ScalarValue::Float64(Some(value)), metadata.clone()))
            }
            Expr::Literal(ScalarValue::Float32(Some(value)), metadata) if is_special((*value).into()) => {
                let value = Float::canonical(*value);
                Some(Expr::Literal(ScalarValue::Float32(Some(value)), metadata.clone()))
            }
            Expr::ScalarFunction(call) if !is_own(&call.func) => match expr.get_type(schema) {
                Ok(DataType::Float32 | DataType::Float64) => Some(canonical(expr.clone())),
                _ => None,
            },
            _ => None,
        };
        Ok(match replaced {
            Some(expr) => Transformed::yes(expr),
            None => Transformed::no(expr),
        })
    }
}

/// True for values that may not be canonical.
fn is_special(value: f64) -> bool {
    value == 0.0 || value.is_nan()
}

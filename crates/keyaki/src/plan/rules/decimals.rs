//! Comparisons of decimals with floating-point numbers.
//!
//! DataFusion 55 converts both operands to DECIMAL(30, 15): small numbers become zero, and large ones are errors.
//! [`CompareAsFloats`] converts the decimals to DOUBLE PRECISION instead, as PostgreSQL does. It runs before the types are
//! resolved.

use arrow::datatypes::DataType;
use datafusion::common::DFSchema;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Between, InList};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, cast};
use datafusion::optimizer::AnalyzerRule;

/// The rule.
#[derive(Debug)]
pub(in crate::plan) struct CompareAsFloats;

impl AnalyzerRule for CompareAsFloats {
    fn name(&self) -> &str {
        "compare_as_floats"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries(rewrite)?.data)
    }
}

fn rewrite(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if matches!(plan, LogicalPlan::TableScan(_)) {
        return Ok(Transformed::no(plan));
    }
    let schema = merge_schema(&plan.inputs());
    let mut found = false;
    plan.apply_expressions(|expr| {
        found |= expr.exists(|expr| Ok(is_mixed(expr, &schema)))?;
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if !found {
        return Ok(Transformed::no(plan));
    }
    let names = NamePreserver::new(&plan);
    let rewritten = plan.map_expressions(|expr| {
        let name = names.save(&expr);
        Ok(expr.transform_up(|expr| as_floats(expr, &schema))?.update_data(|expr| name.restore(expr)))
    })?;
    rewritten.map_data(LogicalPlan::recompute_schema)
}

/// True for a comparison of a decimal with a floating-point number.
fn is_mixed(expr: &Expr, schema: &DFSchema) -> bool {
    let operands: Vec<&Expr> = match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if op.supports_propagation() => vec![left, right],
        Expr::InList(InList { expr, list, .. }) => std::iter::once(expr.as_ref()).chain(list).collect(),
        Expr::Between(Between { expr, low, high, .. }) => vec![expr, low, high],
        _ => return false,
    };
    let has = |test: fn(&DataType) -> bool| operands.iter().any(|e| e.get_type(schema).is_ok_and(|ty| test(&ty)));
    has(DataType::is_floating) && has(DataType::is_decimal)
}

/// Converts the decimals of a comparison that has a floating-point operand.
fn as_floats(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    if !is_mixed(&expr, schema) {
        return Ok(Transformed::no(expr));
    }
    expr.map_children(|operand| {
        Ok(match operand.get_type(schema)? {
            ty if ty.is_decimal() => Transformed::yes(cast(operand, DataType::Float64)),
            _ => Transformed::no(operand),
        })
    })
}

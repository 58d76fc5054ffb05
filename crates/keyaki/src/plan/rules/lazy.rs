//! Conditions that protect others: `n <> 0 AND 100 / n > 5`.
//!
//! DataFusion evaluates both operands of AND and OR for all rows of a batch, unless one of them decides most rows, and
//! replaces CASE with boolean results by AND and OR. The second operand then fails for rows for which the first one is
//! decisive. As in PostgreSQL, it is not evaluated for such rows here, if it can fail for a value: it divides, converts a
//! text, or calls a function that is not defined for all numbers.
//!
//! | expression | becomes |
//! |---|---|
//! | `a AND b` | `a AND CASE true WHEN a IS NOT FALSE THEN b ELSE false END` |
//! | `a OR b` | `a OR CASE true WHEN a THEN true ELSE b END` |
//! | `CASE WHEN a THEN b … END` | `CASE true WHEN a THEN b … END`, which DataFusion does not replace |
//!
//! The first operand stays a condition of its own, for which indexes can be used.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Case, Cast, ScalarFunction};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, lit};
use datafusion::optimizer::AnalyzerRule;

use super::rewritten;

/// Functions that fail for some arguments.
const PARTIAL: [&str; 14] = [
    "sqrt",
    "ln",
    "log",
    "log2",
    "log10",
    "power",
    "mod",
    "acos",
    "asin",
    "factorial",
    "to_date",
    "to_timestamp",
    "chr",
    "div",
];

/// The rule. Operands have their types already, and operators are not replaced yet.
#[derive(Debug)]
pub(in crate::plan) struct LazyConditions;

impl AnalyzerRule for LazyConditions {
    fn name(&self) -> &str {
        "lazy_conditions"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries(|node| rewritten(node, lazy))?.data)
    }
}

fn lazy(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right })
            if !is_lazy(&right) && can_fail(&right, schema)? && protects(&left)? =>
        {
            let protected = match op {
                Operator::And => choice(left.as_ref().clone().is_not_false(), *right, lit(false)),
                _ => choice(left.as_ref().clone(), lit(true), *right),
            };
            let both = BinaryExpr { left, op, right: Box::new(protected) };
            Ok(Transformed::yes(Expr::BinaryExpr(both)))
        }
        Expr::Case(case) if case.expr.is_none() && is_condition(&case, schema)? => {
            Ok(Transformed::yes(Expr::Case(Case { expr: Some(Box::new(lit(true))), ..case })))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// `CASE true WHEN condition THEN one ELSE other END`.
fn choice(condition: Expr, one: Expr, other: Expr) -> Expr {
    let branches = vec![(Box::new(condition), Box::new(one))];
    Expr::Case(Case { expr: Some(Box::new(lit(true))), when_then_expr: branches, else_expr: Some(Box::new(other)) })
}

/// True for a result of this rule.
fn is_lazy(expr: &Expr) -> bool {
    matches!(expr, Expr::Case(Case { expr: Some(value), .. }) if **value == lit(true))
}

/// True if a condition can be evaluated twice.
fn protects(condition: &Expr) -> Result<bool> {
    let is_query = |expr: &Expr| {
        matches!(expr, Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_) | Expr::ScalarSubquery(_))
    };
    Ok(!condition.is_volatile() && !condition.exists(|expr| Ok(is_query(expr)))?)
}

/// True for a CASE of conditions that can fail.
fn is_condition(case: &Case, schema: &DFSchema) -> Result<bool> {
    let results = case.when_then_expr.iter().map(|(_, then)| then).chain(&case.else_expr);
    let mut fails = false;
    for result in results.clone() {
        fails |= can_fail(result, schema)?;
    }
    let is_boolean = |expr: &Expr| expr.get_type(schema).is_ok_and(|ty| ty == arrow::datatypes::DataType::Boolean);
    Ok(fails && results.into_iter().any(|result| is_boolean(result)))
}

/// True if an expression can fail for a value of its columns, other than by leaving the range of a number.
fn can_fail(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    expr.exists(|expr| {
        Ok(match expr {
            Expr::BinaryExpr(BinaryExpr { op: Operator::Divide | Operator::Modulo, right, .. }) => !is_number(right),
            Expr::Cast(Cast { expr, field }) => {
                let is_text = |ty: &arrow::datatypes::DataType| ty.is_string();
                !matches!(**expr, Expr::Literal(..))
                    && !is_text(field.data_type())
                    && expr.get_type(schema).is_ok_and(|ty| is_text(&ty))
            }
            Expr::ScalarFunction(ScalarFunction { func, .. }) => PARTIAL.contains(&func.name()),
            _ => false,
        })
    })
}

/// True for a literal other than zero and NULL.
fn is_number(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => {
            !value.is_null() && ScalarValue::new_zero(&value.data_type()).is_ok_and(|zero| *value != zero)
        }
        Expr::Cast(Cast { expr, .. }) => is_number(expr),
        _ => false,
    }
}

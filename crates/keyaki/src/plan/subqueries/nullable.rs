//! The nullability of scalar subqueries. A subquery without rows is NULL, but DataFusion 55 takes the nullability of its
//! column, which may be a constant or a column that is NOT NULL, for that of the subquery. The simplifier would then take
//! `IS NOT NULL` for true, also in outer queries.
//!
//! The columns of all plans get their nullability before any subquery is rewritten, because the form of the rewrite
//! depends on it.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::tree_node::Transformed;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Subquery, Volatility,
};

use super::references::outer_columns;
use super::values::{has_a_row, only_row};
use crate::base::tree::{PlanTree, Tree};

/// The plan with nullable columns where scalar subqueries may be NULL. Correlated ones are marked, see [`unmarked`].
pub(super) fn with_nullable_values(plan: LogicalPlan) -> Result<LogicalPlan> {
    let plan = plan.transform_up_with_subqueries_dyn(&mut |node| {
        let names = NamePreserver::new(&node);
        let node = node.map_expressions_dyn(&mut |expr| {
            let name = names.save(&expr);
            let expr = expr.transform_up_dyn(&mut |expr| match expr {
                Expr::ScalarSubquery(subquery) if is_wrong(&subquery) => nullable(subquery).map(Transformed::yes),
                expr => Ok(Transformed::no(expr)),
            })?;
            Ok(expr.update_data(|expr| name.restore(expr)))
        })?;
        Ok(Transformed::yes(node.data.recompute_schema()?))
    })?;
    Ok(plan.data)
}

/// True for a subquery that may have no row although its column is not nullable.
fn is_wrong(subquery: &Subquery) -> bool {
    let plan = &subquery.subquery;
    !plan.schema().field(0).is_nullable() && !has_a_row(plan)
}

fn nullable(subquery: Subquery) -> Result<Expr> {
    if outer_columns(&subquery.subquery)?.is_empty() {
        return Ok(Expr::ScalarSubquery(only_row(subquery)?));
    }
    let function = Arc::new(ScalarUDF::new_from_impl(Marker { signature: Signature::any(1, Volatility::Immutable) }));
    Ok(Expr::ScalarFunction(ScalarFunction::new_udf(function, vec![Expr::ScalarSubquery(subquery)])))
}

/// The subquery without its mark, or another expression as it is.
pub(super) fn unmarked(expr: Expr) -> Expr {
    match expr {
        Expr::ScalarFunction(ScalarFunction { func, mut args }) if func.inner().is::<Marker>() && args.len() == 1 => {
            args.remove(0)
        }
        expr => expr,
    }
}

/// A function that returns its argument. It exists only until the subquery is rewritten.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Marker {
    signature: Signature,
}

impl ScalarUDFImpl for Marker {
    fn name(&self) -> &str {
        "nullable"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        types.first().cloned().ok_or_else(|| DataFusionError::Internal("nullable needs an argument".into()))
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let types: Vec<DataType> = arguments.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        Ok(Field::new(self.name(), self.return_type(&types)?, true).into())
    }

    fn invoke_with_args(&self, mut arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        arguments.args.pop().ok_or_else(|| DataFusionError::Internal("nullable needs an argument".into()))
    }
}

//! Operators of types for which DataFusion has no common type. It determines the type of an operator in a select list before
//! it applies rules, so that these are planned.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::DFSchema;
use datafusion::error::Result;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{ExprSchemable, cast};
use datafusion::sql::sqlparser::ast::BinaryOperator;

use crate::base::uuids::{UUID, is_uuid};

/// UUIDs and texts are compared as UUIDs and concatenated as texts. Times of different units are compared in microseconds.
#[derive(Debug)]
pub(crate) struct Operators;

impl ExprPlanner for Operators {
    fn plan_binary_op(&self, mut expr: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        use BinaryOperator as Op;
        let is_comparison = matches!(expr.op, Op::Eq | Op::NotEq | Op::Lt | Op::LtEq | Op::Gt | Op::GtEq);
        let (Ok(left), Ok(right)) = (expr.left.get_type(schema), expr.right.get_type(schema)) else {
            // The type of a parameter may not be known yet.
            return Ok(PlannerResult::Original(expr));
        };
        if is_comparison && left != right && is_time(&left) && is_time(&right) {
            let micros = DataType::Time64(TimeUnit::Microsecond);
            expr.left = cast(expr.left, micros.clone());
            expr.right = cast(expr.right, micros);
        }
        let operands = (&mut expr.left, &mut expr.right);
        let (uuid, text) = match operands {
            (uuid, text) if is_uuid(&left) && right.is_string() => (uuid, text),
            (text, uuid) if left.is_string() && is_uuid(&right) => (uuid, text),
            _ => return Ok(PlannerResult::Original(expr)),
        };
        if is_comparison {
            *text = cast(text.clone(), UUID);
        } else if expr.op == Op::StringConcat {
            *uuid = cast(uuid.clone(), DataType::Utf8View);
        }
        Ok(PlannerResult::Original(expr))
    }
}

fn is_time(ty: &DataType) -> bool {
    matches!(ty, DataType::Time32(_) | DataType::Time64(_))
}

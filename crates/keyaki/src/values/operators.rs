//! Operators of types for which DataFusion has no common type. It determines the type of an operator in a select list before
//! it applies rules, so that these are planned.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{Expr, ExprSchemable, cast};
use datafusion::sql::sqlparser::ast::BinaryOperator;

use super::intervals::{divide, multiply};
use crate::base::intervals::{INTERVAL, is_interval};
use crate::base::uuids::{UUID, is_uuid};

/// UUIDs and texts are compared as UUIDs and concatenated as texts, intervals and texts are compared as intervals. Times of
/// different units are compared in microseconds. A literal that is subtracted from a time, or that a time is subtracted from, has
/// the type of the time.
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
        if let Some(expr) = scaled_interval(&expr, (&left, &right)) {
            return Ok(PlannerResult::Planned(expr));
        }
        if expr.op == Op::Minus {
            // The literal is the earlier or later time.
            if is_instant(&left) && is_text_literal(&expr.right) {
                expr.right = cast(expr.right, left.clone());
                return Ok(PlannerResult::Original(expr));
            }
            if is_instant(&right) && is_text_literal(&expr.left) {
                expr.left = cast(expr.left, right.clone());
                return Ok(PlannerResult::Original(expr));
            }
        }
        if matches!(expr.op, Op::Plus | Op::Minus) {
            let dated = (
                date_operand(&expr.left, &left, &expr.right, &right),
                date_operand(&expr.right, &right, &expr.left, &left),
            );
            match dated {
                (Some(date), _) => expr.left = date,
                (_, Some(date)) => expr.right = date,
                _ => {}
            }
        }
        if is_comparison && left != right && is_time(&left) && is_time(&right) {
            let micros = DataType::Time64(TimeUnit::Microsecond);
            expr.left = cast(expr.left, micros.clone());
            expr.right = cast(expr.right, micros);
        }
        // Differences of timestamps are durations.
        if is_comparison && (is_interval(&left) && right.is_string() || left.is_string() && is_interval(&right)) {
            expr.left = cast(expr.left, INTERVAL);
            expr.right = cast(expr.right, INTERVAL);
            return Ok(PlannerResult::Original(expr));
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

/// `interval * number`, `number * interval` and `interval / number`.
fn scaled_interval(expr: &RawBinaryExpr, types: (&DataType, &DataType)) -> Option<Expr> {
    let number = |expr: &Expr| cast(expr.clone(), DataType::Float64);
    // Differences of timestamps are durations.
    let interval = |expr: &Expr, ty: &DataType| match *ty == INTERVAL {
        true => expr.clone(),
        false => cast(expr.clone(), INTERVAL),
    };
    match (&expr.op, types) {
        (BinaryOperator::Multiply, (of, ty)) if is_interval(of) && ty.is_numeric() => {
            Some(multiply(interval(&expr.left, of), number(&expr.right)))
        }
        (BinaryOperator::Multiply, (ty, of)) if is_interval(of) && ty.is_numeric() => {
            Some(multiply(interval(&expr.right, of), number(&expr.left)))
        }
        (BinaryOperator::Divide, (of, ty)) if is_interval(of) && ty.is_numeric() => {
            Some(divide(interval(&expr.left, of), number(&expr.right)))
        }
        _ => None,
    }
}

/// Dates beside longer literals become timestamps, whose arithmetic is checked.
const DATE_MONTHS_MAX: u32 = 12 * 1_000_000;
const DATE_DAYS_MAX: u32 = 366 * 1_000_000;

/// A date beside an interval as a timestamp; `None` if it stays a date, because the interval is a literal of months and days,
/// and for other operands.
pub(crate) fn date_operand(date: &Expr, ty: &DataType, interval: &Expr, of_interval: &DataType) -> Option<Expr> {
    let is_whole = match interval {
        Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(interval)), _) => {
            interval.nanoseconds == 0
                && interval.months.unsigned_abs() <= DATE_MONTHS_MAX
                && interval.days.unsigned_abs() <= DATE_DAYS_MAX
        }
        _ => false,
    };
    let is_date = matches!(ty, DataType::Date32) && matches!(of_interval, DataType::Interval(_));
    (is_date && !is_whole).then(|| cast(date.clone(), DataType::Timestamp(TimeUnit::Microsecond, None)))
}

fn is_instant(ty: &DataType) -> bool {
    matches!(ty, DataType::Date32 | DataType::Timestamp(..))
}

fn is_text_literal(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(value, _) if value.data_type().is_string())
}

fn is_time(ty: &DataType) -> bool {
    matches!(ty, DataType::Time32(_) | DataType::Time64(_))
}

//! Operators of types for which DataFusion has no common type. It determines the type of an operator in a select list before
//! it applies rules, so that these are planned.

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, TimeUnit};
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator, cast};
use datafusion::sql::sqlparser::ast::BinaryOperator;

use super::intervals::{divide, multiply};
use crate::base::intervals::{INTERVAL, is_interval};
use crate::base::uuids::{UUID, is_uuid};

/// Quotients of decimals get more digits. UUIDs and texts are compared as UUIDs and concatenated as texts, intervals and texts
/// are compared as intervals. Times of
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
        if expr.op == Op::Divide
            && let Some(dividend) = with_digits(&expr.left, &left, &right)
        {
            expr.left = dividend;
        }
        if expr.op == Op::Multiply {
            shorten_factors(&mut expr, (&left, &right));
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
        if is_comparison && left == DataType::Boolean && is_text_literal(&expr.right) {
            expr.right = cast(expr.right, DataType::Boolean);
        } else if is_comparison && right == DataType::Boolean && is_text_literal(&expr.left) {
            expr.left = cast(expr.left, DataType::Boolean);
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

/// Digits behind the point of a quotient of decimals, if its digits before the point allow it: as many as PostgreSQL has
/// at least.
const QUOTIENT_SCALE: u8 = 16;
/// Digits behind the point that Arrow's quotient has more than the dividend.
const QUOTIENT_DIGITS: u8 = 4;
/// Digits behind the point of a factor that is a quotient, beside another with many digits.
const FACTOR_SCALE: i8 = 12;

/// A dividend with as many digits behind the point as its quotient of decimals needs; `None` if it has them, or for other
/// types.
fn with_digits(dividend: &Expr, left: &DataType, right: &DataType) -> Option<Expr> {
    let (precision, scale) = match (left, right) {
        (DataType::Decimal128(precision, scale), right) if right.is_decimal() || right.is_integer() => {
            (*precision, u8::try_from(*scale).ok()?)
        }
        (left, DataType::Decimal128(..)) if left.is_integer() => (integer_digits(left), 0),
        _ => return None,
    };
    let divisor_scale = match right {
        DataType::Decimal128(_, scale) => u8::try_from(*scale).ok()?,
        _ => 0,
    };
    // The quotient has the digits of the dividend, and those of the divisor behind the point.
    let free = DECIMAL128_MAX_PRECISION.checked_sub(precision)?.saturating_sub(divisor_scale + QUOTIENT_DIGITS);
    let more = (QUOTIENT_SCALE - QUOTIENT_DIGITS).saturating_sub(scale).min(free);
    (more > 0).then(|| cast(dividend.clone(), DataType::Decimal128(precision + more, (scale + more) as i8)))
}

/// Digits of the decimal type of an integer.
fn integer_digits(ty: &DataType) -> u8 {
    match ty {
        DataType::Int8 | DataType::UInt8 => 3,
        DataType::Int16 | DataType::UInt16 => 5,
        DataType::Int32 | DataType::UInt32 => 10,
        _ => 20,
    }
}

/// Rounds factors that are quotients, so that the product has digits before the point.
fn shorten_factors(expr: &mut RawBinaryExpr, types: (&DataType, &DataType)) {
    let (DataType::Decimal128(p1, s1), DataType::Decimal128(p2, s2)) = types else { return };
    if i32::from(*s1) + i32::from(*s2) <= 2 * i32::from(FACTOR_SCALE) {
        return;
    }
    let is_computed = |expr: &Expr| {
        expr.exists(|expr| {
            Ok(matches!(expr, Expr::BinaryExpr(BinaryExpr { op: Operator::Divide | Operator::Multiply, .. })))
        })
        .unwrap_or(false)
    };
    for (factor, precision, scale) in [(&mut expr.left, *p1, *s1), (&mut expr.right, *p2, *s2)] {
        if scale > FACTOR_SCALE && is_computed(factor) {
            let precision = precision - (scale - FACTOR_SCALE) as u8;
            *factor = cast(factor.clone(), DataType::Decimal128(precision.max(FACTOR_SCALE as u8), FACTOR_SCALE));
        }
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

//! Operators of types for which DataFusion has no common type. It determines the type of an operator in a select list before
//! it applies rules, so that these are planned.

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Field, TimeUnit};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::expr::Cast;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator, cast};
use datafusion::sql::sqlparser::ast::BinaryOperator;

use super::byte_strings::is_binary;
use super::intervals::{divide, multiply};
use crate::base::intervals::{INTERVAL, is_interval};
use crate::base::uuids::{UUID, is_uuid};

/// Operators of REAL and integers or decimals compute with DOUBLE PRECISION. Quotients of decimals get more digits. UUIDs
/// and texts are compared as UUIDs and concatenated as texts. Intervals and texts are compared as intervals. Times of
/// different units are compared in microseconds. A literal beside a time, as operand of a minus sign, has the type of
/// the time; one that is added to a timestamp is an interval.
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
        let is_exact = |ty: &DataType| ty.is_integer() || ty.is_decimal();
        if matches!(expr.op, Op::Plus | Op::Minus | Op::Multiply | Op::Divide | Op::Modulo)
            && (left == DataType::Float32 && is_exact(&right) || is_exact(&left) && right == DataType::Float32)
        {
            expr.left = cast(expr.left, DataType::Float64);
            expr.right = cast(expr.right, DataType::Float64);
            return Ok(PlannerResult::Original(expr));
        }
        if expr.op == Op::Divide
            && let Some(ty) = dividend_type(&left, &right)
        {
            expr.left = with_digits(expr.left, ty);
        }
        if expr.op == Op::Multiply {
            fit_product(&mut expr.left, &mut expr.right, schema);
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
        if expr.op == Op::Plus && matches!(left, DataType::Timestamp(..)) && is_text_literal(&expr.right) {
            expr.right = cast(expr.right, INTERVAL);
            return Ok(PlannerResult::Original(expr));
        }
        if expr.op == Op::Plus && matches!(right, DataType::Timestamp(..)) && is_text_literal(&expr.left) {
            expr.left = cast(expr.left, INTERVAL);
            return Ok(PlannerResult::Original(expr));
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
        if expr.op == Op::StringConcat && is_binary(&left) && is_text_literal(&expr.right) {
            expr.right = cast(expr.right, left);
            return Ok(PlannerResult::Original(expr));
        }
        if expr.op == Op::StringConcat && is_binary(&right) && is_text_literal(&expr.left) {
            expr.left = cast(expr.left, right);
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

/// The key of the metadata of the field to which [`with_digits`] casts.
const ADDED_DIGITS: &str = "keyaki.added_digits";

/// A dividend with the digits that its quotient needs. The cast has a mark until [`refitted`] has removed it, because the
/// type of a dividend may change before.
fn with_digits(dividend: Expr, ty: DataType) -> Expr {
    let mark = [(ADDED_DIGITS.to_string(), String::new())].into();
    let field = Field::new("", ty, true).with_metadata(mark);
    Expr::Cast(Cast::new_from_field(Box::new(dividend), field.into()))
}

/// True for a quotient whose dividend got digits while the query was planned.
pub(crate) fn has_added_digits(expr: &Expr) -> bool {
    let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Divide, .. }) = expr else { return false };
    matches!(&**left, Expr::Cast(cast) if cast.field.metadata().contains_key(ADDED_DIGITS))
}

/// Gives the dividend of a quotient the digits that it needs according to its resolved type: while a query is planned, a CASE
/// and a column of a union have the type of the first branch. Products fit their quotients again.
pub(crate) fn refitted(mut expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let is_refitted = has_added_digits(&expr);
    match &mut expr {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Divide, right }) if is_refitted => {
            if let Expr::Cast(Cast { expr: dividend, .. }) = std::mem::take(&mut **left) {
                let types = (dividend.get_type(schema), right.get_type(schema));
                let ty = if let (Ok(left), Ok(right)) = types { dividend_type(&left, &right) } else { None };
                **left = match ty {
                    Some(ty) => cast(*dividend, ty),
                    None => *dividend,
                };
            }
            Transformed::yes(expr)
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Multiply, right }) => {
            let is_fitted = fit_product(left, right, schema);
            Transformed::new_transformed(expr, is_fitted)
        }
        _ => Transformed::no(expr),
    }
}

/// The type of a dividend with as many digits behind the point as its quotient of decimals needs; `None` if it has them, or
/// for other types.
fn dividend_type(left: &DataType, right: &DataType) -> Option<DataType> {
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
    (more > 0).then(|| DataType::Decimal128(precision + more, (scale + more) as i8))
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

/// Takes digits behind the point from quotients in a product that would have more than 38 digits. Only digits that
/// [`with_digits`] has added are taken, and no more than necessary. False if none are taken.
fn fit_product(left: &mut Expr, right: &mut Expr, schema: &DFSchema) -> bool {
    let (Some(of_left), Some(of_right)) = (product_digits(left, schema), product_digits(right, schema)) else {
        return false;
    };
    let digits = (of_left.0 + of_right.0 + 1).max(of_left.1 + of_right.1);
    let mut excess = digits.saturating_sub(DECIMAL128_MAX_PRECISION.into());
    if excess == 0 {
        return false;
    }
    let mut dividends = Vec::new();
    add_dividends(left, &mut dividends);
    add_dividends(right, &mut dividends);
    let mut dividends: Vec<(&mut Expr, u8)> = dividends
        .into_iter()
        .filter_map(|dividend| added_digits(dividend, schema).map(|added| (dividend, added)))
        .collect();
    // The quotients with the fewest digits to give come first, so that the others give the rest in equal parts.
    dividends.sort_by_key(|(_, added)| *added);
    let (count, mut is_changed) = (dividends.len(), false);
    for (i, (dividend, added)) in dividends.into_iter().enumerate() {
        let taken = u32::from(added).min(excess.div_ceil((count - i) as u32));
        excess -= taken;
        if let Expr::Cast(shorter) = dividend
            && let &DataType::Decimal128(precision, scale) = shorter.field.data_type()
            && taken > 0
        {
            let ty = DataType::Decimal128(precision - taken as u8, scale - taken as i8);
            shorter.field = shorter.field.as_ref().clone().with_data_type(ty).into();
            is_changed = true;
        }
    }
    is_changed
}

/// The digits of an exact product, and those behind the point; `None` for other types than decimals and integers. An integer
/// literal has the digits of its value.
fn product_digits(expr: &Expr, schema: &DFSchema) -> Option<(u32, u32)> {
    if let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Multiply, right }) = expr {
        let (left, right) = (product_digits(left, schema)?, product_digits(right, schema)?);
        return Some((left.0 + right.0 + 1, left.1 + right.1));
    }
    let unused = match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Divide, .. }) => unused_digits(left),
        expr => unused_digits(expr),
    };
    let digits = |precision: u8| u32::from(precision).saturating_sub(unused);
    match expr.get_type(schema).ok()? {
        DataType::Decimal128(precision, scale) => Some((digits(precision), u32::try_from(scale).ok()?)),
        ty if ty.is_integer() => Some((digits(integer_digits(&ty)), 0)),
        _ => None,
    }
}

/// The digits of the type of an integer literal that its value does not have; 0 for other expressions.
fn unused_digits(expr: &Expr) -> u32 {
    match expr {
        Expr::Cast(cast) => unused_digits(&cast.expr),
        Expr::Literal(value, _) if value.data_type().is_integer() => {
            let used = value.to_string().trim_start_matches('-').len() as u32;
            u32::from(integer_digits(&value.data_type())).saturating_sub(used)
        }
        _ => 0,
    }
}

/// The dividends of the quotients in a product.
fn add_dividends<'a>(expr: &'a mut Expr, dividends: &mut Vec<&'a mut Expr>) {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Multiply, right }) => {
            add_dividends(left, dividends);
            add_dividends(right, dividends);
        }
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Divide, .. }) => dividends.push(left),
        _ => {}
    }
}

/// The number of digits that [`with_digits`] has added to a dividend.
fn added_digits(dividend: &Expr, schema: &DFSchema) -> Option<u8> {
    let Expr::Cast(longer) = dividend else { return None };
    let DataType::Decimal128(precision, scale) = longer.field.data_type() else { return None };
    let (before, scale_before) = match longer.expr.get_type(schema).ok()? {
        DataType::Decimal128(precision, scale) => (precision, scale),
        ty if ty.is_integer() => (integer_digits(&ty), 0),
        _ => return None,
    };
    let added = precision.checked_sub(before)?;
    (scale - scale_before == added as i8).then_some(added)
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

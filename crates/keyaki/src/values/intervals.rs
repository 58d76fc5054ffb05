//! Functions of intervals, with PostgreSQL's results and errors.
//!
//! Arrow compares months, days and times one after another. [`order`] and [`key`] give values with the order of
//! intervals: a number, and bytes from which [`of_key`] restores the interval.

use std::hash::Hash;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, BinaryViewArray, Decimal128Array, PrimitiveArray};
use arrow::datatypes::{
    DataType, Decimal128Type, FieldRef, Float64Type, Int32Type, Int64Type, IntervalMonthDayNano,
    IntervalMonthDayNanoType,
};
use datafusion::error::{DataFusionError, Result as DfResult};
use datafusion::logical_expr::{
    ColumnarValue, Expr, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::functions::{any, arrays, call, result, strict_field, undefined};
use crate::base::intervals::{
    DAYS_PER_MONTH, INTERVAL, MONTHS_PER_YEAR, NANOS_PER_DAY, NANOS_PER_MICRO, intervals, nanos, of_parts,
};
use crate::base::type_name;
use crate::{Error, Result};

type Intervals = PrimitiveArray<IntervalMonthDayNanoType>;

/// The type of [`order`].
const ORDER: DataType = DataType::Decimal128(38, 0);
/// The type of nanoseconds, whose sums may exceed 64 bits.
const NANOS: DataType = DataType::Decimal128(19, 0);
const MICROS_PER_SECOND: f64 = 1e6;

/// A number with the order of intervals; equal for equal intervals.
pub(crate) fn order(interval: Expr) -> Expr {
    function(Operation::Order, vec![interval])
}

/// Bytes with the order of intervals, which differ for intervals of different parts.
pub(crate) fn key(interval: Expr) -> Expr {
    function(Operation::Key, vec![interval])
}

/// The inverse of [`key`].
pub(crate) fn of_key(key: Expr) -> Expr {
    function(Operation::OfKey, vec![key])
}

/// Months, days and nanoseconds as numbers.
pub(crate) fn parts(interval: &Expr) -> [Expr; 3] {
    [Operation::Months, Operation::Days, Operation::Nanos].map(|part| function(part, vec![interval.clone()]))
}

/// The interval with these parts. It fails if they do not fit.
pub(crate) fn of_part_sums(parts: [Expr; 3]) -> Expr {
    function(Operation::OfParts, parts.into())
}

/// The average of `count` intervals whose parts have these sums.
pub(crate) fn of_part_averages([months, days, nanos]: [Expr; 3], count: Expr) -> Expr {
    function(Operation::Average, vec![months, days, nanos, count])
}

/// `interval / number`, for a number of type DOUBLE PRECISION.
pub(crate) fn divide(interval: Expr, number: Expr) -> Expr {
    function(Operation::Divide, vec![interval, number])
}

/// `interval * number`, for a number of type DOUBLE PRECISION.
pub(crate) fn multiply(interval: Expr, number: Expr) -> Expr {
    function(Operation::Multiply, vec![interval, number])
}

/// `left operator right` of intervals; `None` for other operators.
pub(crate) fn arithmetic(left: &Expr, operator: Operator, right: &Expr) -> Option<Expr> {
    let operation = match operator {
        Operator::Plus => Operation::Add,
        Operator::Minus => Operation::Subtract,
        _ => return None,
    };
    Some(function(operation, vec![left.clone(), right.clone()]))
}

/// `-interval`.
pub(crate) fn negate(interval: Expr) -> Expr {
    function(Operation::Negate, vec![interval])
}

/// `extract(part FROM interval)`.
///
/// # Errors
/// `Unsupported` for a part that intervals do not have.
pub(crate) fn part(name: &str, interval: Expr) -> Result<Expr> {
    let part = Part::named(name).ok_or_else(|| Error::Unsupported(format!("unit \"{name}\" for type interval")))?;
    Ok(function(Operation::Part(part), vec![interval]))
}

/// `justify_days`, `justify_hours` and `justify_interval`.
pub(crate) fn functions() -> [ScalarUDF; 3] {
    [Operation::JustifyDays, Operation::JustifyHours, Operation::Justify]
        .map(|operation| ScalarUDF::new_from_impl(Function::new(operation)))
}

/// True for a function of this module.
pub(crate) fn is_own(function: &ScalarUDF) -> bool {
    function.inner().is::<Function>()
}

fn function(operation: Operation, args: Vec<Expr>) -> Expr {
    call(Function::new(operation), args)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Operation {
    Order,
    Key,
    OfKey,
    Months,
    Days,
    Nanos,
    OfParts,
    Average,
    Add,
    Subtract,
    Negate,
    Multiply,
    Divide,
    Part(Part),
    JustifyDays,
    JustifyHours,
    Justify,
}

/// A part of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Part {
    Microsecond,
    Millisecond,
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Quarter,
    /// A number of years.
    Years(i32),
    Epoch,
}

impl Part {
    fn named(name: &str) -> Option<Part> {
        Some(match name.to_ascii_lowercase().as_str() {
            "microsecond" | "microseconds" => Part::Microsecond,
            "millisecond" | "milliseconds" => Part::Millisecond,
            "second" | "seconds" => Part::Second,
            "minute" | "minutes" => Part::Minute,
            "hour" | "hours" => Part::Hour,
            "day" | "days" => Part::Day,
            "week" | "weeks" => Part::Week,
            "month" | "months" => Part::Month,
            "quarter" => Part::Quarter,
            "year" | "years" => Part::Years(1),
            "decade" | "decades" => Part::Years(10),
            "century" | "centuries" => Part::Years(100),
            "millennium" | "millennia" => Part::Years(1000),
            "epoch" => Part::Epoch,
            _ => return None,
        })
    }

    fn is_float(self) -> bool {
        matches!(self, Part::Millisecond | Part::Second | Part::Epoch)
    }

    /// Parts that are integers of 32 bits: of the largest time, hours have 7 digits.
    fn integer(self, interval: IntervalMonthDayNano) -> i32 {
        let micros = interval.nanoseconds / NANOS_PER_MICRO;
        let value = match self {
            Part::Microsecond => micros % 60_000_000,
            Part::Minute => micros / 60_000_000 % 60,
            Part::Hour => micros / 3_600_000_000,
            Part::Day => interval.days.into(),
            Part::Week => (interval.days / 7).into(),
            Part::Month => (interval.months % MONTHS_PER_YEAR).into(),
            Part::Quarter if interval.months < 0 => (interval.months % MONTHS_PER_YEAR / 3 - 1).into(),
            Part::Quarter => (interval.months % MONTHS_PER_YEAR / 3 + 1).into(),
            Part::Years(years) => (interval.months / MONTHS_PER_YEAR / years).into(),
            Part::Millisecond | Part::Second | Part::Epoch => 0,
        };
        value as i32
    }

    /// Parts with a fraction.
    fn float(self, interval: IntervalMonthDayNano) -> f64 {
        const DAYS_PER_YEAR: f64 = 365.25;
        const SECONDS_PER_DAY: f64 = 86_400.0;
        let micros = interval.nanoseconds / NANOS_PER_MICRO;
        match self {
            Part::Millisecond => (micros % 60_000_000) as f64 / 1e3,
            Part::Second => (micros % 60_000_000) as f64 / MICROS_PER_SECOND,
            _ => {
                let years = f64::from(interval.months / MONTHS_PER_YEAR) * DAYS_PER_YEAR;
                let months = interval.months % MONTHS_PER_YEAR * DAYS_PER_MONTH;
                let days = years + f64::from(months) + f64::from(interval.days);
                days * SECONDS_PER_DAY + micros as f64 / MICROS_PER_SECOND
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Function {
    operation: Operation,
    signature: Signature,
}

impl Function {
    fn new(operation: Operation) -> Function {
        let signature = match operation {
            Operation::OfParts => any(3),
            Operation::Average => any(4),
            Operation::Add | Operation::Subtract | Operation::Multiply | Operation::Divide => any(2),
            Operation::JustifyDays | Operation::JustifyHours | Operation::Justify => {
                Signature::user_defined(Volatility::Immutable)
            }
            _ => any(1),
        };
        Function { operation, signature }
    }

    fn compute(&self, args: &[ArrayRef]) -> Result<ArrayRef> {
        let of = |i: usize| {
            intervals(&args[i])
                .ok_or_else(|| Error::CannotCast { from: type_name(args[i].data_type()), to: "interval".into() })
        };
        Ok(match self.operation {
            Operation::Order => {
                let numbers: Decimal128Array = of(0)?.unary::<_, Decimal128Type>(nanos);
                Arc::new(numbers.with_data_type(ORDER))
            }
            Operation::Key => Arc::new(of(0)?.iter().map(|value| value.map(encoded)).collect::<BinaryViewArray>()),
            Operation::OfKey => {
                let decode = |key: Option<&[u8]>| key.and_then(decoded);
                Arc::new(args[0].as_binary_view().iter().map(decode).collect::<Intervals>())
            }
            Operation::Months => Arc::new(of(0)?.unary::<_, Int64Type>(|value| value.months.into())),
            Operation::Days => Arc::new(of(0)?.unary::<_, Int64Type>(|value| value.days.into())),
            Operation::Nanos => {
                let numbers: Decimal128Array = of(0)?.unary::<_, Decimal128Type>(|value| value.nanoseconds.into());
                Arc::new(numbers.with_data_type(NANOS))
            }
            Operation::OfParts => {
                let values = part_sums(args).map(|sums| {
                    let Some((months, days, nanoseconds)) = sums else { return Ok(None) };
                    let (months, days) = (i32::try_from(months), i32::try_from(days));
                    match (months, days, i64::try_from(nanoseconds)) {
                        (Ok(months), Ok(days), Ok(nanoseconds)) => {
                            Ok(Some(IntervalMonthDayNano { months, days, nanoseconds }))
                        }
                        _ => Err(out_of_range()),
                    }
                });
                Arc::new(values.collect::<Result<Intervals>>()?)
            }
            Operation::Average => {
                let counts = args[3].as_primitive::<Int64Type>().iter();
                let values = part_sums(args).zip(counts).map(|both| match both {
                    (Some((months, days, nanos)), Some(count @ 1..)) => {
                        let parts = [months as f64, days as f64, nanos as f64 / NANOS_PER_MICRO as f64];
                        scaled(parts.map(|part| part / count as f64)).map(Some).ok_or_else(out_of_range)
                    }
                    _ => Ok(None),
                });
                Arc::new(values.collect::<Result<Intervals>>()?)
            }
            Operation::Add => binary(&of(0)?, &of(1)?, |a, b| {
                Some(IntervalMonthDayNano {
                    months: a.months.checked_add(b.months)?,
                    days: a.days.checked_add(b.days)?,
                    nanoseconds: a.nanoseconds.checked_add(b.nanoseconds)?,
                })
            })?,
            Operation::Subtract => binary(&of(0)?, &of(1)?, |a, b| {
                Some(IntervalMonthDayNano {
                    months: a.months.checked_sub(b.months)?,
                    days: a.days.checked_sub(b.days)?,
                    nanoseconds: a.nanoseconds.checked_sub(b.nanoseconds)?,
                })
            })?,
            Operation::Negate => unary(&of(0)?, |a| {
                Some(IntervalMonthDayNano {
                    months: a.months.checked_neg()?,
                    days: a.days.checked_neg()?,
                    nanoseconds: a.nanoseconds.checked_neg()?,
                })
            })?,
            Operation::Multiply => {
                binary(&of(0)?, args[1].as_primitive::<Float64Type>(), |a, b| scaled(floats(a).map(|part| part * b)))?
            }
            Operation::Divide => {
                let divisors = args[1].as_primitive::<Float64Type>();
                let dividends = of(0)?;
                let is_undefined =
                    |row: usize| dividends.is_valid(row) && divisors.is_valid(row) && divisors.value(row) == 0.0;
                if (0..dividends.len()).any(is_undefined) {
                    return Err(Error::DivisionByZero);
                }
                binary(&dividends, divisors, |a, b| scaled(floats(a).map(|part| part / b)))?
            }
            Operation::Part(part) if part.is_float() => {
                Arc::new(of(0)?.unary::<_, Float64Type>(|value| part.float(value)))
            }
            Operation::Part(part) => Arc::new(of(0)?.unary::<_, Int32Type>(|value| part.integer(value))),
            Operation::JustifyDays => unary(&of(0)?, justified_days)?,
            Operation::JustifyHours => unary(&of(0)?, justified_hours)?,
            Operation::Justify => unary(&of(0)?, justified)?,
        })
    }
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        match self.operation {
            Operation::Order => "interval_order",
            Operation::Key => "interval_key",
            Operation::OfKey => "interval_of_key",
            Operation::Months => "interval_months",
            Operation::Days => "interval_days",
            Operation::Nanos => "interval_nanoseconds",
            Operation::OfParts => "interval_of_parts",
            Operation::Average => "interval_average",
            Operation::Add => "interval_add",
            Operation::Subtract => "interval_subtract",
            Operation::Negate => "interval_negate",
            Operation::Multiply => "interval_multiply",
            Operation::Divide => "interval_divide",
            Operation::Part(part) => match part {
                Part::Microsecond => "interval_microsecond",
                Part::Millisecond => "interval_millisecond",
                Part::Second => "interval_second",
                Part::Minute => "interval_minute",
                Part::Hour => "interval_hour",
                Part::Day => "interval_day",
                Part::Week => "interval_week",
                Part::Month => "interval_month",
                Part::Quarter => "interval_quarter",
                Part::Years(1) => "interval_year",
                Part::Years(10) => "interval_decade",
                Part::Years(100) => "interval_century",
                Part::Years(_) => "interval_millennium",
                Part::Epoch => "interval_epoch",
            },
            Operation::JustifyDays => "justify_days",
            Operation::JustifyHours => "justify_hours",
            Operation::Justify => "justify_interval",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Texts are intervals.
    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        match types {
            [DataType::Null | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View]
            | [DataType::Interval(_) | DataType::Duration(_)] => Ok(vec![INTERVAL]),
            _ => Err(undefined(self.name(), types)),
        }
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(match self.operation {
            Operation::Order => ORDER,
            Operation::Key => DataType::BinaryView,
            Operation::Months | Operation::Days => DataType::Int64,
            Operation::Nanos => NANOS,
            Operation::Part(part) if part.is_float() => DataType::Float64,
            Operation::Part(_) => DataType::Int32,
            _ => INTERVAL,
        })
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        Ok(strict_field(self.name(), self.return_type(&[])?, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let (arrays, is_single) = arrays(&args)?;
        result(self.compute(&arrays).map_err(DataFusionError::from)?, is_single)
    }
}

fn out_of_range() -> Error {
    Error::OutOfRange { ty: "interval".into(), value: None, column: None }
}

/// Applies an operation to all values. `None` is out of range.
fn unary(
    values: &Intervals,
    operation: impl Fn(IntervalMonthDayNano) -> Option<IntervalMonthDayNano>,
) -> Result<ArrayRef> {
    let computed = values.iter().map(|value| match value {
        Some(value) => operation(value).map(Some).ok_or_else(out_of_range),
        None => Ok(None),
    });
    Ok(Arc::new(computed.collect::<Result<Intervals>>()?))
}

/// As [`unary`], with two operands.
fn binary<T: ArrowPrimitiveType>(
    left: &Intervals,
    right: &PrimitiveArray<T>,
    operation: impl Fn(IntervalMonthDayNano, T::Native) -> Option<IntervalMonthDayNano>,
) -> Result<ArrayRef> {
    let computed = left.iter().zip(right.iter()).map(|operands| match operands {
        (Some(left), Some(right)) => operation(left, right).map(Some).ok_or_else(out_of_range),
        _ => Ok(None),
    });
    Ok(Arc::new(computed.collect::<Result<Intervals>>()?))
}

/// The number of [`nanos`], whose first bit is flipped, in big-endian order, then months and days.
fn encoded(interval: IntervalMonthDayNano) -> [u8; 24] {
    let mut key = [0; 24];
    key[..16].copy_from_slice(&(nanos(interval) ^ i128::MIN).to_be_bytes());
    key[16..20].copy_from_slice(&interval.months.to_be_bytes());
    key[20..].copy_from_slice(&interval.days.to_be_bytes());
    key
}

fn decoded(key: &[u8]) -> Option<IntervalMonthDayNano> {
    let (order, parts) = key.split_first_chunk::<16>()?;
    let (months, days) = parts.split_first_chunk::<4>()?;
    let (months, days) = (i32::from_be_bytes(*months), i32::from_be_bytes(*days.first_chunk()?));
    let whole = nanos(IntervalMonthDayNano { months, days, nanoseconds: 0 });
    let nanoseconds = i64::try_from((i128::from_be_bytes(*order) ^ i128::MIN) - whole).ok()?;
    Some(IntervalMonthDayNano { months, days, nanoseconds })
}

/// The sums of months, days and nanoseconds in three arrays.
fn part_sums(args: &[ArrayRef]) -> impl Iterator<Item = Option<(i64, i64, i128)>> + '_ {
    let whole = |i: usize| args[i].as_primitive::<Int64Type>().iter();
    let nanos = args[2].as_primitive::<Decimal128Type>().iter();
    whole(0).zip(whole(1)).zip(nanos).map(|((months, days), nanos)| Some((months?, days?, nanos?)))
}

/// Months, days and microseconds.
fn floats(interval: IntervalMonthDayNano) -> [f64; 3] {
    [interval.months.into(), interval.days.into(), interval.nanoseconds as f64 / NANOS_PER_MICRO as f64]
}

/// The interval with these months, days and microseconds, as PostgreSQL's `interval_mul` and `interval_div` round them:
/// fractions of months become days, fractions of days become times.
fn scaled([scaled_months, scaled_days, scaled_micros]: [f64; 3]) -> Option<IntervalMonthDayNano> {
    const SECONDS_PER_DAY: f64 = 86_400.0;
    // Removes errors below a microsecond.
    let round = |value: f64| (value * MICROS_PER_SECOND).round_ties_even() / MICROS_PER_SECOND;
    let whole =
        |value: f64| (value > f64::from(i32::MIN) - 1.0 && value < f64::from(i32::MAX) + 1.0).then_some(value as i32);
    let (months, days) = (whole(scaled_months)?, whole(scaled_days)?);
    let rest_days = round((scaled_months - f64::from(months)) * f64::from(DAYS_PER_MONTH));
    let mut rest_seconds = round((scaled_days - f64::from(days) + rest_days - rest_days.trunc()) * SECONDS_PER_DAY);
    let carried = (rest_seconds / SECONDS_PER_DAY).trunc();
    rest_seconds -= carried * SECONDS_PER_DAY;
    let days = days.checked_add(carried as i32)?.checked_add(rest_days as i32)?;
    let micros = (scaled_micros + rest_seconds * MICROS_PER_SECOND).round_ties_even();
    // Multiples of 1000 nanoseconds below the limit.
    if micros.is_nan() || micros.abs() >= (i64::MAX / NANOS_PER_MICRO) as f64 {
        return None;
    }
    of_parts(months, days, micros as i64)
}

/// Days from 30 on become months.
fn justified_days(interval: IntervalMonthDayNano) -> Option<IntervalMonthDayNano> {
    let IntervalMonthDayNano { months, days, nanoseconds } = interval;
    let (mut months, mut days) = (months.checked_add(days / DAYS_PER_MONTH)?, days % DAYS_PER_MONTH);
    if months > 0 && days < 0 {
        (months, days) = (months - 1, days + DAYS_PER_MONTH);
    } else if months < 0 && days > 0 {
        (months, days) = (months + 1, days - DAYS_PER_MONTH);
    }
    Some(IntervalMonthDayNano { months, days, nanoseconds })
}

/// Times from 24 hours on become days.
fn justified_hours(interval: IntervalMonthDayNano) -> Option<IntervalMonthDayNano> {
    let IntervalMonthDayNano { months, days, nanoseconds } = interval;
    let carried = nanoseconds / NANOS_PER_DAY;
    let (mut days, mut nanoseconds) = (days.checked_add(carried as i32)?, nanoseconds % NANOS_PER_DAY);
    if days > 0 && nanoseconds < 0 {
        (days, nanoseconds) = (days - 1, nanoseconds + NANOS_PER_DAY);
    } else if days < 0 && nanoseconds > 0 {
        (days, nanoseconds) = (days + 1, nanoseconds - NANOS_PER_DAY);
    }
    Some(IntervalMonthDayNano { months, days, nanoseconds })
}

/// Both, with the same sign for all parts.
fn justified(interval: IntervalMonthDayNano) -> Option<IntervalMonthDayNano> {
    let IntervalMonthDayNano { mut months, mut days, mut nanoseconds } = interval;
    // Days and times of different signs cancel before they are carried.
    if days > 0 && nanoseconds > 0 || days < 0 && nanoseconds < 0 {
        months = months.checked_add(days / DAYS_PER_MONTH)?;
        days %= DAYS_PER_MONTH;
    }
    days = days.checked_add((nanoseconds / NANOS_PER_DAY) as i32)?;
    nanoseconds %= NANOS_PER_DAY;
    months = months.checked_add(days / DAYS_PER_MONTH)?;
    days %= DAYS_PER_MONTH;
    if months > 0 && (days < 0 || days == 0 && nanoseconds < 0) {
        (months, days) = (months - 1, days + DAYS_PER_MONTH);
    } else if months < 0 && (days > 0 || days == 0 && nanoseconds > 0) {
        (months, days) = (months + 1, days - DAYS_PER_MONTH);
    }
    if days > 0 && nanoseconds < 0 {
        (days, nanoseconds) = (days - 1, nanoseconds + NANOS_PER_DAY);
    } else if days < 0 && nanoseconds > 0 {
        (days, nanoseconds) = (days + 1, nanoseconds - NANOS_PER_DAY);
    }
    Some(IntervalMonthDayNano { months, days, nanoseconds })
}

#[cfg(test)]
mod tests {
    use proptest::{prop_assert_eq, proptest};

    use super::*;
    use crate::base::intervals::{Text, parse};

    fn applied(text: &str, operation: impl Fn(IntervalMonthDayNano) -> Option<IntervalMonthDayNano>) -> String {
        operation(parse(text).unwrap()).map_or("out of range".into(), |interval| Text(interval).to_string())
    }

    #[test]
    fn intervals_are_scaled_as_in_postgresql() {
        for (text, factor, expected) in [
            ("1 month", 1.5, "1 mon 15 days"),
            ("1 day", 0.1, "02:24:00"),
            ("1 year 2 mons 3 days 04:05:06", 2.0, "2 years 4 mons 6 days 08:10:12"),
            ("-1 month", 0.5, "-15 days"),
            ("1 month", 0.33, "9 days 21:36:00"),
            ("1 day", 3.7, "3 days 16:48:00"),
            ("1 month", 1e10, "out of range"),
            ("1 hour", 1e10, "out of range"),
            ("1 hour", f64::NAN, "out of range"),
        ] {
            assert_eq!(applied(text, |i| scaled(floats(i).map(|part| part * factor))), expected, "{text} * {factor}");
        }
        assert_eq!(applied("1 month", |i| scaled(floats(i).map(|part| part / 2.0))), "15 days");
        assert_eq!(
            applied("41 mons 12 days 360:00", |i| scaled(floats(i).map(|part| part / 10.0))),
            "4 mons 4 days 40:48:00"
        );
    }

    #[test]
    fn intervals_are_justified() {
        for (text, days, hours, both) in [
            ("35 days", "1 mon 5 days", "35 days", "1 mon 5 days"),
            ("27 hours", "27:00:00", "1 day 03:00:00", "1 day 03:00:00"),
            ("1 mon -1 hour", "1 mon -01:00:00", "1 mon -01:00:00", "29 days 23:00:00"),
            ("2 months -35 days", "25 days", "2 mons -35 days", "25 days"),
            ("1 day -25 hours", "1 day -25:00:00", "-01:00:00", "-01:00:00"),
        ] {
            assert_eq!(applied(text, justified_days), days, "{text}");
            assert_eq!(applied(text, justified_hours), hours, "{text}");
            assert_eq!(applied(text, justified), both, "{text}");
        }
    }

    proptest! {
        #[test]
        fn keys_have_the_order_of_intervals(
            a: (i32, i32, i64),
            b: (i32, i32, i64),
        ) {
            let interval = |(months, days, nanoseconds)| IntervalMonthDayNano { months, days, nanoseconds };
            let (a, b) = (interval(a), interval(b));
            prop_assert_eq!(decoded(&encoded(a)), Some(a));
            if nanos(a) != nanos(b) {
                prop_assert_eq!(encoded(a) < encoded(b), nanos(a) < nanos(b));
            }
        }
    }
}

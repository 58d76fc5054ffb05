//! Formats values as text.

use std::fmt::Write;
use std::ops::Range;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, BooleanArray, Decimal128Array, FixedSizeBinaryArray, ListArray,
    PrimitiveArray, StringViewArray,
};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, IntervalMonthDayNanoType, Time64MicrosecondType, TimeUnit, TimestampMicrosecondType,
};

use crate::base::arrays;
use crate::base::calendar::date_from_days;
use crate::base::intervals::{self, INTERVAL};
use crate::base::uuids::{UUID_LEN, uuid_at};

const MICROS_PER_SECOND: i64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 86_400;
/// From here on, `ryu` may write floats with an exponent.
const RYU_MAX: f64 = 1e12;

/// A column as a source of formatted values.
pub(crate) enum Formatter<'a> {
    Boolean(&'a BooleanArray),
    Int8(&'a PrimitiveArray<Int8Type>),
    Int16(&'a PrimitiveArray<Int16Type>),
    Int32(&'a PrimitiveArray<Int32Type>),
    Int64(&'a PrimitiveArray<Int64Type>),
    Float32(&'a PrimitiveArray<Float32Type>),
    Float64(&'a PrimitiveArray<Float64Type>),
    Decimal(&'a Decimal128Array, u32),
    Text(&'a StringViewArray),
    Bytes(&'a BinaryViewArray),
    Date(&'a PrimitiveArray<Date32Type>),
    Timestamp { array: &'a PrimitiveArray<TimestampMicrosecondType>, utc: bool },
    Time(&'a PrimitiveArray<Time64MicrosecondType>),
    Uuid(&'a FixedSizeBinaryArray),
    Interval(&'a PrimitiveArray<IntervalMonthDayNanoType>),
    List(&'a ListArray, Box<Formatter<'a>>),
}

impl<'a> Formatter<'a> {
    /// A formatter of `array`; `None` if no table column has its type.
    pub fn new(array: &'a ArrayRef) -> Option<Self> {
        Some(match array.data_type() {
            DataType::Boolean => Formatter::Boolean(array.as_boolean()),
            DataType::Int8 => Formatter::Int8(array.as_primitive()),
            DataType::Int16 => Formatter::Int16(array.as_primitive()),
            DataType::Int32 => Formatter::Int32(array.as_primitive()),
            DataType::Int64 => Formatter::Int64(array.as_primitive()),
            DataType::Float32 => Formatter::Float32(array.as_primitive()),
            DataType::Float64 => Formatter::Float64(array.as_primitive()),
            DataType::Decimal128(_, scale @ 0..) => {
                Formatter::Decimal(array.as_primitive::<Decimal128Type>(), *scale as u32)
            }
            DataType::Utf8View => Formatter::Text(array.as_string_view()),
            DataType::BinaryView => Formatter::Bytes(array.as_binary_view()),
            DataType::Date32 => Formatter::Date(array.as_primitive()),
            DataType::Timestamp(TimeUnit::Microsecond, zone) => {
                Formatter::Timestamp { array: array.as_primitive(), utc: zone.is_some() }
            }
            DataType::Time64(TimeUnit::Microsecond) => Formatter::Time(array.as_primitive()),
            DataType::FixedSizeBinary(UUID_LEN) => Formatter::Uuid(array.as_fixed_size_binary()),
            &INTERVAL => Formatter::Interval(array.as_primitive()),
            DataType::List(_) => {
                let lists = array.as_list();
                Formatter::List(lists, Box::new(Formatter::new(lists.values())?))
            }
            _ => return None,
        })
    }

    /// Appends the value of row `row`, which must not be null.
    pub fn write(&self, row: usize, out: &mut String) {
        match self {
            Formatter::Boolean(array) => out.push_str(if array.value(row) { "true" } else { "false" }),
            Formatter::Int8(array) => integer(array, row, out),
            Formatter::Int16(array) => integer(array, row, out),
            Formatter::Int32(array) => integer(array, row, out),
            Formatter::Int64(array) => integer(array, row, out),
            Formatter::Float32(array) => float(f64::from(array.value(row)), array.value(row), out),
            Formatter::Float64(array) => float(array.value(row), array.value(row), out),
            Formatter::Decimal(array, scale) => decimal(array.value(row), *scale, out),
            Formatter::Text(array) => out.push_str(array.value(row)),
            Formatter::Bytes(array) => bytes(array.value(row), out),
            Formatter::Date(array) => date(i64::from(array.value(row)), "", out),
            Formatter::Timestamp { array, utc } => timestamp(array.value(row), *utc, out),
            Formatter::Time(array) => time(array.value(row), out),
            Formatter::Uuid(array) => put(out, format_args!("{}", uuid_at(array, row))),
            Formatter::Interval(array) => put(out, format_args!("{}", intervals::Text(array.value(row)))),
            Formatter::List(lists, elements) => list(lists, elements, row, out),
        }
    }

    /// True if every value of the column is a JSON number. Floats are excluded: infinity and NaN are not.
    pub fn is_number(&self) -> bool {
        use Formatter::{Decimal, Int8, Int16, Int32, Int64};
        matches!(self, Int8(_) | Int16(_) | Int32(_) | Int64(_) | Decimal(..))
    }
}

fn list(lists: &ListArray, elements: &Formatter<'_>, row: usize, out: &mut String) {
    let mut text = String::new();
    out.push('{');
    for (i, element) in elements_of(lists, row).enumerate() {
        if i > 0 {
            out.push(',');
        }
        if lists.values().is_null(element) {
            out.push_str("NULL");
            continue;
        }
        text.clear();
        elements.write(element, &mut text);
        arrays::put_element(&text, matches!(elements, Formatter::List(..)), out);
    }
    out.push('}');
}

/// The positions of the elements of a list.
pub(crate) fn elements_of(lists: &ListArray, row: usize) -> Range<usize> {
    let offsets = lists.value_offsets();
    offsets[row] as usize..offsets[row + 1] as usize
}

/// Appends formatted text. Writing to a string cannot fail.
fn put(out: &mut String, arguments: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(arguments);
}

fn integer<T: ArrowPrimitiveType>(array: &PrimitiveArray<T>, row: usize, out: &mut String)
where
    T::Native: itoa::Integer,
{
    out.push_str(itoa::Buffer::new().format(array.value(row)));
}

/// The fewest digits that identify the float; with an exponent below 1e-5 and from 1e15.
fn float<F: ryu::Float + std::fmt::Display + std::fmt::LowerExp>(value: f64, own: F, out: &mut String) {
    if value.is_nan() {
        out.push_str("NaN");
    } else if value.is_infinite() {
        out.push_str(if value > 0.0 { "Infinity" } else { "-Infinity" });
    } else if value != 0.0 && !(1e-5..1e15).contains(&value.abs()) {
        put(out, format_args!("{own:e}"));
    } else if (1e-5..RYU_MAX).contains(&value.abs()) {
        let mut buffer = ryu::Buffer::new();
        let digits = buffer.format_finite(own);
        out.push_str(digits.strip_suffix(".0").unwrap_or(digits));
    } else {
        put(out, format_args!("{own}"));
    }
}

fn decimal(value: i128, scale: u32, out: &mut String) {
    if scale == 0 {
        return put(out, format_args!("{value}"));
    }
    let sign = if value < 0 { "-" } else { "" };
    // The scale of a decimal is at most 38, and 10^38 fits into 128 bits.
    let unit = 10u128.pow(scale.min(38));
    let (whole, part) = (value.unsigned_abs() / unit, value.unsigned_abs() % unit);
    put(out, format_args!("{sign}{whole}.{part:0width$}", width = scale as usize));
}

fn bytes(value: &[u8], out: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.reserve(2 + 2 * value.len());
    out.push_str("\\x");
    for byte in value {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

/// Formats a date. `rest` is inserted before the suffix of years before 1.
fn date(days: i64, rest: &str, out: &mut String) {
    let (year, month, day) = date_from_days(days);
    let (year, era) = if year > 0 { (year, "") } else { (1 - year, " BC") };
    put(out, format_args!("{year:04}-{month:02}-{day:02}{rest}{era}"));
}

/// Formats a time of day.
fn time(micros: i64, out: &mut String) {
    let (second, fraction) = (micros.div_euclid(MICROS_PER_SECOND), micros.rem_euclid(MICROS_PER_SECOND));
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    put(out, format_args!("{hour:02}:{minute:02}:{second:02}"));
    if fraction != 0 {
        put(out, format_args!(".{fraction:06}"));
        out.truncate(out.trim_end_matches('0').len());
    }
}

fn timestamp(micros: i64, utc: bool, out: &mut String) {
    let seconds = micros.div_euclid(MICROS_PER_SECOND);
    let fraction = micros.rem_euclid(MICROS_PER_SECOND);
    let (days, second) = (seconds.div_euclid(SECONDS_PER_DAY), seconds.rem_euclid(SECONDS_PER_DAY));
    let mut rest = String::from(" ");
    time(second * MICROS_PER_SECOND + fraction, &mut rest);
    if utc {
        rest.push_str("+00");
    }
    date(days, &rest, out);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text_of<F: ryu::Float + std::fmt::Display + std::fmt::LowerExp + Into<f64>>(own: F) -> String {
        let mut out = String::new();
        float(own.into(), own, &mut out);
        out
    }

    /// Checks a text against that of the standard library, which needs three times as long. Of two shortest texts that are
    /// equally near, they may choose different ones.
    fn check<F>(own: F)
    where
        F: ryu::Float + std::fmt::Display + std::fmt::LowerExp + std::str::FromStr + PartialEq + Into<f64>,
    {
        let (value, text): (f64, _) = (own.into(), text_of(own));
        if !value.is_finite() {
            return;
        }
        let expected = match value == 0.0 || (1e-5..1e15).contains(&value.abs()) {
            true => own.to_string(),
            false => format!("{own:e}"),
        };
        assert_eq!(text.len(), expected.len(), "{text} instead of {expected}");
        assert!(text.parse::<F>().is_ok_and(|read| read == own), "{text} instead of {expected}");
        assert_eq!(text.contains('e'), expected.contains('e'), "{text} instead of {expected}");
    }

    #[test]
    fn floats_at_the_limits_of_notations() {
        let limits =
            [0.0f64, -0.0, 1.0, 100.0, 1e-5, 9.999e-6, 1e12, 1e13, 9_999_999_999_999.0, 1e15, 0.1, 1e-4, 1.5e14];
        for value in limits.iter().flat_map(|value| [*value, -value, value.next_up(), value.next_down()]) {
            check(value);
            check(value as f32);
        }
        assert_eq!([1.0, -0.0, 1e15, 0.00001].map(text_of::<f64>), ["1", "-0", "1e15", "0.00001"]);
        let others = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        assert_eq!(others.map(text_of), ["NaN", "Infinity", "-Infinity"]);
    }

    proptest! {
        #[test]
        fn floats_have_the_fewest_digits(value: f64, single: f32, exponent in -8i32..18, digits in 0u32..10_000) {
            for value in [value, f64::from(digits) * 10f64.powi(exponent)] {
                check(value);
            }
            for single in [single, digits as f32 * 10f32.powi(exponent)] {
                check(single);
            }
        }
    }
}

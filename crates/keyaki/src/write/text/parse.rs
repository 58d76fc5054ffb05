//! Parses values from text.

use std::str::FromStr;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryViewBuilder, BooleanBuilder, PrimitiveBuilder, StringViewArray};
use arrow::datatypes::{
    ArrowPrimitiveType, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNanoType, Time64MicrosecondType,
};
use keyaki_store::{ColumnType, ListType};

use crate::Error;
use crate::base::{arrays, intervals, uuids};
use crate::catalog::SqlType;
use crate::catalog::types::sql_type_name;
use crate::values::floats::Float;
use crate::values::zone::Zone;
use crate::values::{bytes, time, timestamps};

/// Number of decimal digits that always fit into an `i128`.
const DECIMAL_DIGITS_MAX: u32 = 38;

/// A text that is not a valid value of its column.
#[derive(Debug, Clone)]
pub(crate) struct BadValue {
    pub row: usize,
    pub error: Error,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Problem {
    Syntax,
    Range,
}

impl From<intervals::Problem> for Problem {
    fn from(problem: intervals::Problem) -> Self {
        match problem {
            intervals::Problem::Syntax => Problem::Syntax,
            intervals::Problem::Range => Problem::Range,
        }
    }
}

type Parsed<T> = Result<T, Problem>;

/// Parses a column of text to the Arrow type of `ty`. Nulls stay null. A TIMESTAMPTZ without an offset is a
/// local time of `zone`. The length limit of VARCHAR(n) is not checked.
pub(crate) fn parse_column(texts: &StringViewArray, ty: SqlType, zone: Zone) -> Result<ArrayRef, BadValue> {
    let values = match ty.column {
        ColumnType::List(list) => return parse_lists(texts, ty, list, zone),
        ColumnType::Date | ColumnType::Timestamp { .. } => return parse_times(texts, ty, zone),
        ColumnType::Text => Ok(Arc::new(texts.clone()) as ArrayRef),
        ColumnType::Boolean => booleans(texts),
        ColumnType::Bytes => byte_strings(texts),
        ColumnType::Int8 => numbers::<Int8Type>(texts, |text| narrow(integer(text)?)),
        ColumnType::Int16 => numbers::<Int16Type>(texts, |text| narrow(integer(text)?)),
        ColumnType::Int32 => numbers::<Int32Type>(texts, |text| narrow(integer(text)?)),
        ColumnType::Int64 => numbers::<Int64Type>(texts, integer),
        ColumnType::Float32 => numbers::<Float32Type>(texts, float),
        ColumnType::Float64 => numbers::<Float64Type>(texts, float),
        ColumnType::Decimal { precision, scale } => {
            let limit = 10i128.pow(u32::from(precision).min(DECIMAL_DIGITS_MAX));
            let scale = u32::try_from(scale).unwrap_or(0);
            numbers::<Decimal128Type>(texts, |text| decimal(text, scale, limit))
        }
        ColumnType::Time => numbers::<Time64MicrosecondType>(texts, |text| time::parse(text).ok_or(Problem::Syntax)),
        ColumnType::Uuid => parsed_uuids(texts),
        ColumnType::Interval => numbers::<IntervalMonthDayNanoType>(texts, |text| Ok(intervals::parse(text)?)),
    };
    match values {
        Ok(values) if *values.data_type() == ty.column.arrow() => Ok(values),
        // Builders do not set the parameters of decimal types.
        Ok(values) => values
            .to_data()
            .into_builder()
            .data_type(ty.column.arrow())
            .build()
            .map(arrow::array::make_array)
            .map_err(|error| BadValue { row: 0, error: error.into() }),
        Err((row, problem)) => Err(BadValue { row, error: describe(texts.value(row), ty, problem) }),
    }
}

/// Parses dates and timestamps, as casts do.
fn parse_times(texts: &StringViewArray, ty: SqlType, zone: Zone) -> Result<ArrayRef, BadValue> {
    let views: ArrayRef = Arc::new(texts.clone());
    let times = timestamps::of_texts(&views, &ty.column.arrow(), zone).map_err(|error| BadValue { row: 0, error })?;
    match (0..texts.len()).find(|row| times.is_null(*row) && texts.is_valid(*row)) {
        Some(row) => {
            let text = texts.value(row);
            Err(BadValue { row, error: describe(text, ty, timestamps::problem(text).into()) })
        }
        None => Ok(times),
    }
}

/// Parses the texts of arrays.
fn parse_lists(texts: &StringViewArray, ty: SqlType, list: ListType, zone: Zone) -> Result<ArrayRef, BadValue> {
    let (lists, malformed) = arrays::split(texts, list.element().is_list());
    if let Some(row) = malformed {
        return Err(BadValue { row, error: describe(texts.value(row), ty, Problem::Syntax) });
    }
    let element = SqlType { column: list.element(), ..ty };
    let elements = parse_column(lists.values().as_string_view(), element, zone).map_err(|bad| {
        let ends = &lists.value_offsets()[1..];
        BadValue { row: ends.partition_point(|end| *end as usize <= bad.row), ..bad }
    })?;
    Ok(Arc::new(arrays::with_elements(&lists, elements)))
}

fn describe(text: &str, ty: SqlType, problem: Problem) -> Error {
    let ty = sql_type_name(ty);
    match problem {
        Problem::Syntax => Error::invalid_text(ty, text, None),
        Problem::Range => Error::out_of_range(ty, text, None),
    }
}

fn numbers<T: ArrowPrimitiveType>(
    texts: &StringViewArray,
    parse: impl Fn(&str) -> Parsed<T::Native>,
) -> Result<ArrayRef, (usize, Problem)> {
    let mut builder = PrimitiveBuilder::<T>::with_capacity(texts.len());
    for (row, text) in texts.iter().enumerate() {
        match text {
            Some(text) => builder.append_value(parse(text).map_err(|problem| (row, problem))?),
            None => builder.append_null(),
        }
    }
    Ok(Arc::new(builder.finish()))
}

fn booleans(texts: &StringViewArray) -> Result<ArrayRef, (usize, Problem)> {
    let mut builder = BooleanBuilder::with_capacity(texts.len());
    for (row, text) in texts.iter().enumerate() {
        let value = text.map(|text| match text.trim_ascii().to_ascii_lowercase().as_str() {
            "t" | "true" | "y" | "yes" | "on" | "1" => Ok(true),
            "f" | "false" | "n" | "no" | "off" | "0" => Ok(false),
            _ => Err((row, Problem::Syntax)),
        });
        builder.append_option(value.transpose()?);
    }
    Ok(Arc::new(builder.finish()))
}

fn byte_strings(texts: &StringViewArray) -> Result<ArrayRef, (usize, Problem)> {
    let mut builder = BinaryViewBuilder::with_capacity(texts.len());
    for (row, text) in texts.iter().enumerate() {
        let value = text.map(|text| bytes::parse(text).ok_or((row, Problem::Syntax)));
        builder.append_option(value.transpose()?);
    }
    Ok(Arc::new(builder.finish()))
}

fn parsed_uuids(texts: &StringViewArray) -> Result<ArrayRef, (usize, Problem)> {
    let uuid = |(row, text): (usize, Option<&str>)| {
        text.map(|text| uuids::parse(text).ok_or((row, Problem::Syntax))).transpose()
    };
    let parsed = texts.iter().enumerate().map(uuid).collect::<Result<Vec<_>, _>>()?;
    Ok(Arc::new(uuids::array(parsed.into_iter())))
}

/// Parses an integer of 64 bits.
fn integer(text: &str) -> Parsed<i64> {
    let text = text.trim_ascii().as_bytes();
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Problem::Syntax);
    }
    let mut value = 0i64;
    for digit in digits {
        // Accumulates a negative number, because the minimum has no positive counterpart.
        value = value.checked_mul(10).and_then(|v| v.checked_sub(i64::from(digit - b'0'))).ok_or(Problem::Range)?;
    }
    if negative { Ok(value) } else { value.checked_neg().ok_or(Problem::Range) }
}

fn narrow<T: TryFrom<i64>>(value: i64) -> Parsed<T> {
    T::try_from(value).map_err(|_| Problem::Range)
}

fn float<F: Float + FromStr>(text: &str) -> Parsed<F> {
    let text = text.trim_ascii();
    crate::values::cast::parse(text).ok_or_else(|| match text.parse::<f64>() {
        Ok(_) => Problem::Range,
        Err(_) => Problem::Syntax,
    })
}

/// Parses a decimal number to its unscaled value with `scale` digits after the point, rounded half away from zero. The
/// absolute value must be below `limit`.
fn decimal(text: &str, scale: u32, limit: i128) -> Parsed<i128> {
    let text = text.trim_ascii();
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], text[at + 1..].parse::<i32>().map_err(|_| Problem::Syntax)?),
        None => (text, 0),
    };
    let (negative, mantissa) = match mantissa.as_bytes() {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let point = mantissa.iter().position(|&byte| byte == b'.').unwrap_or(mantissa.len());
    let (whole, part) = (&mantissa[..point], mantissa.get(point + 1..).unwrap_or_default());
    let digits = || whole.iter().chain(part);
    if whole.len() + part.len() == 0 || !digits().all(u8::is_ascii_digit) {
        return Err(Problem::Syntax);
    }
    // Number of leading digits that the result keeps; more than there are if zeros are appended.
    let kept = whole.len() as i64 + i64::from(exponent) + i64::from(scale);
    let mut value = 0i128;
    for (i, digit) in (0i64..).zip(digits()) {
        if i >= kept {
            if i == kept && *digit >= b'5' {
                value += 1;
            }
            break;
        }
        value = value.checked_mul(10).and_then(|v| v.checked_add(i128::from(digit - b'0'))).ok_or(Problem::Range)?;
    }
    let missing = kept - (whole.len() + part.len()) as i64;
    if missing > 0 && value != 0 {
        let power = u32::try_from(missing).ok().and_then(|missing| 10i128.checked_pow(missing));
        value = power.and_then(|power| value.checked_mul(power)).ok_or(Problem::Range)?;
    }
    if value >= limit { Err(Problem::Range) } else { Ok(if negative { -value } else { value }) }
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use proptest::prelude::*;

    use super::super::Formatter;
    use super::*;

    fn texts<'a>(values: impl IntoIterator<Item = Option<&'a str>>) -> StringViewArray {
        values.into_iter().collect()
    }

    fn sql(column: ColumnType) -> SqlType {
        SqlType::from(column)
    }

    fn parse_one(text: &str, column: ColumnType) -> Result<ArrayRef, String> {
        parse_column(&texts([Some(text)]), sql(column), Zone::UTC).map_err(|bad| bad.error.to_string())
    }

    /// Parses a text and formats the value.
    fn canonical(text: &str, column: ColumnType) -> String {
        let array = parse_one(text, column).unwrap_or_else(|message| panic!("{text}: {message}"));
        assert_eq!(*array.data_type(), column.arrow());
        let mut out = String::new();
        Formatter::new(&array).expect("a formatter").write(0, &mut out);
        out
    }

    fn refused(text: &str, column: ColumnType) -> bool {
        parse_one(text, column).is_err()
    }

    #[test]
    fn integers_have_exact_limits() {
        assert_eq!(canonical(" -128 ", ColumnType::Int8), "-128");
        assert_eq!(canonical("+127", ColumnType::Int8), "127");
        assert_eq!(canonical("-9223372036854775808", ColumnType::Int64), "-9223372036854775808");
        for text in ["128", "-129", "", "-", "1.0", "1e3", "0x1", "1 2", "99999999999999999999"] {
            assert!(refused(text, ColumnType::Int8), "{text:?}");
        }
        assert!(refused("9223372036854775808", ColumnType::Int64));
    }

    #[test]
    fn decimals_round_half_away_from_zero_and_keep_their_precision() {
        let money = ColumnType::Decimal { precision: 5, scale: 2 };
        for (text, expected) in [
            ("1", "1.00"),
            ("-0.005", "-0.01"),
            ("0.0049", "0.00"),
            ("999.994", "999.99"),
            (".5", "0.50"),
            ("5.", "5.00"),
            ("1.5e2", "150.00"),
            ("15e-1", "1.50"),
            ("123456e-9", "0.00"),
            ("0e99", "0.00"),
            ("-1e-999999", "0.00"),
        ] {
            assert_eq!(canonical(text, money), expected, "{text}");
        }
        for text in ["1000", "999.995", "", ".", "1.2.3", "e5", "1e", "NaN", "1e99999", "99999999999999999999999999999"]
        {
            assert!(refused(text, money), "{text:?}");
        }
        let largest = "9".repeat(38);
        assert_eq!(canonical(&largest, ColumnType::Decimal { precision: 38, scale: 0 }), largest);
        assert!(refused(&(largest + "9"), ColumnType::Decimal { precision: 38, scale: 0 }));
    }

    #[test]
    fn floats_give_infinity_only_for_its_name() {
        assert_eq!(canonical("-infinity", ColumnType::Float64), "-Infinity");
        assert_eq!(canonical("nan", ColumnType::Float32), "NaN");
        assert!(refused("1e400", ColumnType::Float64));
        assert!(refused("1e39", ColumnType::Float32));
        assert!(refused("", ColumnType::Float32));
        assert!(refused("1,5", ColumnType::Float64));
        assert!(refused("1e-400", ColumnType::Float64));
        // There is one zero.
        assert_eq!(canonical("-0.0", ColumnType::Float64), "0");
    }

    #[test]
    fn dates_and_timestamps() {
        let (date, local, utc) =
            (ColumnType::Date, ColumnType::Timestamp { utc: false }, ColumnType::Timestamp { utc: true });
        assert_eq!(canonical("1998-9-2", date), "1998-09-02");
        assert_eq!(canonical("2020-01-01 00:00:00", date), "2020-01-01");
        assert_eq!(canonical("0044-03-15 BC", date), "0044-03-15 BC");
        assert_eq!(canonical("-0043-03-15", date), "0044-03-15 BC");
        assert_eq!(canonical("2024-02-29T12:30:45.1234567Z", local), "2024-02-29 12:30:45.123457");
        assert_eq!(canonical("2024-02-29 12:30:45.1234565", local), "2024-02-29 12:30:45.123456");
        assert_eq!(canonical("2023-01-01 10:00:00+02", local), "2023-01-01 10:00:00");
        assert_eq!(canonical("2023/1/1 10:00 Europe/Berlin", local), "2023-01-01 10:00:00");
        assert_eq!(canonical("2023/1/1 10:00 Europe/Berlin", utc), "2023-01-01 09:00:00+00");
        assert_eq!(canonical("0044-03-15 10:00 BC", local), "0044-03-15 10:00:00 BC");
        assert_eq!(canonical("2023-01-01 01:00:00", date), "2023-01-01");
        assert_eq!(canonical("2024-02-29 23:59:60", local), "2024-03-01 00:00:00");
        assert_eq!(canonical("2024-02-29 24:00", local), "2024-03-01 00:00:00");
        assert_eq!(canonical("2024-01-01 00:00:00+05:30", utc), "2023-12-31 18:30:00+00");
        assert_eq!(canonical("2024-01-01 00:00:00-0130", utc), "2024-01-01 01:30:00+00");
        for text in ["2023-02-29", "2023-13-01", "23-01-01", "2023-01-01x", "", "9999999-01-01"] {
            assert!(refused(text, date), "{text:?}");
        }
        for text in ["2023-01-01 25:00:00", "2023-01-01 1", "2023-01-01 10:61", "300000-01-01"] {
            assert!(refused(text, local), "{text:?}");
        }
    }

    #[test]
    fn bytes_and_booleans() {
        for text in ["\\x00ff", "\\x"] {
            assert_eq!(canonical(text, ColumnType::Bytes), text);
        }
        assert_eq!(canonical("a\\\\b\\001", ColumnType::Bytes), "\\x615c6201");
        assert_eq!(canonical("\\xAA\\xbb", ColumnType::Bytes), "\\xaabb");
        assert!(refused("\\q", ColumnType::Bytes));
        assert!(refused("\\x0", ColumnType::Bytes));
        assert_eq!(canonical(" YES", ColumnType::Boolean), "true");
        assert!(refused("maybe", ColumnType::Boolean));
    }

    #[test]
    fn times_and_uuids() {
        assert_eq!(canonical("4:05:06.5000", ColumnType::Time), "04:05:06.5");
        assert_eq!(canonical("04:05 PM", ColumnType::Time), "16:05:00");
        assert!(refused("24:00", ColumnType::Time));
        let uuid = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11";
        assert_eq!(canonical("{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}", ColumnType::Uuid), uuid);
        assert!(refused("a0eebc99", ColumnType::Uuid));
        assert_eq!(canonical("14 months 1:30", ColumnType::Interval), "1 year 2 mons 01:30:00");
        assert!(refused("soon", ColumnType::Interval));
    }

    #[test]
    fn messages_name_row_value_and_type() {
        let column = texts([Some("1"), None, Some("x")]);
        let bad = parse_column(&column, sql(ColumnType::Int32), Zone::UTC).expect_err("x is no number");
        assert_eq!((bad.row, bad.error.to_string().as_str()), (2, "invalid input syntax for type integer: \"x\""));
        let bad = parse_column(&texts([Some("70000")]), sql(ColumnType::Int16), Zone::UTC).expect_err("too large");
        assert_eq!(bad.error.to_string(), "value \"70000\" is out of range for type smallint");
        let long = parse_one(&"é".repeat(1000), ColumnType::Date).expect_err("no date");
        assert!(long.chars().count() < 100);
    }

    proptest! {
        #[test]
        fn formatted_values_parse_to_the_same_values(
            int in any::<i64>(), float in any::<f64>(), single in any::<f32>(), days in any::<i32>(),
            micros in any::<i64>(), digits in -(10i128.pow(38) - 1)..10i128.pow(38), scale in 0i8..=38,
            raw in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            use arrow::array::{BinaryViewArray, Date32Array, Decimal128Array, Float32Array, Float64Array, Int64Array,
                TimestampMicrosecondArray};
            let decimal = Decimal128Array::from(vec![digits]).with_precision_and_scale(38, scale).expect("a decimal");
            let columns: Vec<(ArrayRef, ColumnType)> = vec![
                (Arc::new(Int64Array::from(vec![int])), ColumnType::Int64),
                (Arc::new(Float64Array::from(vec![float])), ColumnType::Float64),
                (Arc::new(Float32Array::from(vec![single])), ColumnType::Float32),
                (Arc::new(Date32Array::from(vec![days])), ColumnType::Date),
                (Arc::new(TimestampMicrosecondArray::from(vec![micros])), ColumnType::Timestamp { utc: false }),
                (Arc::new(TimestampMicrosecondArray::from(vec![micros]).with_timezone("+00:00")),
                    ColumnType::Timestamp { utc: true }),
                (Arc::new(decimal), ColumnType::Decimal { precision: 38, scale }),
                (Arc::new(BinaryViewArray::from_iter_values([&raw])), ColumnType::Bytes),
            ];
            for (array, column) in columns {
                let mut text = String::new();
                Formatter::new(&array).expect("a formatter").write(0, &mut text);
                let again = parse_one(&text, column).map_err(TestCaseError::fail)?;
                if let (Some(a), Some(b)) = (array.as_primitive_opt::<Float64Type>(), again.as_primitive_opt::<Float64Type>())
                    && a.value(0).is_nan()
                {
                    prop_assert!(b.value(0).is_nan());
                } else if array.as_primitive_opt::<Float32Type>().is_some_and(|a| a.value(0).is_nan()) {
                    prop_assert_eq!(text, "NaN");
                } else {
                    // There is one zero.
                    let expected = crate::values::floats::canonical(&array);
                    prop_assert_eq!(&expected, &again, "{}", text);
                }
            }
        }
    }
}

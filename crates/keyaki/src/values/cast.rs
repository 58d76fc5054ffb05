//! Conversions between types, for casts, assignments and parameters alike.
//!
//! Arrow converts most types. This module adds the rules of PostgreSQL where Arrow has others:
//!
//! | conversion | rule |
//! |---|---|
//! | decimal to integer | rounds half away from zero |
//! | float to integer | rounds half to even |
//! | text to float, double to real | an error if the value becomes infinite, or zero |
//! | text to BYTEA, UUID, TIME, INTERVAL | PostgreSQL's formats ([`super::bytes`], [`uuids`], [`super::time`], [`intervals`]) |
//! | INTERVAL to text | PostgreSQL's default style |
//! | arrays from and to arrays | element by element |
//! | arrays from and to text | `{1,2,NULL}`; `[1, 2, NULL]` is also read ([`arrays`]) |
//! | any to float | canonical ([`super::floats`]) |
//! | text to DATE and TIMESTAMP | PostgreSQL's formats ([`crate::base::times`]) |
//! | text with a time zone to TIMESTAMP | the local time |
//! | TIMESTAMP to TIMESTAMP(0) and (3) | rounded ([`super::timestamps`]) |
//! | text to DECIMAL | also with an exponent |
//! | BYTEA to text | `\x` and hexadecimal digits |
//! | TIMESTAMP and TIME to text | a space between date and time, no zeros at the end of fractions |
//! | TIMESTAMPTZ to and from text, DATE and TIMESTAMP | in the time zone of the session |
//!
//! A value that does not fit is an error, or null for TRY_CAST.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryViewArray, PrimitiveArray, StringViewArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal128Type, Float32Type, Float64Type, IntervalMonthDayNanoType,
    Time64MicrosecondType, TimeUnit,
};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::floats::{self, Float};
use super::zone::{Zone, is_instant, labelled};
use super::{bytes, time, timestamps};
use crate::base::arrays;
use crate::base::intervals::{self, INTERVAL, is_interval};
use crate::base::type_name;
use crate::base::uuids::{self, is_uuid};
use crate::{Error, Result};

/// Arrow's casts return null for values that do not fit.
const CAST: CastOptions<'static> = CastOptions { safe: true, format_options: FormatOptions::new() };

/// True if the conversion differs from Arrow's.
pub(crate) fn is_own(from: &DataType, to: &DataType, zone: Zone) -> bool {
    match (from, to) {
        (DataType::Dictionary(_, from), to) => is_own(from, to, zone),
        (from, to) if arrays::is_list(from) || arrays::is_list(to) => from != to && *from != DataType::Null,
        (from, to) if to.is_integer() => from.is_floating() || from.is_decimal(),
        (from, DataType::Float32) => is_text(from) || *from == DataType::Float64,
        (from, DataType::Float64) => is_text(from),
        (from, to) if is_uuid(to) => is_text(from) || is_binary(from),
        (from, to) if is_uuid(from) => is_text(to),
        (from, to) if is_binary(to) => is_text(from),
        (from, DataType::Time64(TimeUnit::Microsecond)) if is_text(from) => true,
        (from, to) if is_shortened(from, to) => true,
        (from, to) if is_text(from) && (is_calendar(to) || matches!(to, DataType::Decimal128(..))) => true,
        (from, to) if is_text(to) && (is_clock(from) || is_binary(from)) => true,
        (from, &INTERVAL) => is_text(from) || is_interval(from) && *from != INTERVAL,
        (from, to) if is_interval(from) => is_text(to),
        (from, to) if is_instant(from) != is_instant(to) => {
            let (other, local) = if is_instant(from) { (to, from) } else { (from, to) };
            let is_calendar = is_text(other) || is_local(other);
            !zone.is_utc() && is_calendar && is_instant(local)
        }
        _ => false,
    }
}

/// Converts all values.
///
/// # Errors
/// `InvalidText` or `OutOfRange` with the first value that does not fit; `CannotCast` if the types have no cast.
pub(crate) fn cast(values: &ArrayRef, to: &DataType, zone: Zone) -> Result<ArrayRef> {
    if let Some(lists) = cast_lists(values, to, zone, false)? {
        return Ok(lists);
    }
    let converted = try_cast(values, to, zone)?;
    match converted.null_count() > values.logical_null_count() {
        true => Err(unfit(values, &converted, to)?),
        false => Ok(converted),
    }
}

/// Converts all values; null for values that do not fit.
///
/// # Errors
/// `CannotCast` if the types have no cast.
pub(crate) fn try_cast(values: &ArrayRef, to: &DataType, zone: Zone) -> Result<ArrayRef> {
    let from = values.data_type();
    if from == to {
        return Ok(floats::canonical(values));
    }
    if let Some(lists) = cast_lists(values, to, zone, true)? {
        return Ok(lists);
    }
    if is_text(from) && is_calendar(to) {
        return timestamps::of_texts(&arrow(values, &DataType::Utf8View)?, to, zone);
    }
    if let DataType::Timestamp(_, label) = to
        && is_shortened(from, to)
    {
        let micros = try_cast(values, &DataType::Timestamp(TimeUnit::Microsecond, label.clone()), zone)?;
        return timestamps::round(&micros, to);
    }
    Ok(match (from, to) {
        (DataType::Dictionary(_, inner), _) => try_cast(&arrow(values, inner)?, to, zone)?,
        (from, to) if from.is_floating() && to.is_integer() => arrow(&rounded(values)?, to)?,
        (DataType::Decimal256(..), to) if to.is_integer() => arrow(&arrow(values, &DataType::Decimal256(76, 0))?, to)?,
        (from, to) if from.is_decimal() && to.is_integer() => {
            arrow(&arrow(values, &DataType::Decimal128(38, 0))?, to)? //
        }
        (from, to @ DataType::Decimal128(..)) if is_text(from) => decimals(&arrow(values, &DataType::Utf8View)?, to)?,
        (from, DataType::Float32) if is_text(from) => parsed::<Float32Type>(values)?,
        (from, DataType::Float64) if is_text(from) => parsed::<Float64Type>(values)?,
        (from, to) if is_text(from) && is_binary(to) => {
            let texts = arrow(values, &DataType::Utf8View)?;
            let bytes = texts.as_string_view().iter().map(|text| text.and_then(bytes::parse));
            arrow(&(Arc::new(bytes.collect::<BinaryViewArray>()) as ArrayRef), to)?
        }
        (from, to) if is_uuid(to) && is_text(from) => {
            let texts = arrow(values, &DataType::Utf8View)?;
            Arc::new(uuids::array(texts.as_string_view().iter().map(|text| text.and_then(uuids::parse))))
        }
        (from, to) if is_uuid(to) && is_binary(from) => {
            let bytes = arrow(values, &DataType::BinaryView)?;
            let uuid = |bytes: Option<&[u8]>| bytes.and_then(|bytes| uuid::Uuid::from_slice(bytes).ok());
            Arc::new(uuids::array(bytes.as_binary_view().iter().map(uuid)))
        }
        (from, to) if is_uuid(from) && is_text(to) => {
            arrow(&(Arc::new(uuids::texts(values.as_fixed_size_binary())) as ArrayRef), to)?
        }
        (from, DataType::Time64(TimeUnit::Microsecond)) if is_text(from) => {
            let texts = arrow(values, &DataType::Utf8View)?;
            let times = texts.as_string_view().iter().map(|text| text.and_then(time::parse));
            Arc::new(times.collect::<PrimitiveArray<Time64MicrosecondType>>())
        }
        (from, &INTERVAL) if is_text(from) => {
            let texts = arrow(values, &DataType::Utf8View)?;
            let intervals = texts.as_string_view().iter().map(|text| text.and_then(|text| intervals::parse(text).ok()));
            Arc::new(intervals.collect::<PrimitiveArray<IntervalMonthDayNanoType>>())
        }
        (from, to) if is_interval(from) && (is_text(to) || *to == INTERVAL) => {
            let converted = intervals::intervals(values).ok_or_else(|| no_cast(from, to))?;
            match is_text(to) {
                true => arrow(&(Arc::new(intervals::texts(&converted)) as ArrayRef), to)?,
                false => Arc::new(converted),
            }
        }
        (DataType::Float64, DataType::Float32) => Arc::new(narrowed(values.as_primitive())),
        (_, DataType::Float32 | DataType::Float64) => floats::canonical(&arrow(values, to)?),
        (from, DataType::Timestamp(unit, Some(_))) if !zone.is_utc() && is_local(from) => {
            let locals = arrow(values, &DataType::Timestamp(*unit, None))?;
            arrow(&zone.to_instants(&locals)?, to)?
        }
        (from, to) if !zone.is_utc() && is_instant(from) && is_local(to) => arrow(&zone.to_local(values)?, to)?,
        (from, to) if is_text(to) && is_binary(from) => {
            let bytes = arrow(values, &DataType::BinaryView)?;
            let texts: StringViewArray = bytes.as_binary_view().iter().map(|bytes| bytes.map(bytes::text)).collect();
            arrow(&(Arc::new(texts) as ArrayRef), to)?
        }
        (from, to) if is_text(to) && is_clock(from) => {
            let labelled = if is_instant(from) { labelled(values, &zone.to_string()) } else { values.clone() };
            let texts = arrow(&labelled, &DataType::Utf8View)?;
            let texts: StringViewArray = texts.as_string_view().iter().map(|text| text.map(shown_time)).collect();
            arrow(&(Arc::new(texts) as ArrayRef), to)?
        }
        _ => arrow(values, to)?,
    })
}

/// Decimals from texts, also from those with an exponent, which Arrow does not read.
fn decimals(texts: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    if let Some(decimals) = short_decimals(texts.as_string_view(), to) {
        return Ok(decimals);
    }
    let plain = arrow(texts, to)?;
    if plain.null_count() == texts.null_count() {
        return Ok(plain);
    }
    let plain = |text: &str| plain_decimal(text).unwrap_or_else(|| text.to_string());
    let texts: StringViewArray = texts.as_string_view().iter().map(|text| text.map(plain)).collect();
    arrow(&(Arc::new(texts) as ArrayRef), to)
}

/// Decimals from texts that [`short_decimal`] reads all; `None` otherwise, and if one is too large. Arrow reads each text as a
/// number of 256 bits.
fn short_decimals(texts: &StringViewArray, to: &DataType) -> Option<ArrayRef> {
    let &DataType::Decimal128(precision, scale) = to else { return None };
    let end = 10_i128.checked_pow(precision.into())?;
    let places = usize::try_from(scale).ok()?;
    let value = |text: Option<&str>| match text {
        None => Some(0),
        Some(text) => short_decimal(text, places).filter(|value| (1 - end..end).contains(value)),
    };
    let values = texts.iter().map(value).collect::<Option<Vec<_>>>()?;
    let decimals = PrimitiveArray::<Decimal128Type>::new(values.into(), texts.nulls().cloned());
    Some(Arc::new(decimals.with_precision_and_scale(precision, scale).ok()?))
}

/// A number of at most 18 digits, with a sign or without and at most `places` digits behind a point, in units of `places` digits;
/// `None` for other texts.
fn short_decimal(text: &str, places: usize) -> Option<i128> {
    const DIGITS_MAX: usize = 18;
    const POWERS: [i64; DIGITS_MAX + 1] = {
        let mut powers = [1; DIGITS_MAX + 1];
        let mut exponent = 1;
        while exponent <= DIGITS_MAX {
            powers[exponent] = 10 * powers[exponent - 1];
            exponent += 1;
        }
        powers
    };
    let (sign, digits) = match text.as_bytes() {
        [b'-', digits @ ..] => (-1, digits),
        [b'+', digits @ ..] | digits => (1, digits),
    };
    let point = digits.iter().position(|byte| *byte == b'.').unwrap_or(digits.len());
    let (whole, fraction) = (&digits[..point], digits.get(point + 1..));
    if whole.is_empty() || fraction.is_some_and(<[u8]>::is_empty) {
        return None;
    }
    let fraction = fraction.unwrap_or_default();
    if whole.len() + fraction.len() > DIGITS_MAX {
        return None;
    }
    let mut value = 0_i64;
    for byte in whole.iter().chain(fraction) {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = 10 * value + i64::from(digit);
    }
    let power = *POWERS.get(places.checked_sub(fraction.len())?)?;
    Some(sign * i128::from(value) * i128::from(power))
}

/// The text of a number without an exponent; `None` for other texts, and for numbers of more than 76 digits.
pub(crate) fn plain_decimal(text: &str) -> Option<String> {
    const DIGITS_MAX: i64 = 76;
    let text = text.trim_ascii();
    let (mantissa, exponent) = text.split_once(['e', 'E'])?;
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(mantissa) => ("-", mantissa),
        None => ("", mantissa.strip_prefix('+').unwrap_or(mantissa)),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Number of digits behind the point.
    let places = (fraction.len() as i64).checked_sub(exponent.parse().ok()?)?;
    if !(-DIGITS_MAX..=DIGITS_MAX).contains(&places) {
        return None;
    }
    Some(match usize::try_from(places) {
        Ok(places) => {
            let digits = format!("{digits:0>width$}", width = places + 1);
            let (whole, fraction) = digits.split_at(digits.len() - places);
            if fraction.is_empty() { format!("{sign}{whole}") } else { format!("{sign}{whole}.{fraction}") }
        }
        Err(_) => format!("{sign}{digits}{}", "0".repeat(places.unsigned_abs() as usize)),
    })
}

/// A time in PostgreSQL's form, for one in Arrow's: `2024-01-01 10:00:00.5+01` for `2024-01-01T10:00:00.500+01:00`.
fn shown_time(text: &str) -> String {
    let (date, time) = text.split_once('T').unwrap_or(("", text));
    let (time, offset) = match time.find(['Z', '+', '-']) {
        Some(at) => time.split_at(at),
        None => (time, ""),
    };
    let time = if time.contains('.') { time.trim_end_matches('0').trim_end_matches('.') } else { time };
    let offset = if offset == "Z" { "+00" } else { offset.strip_suffix(":00").unwrap_or(offset) };
    let space = if date.is_empty() { "" } else { " " };
    format!("{date}{space}{time}{offset}")
}

/// True for dates and timestamps.
fn is_calendar(ty: &DataType) -> bool {
    matches!(ty, DataType::Timestamp(..) | DataType::Date32)
}

/// True for timestamps that lose digits.
fn is_shortened(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::Timestamp(from, _), DataType::Timestamp(to, _)) => {
            from > to && matches!(to, TimeUnit::Second | TimeUnit::Millisecond)
        }
        _ => false,
    }
}

/// True for times and timestamps.
fn is_clock(ty: &DataType) -> bool {
    matches!(ty, DataType::Timestamp(..) | DataType::Time32(_) | DataType::Time64(_))
}

/// Conversions of and to arrays, element by element; `None` for other types. With `is_try`, elements that do not fit
/// become null, as do texts that are not arrays.
///
/// # Errors
/// As [`cast`]; `InvalidText` for a text that is not an array.
fn cast_lists(values: &ArrayRef, to: &DataType, zone: Zone, is_try: bool) -> Result<Option<ArrayRef>> {
    let cast = if is_try { try_cast } else { cast };
    let from = values.data_type();
    let to_list = matches!(to, DataType::List(_));
    if let DataType::Dictionary(_, inner) = from
        && (to_list || arrays::is_list(inner))
    {
        return cast_lists(&arrow(values, inner)?, to, zone, is_try);
    }
    if from == to || *from == DataType::Null || !(to_list || arrays::is_list(from)) {
        return Ok(None);
    }
    let Some(lists) = arrays::lists(values)? else {
        // From text, or another type.
        let element = arrays::element_type(to).filter(|_| is_text(from)).ok_or_else(|| no_cast(from, to))?;
        let texts = arrow(values, &DataType::Utf8View)?;
        let (lists, malformed) = arrays::split(texts.as_string_view(), arrays::is_list(element));
        if let Some(row) = malformed
            && !is_try
        {
            return Err(Error::invalid_text(type_name(to), texts.as_string_view().value(row), None));
        }
        let elements = cast(lists.values(), element, zone)?;
        return Ok(Some(Arc::new(arrays::with_elements(&lists, elements))));
    };
    if is_text(to) {
        let elements = cast(lists.values(), &DataType::Utf8View, zone)?;
        let texts = arrays::texts(&lists, elements.as_string_view(), arrays::is_list(lists.values().data_type()));
        return Ok(Some(arrow(&(Arc::new(texts) as ArrayRef), to)?));
    }
    let element = arrays::element_type(to).ok_or_else(|| no_cast(from, to))?;
    let converted: ArrayRef = Arc::new(arrays::with_elements(&lists, cast(lists.values(), element, zone)?));
    // The names of elements may differ, and lists may have a fixed size.
    Ok(Some(if converted.data_type() == to { converted } else { arrow(&converted, to)? }))
}

pub(super) fn arrow(values: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    cast_with_options(values, to, &CAST).map_err(|_| no_cast(values.data_type(), to))
}

fn no_cast(from: &DataType, to: &DataType) -> Error {
    Error::CannotCast { from: type_name(from), to: type_name(to) }
}

fn is_text(ty: &DataType) -> bool {
    matches!(ty, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn is_binary(ty: &DataType) -> bool {
    matches!(ty, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

/// True for dates, times of day, and timestamps without time zone.
fn is_local(ty: &DataType) -> bool {
    use DataType as T;
    matches!(ty, T::Date32 | T::Date64 | T::Time32(_) | T::Time64(_) | T::Timestamp(_, None))
}

/// Rounds floats to integers, half to even.
fn rounded(values: &ArrayRef) -> Result<ArrayRef> {
    if let Some(floats) = values.as_primitive_opt::<Float32Type>() {
        return Ok(Arc::new(floats.unary::<_, Float32Type>(f32::round_ties_even)));
    }
    let floats = arrow(values, &DataType::Float64)?;
    Ok(Arc::new(floats.as_primitive::<Float64Type>().unary::<_, Float64Type>(f64::round_ties_even)))
}

/// REAL from DOUBLE PRECISION.
fn narrowed(values: &PrimitiveArray<Float64Type>) -> PrimitiveArray<Float32Type> {
    values.unary_opt(|value| {
        let narrow = value as f32;
        let is_lost = narrow.is_infinite() && value.is_finite() || narrow == 0.0 && value != 0.0;
        (!is_lost).then(|| narrow.canonical())
    })
}

fn parsed<T: ArrowPrimitiveType>(values: &ArrayRef) -> Result<ArrayRef>
where
    T::Native: Float + std::str::FromStr,
{
    let texts = arrow(values, &DataType::Utf8View)?;
    let texts: &StringViewArray = texts.as_string_view();
    let floats: PrimitiveArray<T> = texts.iter().map(|text| text.and_then(parse)).collect();
    Ok(Arc::new(floats))
}

/// Parses a float; `None` if the text is not a number, or if the number is out of range.
pub(crate) fn parse<F: Float + std::str::FromStr>(text: &str) -> Option<F> {
    let text = text.trim_ascii();
    let value = text.parse::<F>().ok()?;
    let digits = text.trim_start_matches(['+', '-']);
    if digits.starts_with(|c: char| c.is_ascii_alphabetic()) {
        // The words for infinity and NaN.
        return Some(value.canonical());
    }
    let mantissa = digits.split(['e', 'E']).next().unwrap_or_default();
    let is_zero = !mantissa.bytes().any(|byte| matches!(byte, b'1'..=b'9'));
    let is_lost = value.is_infinite() || value.is_zero() && !is_zero;
    (!is_lost).then(|| value.canonical())
}

/// The error for the first value that the conversion changed to null.
fn unfit(before: &ArrayRef, after: &ArrayRef, to: &DataType) -> Result<Error> {
    let nulls = before.logical_nulls();
    let is_lost = |row: &usize| after.is_null(*row) && nulls.as_ref().is_none_or(|nulls| nulls.is_valid(*row));
    let row = (0..after.len()).find(is_lost).unwrap_or_default();
    let text = ArrayFormatter::try_new(before, &FormatOptions::new())?.value(row).to_string();
    let ty = type_name(to);
    let is_out_of_range = match to {
        _ if !is_text(before.data_type()) => true,
        &INTERVAL => intervals::parse(&text) == Err(intervals::Problem::Range),
        DataType::Date32 | DataType::Timestamp(..) => timestamps::problem(&text) == intervals::Problem::Range,
        _ => false,
    };
    Ok(match is_out_of_range {
        true => Error::out_of_range(ty, &text, None),
        false => Error::unfit_text(ty, &text, None),
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        Decimal128Array, Float32Array, Float64Array, Int16Array, Int64Array, TimestampMicrosecondArray,
    };
    use arrow::datatypes::{Int64Type, TimeUnit};
    use proptest::prelude::*;

    use super::*;
    use crate::values::zone::STORED;

    fn to(values: impl Array + 'static, ty: &DataType) -> Result<ArrayRef> {
        cast(&(Arc::new(values) as ArrayRef), ty, Zone::UTC)
    }

    fn decimal(values: Vec<i128>, scale: i8) -> Decimal128Array {
        Decimal128Array::from(values).with_precision_and_scale(38, scale).unwrap()
    }

    proptest! {
        #[test]
        fn decimals_round_half_away_from_zero(value in -10_i128.pow(20)..10_i128.pow(20), scale in 0_i8..10) {
            let unit = 10_i128.pow(scale as u32);
            let expected = (value.abs() + unit / 2) / unit * value.signum();
            match (to(decimal(vec![value], scale), &DataType::Int64), i64::try_from(expected)) {
                (Ok(actual), Ok(expected)) => prop_assert_eq!(actual.as_primitive::<Int64Type>().value(0), expected),
                (Err(error), Err(_)) => prop_assert_eq!(error.sqlstate().code(), "22003"),
                (actual, expected) => prop_assert!(false, "{:?} instead of {:?}", actual, expected),
            }
            // A lower scale rounds alike.
            let lower = to(decimal(vec![value], scale), &DataType::Decimal128(38, 0)).unwrap();
            prop_assert_eq!(lower.as_primitive::<arrow::datatypes::Decimal128Type>().value(0), expected);
        }

        #[test]
        fn short_decimals_are_those_of_arrow(text in "[+-]?[0-9]{0,19}(\\.[0-9]{0,6})?", precision in 1_u8..39, scale in 0_i8..5) {
            let ty = DataType::Decimal128(precision.max(scale as u8), scale);
            let texts = StringViewArray::from_iter_values([&text]);
            if let Some(own) = short_decimals(&texts, &ty) {
                let arrow = arrow(&(Arc::new(texts) as ArrayRef), &ty).unwrap();
                prop_assert_eq!(&own, &arrow);
            } else {
                let read = short_decimal(&text, scale as usize);
                prop_assert!(read.is_none_or(|value| value.to_string().trim_start_matches('-').len() > precision.into()));
            }
        }

        #[test]
        fn floats_round_half_to_even(half in -1_000_000_i64..1_000_000, value in -1e19_f64..1e19) {
            let ties = half as f64 / 2.0;
            let expected = if half % 2 == 0 { half / 2 } else { let low = half.div_euclid(2); low + low.rem_euclid(2) };
            let actual = to(Float64Array::from(vec![ties]), &DataType::Int64).unwrap();
            prop_assert_eq!(actual.as_primitive::<Int64Type>().value(0), expected);
            let fits = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&value.round_ties_even());
            prop_assert_eq!(to(Float64Array::from(vec![value]), &DataType::Int64).is_ok(), fits);
        }

        #[test]
        fn printed_floats_are_parsed_exactly(bits in any::<u64>()) {
            let value = Float::canonical(f64::from_bits(bits));
            let parsed = parse::<f64>(&value.to_string()).unwrap();
            prop_assert_eq!(parsed.to_bits(), value.to_bits());
        }
    }

    #[test]
    fn values_that_do_not_fit_are_named() {
        let message = |result: Result<ArrayRef>| result.unwrap_err().to_string();
        assert_eq!(
            message(to(Float64Array::from(vec![1.0, 32767.5]), &DataType::Int16)),
            "value \"32767.5\" is out of range for type smallint"
        );
        assert_eq!(
            message(to(decimal(vec![21_474_836_475], 1), &DataType::Int32)),
            "value \"2147483647.5\" is out of range for type integer"
        );
        assert!(message(to(Float64Array::from(vec![f64::NAN]), &DataType::Int64)).contains("NaN"));
        for text in ["1e400", "-1e400", "1e-400"] {
            let error = to(StringViewArray::from(vec![text]), &DataType::Float64).unwrap_err();
            let expected = format!("value \"{text}\" is out of range for type double precision");
            assert_eq!((error.to_string(), error.sqlstate().code()), (expected, "22003"));
        }
        let error = to(StringViewArray::from(vec!["2.5"]), &DataType::Int32).unwrap_err();
        assert_eq!(error.to_string(), "invalid input syntax for type integer: \"2.5\"");
        assert!(to(Float64Array::from(vec![1e39]), &DataType::Float32).is_err());
        assert!(to(Float64Array::from(vec![1e-60]), &DataType::Float32).is_err());
    }

    #[test]
    fn try_cast_gives_null() {
        let values: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.5), Some(1e9), None]));
        let converted = try_cast(&values, &DataType::Int16, Zone::UTC).unwrap();
        assert_eq!(converted.as_ref(), &Int16Array::from(vec![Some(2), None, None]) as &dyn Array);
    }

    #[test]
    fn floats_become_canonical() {
        let zero = to(StringViewArray::from(vec!["-0", "NaN", " -Infinity "]), &DataType::Float64).unwrap();
        let zero = zero.as_primitive::<Float64Type>();
        assert_eq!(zero.value(0).to_bits(), 0);
        assert_eq!(zero.value(1).to_bits(), f64::NAN.to_bits());
        assert_eq!(zero.value(2), f64::NEG_INFINITY);
        let same = to(Float32Array::from(vec![-0.0]), &DataType::Float32).unwrap();
        assert_eq!(same.as_primitive::<Float32Type>().value(0).to_bits(), 0);
        assert_eq!(
            to(Int64Array::from(vec![0]), &DataType::Float64).unwrap().as_primitive::<Float64Type>().value(0),
            0.0
        );
    }

    #[test]
    fn times_are_written_as_in_postgresql() {
        for (text, expected) in [
            ("2024-01-01T10:00:00", "2024-01-01 10:00:00"),
            ("2024-01-01T10:00:00.500Z", "2024-01-01 10:00:00.5+00"),
            ("2024-01-01T10:00:00.500+05:30", "2024-01-01 10:00:00.5+05:30"),
            ("2024-01-01T10:00:00-03:00", "2024-01-01 10:00:00-03"),
            ("10:00:00.123400", "10:00:00.1234"),
            ("10:00:00", "10:00:00"),
        ] {
            assert_eq!(shown_time(text), expected);
        }
    }

    #[test]
    fn decimals_are_written_without_exponents() {
        for (text, expected) in [
            ("1e5", Some("100000")),
            ("-1.5E+3", Some("-1500")),
            ("12.345e1", Some("123.45")),
            ("5e-3", Some("0.005")),
            (".5e1", Some("5")),
            ("0e2", Some("000")),
            ("1", None),
            ("e5", None),
            ("1e", None),
            ("1e99999", None),
            ("x1e5", None),
        ] {
            assert_eq!(plain_decimal(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn timestamps_with_time_zone_use_the_zone_of_the_session() {
        let zone = Zone::named("Europe/Berlin").unwrap();
        let instant = DataType::Timestamp(TimeUnit::Microsecond, Some(STORED.into()));
        let texts: ArrayRef = Arc::new(StringViewArray::from(vec![
            "2024-03-31 02:30:00",
            "2024-03-31 03:30:00",
            "2024-03-31 01:30:00Z",
            "2024-03-31 00:30:00-01:00",
            "2024-10-27 02:30:00",
        ]));
        let instants = cast(&texts, &instant, zone).unwrap();
        let utc = 1_711_848_600_000_000;
        let expected = TimestampMicrosecondArray::from(vec![utc, utc, utc, utc, 1_729_992_600_000_000]);
        assert_eq!(instants.as_ref(), &expected.with_timezone(STORED) as &dyn Array);
        let back = cast(&instants, &DataType::Utf8View, zone).unwrap();
        assert_eq!(back.as_string_view().value(0), "2024-03-31 03:30:00+02");
        let dates: ArrayRef = Arc::new(arrow::array::Date32Array::from(vec![19_813]));
        let midnight = cast(&dates, &instant, zone).unwrap();
        let back = cast(&midnight, &DataType::Date32, zone).unwrap();
        assert_eq!(back.as_ref(), dates.as_ref());
        assert_eq!(
            cast(&midnight, &DataType::Utf8View, zone).unwrap().as_string_view().value(0),
            "2024-03-31 00:00:00+01"
        );
        let soon: ArrayRef = Arc::new(StringViewArray::from(vec!["soon"]));
        assert!(cast(&soon, &instant, zone).is_err());
    }
}

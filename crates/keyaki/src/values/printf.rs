//! `printf`, as in SQLite and C: `%d %i %u %x %X %o %f %e %E %g %G %s %c %%` with the flags `- + space 0 # ,`, a width
//! and a precision, which may be arguments (`*`).
//!
//! Missing arguments and NULLs are 0 or empty. Widths and precisions count characters, not bytes.

use std::iter::Peekable;
use std::str::Chars;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, StringViewArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, FieldRef, Float64Type, Int64Type};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::cast::cast;
use super::functions::{arrays, result, undefined};
use super::zone::Zone;
use crate::{Error, Result};

/// Maximum width and precision of a part, in characters.
const WIDTH_MAX: usize = 1 << 20;
/// Digits behind the decimal point without a precision.
const DIGITS: usize = 6;
/// More digits than a float has: the decimal expansion of the smallest one.
const FLOAT_DIGITS_MAX: usize = 1100;

/// The function.
pub(crate) fn printf() -> ScalarUDF {
    ScalarUDF::new_from_impl(Printf { signature: Signature::user_defined(Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Printf {
    signature: Signature,
}

impl ScalarUDFImpl for Printf {
    fn name(&self) -> &str {
        "printf"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        match types {
            [] => Err(undefined("printf", types)),
            // Values other than numbers are converted to texts.
            [_, values @ ..] => {
                let kept = values.iter().map(|ty| match ty {
                    ty if ty.is_numeric() => ty.clone(),
                    DataType::Boolean => DataType::Int64,
                    _ => DataType::Utf8View,
                });
                Ok(std::iter::once(DataType::Utf8View).chain(kept).collect())
            }
        }
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Utf8View)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        let is_nullable = args.arg_fields[0].is_nullable();
        Ok(Arc::new(arrow::datatypes::Field::new("printf", DataType::Utf8View, is_nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let (arrays, is_single) = arrays(&args)?;
        let formats = arrays[0].as_string_view();
        let columns = arrays[1..].iter().map(Column::of).collect::<Result<Vec<_>>>()?;
        let formatted = formats.iter().enumerate().map(|(row, text)| {
            let values = |place: usize| columns.get(place).map_or(Value::Missing, |column| column.value(row));
            text.map(|text| format(text, &values)).transpose()
        });
        let formatted: StringViewArray = formatted.collect::<Result<_>>()?;
        result(Arc::new(formatted) as ArrayRef, is_single)
    }
}

/// The values of an argument.
struct Column {
    values: ArrayRef,
    /// The values as floats, if they are numbers.
    floats: Option<Float64Array>,
    texts: StringViewArray,
}

impl Column {
    fn of(values: &ArrayRef) -> Result<Column> {
        let lenient = CastOptions { safe: true, ..CastOptions::default() };
        let floats = match values.data_type().is_numeric() {
            true => {
                Some(cast_with_options(values, &DataType::Float64, &lenient)?.as_primitive::<Float64Type>().clone())
            }
            false => None,
        };
        let texts = cast(values, &DataType::Utf8View, Zone::default())?.as_string_view().clone();
        Ok(Column { values: values.clone(), floats, texts })
    }

    fn value(&self, row: usize) -> Value<'_> {
        if self.values.is_null(row) {
            return Value::Missing;
        }
        let integer = self.values.as_primitive_opt::<Int64Type>().map(|values| values.value(row));
        Value::Given {
            integer,
            float: self.floats.as_ref().map(|floats| floats.value(row)),
            text: self.texts.value(row),
        }
    }
}

/// A value in all its forms.
#[derive(Clone, Copy)]
enum Value<'a> {
    Missing,
    Given { integer: Option<i64>, float: Option<f64>, text: &'a str },
}

impl Value<'_> {
    fn integer(self) -> i64 {
        match self {
            Value::Given { integer: Some(integer), .. } => integer,
            Value::Given { text, .. } => {
                let whole = text.split('.').next().unwrap_or(text).trim();
                // Conversions of floats saturate.
                whole.parse().unwrap_or_else(|_| self.float() as i64)
            }
            Value::Missing => 0,
        }
    }

    fn float(self) -> f64 {
        match self {
            Value::Missing => 0.0,
            Value::Given { float: Some(float), .. } => float,
            Value::Given { text, .. } => text.trim().parse().unwrap_or_default(),
        }
    }
}

/// The flags, width and precision of a part.
#[derive(Debug, Default)]
struct Flags {
    is_left: bool,
    has_sign: bool,
    has_space: bool,
    has_zeros: bool,
    is_alternate: bool,
    has_commas: bool,
    width: usize,
    precision: Option<usize>,
}

fn invalid(problem: impl Into<String>) -> Error {
    Error::Evaluation(problem.into())
}

/// Writes the values into the text.
///
/// # Errors
/// `Evaluation` for conversions that do not exist, and widths that are too large.
fn format<'a>(text: &str, values: &dyn Fn(usize) -> Value<'a>) -> Result<String> {
    let mut output = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut next = 0;
    let mut take = || {
        next += 1;
        values(next - 1)
    };
    while let Some(c) = chars.next() {
        if c != '%' {
            output.push(c);
            continue;
        }
        let mut flags = Flags::default();
        while let Some(flag) = chars.next_if(|c| matches!(c, '-' | '+' | ' ' | '0' | '#' | ',')) {
            match flag {
                '-' => flags.is_left = true,
                '+' => flags.has_sign = true,
                ' ' => flags.has_space = true,
                '0' => flags.has_zeros = true,
                '#' => flags.is_alternate = true,
                _ => flags.has_commas = true,
            }
        }
        let width = number(&mut chars, &mut take);
        flags.is_left |= width < 0;
        flags.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
        if chars.next_if_eq(&'.').is_some() {
            // A negative precision is none.
            flags.precision = usize::try_from(number(&mut chars, &mut take)).ok();
        }
        if flags.width.max(flags.precision.unwrap_or(0)) > WIDTH_MAX {
            return Err(invalid(format!("a width or precision of printf() is greater than {WIDTH_MAX}")));
        }
        // Length modifiers.
        while chars.next_if(|c| matches!(c, 'l' | 'h')).is_some() {}
        let conversion = chars.next().ok_or_else(|| invalid("printf() format ends with an incomplete conversion"))?;
        let (sign, body, is_number) = match conversion {
            '%' => {
                output.push('%');
                continue;
            }
            'd' | 'i' => integer(take().integer(), &flags),
            'u' => (String::new(), grouped(&padded(format!("{}", take().integer() as u64), &flags), &flags), true),
            'x' | 'X' | 'o' => radix(conversion, take().integer(), &flags),
            'f' | 'F' | 'e' | 'E' | 'g' | 'G' => float(conversion, take().float(), &flags),
            's' | 'c' => {
                let text = match take() {
                    Value::Missing => "",
                    Value::Given { text, .. } => text,
                };
                let length = if conversion == 'c' { 1 } else { flags.precision.unwrap_or(usize::MAX) };
                (String::new(), text.chars().take(length).collect(), false)
            }
            other => return Err(invalid(format!("unknown conversion \"%{other}\" in printf()"))),
        };
        let missing = flags.width.saturating_sub(sign.chars().count() + body.chars().count());
        let zeros = flags.has_zeros && is_number && !flags.is_left && !body.starts_with(['i', 'n', 'I', 'N']);
        let (spaces, zeros) = if zeros { (0, missing) } else { (missing, 0) };
        if !flags.is_left {
            output.extend(std::iter::repeat_n(' ', spaces));
        }
        output.push_str(&sign);
        output.extend(std::iter::repeat_n('0', zeros));
        output.push_str(&body);
        if flags.is_left {
            output.extend(std::iter::repeat_n(' ', spaces));
        }
    }
    Ok(output)
}

/// A number of the format, or the next argument for `*`. It is limited to more than [`WIDTH_MAX`].
fn number<'a>(chars: &mut Peekable<Chars<'_>>, take: &mut dyn FnMut() -> Value<'a>) -> i64 {
    if chars.next_if_eq(&'*').is_some() {
        return take().integer();
    }
    let mut number: i64 = 0;
    while let Some(digit) = chars.next_if(char::is_ascii_digit) {
        number = (number * 10 + i64::from(digit as u8 - b'0')).min(1 << 40);
    }
    number
}

/// The sign of a number.
fn sign(is_negative: bool, flags: &Flags) -> String {
    let sign = match (is_negative, flags.has_sign, flags.has_space) {
        (true, ..) => "-",
        (false, true, _) => "+",
        (false, false, true) => " ",
        (false, false, false) => "",
    };
    sign.into()
}

/// At least as many digits as the precision.
fn padded(digits: String, flags: &Flags) -> String {
    match flags.precision {
        Some(precision) => format!("{digits:0>precision$}"),
        None => digits,
    }
}

/// The digits before the decimal point in groups of three.
fn grouped(number: &str, flags: &Flags) -> String {
    if !flags.has_commas {
        return number.into();
    }
    let (whole, fraction) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut output = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i) % 3 == 0 {
            output.push(',');
        }
        output.push(digit);
    }
    output + fraction
}

/// Sign, digits, and true for a number.
fn integer(value: i64, flags: &Flags) -> (String, String, bool) {
    let digits = grouped(&padded(value.unsigned_abs().to_string(), flags), flags);
    (sign(value < 0, flags), digits, true)
}

fn radix(conversion: char, value: i64, flags: &Flags) -> (String, String, bool) {
    let (digits, prefix) = match conversion {
        'x' => (format!("{value:x}"), "0x"),
        'X' => (format!("{value:X}"), "0X"),
        _ => (format!("{value:o}"), "0"),
    };
    let prefix = if flags.is_alternate && value != 0 { prefix } else { "" };
    (prefix.into(), padded(digits, flags), true)
}

fn float(conversion: char, value: f64, flags: &Flags) -> (String, String, bool) {
    let is_upper = conversion.is_ascii_uppercase();
    let magnitude = value.abs();
    let precision = flags.precision.unwrap_or(DIGITS).min(FLOAT_DIGITS_MAX);
    let body = match conversion.to_ascii_lowercase() {
        _ if !value.is_finite() => if value.is_nan() { "nan" } else { "inf" }.into(),
        'f' => grouped(&point(format!("{magnitude:.precision$}"), flags), flags),
        'e' => exponential(magnitude, precision, flags),
        _ => general(magnitude, precision.max(1), flags),
    };
    let body = if is_upper { body.to_ascii_uppercase() } else { body };
    (sign(value.is_sign_negative() && !value.is_nan(), flags), body, true)
}

/// A decimal point also without digits behind it, for the flag `#`.
fn point(digits: String, flags: &Flags) -> String {
    if flags.is_alternate && !digits.contains('.') { digits + "." } else { digits }
}

/// As `1.5e+03`: an exponent of at least two digits.
fn exponential(value: f64, precision: usize, flags: &Flags) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{}e{sign}{exponent:0>2}", point(digits.into(), flags))
}

/// The shorter form of `precision` digits, without zeros at the end.
fn general(value: f64, precision: usize, flags: &Flags) -> String {
    let rounded = format!("{value:.*e}", precision - 1);
    let exponent: i64 = rounded.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
    let is_fixed = exponent >= -4 && exponent < precision as i64;
    let text = match is_fixed {
        true => grouped(&format!("{value:.*}", (precision as i64 - 1 - exponent).max(0) as usize), flags),
        false => exponential(value, precision - 1, flags),
    };
    let (digits, exponent) = text.split_at(text.find('e').unwrap_or(text.len()));
    match digits.contains('.') && !flags.is_alternate {
        true => format!("{}{exponent}", digits.trim_end_matches('0').trim_end_matches('.')),
        false => point(digits.into(), flags) + exponent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_formatted() {
        let given = |integer: Option<i64>, float: Option<f64>, text| Value::Given { integer, float, text };
        let values = [
            given(Some(-42), Some(-42.0), "-42"),
            given(None, Some(1234567.891), "1234567.891"),
            given(None, None, "tür"),
            Value::Missing,
            given(None, Some(f64::INFINITY), "Infinity"),
            given(Some(5), Some(5.0), "5"),
        ];
        for (text, first, expected) in [
            ("%d|%5d|%-5d|%05d|%+d|% d", 0, "-42|1234567|0    |00000|+9223372036854775807| 5"),
            ("%,.2f", 1, "1,234,567.89"),
            ("%.0f|%e|%g", 1, "1234568|0.000000e+00|0"),
            ("%g", 1, "1.23457e+06"),
            ("%10.3e|", 1, " 1.235e+06|"),
            ("%s|%5s|%-5s|", 2, "tür|     |Infinity|"),
            ("%.2s%%", 2, "tü%"),
            ("%c", 2, "t"),
            ("%x|%X|%#x|%o", 5, "5|0|0|0"),
            ("%06.1f", 5, "0005.0"),
            ("%5f|", 4, "  inf|"),
            ("%.3d", 5, "005"),
            ("%lld", 5, "5"),
        ] {
            let value = |place: usize| values.get(first + place).copied().unwrap_or(Value::Missing);
            assert_eq!(format(text, &value).unwrap(), expected, "{text}");
        }
        let star = [given(Some(6), None, "6"), given(Some(2), None, "2"), given(None, Some(1.0), "1")];
        assert_eq!(format("%*.*f", &|place| star[place]).unwrap(), "  1.00");
        for wrong in ["%", "%y", "%9999999999d", "%5"] {
            assert!(format(wrong, &|_| Value::Missing).is_err(), "{wrong}");
        }
        for (value, expected) in
            [(0.0001, "0.0001"), (0.00001, "1e-05"), (100000.0, "100000"), (999999.5, "1e+06"), (1e6, "1e+06")]
        {
            assert_eq!(general(value, 6, &Flags::default()), expected);
        }
    }
}

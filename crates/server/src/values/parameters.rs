//! Values of parameters.

use bytes::Buf;
use keyaki::Value;

use super::{EPOCH_DAYS, EPOCH_MICROS, Format, JSONB_VERSION, numeric};
use crate::failure::{Failure, Result};
use crate::types::Oid;

/// Maximum number of dimensions of an array.
const DIMENSIONS_MAX: i32 = 6;
/// Microseconds of a day.
const DAY_MICROS: i64 = 86_400_000_000;
/// Maximum number of decimal digits of a [`Value::Decimal`].
const DECIMAL_DIGITS_MAX: usize = 38;

/// The value of parameter `number`, counted from 1. `bytes` is `None` for NULL.
///
/// # Errors
/// 22021 for text that is not UTF-8, 22P03 for bytes that are not a value of the type, 0A000 for types without binary format.
pub fn value(bytes: Option<&[u8]>, oid: Oid, format: Format, number: usize) -> Result<Value> {
    let Some(bytes) = bytes else { return Ok(Value::Null) };
    match format {
        Format::Text => text(bytes).map(|text| of_text(text, oid)),
        Format::Binary => match binary(bytes, oid) {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(Failure::sql("22P03", format!("incorrect binary data format in bind parameter {number}"))),
            Err(failure) => Err(failure),
        },
    }
}

fn text(bytes: &[u8]) -> Result<&str> {
    str::from_utf8(bytes).map_err(|_| Failure::sql("22021", "invalid byte sequence for encoding \"UTF8\""))
}

/// The value of a text. Texts of other types than these are converted where the statement uses them.
fn of_text(text: &str, oid: Oid) -> Value {
    let value = match oid {
        Oid::INT2 | Oid::INT4 | Oid::INT8 | Oid::OID => text.trim().parse().ok().map(Value::Integer),
        Oid::NUMERIC => decimal(text.trim()),
        Oid::BOOL => match text.trim() {
            "t" | "true" | "1" => Some(Value::Boolean(true)),
            "f" | "false" | "0" => Some(Value::Boolean(false)),
            _ => None,
        },
        _ => None,
    };
    value.unwrap_or_else(|| Value::Text(text.into()))
}

/// A number in decimal notation; `None` for other texts, and for numbers with too many digits.
fn decimal(text: &str) -> Option<Value> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let len = whole.trim_start_matches('0').len() + fraction.len();
    if !is_digits(whole) || !is_digits(fraction) || whole.is_empty() || len > DECIMAL_DIGITS_MAX {
        return None;
    }
    let sign = if text.starts_with('-') { "-" } else { "" };
    let unscaled = format!("{sign}{whole}{fraction}").parse().ok()?;
    Some(Value::Decimal { unscaled, scale: fraction.len() as u8 })
}

/// A value in the binary format of a type; `None` for malformed bytes.
fn binary(mut bytes: &[u8], oid: Oid) -> Result<Option<Value>> {
    fn exactly<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
        bytes.try_into().ok()
    }
    if let Some(element) = oid.element() {
        return array(bytes, element);
    }
    Ok(match oid {
        Oid::BOOL => exactly::<1>(bytes).map(|[byte]| Value::Boolean(byte != 0)),
        Oid::INT2 => exactly(bytes).map(|bytes| Value::Integer(i16::from_be_bytes(bytes).into())),
        Oid::INT4 => exactly(bytes).map(|bytes| Value::Integer(i32::from_be_bytes(bytes).into())),
        Oid::OID => exactly(bytes).map(|bytes| Value::Integer(u32::from_be_bytes(bytes).into())),
        Oid::INT8 => exactly(bytes).map(|bytes| Value::Integer(i64::from_be_bytes(bytes))),
        Oid::FLOAT4 => exactly(bytes).map(|bytes| Value::Float(f32::from_be_bytes(bytes).into())),
        Oid::FLOAT8 => exactly(bytes).map(|bytes| Value::Float(f64::from_be_bytes(bytes))),
        Oid::TEXT | Oid::VARCHAR | Oid::BPCHAR | Oid::NAME | Oid::UNKNOWN | Oid::JSON | Oid::UNSPECIFIED => {
            Some(Value::Text(text(bytes)?.into()))
        }
        Oid::JSONB => match bytes.split_first() {
            Some((&JSONB_VERSION, document)) => Some(Value::Text(text(document)?.into())),
            _ => None,
        },
        Oid::BYTEA => Some(Value::Bytes(bytes.into())),
        // The least value is -infinity.
        Oid::DATE => exactly(bytes)
            .map(i32::from_be_bytes)
            .filter(|days| *days != i32::MIN)
            .and_then(|days| days.checked_add(EPOCH_DAYS))
            .map(Value::Date),
        Oid::TIME => {
            exactly(bytes).map(i64::from_be_bytes).filter(|micros| (0..DAY_MICROS).contains(micros)).map(Value::Time)
        }
        Oid::TIMESTAMP => micros(bytes).map(Value::Timestamp),
        Oid::TIMESTAMPTZ => micros(bytes).map(Value::TimestampTz),
        Oid::INTERVAL if bytes.len() == 16 => {
            let micros = bytes.get_i64();
            let days = bytes.get_i32();
            Some(Value::Interval { months: bytes.get_i32(), days, micros })
        }
        Oid::INTERVAL => None,
        Oid::UUID => exactly(bytes).map(|bytes| Value::Uuid(uuid::Uuid::from_bytes(bytes))),
        Oid::NUMERIC => numeric::text(bytes).map(|text| decimal(&text).unwrap_or(Value::Text(text))),
        oid => {
            return Err(Failure::sql("0A000", format!("type {} has no binary format here (send it as text)", oid.0)));
        }
    })
}

fn micros(bytes: &[u8]) -> Option<i64> {
    let micros = i64::from_be_bytes(bytes.try_into().ok()?);
    Some(micros).filter(|micros| *micros != i64::MIN)?.checked_add(EPOCH_MICROS)
}

/// An array of any number of dimensions.
fn array(mut bytes: &[u8], declared: Oid) -> Result<Option<Value>> {
    const HEADER: usize = 12;
    const DIMENSION: usize = 8;
    if bytes.len() < HEADER {
        return Ok(None);
    }
    let (dimensions, _has_nulls, element) = (bytes.get_i32(), bytes.get_i32(), Oid(bytes.get_u32()));
    if !(0..=DIMENSIONS_MAX).contains(&dimensions)
        || element != declared
        || bytes.len() < dimensions as usize * DIMENSION
    {
        return Ok(None);
    }
    if dimensions == 0 {
        return Ok(bytes.is_empty().then(|| Value::Array(Vec::new())));
    }
    let mut lens = Vec::new();
    for _ in 0..dimensions {
        let (len, _first_index) = (bytes.get_i32(), bytes.get_i32());
        let Ok(len) = usize::try_from(len) else { return Ok(None) };
        lens.push(len);
    }
    if lens.contains(&0) {
        return Ok(bytes.is_empty().then(|| Value::Array(Vec::new())));
    }
    // Each element has at least a length of four bytes.
    let count = lens.iter().try_fold(1_usize, |count, len| count.checked_mul(*len));
    if count.is_none_or(|count| count > bytes.len() / 4) {
        return Ok(None);
    }
    let value = elements(&mut bytes, &lens, element)?;
    Ok(value.filter(|_| bytes.is_empty()))
}

/// The elements of an array, in the order of the last dimension.
fn elements(bytes: &mut &[u8], lens: &[usize], oid: Oid) -> Result<Option<Value>> {
    let Some((len, inner)) = lens.split_first() else { return element(bytes, oid) };
    let mut values = Vec::new();
    for _ in 0..*len {
        match elements(bytes, inner, oid)? {
            Some(value) => values.push(value),
            None => return Ok(None),
        }
    }
    Ok(Some(Value::Array(values)))
}

fn element(bytes: &mut &[u8], oid: Oid) -> Result<Option<Value>> {
    if bytes.len() < 4 {
        return Ok(None);
    }
    match bytes.get_i32() {
        -1 => Ok(Some(Value::Null)),
        len => match usize::try_from(len).ok().and_then(|len| bytes.split_at_checked(len)) {
            Some((value, rest)) => {
                *bytes = rest;
                binary(value, oid)
            }
            None => Ok(None),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8], oid: Oid) -> Option<Value> {
        value(Some(bytes), oid, Format::Binary, 1).ok()
    }

    #[test]
    fn binary_values() {
        assert_eq!(of(&[0, 7], Oid::INT2), Some(Value::Integer(7)));
        assert_eq!(of(&[255; 4], Oid::INT4), Some(Value::Integer(-1)));
        assert_eq!(of(&[255; 4], Oid::OID), Some(Value::Integer(u32::MAX.into())));
        assert_eq!(of(&[0; 4], Oid::DATE), Some(Value::Date(10_957)), "2000-01-01");
        assert_eq!(of(&[0; 8], Oid::TIMESTAMPTZ), Some(Value::TimestampTz(946_684_800_000_000)));
        assert_eq!(of(b"\x01{}", Oid::JSONB), Some(Value::Text("{}".into())));
        assert_eq!(of(&[0; 3], Oid::INT4), None);
        assert_eq!(of(b"\xFF", Oid::TEXT), None);
        assert_eq!(of(&[127, 255, 255, 255], Oid::DATE), None, "out of range");
        assert_eq!((of(&[128, 0, 0, 0], Oid::DATE), of(&[255; 8], Oid::TIME)), (None, None));
        assert_eq!(value(None, Oid::INT4, Format::Binary, 1).unwrap(), Value::Null);
    }

    #[test]
    fn arrays() {
        let mut bytes = vec![0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 23, 0, 0, 0, 2, 0, 0, 0, 1];
        bytes.extend([0, 0, 0, 4, 0, 0, 0, 5, 255, 255, 255, 255]);
        assert_eq!(of(&bytes, Oid(1007)), Some(Value::Array(vec![Value::Integer(5), Value::Null])));
        for len in 0..bytes.len() {
            assert_eq!(of(&bytes[..len], Oid(1007)), None, "{len} bytes");
        }
        // Two billion elements.
        bytes[12..16].copy_from_slice(&[127, 255, 255, 255]);
        assert_eq!(of(&bytes, Oid(1007)), None);
        // Empty arrays in two billion places.
        let empty = [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 23, 127, 255, 255, 255, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1];
        assert_eq!(of(&empty, Oid(1007)), Some(Value::Array(Vec::new())));
        assert_eq!(of(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 23], Oid(1007)), Some(Value::Array(Vec::new())));
    }

    #[test]
    fn texts() {
        let of = |text: &str, oid| value(Some(text.as_bytes()), oid, Format::Text, 1).unwrap();
        assert_eq!(of(" 12 ", Oid::INT4), Value::Integer(12));
        assert_eq!(of("-1.50", Oid::NUMERIC), Value::Decimal { unscaled: -150, scale: 2 });
        assert_eq!(of("1e5", Oid::NUMERIC), Value::Text("1e5".into()));
        assert_eq!(of(".5", Oid::NUMERIC), Value::Text(".5".into()));
        assert_eq!(of("t", Oid::BOOL), Value::Boolean(true));
        assert_eq!(of("2026-01-01", Oid::DATE), Value::Text("2026-01-01".into()));
        assert!(value(Some(b"\xFF"), Oid::TEXT, Format::Text, 1).is_err());
    }
}

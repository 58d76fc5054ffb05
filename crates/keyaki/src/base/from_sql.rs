//! Values of rows as Rust values.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::base::value::{Value, ValueRef};
use crate::{Error, Result};

/// Integers up to this magnitude are exact as `f64`.
const EXACT_IN_F64: u128 = 1 << 53;
/// Powers of ten up to this exponent are exact as `f64`.
const EXACT_POWER_OF_TEN: u8 = 22;

/// A type that values of rows can be converted to.
///
/// The conversions never lose a part of a value silently:
///
/// | Rust | from |
/// |---|---|
/// | `bool` | BOOLEAN |
/// | integers | integers, and DECIMAL with scale 0, within the range of the Rust type |
/// | `f64`, `f32` | floats and DECIMAL, as the nearest float; integers that are exact as a float |
/// | `String`, `&str`, `Cow<str>` | TEXT |
/// | `Vec<u8>`, `&[u8]`, `Cow<[u8]>` | BYTEA |
/// | [`SystemTime`] | TIMESTAMPTZ |
/// | [`uuid::Uuid`] | UUID |
/// | `Vec` of `bool`, `i16` … `i64`, floats, `String`, `Uuid`, [`Value`], and of options | arrays of these types |
/// | `Option<T>` | as `T`; `None` for NULL |
/// | [`Value`], [`ValueRef`] | every type |
///
/// A DECIMAL keeps all its digits as [`Value::Decimal`]. Only the caller's choice of `f64` or `f32` rounds it. DATE, TIME,
/// TIMESTAMP and INTERVAL have no counterpart in Rust's library: read them as [`Value`]. [`Value`]'s `Display` prints every
/// type.
///
/// ```
/// use keyaki::{FromSql, Result, ValueRef};
///
/// struct Meters(f64);
///
/// impl<'a> FromSql<'a> for Meters {
///     fn from_sql(value: ValueRef<'a>) -> Result<Self> {
///         f64::from_sql(value).map(Meters)
///     }
/// }
/// # fn main() -> keyaki::Result<()> {
/// let connection = keyaki::Connection::open_temporary()?;
/// let height: Meters = connection.query_row("SELECT 324.0", (), |row| row.get(0))?;
/// assert_eq!(height.0, 324.0);
/// # Ok(()) }
/// ```
pub trait FromSql<'a>: Sized {
    /// Converts a value. [`Row::get`](crate::Row::get) adds the name of the column to errors.
    ///
    /// # Errors
    /// `CannotCast` for a value of another type, `OutOfRange`, `UnexpectedNull`.
    fn from_sql(value: ValueRef<'a>) -> Result<Self>;
}

/// The error for a value that is not of the type `to`.
fn mismatch(value: ValueRef<'_>, to: &'static str) -> Error {
    match value {
        ValueRef::Null => Error::UnexpectedNull { ty: to },
        value => Error::CannotCast { from: value.type_name().into(), to: to.into() },
    }
}

fn out_of_range(value: ValueRef<'_>, to: &'static str) -> Error {
    Error::out_of_range(to, &value.to_string(), None)
}

/// Implements [`FromSql`] for types that one variant converts to without errors.
macro_rules! from_sql {
    ($($type:ty = $name:literal),+ => $variant:ident($value:ident) => $result:expr) => {$(
        impl<'a> FromSql<'a> for $type {
            fn from_sql(value: ValueRef<'a>) -> Result<Self> {
                match value {
                    ValueRef::$variant($value) => Ok($result),
                    other => Err(mismatch(other, $name)),
                }
            }
        }
    )+};
}

from_sql!(bool = "bool" => Boolean(value) => value);
from_sql!(uuid::Uuid = "Uuid" => Uuid(value) => value);
from_sql!(&'a str = "&str" => Text(value) => value);
from_sql!(String = "String", Box<str> = "Box<str>", Rc<str> = "Rc<str>", Arc<str> = "Arc<str>", Cow<'a, str> = "Cow<str>"
    => Text(value) => value.into());
from_sql!(&'a [u8] = "&[u8]" => Bytes(value) => value);
from_sql!(Vec<u8> = "Vec<u8>", Box<[u8]> = "Box<[u8]>", Cow<'a, [u8]> = "Cow<[u8]>" => Bytes(value) => value.into());

/// Implements [`FromSql`] for integers.
macro_rules! integer_from_sql {
    ($($type:ty),+) => {$(
        impl<'a> FromSql<'a> for $type {
            fn from_sql(value: ValueRef<'a>) -> Result<Self> {
                let fits = match value {
                    ValueRef::Integer(integer) => <$type>::try_from(integer).ok(),
                    ValueRef::Decimal { unscaled, scale: 0 } => <$type>::try_from(unscaled).ok(),
                    other => return Err(mismatch(other, stringify!($type))),
                };
                fits.ok_or_else(|| out_of_range(value, stringify!($type)))
            }
        }
    )+};
}

integer_from_sql!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize);

impl<'a> FromSql<'a> for f64 {
    fn from_sql(value: ValueRef<'a>) -> Result<Self> {
        match value {
            ValueRef::Float(float) => Ok(float),
            ValueRef::Decimal { unscaled, scale } => Ok(nearest(unscaled, scale)),
            ValueRef::Integer(integer) => match integer as f64 {
                float if float as i128 == i128::from(integer) => Ok(float),
                _ => Err(out_of_range(value, "f64")),
            },
            other => Err(mismatch(other, "f64")),
        }
    }
}

impl<'a> FromSql<'a> for f32 {
    fn from_sql(value: ValueRef<'a>) -> Result<Self> {
        let (float, fits) = match value {
            ValueRef::Float(wide) => (wide as f32, (wide as f32).is_finite() || !wide.is_finite()),
            // The text of a number always parses.
            ValueRef::Decimal { unscaled, scale } => (format!("{unscaled}e-{scale}").parse().unwrap_or(f32::NAN), true),
            ValueRef::Integer(integer) => (integer as f32, (integer as f32) as i128 == i128::from(integer)),
            other => return Err(mismatch(other, "f32")),
        };
        if fits { Ok(float) } else { Err(out_of_range(value, "f32")) }
    }
}

/// The float nearest to `unscaled` / 10^`scale`.
fn nearest(unscaled: i128, scale: u8) -> f64 {
    if unscaled.unsigned_abs() <= EXACT_IN_F64 && scale <= EXACT_POWER_OF_TEN {
        // One division of exact numbers rounds correctly.
        return unscaled as f64 / 10_f64.powi(scale.into());
    }
    // The text of a number always parses.
    format!("{unscaled}e-{scale}").parse().unwrap_or(f64::NAN)
}

impl<'a> FromSql<'a> for SystemTime {
    fn from_sql(value: ValueRef<'a>) -> Result<Self> {
        let ValueRef::TimestampTz(micros) = value else { return Err(mismatch(value, "SystemTime")) };
        let distance = Duration::from_micros(micros.unsigned_abs());
        let time = if micros < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
        time.ok_or_else(|| out_of_range(value, "SystemTime"))
    }
}

/// Implements [`FromSql`] for arrays of types. An array of any type `T` would be in conflict with BYTEA.
macro_rules! array_from_sql {
    ($($type:ty),+) => {$(
        impl<'a> FromSql<'a> for Vec<$type> {
            fn from_sql(value: ValueRef<'a>) -> Result<Self> {
                match value {
                    ValueRef::Array(elements) => elements.iter().map(FromSql::from_sql).collect(),
                    other => Err(mismatch(other, concat!("Vec<", stringify!($type), ">"))),
                }
            }
        }
    )+};
}

array_from_sql!(bool, i16, i32, i64, f32, f64, String, uuid::Uuid, Value);
array_from_sql!(Option<bool>, Option<i16>, Option<i32>, Option<i64>, Option<f32>, Option<f64>, Option<String>);

impl<'a, T: FromSql<'a>> FromSql<'a> for Option<T> {
    fn from_sql(value: ValueRef<'a>) -> Result<Self> {
        match value {
            ValueRef::Null => Ok(None),
            value => T::from_sql(value).map(Some),
        }
    }
}

impl<'a> FromSql<'a> for ValueRef<'a> {
    fn from_sql(value: ValueRef<'a>) -> Result<Self> {
        Ok(value)
    }
}

impl<'a> FromSql<'a> for Value {
    fn from_sql(value: ValueRef<'a>) -> Result<Self> {
        Ok(value.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(unscaled: i128, scale: u8) -> ValueRef<'static> {
        ValueRef::Decimal { unscaled, scale }
    }

    #[test]
    fn integers_are_checked() {
        assert_eq!(i8::from_sql(ValueRef::Integer(-128)).unwrap(), -128);
        let error = u8::from_sql(ValueRef::Integer(256)).unwrap_err();
        assert_eq!(error.to_string(), "value \"256\" is out of range for type u8");
        assert_eq!(u64::from_sql(decimal(u64::MAX.into(), 0)).unwrap(), u64::MAX);
        assert!(matches!(i64::from_sql(decimal(10, 1)), Err(Error::CannotCast { .. })));
        assert!(matches!(i64::from_sql(ValueRef::Float(1.0)), Err(Error::CannotCast { .. })));
        assert!(matches!(i64::from_sql(ValueRef::Null), Err(Error::UnexpectedNull { .. })));
    }

    #[test]
    fn decimals_become_the_nearest_float() {
        assert_eq!(f64::from_sql(decimal(1, 1)).unwrap(), 0.1);
        let digits = 12_345_678_901_234_567_890_123_456_789;
        assert_eq!(f64::from_sql(decimal(digits, 20)).unwrap(), 123_456_789.012_345_67);
        assert_eq!(f64::from_sql(ValueRef::Integer(1 << 53)).unwrap(), 9_007_199_254_740_992.0);
        assert!(f64::from_sql(ValueRef::Integer((1 << 53) + 1)).is_err());
        assert!(f32::from_sql(ValueRef::Integer((1 << 24) + 1)).is_err());
        assert!(matches!(f32::from_sql(ValueRef::Float(1e300)), Err(Error::OutOfRange { .. })));
        assert_eq!(f32::from_sql(ValueRef::Float(f64::INFINITY)).unwrap(), f32::INFINITY);
    }

    #[test]
    fn text_and_bytes_can_be_borrowed() {
        let text = String::from("Keyaki");
        let borrowed: &str = FromSql::from_sql(ValueRef::Text(&text)).unwrap();
        assert!(std::ptr::eq(borrowed, text.as_str()));
        assert!(<&[u8]>::from_sql(ValueRef::Text(&text)).is_err());
        assert_eq!(Option::<String>::from_sql(ValueRef::Null).unwrap(), None);
    }

    #[test]
    fn times_before_the_epoch() {
        let time = SystemTime::from_sql(ValueRef::TimestampTz(-1)).unwrap();
        assert_eq!(UNIX_EPOCH.duration_since(time).unwrap(), Duration::from_micros(1));
        assert!(SystemTime::from_sql(ValueRef::Timestamp(0)).is_err());
    }
}

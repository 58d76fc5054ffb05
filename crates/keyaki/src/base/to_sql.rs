//! Rust values as parameters of statements.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::base::value::{DECIMAL_DIGITS_MAX, Value, ValueRef};
use crate::{Error, Result};

/// A type whose values can be parameters of statements and values of appended rows.
///
/// | Rust | SQL |
/// |---|---|
/// | `bool` | BOOLEAN |
/// | `i8` … `i64`, `isize`, `u8` … `u32` | integers |
/// | `u64`, `usize`, `i128`, `u128` | integers; DECIMAL with scale 0 above `i64` |
/// | `f32`, `f64` | REAL, DOUBLE PRECISION |
/// | `str`, `String`, `Cow<str>` | TEXT |
/// | `[u8]`, `Vec<u8>`, `[u8; N]`, `Cow<[u8]>` | BYTEA |
/// | [`uuid::Uuid`] | UUID |
/// | `[T]` and `Vec<T>` of `bool`, `i16` … `i64`, floats, texts, `Uuid`, [`Value`], and of options | arrays |
/// | [`SystemTime`] | TIMESTAMPTZ, truncated to microseconds |
/// | `Option<T>` | NULL for `None` |
/// | [`Value`], [`ValueRef`] | any type: [`Value::Decimal`], [`Value::Date`], [`Value::Time`], [`Value::Timestamp`] and [`Value::Interval`] have no counterpart in Rust's library |
///
/// The type of the parameter or column decides the conversion that follows: text is parsed, numbers are rounded to the
/// column's scale, and values out of range are errors.
///
/// ```
/// use keyaki::{ToSql, ToSqlOutput, Value};
///
/// struct Meters(f64);
///
/// impl ToSql for Meters {
///     fn to_sql(&self) -> keyaki::Result<ToSqlOutput<'_>> {
///         Ok(Value::Float(self.0).into())
///     }
/// }
/// # fn main() -> keyaki::Result<()> {
/// let connection = keyaki::Connection::open_temporary()?;
/// let doubled: f64 = connection.query_row("SELECT $1 * 2.0", (Meters(1.5),), |row| row.get(0))?;
/// assert_eq!(doubled, 3.0);
/// # Ok(()) }
/// ```
pub trait ToSql {
    /// The value.
    ///
    /// # Errors
    /// `OutOfRange` if no SQL type can represent it.
    fn to_sql(&self) -> Result<ToSqlOutput<'_>>;
}

/// The result of [`ToSql::to_sql`].
#[derive(Debug, Clone, PartialEq)]
pub enum ToSqlOutput<'a> {
    /// A value that borrows its text or bytes.
    Borrowed(ValueRef<'a>),
    /// A value made for the call.
    Owned(Value),
}

impl ToSqlOutput<'_> {
    /// The value, borrowed.
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            ToSqlOutput::Borrowed(value) => *value,
            ToSqlOutput::Owned(value) => value.as_ref(),
        }
    }
}

impl<'a> From<ValueRef<'a>> for ToSqlOutput<'a> {
    fn from(value: ValueRef<'a>) -> Self {
        ToSqlOutput::Borrowed(value)
    }
}

impl From<Value> for ToSqlOutput<'_> {
    fn from(value: Value) -> Self {
        ToSqlOutput::Owned(value)
    }
}

/// Implements [`ToSql`] with an expression of type `ValueRef`.
macro_rules! to_sql {
    ($($type:ty),+ => |$value:ident| $result:expr) => {$(
        impl ToSql for $type {
            fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
                let $value = self;
                Ok(ToSqlOutput::Borrowed($result))
            }
        }
    )+};
}

to_sql!(bool => |value| ValueRef::Boolean(*value));
to_sql!(i64 => |value| ValueRef::Integer(*value));
to_sql!(i8, i16, i32, u8, u16, u32 => |value| ValueRef::Integer(i64::from(*value)));
// An isize has at most 64 bits.
to_sql!(isize => |value| ValueRef::Integer(*value as i64));
to_sql!(f64 => |value| ValueRef::Float(*value));
to_sql!(f32 => |value| ValueRef::Float(f64::from(*value)));
to_sql!(str, String, Box<str>, Rc<str>, Arc<str>, Cow<'_, str> => |value| ValueRef::Text(value));
to_sql!([u8], Vec<u8>, Box<[u8]>, Cow<'_, [u8]> => |value| ValueRef::Bytes(value));
to_sql!(uuid::Uuid => |value| ValueRef::Uuid(*value));
to_sql!(ValueRef<'_> => |value| *value);
to_sql!(Value => |value| value.as_ref());

impl<const N: usize> ToSql for [u8; N] {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Bytes(self)))
    }
}

/// Implements [`ToSql`] for integers that may exceed the range of BIGINT.
macro_rules! wide_to_sql {
    ($($type:ty),+) => {$(
        impl ToSql for $type {
            fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
                if let Ok(value) = i64::try_from(*self) {
                    return Ok(ToSqlOutput::Borrowed(ValueRef::Integer(value)));
                }
                let limit = 10_i128.pow(DECIMAL_DIGITS_MAX.into());
                match i128::try_from(*self) {
                    Ok(unscaled) if unscaled > -limit && unscaled < limit => {
                        Ok(ToSqlOutput::Borrowed(ValueRef::Decimal { unscaled, scale: 0 }))
                    }
                    _ => Err(Error::out_of_range("numeric", &self.to_string(), None)),
                }
            }
        }
    )+};
}

wide_to_sql!(u64, usize, i128, u128);

impl ToSql for SystemTime {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        let micros = match self.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_micros()).ok(),
            // Round down, as after the epoch.
            Err(before) => i64::try_from(before.duration().as_nanos().div_ceil(1000)).ok().map(|micros| -micros),
        };
        let micros =
            micros.ok_or_else(|| Error::out_of_range("timestamp with time zone", &format!("{self:?}"), None))?;
        Ok(ToSqlOutput::Borrowed(ValueRef::TimestampTz(micros)))
    }
}

/// Implements [`ToSql`] for arrays of types. An array of any type would be in conflict with BYTEA.
macro_rules! array_to_sql {
    ($($type:ty),+) => {$(
        impl ToSql for [$type] {
            fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
                let values = self.iter().map(|value| Ok(value.to_sql()?.as_ref().to_owned()));
                Ok(ToSqlOutput::Owned(Value::Array(values.collect::<Result<_>>()?)))
            }
        }

        impl ToSql for Vec<$type> {
            fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
                self.as_slice().to_sql()
            }
        }
    )+};
}

array_to_sql!(bool, i16, i32, i64, f32, f64, &str, String, uuid::Uuid, Value);
array_to_sql!(
    Option<bool>,
    Option<i16>,
    Option<i32>,
    Option<i64>,
    Option<f32>,
    Option<f64>,
    Option<&str>,
    Option<String>
);

impl<T: ToSql> ToSql for Option<T> {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        self.as_ref().map_or(Ok(ToSqlOutput::Borrowed(ValueRef::Null)), ToSql::to_sql)
    }
}

impl<T: ToSql + ?Sized> ToSql for &T {
    fn to_sql(&self) -> Result<ToSqlOutput<'_>> {
        (**self).to_sql()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn value(value: impl ToSql) -> Value {
        value.to_sql().unwrap().as_ref().to_owned()
    }

    #[test]
    fn integers_become_the_narrowest_exact_value() {
        assert_eq!(value(-1_i8), Value::Integer(-1));
        assert_eq!(value(u32::MAX), Value::Integer(u32::MAX.into()));
        assert_eq!(value(i64::MAX as u64), Value::Integer(i64::MAX));
        assert_eq!(value(u64::MAX), Value::Decimal { unscaled: u64::MAX.into(), scale: 0 });
        assert_eq!(value(-(10_i128.pow(38) - 1)), Value::Decimal { unscaled: 1 - 10_i128.pow(38), scale: 0 });
        assert!(matches!(10_i128.pow(38).to_sql(), Err(Error::OutOfRange { .. })));
        assert!(u128::MAX.to_sql().is_err());
    }

    #[test]
    fn times_are_rounded_down_to_microseconds() {
        assert_eq!(value(UNIX_EPOCH + Duration::from_nanos(1_999)), Value::TimestampTz(1));
        assert_eq!(value(UNIX_EPOCH - Duration::from_nanos(1)), Value::TimestampTz(-1));
        let late = UNIX_EPOCH.checked_add(Duration::from_secs(i64::MAX as u64 / 2)).unwrap();
        assert!(matches!(late.to_sql(), Err(Error::OutOfRange { .. })));
    }

    #[test]
    fn references_and_options_are_transparent() {
        let reference = &&Some("a");
        assert_eq!(value(reference), Value::Text("a".into()));
        assert_eq!(value(None::<i32>), Value::Null);
        assert_eq!(value([1_u8, 2]), Value::Bytes(vec![1, 2]));
        let any: &dyn ToSql = &2.5_f32;
        assert_eq!(value(any), Value::Float(2.5));
    }
}

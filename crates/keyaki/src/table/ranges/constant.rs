//! The exact position of a constant among the values of a column.
//!
//! A filter may compare a column, or a lossless cast of it, with a constant of another type: `CAST(int AS BIGINT) >
//! 5000000000`, `CAST(price AS DECIMAL(30,15)) < 1.005`. The constant is converted to an exact rational number in units
//! of the column. Its position is on a value, between two neighbouring values, or outside the column's range.
//!
//! Invariant: positions are exact. A constant without an exact position (a float compared with integers beyond its
//! precision, an overflowing cast, a timestamp with a time zone compared with one without) gives `None`, and the caller
//! ignores the filter.

use std::sync::Arc;

use arrow::array::{ArrayRef, new_null_array};
use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use keyaki_store::{Column, ColumnType, KeyCodec, Schema};

use super::interval::Value;

/// The position of a constant among the non-null values of a column.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ValuePosition {
    At(Value),
    /// Above this value and below the next one.
    After(Value),
    /// Below every value of the column's type.
    Below,
    /// Above every value of the column's type.
    Above,
}

/// The domain of one key column: its type and the encoding of its values.
#[derive(Debug)]
pub(super) struct Domain {
    ty: ColumnType,
    codec: KeyCodec,
}

impl Domain {
    pub fn new(ty: ColumnType) -> Self {
        let column = Column { name: "value".into(), ty, nullable: true };
        Domain { ty, codec: KeyCodec::new(&Schema::new(vec![column], 1)) }
    }

    pub fn ty(&self) -> ColumnType {
        self.ty
    }

    /// True for floats. Operators and key encodings may order -0, 0 and NaN differently, so ranges of floats are never
    /// exact.
    pub fn is_float(&self) -> bool {
        matches!(self.ty, ColumnType::Float32 | ColumnType::Float64)
    }

    /// Null, which sorts before all values.
    pub fn null(&self) -> Value {
        self.value(new_null_array(&self.ty.arrow(), 1))
    }

    /// Encodes an array of one value.
    pub fn value(&self, array: ArrayRef) -> Value {
        let mut sort = Vec::new();
        self.codec.encode(std::slice::from_ref(&array), 0, &mut sort);
        Value { sort, array }
    }

    fn scalar(&self, scalar: &ScalarValue) -> Option<Value> {
        let array = scalar.to_array().ok()?;
        (array.data_type() == &self.ty.arrow()).then(|| self.value(array))
    }

    /// True if a cast of the column to `to` maps distinct values to distinct values in the same order. Values that
    /// overflow `to` give an error or null.
    pub fn casts_losslessly(&self, to: &DataType) -> bool {
        use ColumnType as C;
        use DataType as D;
        if *to == self.ty.arrow() {
            return true;
        }
        match (self.ty, to) {
            (C::Int8, D::Int16 | D::Int32 | D::Int64 | D::Float32 | D::Float64) => true,
            (C::Int16, D::Int32 | D::Int64 | D::Float32 | D::Float64) => true,
            (C::Int32, D::Int64 | D::Float64) => true,
            (C::Int8, D::Decimal128(p, s) | D::Decimal256(p, s)) => whole_digits(*p, *s) >= 3 && *s >= 0,
            (C::Int16, D::Decimal128(p, s) | D::Decimal256(p, s)) => whole_digits(*p, *s) >= 5 && *s >= 0,
            (C::Int32, D::Decimal128(p, s) | D::Decimal256(p, s)) => whole_digits(*p, *s) >= 10 && *s >= 0,
            (C::Int64, D::Decimal128(p, s) | D::Decimal256(p, s)) => whole_digits(*p, *s) >= 19 && *s >= 0,
            (C::Decimal { precision, scale }, D::Decimal128(p, s) | D::Decimal256(p, s)) => {
                whole_digits(*p, *s) >= whole_digits(precision, scale) && *s >= scale
            }
            (C::Text, D::Utf8 | D::LargeUtf8 | D::Utf8View) => true,
            (C::Bytes, D::Binary | D::LargeBinary | D::BinaryView) => true,
            (C::Date, D::Timestamp(TimeUnit::Second | TimeUnit::Millisecond | TimeUnit::Microsecond, None)) => true,
            (C::Timestamp { utc: true }, D::Timestamp(TimeUnit::Microsecond, Some(_))) => true,
            (C::Time, D::Time64(_)) => true,
            _ => false,
        }
    }

    /// Position of a constant that the column, or a lossless cast of it, is compared with. Returns `None` for null and
    /// for constants without an exact position.
    pub fn place(&self, constant: &ScalarValue) -> Option<ValuePosition> {
        if constant.is_null() {
            return None;
        }
        if let ScalarValue::Dictionary(_, inner) = constant {
            return self.place(inner);
        }
        match self.ty {
            ColumnType::Boolean => self.scalar(constant).map(ValuePosition::At),
            ColumnType::Float32 | ColumnType::Float64 => self.place_float(constant),
            ColumnType::Text => {
                let text = constant.try_as_str()??;
                self.scalar(&ScalarValue::Utf8View(Some(text.to_owned()))).map(ValuePosition::At)
            }
            ColumnType::Bytes => match constant {
                ScalarValue::Binary(Some(bytes))
                | ScalarValue::LargeBinary(Some(bytes))
                | ScalarValue::BinaryView(Some(bytes)) => {
                    self.scalar(&ScalarValue::BinaryView(Some(bytes.clone()))).map(ValuePosition::At)
                }
                _ => None,
            },
            ColumnType::Uuid => self.scalar(constant).map(ValuePosition::At),
            _ => self.place_number(Number::new(constant)?),
        }
    }

    fn place_float(&self, constant: &ScalarValue) -> Option<ValuePosition> {
        let usable = match constant {
            ScalarValue::Float32(Some(value)) => !value.is_nan(),
            ScalarValue::Float64(Some(value)) => !value.is_nan(),
            _ => false,
        };
        if usable { self.scalar(constant).map(ValuePosition::At) } else { None }
    }

    fn place_number(&self, number: Number) -> Option<ValuePosition> {
        let unit = Kind::of_column(self.ty)?;
        let (floor, exact) = number.in_units_of(unit)?;
        let (min, max) = self.limits()?;
        Some(if floor < min {
            ValuePosition::Below
        } else if floor > max || (floor == max && !exact) {
            ValuePosition::Above
        } else if exact {
            ValuePosition::At(self.scalar(&self.number(floor)?)?)
        } else {
            ValuePosition::After(self.scalar(&self.number(floor)?)?)
        })
    }

    /// Minimum and maximum of an integer, decimal, date or timestamp type, in units of the type.
    fn limits(&self) -> Option<(i128, i128)> {
        Some(match self.ty {
            ColumnType::Int8 => (i8::MIN.into(), i8::MAX.into()),
            ColumnType::Int16 => (i16::MIN.into(), i16::MAX.into()),
            ColumnType::Int32 | ColumnType::Date => (i32::MIN.into(), i32::MAX.into()),
            ColumnType::Int64 | ColumnType::Timestamp { .. } => (i64::MIN.into(), i64::MAX.into()),
            ColumnType::Time => (0, DAY_NS / 1000 - 1),
            ColumnType::Decimal { precision, .. } => {
                let end = power_of_ten(u32::from(precision))?;
                (1 - end, end - 1)
            }
            _ => return None,
        })
    }

    /// Converts a number of units within [`Self::limits`] to a value of the column's type.
    fn number(&self, value: i128) -> Option<ScalarValue> {
        Some(match self.ty {
            ColumnType::Int8 => ScalarValue::Int8(Some(value.try_into().ok()?)),
            ColumnType::Int16 => ScalarValue::Int16(Some(value.try_into().ok()?)),
            ColumnType::Int32 => ScalarValue::Int32(Some(value.try_into().ok()?)),
            ColumnType::Int64 => ScalarValue::Int64(Some(value.try_into().ok()?)),
            ColumnType::Date => ScalarValue::Date32(Some(value.try_into().ok()?)),
            ColumnType::Decimal { precision, scale } => ScalarValue::Decimal128(Some(value), precision, scale),
            ColumnType::Timestamp { utc } => {
                let zone: Option<Arc<str>> = utc.then(|| "+00:00".into());
                ScalarValue::TimestampMicrosecond(Some(value.try_into().ok()?), zone)
            }
            ColumnType::Time => ScalarValue::Time64Microsecond(Some(value.try_into().ok()?)),
            _ => return None,
        })
    }
}

/// Digits before the decimal point.
fn whole_digits(precision: u8, scale: i8) -> i32 {
    i32::from(precision) - i32::from(scale)
}

/// 10^`exponent`, or `None` on overflow.
fn power_of_ten(exponent: u32) -> Option<i128> {
    10i128.checked_pow(exponent)
}

/// Unit of a number. Plain numbers, timestamps with a zone, timestamps without one and times of day are not comparable.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// Units of 10^-scale.
    Plain { scale: i32 },
    /// Units of `nanoseconds`, counted from 1970.
    Time { nanoseconds: i128, zone: bool },
    /// Units of `nanoseconds`, counted from midnight.
    OfDay { nanoseconds: i128 },
}

const DAY_NS: i128 = 86_400_000_000_000;

impl Kind {
    fn of_column(ty: ColumnType) -> Option<Kind> {
        match ty {
            ColumnType::Int8 | ColumnType::Int16 | ColumnType::Int32 | ColumnType::Int64 => {
                Some(Kind::Plain { scale: 0 })
            }
            ColumnType::Decimal { scale, .. } => Some(Kind::Plain { scale: scale.into() }),
            ColumnType::Date => Some(Kind::Time { nanoseconds: DAY_NS, zone: false }),
            ColumnType::Timestamp { utc } => Some(Kind::Time { nanoseconds: 1000, zone: utc }),
            ColumnType::Time => Some(Kind::OfDay { nanoseconds: 1000 }),
            _ => None,
        }
    }
}

/// An exact number: `value` units of `kind`.
#[derive(Debug, Clone, Copy)]
struct Number {
    value: i128,
    /// The number is `value` plus a positive fraction of a unit, which is not represented.
    truncated: bool,
    kind: Kind,
}

impl Number {
    fn new(constant: &ScalarValue) -> Option<Number> {
        use ScalarValue as S;
        let plain = |value: i128| Some(Number { value, truncated: false, kind: Kind::Plain { scale: 0 } });
        let time = |value: i64, nanoseconds: i128, zone: bool| {
            Some(Number { value: value.into(), truncated: false, kind: Kind::Time { nanoseconds, zone } })
        };
        let of_day = |value: i64, nanoseconds: i128| {
            Some(Number { value: value.into(), truncated: false, kind: Kind::OfDay { nanoseconds } })
        };
        match constant {
            S::Int8(Some(v)) => plain((*v).into()),
            S::Int16(Some(v)) => plain((*v).into()),
            S::Int32(Some(v)) => plain((*v).into()),
            S::Int64(Some(v)) => plain((*v).into()),
            S::UInt8(Some(v)) => plain((*v).into()),
            S::UInt16(Some(v)) => plain((*v).into()),
            S::UInt32(Some(v)) => plain((*v).into()),
            S::UInt64(Some(v)) => plain((*v).into()),
            S::Float32(Some(v)) => Number::float((*v).into()),
            S::Float64(Some(v)) => Number::float(*v),
            S::Decimal128(Some(v), _, scale) => {
                Some(Number { value: *v, truncated: false, kind: Kind::Plain { scale: (*scale).into() } })
            }
            S::Decimal256(Some(v), _, scale) => {
                Some(Number { value: v.to_i128()?, truncated: false, kind: Kind::Plain { scale: (*scale).into() } })
            }
            S::Time64Microsecond(Some(v)) => of_day(*v, 1000),
            S::Time64Nanosecond(Some(v)) => of_day(*v, 1),
            S::Date32(Some(v)) => time((*v).into(), DAY_NS, false),
            S::TimestampSecond(Some(v), zone) => time(*v, 1_000_000_000, zone.is_some()),
            S::TimestampMillisecond(Some(v), zone) => time(*v, 1_000_000, zone.is_some()),
            S::TimestampMicrosecond(Some(v), zone) => time(*v, 1_000, zone.is_some()),
            S::TimestampNanosecond(Some(v), zone) => time(*v, 1, zone.is_some()),
            _ => None,
        }
    }

    fn float(value: f64) -> Option<Number> {
        // Integer columns end at 2^63. Up to 1e30, far below 2^127, the conversion of the floor is exact.
        if !value.is_finite() || value.abs() > 1e30 {
            return None;
        }
        let floor = value.floor();
        Some(Number { value: floor as i128, truncated: floor != value, kind: Kind::Plain { scale: 0 } })
    }

    /// Rounds the number down to whole units of `unit`. The second value is true if the result is exact. Returns `None`
    /// if the units are not comparable.
    fn in_units_of(self, unit: Kind) -> Option<(i128, bool)> {
        let (numerator, denominator) = match (self.kind, unit) {
            (Kind::Plain { scale: from }, Kind::Plain { scale: to }) => {
                let power = power_of_ten(from.abs_diff(to))?;
                if to >= from { (power, 1) } else { (1, power) }
            }
            (Kind::Time { nanoseconds: from, zone: a }, Kind::Time { nanoseconds: to, zone: b }) if a == b => {
                if from >= to { (from / to, 1) } else { (1, to / from) }
            }
            (Kind::OfDay { nanoseconds: from }, Kind::OfDay { nanoseconds: to }) => {
                if from >= to {
                    (from / to, 1)
                } else {
                    (1, to / from)
                }
            }
            _ => return None,
        };
        if self.truncated && numerator != 1 {
            return None;
        }
        let value = match self.value.checked_mul(numerator) {
            Some(value) => value,
            // Out of range for every column type.
            None if self.value < 0 => i128::MIN,
            None => i128::MAX,
        };
        let exact = value.rem_euclid(denominator) == 0 && !self.truncated;
        Some((value.div_euclid(denominator), exact))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floor(constant: &ScalarValue, ty: ColumnType) -> Option<(i128, bool)> {
        Number::new(constant)?.in_units_of(Kind::of_column(ty)?)
    }

    #[test]
    fn numbers_are_rounded_down_to_the_column_scale() {
        let cents = ColumnType::Decimal { precision: 15, scale: 2 };
        let decimal = |value, scale| ScalarValue::Decimal128(Some(value), 30, scale);
        assert_eq!(floor(&decimal(1005, 3), cents), Some((100, false)));
        assert_eq!(floor(&decimal(-1005, 3), cents), Some((-101, false)));
        assert_eq!(floor(&decimal(1000, 3), cents), Some((100, true)));
        assert_eq!(floor(&decimal(7, 0), cents), Some((700, true)));
        assert_eq!(floor(&decimal(7, -2), cents), Some((70000, true)));
        assert_eq!(floor(&decimal(i128::MAX, 0), cents), Some((i128::MAX, true)));
        assert_eq!(floor(&ScalarValue::Int64(Some(-3)), cents), Some((-300, true)));
        assert_eq!(floor(&ScalarValue::Float64(Some(2.5)), ColumnType::Int32), Some((2, false)));
        assert_eq!(floor(&ScalarValue::Float64(Some(-2.5)), ColumnType::Int32), Some((-3, false)));
        assert_eq!(floor(&ScalarValue::Float64(Some(f64::NAN)), ColumnType::Int32), None);
        assert_eq!(floor(&ScalarValue::Float64(Some(0.5)), cents), None);
    }

    #[test]
    fn timestamps_are_rounded_down_to_the_column_unit() {
        let second = |value| ScalarValue::TimestampSecond(Some(value), None);
        assert_eq!(floor(&second(86_400), ColumnType::Date), Some((1, true)));
        assert_eq!(floor(&second(-1), ColumnType::Date), Some((-1, false)));
        assert_eq!(floor(&second(2), ColumnType::Timestamp { utc: false }), Some((2_000_000, true)));
        assert_eq!(floor(&second(2), ColumnType::Timestamp { utc: true }), None);
        let nanos = ScalarValue::TimestampNanosecond(Some(1999), None);
        assert_eq!(floor(&nanos, ColumnType::Timestamp { utc: false }), Some((1, false)));
        assert_eq!(floor(&ScalarValue::Int64(Some(2)), ColumnType::Date), None);
        assert_eq!(floor(&ScalarValue::Date32(Some(1)), ColumnType::Int32), None);
    }

    #[test]
    fn times_of_day_are_rounded_down_to_microseconds() {
        let nanos = |value| ScalarValue::Time64Nanosecond(Some(value));
        assert_eq!(floor(&nanos(1999), ColumnType::Time), Some((1, false)));
        assert_eq!(floor(&ScalarValue::Time64Microsecond(Some(7)), ColumnType::Time), Some((7, true)));
        assert_eq!(floor(&nanos(1000), ColumnType::Timestamp { utc: false }), None);
        assert_eq!(floor(&ScalarValue::Int64(Some(7)), ColumnType::Time), None);
    }

    #[test]
    fn lossless_casts_are_recognised() {
        let lossless = |ty, to| Domain { ty, codec: KeyCodec::new(&Schema::key_value()) }.casts_losslessly(&to);
        assert!(lossless(ColumnType::Int32, DataType::Int64));
        assert!(lossless(ColumnType::Int32, DataType::Float64));
        assert!(!lossless(ColumnType::Int64, DataType::Float64));
        assert!(!lossless(ColumnType::Int64, DataType::Int32));
        assert!(lossless(ColumnType::Decimal { precision: 15, scale: 2 }, DataType::Decimal128(30, 15)));
        assert!(!lossless(ColumnType::Decimal { precision: 15, scale: 2 }, DataType::Decimal128(15, 1)));
        assert!(!lossless(ColumnType::Text, DataType::Int64));
        assert!(!lossless(ColumnType::Timestamp { utc: false }, DataType::Date32));
    }
}

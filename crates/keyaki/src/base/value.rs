//! Single values: parameters of statements and columns of rows, outside Arrow arrays.
//!
//! [`Value`] owns its text and bytes, [`ValueRef`] borrows them. Both have one variant for each family of SQL types, not
//! one for each type: an INTEGER and a BIGINT are both `Integer`. The type of the parameter or column decides the rest.

use std::fmt;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int64Array,
    IntervalMonthDayNanoArray, NullArray, StringViewArray, Time64MicrosecondArray, TimestampMicrosecondArray,
};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNano, IntervalMonthDayNanoType, Time64MicrosecondType, TimeUnit, TimestampMicrosecondType,
};
use uuid::Uuid;

use super::elements::{Elements, elements_at, has_elements};
use super::{intervals, uuids};

/// Maximum number of decimal digits of a [`Value::Decimal`].
pub(crate) const DECIMAL_DIGITS_MAX: u8 = 38;

/// A value that owns its text or bytes.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Value {
    /// NULL.
    #[default]
    Null,
    /// BOOLEAN.
    Boolean(bool),
    /// TINYINT, SMALLINT, INTEGER and BIGINT.
    Integer(i64),
    /// REAL and DOUBLE PRECISION.
    Float(f64),
    /// DECIMAL: `unscaled` / 10^`scale`.
    Decimal {
        /// The digits as an integer.
        unscaled: i128,
        /// Number of digits after the decimal point, 0 to 38.
        scale: u8,
    },
    /// TEXT and VARCHAR.
    Text(String),
    /// BYTEA.
    Bytes(Vec<u8>),
    /// DATE: days since 1970-01-01.
    Date(i32),
    /// TIMESTAMP: microseconds since 1970-01-01 00:00:00, without a time zone.
    Timestamp(i64),
    /// TIMESTAMPTZ: microseconds since 1970-01-01 00:00:00 UTC.
    TimestampTz(i64),
    /// TIME: microseconds since midnight.
    Time(i64),
    /// UUID.
    Uuid(Uuid),
    /// INTERVAL. Values in tables have up to 9,223,372,036,854,775 microseconds, about 292 years.
    Interval {
        /// Months; a year has 12.
        months: i32,
        /// Days, which are not converted to months.
        days: i32,
        /// The time in microseconds, which are not converted to days.
        micros: i64,
    },
    /// An array. Its elements should be of one type, or NULL.
    Array(Vec<Value>),
}

/// A value that borrows its text or bytes; see [`Value`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[expect(missing_docs, reason = "the variants are those of `Value`")]
pub enum ValueRef<'a> {
    #[default]
    Null,
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Decimal {
        unscaled: i128,
        scale: u8,
    },
    Text(&'a str),
    Bytes(&'a [u8]),
    Date(i32),
    Timestamp(i64),
    TimestampTz(i64),
    Time(i64),
    Uuid(Uuid),
    Interval {
        months: i32,
        days: i32,
        micros: i64,
    },
    Array(Elements<'a>),
}

impl Value {
    /// The value, borrowed.
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Value::Null => ValueRef::Null,
            Value::Boolean(value) => ValueRef::Boolean(*value),
            Value::Integer(value) => ValueRef::Integer(*value),
            Value::Float(value) => ValueRef::Float(*value),
            Value::Decimal { unscaled, scale } => ValueRef::Decimal { unscaled: *unscaled, scale: *scale },
            Value::Text(text) => ValueRef::Text(text),
            Value::Bytes(bytes) => ValueRef::Bytes(bytes),
            Value::Date(days) => ValueRef::Date(*days),
            Value::Timestamp(micros) => ValueRef::Timestamp(*micros),
            Value::TimestampTz(micros) => ValueRef::TimestampTz(*micros),
            Value::Time(micros) => ValueRef::Time(*micros),
            Value::Uuid(uuid) => ValueRef::Uuid(*uuid),
            Value::Interval { months, days, micros } => {
                ValueRef::Interval { months: *months, days: *days, micros: *micros }
            }
            Value::Array(values) => ValueRef::Array(values.as_slice().into()),
        }
    }
}

impl ValueRef<'_> {
    /// A copy that owns its text or bytes.
    pub fn to_owned(self) -> Value {
        match self {
            ValueRef::Null => Value::Null,
            ValueRef::Boolean(value) => Value::Boolean(value),
            ValueRef::Integer(value) => Value::Integer(value),
            ValueRef::Float(value) => Value::Float(value),
            ValueRef::Decimal { unscaled, scale } => Value::Decimal { unscaled, scale },
            ValueRef::Text(text) => Value::Text(text.into()),
            ValueRef::Bytes(bytes) => Value::Bytes(bytes.into()),
            ValueRef::Date(days) => Value::Date(days),
            ValueRef::Timestamp(micros) => Value::Timestamp(micros),
            ValueRef::TimestampTz(micros) => Value::TimestampTz(micros),
            ValueRef::Time(micros) => Value::Time(micros),
            ValueRef::Uuid(uuid) => Value::Uuid(uuid),
            ValueRef::Interval { months, days, micros } => Value::Interval { months, days, micros },
            ValueRef::Array(elements) => Value::Array(elements.iter().map(ValueRef::to_owned).collect()),
        }
    }

    /// True for NULL.
    pub fn is_null(&self) -> bool {
        *self == ValueRef::Null
    }

    /// PostgreSQL's name of the type that a literal with this value would have; `"unknown"` for NULL.
    pub fn type_name(&self) -> &'static str {
        match self {
            ValueRef::Null => "unknown",
            ValueRef::Boolean(_) => "boolean",
            ValueRef::Integer(_) => "bigint",
            ValueRef::Float(_) => "double precision",
            ValueRef::Decimal { .. } => "numeric",
            ValueRef::Text(_) => "text",
            ValueRef::Bytes(_) => "bytea",
            ValueRef::Date(_) => "date",
            ValueRef::Timestamp(_) => "timestamp without time zone",
            ValueRef::TimestampTz(_) => "timestamp with time zone",
            ValueRef::Time(_) => "time",
            ValueRef::Uuid(_) => "uuid",
            ValueRef::Interval { .. } => "interval",
            ValueRef::Array(_) => "array",
        }
    }

    /// An array with this value only, of the widest type of its family.
    pub(crate) fn to_array(self) -> ArrayRef {
        match self {
            ValueRef::Null => Arc::new(NullArray::new(1)),
            ValueRef::Boolean(value) => Arc::new(BooleanArray::from(vec![value])),
            ValueRef::Integer(value) => Arc::new(Int64Array::from_value(value, 1)),
            // Canonical: one zero and one NaN.
            ValueRef::Float(value) if value.is_nan() => Arc::new(Float64Array::from_value(f64::NAN, 1)),
            ValueRef::Float(value) => Arc::new(Float64Array::from_value(value + 0.0, 1)),
            ValueRef::Decimal { unscaled, scale } => {
                let scale = scale.min(DECIMAL_DIGITS_MAX);
                let array = Decimal128Array::from_value(unscaled, 1);
                // Precision 38 admits every scale up to 38.
                Arc::new(array.with_data_type(DataType::Decimal128(DECIMAL_DIGITS_MAX, scale as i8)))
            }
            ValueRef::Text(text) => Arc::new(StringViewArray::from_iter_values([text])),
            ValueRef::Bytes(bytes) => Arc::new(BinaryViewArray::from_iter_values([bytes])),
            ValueRef::Date(days) => Arc::new(Date32Array::from_value(days, 1)),
            ValueRef::Timestamp(micros) => Arc::new(TimestampMicrosecondArray::from_value(micros, 1)),
            ValueRef::TimestampTz(micros) => {
                Arc::new(TimestampMicrosecondArray::from_value(micros, 1).with_timezone("+00:00"))
            }
            ValueRef::Time(micros) => Arc::new(Time64MicrosecondArray::from_value(micros, 1)),
            ValueRef::Uuid(uuid) => Arc::new(uuids::array([Some(uuid)].into_iter())),
            ValueRef::Interval { months, days, micros } => {
                // A number of nanoseconds that does not fit becomes one that cannot be rounded to microseconds, which
                // is out of range for columns and parameters.
                let nanoseconds = micros.saturating_mul(intervals::NANOS_PER_MICRO);
                Arc::new(IntervalMonthDayNanoArray::from_value(IntervalMonthDayNano { months, days, nanoseconds }, 1))
            }
            ValueRef::Array(elements) => elements.to_array(),
        }
    }
}

/// True if [`value_at`] reads arrays of this type.
pub(crate) fn has_values(ty: &DataType) -> bool {
    match ty {
        DataType::Null
        | DataType::Boolean
        | DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::Float32
        | DataType::Float64
        | DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::Date32
        | DataType::Time64(TimeUnit::Microsecond)
        | DataType::FixedSizeBinary(uuids::UUID_LEN)
        | &intervals::INTERVAL
        | DataType::Timestamp(TimeUnit::Microsecond, _) => true,
        DataType::Decimal128(_, scale) => *scale >= 0,
        ty => has_elements(ty),
    }
}

/// The value at `row` of an array of a column type; `None` if the array has another type.
pub(crate) fn value_at(array: &dyn Array, row: usize) -> Option<ValueRef<'_>> {
    if array.is_null(row) || *array.data_type() == DataType::Null {
        return Some(ValueRef::Null);
    }
    Some(match array.data_type() {
        DataType::Boolean => ValueRef::Boolean(array.as_boolean().value(row)),
        DataType::Int8 => ValueRef::Integer(array.as_primitive::<Int8Type>().value(row).into()),
        DataType::Int16 => ValueRef::Integer(array.as_primitive::<Int16Type>().value(row).into()),
        DataType::Int32 => ValueRef::Integer(array.as_primitive::<Int32Type>().value(row).into()),
        DataType::Int64 => ValueRef::Integer(array.as_primitive::<Int64Type>().value(row)),
        DataType::Float32 => ValueRef::Float(array.as_primitive::<Float32Type>().value(row).into()),
        DataType::Float64 => ValueRef::Float(array.as_primitive::<Float64Type>().value(row)),
        DataType::Decimal128(_, scale @ 0..) => {
            ValueRef::Decimal { unscaled: array.as_primitive::<Decimal128Type>().value(row), scale: *scale as u8 }
        }
        DataType::Utf8 => ValueRef::Text(array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => ValueRef::Text(array.as_string::<i64>().value(row)),
        DataType::Utf8View => ValueRef::Text(array.as_string_view().value(row)),
        DataType::Binary => ValueRef::Bytes(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => ValueRef::Bytes(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => ValueRef::Bytes(array.as_binary_view().value(row)),
        DataType::Date32 => ValueRef::Date(array.as_primitive::<Date32Type>().value(row)),
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            let micros = array.as_primitive::<TimestampMicrosecondType>().value(row);
            if zone.is_some() { ValueRef::TimestampTz(micros) } else { ValueRef::Timestamp(micros) }
        }
        DataType::Time64(TimeUnit::Microsecond) => {
            ValueRef::Time(array.as_primitive::<Time64MicrosecondType>().value(row))
        }
        DataType::FixedSizeBinary(uuids::UUID_LEN) => ValueRef::Uuid(uuids::uuid_at(array.as_fixed_size_binary(), row)),
        &intervals::INTERVAL => {
            let interval = array.as_primitive::<IntervalMonthDayNanoType>().value(row);
            let IntervalMonthDayNano { months, days, nanoseconds } = intervals::rounded(interval).unwrap_or(interval);
            ValueRef::Interval { months, days, micros: nanoseconds / intervals::NANOS_PER_MICRO }
        }
        _ => return elements_at(array, row),
    })
}

impl fmt::Display for ValueRef<'_> {
    /// The value as SQL text prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueRef::Null => f.write_str("NULL"),
            ValueRef::Text(text) => f.write_str(text),
            ValueRef::Bytes(bytes) => {
                f.write_str("\\x")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            ValueRef::Uuid(uuid) => uuid.fmt(f),
            ValueRef::Interval { months, days, micros } => intervals::write(*months, *days, *micros, 6, f),
            ValueRef::Array(elements) => elements.fmt(f),
            other => {
                let array = other.to_array();
                match arrow::util::display::array_value_to_string(&array, 0) {
                    Ok(text) => f.write_str(&text),
                    Err(_) => write!(f, "{other:?}"),
                }
            }
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_the_way_through_an_array() {
        let values = [
            Value::Null,
            Value::Boolean(true),
            Value::Integer(i64::MIN),
            Value::Float(-0.5),
            Value::Decimal { unscaled: -12345, scale: 2 },
            Value::Decimal { unscaled: i128::from(i64::MAX) * 1000, scale: 38 },
            Value::Text("größer als zwölf Bytes".into()),
            Value::Bytes(vec![0, 255]),
            Value::Date(-1),
            Value::Timestamp(1),
            Value::TimestampTz(-1),
            Value::Time(86_399_999_999),
            Value::Uuid(Uuid::from_u128(7)),
            Value::Interval { months: i32::MIN, days: i32::MAX, micros: -9_223_372_036_854_775 },
            Value::Array(vec![]),
            Value::Array(vec![Value::Null, Value::Integer(1)]),
            Value::Array(vec![Value::Array(vec![Value::Text("a".into())]), Value::Array(vec![]), Value::Null]),
        ];
        for value in values {
            let array = value.as_ref().to_array();
            assert_eq!(value_at(&array, 0).unwrap().to_owned(), value);
        }
        assert!(value_at(&arrow::array::IntervalDayTimeArray::from(vec![None::<_>; 1]), 0).unwrap().is_null());
    }

    #[test]
    fn values_print_as_in_sql() {
        assert_eq!(Value::Decimal { unscaled: -12345, scale: 2 }.to_string(), "-123.45");
        assert_eq!(Value::Bytes(vec![0, 255]).to_string(), "\\x00ff");
        assert_eq!(Value::Date(0).to_string(), "1970-01-01");
        assert_eq!(Value::Time(36_000_500_000).to_string(), "10:00:00.500");
        assert_eq!(Value::Uuid(Uuid::from_u128(7)).to_string(), "00000000-0000-0000-0000-000000000007");
        let interval = Value::Interval { months: 14, days: -3, micros: 500_000 };
        assert_eq!(interval.to_string(), "1 year 2 mons -3 days +00:00:00.5");
        assert_eq!(Value::Null.to_string(), "NULL");
        let array = |values: &[Value]| Value::Array(values.to_vec());
        let text = |text: &str| Value::Text(text.into());
        assert_eq!(array(&[text("a b"), Value::Null, text(""), text("x")]).to_string(), "{\"a b\",NULL,\"\",x}");
        assert_eq!(array(&[array(&[Value::Integer(1)]), array(&[])]).to_string(), "{{1},{}}");
    }
}

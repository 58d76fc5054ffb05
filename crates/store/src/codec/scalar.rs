//! A single value of any column type: the form in which keys, message rows, pages and Arrow arrays exchange values.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNanoType, Time64MicrosecondType, TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef, BinaryViewArray, StringViewArray};
use arrow_buffer::{BooleanBuffer, IntervalMonthDayNano, NullBuffer};

use super::lists;
use crate::base::{ColumnType, UUID_LEN, uuids, wide_of_interval, wide_of_uuid};

/// A value of any column type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scalar<'a> {
    Null,
    /// A boolean (0 or 1), an integer, a date, a time, a timestamp, or the sign-extended bits of a float.
    Word(i64),
    /// A decimal, or the number of a UUID or an interval.
    Wide(i128),
    /// Text, bytes or an encoded list, the concatenation of two parts.
    Bytes(&'a [u8], &'a [u8]),
}

/// Length in bytes of a value of type `ty` in keys and message rows; `None` for text, bytes and lists.
pub(crate) fn fixed_len(ty: ColumnType) -> Option<usize> {
    match ty {
        ColumnType::Boolean | ColumnType::Int8 => Some(1),
        ColumnType::Int16 => Some(2),
        ColumnType::Int32 | ColumnType::Float32 | ColumnType::Date => Some(4),
        ColumnType::Int64 | ColumnType::Float64 | ColumnType::Timestamp { .. } | ColumnType::Time => Some(8),
        ColumnType::Decimal { .. } | ColumnType::Uuid | ColumnType::Interval => Some(16),
        ColumnType::Text | ColumnType::Bytes | ColumnType::List(_) => None,
    }
}

/// An array with its type resolved once, for fast access by row.
#[derive(Debug)]
pub(crate) struct Values<'a> {
    nulls: Option<&'a NullBuffer>,
    typed: Typed<'a>,
}

#[derive(Debug)]
enum Typed<'a> {
    Boolean(&'a BooleanBuffer),
    Int8(&'a [i8]),
    Int16(&'a [i16]),
    Int32(&'a [i32]),
    Int64(&'a [i64]),
    Float32(&'a [f32]),
    Float64(&'a [f64]),
    Decimal(&'a [i128]),
    Text(&'a StringViewArray),
    Bytes(&'a BinaryViewArray),
    Uuid(&'a [[u8; UUID_LEN]]),
    Interval(&'a [IntervalMonthDayNano]),
    /// Encoded lists, boxed because they would make all others larger.
    Lists(Box<BinaryViewArray>),
}

impl<'a> Values<'a> {
    /// # Panics
    /// If `array` does not have the Arrow type of `ty`.
    pub(crate) fn new(array: &'a ArrayRef, ty: ColumnType) -> Self {
        let typed = match ty {
            ColumnType::Boolean => Typed::Boolean(array.as_boolean().values()),
            ColumnType::Int8 => Typed::Int8(array.as_primitive::<Int8Type>().values()),
            ColumnType::Int16 => Typed::Int16(array.as_primitive::<Int16Type>().values()),
            ColumnType::Int32 => Typed::Int32(array.as_primitive::<Int32Type>().values()),
            ColumnType::Date => Typed::Int32(array.as_primitive::<Date32Type>().values()),
            ColumnType::Int64 => Typed::Int64(array.as_primitive::<Int64Type>().values()),
            ColumnType::Timestamp { .. } => Typed::Int64(array.as_primitive::<TimestampMicrosecondType>().values()),
            ColumnType::Time => Typed::Int64(array.as_primitive::<Time64MicrosecondType>().values()),
            ColumnType::Float32 => Typed::Float32(array.as_primitive::<Float32Type>().values()),
            ColumnType::Float64 => Typed::Float64(array.as_primitive::<Float64Type>().values()),
            ColumnType::Decimal { .. } => Typed::Decimal(array.as_primitive::<Decimal128Type>().values()),
            ColumnType::Text => Typed::Text(array.as_string_view()),
            ColumnType::Bytes => Typed::Bytes(array.as_binary_view()),
            ColumnType::Uuid => Typed::Uuid(uuids(array)),
            ColumnType::Interval => Typed::Interval(array.as_primitive::<IntervalMonthDayNanoType>().values()),
            ColumnType::List(ty) => Typed::Lists(Box::new(lists::encode(array.as_list(), ty))),
        };
        Values { nulls: array.nulls(), typed }
    }

    /// The value of row `row`.
    ///
    /// # Panics
    /// If `row` is out of bounds.
    #[inline]
    pub(crate) fn get(&self, row: usize) -> Scalar<'_> {
        if self.nulls.is_some_and(|nulls| nulls.is_null(row)) {
            return Scalar::Null;
        }
        match &self.typed {
            Typed::Boolean(values) => Scalar::Word(values.value(row).into()),
            Typed::Int8(values) => Scalar::Word(values[row].into()),
            Typed::Int16(values) => Scalar::Word(values[row].into()),
            Typed::Int32(values) => Scalar::Word(values[row].into()),
            Typed::Int64(values) => Scalar::Word(values[row]),
            Typed::Float32(values) => Scalar::Word((values[row].to_bits() as i32).into()),
            Typed::Float64(values) => Scalar::Word(values[row].to_bits() as i64),
            Typed::Decimal(values) => Scalar::Wide(values[row]),
            Typed::Text(values) => Scalar::Bytes(values.value(row).as_bytes(), &[]),
            Typed::Bytes(values) => Scalar::Bytes(values.value(row), &[]),
            Typed::Uuid(values) => Scalar::Wide(wide_of_uuid(&values[row])),
            Typed::Interval(values) => Scalar::Wide(wide_of_interval(&values[row])),
            Typed::Lists(values) => Scalar::Bytes(values.value(row), &[]),
        }
    }
}

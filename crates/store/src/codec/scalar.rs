//! One value, and where it comes from: the meeting point of keys, message rows and pages.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef, BinaryViewArray, StringViewArray};
use arrow_buffer::{BooleanBuffer, NullBuffer};

use crate::base::ColumnType;

/// A value of any column type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scalar<'a> {
    Null,
    /// Booleans (0, 1), integers, dates, timestamps; floats by their bits (sign-extended).
    Word(i64),
    /// Decimals.
    Wide(i128),
    /// Text and bytes, in two parts.
    Bytes(&'a [u8], &'a [u8]),
}

/// Bytes of a value of a fixed-length type in keys and message rows.
pub(crate) fn fixed_len(ty: ColumnType) -> Option<usize> {
    match ty {
        ColumnType::Boolean | ColumnType::Int8 => Some(1),
        ColumnType::Int16 => Some(2),
        ColumnType::Int32 | ColumnType::Float32 | ColumnType::Date => Some(4),
        ColumnType::Int64 | ColumnType::Float64 | ColumnType::Timestamp { .. } => Some(8),
        ColumnType::Decimal { .. } => Some(16),
        ColumnType::Text | ColumnType::Bytes => None,
    }
}

/// An array whose type was looked at once, for access row by row.
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
}

impl<'a> Values<'a> {
    /// # Panics
    /// If `array` has not the Arrow type of `ty`.
    pub(crate) fn new(array: &'a ArrayRef, ty: ColumnType) -> Self {
        let typed = match ty {
            ColumnType::Boolean => Typed::Boolean(array.as_boolean().values()),
            ColumnType::Int8 => Typed::Int8(array.as_primitive::<Int8Type>().values()),
            ColumnType::Int16 => Typed::Int16(array.as_primitive::<Int16Type>().values()),
            ColumnType::Int32 => Typed::Int32(array.as_primitive::<Int32Type>().values()),
            ColumnType::Date => Typed::Int32(array.as_primitive::<Date32Type>().values()),
            ColumnType::Int64 => Typed::Int64(array.as_primitive::<Int64Type>().values()),
            ColumnType::Timestamp { .. } => Typed::Int64(array.as_primitive::<TimestampMicrosecondType>().values()),
            ColumnType::Float32 => Typed::Float32(array.as_primitive::<Float32Type>().values()),
            ColumnType::Float64 => Typed::Float64(array.as_primitive::<Float64Type>().values()),
            ColumnType::Decimal { .. } => Typed::Decimal(array.as_primitive::<Decimal128Type>().values()),
            ColumnType::Text => Typed::Text(array.as_string_view()),
            ColumnType::Bytes => Typed::Bytes(array.as_binary_view()),
        };
        Values { nulls: array.nulls(), typed }
    }

    /// Row `row`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub(crate) fn get(&self, row: usize) -> Scalar<'a> {
        if self.nulls.is_some_and(|nulls| nulls.is_null(row)) {
            return Scalar::Null;
        }
        match self.typed {
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
        }
    }
}

/// Row `row` of `array`.
///
/// # Panics
/// If `array` has not the Arrow type of `ty` or too few rows.
pub(crate) fn scalar_at(array: &ArrayRef, ty: ColumnType, row: usize) -> Scalar<'_> {
    Values::new(array, ty).get(row)
}

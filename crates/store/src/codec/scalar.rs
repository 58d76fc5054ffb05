//! One value, and where it comes from: the meeting point of keys, message rows and pages.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef};

use crate::{Column, ColumnType, Error, Result};

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

/// Row `row` of `array`.
///
/// # Panics
/// If `array` has not the Arrow type of `ty` or too few rows.
pub(crate) fn scalar_at(array: &ArrayRef, ty: ColumnType, row: usize) -> Scalar<'_> {
    if array.is_null(row) {
        return Scalar::Null;
    }
    match ty {
        ColumnType::Boolean => Scalar::Word(array.as_boolean().value(row).into()),
        ColumnType::Int8 => Scalar::Word(array.as_primitive::<Int8Type>().value(row).into()),
        ColumnType::Int16 => Scalar::Word(array.as_primitive::<Int16Type>().value(row).into()),
        ColumnType::Int32 => Scalar::Word(array.as_primitive::<Int32Type>().value(row).into()),
        ColumnType::Date => Scalar::Word(array.as_primitive::<Date32Type>().value(row).into()),
        ColumnType::Int64 => Scalar::Word(array.as_primitive::<Int64Type>().value(row)),
        ColumnType::Timestamp { .. } => Scalar::Word(array.as_primitive::<TimestampMicrosecondType>().value(row)),
        ColumnType::Float32 => Scalar::Word((array.as_primitive::<Float32Type>().value(row).to_bits() as i32).into()),
        ColumnType::Float64 => Scalar::Word(array.as_primitive::<Float64Type>().value(row).to_bits() as i64),
        ColumnType::Decimal { .. } => Scalar::Wide(array.as_primitive::<Decimal128Type>().value(row)),
        ColumnType::Text => Scalar::Bytes(array.as_string_view().value(row).as_bytes(), &[]),
        ColumnType::Bytes => Scalar::Bytes(array.as_binary_view().value(row), &[]),
    }
}

/// Checks that arrays are what the columns say: type, and no null in a column that has none.
pub(crate) fn check_arrays<'c>(columns: impl Iterator<Item = &'c Column>, arrays: &[ArrayRef]) -> Result<()> {
    for (column, array) in columns.zip(arrays) {
        check_type(column, array)?;
        if !column.nullable && array.null_count() > 0 {
            return Err(Error::Invalid(format!("null in column {:?}, which is not nullable", column.name)));
        }
    }
    Ok(())
}

/// Checks that `array` has the column's Arrow type.
pub(crate) fn check_type(column: &Column, array: &ArrayRef) -> Result<()> {
    let expected = column.ty.arrow();
    if *array.data_type() != expected {
        let found = array.data_type();
        return Err(Error::Invalid(format!("column {:?}: expected {expected}, found {found}", column.name)));
    }
    Ok(())
}

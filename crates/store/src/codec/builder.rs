//! Growing Arrow columns, fed from pages, keys and message rows.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::builder::*;
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{Array, ArrayRef};

use crate::ColumnType;

/// A growing column of one type; see [`ColumnType::arrow`] for what it becomes.
#[derive(Debug)]
pub struct ColumnBuilder {
    pub(crate) ty: ColumnType,
    pub(crate) kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Boolean(BooleanBuilder),
    Int8(Int8Builder),
    Int16(Int16Builder),
    Int32(Int32Builder),
    Int64(Int64Builder),
    Float32(Float32Builder),
    Float64(Float64Builder),
    Decimal(Decimal128Builder),
    Text(StringViewBuilder),
    Bytes(BinaryViewBuilder),
    Date(Date32Builder),
    Timestamp(TimestampMicrosecondBuilder),
}

macro_rules! each {
    ($kind:expr, $b:ident => $e:expr) => {
        match $kind {
            Kind::Boolean($b) => $e,
            Kind::Int8($b) => $e,
            Kind::Int16($b) => $e,
            Kind::Int32($b) => $e,
            Kind::Int64($b) => $e,
            Kind::Float32($b) => $e,
            Kind::Float64($b) => $e,
            Kind::Decimal($b) => $e,
            Kind::Text($b) => $e,
            Kind::Bytes($b) => $e,
            Kind::Date($b) => $e,
            Kind::Timestamp($b) => $e,
        }
    };
}

impl ColumnBuilder {
    pub fn new(ty: ColumnType, capacity: usize) -> Self {
        let kind = match ty {
            ColumnType::Boolean => Kind::Boolean(BooleanBuilder::with_capacity(capacity)),
            ColumnType::Int8 => Kind::Int8(Int8Builder::with_capacity(capacity)),
            ColumnType::Int16 => Kind::Int16(Int16Builder::with_capacity(capacity)),
            ColumnType::Int32 => Kind::Int32(Int32Builder::with_capacity(capacity)),
            ColumnType::Int64 => Kind::Int64(Int64Builder::with_capacity(capacity)),
            ColumnType::Float32 => Kind::Float32(Float32Builder::with_capacity(capacity)),
            ColumnType::Float64 => Kind::Float64(Float64Builder::with_capacity(capacity)),
            ColumnType::Decimal { .. } => {
                Kind::Decimal(Decimal128Builder::with_capacity(capacity).with_data_type(ty.arrow()))
            }
            ColumnType::Text => Kind::Text(StringViewBuilder::with_capacity(capacity)),
            ColumnType::Bytes => Kind::Bytes(BinaryViewBuilder::with_capacity(capacity)),
            ColumnType::Date => Kind::Date(Date32Builder::with_capacity(capacity)),
            ColumnType::Timestamp { .. } => {
                Kind::Timestamp(TimestampMicrosecondBuilder::with_capacity(capacity).with_data_type(ty.arrow()))
            }
        };
        ColumnBuilder { ty, kind }
    }
    pub fn len(&self) -> usize {
        each!(&self.kind, b => b.len())
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Bytes held, approximately.
    pub fn memory_bytes(&self) -> usize {
        self.len() * 16
    }
    pub fn append_nulls(&mut self, count: usize) {
        for _ in 0..count {
            each!(&mut self.kind, b => b.append_null());
        }
    }
    /// Appends the rows `rows` of `array`, which has this builder's Arrow type.
    pub fn append_array(&mut self, array: &ArrayRef, rows: Range<usize>) {
        for row in rows {
            if array.is_null(row) {
                self.append_nulls(1);
                continue;
            }
            match &mut self.kind {
                Kind::Boolean(b) => b.append_value(array.as_boolean().value(row)),
                Kind::Int8(b) => b.append_value(array.as_primitive::<Int8Type>().value(row)),
                Kind::Int16(b) => b.append_value(array.as_primitive::<Int16Type>().value(row)),
                Kind::Int32(b) => b.append_value(array.as_primitive::<Int32Type>().value(row)),
                Kind::Int64(b) => b.append_value(array.as_primitive::<Int64Type>().value(row)),
                Kind::Float32(b) => b.append_value(array.as_primitive::<Float32Type>().value(row)),
                Kind::Float64(b) => b.append_value(array.as_primitive::<Float64Type>().value(row)),
                Kind::Decimal(b) => b.append_value(array.as_primitive::<Decimal128Type>().value(row)),
                Kind::Text(b) => b.append_value(array.as_string_view().value(row)),
                Kind::Bytes(b) => b.append_value(array.as_binary_view().value(row)),
                Kind::Date(b) => b.append_value(array.as_primitive::<Date32Type>().value(row)),
                Kind::Timestamp(b) => b.append_value(array.as_primitive::<TimestampMicrosecondType>().value(row)),
            }
        }
    }
    /// The column so far; the builder is empty afterwards and may be used again.
    pub fn finish(&mut self) -> ArrayRef {
        let array: ArrayRef = each!(&mut self.kind, b => Arc::new(b.finish()));
        array
    }
}

/// Plain little-endian bytes of a value (text and bytes as they are).
pub(crate) fn plain(array: &ArrayRef, row: usize, out: &mut Vec<u8>) {
    use arrow_schema::DataType as D;
    match array.data_type() {
        D::Boolean => out.push(u8::from(array.as_boolean().value(row))),
        D::Int8 => out.extend_from_slice(&array.as_primitive::<Int8Type>().value(row).to_le_bytes()),
        D::Int16 => out.extend_from_slice(&array.as_primitive::<Int16Type>().value(row).to_le_bytes()),
        D::Int32 => out.extend_from_slice(&array.as_primitive::<Int32Type>().value(row).to_le_bytes()),
        D::Int64 => out.extend_from_slice(&array.as_primitive::<Int64Type>().value(row).to_le_bytes()),
        D::Float32 => out.extend_from_slice(&array.as_primitive::<Float32Type>().value(row).to_le_bytes()),
        D::Float64 => out.extend_from_slice(&array.as_primitive::<Float64Type>().value(row).to_le_bytes()),
        D::Decimal128(..) => out.extend_from_slice(&array.as_primitive::<Decimal128Type>().value(row).to_le_bytes()),
        D::Utf8View => out.extend_from_slice(array.as_string_view().value(row).as_bytes()),
        D::BinaryView => out.extend_from_slice(array.as_binary_view().value(row)),
        D::Date32 => out.extend_from_slice(&array.as_primitive::<Date32Type>().value(row).to_le_bytes()),
        D::Timestamp(..) => {
            out.extend_from_slice(&array.as_primitive::<TimestampMicrosecondType>().value(row).to_le_bytes())
        }
        _ => {}
    }
}

impl ColumnBuilder {
    pub(crate) fn append_plain(&mut self, bytes: &[u8]) -> crate::Result<()> {
        let bad = || crate::Error::Invalid("wrong length of a value".into());
        macro_rules! num {
            ($b:expr, $t:ty) => {
                $b.append_value(<$t>::from_le_bytes(bytes.try_into().map_err(|_| bad())?))
            };
        }
        match &mut self.kind {
            Kind::Boolean(b) => b.append_value(bytes.first().copied().ok_or_else(bad)? != 0),
            Kind::Int8(b) => num!(b, i8),
            Kind::Int16(b) => num!(b, i16),
            Kind::Int32(b) => num!(b, i32),
            Kind::Int64(b) => num!(b, i64),
            Kind::Float32(b) => num!(b, f32),
            Kind::Float64(b) => num!(b, f64),
            Kind::Decimal(b) => num!(b, i128),
            Kind::Text(b) => b.append_value(std::str::from_utf8(bytes).map_err(|_| bad())?),
            Kind::Bytes(b) => b.append_value(bytes),
            Kind::Date(b) => num!(b, i32),
            Kind::Timestamp(b) => num!(b, i64),
        }
        Ok(())
    }
}

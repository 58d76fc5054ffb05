//! The encoding of the value part of a message: the non-key columns of one row.
//!
//! ```text
//! null bitmap    one bit per nullable column, set if null (bit i % 8 of byte i / 8; unused bits are clear)
//! fixed part     each fixed-length column, little endian in its own width, zero if null
//! lengths        a varint for each text, bytes or list column except the last one
//! bytes          text, bytes and lists, concatenated; the last value takes the remaining bytes
//! ```
//!
//! Columns are in schema order. A part that no column needs takes no bytes, so a row with a single non-nullable bytes
//! column (the plain key-value store) consists of exactly these bytes.

use std::sync::Arc;

use arrow_array::ArrayRef;

use super::ColumnBuilder;
use super::lists::is_sound;
use super::row_upsert::{is_bounded, magnitude};
use super::scalar::{Scalar, Values, fixed_len};
use super::varint::{Reader, put_varint};
use crate::base::{Column, ColumnType, Error, Result, Schema};

/// Encodes and decodes the non-key columns of one schema. A row with a single non-nullable bytes column (the plain
/// key-value store) consists of exactly these bytes.
#[derive(Debug, Clone)]
pub struct RowCodec {
    schema: Schema,
    /// Layouts of the value columns, in schema order.
    layouts: Arc<[ColumnLayout]>,
    key_columns: usize,
    /// Length in bytes of null bitmap and fixed part together.
    fixed_end: usize,
    /// Number of text, bytes and list columns.
    variable: usize,
    /// The value columns of integers and decimals: number, offset, type.
    numbers: Arc<[(usize, usize, ColumnType)]>,
}

/// The position of a column in the encoding.
#[derive(Debug, Clone, Copy)]
struct ColumnLayout {
    null_bit: Option<usize>,
    /// Offset of a fixed-length column; for text, bytes and lists, the number of the column among the variable-length
    /// ones.
    at: usize,
    fixed_len: Option<usize>,
}

impl RowCodec {
    /// The codec for the non-key columns of `schema`.
    pub fn new(schema: &Schema) -> Self {
        let (columns, key_columns) = (schema.columns(), schema.key_columns());
        let bitmap_len = columns[key_columns..].iter().filter(|c| c.nullable).count().div_ceil(8);
        let (mut null_bits, mut fixed_end, mut variable) = (0.., bitmap_len, 0);
        let layout = |column: &Column| {
            let fixed_len = fixed_len(column.ty);
            let next = if fixed_len.is_some() { &mut fixed_end } else { &mut variable };
            let at = *next;
            *next += fixed_len.unwrap_or(1);
            ColumnLayout { null_bit: if column.nullable { null_bits.next() } else { None }, at, fixed_len }
        };
        let layouts: Arc<[ColumnLayout]> = columns[key_columns..].iter().map(layout).collect();
        let numbers = columns[key_columns..].iter().zip(&*layouts).enumerate();
        let numbers = numbers.filter(|(_, (column, _))| is_bounded(column.ty));
        let numbers = numbers.map(|(i, (column, layout))| (i, layout.at, column.ty)).collect();
        RowCodec { schema: schema.clone(), layouts, key_columns, fixed_end, variable, numbers }
    }

    /// Checks that there is one array for each column of the schema, with the Arrow type of the column, and without
    /// nulls if the column is not nullable.
    ///
    /// # Errors
    /// [`Error::ColumnCount`], [`Error::ColumnType`], [`Error::NullValue`].
    pub fn check(&self, columns: &[ArrayRef]) -> Result<()> {
        if columns.len() != self.schema.columns().len() {
            return Err(Error::ColumnCount { expected: self.schema.columns().len(), found: columns.len() });
        }
        self.schema.columns().iter().zip(columns).try_for_each(|(column, array)| column.check(array))
    }

    /// Appends the encoding of row `row` to `out`. `columns` has one array for each column of the schema; key columns
    /// are skipped. A null in a column that is not nullable is encoded as zero or empty (see [`RowCodec::check`]).
    ///
    /// # Panics
    /// If an array does not have the Arrow type of its column.
    pub fn encode(&self, columns: &[ArrayRef], row: usize, out: &mut Vec<u8>) {
        if !self.schema.columns().iter().any(|column| column.ty.is_list()) {
            return self.encoder(columns).encode(row, out);
        }
        // Encoders encode all lists of an array.
        let columns: Vec<ArrayRef> = columns.iter().map(|array| array.slice(row, 1)).collect();
        self.encoder(&columns).encode(0, out);
    }

    /// Returns an encoder for many rows of the same arrays; see [`RowCodec::encode`].
    ///
    /// # Panics
    /// If an array does not have the Arrow type of its column.
    pub fn encoder<'a>(&'a self, columns: &'a [ArrayRef]) -> RowEncoder<'a> {
        let values = |(column, array): (&'a Column, &'a ArrayRef)| Values::new(array, column.ty);
        RowEncoder { codec: self, values: self.schema.columns().iter().zip(columns).map(values).collect() }
    }

    /// Checks that `value` is the encoding of a row.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if it is not.
    pub fn check_encoded(&self, value: &[u8]) -> Result<()> {
        let sound = value.get(self.fixed_end..).and_then(|variable| self.check_columns(value, variable));
        sound.ok_or(Error::InvalidRow { len: value.len() })
    }

    /// Checks all columns; `None` if one is invalid. `variable` is the part of `value` behind the fixed part.
    fn check_columns(&self, value: &[u8], variable: &[u8]) -> Option<()> {
        let mut lengths = Reader::new(variable);
        let mut heads = lengths;
        for _ in 1..self.variable {
            heads.len()?;
        }
        let mut rest = &variable[heads.at..];
        let mut left = self.variable;
        for (column, layout) in self.schema.columns()[self.key_columns..].iter().zip(&*self.layouts) {
            if layout.fixed_len.is_some() {
                self.scalar(value, column.ty, layout)?;
                continue;
            }
            left -= 1;
            let len = if left == 0 { rest.len() } else { lengths.len()? };
            let (bytes, after) = rest.split_at_checked(len)?;
            rest = after;
            if !is_sound(bytes, column.ty) {
                return None;
            }
        }
        rest.is_empty().then_some(())
    }

    /// Decodes column `column` (index into the schema, not a key column) of `value` and appends it.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if `value` is not the encoding of a row. Only the bytes that the column needs are checked.
    pub fn append_to(&self, value: &[u8], column: usize, builder: &mut ColumnBuilder) -> Result<()> {
        self.append_columns(value, &[column], std::slice::from_mut(builder))
    }

    /// Decodes column `column` (index into the schema, not a key column) of each of `values` and appends it.
    ///
    /// # Errors
    /// As [`RowCodec::append_to`]. The columns of earlier values stay appended.
    pub(crate) fn append_rows<'v>(
        &self,
        values: impl Iterator<Item = &'v [u8]>,
        column: usize,
        builder: &mut ColumnBuilder,
    ) -> Result<()> {
        for value in values {
            self.append_columns(value, &[column], std::slice::from_mut(builder))?;
        }
        Ok(())
    }

    /// Decodes the columns `columns` (indices into the schema, no key columns) and appends each to its builder.
    ///
    /// # Errors
    /// [`Error::InvalidRow`] if `value` is not the encoding of a row. Only the bytes that the columns need are checked.
    /// The lengths of the builders may then differ by one.
    ///
    /// # Panics
    /// If one of the columns is a key column, or its builder has another type.
    pub fn append_columns(&self, value: &[u8], columns: &[usize], builders: &mut [ColumnBuilder]) -> Result<()> {
        let invalid = || Error::InvalidRow { len: value.len() };
        if value.len() < self.fixed_end || (self.variable == 0 && value.len() > self.fixed_end) {
            return Err(invalid());
        }
        for (&column, builder) in columns.iter().zip(builders) {
            assert!(column >= self.key_columns, "column {column} is part of the key");
            let (ty, found) = (self.schema.columns()[column].ty, builder.column_type());
            assert!(found == ty, "builder of {found:?} for a column of {ty:?}");
            let layout = &self.layouts[column - self.key_columns];
            let scalar = self.scalar(value, ty, layout).ok_or_else(invalid)?;
            // SAFETY: `scalar` checks that text is valid UTF-8, and the builder is of text only if the column is of
            // text.
            unsafe { builder.push(scalar) };
        }
        Ok(())
    }

    /// Decodes the value of the column with `layout`; `None` if it is invalid, such as text that is not valid UTF-8.
    /// `row` must have at least `fixed_end` bytes.
    fn scalar<'a>(&self, row: &'a [u8], ty: ColumnType, layout: &ColumnLayout) -> Option<Scalar<'a>> {
        if let Some(bit) = layout.null_bit
            && row[bit / 8] >> (bit % 8) & 1 == 1
        {
            return Some(Scalar::Null);
        }
        let Some(len) = layout.fixed_len else {
            let bytes = self.variable_bytes(row, layout.at)?;
            return is_sound(bytes, ty).then_some(Scalar::Bytes(bytes, &[]));
        };
        fixed_scalar(&row[layout.at..layout.at + len], ty)
    }

    /// The value columns, in schema order.
    pub(crate) fn value_columns(&self) -> &[Column] {
        &self.schema.columns()[self.key_columns..]
    }

    /// The value of the `number`th value column; `None` if `row` is invalid.
    pub(crate) fn value<'a>(&self, row: &'a [u8], number: usize) -> Option<Scalar<'a>> {
        if row.len() < self.fixed_end {
            return None;
        }
        self.scalar(row, self.value_columns()[number].ty, &self.layouts[number])
    }

    /// Raises the bound of each value column to the magnitude of its number in a row. Columns of other types have no bound.
    #[inline]
    pub(crate) fn raise_bounds(&self, row: &[u8], bounds: &mut [u64]) {
        for &(number, at, ty) in &*self.numbers {
            let Some(bytes) = row.get(at..) else { return };
            let magnitude = match ty {
                ColumnType::Int8 => bytes.first().map(|&byte| u64::from((byte as i8).unsigned_abs())),
                ColumnType::Int16 => bytes.first_chunk().map(|b| i16::from_le_bytes(*b).unsigned_abs().into()),
                ColumnType::Int32 => bytes.first_chunk().map(|b| i32::from_le_bytes(*b).unsigned_abs().into()),
                ColumnType::Int64 => bytes.first_chunk().map(|b| i64::from_le_bytes(*b).unsigned_abs()),
                _ => bytes
                    .first_chunk()
                    .map(|b| u64::try_from(i128::from_le_bytes(*b).unsigned_abs()).unwrap_or(u64::MAX)),
            };
            // A null is encoded as zero.
            bounds[number] = bounds[number].max(magnitude.unwrap_or(u64::MAX));
        }
    }

    /// As [`raise_bounds`](Self::raise_bounds), for the rows of arrays of all columns.
    pub(crate) fn raise_bounds_by_arrays(&self, columns: &[ArrayRef], bounds: &mut [u64]) {
        for &(number, _, ty) in &*self.numbers {
            let array = &columns[self.key_columns + number];
            let values = Values::new(array, ty);
            let largest = (0..array.len()).map(|row| magnitude(ty, &values.get(row))).max();
            bounds[number] = bounds[number].max(largest.unwrap_or(0));
        }
    }

    /// Encodes a row of one value for each value column.
    pub(crate) fn row_of(&self, values: &[Scalar<'_>]) -> Vec<u8> {
        let mut row = Vec::with_capacity(self.fixed_end);
        put_row(self.schema.columns(), self.key_columns, |i| values[i - self.key_columns], &mut row);
        row
    }

    /// The encoding of a row of the codec of a schema that this one [extends](Schema::extends), with the missing values
    /// of the columns that it lacks; `None` if `row` is invalid.
    pub(crate) fn widened(&self, old: &RowCodec, row: &[u8]) -> Option<Vec<u8>> {
        let known = old.value_columns().len();
        let values: Option<Vec<Scalar<'_>>> = (0..known).map(|i| old.value(row, i)).collect();
        let mut values = values?;
        let lacking = self.key_columns + known..self.schema.columns().len();
        values.extend(lacking.map(|column| self.schema.missing_value(column)));
        Some(self.row_of(&values))
    }

    /// The codec of the first `columns` columns.
    pub(crate) fn prefix(&self, columns: usize) -> RowCodec {
        RowCodec::new(&Schema::new(self.schema.columns()[..columns].to_vec(), self.key_columns))
    }

    /// The schema whose rows the codec encodes.
    pub(crate) fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The bytes of the `number`th text, bytes or list column.
    fn variable_bytes<'a>(&self, row: &'a [u8], number: usize) -> Option<&'a [u8]> {
        let mut reader = Reader::new(row.get(self.fixed_end..)?);
        let (mut start, mut len) = (0usize, None);
        for i in 0..self.variable - 1 {
            let next = reader.len()?;
            if i < number {
                start = start.checked_add(next)?;
            } else if i == number {
                len = Some(next);
            }
        }
        let bytes = reader.bytes.get(reader.at..)?.get(start..)?;
        match len {
            Some(len) => bytes.get(..len),
            None => Some(bytes),
        }
    }
}

/// Decodes a value of a fixed-length type, which has as many bytes as `bytes`; `None` if it is invalid.
fn fixed_scalar<'a>(bytes: &[u8], ty: ColumnType) -> Option<Scalar<'a>> {
    let mut wide = [0; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    let unsigned = u128::from_le_bytes(wide);
    match ty {
        ty if ty.is_wide() => Some(Scalar::Wide(unsigned as i128)),
        ColumnType::Boolean if unsigned > 1 => None,
        _ => {
            let unused = 64 - 8 * bytes.len() as u32;
            Some(Scalar::Word(((unsigned as u64) << unused) as i64 >> unused))
        }
    }
}

/// Decodes a value that takes all of `bytes`; `None` if it is invalid.
pub(super) fn value_of_bytes(bytes: &[u8], ty: ColumnType) -> Option<Scalar<'_>> {
    match fixed_len(ty) {
        Some(len) if bytes.len() != len => None,
        Some(_) => fixed_scalar(bytes, ty),
        None => is_sound(bytes, ty).then_some(Scalar::Bytes(bytes, &[])),
    }
}

/// Encodes many rows of the same arrays; made by [`RowCodec::encoder`].
#[derive(Debug)]
pub struct RowEncoder<'a> {
    codec: &'a RowCodec,
    /// The values of all columns of the schema.
    values: Vec<Values<'a>>,
}

impl RowEncoder<'_> {
    /// Appends the encoding of row `row` to `out`.
    ///
    /// # Panics
    /// If `row` is out of bounds.
    pub fn encode(&self, row: usize, out: &mut Vec<u8>) {
        put_row(self.codec.schema.columns(), self.codec.key_columns, |i| self.values[i].get(row), out);
    }
}

/// Appends the encoding of the columns from `key_columns` on. `scalar` returns the value of a column by its index. A
/// null in a column that is not nullable is encoded as zero or empty.
pub(crate) fn put_row<'a>(
    columns: &[Column],
    key_columns: usize,
    scalar: impl Fn(usize) -> Scalar<'a>,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    let nullable = columns[key_columns..].iter().filter(|c| c.nullable).count();
    out.resize(start + nullable.div_ceil(8), 0);
    let mut null_bits = start * 8..;
    let mut variable = 0;
    for (i, column) in columns.iter().enumerate().skip(key_columns) {
        let null_bit = if column.nullable { null_bits.next() } else { None };
        let len = fixed_len(column.ty);
        variable += usize::from(len.is_none());
        let value = match (len, null_bit) {
            // A variable-length column without a null bit has no bytes in this part.
            (None, None) => continue,
            _ => scalar(i),
        };
        match (value, len) {
            (Scalar::Null, _) => {
                if let Some(bit) = null_bit {
                    out[bit / 8] |= 1 << (bit % 8);
                }
                out.resize(out.len() + len.unwrap_or(0), 0);
            }
            (Scalar::Word(word), Some(1)) => out.push(word as u8),
            (Scalar::Word(word), Some(2)) => out.extend_from_slice(&(word as u16).to_le_bytes()),
            (Scalar::Word(word), Some(4)) => out.extend_from_slice(&(word as u32).to_le_bytes()),
            (Scalar::Word(word), Some(_)) => out.extend_from_slice(&word.to_le_bytes()),
            (Scalar::Wide(wide), Some(_)) => out.extend_from_slice(&wide.to_le_bytes()),
            _ => (),
        }
    }
    let bytes = |i: usize| match scalar(i) {
        Scalar::Bytes(head, tail) => (head, tail),
        _ => (&[][..], &[][..]),
    };
    let is_variable = |i: &usize| fixed_len(columns[*i].ty).is_none();
    for i in (key_columns..columns.len()).filter(is_variable).take(variable.saturating_sub(1)) {
        let (head, tail) = bytes(i);
        put_varint((head.len() + tail.len()) as u64, out);
    }
    for i in (key_columns..columns.len()).filter(is_variable) {
        let (head, tail) = bytes(i);
        out.extend_from_slice(head);
        out.extend_from_slice(tail);
    }
}

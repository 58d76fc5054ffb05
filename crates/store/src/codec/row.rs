//! The value part of a message: the non-key columns of one row, as bytes.
//!
//! A null bitmap (a bit a column, set for null), then the values that are not null: numbers little-endian at their length,
//! text and bytes with a length (u32) before them.

use arrow_array::ArrayRef;

use super::ColumnBuilder;
use super::scalar::{Scalar, fixed_len, scalar_at};
use crate::{Column, ColumnType, Error, Result, Schema};

/// Encodes and decodes the non-key columns of one schema. A row of a single non-nullable bytes column (the plain
/// key-value store) is just those bytes.
#[derive(Debug, Clone)]
pub struct RowCodec {
    schema: Schema,
    bare: bool,
}

impl RowCodec {
    pub fn new(schema: &Schema) -> Self {
        let values = &schema.columns()[schema.key_columns()..];
        let bare = matches!(values, [only] if only.ty == ColumnType::Bytes && !only.nullable);
        RowCodec { schema: schema.clone(), bare }
    }

    fn columns(&self) -> &[Column] {
        &self.schema.columns()[self.schema.key_columns()..]
    }

    /// Appends the encoding of row `row`; `columns` are all columns of the schema (key columns are skipped).
    pub fn encode(&self, columns: &[ArrayRef], row: usize, out: &mut Vec<u8>) {
        let values = &columns[self.schema.key_columns()..];
        self.encode_scalars(|column| scalar_at(&values[column], self.columns()[column].ty, row), out);
    }

    /// As `encode`, with the values of the non-key columns by number.
    pub(crate) fn encode_scalars<'v>(&self, value: impl Fn(usize) -> Scalar<'v>, out: &mut Vec<u8>) {
        let bitmap = out.len();
        if !self.bare {
            out.resize(bitmap + self.columns().len().div_ceil(8), 0);
        }
        for (i, column) in self.columns().iter().enumerate() {
            match value(i) {
                Scalar::Null if self.bare => {}
                Scalar::Null => out[bitmap + i / 8] |= 1 << (i % 8),
                Scalar::Word(word) => out.extend_from_slice(&word.to_le_bytes()[..fixed_len(column.ty).unwrap_or(8)]),
                Scalar::Wide(wide) => out.extend_from_slice(&wide.to_le_bytes()),
                Scalar::Bytes(bytes) => {
                    if !self.bare {
                        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                    }
                    out.extend_from_slice(bytes);
                }
            }
        }
    }

    /// Decodes column `column` (index into the schema; not a key column) of `value` and appends it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `value` is not a row of this schema.
    pub fn append_to(&self, value: &[u8], column: usize, builder: &mut ColumnBuilder) -> Result<()> {
        if self.bare {
            return builder.append_scalar(Scalar::Bytes(value));
        }
        let keys = self.schema.key_columns();
        let invalid = || Error::Invalid("not a row of this tree".into());
        let (bitmap, mut rest) = value.split_at_checked(self.columns().len().div_ceil(8)).ok_or_else(invalid)?;
        for (i, definition) in self.columns().iter().enumerate() {
            let found = if bitmap[i / 8] & 1 << (i % 8) != 0 {
                Scalar::Null
            } else {
                let len = match fixed_len(definition.ty) {
                    Some(len) => len,
                    None => {
                        let (len, after) = rest.split_first_chunk().ok_or_else(invalid)?;
                        rest = after;
                        u32::from_le_bytes(*len) as usize
                    }
                };
                let (bytes, after) = rest.split_at_checked(len).ok_or_else(invalid)?;
                rest = after;
                if keys + i < column { Scalar::Null } else { decode(definition.ty, bytes) }
            };
            if keys + i == column {
                return builder.append_scalar(found);
            }
        }
        Err(invalid())
    }
}

/// A value of exactly its type's length.
fn decode(ty: ColumnType, bytes: &[u8]) -> Scalar<'_> {
    match fixed_len(ty) {
        None => Scalar::Bytes(bytes),
        Some(16) => Scalar::Wide(bytes.first_chunk().map_or(0, |bytes| i128::from_le_bytes(*bytes))),
        Some(len) => {
            let mut word = [0; 8];
            word[..len].copy_from_slice(bytes);
            let shift = 64 - 8 * len;
            let word = i64::from_le_bytes(word) << shift >> shift;
            Scalar::Word(word)
        }
    }
}

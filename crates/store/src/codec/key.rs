//! Order-preserving encoding of key columns: comparing encodings as bytes compares keys column by column.

use arrow_array::{Array, ArrayRef};

use super::ColumnBuilder;
use super::builder::plain;
use crate::{Column, ColumnType, Error, Result, Schema};

/// Encodes and decodes the key columns of one schema. The encoding of the first n columns is a prefix of the encoding of
/// more columns, and no column's encoding is a proper prefix of another value's encoding of that column.
#[derive(Debug, Clone)]
pub struct KeyCodec {
    columns: Vec<Column>,
}

fn width(ty: ColumnType) -> Option<usize> {
    Some(match ty {
        ColumnType::Boolean | ColumnType::Int8 => 1,
        ColumnType::Int16 => 2,
        ColumnType::Int32 | ColumnType::Float32 | ColumnType::Date => 4,
        ColumnType::Int64 | ColumnType::Float64 | ColumnType::Timestamp { .. } => 8,
        ColumnType::Decimal { .. } => 16,
        ColumnType::Text | ColumnType::Bytes => return None,
    })
}

impl KeyCodec {
    pub fn new(schema: &Schema) -> Self {
        KeyCodec { columns: schema.columns()[..schema.key_columns()].to_vec() }
    }
    /// Appends the encoding of row `row` of the first `columns.len()` key columns to `out`. The arrays must have the
    /// key columns' Arrow types; fewer columns than the key has give a prefix.
    pub fn encode(&self, columns: &[ArrayRef], row: usize, out: &mut Vec<u8>) {
        for (column, array) in self.columns.iter().zip(columns) {
            if column.nullable {
                out.push(u8::from(array.is_valid(row)));
                if array.is_null(row) {
                    continue;
                }
            }
            let start = out.len();
            if let Some(_width) = width(column.ty) {
                plain(array, row, out);
                out[start..].reverse();
                match column.ty {
                    ColumnType::Boolean => {}
                    ColumnType::Float32 | ColumnType::Float64 => {
                        if out[start] & 0x80 != 0 {
                            out[start..].iter_mut().for_each(|b| *b = !*b);
                        } else {
                            out[start] ^= 0x80;
                        }
                    }
                    _ => out[start] ^= 0x80,
                }
            } else {
                let mut bytes = Vec::new();
                plain(array, row, &mut bytes);
                for byte in bytes {
                    out.push(byte);
                    if byte == 0 {
                        out.push(0xff);
                    }
                }
                out.extend_from_slice(&[0, 0]);
            }
        }
    }
    /// Decodes key column `column` of `key` and appends it.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] if `key` is not an encoding of this key.
    pub fn append_to(&self, key: &[u8], column: usize, builder: &mut ColumnBuilder) -> Result<()> {
        let bad = || Error::Invalid("not a key of this tree".into());
        let mut rest = key;
        for (number, definition) in self.columns.iter().enumerate() {
            if definition.nullable {
                let (&marker, after) = rest.split_first().ok_or_else(bad)?;
                rest = after;
                if marker == 0 {
                    if number == column {
                        builder.append_nulls(1);
                        return Ok(());
                    }
                    continue;
                }
            }
            let mut value;
            if let Some(width) = width(definition.ty) {
                value = rest.get(..width).ok_or_else(bad)?.to_vec();
                rest = &rest[width..];
                match definition.ty {
                    ColumnType::Boolean => {}
                    ColumnType::Float32 | ColumnType::Float64 => {
                        if value[0] & 0x80 != 0 {
                            value[0] ^= 0x80;
                        } else {
                            value.iter_mut().for_each(|b| *b = !*b);
                        }
                    }
                    _ => value[0] ^= 0x80,
                }
                value.reverse();
            } else {
                value = Vec::new();
                loop {
                    let (&byte, after) = rest.split_first().ok_or_else(bad)?;
                    rest = after;
                    if byte == 0 {
                        let (&second, after) = rest.split_first().ok_or_else(bad)?;
                        rest = after;
                        if second == 0 {
                            break;
                        }
                    }
                    value.push(byte);
                }
            }
            if number == column {
                return builder.append_plain(&value);
            }
        }
        Err(bad())
    }
}

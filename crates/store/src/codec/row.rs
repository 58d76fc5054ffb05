//! The value part of a message: the non-key columns of one row, as bytes.

use arrow_array::{Array, ArrayRef};

use super::ColumnBuilder;
use super::builder::plain;
use crate::bytes::Reader;
use crate::{ColumnType, Result, Schema};

/// Encodes and decodes the non-key columns of one schema. A row of a single non-nullable bytes column (the plain
/// key-value store) is just those bytes.
#[derive(Debug, Clone)]
pub struct RowCodec {
    keys: usize,
    bare: bool,
}

impl RowCodec {
    pub fn new(schema: &Schema) -> Self {
        let values = &schema.columns()[schema.key_columns()..];
        let bare = matches!(values, [only] if only.ty == ColumnType::Bytes && !only.nullable);
        RowCodec { keys: schema.key_columns(), bare }
    }
    /// Appends the encoding of row `row`; `columns` are all columns of the schema (key columns are skipped).
    pub fn encode(&self, columns: &[ArrayRef], row: usize, out: &mut Vec<u8>) {
        for array in &columns[self.keys..] {
            if self.bare {
                return plain(array, row, out);
            }
            if array.is_null(row) {
                out.extend_from_slice(&u32::MAX.to_le_bytes());
                continue;
            }
            let at = out.len();
            out.extend_from_slice(&[0; 4]);
            plain(array, row, out);
            let len = (out.len() - at - 4) as u32;
            out[at..at + 4].copy_from_slice(&len.to_le_bytes());
        }
    }
    /// Decodes column `column` (index into the schema; not a key column) of `value` and appends it.
    pub fn append_to(&self, value: &[u8], column: usize, builder: &mut ColumnBuilder) -> Result<()> {
        if self.bare {
            return builder.append_plain(value);
        }
        let mut reader = Reader::new(value);
        for _ in self.keys..column {
            let len = reader.u32()?;
            if len != u32::MAX {
                reader.bytes(len as usize)?;
            }
        }
        match reader.u32()? {
            u32::MAX => builder.append_nulls(1),
            len => builder.append_plain(reader.bytes(len as usize)?)?,
        }
        Ok(())
    }
}

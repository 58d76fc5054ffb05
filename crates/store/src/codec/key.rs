//! Order-preserving encoding of key columns: comparing encodings as bytes compares keys column by column.

use arrow_array::ArrayRef;

use super::ColumnBuilder;
use crate::{Result, Schema};

/// Encodes and decodes the key columns of one schema. The encoding of the first n columns is a prefix of the encoding of
/// more columns, and no column's encoding is a proper prefix of another value's encoding of that column.
#[derive(Debug, Clone)]
pub struct KeyCodec {
    _todo: (),
}

impl KeyCodec {
    pub fn new(_schema: &Schema) -> Self {
        todo!()
    }
    /// Appends the encoding of row `row` of the first `columns.len()` key columns to `out`. The arrays must have the
    /// key columns' Arrow types; fewer columns than the key has give a prefix.
    pub fn encode(&self, _columns: &[ArrayRef], _row: usize, _out: &mut Vec<u8>) {
        todo!()
    }
    /// Decodes key column `column` of `key` and appends it.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] if `key` is not an encoding of this key.
    pub fn append_to(&self, _key: &[u8], _column: usize, _builder: &mut ColumnBuilder) -> Result<()> {
        todo!()
    }
}

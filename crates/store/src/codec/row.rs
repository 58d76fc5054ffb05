//! The value part of a message: the non-key columns of one row, as bytes.

use arrow_array::ArrayRef;

use super::ColumnBuilder;
use crate::{Result, Schema};

/// Encodes and decodes the non-key columns of one schema. A row of a single non-nullable bytes column (the plain
/// key-value store) is just those bytes.
#[derive(Debug, Clone)]
pub struct RowCodec {
    _todo: (),
}

impl RowCodec {
    pub fn new(_schema: &Schema) -> Self {
        todo!()
    }
    /// Appends the encoding of row `row`; `columns` are all columns of the schema (key columns are skipped).
    pub fn encode(&self, _columns: &[ArrayRef], _row: usize, _out: &mut Vec<u8>) {
        todo!()
    }
    /// Decodes column `column` (index into the schema; not a key column) of `value` and appends it.
    pub fn append_to(&self, _value: &[u8], _column: usize, _builder: &mut ColumnBuilder) -> Result<()> {
        todo!()
    }
}

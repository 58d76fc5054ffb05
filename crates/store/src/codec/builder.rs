//! Growing Arrow columns, fed from pages, keys and message rows.

use arrow_array::ArrayRef;

use crate::ColumnType;

/// A growing column of one type; see [`ColumnType::arrow`] for what it becomes.
#[derive(Debug)]
pub struct ColumnBuilder {
    _todo: (),
}

impl ColumnBuilder {
    pub fn new(_ty: ColumnType, _capacity: usize) -> Self {
        todo!()
    }
    pub fn len(&self) -> usize {
        todo!()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Bytes held, approximately.
    pub fn memory_bytes(&self) -> usize {
        todo!()
    }
    pub fn append_nulls(&mut self, _count: usize) {
        todo!()
    }
    /// Appends the rows `rows` of `array`, which has this builder's Arrow type.
    pub fn append_array(&mut self, _array: &ArrayRef, _rows: std::ops::Range<usize>) {
        todo!()
    }
    /// The column so far; the builder is empty afterwards and may be used again.
    pub fn finish(&mut self) -> ArrayRef {
        todo!()
    }
}

//! Memory of buffered batches: its size, and compaction to that size.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::DataType;

use crate::Result;

/// Bytes of the batch's values in Arrow's layout, as if it shared no buffers with other batches.
pub(in crate::write) fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(column_bytes).sum()
}

fn column_bytes(column: &ArrayRef) -> usize {
    let rows = column.len();
    let values = match column.data_type() {
        DataType::Boolean => rows.div_ceil(8),
        DataType::Utf8View => 16 * rows + column.as_string_view().views().iter().map(outside).sum::<usize>(),
        DataType::BinaryView => 16 * rows + column.as_binary_view().views().iter().map(outside).sum::<usize>(),
        DataType::FixedSizeBinary(len) => *len as usize * rows,
        ty => ty.primitive_width().map_or_else(|| column.get_array_memory_size(), |width| width * rows),
    };
    values + column.nulls().map_or(0, |_| rows.div_ceil(8))
}

/// Bytes of a value outside its view.
fn outside(view: &u128) -> usize {
    // The low 32 bits of a view are the length. Values of up to 12 bytes are stored inside the view.
    let len = *view as u32 as usize;
    if len > 12 { len } else { 0 }
}

/// Copies the values of view arrays to new buffers and releases the shared ones. Otherwise a buffered short string
/// could keep a whole page of a file in memory.
pub(super) fn compact(batch: &RecordBatch) -> Result<RecordBatch> {
    let columns = batch.columns().iter().map(|column| -> ArrayRef {
        match column.data_type() {
            DataType::Utf8View => Arc::new(column.as_string_view().gc()),
            DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
            _ => column.clone(),
        }
    });
    Ok(RecordBatch::try_new(batch.schema(), columns.collect())?)
}

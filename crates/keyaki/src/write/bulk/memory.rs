//! What buffered batches really occupy, and how to make them occupy no more than that.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::DataType;

use crate::Result;

/// Bytes of the batch's values in Arrow's layout, as if it shared nothing with other batches.
pub(in crate::write) fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(column_bytes).sum()
}

fn column_bytes(column: &ArrayRef) -> usize {
    let rows = column.len();
    let values = match column.data_type() {
        DataType::Boolean => rows.div_ceil(8),
        DataType::Utf8View => 16 * rows + column.as_string_view().views().iter().map(outside).sum::<usize>(),
        DataType::BinaryView => 16 * rows + column.as_binary_view().views().iter().map(outside).sum::<usize>(),
        ty => ty.primitive_width().map_or_else(|| column.get_array_memory_size(), |width| width * rows),
    };
    values + column.nulls().map_or(0, |_| rows.div_ceil(8))
}

/// Bytes of a value that do not fit into its view.
fn outside(view: &u128) -> usize {
    // The low half of a view is the length.
    let len = *view as u32 as usize;
    if len > 12 { len } else { 0 }
}

/// Lets go of buffers that the batch needs only a part of: batches wait in memory while others are read, and a short text
/// may otherwise hold on to the whole page of the file that it came from.
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

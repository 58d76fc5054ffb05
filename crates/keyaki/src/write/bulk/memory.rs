//! Memory of buffered batches.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::DataType;

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
        DataType::List(_) => {
            let list = column.as_list::<i32>();
            let (first, end) = (list.offsets()[0] as usize, list.offsets()[rows] as usize);
            4 * rows + column_bytes(&list.values().slice(first, end - first))
        }
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

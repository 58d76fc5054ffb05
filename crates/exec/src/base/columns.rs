//! Helpers for Arrow columns and batches.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::ByteViewType;
use arrow_array::{Array, ArrayRef, BooleanArray, GenericByteViewArray, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Schema, SchemaRef};
use arrow_select::filter::prep_null_mask_filter;
use keyaki_store::{ColumnBuilder, TreeView};

use super::error::{Error, PlanError, Result};
use super::pipeline::Filter;

/// A batch of `rows` rows, which may have no columns.
///
/// # Errors
/// If a column has another length or type than `rows` and `schema` say.
pub(crate) fn batch(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
}

/// The given columns of a schema. `step` is the step of the pipeline that reads them, for the error.
///
/// # Errors
/// [`PlanError::ColumnOutOfRange`].
pub(crate) fn project(schema: &Schema, columns: &[usize], step: Option<usize>) -> Result<Schema> {
    let count = schema.fields().len();
    if let Some(&column) = columns.iter().find(|&&column| column >= count) {
        return Err(PlanError::ColumnOutOfRange { step, column, columns: count }.into());
    }
    Ok(schema.project(columns)?)
}

/// Empty builders for columns of a tree.
///
/// # Panics
/// If a column is out of range; [`project`] checks that.
pub(crate) fn builders(view: &TreeView, columns: &[usize]) -> Vec<ColumnBuilder> {
    let types = view.schema().columns();
    columns.iter().map(|&column| ColumnBuilder::new(types[column].ty, 0)).collect()
}

/// Bytes held by builders.
pub(crate) fn memory_bytes(builders: &[ColumnBuilder]) -> usize {
    builders.iter().map(ColumnBuilder::memory_bytes).sum()
}

/// Evaluates a filter. The mask has one value per row and no nulls.
pub(crate) fn evaluate(filter: &dyn Filter, rows: &RecordBatch) -> Result<BooleanArray> {
    let mask = filter.evaluate(rows)?;
    if mask.len() != rows.num_rows() {
        return Err(Error::FilterLength { rows: rows.num_rows(), values: mask.len() });
    }
    Ok(if mask.null_count() > 0 { prep_null_mask_filter(&mask) } else { mask })
}

/// Bytes of the rows of a batch. A slice does not count the rest of its buffers, which other batches share, except those of
/// views.
pub(crate) fn slice_bytes(rows: &RecordBatch) -> usize {
    let bytes = |column: &ArrayRef| {
        let whole = column.get_array_memory_size();
        match column.data_type() {
            DataType::Utf8View | DataType::BinaryView => whole,
            _ => column.to_data().get_slice_memory_size().map_or(whole, |bytes| bytes.min(whole)),
        }
    };
    rows.columns().iter().map(bytes).sum()
}

/// Copies string and binary views if they use less than half of their buffers, or refer to many buffers.
///
/// Selecting rows keeps the buffers of all rows alive. Without the copy, each step of a pipeline would retain the buffers
/// of all steps before it.
pub(crate) fn compact(array: ArrayRef) -> ArrayRef {
    fn compact<T: ByteViewType>(array: &GenericByteViewArray<T>) -> Option<ArrayRef> {
        const BUFFERS_MAX: usize = 8;
        const UNUSED_BYTES_MAX: usize = 4096;
        let held: usize = array.data_buffers().iter().map(|buffer| buffer.len()).sum();
        if held <= UNUSED_BYTES_MAX && array.data_buffers().len() <= BUFFERS_MAX {
            return None;
        }
        let is_scattered = array.data_buffers().len() > BUFFERS_MAX;
        let is_sparse = held > 2 * array.total_buffer_bytes_used() + UNUSED_BYTES_MAX;
        (is_scattered || is_sparse).then(|| Arc::new(array.gc()) as ArrayRef)
    }
    let compacted = match array.data_type() {
        DataType::Utf8View => compact(array.as_string_view()),
        DataType::BinaryView => compact(array.as_binary_view()),
        _ => None,
    };
    compacted.unwrap_or(array)
}

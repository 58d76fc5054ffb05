//! Small helpers on Arrow columns.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::ByteViewType;
use arrow_array::{Array, ArrayRef, BooleanArray, GenericByteViewArray, RecordBatch, RecordBatchOptions};
use arrow_schema::{DataType, Schema, SchemaRef};
use arrow_select::filter::prep_null_mask_filter;
use keyaki_store::{ColumnBuilder, TreeView};

use crate::{Error, Filter, Result};

/// A batch of `rows` rows, which may have no columns.
pub(crate) fn batch(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
}

/// The Arrow schema of some columns of a tree.
pub(crate) fn project(view: &TreeView, columns: &[usize]) -> Result<Schema> {
    Ok(view.schema().arrow().project(columns)?)
}

/// Empty builders for some columns of a tree (which exist; see [`project`]).
pub(crate) fn builders(view: &TreeView, columns: &[usize]) -> Vec<ColumnBuilder> {
    let types = view.schema().columns();
    columns.iter().map(|&column| ColumnBuilder::new(types[column].ty, 0)).collect()
}

pub(crate) fn memory_bytes(builders: &[ColumnBuilder]) -> usize {
    builders.iter().map(ColumnBuilder::memory_bytes).sum()
}

/// Evaluates a filter; the mask has no nulls.
pub(crate) fn evaluate(filter: &dyn Filter, rows: &RecordBatch) -> Result<BooleanArray> {
    let mask = filter.evaluate(rows)?;
    if mask.len() != rows.num_rows() {
        return Err(Error::Filter(format!("the filter gave {} values for {} rows", mask.len(), rows.num_rows())));
    }
    Ok(if mask.null_count() > 0 { prep_null_mask_filter(&mask) } else { mask })
}

/// Copies text and bytes that make up only a small part of the buffers they refer to, or are scattered over many: views
/// of views over several steps would otherwise keep ever more memory alive.
pub(crate) fn compact(array: ArrayRef) -> ArrayRef {
    fn compact<T: ByteViewType>(array: &GenericByteViewArray<T>) -> Option<ArrayRef> {
        const BUFFERS_MAX: usize = 8;
        const SPARE_BYTES: usize = 4096;
        let held: usize = array.data_buffers().iter().map(|buffer| buffer.len()).sum();
        if held <= SPARE_BYTES && array.data_buffers().len() <= BUFFERS_MAX {
            return None;
        }
        let scattered = array.data_buffers().len() > BUFFERS_MAX;
        let wasteful = held > 2 * array.total_buffer_bytes_used() + SPARE_BYTES;
        (scattered || wasteful).then(|| Arc::new(array.gc()) as ArrayRef)
    }
    let compacted = match array.data_type() {
        DataType::Utf8View => compact(array.as_string_view()),
        DataType::BinaryView => compact(array.as_binary_view()),
        _ => None,
    };
    compacted.unwrap_or(array)
}

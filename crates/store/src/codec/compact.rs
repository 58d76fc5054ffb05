//! Batches of views with buffers of their own.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::ByteViewType;
use arrow_array::{Array, ArrayRef, GenericByteViewArray, ListArray, RecordBatch, RecordBatchOptions, new_empty_array};
use arrow_buffer::OffsetBuffer;
use arrow_schema::DataType;

/// Copies the values of view arrays, also within lists, to buffers of their own.
///
/// Views keep the buffers that they refer to as a whole: one short string can keep a batch in memory. Slices and
/// concatenations of view arrays keep even buffers without a view. Arrays that use most of their buffers are not copied.
pub fn compact(batch: &RecordBatch) -> RecordBatch {
    let columns = batch.columns().iter().map(compact_array).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let compacted = RecordBatch::try_new_with_options(batch.schema(), columns, &options);
    compacted.unwrap_or_else(|error| unreachable!("the columns have the types and lengths of the batch: {error}"))
}

/// [`compact`] for one array.
pub fn compact_array(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        // `gc` does not change an empty array.
        ty if array.is_empty() => new_empty_array(ty),
        DataType::Utf8View => compact_views(array, array.as_string_view()),
        DataType::BinaryView => compact_views(array, array.as_binary_view()),
        DataType::List(field) if has_views(field.data_type()) => {
            let list = array.as_list::<i32>();
            let (first, end) = (list.offsets()[0] as usize, list.offsets()[list.len()] as usize);
            let elements = compact_array(&list.values().slice(first, end - first));
            let offsets = OffsetBuffer::from_lengths(list.offsets().lengths());
            Arc::new(ListArray::new(field.clone(), offsets, elements, list.nulls().cloned()))
        }
        _ => array.clone(),
    }
}

fn compact_views<T: ByteViewType>(array: &ArrayRef, views: &GenericByteViewArray<T>) -> ArrayRef {
    let held: usize = views.data_buffers().iter().map(|buffer| buffer.capacity()).sum();
    // Views of the same value can use more bytes than the buffers have.
    match views.total_buffer_bytes_used() >= held - held / 4 {
        true => array.clone(),
        false => Arc::new(views.gc()),
    }
}

fn has_views(ty: &DataType) -> bool {
    match ty {
        DataType::Utf8View | DataType::BinaryView => true,
        DataType::List(field) => has_views(field.data_type()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::builder::{ListBuilder, StringViewBuilder};
    use arrow_array::{BooleanArray, StringViewArray};
    use arrow_select::concat::concat_batches;
    use arrow_select::filter::filter_record_batch;

    use super::*;

    fn bytes(batch: &RecordBatch) -> usize {
        batch.get_array_memory_size()
    }

    #[test]
    fn compacted_batches_have_the_same_rows_and_own_buffers() {
        let text = |row: usize| (row % 7 != 3).then(|| format!("a text outside of its view, number {row}"));
        let texts = StringViewArray::from_iter((0..4000).map(text));
        let mut lists = ListBuilder::new(ListBuilder::new(StringViewBuilder::new()));
        for row in 0..4000 {
            for inner in 0..row % 3 {
                lists.values().append_value((0..inner + 1).map(|item| text(row + item)));
            }
            lists.append(row % 5 != 4);
        }
        let columns: [(&str, ArrayRef); 2] = [("texts", Arc::new(texts)), ("lists", Arc::new(lists.finish()))];
        let all = RecordBatch::try_from_iter(columns).unwrap();
        let picked: BooleanArray = (0..4000).map(|row| Some(row % 40 == 7)).collect();
        let few = filter_record_batch(&all, &picked).unwrap();
        for rows in [few, all.slice(1234, 90), all.slice(4000, 0)] {
            let compacted = compact(&rows);
            assert_eq!(compacted, rows);
            assert!(bytes(&compacted) * 10 < bytes(&all), "{} of {}", bytes(&compacted), bytes(&all));
            // As in loads: a rest is joined with the next batch again and again.
            let mut rest = rows;
            for _ in 0..20 {
                let joined = concat_batches(&all.schema(), [&rest, &all]).unwrap();
                rest = compact(&joined.slice(joined.num_rows() - 90, 90));
            }
            assert!(bytes(&rest) * 10 < bytes(&all));
        }
    }
}

//! Rows that are held until their partitions are complete.

use std::cmp::Ordering;
use std::collections::VecDeque;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array, make_comparator};
use arrow::compute::{SortOptions, partition, take_record_batch};
use datafusion::error::Result;
use keyaki_store::compact;

/// Rows in the order of their arrival, and where partitions start among them.
#[derive(Debug, Default)]
pub(super) struct Held {
    pub batches: VecDeque<RecordBatch>,
    pub rows: usize,
    /// Bytes of the batches.
    pub bytes: usize,
    /// The first row of each partition: 0 for that of the first row, whose partition may have begun earlier.
    pub starts: Vec<usize>,
}

impl Held {
    /// Adds the rows of a batch. `starts`: the rows of the batch at which a partition starts.
    pub fn push(&mut self, batch: RecordBatch, starts: &[usize]) {
        if batch.num_rows() == 0 {
            return;
        }
        self.starts.extend(starts.iter().map(|start| self.rows + start));
        if self.starts.first() != Some(&0) {
            self.starts.insert(0, 0);
        }
        self.rows += batch.num_rows();
        self.bytes += batch.get_array_memory_size();
        self.batches.push_back(batch);
    }

    /// Number of rows whose partitions are complete, if the partition of the last row is not.
    pub fn complete_rows(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Removes the first rows, which are those of whole partitions. Returns them and the starts of the partitions.
    pub fn take(&mut self, rows: usize) -> Result<(Vec<RecordBatch>, Vec<usize>)> {
        assert!(rows == self.rows || self.starts.contains(&rows), "partitions are not divided");
        let batches = split(&mut self.batches, rows)?;
        self.rows -= rows;
        self.bytes = self.batches.iter().map(RecordBatch::get_array_memory_size).sum();
        let count = self.starts.partition_point(|start| *start < rows);
        let later = self.starts.split_off(count).into_iter().map(|start| start - rows).collect();
        Ok((batches, std::mem::replace(&mut self.starts, later)))
    }
}

/// Removes the first rows of a sequence of batches.
pub(super) fn split(batches: &mut VecDeque<RecordBatch>, rows: usize) -> Result<Vec<RecordBatch>> {
    let (mut taken, mut left) = (Vec::new(), rows);
    while left > 0 {
        let Some(batch) = batches.pop_front() else { break };
        if batch.num_rows() > left {
            batches.push_front(sliced(&batch, left, batch.num_rows() - left)?);
            taken.push(sliced(&batch, 0, left)?);
            left = 0;
        } else {
            left -= batch.num_rows();
            taken.push(batch);
        }
    }
    assert_eq!(left, 0, "the batches have as many rows as requested");
    Ok(taken)
}

/// Rows of a batch. A small slice is copied, because it would keep the memory of all rows, which other operators count.
pub(super) fn sliced(batch: &RecordBatch, first: usize, rows: usize) -> Result<RecordBatch> {
    if batch.num_rows() / 2 < rows || batch.num_columns() == 0 {
        return Ok(compact(&batch.slice(first, rows)));
    }
    let indices = UInt32Array::from_iter_values(first as u32..(first + rows) as u32);
    Ok(compact(&take_record_batch(batch, &indices)?))
}

/// The rows of a batch at which a partition starts. `keys`: the partition keys of its rows, `last`: those of the row
/// before, in arrays of one row. The first row of all starts a partition.
pub(in crate::plan) fn starts(keys: &[ArrayRef], last: Option<&[ArrayRef]>, rows: usize) -> Result<Vec<usize>> {
    let mut starts: Vec<usize> = match keys.is_empty() || rows == 0 {
        true => vec![0],
        false => partition(keys)?.ranges().into_iter().map(|range| range.start).collect(),
    };
    if let Some(last) = last {
        let mut continues = rows > 0;
        for (key, last) in keys.iter().zip(last) {
            continues &= make_comparator(last, key, SortOptions::default())?(0, 0) == Ordering::Equal;
        }
        if continues {
            starts.remove(0);
        }
    }
    Ok(starts)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    use super::*;

    fn keys(values: &[Option<i64>]) -> Vec<ArrayRef> {
        vec![Arc::new(Int64Array::from(values.to_vec()))]
    }

    fn batch(values: &[i64]) -> RecordBatch {
        RecordBatch::try_from_iter([("k", keys(&values.iter().copied().map(Some).collect::<Vec<_>>()).remove(0))])
            .unwrap()
    }

    fn values(batches: &[RecordBatch]) -> Vec<i64> {
        batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
    }

    #[test]
    fn partitions_start_where_keys_change() {
        let rows = keys(&[Some(1), Some(1), None, None, Some(2)]);
        assert_eq!(starts(&rows, None, 5).unwrap(), [0, 2, 4]);
        assert_eq!(starts(&rows, Some(&keys(&[Some(1)])), 5).unwrap(), [2, 4]);
        assert_eq!(starts(&rows, Some(&keys(&[None])), 5).unwrap(), [0, 2, 4]);
        assert_eq!(starts(&keys(&[None]), Some(&keys(&[None])), 1).unwrap(), [0; 0]);
        assert_eq!(starts(&[], None, 3).unwrap(), [0]);
        assert_eq!(starts(&[], Some(&[]), 3).unwrap(), [0; 0]);
    }

    #[test]
    fn rows_leave_with_their_partitions() {
        let mut held = Held::default();
        held.push(batch(&[1, 1, 2]), &[0, 2]);
        held.push(batch(&[2, 3, 3]), &[1]);
        assert_eq!((held.rows, held.complete_rows(), &held.starts[..]), (6, 4, &[0, 2, 4][..]));
        let (batches, starts) = held.take(4).unwrap();
        assert_eq!((values(&batches), starts), (vec![1, 1, 2, 2], vec![0, 2]));
        assert_eq!((held.rows, held.complete_rows(), &held.starts[..]), (2, 0, &[0][..]));
        held.push(batch(&[4]), &[0]);
        let (batches, starts) = held.take(3).unwrap();
        assert_eq!((values(&batches), starts, held.rows), (vec![3, 3, 4], vec![0, 2], 0));
        assert!(held.starts.is_empty() && held.batches.is_empty());
    }
}

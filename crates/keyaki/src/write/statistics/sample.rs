//! A uniform random sample of a stream of unknown length.
//!
//! Each row is selected with the same probability, initially 1. When the sample exceeds its limits, each of its rows is
//! dropped with probability one half, and the probability is halved for the following rows. Every row seen so far is
//! then in the sample with the new probability.

use arrow::array::{BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, filter_record_batch, take_record_batch};
use arrow::datatypes::SchemaRef;
use keyaki_primitives::Random;
use keyaki_store::compact;

use crate::Result;

/// Maximum rows of the sample.
const ROWS_MAX: usize = 60_000;
/// Maximum bytes of the sample, unless it has at most [`ROWS_MIN`] rows.
const BYTES_MAX: usize = 24 << 20;
const ROWS_MIN: usize = 64;

#[derive(Debug)]
pub(super) struct RowSample {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
    /// Each row was selected with probability 2^-halvings.
    halvings: u32,
    /// Rows to skip before the next selected row.
    skip: u64,
    random: Random,
}

impl RowSample {
    pub fn new(schema: SchemaRef) -> Self {
        RowSample {
            schema,
            batches: Vec::new(),
            rows: 0,
            bytes: 0,
            halvings: 0,
            skip: 0,
            random: Random::new(0x6b65_7961_6b69),
        }
    }

    pub fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        let rows = batch.num_rows() as u64;
        if self.skip >= rows {
            self.skip -= rows;
            return Ok(());
        }
        let mut picked = Vec::new();
        let mut row = self.skip;
        while row < rows {
            picked.push(row as u32);
            row += 1 + self.gap();
        }
        self.skip = row - rows;
        let batch = compact(&take_record_batch(batch, &UInt32Array::from(picked))?);
        self.rows += batch.num_rows();
        self.bytes += batch.get_array_memory_size();
        self.batches.push(batch);
        while self.rows > ROWS_MAX || (self.bytes > BYTES_MAX && self.rows > ROWS_MIN) {
            self.halve()?;
        }
        Ok(())
    }

    /// The sample as one batch, in order of the stream.
    pub fn finish(self) -> Result<RecordBatch> {
        concat_batches(&self.schema, &self.batches).map_err(crate::Error::from)
    }

    /// Number of rows to skip after a selected one: geometrically distributed.
    fn gap(&mut self) -> u64 {
        if self.halvings == 0 {
            return 0;
        }
        let probability = 0.5f64.powi(self.halvings as i32);
        (self.random.unit_above_zero().ln() / (-probability).ln_1p()) as u64
    }

    fn halve(&mut self) -> Result<()> {
        self.halvings += 1;
        let all = concat_batches(&self.schema, &self.batches)?;
        let keep: BooleanArray = (0..all.num_rows()).map(|_| Some(self.random.next_u64() & 1 == 0)).collect();
        let kept = compact(&filter_record_batch(&all, &keep)?);
        self.rows = kept.num_rows();
        self.bytes = kept.get_array_memory_size();
        self.batches = vec![kept];
        // The skip is drawn again with the new probability, so that the selections stay independent.
        self.skip = if self.random.next_u64() & 1 == 0 { 0 } else { 1 + self.gap() };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array, StringViewArray};
    use arrow::datatypes::Int64Type;

    use super::*;

    fn batch(range: std::ops::Range<i64>) -> RecordBatch {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(range.clone()));
        let texts: ArrayRef =
            Arc::new(StringViewArray::from_iter_values(range.map(|i| format!("text number {i:>20}"))));
        RecordBatch::try_from_iter([("number", numbers), ("text", texts)]).expect("a batch")
    }

    #[test]
    fn keeps_all_rows_of_a_small_stream() {
        let mut sample = RowSample::new(batch(0..1).schema());
        for start in 0..5 {
            sample.push(&batch(start * 1000..(start + 1) * 1000)).expect("push");
        }
        let all = sample.finish().expect("finish");
        assert_eq!(all.column(0).as_primitive::<Int64Type>().values(), &(0..5000).collect::<Vec<_>>()[..]);
    }

    #[test]
    fn is_uniform_over_a_long_stream() {
        let mut sample = RowSample::new(batch(0..1).schema());
        let total = 1_500_000;
        for start in (0..total).step_by(5000) {
            sample.push(&batch(start..start + 5000)).expect("push");
        }
        let picked = sample.finish().expect("finish");
        assert!((10_000..=ROWS_MAX).contains(&picked.num_rows()), "{}", picked.num_rows());
        let mut tenths = [0usize; 10];
        let numbers = picked.column(0).as_primitive::<Int64Type>();
        for number in numbers.values() {
            tenths[(*number * 10 / total) as usize] += 1;
        }
        let expected = picked.num_rows() as f64 / 10.0;
        for tenth in tenths {
            assert!((tenth as f64 - expected).abs() < 6.0 * expected.sqrt(), "{tenths:?}");
        }
        assert!(numbers.values().is_sorted_by(|a, b| a < b), "no row twice");
    }
}

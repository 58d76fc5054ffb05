//! External merge sort: sorts any number of rows by key in bounded memory.
//!
//! Rows are buffered until they fill the budget, sorted by their encoded keys, and written to a temporary file as a
//! run. At the end the runs are merged. Rows that fit into the budget are never written to a file. When a level has as
//! many runs as the budget allows to merge at once, they are merged into one run of the next level, so each row is
//! rewritten once per level.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::SchemaRef;
use arrow::row::{RowConverter, Rows, SortField};
use keyaki_store::compact;

use crate::Result;
use crate::write::bulk::memory::batch_bytes;
use crate::write::bulk::merge::{Input, RunMerge};
use crate::write::bulk::spill::{BUFFER_BYTES, RunWriter, SpillDir, SpilledRun};

/// Maximum rows of an output batch.
pub(super) const BATCH_ROWS: usize = 8192;
/// Bytes per row in addition to its values during sorting: sort entry and key offset.
const ROW_OVERHEAD_BYTES: usize = 40;
/// Maximum and minimum number of runs merged at once.
const FAN_IN: usize = 128;
const FAN_IN_MIN: usize = 4;

/// Encodes the leading columns of batches as byte strings in the store's key order: ascending, null first, floats in
/// total order, text bytewise.
#[derive(Debug, Clone)]
pub(super) struct SortKey {
    converter: Arc<RowConverter>,
    columns: usize,
}

impl SortKey {
    pub fn new(schema: &SchemaRef, columns: usize) -> Result<Self> {
        let fields = schema.fields()[..columns].iter().map(|field| SortField::new(field.data_type().clone())).collect();
        Ok(SortKey { converter: Arc::new(RowConverter::new(fields)?), columns })
    }

    pub fn encode(&self, batch: &RecordBatch) -> Result<Rows> {
        let columns: &[ArrayRef] = &batch.columns()[..self.columns];
        let mut rows = self.converter.empty_rows(batch.num_rows(), 0);
        self.converter.append(&mut rows, columns)?;
        Ok(rows)
    }
}

/// The first 16 bytes of a key as an integer with the same order. Shorter keys are padded with zeros.
pub(super) fn prefix(key: &[u8]) -> u128 {
    let mut first = [0; 16];
    let len = key.len().min(16);
    first[..len].copy_from_slice(&key[..len]);
    u128::from_be_bytes(first)
}

/// An external sort in progress.
#[derive(Debug)]
pub(super) struct Sorter {
    schema: SchemaRef,
    key: SortKey,
    dir: SpillDir,
    budget_bytes: usize,
    buffered: Vec<RecordBatch>,
    buffered_bytes: usize,
    /// Runs of each level, in order of arrival.
    runs: Vec<Vec<SpilledRun>>,
}

impl Sorter {
    /// Creates a sorter of rows of `schema` by their first `key_columns` columns, with about `budget_bytes` of memory.
    pub fn new(schema: SchemaRef, key_columns: usize, budget_bytes: usize, dir: SpillDir) -> Result<Self> {
        let key = SortKey::new(&schema, key_columns)?;
        Ok(Sorter { schema, key, dir, budget_bytes, buffered: Vec::new(), buffered_bytes: 0, runs: Vec::new() })
    }

    pub fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let batch = compact(batch);
        self.buffered_bytes += Self::bytes_of(&batch);
        self.buffered.push(batch);
        if self.buffered_bytes >= self.budget_bytes { self.spill() } else { Ok(()) }
    }

    /// Bytes that the rows of a batch take while they are sorted.
    pub fn bytes_of(batch: &RecordBatch) -> usize {
        // Values are held twice, in input order and in sorted order, and take about as much again as encoded keys.
        3 * batch_bytes(batch) + ROW_OVERHEAD_BYTES * batch.num_rows()
    }

    /// Bytes that the rows in memory take while they are sorted.
    pub fn buffered_bytes(&self) -> usize {
        self.buffered_bytes
    }

    /// Bytes that reading the runs takes: one batch and one file buffer for each.
    pub fn runs_bytes(&self) -> usize {
        let runs: usize = self.runs.iter().map(Vec::len).sum();
        runs * (BUFFER_BYTES + self.budget_bytes / (FAN_IN * 4))
    }

    /// Merges all rows with the sorted streams `others`. Rows of `others` precede equal rows of the sorter.
    pub fn finish<'s>(self, others: Vec<Input<'s>>) -> Result<RunMerge<'s>> {
        self.finish_in_batches(others, BATCH_ROWS)
    }

    /// As [`finish`](Self::finish), in batches of at most `batch_rows` rows.
    pub fn finish_in_batches<'s>(mut self, others: Vec<Input<'s>>, batch_rows: usize) -> Result<RunMerge<'s>> {
        let mut last = self.sort_buffered()?;
        last.reverse();
        let runs = self.runs.into_iter().rev().flatten().collect();
        // Runs of higher levels are older: equal keys stay in order of arrival.
        let mut inputs = others;
        inputs.extend(open(runs)?);
        inputs.push(Input::Memory(last));
        RunMerge::new(self.schema, self.key, inputs, batch_rows)
    }

    /// Rows per batch of a run, so that the merge can hold one batch of each run.
    fn run_batch_rows(&self, bytes: usize, rows: usize) -> usize {
        let row_bytes = (bytes / rows.max(1)).max(1);
        (self.budget_bytes / (FAN_IN * 4) / row_bytes).clamp(64, BATCH_ROWS)
    }

    fn fan_in(&self) -> usize {
        // With a small budget, even file buffers and batches of minimum size may take a large part of it.
        (self.budget_bytes / (2 * BUFFER_BYTES)).clamp(FAN_IN_MIN, FAN_IN)
    }

    /// Writes the rows in memory to a run.
    pub fn spill(&mut self) -> Result<()> {
        if self.buffered.is_empty() {
            return Ok(());
        }
        let mut run = RunWriter::new(&self.dir, &self.schema)?;
        for batch in self.sort_buffered()? {
            run.push(&batch)?;
        }
        self.add_run(0, run.finish()?)
    }

    fn add_run(&mut self, level: usize, run: SpilledRun) -> Result<()> {
        if self.runs.len() <= level {
            self.runs.push(Vec::new());
        }
        self.runs[level].push(run);
        if self.runs[level].len() < self.fan_in() {
            return Ok(());
        }
        let runs = std::mem::take(&mut self.runs[level]);
        tracing::debug!(level, runs = runs.len(), rows = runs.iter().map(|run| run.rows).sum::<u64>(), "merging runs");
        let mut merged = RunWriter::new(&self.dir, &self.schema)?;
        let batch_rows = BATCH_ROWS.min(64.max(self.budget_bytes / (FAN_IN * 64)));
        let mut merge = RunMerge::new(self.schema.clone(), self.key.clone(), open(runs)?, batch_rows)?;
        while let Some(batch) = merge.next()? {
            merged.push(&batch)?;
        }
        self.add_run(level + 1, merged.finish()?)
    }

    /// Sorts the buffered rows and empties the buffer.
    fn sort_buffered(&mut self) -> Result<Vec<RecordBatch>> {
        let batches = std::mem::take(&mut self.buffered);
        let bytes = batches.iter().map(batch_bytes).sum();
        self.buffered_bytes = 0;
        let keys = batches.iter().map(|batch| self.key.encode(batch)).collect::<Result<Vec<_>>>()?;
        let mut order: Vec<(u128, u32, u32)> = Vec::with_capacity(batches.iter().map(RecordBatch::num_rows).sum());
        for (batch, keys) in keys.iter().enumerate() {
            order.extend(keys.iter().enumerate().map(|(row, key)| (prefix(key.data()), batch as u32, row as u32)));
        }
        order.sort_unstable_by(|a, b| {
            let key = |&(_, batch, row): &(u128, u32, u32)| keys[batch as usize].row(row as usize);
            // Equal keys stay in order of arrival.
            a.0.cmp(&b.0).then_with(|| key(a).data().cmp(key(b).data())).then_with(|| (a.1, a.2).cmp(&(b.1, b.2)))
        });
        drop(keys);
        let rows = self.run_batch_rows(bytes, order.len());
        let sources: Vec<&RecordBatch> = batches.iter().collect();
        let sorted_batch = |picked: &[(u128, u32, u32)]| {
            let picked: Vec<(usize, usize)> = picked.iter().map(|&(_, b, r)| (b as usize, r as usize)).collect();
            let batch = interleave_record_batch(&sources, &picked)?;
            // Views in the result still point into the buffers of all source batches.
            Ok(compact(&batch))
        };
        order.chunks(rows).map(sorted_batch).collect()
    }
}

fn open<'s>(runs: Vec<SpilledRun>) -> Result<Vec<Input<'s>>> {
    runs.into_iter().map(|run| Ok(Input::Run(run.read()?))).collect()
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray, Float64Array, Int64Array, StringViewArray};
    use arrow::compute::concat_batches;
    use arrow::datatypes::{Float64Type, Int64Type};
    use proptest::prelude::*;

    use super::*;

    type Row = (Option<i64>, Option<String>, f64);

    fn batch(rows: &[Row]) -> RecordBatch {
        let columns: Vec<(&str, ArrayRef, bool)> = vec![
            ("number", Arc::new(Int64Array::from_iter(rows.iter().map(|row| row.0))), true),
            ("text", Arc::new(StringViewArray::from_iter(rows.iter().map(|row| row.1.as_deref()))), true),
            ("real", Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.2))), true),
        ];
        RecordBatch::try_from_iter_with_nullable(columns).expect("a batch")
    }

    fn rows(batch: &RecordBatch) -> Vec<Row> {
        let numbers = batch.column(0).as_primitive::<Int64Type>();
        let texts = batch.column(1).as_string_view();
        let reals = batch.column(2).as_primitive::<Float64Type>();
        let text = |row| texts.is_valid(row).then(|| texts.value(row).to_string());
        let number = |row| numbers.is_valid(row).then(|| numbers.value(row));
        (0..batch.num_rows()).map(|row| (number(row), text(row), reals.value(row))).collect()
    }

    fn sort(input: &[Row], push_rows: usize, budget: usize) -> Vec<Row> {
        let schema = batch(&[]).schema();
        let mut sorter =
            Sorter::new(schema.clone(), 2, budget, SpillDir::new(&std::env::temp_dir())).expect("a sorter");
        for rows in input.chunks(push_rows) {
            sorter.push(&batch(rows)).expect("push");
        }
        let mut merge = sorter.finish(Vec::new()).expect("finish");
        let mut output = Vec::new();
        while let Some(batch) = merge.next().expect("next") {
            assert!((1..=BATCH_ROWS).contains(&batch.num_rows()));
            output.push(batch);
        }
        rows(&concat_batches(&schema, &output).expect("concat"))
    }

    fn expected(input: &[Row]) -> Vec<Row> {
        let mut rows = input.to_vec();
        rows.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
        rows
    }

    #[test]
    fn empty_input_yields_no_rows() {
        assert_eq!(sort(&[], 1, 1 << 20), vec![]);
    }

    #[test]
    fn tiny_budgets_spill_and_merge_in_levels() {
        let mut random = keyaki_primitives::Random::new(5);
        let input: Vec<Row> = (0..60_000)
            .map(|i| {
                let text = (!random.next_u64().is_multiple_of(5))
                    .then(|| "a longer common beginning ".to_string() + &i.to_string());
                (Some((random.next_u64() % 3000) as i64 - 1500), text, i as f64)
            })
            .collect();
        for budget in [1, 64 << 10, 1 << 20, 64 << 20] {
            assert!(sort(&input, 1000, budget) == expected(&input), "budget {budget}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn sorts_stably_with_any_budget(
            rows in prop::collection::vec(
                (prop::option::of(-3i64..3), prop::option::of("[\\x00ab\\u{ff}]{0,20}")), 0..400),
            push_rows in 1usize..50,
            budget in prop::sample::select(vec![1usize, 2000, 20_000, 10_000_000]),
        ) {
            let input: Vec<Row> = rows.into_iter().enumerate().map(|(i, (n, t))| (n, t, i as f64)).collect();
            prop_assert_eq!(sort(&input, push_rows, budget), expected(&input));
        }
    }
}

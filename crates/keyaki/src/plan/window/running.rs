//! A large partition, evaluated in batches.

use std::collections::VecDeque;

use arrow::array::{Array, ArrayRef, RecordBatch};
use datafusion::error::Result;
use datafusion::logical_expr::window_state::PartitionBatchState;
use datafusion::physical_expr::window::{PartitionBatches, PartitionWindowAggStates, WindowEvalContext};
use keyaki_store::{compact, compact_array};

use super::functions::Functions;
use super::held::split;

/// The partition that is evaluated: the rows that frames of later rows need, and the states of the functions.
///
/// DataFusion keeps both for many partitions by their keys. Here there is one, with an empty key.
#[derive(Debug)]
pub(super) struct Running {
    partition: PartitionBatches,
    /// One for each function.
    states: Vec<PartitionWindowAggStates>,
    /// Rows without results.
    rows: VecDeque<RecordBatch>,
}

/// Rows and their results: one array for each function.
pub(super) type Results = (Vec<RecordBatch>, Vec<ArrayRef>);

impl Running {
    pub fn new(functions: &Functions) -> Result<Running> {
        let mut partition = PartitionBatches::default();
        partition.insert(Vec::new(), PartitionBatchState::new_with_batch(functions.narrow([].iter())?));
        let states = functions.functions.iter().map(|_| PartitionWindowAggStates::default()).collect();
        Ok(Running { partition, states, rows: VecDeque::new() })
    }

    /// Adds rows of the partition. `is_end`: they are its last ones. Returns the rows whose results are known.
    pub fn add(&mut self, functions: &Functions, batches: Vec<RecordBatch>, is_end: bool) -> Result<Results> {
        for partition in self.partition.values_mut() {
            let added = functions.narrow(batches.iter())?;
            let kept = std::mem::replace(&mut partition.record_batch, added);
            if kept.num_rows() > 0 {
                let both = [kept, partition.record_batch.clone()];
                partition.record_batch = functions.joined(&both)?;
            }
            partition.is_end = is_end;
        }
        self.rows.extend(batches);
        let context = WindowEvalContext::default();
        for (function, states) in functions.functions.iter().zip(&mut self.states) {
            function.expression.evaluate_stateful(&self.partition, states, &context)?;
        }
        let lengths = self.states.iter().flat_map(|states| states.values()).map(|state| state.state.out_col.len());
        let rows = lengths.min().unwrap_or(0);
        let results = self.states.iter_mut().flat_map(|states| states.values_mut()).map(|state| {
            let column = &mut state.state.out_col;
            let results = column.slice(0, rows);
            *column = compact_array(&column.slice(rows, column.len() - rows));
            results
        });
        let results = results.collect();
        self.prune();
        let rows = split(&mut self.rows, rows)?;
        assert!(!is_end || self.rows.is_empty(), "each row of a partition that has ended has a result");
        Ok((rows, results))
    }

    /// Bytes that are held.
    pub fn memory_bytes(&self) -> usize {
        let narrow = self.partition.values().map(|partition| partition.record_batch.get_array_memory_size());
        let rows = self.rows.iter().map(RecordBatch::get_array_memory_size);
        let results = self.states.iter().flat_map(|states| states.values());
        let results = results.map(|state| state.state.out_col.get_array_memory_size());
        narrow.chain(rows).chain(results).sum()
    }

    /// Drops the rows before the frames of all functions. Frames never move back.
    fn prune(&mut self) {
        let states = self.states.iter().flat_map(|states| states.values()).map(|state| &state.state);
        let unused = states.map(|state| state.window_frame_range.start.min(state.last_calculated_index)).min();
        let Some(unused) = unused.filter(|unused| *unused > 0) else { return };
        for state in self.states.iter_mut().flat_map(|states| states.values_mut()) {
            state.state.prune_state(unused);
        }
        for partition in self.partition.values_mut() {
            let batch = &partition.record_batch;
            partition.record_batch = compact(&batch.slice(unused, batch.num_rows() - unused));
        }
    }
}

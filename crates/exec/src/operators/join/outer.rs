//! A batch of rows of one level, with the lookups that they ask for.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, RecordBatch};

use super::plan::StepPlan;
use crate::Result;
use crate::query::flow::{Charge, Flow};

/// Rows that wait for their lookups, or that joined rows still refer to.
#[derive(Debug)]
pub(crate) struct Outer {
    pub batch: RecordBatch,
    /// Encoded key prefixes of all rows; empty where part of the key is null.
    keys: Vec<u8>,
    /// Where the key of each row ends.
    key_ends: Vec<usize>,
    /// Rows that have a key, by lookup.
    order: Vec<u32>,
    /// Where the rows of each lookup end in `order`.
    lookup_ends: Vec<u32>,
    _charge: Charge,
}

/// One lookup: the rows of an [`Outer`] that have one and the same key.
#[derive(Debug, Clone)]
pub(crate) struct Lookup {
    pub outer: Arc<Outer>,
    pub number: usize,
}

/// Whether rows with equal keys share lookups, which then come in key order (so that their pages are neighbours), or
/// each row has its own, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookups {
    Shared,
    RowByRow,
}

impl Outer {
    /// The rows with their lookups, and the rows that have none because part of their key is null.
    pub fn new(
        step: &StepPlan,
        batch: RecordBatch,
        lookups: Lookups,
        flow: &Arc<Flow>,
        level: usize,
    ) -> Result<(Outer, Vec<u32>)> {
        let rows = batch.num_rows();
        let columns = step.key_columns(batch.columns(), rows)?;
        let nullable: Vec<_> = columns.iter().filter(|column| column.null_count() > 0).collect();
        let (mut keys, mut key_ends) = (Vec::new(), Vec::with_capacity(rows));
        let (mut order, mut keyless) = (Vec::with_capacity(rows), Vec::new());
        for row in 0..rows {
            if nullable.iter().any(|column| column.is_null(row)) {
                keyless.push(row as u32);
            } else {
                step.codec.encode(&columns, row, &mut keys);
                order.push(row as u32);
            }
            key_ends.push(keys.len());
        }
        let mut charge = Charge::new(flow, level);
        charge.set(batch.get_array_memory_size() + keys.capacity() + 16 * rows + size_of::<Outer>());
        let mut outer = Outer { batch, keys, key_ends, order, lookup_ends: Vec::new(), _charge: charge };
        match lookups {
            Lookups::Shared => outer.share(),
            Lookups::RowByRow => outer.lookup_ends = (1..=outer.order.len() as u32).collect(),
        }
        Ok((outer, keyless))
    }

    fn share(&mut self) {
        let mut order = std::mem::take(&mut self.order);
        if !order.is_sorted_by(|&a, &b| self.key_of(a) <= self.key_of(b)) {
            order.sort_by(|&a, &b| self.key_of(a).cmp(self.key_of(b)));
        }
        for at in 1..=order.len() {
            if at == order.len() || self.key_of(order[at]) != self.key_of(order[at - 1]) {
                self.lookup_ends.push(at as u32);
            }
        }
        self.order = order;
    }

    fn key_of(&self, row: u32) -> &[u8] {
        let row = row as usize;
        let start = if row == 0 { 0 } else { self.key_ends[row - 1] };
        &self.keys[start..self.key_ends[row]]
    }

    pub fn lookups(&self) -> usize {
        self.lookup_ends.len()
    }

    fn range(&self, number: usize) -> Range<usize> {
        let start = if number == 0 { 0 } else { self.lookup_ends[number - 1] as usize };
        start..self.lookup_ends[number] as usize
    }
}

impl Lookup {
    /// The rows that share the lookup.
    pub fn rows(&self) -> &[u32] {
        &self.outer.order[self.outer.range(self.number)]
    }

    /// The encoded key prefix.
    pub fn key(&self) -> &[u8] {
        // A lookup has at least one row.
        self.outer.key_of(self.rows()[0])
    }
}

//! A batch of rows of one level, with the lookups that they start.
//!
//! ```text
//!  rows            0   1   2   3   4         keys of the rows, encoded; row 3 has no key
//!  key             b   a   b   -   a
//!  order           1   4   0   2             rows that have a key, sorted by key if rows share lookups
//!  lookup_ends         2       4             lookup 0: rows 1 and 4, lookup 1: rows 0 and 2
//! ```

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, RecordBatch};

use super::plan::StepPlan;
use crate::base::{Result, slice_bytes};
use crate::query::{Charge, Flow};

/// Bytes per row of `key_ends`, `order` and `lookup_ends`.
const INDEX_BYTES_PER_ROW: usize = size_of::<usize>() + 2 * size_of::<u32>();

/// Rows that wait for their lookups, or that joined rows still refer to.
#[derive(Debug)]
pub(crate) struct OuterBatch {
    pub batch: RecordBatch,
    /// Encoded key prefixes of all rows; empty where part of the key is null.
    keys: Vec<u8>,
    /// End of each row's key in `keys`.
    key_ends: Vec<usize>,
    /// Rows that have a key, by lookup.
    order: Vec<u32>,
    /// End of each lookup's rows in `order`; ascending, so each lookup has at least one row.
    lookup_ends: Vec<u32>,
    _charge: Charge,
}

/// One lookup: rows of an [`OuterBatch`] that have the same key.
#[derive(Debug, Clone)]
pub(crate) struct Lookup {
    pub outer: Arc<OuterBatch>,
    pub number: usize,
}

/// The assignment of rows to lookups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupSharing {
    /// Rows with equal keys share a lookup. Lookups come in key order, so that their pages are neighbours.
    ByKey,
    /// Each row has a lookup of its own, in the order of rows.
    ByRow,
}

impl OuterBatch {
    /// The rows with their lookups, and the rows that have none because part of their key is null.
    pub fn new(
        step: &StepPlan,
        batch: RecordBatch,
        sharing: LookupSharing,
        flow: &Arc<Flow>,
        level: usize,
    ) -> Result<(OuterBatch, Vec<u32>)> {
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
        let index_bytes = keys.capacity() + INDEX_BYTES_PER_ROW * rows + size_of::<OuterBatch>();
        charge.set(slice_bytes(&batch) + index_bytes);
        let mut outer = OuterBatch { batch, keys, key_ends, order, lookup_ends: Vec::new(), _charge: charge };
        match sharing {
            LookupSharing::ByKey => outer.share_lookups(),
            LookupSharing::ByRow => outer.lookup_ends = (1..=outer.order.len() as u32).collect(),
        }
        assert_eq!(outer.order.len() + keyless.len(), rows, "each row has a key or is keyless");
        assert_eq!(outer.lookup_ends.last().map_or(0, |&end| end as usize), outer.order.len(), "rows of all lookups");
        Ok((outer, keyless))
    }

    /// Sorts the rows by key, and gives rows with equal keys the same lookup.
    fn share_lookups(&mut self) {
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

    /// Number of lookups.
    pub fn lookups(&self) -> usize {
        self.lookup_ends.len()
    }

    fn range(&self, number: usize) -> Range<usize> {
        let start = if number == 0 { 0 } else { self.lookup_ends[number - 1] as usize };
        start..self.lookup_ends[number] as usize
    }
}

impl Lookup {
    /// The rows that share the lookup; at least one.
    pub fn rows(&self) -> &[u32] {
        &self.outer.order[self.outer.range(self.number)]
    }

    /// The encoded key prefix.
    pub fn key(&self) -> &[u8] {
        self.outer.key_of(self.rows()[0])
    }
}

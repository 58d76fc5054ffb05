//! Aggregates over ranges of rows: the summaries in between, and at both ends the values themselves.

use super::{BLOCK, Packed};
use crate::key::Key;
use crate::memory::read;
use crate::simd::dispatch;

/// Values of a summary.
pub(crate) const GROUP: usize = 8 * BLOCK;
/// Bytes of a summary: the sum of all values before, the least and the greatest value.
pub(crate) const SUMMARY_BYTES: usize = 32;

/// What the values of a range come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aggregate<V> {
    /// How many there are.
    pub count: usize,
    /// Their sum.
    pub sum: i128,
    /// The smallest.
    pub min: Option<V>,
    /// The greatest.
    pub max: Option<V>,
}

impl<V: Key> Aggregate<V> {
    fn of(count: usize, sum: i128, least: u64, greatest: u64) -> Self {
        let some = |ordered| (count > 0).then(|| V::from_ordered(ordered));
        Aggregate { count, sum, min: some(least), max: some(greatest) }
    }
}

/// The number that a value means.
fn meaning<V: Key>(ordered: u64) -> i128 {
    ordered as i128 - V::FLIP as i128
}

/// Summaries of values as they come.
#[derive(Debug, Default)]
pub(super) struct Summaries {
    bytes: Vec<u8>,
    count: usize,
    sum: i128,
    least: u64,
    greatest: u64,
}

impl Summaries {
    /// More values.
    pub fn push<V: Key>(&mut self, values: &[V]) {
        let first = (GROUP - self.count % GROUP) % GROUP;
        let (head, tail) = values.split_at(first.min(values.len()));
        self.add(head);
        for group in tail.chunks(GROUP) {
            self.close();
            self.add(group);
        }
    }

    fn add<V: Key>(&mut self, values: &[V]) {
        let (mut sum, mut least, mut greatest) = (0i128, self.least, self.greatest);
        for value in values {
            let ordered = value.ordered();
            sum += meaning::<V>(ordered);
            least = least.min(ordered);
            greatest = greatest.max(ordered);
        }
        self.count += values.len();
        (self.sum, self.least, self.greatest) = (self.sum + sum, least, greatest);
    }

    /// Closes the group before (if there is one) and begins another.
    fn close(&mut self) {
        if let Some(open) = self.bytes.len().checked_sub(16) {
            self.bytes[open..open + 8].copy_from_slice(&self.least.to_le_bytes());
            self.bytes[open + 8..].copy_from_slice(&self.greatest.to_le_bytes());
        }
        self.bytes.extend_from_slice(&self.sum.to_le_bytes());
        self.bytes.extend_from_slice(&[0; 16]);
        (self.least, self.greatest) = (u64::MAX, 0);
    }

    /// All summaries, and one behind the last group with the sum of all.
    pub fn finish(mut self) -> Vec<u8> {
        self.close();
        self.bytes
    }
}

impl<V: Key> Packed<V> {
    /// Whether there are summaries.
    pub fn is_summarised(&self) -> bool {
        !self.summaries.is_empty()
    }

    /// Count, sum, minimum and maximum of the values from row `from` to row `to`.
    ///
    /// # Panics
    /// When `to` is above the length.
    pub fn aggregate(&self, from: usize, to: usize) -> Aggregate<V> {
        assert!(to <= self.len(), "row {to} of {}", self.len());
        let mut sum = 0i128;
        let (mut least, mut greatest) = (u64::MAX, 0);
        let count = to.saturating_sub(from);
        let (first, last) = (from.div_ceil(GROUP), to / GROUP);
        if self.is_summarised() && first < last {
            sum = self.summary(last).0.wrapping_sub(self.summary(first).0);
            for group in first..last {
                let (_, low, high) = self.summary(group);
                (least, greatest) = (least.min(low), greatest.max(high));
            }
            for (from, to) in [(from, first * GROUP), (last * GROUP, to)] {
                self.add_up(from, to, &mut sum, &mut least, &mut greatest);
            }
        } else {
            self.add_up(from, to, &mut sum, &mut least, &mut greatest);
        }
        Aggregate::of(count, sum, least, greatest)
    }

    /// The sum of the values from row `from` to row `to`.
    ///
    /// # Panics
    /// When `to` is above the length.
    pub fn sum(&self, from: usize, to: usize) -> i128 {
        assert!(to <= self.len(), "row {to} of {}", self.len());
        let (first, last) = (from.div_ceil(GROUP), to / GROUP);
        if self.is_summarised() && first < last {
            let ends = self.sum_of(from, first * GROUP).wrapping_add(self.sum_of(last * GROUP, to));
            return ends.wrapping_add(self.summary(last).0).wrapping_sub(self.summary(first).0);
        }
        self.sum_of(from, to)
    }

    /// The same without a look at the summaries: every value is unpacked.
    ///
    /// # Panics
    /// When `to` is above the length.
    pub fn sum_by_scan(&self, from: usize, to: usize) -> i128 {
        assert!(to <= self.len(), "row {to} of {}", self.len());
        self.sum_of(from, to)
    }

    /// The sum of values, of which only the eights they are in are unpacked. The rows are below the length.
    fn sum_of(&self, from: usize, to: usize) -> i128 {
        dispatch!(self.instructions, S, fn run[V: Key](column: &Packed<V>, from: usize, to: usize) -> i128 {
            let mut values = [0; BLOCK];
            let (mut sum, mut row) = (0i128, from);
            while row < to {
                let (block, group) = (row / BLOCK, row % BLOCK / 8);
                let (start, end) = (block * BLOCK + group * 8, to.min((block + 1) * BLOCK));
                // SAFETY: the processor has `S`; the block has rows below the length; it has sixteen groups of eight.
                unsafe { column.unpack_groups::<S>(block, group, &mut values[..(end - start).next_multiple_of(8)]) };
                // Halves of 32 bits: sums of 128 of them stay far below 64 bits.
                let (mut low, mut high) = (0u64, 0u64);
                for &value in &values[row - start..end - start] {
                    low += value & u32::MAX as u64;
                    high += value >> 32;
                }
                let part = low as i128 + ((high as i128) << 32) - V::FLIP as i128 * (end - row) as i128;
                // It cannot overflow; but a summary in bytes that were forged can be anything.
                sum = sum.wrapping_add(part);
                row = end;
            }
            sum
        }, (self, from, to))
    }

    fn add_up(&self, from: usize, to: usize, sum: &mut i128, least: &mut u64, greatest: &mut u64) {
        let mut values = [0; BLOCK];
        let mut row = from;
        while row < to {
            let block = row / BLOCK;
            self.unpack(block, &mut values);
            let end = to.min((block + 1) * BLOCK);
            let values = &values[row - block * BLOCK..end - block * BLOCK];
            // Halves of 32 bits: sums of 128 of them stay far below 64 bits.
            let (mut low, mut high, mut min, mut max) = (0u64, 0u64, u64::MAX, 0u64);
            for &value in values {
                low += value & u32::MAX as u64;
                high += value >> 32;
                min = min.min(value);
                max = max.max(value);
            }
            let part = low as i128 + ((high as i128) << 32) - V::FLIP as i128 * values.len() as i128;
            // It cannot overflow; but a summary in bytes that were forged can be anything.
            *sum = sum.wrapping_add(part);
            (*least, *greatest) = ((*least).min(min), (*greatest).max(max));
            row = end;
        }
    }

    fn summary(&self, group: usize) -> (i128, u64, u64) {
        let at = &self.summaries[group * SUMMARY_BYTES..][..SUMMARY_BYTES];
        // SAFETY: the slice has 32 bytes.
        unsafe { (read(at.as_ptr()), read(at.as_ptr().add(16)), read(at.as_ptr().add(24))) }
    }
}

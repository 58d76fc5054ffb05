//! Aggregates over ranges of rows: summaries for the groups within the range, and the values themselves at both ends.

use super::{BLOCK, Packed};
use crate::key::Key;
use crate::memory::read;
use crate::simd::dispatch;

/// Number of values of a summary.
pub(crate) const GROUP: usize = 8 * BLOCK;
/// Bytes of a summary: the sum of all values before the group (16 bytes), the group's minimum and maximum (8 bytes
/// each).
pub(crate) const SUMMARY_BYTES: usize = 32;

/// Count, sum, minimum and maximum of the values of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aggregate<V> {
    /// Number of values.
    pub count: usize,
    /// Sum of the values.
    pub sum: i128,
    /// The smallest value; `None` if there are no values.
    pub min: Option<V>,
    /// The greatest value; `None` if there are no values.
    pub max: Option<V>,
}

impl<V: Key> Aggregate<V> {
    fn of(count: usize, sum: i128, least: u64, greatest: u64) -> Self {
        let some = |ordered| (count > 0).then(|| V::from_ordered(ordered));
        Aggregate { count, sum, min: some(least), max: some(greatest) }
    }
}

/// The number that the unsigned form of a value stands for.
fn signed<V: Key>(ordered: u64) -> i128 {
    ordered as i128 - V::FLIP as i128
}

/// Builds the summaries of a stream of values.
#[derive(Debug, Default)]
pub(super) struct Summaries {
    bytes: Vec<u8>,
    count: usize,
    sum: i128,
    least: u64,
    greatest: u64,
}

impl Summaries {
    /// Appends values.
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
            sum += signed::<V>(ordered);
            least = least.min(ordered);
            greatest = greatest.max(ordered);
        }
        self.count += values.len();
        (self.sum, self.least, self.greatest) = (self.sum + sum, least, greatest);
    }

    /// Completes the current group, if there is one, and begins the next.
    fn close(&mut self) {
        if let Some(open) = self.bytes.len().checked_sub(16) {
            self.bytes[open..open + 8].copy_from_slice(&self.least.to_le_bytes());
            self.bytes[open + 8..].copy_from_slice(&self.greatest.to_le_bytes());
        }
        self.bytes.extend_from_slice(&self.sum.to_le_bytes());
        self.bytes.extend_from_slice(&[0; 16]);
        (self.least, self.greatest) = (u64::MAX, 0);
    }

    /// All summaries, followed by one with the sum of all values.
    pub fn finish(mut self) -> Vec<u8> {
        self.close();
        let groups = self.count.div_ceil(GROUP);
        assert_eq!(self.bytes.len(), (groups + 1) * SUMMARY_BYTES, "a summary for each group and one for the end");
        self.bytes
    }
}

impl<V: Key> Packed<V> {
    /// Returns whether the column has summaries.
    pub fn is_summarised(&self) -> bool {
        !self.summaries.is_empty()
    }

    /// Count, sum, minimum and maximum of the values of the rows `from..to`.
    ///
    /// # Panics
    /// If `to` exceeds the length.
    pub fn aggregate(&self, from: usize, to: usize) -> Aggregate<V> {
        assert!(to <= self.len(), "row {to} is out of range, the column has {} rows", self.len());
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

    /// The sum of the values of the rows `from..to`.
    ///
    /// # Panics
    /// If `to` exceeds the length.
    pub fn sum(&self, from: usize, to: usize) -> i128 {
        assert!(to <= self.len(), "row {to} is out of range, the column has {} rows", self.len());
        let (first, last) = (from.div_ceil(GROUP), to / GROUP);
        if self.is_summarised() && first < last {
            let ends = self.sum_of(from, first * GROUP).wrapping_add(self.sum_of(last * GROUP, to));
            return ends.wrapping_add(self.summary(last).0).wrapping_sub(self.summary(first).0);
        }
        self.sum_of(from, to)
    }

    /// The sum of the values of the rows `from..to`, by unpacking every value instead of using summaries.
    ///
    /// # Panics
    /// If `to` exceeds the length.
    pub fn sum_by_scan(&self, from: usize, to: usize) -> i128 {
        self.sum_of(from, to)
    }

    /// Sums the values of rows. Only the groups of eight that contain them are unpacked.
    fn sum_of(&self, from: usize, to: usize) -> i128 {
        assert!(to <= self.len(), "row {to} is out of range, the column has {} rows", self.len());
        dispatch!(self.instructions, S, fn run[V: Key](column: &Packed<V>, from: usize, to: usize) -> i128 {
            let mut values = [0; BLOCK];
            let (mut sum, mut row) = (0i128, from);
            while row < to {
                let (block, group) = (row / BLOCK, row % BLOCK / 8);
                let (start, end) = (block * BLOCK + group * 8, to.min((block + 1) * BLOCK));
                // SAFETY: the processor has `S`. The block has rows below the length, and it has sixteen groups of
                // eight.
                unsafe { column.unpack_groups::<S>(block, group, &mut values[..(end - start).next_multiple_of(8)]) };
                // The halves of 32 bits are summed separately: 128 of them do not overflow 64 bits.
                let (mut low, mut high) = (0u64, 0u64);
                for &value in &values[row - start..end - start] {
                    low += value & u32::MAX as u64;
                    high += value >> 32;
                }
                let part = low as i128 + ((high as i128) << 32) - V::FLIP as i128 * (end - row) as i128;
                // Valid columns do not overflow here, but the summaries of forged bytes may.
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
            // The halves of 32 bits are summed separately: 128 of them do not overflow 64 bits.
            let (mut low, mut high, mut min, mut max) = (0u64, 0u64, u64::MAX, 0u64);
            for &value in values {
                low += value & u32::MAX as u64;
                high += value >> 32;
                min = min.min(value);
                max = max.max(value);
            }
            let part = low as i128 + ((high as i128) << 32) - V::FLIP as i128 * values.len() as i128;
            // Valid columns do not overflow here, but the summaries of forged bytes may.
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

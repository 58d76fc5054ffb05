//! Partitions: key ranges that are read independently of each other.

use keyaki_store::{KeyRange, RangeEstimate};

use super::planned::PlannedTree;

/// The size of no rows.
pub(crate) const NOTHING: RangeEstimate = RangeEstimate { rows: 0.0, pages: 0.0, bytes: 0.0 };

/// Into how many partitions ranges may be split.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    /// At most this many.
    pub count: usize,
    /// Minimum size of a partition.
    pub least: f64,
    /// The size of ranges, of which partitions have about equal shares.
    pub measure: fn(&RangeEstimate) -> f64,
}

impl Parts {
    /// At most `count` partitions of at least `least` bytes.
    pub fn of_bytes(count: usize, least: f64) -> Parts {
        Parts { count, least, measure: |size| size.bytes }
    }

    /// At most `count` partitions of at least `least` rows.
    pub fn of_rows(count: usize, least: f64) -> Parts {
        Parts { count, least, measure: |size| size.rows }
    }
}

/// The size of two ranges together.
pub(crate) fn add(a: RangeEstimate, b: RangeEstimate) -> RangeEstimate {
    RangeEstimate { rows: a.rows + b.rows, pages: a.pages + b.pages, bytes: a.bytes + b.bytes }
}

/// Splits ranges, which have the size `total` together, into lists of about equal size, in key order. If `grouped`, keys with
/// the same values in this many leading columns are in one list. There is at least one list, which may be empty.
pub(crate) fn partition(
    view: &PlannedTree,
    ranges: Vec<KeyRange>,
    total: RangeEstimate,
    parts: Parts,
    grouped: Option<usize>,
) -> Vec<Vec<KeyRange>> {
    let Parts { count, least, measure } = parts;
    let total = measure(&total);
    let parts = count.min((total / least) as usize).max(1);
    if parts == 1 || grouped.is_some() && ranges.len() > 1 {
        return vec![ranges];
    }
    let share = total / parts as f64;
    let mut partitions: Vec<Vec<KeyRange>> = vec![Vec::new()];
    let mut filled = 0.0;
    for range in ranges {
        let size = measure(&view.estimate(&range));
        let pieces = if size > share / 2.0 { ((size / share).ceil() as usize * 2).min(4 * parts) } else { 1 };
        for piece in view.split_groups(&range, pieces, grouped.unwrap_or(view.schema().key_columns())) {
            if filled >= share && partitions.len() < parts {
                partitions.push(Vec::new());
                filled = 0.0;
            }
            filled += measure(&view.estimate(&piece));
            // `partitions` starts with one list, so `last_mut` never returns `None`.
            if let Some(last) = partitions.last_mut() {
                last.push(piece);
            }
        }
    }
    partitions
}

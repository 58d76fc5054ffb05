//! Partitions: key ranges that are read independently of each other.

use std::fmt::{self, Formatter};
use std::ops::Bound;

use datafusion::physical_plan::DisplayFormatType;
use keyaki_store::{KeyRange, RangeEstimate};
use xxhash_rust::xxh3::Xxh3Default;

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

/// Some of the partitions, and empty ones in place of `None`.
pub(crate) fn choose(partitions: &[Vec<KeyRange>], chosen: &[Option<usize>]) -> Vec<Vec<KeyRange>> {
    chosen.iter().map(|place| place.map_or_else(Vec::new, |place| partitions[place].clone())).collect()
}

/// Writes the number of partitions for EXPLAIN; in verbose form with a hash of their ranges, by which machines compare their
/// plans.
pub(crate) fn write_partitions(
    f: &mut Formatter<'_>,
    format: DisplayFormatType,
    partitions: &[Vec<KeyRange>],
) -> fmt::Result {
    match format {
        DisplayFormatType::TreeRender => write!(f, "\npartitions={}", partitions.len()),
        DisplayFormatType::Default => write!(f, ", partitions={}", partitions.len()),
        DisplayFormatType::Verbose => {
            write!(f, ", partitions={}, keys={:016x}", partitions.len(), hash(partitions))
        }
    }
}

fn hash(partitions: &[Vec<KeyRange>]) -> u64 {
    let mut hash = Xxh3Default::new();
    let mut add = |bound: &Bound<Vec<u8>>| {
        let (kind, key): (u8, &[u8]) = match bound {
            Bound::Unbounded => (0, &[]),
            Bound::Included(key) => (1, key),
            Bound::Excluded(key) => (2, key),
        };
        hash.update(&[kind]);
        hash.update(&(key.len() as u64).to_le_bytes());
        hash.update(key);
    };
    for ranges in partitions {
        for range in ranges {
            add(&range.start);
            add(&range.end);
        }
        // The end of a partition.
        add(&Bound::Unbounded);
    }
    hash.digest()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_tell_partitions_apart() {
        let range =
            |start: u8, end: u8| KeyRange { start: Bound::Included(vec![start]), end: Bound::Excluded(vec![end]) };
        let all = [
            vec![vec![range(1, 2), range(2, 3)]],
            vec![vec![range(1, 2)], vec![range(2, 3)]],
            vec![vec![range(1, 3)]],
            vec![vec![], vec![range(1, 3)]],
            vec![vec![range(1, 3)], vec![]],
        ];
        let hashes: std::collections::HashSet<u64> = all.iter().map(|partitions| hash(partitions)).collect();
        assert_eq!(hashes.len(), all.len());
        assert_eq!(choose(&all[1], &[Some(1), None]), [vec![range(2, 3)], vec![]]);
    }
}

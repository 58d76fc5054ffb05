//! Ranges of encoded keys, and their estimated size.

use std::ops::Bound;
use std::sync::Arc;

/// Direction of a scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// From the smallest key to the largest.
    #[default]
    Ascending,
    /// From the largest key to the smallest.
    Descending,
}

/// A range of encoded keys (see [`crate::KeyCodec`]), compared bytewise.
///
/// A bound may encode only leading key columns, since such an encoding is a prefix of whole keys. Keys that extend an
/// excluded start lie inside the range; to exclude them too, start at the included [`successor`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// Lower bound. `Unbounded` starts at the first key of the tree.
    pub start: Bound<Vec<u8>>,
    /// Upper bound. `Unbounded` ends at the last key of the tree.
    pub end: Bound<Vec<u8>>,
}

impl KeyRange {
    /// Every key.
    pub fn all() -> Self {
        KeyRange { start: Bound::Unbounded, end: Bound::Unbounded }
    }

    /// Every key that starts with `prefix`.
    pub fn prefix(prefix: Vec<u8>) -> Self {
        let end = match successor(&prefix) {
            Some(end) => Bound::Excluded(end),
            None => Bound::Unbounded,
        };
        KeyRange { start: Bound::Included(prefix), end }
    }

    /// Exactly this whole key. Lookups of a point range use the filters of extents.
    pub fn point(key: Vec<u8>) -> Self {
        KeyRange { start: Bound::Included(key.clone()), end: Bound::Included(key) }
    }

    /// The key, if the range is a single one.
    pub(crate) fn as_point(&self) -> Option<&[u8]> {
        match (&self.start, &self.end) {
            (Bound::Included(a), Bound::Included(b)) if a == b => Some(a),
            _ => None,
        }
    }

    /// Returns true if `key` lies in the range, compared bytewise.
    pub fn contains(&self, key: &[u8]) -> bool {
        let above = match &self.start {
            Bound::Included(start) => key >= start.as_slice(),
            Bound::Excluded(start) => key > start.as_slice(),
            Bound::Unbounded => true,
        };
        let below = match &self.end {
            Bound::Included(end) => key <= end.as_slice(),
            Bound::Excluded(end) => key < end.as_slice(),
            Bound::Unbounded => true,
        };
        above && below
    }

    /// Returns true if no key can lie in the range.
    pub fn is_empty(&self) -> bool {
        match (&self.start, &self.end) {
            (Bound::Included(start), Bound::Included(end)) => start > end,
            (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => {
                start >= end
            }
            _ => false,
        }
    }

    /// Returns true if `first` and all greater keys lie behind the range.
    pub(crate) fn ends_before(&self, first: &[u8]) -> bool {
        match &self.end {
            Bound::Included(end) => first > end.as_slice(),
            Bound::Excluded(end) => first >= end.as_slice(),
            Bound::Unbounded => false,
        }
    }

    /// Returns true if a key from `first` to `last` can lie in the range.
    pub(crate) fn may_overlap(&self, first: &[u8], last: &[u8]) -> bool {
        let starts_behind = match &self.start {
            Bound::Included(start) => last < start.as_slice(),
            Bound::Excluded(start) => last <= start.as_slice(),
            Bound::Unbounded => false,
        };
        !starts_behind && !self.ends_before(first)
    }

    /// The keys of both ranges.
    pub fn intersection(&self, other: &KeyRange) -> KeyRange {
        fn key(bound: &Bound<Vec<u8>>) -> Option<(&[u8], bool)> {
            match bound {
                Bound::Included(key) => Some((key, true)),
                Bound::Excluded(key) => Some((key, false)),
                Bound::Unbounded => None,
            }
        }
        // At the same key, an exclusive bound is the narrower one.
        let start = match (key(&self.start), key(&other.start)) {
            (Some((a, a_included)), Some((b, b_included))) => match (a, b_included) > (b, a_included) {
                true => &self.start,
                false => &other.start,
            },
            (Some(_), None) => &self.start,
            (None, _) => &other.start,
        };
        let end = match (key(&self.end), key(&other.end)) {
            (Some(a), Some(b)) => {
                if a < b {
                    &self.end
                } else {
                    &other.end
                }
            }
            (Some(_), None) => &self.end,
            (None, _) => &other.end,
        };
        KeyRange { start: start.clone(), end: end.clone() }
    }

    /// The intersection with `[low, high)`.
    pub(crate) fn intersect(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> KeyRange {
        let start = match (&self.start, low) {
            (Bound::Included(key) | Bound::Excluded(key), Some(low)) if key.as_slice() < low => {
                Bound::Included(low.to_vec())
            }
            (Bound::Unbounded, Some(low)) => Bound::Included(low.to_vec()),
            (start, _) => start.clone(),
        };
        let end = match (&self.end, high) {
            (Bound::Included(key) | Bound::Excluded(key), Some(high)) if key.as_slice() >= high => {
                Bound::Excluded(high.to_vec())
            }
            (Bound::Unbounded, Some(high)) => Bound::Excluded(high.to_vec()),
            (end, _) => end.clone(),
        };
        KeyRange { start, end }
    }
}

/// The smallest byte string above every string that starts with `prefix`, or `None` if no such string exists.
pub fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// The position of `key` between `low` and `high` (`low <= high`), from 0 to 1, as if keys were evenly distributed: the
/// first eight bytes after the common prefix of the bounds are compared as numbers.
pub(crate) fn position_between(key: &[u8], low: &[u8], high: &[u8]) -> f64 {
    if key <= low {
        return 0.0;
    }
    if key >= high {
        return 1.0;
    }
    let common = low.iter().zip(high).take_while(|(a, b)| a == b).count();
    let (low, high) = (head(&low[common..]), head(&high[common..]));
    let at = head(&key[common..]);
    (at - low) as f64 / (high - low).max(1) as f64
}

/// The key at a position (0 to 1) between `low` and `high`; the inverse of [`position_between`].
pub(crate) fn key_between(low: &[u8], high: &[u8], position: f64) -> Vec<u8> {
    let common = low.iter().zip(high).take_while(|(a, b)| a == b).count();
    let (from, to) = (head(&low[common..]), head(&high[common..]));
    let at = from + (to.saturating_sub(from) as f64 * position) as u64;
    [&low[..common], &at.to_be_bytes()[..]].concat()
}

/// The first eight bytes as a big-endian number, padded with zeros.
fn head(bytes: &[u8]) -> u64 {
    let mut head = [0; 8];
    let len = bytes.len().min(8);
    head[..len].copy_from_slice(&bytes[..len]);
    u64::from_be_bytes(head)
}

/// An encoded key with shared ownership.
pub(crate) type Key = Arc<[u8]>;

/// Estimated size of a key range, computed from nodes and buffers in memory and a few index pages.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RangeEstimate {
    /// Number of rows.
    pub rows: f64,
    /// Number of data pages of leaves that a scan of the range reads.
    pub pages: f64,
    /// Bytes of these pages; for a memory tree, bytes of keys and values.
    pub bytes: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intersections_have_the_keys_of_both_ranges() {
        let key = |byte: u8| vec![byte];
        let bounds = |bytes: [u8; 2]| {
            let included = bytes.map(|byte| Bound::Included(key(byte)));
            let excluded = bytes.map(|byte| Bound::Excluded(key(byte)));
            [Bound::Unbounded].into_iter().chain(included).chain(excluded)
        };
        let ranges =
            bounds([2, 4]).flat_map(|start| bounds([4, 6]).map(move |end| KeyRange { start: start.clone(), end }));
        let ranges: Vec<KeyRange> = ranges.collect();
        for one in &ranges {
            for other in &ranges {
                let both = one.intersection(other);
                let found = (0..8).map(key).filter(|key| both.contains(key));
                let expected = (0..8).map(key).filter(|key| one.contains(key) && other.contains(key));
                assert!(found.eq(expected), "{one:?} and {other:?}: {both:?}");
            }
        }
    }
}

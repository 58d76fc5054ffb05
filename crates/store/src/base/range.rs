//! Ranges of encoded keys.

use std::ops::Bound;
use std::sync::Arc;

/// Which way a scan runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// From the smallest key to the largest.
    #[default]
    Ascending,
    /// From the largest key to the smallest.
    Descending,
}

/// A range of encoded keys (see [`crate::KeyCodec`]). Because encodings of leading columns are prefixes of whole keys,
/// bounds may be encodings of a prefix of the key columns; comparison is bytewise all the same: keys that extend an
/// excluded start lie inside the range (exclude [`successor`] instead).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// The smallest key of the range, included or not; unbounded: the first key of the tree.
    pub start: Bound<Vec<u8>>,
    /// The largest key of the range, included or not; unbounded: the last key of the tree.
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

    /// Just this (whole) key. Lookups of such a range use filters.
    pub fn point(key: Vec<u8>) -> Self {
        KeyRange { start: Bound::Included(key.clone()), end: Bound::Included(key) }
    }

    /// Whether `key` lies in the range, compared bytewise.
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

    /// Whether no key can lie in the range.
    pub(crate) fn is_empty(&self) -> bool {
        match (&self.start, &self.end) {
            (Bound::Included(start), Bound::Included(end)) => start > end,
            (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => {
                start >= end
            }
            _ => false,
        }
    }

    /// Whether all keys from `first` on lie behind the range.
    pub(crate) fn ends_before(&self, first: &[u8]) -> bool {
        match &self.end {
            Bound::Included(end) => first > end.as_slice(),
            Bound::Excluded(end) => first >= end.as_slice(),
            Bound::Unbounded => false,
        }
    }

    /// Whether keys from `first` to `last` may lie in the range.
    pub(crate) fn may_overlap(&self, first: &[u8], last: &[u8]) -> bool {
        let starts_behind = match &self.start {
            Bound::Included(start) => last < start.as_slice(),
            Bound::Excluded(start) => last <= start.as_slice(),
            Bound::Unbounded => false,
        };
        !starts_behind && !self.ends_before(first)
    }

    /// The range cut to `[low, high)`.
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

/// The smallest byte string above every string that starts with `prefix`; none if there is no such string.
pub fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// An encoded key, shared.
pub(crate) type Key = Arc<[u8]>;

/// What the nodes in memory tell about a range, almost without I/O.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RangeEstimate {
    /// Rows.
    pub rows: f64,
    /// Data pages of leaves that a scan of the range reads.
    pub pages: f64,
    /// Bytes of these pages; of keys and values, for a tree in memory.
    pub bytes: f64,
}

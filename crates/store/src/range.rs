//! Ranges of encoded keys.

use std::ops::Bound;

/// Which way a scan runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    #[default]
    Ascending,
    Descending,
}

/// A range of encoded keys (see [`crate::KeyCodec`]). Because encodings of leading columns are prefixes of whole keys,
/// bounds may be encodings of a prefix of the key columns; comparison is bytewise all the same: keys that extend an
/// excluded start lie inside the range (exclude [`successor`] instead).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    pub start: Bound<Vec<u8>>,
    pub end: Bound<Vec<u8>>,
}

impl KeyRange {
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
}

/// The smallest byte string above every string that starts with `prefix`; none if there is no such string.
pub fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

//! Ranges of encoded keys.

use std::ops::{Bound, Range};

use crate::codec::Page;

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

/// Whether all keys from `first` on lie behind `range`.
pub(crate) fn starts_after(first: &[u8], range: &KeyRange) -> bool {
    match &range.end {
        Bound::Included(end) => first > end.as_slice(),
        Bound::Excluded(end) => first >= end.as_slice(),
        Bound::Unbounded => false,
    }
}

/// Whether keys from `first` to `last` may lie in `range`.
pub(crate) fn may_overlap(first: &[u8], last: &[u8], range: &KeyRange) -> bool {
    let ends_before = match &range.start {
        Bound::Included(start) => last < start.as_slice(),
        Bound::Excluded(start) => last <= start.as_slice(),
        Bound::Unbounded => false,
    };
    !ends_before && !starts_after(first, range)
}

/// The pages of an extent that may hold keys of `range`.
pub(crate) fn pages_of(index: &Page, range: &KeyRange) -> Range<usize> {
    let first = match &range.start {
        Bound::Included(key) | Bound::Excluded(key) => index.find(key),
        Bound::Unbounded => 0,
    };
    let last = match &range.end {
        Bound::Included(key) => index.find(key),
        Bound::Excluded(key) => {
            // A page that starts at the excluded key has nothing to give.
            let page = index.find(key);
            if page > first && index.fence(page) >= key.as_slice() { page - 1 } else { page }
        }
        Bound::Unbounded => index.rows().saturating_sub(1),
    };
    first..(last + 1).min(index.rows())
}

/// The rows of a page that lie in `range`.
pub(crate) fn rows_of(page: &Page, range: &KeyRange) -> Range<usize> {
    let start = match &range.start {
        Bound::Included(key) => page.lower_bound(key, false),
        Bound::Excluded(key) => lower_bound_above(page, key),
        Bound::Unbounded => 0,
    };
    let end = match &range.end {
        Bound::Included(key) => lower_bound_above(page, key),
        Bound::Excluded(key) => page.lower_bound(key, false),
        Bound::Unbounded => page.rows(),
    };
    start..end.max(start)
}

/// The first row whose key is greater than `key`. (Keys that extend `key` are greater.)
pub(crate) fn lower_bound_above(page: &Page, key: &[u8]) -> usize {
    let at = page.lower_bound(key, false);
    if at < page.rows() {
        let mut found = Vec::with_capacity(key.len());
        page.key(at, &mut found);
        if found == key {
            return at + 1;
        }
    }
    at
}

/// Whether no key can lie in `range`.
pub(crate) fn is_empty(range: &KeyRange) -> bool {
    match (&range.start, &range.end) {
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => start >= end,
        _ => false,
    }
}

/// `range` cut to `[low, high)`.
pub(crate) fn intersect(range: &KeyRange, low: Option<&[u8]>, high: Option<&[u8]>) -> KeyRange {
    let start = match (&range.start, low) {
        (Bound::Included(key) | Bound::Excluded(key), Some(low)) if key.as_slice() < low => {
            Bound::Included(low.to_vec())
        }
        (Bound::Unbounded, Some(low)) => Bound::Included(low.to_vec()),
        (start, _) => start.clone(),
    };
    let end = match (&range.end, high) {
        (Bound::Included(key) | Bound::Excluded(key), Some(high)) if key.as_slice() >= high => {
            Bound::Excluded(high.to_vec())
        }
        (Bound::Unbounded, Some(high)) => Bound::Excluded(high.to_vec()),
        (end, _) => end.clone(),
    };
    KeyRange { start, end }
}

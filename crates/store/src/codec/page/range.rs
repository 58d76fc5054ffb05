//! The rows of a data page, and the entries of an index page, that a key range covers.

use std::ops::{Bound, Range};

use super::Page;
use crate::base::KeyRange;

impl Page {
    /// For an index page: the data pages of its extent that can contain keys of `range`.
    pub(crate) fn pages_in(&self, range: &KeyRange) -> Range<usize> {
        let first = match &range.start {
            Bound::Included(key) | Bound::Excluded(key) => self.find(key),
            Bound::Unbounded => 0,
        };
        let last = match &range.end {
            Bound::Included(_) if range.as_point().is_some() => first,
            Bound::Included(key) => self.find(key),
            Bound::Excluded(key) => {
                // A page whose fence is the excluded key or above has no key in the range.
                let page = self.find(key);
                if page > first && self.fence(page) >= key.as_slice() { page - 1 } else { page }
            }
            Bound::Unbounded => self.rows().saturating_sub(1),
        };
        first..(last + 1).min(self.rows())
    }

    /// The rows that lie in `range`.
    pub(crate) fn rows_in(&self, range: &KeyRange) -> Range<usize> {
        let start = match &range.start {
            Bound::Included(key) => self.lower_bound(key, false),
            Bound::Excluded(key) => self.lower_bound_above(key),
            Bound::Unbounded => 0,
        };
        let end = match &range.end {
            Bound::Included(key) => self.lower_bound_above(key),
            Bound::Excluded(key) => self.lower_bound(key, false),
            Bound::Unbounded => self.rows(),
        };
        start..end.max(start)
    }

    /// The first row whose key is greater than `key`, including keys that extend `key`.
    pub(crate) fn lower_bound_above(&self, key: &[u8]) -> usize {
        let at = self.lower_bound(key, false);
        if at < self.rows() {
            let mut found = Vec::with_capacity(key.len());
            self.key(at, &mut found);
            if found == key {
                return at + 1;
            }
        }
        at
    }
}

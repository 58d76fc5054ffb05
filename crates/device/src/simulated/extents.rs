//! Sets of block numbers as sorted, disjoint ranges.
//!
//! Invariant: ranges are not empty, do not overlap, and do not touch each other.

use std::collections::BTreeMap;

/// The end of each range, by its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Extents(BTreeMap<u64, u64>);

impl Extents {
    /// Number of blocks in the set.
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// Number of blocks of `start..end` that are not in the set.
    pub(super) fn missing(&self, start: u64, end: u64) -> u64 {
        let before = self.0.range(..start).next_back();
        let overlap = |(&from, &to): (&u64, &u64)| to.min(end).saturating_sub(from.max(start));
        assert!(start <= end);
        let present: u64 = before.into_iter().chain(self.0.range(start..end)).map(overlap).sum();
        assert!(present <= end - start);
        (end - start) - present
    }

    /// Adds the blocks of `start..end`.
    pub(super) fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        // Merge with every range that overlaps or touches the new one.
        while let Some((&from, &to)) = self.0.range(..=end).next_back()
            && to >= start
        {
            start = start.min(from);
            end = end.max(to);
            self.0.remove(&from);
        }
        self.0.insert(start, end);
    }

    /// Removes all blocks from `start` on.
    pub(super) fn cut(&mut self, start: u64) {
        self.0.split_off(&start);
        if let Some(mut last) = self.0.last_entry() {
            let end = (*last.get()).min(start);
            last.insert(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_set(steps in prop::collection::vec((0..3_u8, 0..60_u64, 0..12_u64), 0..60)) {
            let (mut extents, mut model) = (Extents::default(), BTreeSet::new());
            for (kind, start, len) in steps {
                let range = start..start + len;
                match kind {
                    0 => {
                        extents.cut(start);
                        model.retain(|&block| block < start);
                    }
                    1 => {
                        let missing = range.clone().filter(|block| !model.contains(block)).count();
                        prop_assert_eq!(extents.missing(range.start, range.end), missing as u64);
                    }
                    _ => {
                        extents.insert(range.start, range.end);
                        model.extend(range);
                    }
                }
                prop_assert_eq!(extents.total(), model.len() as u64);
                prop_assert!(extents.0.iter().all(|(start, end)| start < end));
            }
        }
    }
}

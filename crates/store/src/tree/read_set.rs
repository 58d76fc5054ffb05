//! The ranges that a serializable transaction has read. Every cursor of its snapshots records its range.

use std::collections::BTreeMap;
use std::ops::Bound;

use keyaki_primitives::sync::Mutex;

use crate::base::{KeyRange, TreeId};

/// Number of ranges of a tree beyond which one range that contains them all replaces them.
const RANGES_MAX: usize = 1 << 16;

/// The ranges read so far, by tree.
#[derive(Debug, Default)]
pub(crate) struct ReadSet(Mutex<Ranges>);

#[derive(Debug, Default)]
struct Ranges {
    trees: BTreeMap<TreeId, Vec<KeyRange>>,
    bytes: usize,
}

impl ReadSet {
    /// Adds a range.
    pub fn add(&self, tree: TreeId, range: &KeyRange) {
        if range.is_empty() {
            return;
        }
        let mut read = self.0.lock();
        let Ranges { trees, bytes } = &mut *read;
        let ranges = trees.entry(tree).or_default();
        if ranges.last() == Some(range) {
            return;
        }
        if ranges.len() == RANGES_MAX {
            *bytes -= ranges.iter().map(bytes_of).sum::<usize>();
            let all = std::mem::take(ranges).into_iter().reduce(hull);
            *bytes += all.as_ref().map_or(0, bytes_of);
            ranges.extend(all);
        }
        *bytes += bytes_of(range);
        ranges.push(range.clone());
    }

    /// Calls `visit` for each range, until it fails.
    pub fn try_for_each<E>(&self, mut visit: impl FnMut(TreeId, &KeyRange) -> Result<(), E>) -> Result<(), E> {
        let read = self.0.lock();
        for (&tree, ranges) in &read.trees {
            ranges.iter().try_for_each(|range| visit(tree, range))?;
        }
        Ok(())
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.0.lock().bytes
    }
}

/// The smallest range that contains both.
fn hull(a: KeyRange, b: KeyRange) -> KeyRange {
    let start = match (a.start, b.start) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => Bound::Unbounded,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => Bound::Included(a.min(b)),
    };
    let end = match (a.end, b.end) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => Bound::Unbounded,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => Bound::Included(a.max(b)),
    };
    KeyRange { start, end }
}

fn bytes_of(range: &KeyRange) -> usize {
    let bound = |bound: &Bound<Vec<u8>>| match bound {
        Bound::Included(key) | Bound::Excluded(key) => key.len(),
        Bound::Unbounded => 0,
    };
    size_of::<KeyRange>() + bound(&range.start) + bound(&range.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(set: &ReadSet) -> Vec<(TreeId, KeyRange)> {
        let mut all = Vec::new();
        let visited: Result<(), ()> = set.try_for_each(|tree, range| {
            all.push((tree, range.clone()));
            Ok(())
        });
        assert!(visited.is_ok());
        all
    }

    #[test]
    fn many_ranges_become_one_that_contains_them() {
        let (set, tree) = (ReadSet::default(), TreeId::new(20));
        let key = |i: usize| (i as u32).to_be_bytes().to_vec();
        for i in 0..RANGES_MAX {
            set.add(tree, &KeyRange::point(key(i)));
            set.add(tree, &KeyRange::point(key(i)));
        }
        assert_eq!(ranges(&set).len(), RANGES_MAX);
        set.add(tree, &KeyRange::prefix(key(RANGES_MAX)));
        let all = KeyRange { start: Bound::Included(key(0)), end: Bound::Included(key(RANGES_MAX - 1)) };
        assert_eq!(ranges(&set), [(tree, all), (tree, KeyRange::prefix(key(RANGES_MAX)))]);
        assert_eq!(set.bytes(), 2 * size_of::<KeyRange>() + 4 * size_of::<u32>());
    }

    #[test]
    fn a_hull_contains_both_ranges() {
        let key = |byte: u8| vec![byte];
        let range = |start, end| KeyRange { start, end };
        let a = range(Bound::Excluded(key(3)), Bound::Excluded(key(9)));
        let b = range(Bound::Included(key(5)), Bound::Included(key(7)));
        assert_eq!(hull(a.clone(), b), range(Bound::Included(key(3)), Bound::Included(key(9))));
        assert_eq!(hull(a, KeyRange::all()), KeyRange::all());
        // Empty ranges are not recorded.
        let set = ReadSet::default();
        set.add(TreeId::new(20), &range(Bound::Included(key(2)), Bound::Included(key(1))));
        assert_eq!(ranges(&set), []);
    }
}

//! Sorted sequences of keys, over which trees are built.

use crate::key::Key;

/// A sorted sequence of keys that can be read by row.
///
/// Building a tree does not check the order. Keys in another order give a tree with wrong answers, but no panics and no
/// undefined behaviour.
pub trait Sorted<K: Key>: Sync {
    /// The number of keys.
    fn len(&self) -> usize;

    /// Returns whether there are no keys.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key of a row. Callers pass rows below the length.
    fn get(&self, row: usize) -> K;
}

impl<K: Key> Sorted<K> for [K] {
    fn len(&self) -> usize {
        <[K]>::len(self)
    }

    fn get(&self, row: usize) -> K {
        self[row]
    }
}

//! Lookups: over plain keys the searches of the tree; over packed keys the traversal, followed by a validation that
//! unpacks keys.

use std::hint::select_unpredictable;

use super::{Index, Keys};
use crate::key::Key;
use crate::packed::{BLOCK, Packed};
use crate::simd::{Simd, dispatch};
use crate::tree::Tree;

/// Number of rows that are unpacked and compared. Larger windows are narrowed down first.
const UNPACKED: usize = 64;
/// Number of lookups whose cache misses overlap.
const BATCH: usize = 64;

impl<K: Key> Index<K> {
    /// The first row whose key is at least `key`, or the number of rows if there is none.
    pub fn lower_bound(&self, key: K) -> usize {
        match &self.keys {
            Keys::Plain(bytes) => self.tree.lower_bound_plain(Self::plain(bytes), key),
            Keys::Packed(keys) => {
                let window = self.tree.window(key);
                // SAFETY: the tree has as many rows as there are keys.
                unsafe { find(&self.tree, keys, &[(window, key)], &mut [0]) }
            }
        }
    }

    /// As [`lower_bound`](Index::lower_bound) for many search keys. Each lookup is several times as fast as a single
    /// one.
    ///
    /// # Panics
    /// If `rows` and `wanted` have different lengths.
    pub fn lower_bound_many(&self, wanted: &[K], rows: &mut [usize]) {
        assert_eq!(wanted.len(), rows.len(), "one row for each search key");
        match &self.keys {
            Keys::Plain(bytes) => self.tree.lower_bound_many_plain(Self::plain(bytes), wanted, rows),
            Keys::Packed(keys) => {
                let mut windows = Vec::with_capacity(BATCH);
                let mut searches = Vec::with_capacity(BATCH);
                for (wanted, rows) in wanted.chunks(BATCH).zip(rows.chunks_mut(BATCH)) {
                    self.tree.window_many(wanted, &mut windows);
                    windows.iter().for_each(|window| keys.prefetch_header(window.start));
                    windows.iter().for_each(|window| keys.prefetch_residual(window.start));
                    searches.clear();
                    searches.extend(windows.drain(..).zip(wanted.iter().copied()));
                    // SAFETY: the tree has as many rows as there are keys.
                    unsafe { find(&self.tree, keys, &searches, rows) };
                }
            }
        }
    }

    /// The first row with this key; `None` if the key is absent.
    pub fn get(&self, key: K) -> Option<usize> {
        let row = self.lower_bound(key);
        (row < self.len() && self.key(row) == key).then_some(row)
    }
}

/// Finds the answer for each search key within its window. Returns the last one.
///
/// # Safety
/// The windows are those of the tree, which has as many rows as there are keys.
unsafe fn find<K: Key>(
    tree: &Tree<K>,
    keys: &Packed<K>,
    searches: &[(std::ops::Range<usize>, K)],
    rows: &mut [usize],
) -> usize {
    dispatch!(tree.instructions(), S, fn run[K: Key](keys: &Packed<K>, searches: &[(std::ops::Range<usize>, K)], rows: &mut [usize]) -> usize {
        let mut last = 0;
        for ((window, key), row) in searches.iter().zip(rows) {
            // SAFETY: the processor has `S`, and a window of the tree ends within the keys.
            *row = unsafe { partition::<S, K>(keys, window.start, window.end, key.ordered()) };
            last = *row;
        }
        last
    }, (keys, searches, rows))
}

/// The first row of `from..to` whose key is at least `key`, or `to` if there is none.
///
/// # Safety
/// The processor has `S`, and `to` is at most the number of keys.
#[inline(always)]
unsafe fn partition<S: Simd, K: Key>(keys: &Packed<K>, mut from: usize, to: usize, key: u64) -> usize {
    let mut length = to.saturating_sub(from);
    // A window is a slot and possible overshoots, which are rare: first test whether the answer is among the first
    // rows.
    if length > UNPACKED {
        // SAFETY: from + UNPACKED - 1 < to.
        let near = unsafe { keys.ordered(from + UNPACKED - 1) } >= key;
        length = if near { UNPACKED } else { length };
    }
    while length > UNPACKED {
        let half = length / 2;
        // SAFETY: from + half - 1 < from + length <= to.
        let below = unsafe { keys.ordered(from + half - 1) } < key;
        from = select_unpredictable(below, from + half, from);
        length = select_unpredictable(below, length - half, half);
    }
    let end = from + length;
    let mut values = [0; UNPACKED];
    while from < end {
        let (block, first) = (from / BLOCK, from % BLOCK / 8);
        let start = block * BLOCK + first * 8;
        let groups = (end - start).div_ceil(8).min(BLOCK / 8 - first).min(UNPACKED / 8);
        // SAFETY: the processor has `S`. The block has rows below the number of keys, and the groups are within it.
        unsafe { keys.unpack_groups::<S>(block, first, &mut values[..groups * 8]) };
        let stop = end.min(start + groups * 8);
        let below = values[from - start..stop - start].iter().filter(|&&value| value < key).count();
        from += below;
        if from < stop {
            return from;
        }
    }
    end
}

//! Searching: traversal and validation together, single or in batches.

use std::ops::Range;

use super::descend::{BATCH, descend, descend_many};
use super::validate::Validation;
use super::{Plain, Tree};
use crate::key::Key;
use crate::simd::{Simd, dispatch};

impl<K: Key> Tree<K> {
    /// The first row whose key is not below `key` (the number of rows if there is none). `keys` are those the tree was built
    /// over; with others the answer is of no use.
    ///
    /// # Panics
    /// When `keys` are more or fewer than the tree was built over.
    #[inline]
    pub fn lower_bound(&self, keys: &[K], key: K) -> usize {
        assert_eq!(keys.len(), self.rows, "keys of the tree");
        self.lower_bound_plain(Plain::new(keys), key)
    }

    /// [`lower_bound`](Tree::lower_bound) for many keys, which is several times as fast for each: descents advance together,
    /// and what one waits for arrives while the others are worked on.
    ///
    /// # Panics
    /// When `keys` are more or fewer than the tree was built over, or `rows` has another length than `wanted`.
    pub fn lower_bound_many(&self, keys: &[K], wanted: &[K], rows: &mut [usize]) {
        assert_eq!(keys.len(), self.rows, "keys of the tree");
        self.lower_bound_many_plain(Plain::new(keys), wanted, rows);
    }

    /// Rows between which the answer for a key is, without a look at the keys: it is at least the start, and at most the end
    /// (both are possible).
    pub fn window(&self, key: K) -> Range<usize> {
        let (slot, open) = self.slot(key);
        let start = slot * self.slot_rows;
        let reach = if open { self.reach } else { self.slot_rows.min(self.reach) };
        start..(start + reach).min(self.rows)
    }

    /// [`window`](Tree::window) for many keys: `found` gets each key's in the same order, and loses what it had.
    pub fn window_many(&self, wanted: &[K], found: &mut Vec<Range<usize>>) {
        found.clear();
        let (mut slots, mut open) = ([0; BATCH], [false; BATCH]);
        for wanted in wanted.chunks(BATCH) {
            self.slots_many(wanted, &mut slots, &mut open);
            found.extend(slots.iter().zip(open).take(wanted.len()).map(|(&slot, open)| {
                let start = slot * self.slot_rows;
                let reach = if open { self.reach } else { self.slot_rows.min(self.reach) };
                start..(start + reach).min(self.rows)
            }));
        }
    }

    /// The slot of a key, and whether the answer may be behind it.
    fn slot(&self, key: K) -> (usize, bool) {
        if self.rows == 0 {
            return (0, false);
        }
        dispatch!(self.instructions, S, fn run[K: Key](tree: &Tree<K>, key: K) -> (usize, bool) {
            // SAFETY: the tree's bytes are as its levels say, see `assemble`; there are rows, so there are slots.
            unsafe { descend::<S, K>(&tree.levels, tree.bytes.as_ptr(), tree.slots, key.ordered()) }
        }, (self, key))
    }

    /// Slots of up to [`BATCH`] keys.
    fn slots_many(&self, wanted: &[K], slots: &mut [usize; BATCH], open: &mut [bool; BATCH]) {
        if self.rows == 0 {
            return;
        }
        dispatch!(self.instructions, S, fn run[K: Key](tree: &Tree<K>, wanted: &[K], slots: &mut [usize], open: &mut [bool]) {
            // SAFETY: the tree's bytes are as its levels say, see `assemble`; there are rows, so there are slots.
            unsafe { many::<S, K>(tree, wanted, slots, open, |_, _| ()) }
        }, (self, wanted, slots, open))
    }

    #[inline]
    pub(crate) fn lower_bound_plain(&self, keys: Plain<'_, K>, key: K) -> usize {
        assert!(keys.len() == self.rows);
        if self.rows == 0 {
            return 0;
        }
        dispatch!(self.instructions, S, fn run[K: Key](tree: &Tree<K>, keys: Plain<'_, K>, key: K) -> usize {
            // SAFETY: the tree's bytes are as its levels say, see `assemble`; there are rows, so there are slots; the keys
            // are as many.
            unsafe {
                let (slot, open) = descend::<S, K>(&tree.levels, tree.bytes.as_ptr(), tree.slots, key.ordered());
                Validation::new(tree, keys).run::<S, 0, false>(slot, open, key)
            }
        }, (self, keys, key))
    }

    pub(crate) fn lower_bound_many_plain(&self, keys: Plain<'_, K>, wanted: &[K], rows: &mut [usize]) {
        assert!(keys.len() == self.rows);
        assert_eq!(wanted.len(), rows.len(), "a row for each key");
        if self.rows == 0 {
            rows.fill(0);
            return;
        }
        dispatch!(self.instructions, S, fn run[K: Key](tree: &Tree<K>, keys: Plain<'_, K>, wanted: &[K], rows: &mut [usize]) {
            let validation = Validation::new(tree, keys);
            // SAFETY: the processor has `S`; the keys are as many as the rows, of which there are some.
            unsafe {
                match (validation.lines(), validation.is_closed()) {
                    (1, true) => batches::<S, K, 1, true>(tree, validation, wanted, rows),
                    (1, false) => batches::<S, K, 1, false>(tree, validation, wanted, rows),
                    (2, false) => batches::<S, K, 2, false>(tree, validation, wanted, rows),
                    (4, false) => batches::<S, K, 4, false>(tree, validation, wanted, rows),
                    _ => batches::<S, K, 0, false>(tree, validation, wanted, rows),
                }
            }
        }, (self, keys, wanted, rows))
    }
}

/// # Safety
/// The processor has `S`; there are rows; `slots` and `open` have room for `wanted`, which are at most [`BATCH`].
#[inline(always)]
unsafe fn many<S: Simd, K: Key>(
    tree: &Tree<K>,
    wanted: &[K],
    slots: &mut [usize],
    open: &mut [bool],
    ask: impl Fn(usize, bool),
) {
    let mut keys = [0; BATCH];
    let count = wanted.len();
    for (ordered, key) in keys.iter_mut().zip(wanted) {
        *ordered = key.ordered();
    }
    // SAFETY: the tree's bytes are as its levels say, see `assemble`; the rest is the caller's promise.
    unsafe {
        let start = tree.bytes.as_ptr();
        descend_many::<S, K>(
            &tree.levels,
            start,
            tree.slots,
            &keys[..count],
            &mut slots[..count],
            &mut open[..count],
            ask,
        );
    }
}

/// Searches batch by batch.
///
/// # Safety
/// The processor has `S`; there are rows; the validation is of the tree; `rows` are as many as `wanted`.
#[inline(always)]
unsafe fn batches<S: Simd, K: Key, const LINES: usize, const CLOSED: bool>(
    tree: &Tree<K>,
    validation: Validation<'_, K>,
    wanted: &[K],
    rows: &mut [usize],
) {
    let mut open = [false; BATCH];
    for (wanted, rows) in wanted.chunks(BATCH).zip(rows.chunks_mut(BATCH)) {
        // SAFETY: the caller's promise; what `many` makes are slots of the tree.
        unsafe {
            many::<S, K>(tree, wanted, rows, &mut open, |slot, open| validation.ask::<LINES, CLOSED>(slot, open));
            for ((&key, row), open) in wanted.iter().zip(rows.iter_mut()).zip(open) {
                *row = validation.run::<S, LINES, CLOSED>(*row, open, key);
            }
        }
    }
}

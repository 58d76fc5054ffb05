//! Searching: traversal and validation together, single or in batches.

use std::ops::Range;

use super::descend::{Ask, BATCH, Descent};
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
        if self.rows == 0 {
            found.resize(wanted.len(), 0..0);
            return;
        }
        let (mut slots, mut open) = ([0; BATCH], [false; BATCH]);
        for wanted in wanted.chunks(BATCH) {
            self.slots_many(wanted, &mut slots, &mut open, None);
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
            // SAFETY: there are rows.
            unsafe { descend::<S, K>(tree, key) }
        }, (self, key))
    }

    /// Slots of up to [`BATCH`] keys. There are rows.
    #[inline]
    fn slots_many(&self, wanted: &[K], slots: &mut [usize], open: &mut [bool], ask: Option<Ask>) {
        let mut keys = [0; BATCH];
        for (ordered, key) in keys.iter_mut().zip(wanted) {
            *ordered = key.ordered();
        }
        let keys = &keys[..wanted.len()];
        let tree = self.bytes.as_ptr();
        // SAFETY: the tree's bytes are as its levels say, see `assemble`; there are rows, so there are slots.
        unsafe {
            if K::BYTES == 4 {
                Descent::<4>::new(&self.levels, self.whole_levels, tree).many(
                    self.instructions,
                    keys,
                    slots,
                    open,
                    ask,
                );
            } else {
                Descent::<8>::new(&self.levels, self.whole_levels, tree).many(
                    self.instructions,
                    keys,
                    slots,
                    open,
                    ask,
                );
            }
        }
    }

    #[inline]
    pub(crate) fn lower_bound_plain(&self, keys: Plain<'_, K>, key: K) -> usize {
        assert!(keys.len() == self.rows);
        if self.rows == 0 {
            return 0;
        }
        dispatch!(self.instructions, S, fn run[K: Key](tree: &Tree<K>, keys: Plain<'_, K>, key: K) -> usize {
            let validation = Validation::new(tree, keys);
            // SAFETY: the processor has `S`; the keys are as many as the rows, of which there are some.
            unsafe {
                let (slot, open) = descend::<S, K>(tree, key);
                if validation.is_closed() {
                    validation.one::<S, true>(slot, open, key)
                } else {
                    validation.one::<S, false>(slot, open, key)
                }
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
        let validation = Validation::new(self, keys);
        let mut open = [false; BATCH];
        for (wanted, rows) in wanted.chunks(BATCH).zip(rows.chunks_mut(BATCH)) {
            self.slots_many(wanted, rows, &mut open, Some(validation.ask()));
            dispatch!(self.instructions, S, fn run[K: Key](validation: &Validation<'_, K>, rows: &mut [usize], open: &[bool], wanted: &[K]) {
                // SAFETY: the processor has `S`; the keys are as many as the rows; these are slots of the tree.
                unsafe {
                    if validation.is_closed() {
                        validation.many::<S, true>(rows, open, wanted);
                    } else {
                        validation.many::<S, false>(rows, open, wanted);
                    }
                }
            }, (&validation, rows, &open, wanted))
        }
    }
}

/// # Safety
/// The processor has `S`; there are rows.
#[inline(always)]
unsafe fn descend<S: Simd, K: Key>(tree: &Tree<K>, key: K) -> (usize, bool) {
    let (start, key) = (tree.bytes.as_ptr(), key.ordered());
    // SAFETY: the tree's bytes are as its levels say, see `assemble`; there are rows, so there are slots.
    unsafe {
        if K::BYTES == 4 {
            Descent::<4>::new(&tree.levels, tree.whole_levels, start).one::<S>(key)
        } else {
            Descent::<8>::new(&tree.levels, tree.whole_levels, start).one::<S>(key)
        }
    }
}

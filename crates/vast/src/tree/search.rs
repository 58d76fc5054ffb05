//! Searches: traversal and validation together, single or in batches.

use std::ops::Range;

use super::descend::{BATCH, Descent, SlotPrefetch};
use super::validate::Validation;
use super::{PlainKeys, Tree};
use crate::key::Key;
use crate::simd::{Simd, dispatch};

impl<K: Key> Tree<K> {
    /// The first row whose key is at least `key`, or the number of rows if there is none. `keys` are the keys that the
    /// tree was built over; with other keys the answer is meaningless.
    ///
    /// # Panics
    /// If the number of `keys` differs from the tree's rows.
    #[inline]
    pub fn lower_bound(&self, keys: &[K], key: K) -> usize {
        assert_eq!(keys.len(), self.rows, "the keys of the tree");
        self.lower_bound_plain(PlainKeys::new(keys), key)
    }

    /// As [`lower_bound`](Tree::lower_bound) for many search keys. Each search is several times as fast as a single
    /// one, because the descents advance together and share the latency of memory.
    ///
    /// # Panics
    /// If the number of `keys` differs from the tree's rows, or `rows` and `wanted` have different lengths.
    pub fn lower_bound_many(&self, keys: &[K], wanted: &[K], rows: &mut [usize]) {
        assert_eq!(keys.len(), self.rows, "the keys of the tree");
        self.lower_bound_many_plain(PlainKeys::new(keys), wanted, rows);
    }

    /// The range that contains the answer for a search key, found without reading the keys. Both the start and the end
    /// are possible answers.
    pub fn window(&self, key: K) -> Range<usize> {
        let (slot, open) = self.slot(key);
        let start = slot * self.slot_rows;
        let reach = if open { self.reach } else { self.slot_rows.min(self.reach) };
        start..(start + reach).min(self.rows)
    }

    /// As [`window`](Tree::window) for many search keys. Replaces the content of `found` by their windows, in the same
    /// order.
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

    /// The slot of a key, and whether the answer may be after the slot.
    fn slot(&self, key: K) -> (usize, bool) {
        if self.rows == 0 {
            return (0, false);
        }
        dispatch!(self.instructions, S, fn run[K: Key](tree: &Tree<K>, key: K) -> (usize, bool) {
            // SAFETY: the processor has `S`, and there are rows.
            unsafe { descend::<S, K>(tree, key) }
        }, (self, key))
    }

    /// The slots of up to [`BATCH`] keys, in a tree with rows.
    #[inline]
    fn slots_many(&self, wanted: &[K], slots: &mut [usize], open: &mut [bool], lines: Option<SlotPrefetch>) {
        assert!(self.rows > 0, "a tree with rows");
        let mut keys = [0; BATCH];
        for (ordered, key) in keys.iter_mut().zip(wanted) {
            *ordered = key.ordered();
        }
        let keys = &keys[..wanted.len()];
        let tree = self.bytes.as_ptr();
        let (levels, whole, instructions) = (&self.levels, self.whole_levels, self.instructions);
        // SAFETY: the tree's bytes have the layout of its levels, see `lay_out`. There are rows and therefore slots.
        unsafe {
            if K::BYTES == 4 {
                Descent::<4>::new(levels, whole, tree).many(instructions, keys, slots, open, lines);
            } else {
                Descent::<8>::new(levels, whole, tree).many(instructions, keys, slots, open, lines);
            }
        }
    }

    #[inline]
    pub(crate) fn lower_bound_plain(&self, keys: PlainKeys<'_, K>, key: K) -> usize {
        assert!(keys.len() == self.rows, "the keys of the tree");
        if self.rows == 0 {
            return 0;
        }
        dispatch!(self.instructions, S, fn run[K: Key](tree: &Tree<K>, keys: PlainKeys<'_, K>, key: K) -> usize {
            let validation = Validation::new(tree, keys);
            // SAFETY: the processor has `S`. The number of keys is that of the rows, which is not zero.
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

    pub(crate) fn lower_bound_many_plain(&self, keys: PlainKeys<'_, K>, wanted: &[K], rows: &mut [usize]) {
        assert!(keys.len() == self.rows, "the keys of the tree");
        assert_eq!(wanted.len(), rows.len(), "one row for each search key");
        if self.rows == 0 {
            rows.fill(0);
            return;
        }
        let validation = Validation::new(self, keys);
        let mut open = [false; BATCH];
        for (wanted, rows) in wanted.chunks(BATCH).zip(rows.chunks_mut(BATCH)) {
            self.slots_many(wanted, rows, &mut open, Some(validation.slot_prefetch()));
            dispatch!(self.instructions, S, fn run[K: Key](validation: &Validation<'_, K>, rows: &mut [usize], open: &[bool], wanted: &[K]) {
                // SAFETY: the processor has `S`. The number of keys is that of the rows. These are slots of the tree.
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

/// The slot of a key, and whether the search is open.
///
/// # Safety
/// The processor has `S`, and the tree has rows.
#[inline(always)]
unsafe fn descend<S: Simd, K: Key>(tree: &Tree<K>, key: K) -> (usize, bool) {
    let (start, key) = (tree.bytes.as_ptr(), key.ordered());
    // SAFETY: the tree's bytes have the layout of its levels, see `lay_out`. There are rows and therefore slots.
    unsafe {
        if K::BYTES == 4 {
            Descent::<4>::new(&tree.levels, tree.whole_levels, start).one::<S>(key)
        } else {
            Descent::<8>::new(&tree.levels, tree.whole_levels, start).one::<S>(key)
        }
    }
}

//! Looking up keys in a border node.

use super::continuation::tail_word;
use super::{BAG, Border, LAYER, rank};
use crate::key::Cursor;
use crate::node::permutation::{Permutation, WIDTH};
use crate::node::search;
use crate::sync::{Acquire, AtomicU64, Relaxed};

/// Result of looking up a key in a border node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    Absent,
    /// The key has a value, of this word.
    Value {
        slot: usize,
        word: u64,
    },
    /// The key is in the layer whose root has this word, or absent.
    Layer {
        slot: usize,
        word: u64,
    },
    /// The key is absent. Another key with the same slice continues differently: inserting the key makes a layer.
    Conflict {
        slot: usize,
    },
}

impl Lookup {
    /// The word of the key's value.
    #[inline]
    pub fn value(self) -> Option<u64> {
        if let Lookup::Value { word, .. } = self { Some(word) } else { None }
    }
}

impl<'g> Border<'g> {
    /// A bit for each slot whose slice equals the given one, whether or not the slot holds an entry.
    #[inline]
    pub fn matches(self, slice: u64) -> u32 {
        let width = self.width();
        if width == WIDTH {
            // SAFETY: the node has full width.
            return search::equal(unsafe { self.words() }, slice) & ((1 << WIDTH) - 1);
        }
        // SAFETY: the slots are below the width.
        (0..width).fold(0, |mask, slot| mask | u32::from(unsafe { self.slice_at(slot) }.load(Relaxed) == slice) << slot)
    }

    /// Looks up a key. Unless the node is locked, the result is valid only if the version has not changed afterwards.
    #[inline]
    pub fn lookup(self, key: &Cursor<'_>, slice: u64, permutation: Permutation) -> Lookup {
        let mut candidates = self.matches(slice);
        let rank_wanted = key.rank();
        while candidates != 0 {
            let slot = candidates.trailing_zeros() as usize;
            candidates &= candidates - 1;
            let code = self.code(slot);
            if rank(code) != rank_wanted || !permutation.holds(slot) {
                continue;
            }
            // SAFETY: candidates are slots below the width.
            let word = unsafe { self.value_at(self.layout(), slot) }.load(Acquire);
            return match code {
                LAYER => Lookup::Layer { slot, word },
                0..=8 => Lookup::Value { slot, word },
                // SAFETY: candidates are slots below the width.
                _ if unsafe { self.suffix_is(slot, code, key.suffix()) } => Lookup::Value { slot, word },
                _ => Lookup::Conflict { slot },
            };
        }
        Lookup::Absent
    }

    /// Returns whether the slot's suffix equals the given one.
    ///
    /// # Safety
    /// `slot` is below the width.
    #[inline]
    unsafe fn suffix_is(self, slot: usize, code: u8, suffix: &[u8]) -> bool {
        if code == BAG {
            return self.bag().and_then(|bag| bag.suffix(slot)) == Some(suffix);
        }
        let layout = self.layout();
        let length = code as usize - 8;
        if length != suffix.len() || length > layout.tail_bytes() {
            return false;
        }
        suffix.chunks(4).enumerate().all(|(index, chunk)| {
            // SAFETY: the suffix is at most as long as the tail.
            let word = unsafe { self.tail_at(layout, slot, index) }.load(Relaxed);
            word == tail_word(chunk)
        })
    }

    /// A bit for each slot whose slice is at most the given one, whether or not the slot holds an entry.
    #[inline]
    pub(super) fn at_most(self, slice: u64) -> u32 {
        let width = self.width();
        if width == WIDTH {
            // SAFETY: the node has full width.
            return search::at_most(unsafe { self.words() }, slice) & ((1 << WIDTH) - 1);
        }
        // SAFETY: the slots are below the width.
        (0..width).fold(0, |mask, slot| mask | u32::from(unsafe { self.slice_at(slot) }.load(Relaxed) <= slice) << slot)
    }

    /// The slices of a full-width node, and its first value.
    ///
    /// # Safety
    /// The node's width is [`WIDTH`].
    #[inline]
    unsafe fn words(self) -> &'g [AtomicU64; WIDTH + 1] {
        debug_assert_eq!(self.width(), WIDTH);
        // SAFETY: sixteen words within the node (a full-width one has 304 bytes at least), aligned, initialised, and
        // only ever used as atomics.
        unsafe { self.at(Self::SLICES_AT).cast().as_ref() }
    }
}

//! Changing a border node, with exclusive write access.

use super::continuation::{Continuation, tail_word};
use super::{BAG, Border, LAYER, rank};
use crate::node::exclusive::Exclusive;
use crate::node::permutation::Permutation;
use crate::node::{Bag, Node};
use crate::sync::{Relaxed, Release};

impl<'g> Exclusive<Border<'g>> {
    /// Publishes a permutation. Its entries have been filled in.
    #[inline]
    pub fn set_permutation(&mut self, permutation: Permutation) {
        debug_assert!(permutation.count() <= self.width(), "{permutation:?} in a node of width {}", self.width());
        self.header().permutation.store(permutation.0, Release);
    }

    /// Sets the right neighbour, another node of the layer.
    pub fn set_next(&mut self, next: Option<Border<'_>>) {
        self.header().next.store(next.map_or(0, Border::word), Release);
    }

    pub fn set_bag(&mut self, bag: Bag<'_>) {
        self.header().bag.store(bag.address(), Release);
    }

    /// Replaces the word of a slot's value.
    #[inline]
    pub fn set_value(&mut self, slot: usize, word: u64) {
        assert!(slot < self.width(), "slot {slot} of a border node");
        // SAFETY: the slot is below the width.
        unsafe { self.value_at(self.layout(), slot) }.store(word, Release);
    }

    /// Lets the entry of a slot lead to a layer. If it held a value before, the node is marked.
    pub fn set_layer(&mut self, slot: usize, root: Node<'_>) {
        self.set_value(slot, root.word());
        self.header().codes[slot].store(LAYER, Relaxed);
    }

    /// The position at which an entry stands, or would stand.
    #[inline]
    pub fn position(&self, slice: u64, rank_wanted: u8) -> usize {
        let permutation = self.permutation();
        let mut position = permutation.count_of(self.at_most(slice));
        // Step back over entries of the same slice and an equal or higher rank.
        while position > 0 {
            let slot = permutation.slot(position - 1);
            if self.slice(slot) != slice || rank(self.code(slot)) < rank_wanted {
                break;
            }
            position -= 1;
        }
        position
    }

    /// Returns whether a reader with an old permutation may still read the slot.
    #[inline]
    pub fn is_stale(&self, slot: usize) -> bool {
        self.header().stale.load(Relaxed) & 1 << slot != 0
    }

    /// Remembers that the slot's entry has been removed without a mark.
    pub fn set_stale(&mut self, slot: usize) {
        let stale = self.header().stale.load(Relaxed);
        self.header().stale.store(stale | 1 << slot, Relaxed);
    }

    /// The node has been marked: readers with old permutations will read it again.
    pub fn clear_stale(&mut self) {
        self.header().stale.store(0, Relaxed);
    }

    /// Fills a free slot with an entry. If the suffix needs a bag, the node has one with room for it.
    ///
    /// # Safety
    /// If the entry leads to a layer, `word` is the word of a node that stays in the tree as long as the entry.
    #[inline]
    #[expect(clippy::expect_used, reason = "callers reserve a bag before they fill in a suffix that needs one")]
    pub unsafe fn fill(&mut self, slot: usize, slice: u64, continuation: Continuation<'_>, word: u64) {
        assert!(slot < self.width(), "slot {slot} of a border node");
        let layout = self.layout();
        // SAFETY: the slot is below the width.
        unsafe { self.slice_at(slot) }.store(slice, Relaxed);
        // SAFETY: as above.
        unsafe { self.value_at(layout, slot) }.store(word, Release);
        let code = match continuation {
            Continuation::Ends(length) => length,
            Continuation::Layer => LAYER,
            Continuation::Suffix(suffix) if self.needs_bag(suffix) => {
                let bag = self.bag().expect("a bag for a long suffix");
                // SAFETY: this thread alone changes the node.
                unsafe { bag.append(slot, suffix) };
                BAG
            }
            Continuation::Suffix(suffix) => {
                for (index, chunk) in suffix.chunks(4).enumerate() {
                    // SAFETY: the slot is below the width, and the suffix is at most as long as the tail.
                    unsafe { self.tail_at(layout, slot, index) }.store(tail_word(chunk), Relaxed);
                }
                8 + suffix.len() as u8
            }
        };
        self.header().codes[slot].store(code, Relaxed);
    }
}

//! Views: what a node holds, as of one moment, for those who look at whole nodes (statistics, estimates) while others write.

use super::permutation::WIDTH;
use super::{Border, Interior, Node};
use crate::sync::{Acquire, Relaxed};

/// What a node holds. Words in it are of nodes that were in the tree when it was looked at.
pub(crate) enum View {
    Border(BorderView),
    Interior(InteriorView),
}

pub(crate) struct BorderView {
    pub width: usize,
    pub count: usize,
    /// In key order.
    pub slices: [u64; WIDTH],
    pub codes: [u8; WIDTH],
    /// Values' words, or layers' roots.
    pub words: [u64; WIDTH],
    /// Where the entries are in the node.
    pub slots: [u8; WIDTH],
}

pub(crate) struct InteriorView {
    /// Keys: one less than children.
    pub count: usize,
    pub slices: [u64; WIDTH],
    pub children: [u64; WIDTH + 1],
}

impl InteriorView {
    /// The position of the child for a slice.
    pub fn position(&self, slice: u64) -> usize {
        self.slices[..self.count].partition_point(|&key| key <= slice)
    }
}

impl Node<'_> {
    /// `None` if the node has left the tree.
    pub fn view(self) -> Option<View> {
        match self {
            Node::Border(border) => view(self, || View::Border(border.entries())),
            Node::Interior(interior) => view(self, || View::Interior(interior_view(interior))),
        }
    }
}

/// Reads until what was read is of one moment.
pub(crate) fn view<R>(node: Node<'_>, read: impl Fn() -> R) -> Option<R> {
    loop {
        let seen = node.version().stable();
        if seen.is_deleted() {
            return None;
        }
        let view = read();
        if !node.version().changed(seen) {
            return Some(view);
        }
    }
}

impl Border<'_> {
    /// What the node holds; only its version tells whether all of that was so at one moment.
    pub fn entries(self) -> BorderView {
        let permutation = self.permutation();
        let count = permutation.count();
        let mut view = BorderView {
            width: self.width(),
            count,
            slices: [0; WIDTH],
            codes: [0; WIDTH],
            words: [0; WIDTH],
            slots: [0; WIDTH],
        };
        for (entry, slot) in permutation.slots().enumerate() {
            view.slices[entry] = self.slice(slot).load(Relaxed);
            view.codes[entry] = self.code(slot);
            view.words[entry] = self.value(slot).load(Acquire);
            view.slots[entry] = slot as u8;
        }
        view
    }
}

fn interior_view(interior: Interior<'_>) -> InteriorView {
    let count = interior.version().stable().count();
    InteriorView {
        count,
        slices: std::array::from_fn(|i| interior.slice(i)),
        children: std::array::from_fn(|i| interior.child(i)),
    }
}

//! Views: consistent copies of all entries of a node, for statistics and estimates, taken while other threads write.

use super::permutation::WIDTH;
use super::{Border, Interior, Node};

/// The entries of a node at one moment. Words of nodes in it belong to nodes that were in the tree at that moment.
pub(crate) enum View {
    Border(BorderView),
    Interior(InteriorView),
}

pub(crate) struct BorderView {
    pub width: usize,
    pub count: usize,
    /// Slices in key order.
    pub slices: [u64; WIDTH],
    pub codes: [u8; WIDTH],
    /// Words of values or of layers' roots.
    pub words: [u64; WIDTH],
    /// The slots of the entries.
    pub slots: [u8; WIDTH],
}

pub(crate) struct InteriorView {
    /// Number of keys; there is one child more.
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
    /// A consistent copy of the entries; `None` if the node has left the tree.
    pub fn view(self) -> Option<View> {
        match self {
            Node::Border(border) => view(self, || View::Border(border.entries())),
            Node::Interior(interior) => view(self, || View::Interior(interior_view(interior))),
        }
    }
}

/// Calls `read` until the node has not changed during a call; `None` if the node has left the tree.
pub(crate) fn view<R>(node: Node<'_>, read: impl Fn() -> R) -> Option<R> {
    loop {
        let observed = node.version().stable();
        if observed.is_deleted() {
            return None;
        }
        let view = read();
        if !node.version().changed(observed) {
            return Some(view);
        }
    }
}

impl Border<'_> {
    /// The entries. They are consistent only if the node's version has not changed meanwhile.
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
            view.slices[entry] = self.slice(slot);
            view.codes[entry] = self.code(slot);
            view.words[entry] = self.value(slot);
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

//! Removal: an entry is removed by one store of the permutation. An emptied border node is unlinked from its list and
//! its parent. An emptied layer is unlinked from the entry that led to it, and so on upwards.
//!
//! Nodes are not merged: a node stays until its last entry is removed. Interior nodes may have no key and one child.

use crate::guard::Guard;
use crate::key::Cursor;
use crate::node::{Border, Exclusive, INSERTING, Interior, Node};
use crate::tree::Tree;

impl Tree {
    /// Removes the entry of a slot of a locked node, which it unlocks.
    pub fn remove(&self, key: &Cursor<'_>, border: Exclusive<Border<'_>>, slot: usize, guard: &Guard) {
        let mut key = *key;
        let mut emptied = remove_entry(border, slot);
        // Continue upwards as long as layers are emptied.
        while let Some(border) = emptied {
            emptied = self.unlink(&key, border, guard);
            if emptied.is_some() {
                key = Cursor::at_layer(key.bytes(), key.layer() - 1);
            }
        }
    }

    /// Unlinks an empty, locked node. If this removes its layer and empties the node above, returns that node, locked.
    #[cold]
    fn unlink<'g>(
        &self,
        key: &Cursor<'_>,
        border: Exclusive<Border<'_>>,
        guard: &'g Guard,
    ) -> Option<Exclusive<Border<'g>>> {
        assert_eq!(border.permutation().count(), 0, "only an empty node is unlinked");
        if border.locked_version().is_root() {
            return self.unlink_layer(key, border, Vec::new(), guard);
        }
        let left = lock_previous(&border);
        // Ancestors without another child, up to the first ancestor that has one.
        let mut chain: Vec<Exclusive<Interior<'_>>> = Vec::new();
        loop {
            let parent = match chain.last() {
                None => self.lock_parent(key, &border, guard),
                Some(child) => self.lock_parent(key, child, guard),
            };
            let Some(mut parent) = parent else {
                // All ancestors up to the root have one child, so that the node has no neighbours.
                assert!(left.is_none() && border.next().is_none(), "the only border node of its layer");
                return self.unlink_layer(key, border, chain, guard);
            };
            let count = parent.locked_version().count();
            if count == 0 {
                chain.push(parent);
                continue;
            }
            parent.mark(INSERTING);
            let position = parent.position(key.slice(), count);
            parent.remove(position);
            self.leave_list(border, left, chain, guard);
            parent.unlock();
            return None;
        }
    }

    /// Removes a node from the list of its layer's border nodes. It has already been removed from its parent, which is
    /// locked. Unlocks and retires the node and its ancestors in `chain`.
    fn leave_list(
        &self,
        border: Exclusive<Border<'_>>,
        left: Option<Exclusive<Border<'_>>>,
        chain: Vec<Exclusive<Interior<'_>>>,
        guard: &Guard,
    ) {
        let next = border.next();
        if let Some(next) = next {
            // The next node cannot be unlinked while this one, its left neighbour, is locked.
            next.set_previous(left.as_ref().map(Exclusive::node), &border);
        }
        if let Some(mut left) = left {
            left.set_next(next);
            left.unlock();
        }
        // SAFETY: parent and neighbours do not refer to the node any more, and only the chain refers to the chain.
        unsafe { self.delete(border, chain, guard) };
    }

    /// Removes a layer that consists of an empty border node and the interior nodes above it, all locked. Returns the
    /// node above the layer, locked, if this empties it. The first layer stays.
    fn unlink_layer<'g>(
        &self,
        key: &Cursor<'_>,
        border: Exclusive<Border<'_>>,
        chain: Vec<Exclusive<Interior<'_>>>,
        guard: &'g Guard,
    ) -> Option<Exclusive<Border<'g>>> {
        if key.layer() == 0 {
            border.unlock();
            chain.into_iter().for_each(Exclusive::unlock);
            return None;
        }
        let (above, slot) = match chain.last() {
            None => self.lock_link(key, &border, guard),
            Some(root) => self.lock_link(key, root, guard),
        };
        let emptied = remove_entry(above, slot);
        // SAFETY: the entry that led to the layer has been removed.
        unsafe { self.delete(border, chain, guard) };
        emptied
    }

    /// Marks unlinked nodes as deleted, unlocks and retires them.
    ///
    /// # Safety
    /// Only these nodes refer to each other: they have been unlinked.
    unsafe fn delete(&self, border: Exclusive<Border<'_>>, chain: Vec<Exclusive<Interior<'_>>>, guard: &Guard) {
        let nodes = std::iter::once(border.into_node()).chain(chain.into_iter().map(|interior| interior.into_node()));
        for node in nodes {
            let node: Node<'_> = node.unlock_deleted();
            // SAFETY: the caller's promise; a node is marked as deleted once.
            unsafe { self.retire_node(node, guard) };
        }
    }
}

/// Removes an entry of a locked node. Unlocks the node and returns `None`, unless this empties the node.
fn remove_entry<'g>(mut border: Exclusive<Border<'g>>, slot: usize) -> Option<Exclusive<Border<'g>>> {
    let permutation = border.permutation();
    let permutation = permutation.remove(permutation.position(slot));
    border.set_stale(slot);
    border.set_permutation(permutation);
    if permutation.count() == 0 {
        return Some(border);
    }
    border.unlock();
    None
}

/// Locks the left neighbour of a locked node.
fn lock_previous<'g>(border: &Exclusive<Border<'g>>) -> Option<Exclusive<Border<'g>>> {
    border.locked_version();
    loop {
        let left = Exclusive::lock(border.previous()?);
        if !left.locked_version().is_deleted() && left.next() == Some(border.node()) {
            return Some(left);
        }
        left.unlock();
    }
}

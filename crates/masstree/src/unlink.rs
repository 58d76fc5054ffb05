//! Removal: an entry leaves by one store of the permutation; an emptied border node leaves its list and its parent, an emptied
//! layer leaves the entry that led to it, and so on upwards.
//!
//! Nodes are not merged: a node is kept until its last entry goes. Interior nodes may have no key and one child.

use crate::guard::Guard;
use crate::key::Cursor;
use crate::node::{Border, INSERTING, Interior, Node, Permutation};
use crate::tree::Tree;

impl Tree {
    /// Removes the entry of a slot of a locked node, which is unlocked.
    pub fn remove(&self, key: &Cursor<'_>, border: Border<'_>, permutation: Permutation, slot: usize, guard: &Guard) {
        let mut key = *key;
        let mut emptied = take_out(border, permutation, slot).then_some(border);
        // Upwards as long as layers vanish.
        while let Some(border) = emptied {
            emptied = self.unlink(&key, border, guard);
            if emptied.is_some() {
                key = Cursor::at_layer(key.bytes(), key.layer() - 1);
            }
        }
    }

    /// Unlinks an empty, locked node. If its layer goes with it and that empties the node above, returns that one, locked.
    #[cold]
    fn unlink<'g>(&self, key: &Cursor<'_>, border: Border<'_>, guard: &'g Guard) -> Option<Border<'g>> {
        if border.version().own().is_root() {
            return self.unlink_layer(key, border, &[], guard);
        }
        let left = lock_previous(border);
        // Ancestors that have no other child, then one that has.
        let mut chain: Vec<Interior<'_>> = Vec::new();
        let mut child = Node::Border(border);
        loop {
            let Some(parent) = self.lock_parent(key, child, guard) else {
                // The layer holds nothing else: there are no neighbours.
                debug_assert!(left.is_none() && border.next() == 0);
                return self.unlink_layer(key, border, &chain, guard);
            };
            let seen = parent.version().own();
            if seen.count() == 0 {
                chain.push(parent);
                child = Node::Interior(parent);
                continue;
            }
            parent.version().mark(INSERTING);
            parent.remove(parent.position(key.slice(), seen.count()));
            break self.leave_list(border, left, &chain, parent, guard);
        }
        None
    }

    /// Takes a node out of the list of its layer's border nodes; it has left its locked parent already. Unlocks and retires.
    fn leave_list(
        &self,
        border: Border<'_>,
        left: Option<Border<'_>>,
        chain: &[Interior<'_>],
        parent: Interior<'_>,
        guard: &Guard,
    ) {
        let next = border.next();
        if next != 0 {
            // SAFETY: the next node cannot be unlinked while this one, its left neighbour, is locked.
            if let Node::Border(next) = unsafe { Node::from_word(next) } {
                next.set_previous(left.map_or(0, Border::word));
            }
        }
        if let Some(left) = left {
            left.set_next(next);
            left.version().unlock();
        }
        self.delete(border, chain, guard);
        parent.version().unlock();
    }

    /// Removes a layer whose only nodes are an empty border node and the interior nodes above it, all locked. Returns the
    /// node above, locked, if that empties it. The first layer stays.
    fn unlink_layer<'g>(
        &self,
        key: &Cursor<'_>,
        border: Border<'_>,
        chain: &[Interior<'_>],
        guard: &'g Guard,
    ) -> Option<Border<'g>> {
        if key.layer() == 0 {
            border.version().unlock();
            for interior in chain {
                interior.version().unlock();
            }
            return None;
        }
        let root = chain.last().map_or(Node::Border(border), |&top| Node::Interior(top));
        let (above, slot) = self.lock_link(key, root, guard);
        let emptied = take_out(above, above.permutation(), slot);
        self.delete(border, chain, guard);
        emptied.then_some(above)
    }

    /// Marks unlinked nodes as deleted, unlocks and retires them.
    fn delete(&self, border: Border<'_>, chain: &[Interior<'_>], guard: &Guard) {
        border.version().unlock_deleted();
        self.retire_node(Node::Border(border), guard);
        for &interior in chain {
            interior.version().unlock_deleted();
            self.retire_node(Node::Interior(interior), guard);
        }
    }
}

/// Takes an entry out of a locked node. If that leaves it empty it stays locked, and true is returned.
fn take_out(border: Border<'_>, permutation: Permutation, slot: usize) -> bool {
    let permutation = permutation.remove(permutation.position(slot));
    border.set_stale(slot);
    border.set_permutation(permutation);
    if permutation.count() > 0 {
        border.version().unlock();
    }
    permutation.count() == 0
}

/// Locks the left neighbour of a locked node.
fn lock_previous<'g>(border: Border<'g>) -> Option<Border<'g>> {
    loop {
        let word = border.previous();
        if word == 0 {
            return None;
        }
        // SAFETY: a node that was the left neighbour of a node in the tree while this thread is pinned stays allocated.
        let Node::Border(left) = (unsafe { Node::from_word(word) }) else { unreachable!("border nodes' neighbours") };
        let seen = left.version().lock();
        if !seen.is_deleted() && left.next() == border.word() {
            return Some(left);
        }
        left.version().unlock();
    }
}

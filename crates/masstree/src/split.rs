//! Full nodes: a split moves the upper half of a node's entries into a new one to its right and adds that to the parent,
//! which may be full in its turn; a narrow node (the only one of its layer) is replaced by a wider one.
//!
//! A split node stays marked until its parent is marked: a reader that comes from the parent then either waits, or finds
//! that the parent has changed.

use crate::guard::Guard;
use crate::key::Cursor;
use crate::node::{Border, Entries, INSERTING, Interior, Lookup, Node, Permutation, ROOT, SPLITTING, Shape, WIDTH};
use crate::sync::{Acquire, Relaxed, Release};
use crate::tree::Tree;
use crate::write::Entry;

impl Tree {
    /// Splits a full, locked border node to insert an entry; unlocks it.
    #[cold]
    pub fn split<'g>(&self, key: &Cursor<'_>, border: Border<'g>, entry: Entry<'_>, guard: &'g Guard) {
        border.version().mark(SPLITTING);
        let permutation = border.permutation();
        let position = border.position(entry.slice, entry.rest.rank(), permutation);
        let at = split_point(border, permutation, position, entry.slice);
        let (right, separator) = self.split_off(border, permutation, position, at, entry, guard);

        let next = border.next();
        right.set_next(next);
        right.set_previous(border.word());
        if next != 0 {
            // SAFETY: the next node cannot be unlinked while this one, its left neighbour, is locked.
            let Node::Border(next) = (unsafe { Node::from_word(next) }) else {
                unreachable!("border nodes' neighbours")
            };
            next.set_previous(right.word());
        }
        border.set_next(right.word());
        self.add_to_parent(key, Node::Border(border), separator, Node::Border(right), guard);
    }

    /// Moves the entries from `at` on (counted with the new one, which is at `position`) into a new node; returns it and its
    /// first slice.
    fn split_off<'g>(
        &self,
        border: Border<'_>,
        permutation: Permutation,
        position: usize,
        at: usize,
        entry: Entry<'_>,
        guard: &Guard,
    ) -> (Border<'g>, u64) {
        let new_goes_right = position >= at;
        // Entries of the old node that stay.
        let kept = if new_goes_right { at } else { at - 1 };
        let moved = (kept..WIDTH).map(|position| permutation.slot(position));
        let mut longest = moved.clone().map(|slot| border.suffix_bytes(slot)).max().unwrap_or(0);
        if new_goes_right {
            longest = longest.max(entry.rest.suffix().len());
        }
        let right = self.new_border(0, Shape::wide(longest));
        self.presize_bag(right, moved.clone().map(|slot| border.suffix_bytes(slot)), (WIDTH - kept).max(1));
        for (slot, old_slot) in moved.enumerate() {
            self.copy_entry(border, old_slot, right, slot, guard);
            right.set_permutation(Permutation::sorted(slot + 1));
        }
        let left = permutation.truncate(kept);
        border.set_permutation(left);
        // The mark of the split makes readers of freed slots read again.
        border.clear_stale();
        if new_goes_right {
            self.insert_at(right, right.permutation(), position - kept, entry, guard);
        } else {
            self.insert_at(border, left, position, entry, guard);
        }
        (right, right.slice(right.permutation().slot(0)).load(Relaxed))
    }

    /// Adds a new node to the right of a locked and marked one to their parent; unlocks.
    fn add_to_parent<'g>(
        &self,
        key: &Cursor<'_>,
        mut left: Node<'g>,
        mut separator: u64,
        mut right: Node<'g>,
        guard: &'g Guard,
    ) {
        loop {
            let Some(parent) = self.lock_parent(key, left, guard) else {
                let entries = Entries::new(&[separator], &[left.word(), right.word()]);
                let root = self.new_interior(ROOT, &entries);
                self.replace_root(key, left, root.word(), guard);
                left.version().clear_root();
                left.version().unlock();
                return;
            };
            if parent.version().own().count() < WIDTH {
                parent.version().mark(INSERTING);
                left.version().unlock();
                parent.insert(separator, right.word());
                parent.version().unlock();
                return;
            }
            parent.version().mark(SPLITTING);
            left.version().unlock();
            let (slices, children) = parent.entries_with(separator, right.word());
            // Appending: the left node stays as full as can be.
            let middle = if separator == slices[WIDTH] { WIDTH - 1 } else { WIDTH.div_ceil(2) };
            let sibling = self.new_interior(0, &Entries::new(&slices[middle + 1..], &children[middle + 1..]));
            parent.assign(&Entries::new(&slices[..middle], &children[..=middle]));
            (left, separator, right) = (Node::Interior(parent), slices[middle], Node::Interior(sibling));
        }
    }

    /// Locks the parent of a locked node on the way to a key; `None` if the node is the root of its layer.
    pub fn lock_parent<'g>(&self, key: &Cursor<'_>, child: Node<'_>, guard: &'g Guard) -> Option<Interior<'g>> {
        if child.version().own().is_root() {
            return None;
        }
        let slice = key.slice();
        loop {
            let Some(parent) = self.find_parent(key, slice, child.word(), guard) else {
                continue;
            };
            let seen = parent.version().lock();
            if !seen.is_deleted() && parent.child_for(slice, seen) == child.word() {
                return Some(parent);
            }
            parent.version().unlock();
        }
    }

    /// Looks for the parent of a node without locks; `None` if something changed on the way.
    fn find_parent<'g>(&self, key: &Cursor<'_>, slice: u64, child: u64, guard: &'g Guard) -> Option<Interior<'g>> {
        let mut node = self.layer_root(key, guard)?;
        let mut seen = node.version().stable();
        loop {
            let Node::Interior(interior) = node else {
                return None;
            };
            let word = interior.child_for(slice, seen);
            if word == child {
                return Some(interior);
            }
            if word == 0 || interior.version().changed(seen) {
                return None;
            }
            // SAFETY: as in a descent: the node was a child when its parent was looked at, and the guard keeps it.
            let next = unsafe { Node::from_word(word) };
            let next_seen = next.version().stable();
            if interior.version().changed(seen) {
                return None;
            }
            (node, seen) = (next, next_seen);
        }
    }

    /// The root of the layer that a key's cursor is in.
    fn layer_root<'g>(&self, key: &Cursor<'_>, guard: &'g Guard) -> Option<Node<'g>> {
        if key.layer() == 0 {
            return Some(self.root(guard));
        }
        match self.find_layer(key.bytes(), key.layer() - 1, guard)?.found {
            // SAFETY: the word was the layer's root when looked at, and the guard keeps it allocated.
            Lookup::Layer { word, .. } => Some(unsafe { Node::from_word(word) }),
            _ => None,
        }
    }

    /// Puts another root in the place of a layer's locked one.
    pub fn replace_root(&self, key: &Cursor<'_>, old: Node<'_>, new: u64, guard: &Guard) {
        if key.layer() == 0 {
            self.set_root(new);
            return;
        }
        let (border, slot) = self.lock_link(key, old, guard);
        border.value(slot).store(new, Release);
        border.version().unlock();
    }

    /// Locks the border node whose entry leads to a layer with a locked root; returns it and the entry's slot.
    pub fn lock_link<'g>(&self, key: &Cursor<'_>, root: Node<'_>, guard: &'g Guard) -> (Border<'g>, usize) {
        loop {
            // A layer with a locked root is not unlinked: the entry exists, but it may be about to move.
            let Some(place) = self.find_layer(key.bytes(), key.layer() - 1, guard) else {
                continue;
            };
            let border = place.border;
            border.version().lock();
            if !place.seen.moved_on(border.version().own())
                && let Lookup::Layer { slot, word } = border.lookup(&place.key, place.slice, border.permutation())
                && word == root.word()
            {
                return (border, slot);
            }
            border.version().unlock();
        }
    }

    /// Replaces a full narrow node by a wider one with one entry more; it is locked, and retired.
    #[cold]
    pub fn widen(&self, key: &Cursor<'_>, border: Border<'_>, entry: Entry<'_>, guard: &Guard) {
        let permutation = border.permutation();
        let position = border.position(entry.slice, entry.rest.rank(), permutation);
        let longest = permutation.slots().map(|slot| border.suffix_bytes(slot)).max().unwrap_or(0);
        let shape = Shape::for_layer(permutation.count() + 1, longest.max(entry.rest.suffix().len()));
        let wider = self.new_border(ROOT, shape);
        for (slot, old_slot) in permutation.slots().enumerate() {
            self.copy_entry(border, old_slot, wider, slot, guard);
            wider.set_permutation(Permutation::sorted(slot + 1));
        }
        self.insert_at(wider, wider.permutation(), position, entry, guard);
        self.replace_root(key, Node::Border(border), wider.word(), guard);
        border.version().unlock_deleted();
        self.retire_node(Node::Border(border), guard);
    }
}

/// How many entries of a full node and a new one at `position` stay on the left. Appending leaves the left node full,
/// prepending leaves the right one so; a slice's entries stay together.
fn split_point(border: Border<'_>, permutation: Permutation, position: usize, slice: u64) -> usize {
    let slices: [u64; WIDTH + 1] = std::array::from_fn(|i| match i.cmp(&position) {
        std::cmp::Ordering::Less => border.slice(permutation.slot(i)).load(Relaxed),
        std::cmp::Ordering::Equal => slice,
        std::cmp::Ordering::Greater => border.slice(permutation.slot(i - 1)).load(Acquire),
    });
    let wanted = if position == WIDTH && border.next() == 0 {
        WIDTH
    } else if position == 0 && border.previous() == 0 {
        1
    } else {
        WIDTH.div_ceil(2)
    };
    // A slice has at most ten entries: some boundary exists.
    (1..=WIDTH)
        .filter(|&at| slices[at - 1] != slices[at])
        .min_by_key(|&at| at.abs_diff(wanted))
        .unwrap_or_else(|| unreachable!("sixteen entries have more than one slice"))
}

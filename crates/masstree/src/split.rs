//! Full nodes: a split moves the upper half of a node's entries into a new node to its right, which it adds to the
//! parent. The parent may be full and split in its turn. A full narrow node, the only one of its layer, is replaced by
//! a wider one.
//!
//! A split node stays marked until its parent is marked. A reader that comes from the parent therefore either waits, or
//! finds that the parent has changed.

use crate::guard::Guard;
use crate::key::Cursor;
use crate::node::{
    Border, BorderLayout, Entries, Exclusive, Handle, INSERTING, Interior, Lookup, Node, ROOT, SPLITTING, WIDTH,
};
use crate::tree::Tree;
use crate::write::Entry;

impl Tree {
    /// Splits a full, locked border node to insert an entry, and unlocks it.
    #[cold]
    pub fn split<'g>(
        &'g self,
        key: &Cursor<'_>,
        mut border: Exclusive<Border<'g>>,
        entry: Entry<'_>,
        guard: &'g Guard,
    ) {
        border.mark(SPLITTING);
        let position = border.position(entry.slice, entry.continuation.rank());
        let at = split_point(&border, position, entry.slice);
        let mut right = self.split_off(&mut border, position, at, entry, guard);
        let separator = right.slice(right.permutation().slot(0));

        let next = border.next();
        right.set_next(next);
        right.set_previous(Some(border.node()), &border);
        if let Some(next) = next {
            // The next node cannot be unlinked while this one, its left neighbour, is locked.
            next.set_previous(Some(right.node()), &border);
        }
        border.set_next(Some(right.node()));
        self.add_to_parent(key, border.into_node(), separator, Node::Border(right.node()), guard);
    }

    /// Moves the entries from position `at` on into a new node, which it returns. Positions count the new entry, which
    /// is inserted at `position` into one of the two nodes.
    fn split_off<'t>(
        &'t self,
        border: &mut Exclusive<Border<'_>>,
        position: usize,
        at: usize,
        entry: Entry<'_>,
        guard: &Guard,
    ) -> Exclusive<Border<'t>> {
        let permutation = border.permutation();
        let new_goes_right = position >= at;
        // Entries of the old node that stay.
        let kept = if new_goes_right { at } else { at - 1 };
        let moved = (kept..WIDTH).map(|position| permutation.slot(position));
        let mut longest = moved.clone().map(|slot| border.suffix_bytes(slot)).max().unwrap_or(0);
        if new_goes_right {
            longest = longest.max(entry.continuation.suffix().len());
        }
        let mut right = self.new_border(0, BorderLayout::wide(longest));
        self.presize_bag(&mut right, moved.clone().map(|slot| border.suffix_bytes(slot)), (WIDTH - kept).max(1));
        self.copy_entries(border, moved, &mut right, guard);
        border.set_permutation(permutation.truncate(kept));
        // The split's mark lets readers of freed slots read again.
        border.clear_stale();
        if new_goes_right {
            self.insert_at(&mut right, position - kept, entry, guard);
        } else {
            self.insert_at(border, position, entry, guard);
        }
        right
    }

    /// Adds a new node, to the right of a locked and marked one, to their parent. Unlocks the locked node.
    fn add_to_parent<'g>(
        &'g self,
        key: &Cursor<'_>,
        mut left: Exclusive<Node<'g>>,
        mut separator: u64,
        mut right: Node<'g>,
        guard: &'g Guard,
    ) {
        loop {
            let Some(mut parent) = self.lock_parent(key, &left, guard) else {
                // SAFETY: both nodes stay in the tree as long as the new root has them as children.
                let entries = unsafe { Entries::new(&[separator], &[left.word(), right.word()]) };
                let root = self.new_interior(ROOT, &entries);
                self.replace_root(key, &left, Node::Interior(root.node()), guard);
                left.clear_root();
                left.unlock();
                return;
            };
            if parent.locked_version().count() < WIDTH {
                parent.mark(INSERTING);
                left.unlock();
                parent.insert(separator, right);
                parent.unlock();
                return;
            }
            parent.mark(SPLITTING);
            left.unlock();
            let (slices, children) = parent.entries_with(separator, right);
            // Appending at the end leaves the left node as full as possible.
            let middle = if separator == slices[WIDTH] { WIDTH - 1 } else { WIDTH.div_ceil(2) };
            // SAFETY: the children were those of the parent, and the new node beside one of them.
            let (lower, upper) = unsafe {
                (
                    Entries::new(&slices[..middle], &children[..=middle]),
                    Entries::new(&slices[middle + 1..], &children[middle + 1..]),
                )
            };
            let sibling = self.new_interior(0, &upper);
            parent.assign(&lower);
            (left, separator, right) = (parent.into_node(), slices[middle], Node::Interior(sibling.node()));
        }
    }

    /// Locks the parent of a locked node on the way to a key; `None` if the node is the root of its layer.
    pub fn lock_parent<'g, N: Handle>(
        &self,
        key: &Cursor<'_>,
        child: &Exclusive<N>,
        guard: &'g Guard,
    ) -> Option<Exclusive<Interior<'g>>> {
        if child.locked_version().is_root() {
            return None;
        }
        let slice = key.slice();
        loop {
            let Some(parent) = self.find_parent(key, slice, child.word(), guard) else {
                continue;
            };
            let parent = Exclusive::lock(parent);
            let observed = parent.locked_version();
            if !observed.is_deleted() && parent.child_for(slice, observed) == child.word() {
                return Some(parent);
            }
            parent.unlock();
        }
    }

    /// Searches for the parent of a node without locks; `None` if a node on the way changed.
    fn find_parent<'g>(&self, key: &Cursor<'_>, slice: u64, child: u64, guard: &'g Guard) -> Option<Interior<'g>> {
        let mut node = self.layer_root(key, guard)?;
        let mut observed = node.version().stable();
        loop {
            let Node::Interior(interior) = node else {
                return None;
            };
            let word = interior.child_for(slice, observed);
            if word == child {
                return Some(interior);
            }
            if word == 0 || interior.version().changed(observed) {
                return None;
            }
            // SAFETY: as in a descent: the node was a child when its parent was read, and the guard keeps it allocated.
            let next = unsafe { Node::from_word(word) };
            let next_observed = next.version().stable();
            if interior.version().changed(observed) {
                return None;
            }
            (node, observed) = (next, next_observed);
        }
    }

    /// The root of the cursor's layer.
    fn layer_root<'g>(&self, key: &Cursor<'_>, guard: &'g Guard) -> Option<Node<'g>> {
        if key.layer() == 0 {
            return Some(self.root(guard));
        }
        match self.locate_link(key.bytes(), key.layer() - 1, guard)?.found {
            // SAFETY: the word was the layer's root when it was read, and the guard keeps it allocated.
            Lookup::Layer { word, .. } => Some(unsafe { Node::from_word(word) }),
            _ => None,
        }
    }

    /// Replaces the root of the cursor's layer, which is locked.
    pub fn replace_root(&self, key: &Cursor<'_>, old: &Exclusive<Node<'_>>, new: Node<'_>, guard: &Guard) {
        if key.layer() == 0 {
            self.set_root(old, new);
            return;
        }
        let (mut border, slot) = self.lock_link(key, old, guard);
        border.set_layer(slot, new);
        border.unlock();
    }

    /// Locks the border node whose entry leads to the cursor's layer, the root of which is locked. Returns it and the
    /// entry's slot.
    pub fn lock_link<'g, N: Handle>(
        &self,
        key: &Cursor<'_>,
        root: &Exclusive<N>,
        guard: &'g Guard,
    ) -> (Exclusive<Border<'g>>, usize) {
        assert!(key.layer() > 0 && root.locked_version().is_root(), "the root of a layer below the first");
        loop {
            // A layer with a locked root is not unlinked: the entry exists, but it may be moving to another node.
            let Some(location) = self.locate_link(key.bytes(), key.layer() - 1, guard) else {
                continue;
            };
            let border = Exclusive::lock(location.border);
            if !location.observed.keys_left(border.locked_version())
                && let Lookup::Layer { slot, word } = border.lookup(&location.key, location.slice, border.permutation())
                && word == root.word()
            {
                return (border, slot);
            }
            border.unlock();
        }
    }

    /// Replaces a full narrow node, which is locked, by a wider one with one entry more. Retires the old node.
    #[cold]
    pub fn widen(&self, key: &Cursor<'_>, border: Exclusive<Border<'_>>, entry: Entry<'_>, guard: &Guard) {
        let permutation = border.permutation();
        let position = border.position(entry.slice, entry.continuation.rank());
        let longest = permutation.slots().map(|slot| border.suffix_bytes(slot)).max().unwrap_or(0);
        let suffix = entry.continuation.suffix().len();
        let mut wider = self.new_border(ROOT, BorderLayout::for_layer(permutation.count() + 1, longest.max(suffix)));
        self.copy_entries(&border, permutation.slots(), &mut wider, guard);
        self.insert_at(&mut wider, position, entry, guard);
        let border = border.into_node();
        self.replace_root(key, &border, Node::Border(wider.node()), guard);
        let border = border.unlock_deleted();
        // SAFETY: the layer has another root: nothing refers to the old one.
        unsafe { self.retire_node(border, guard) };
    }
}

/// The number of entries that stay on the left when a full node is split for a new entry at `position`. Appending at
/// the end of the layer leaves the left node full, prepending the right one. Entries of one slice stay together.
fn split_point(border: &Exclusive<Border<'_>>, position: usize, slice: u64) -> usize {
    let permutation = border.permutation();
    let slices: [u64; WIDTH + 1] = std::array::from_fn(|i| match i.cmp(&position) {
        std::cmp::Ordering::Less => border.slice(permutation.slot(i)),
        std::cmp::Ordering::Equal => slice,
        std::cmp::Ordering::Greater => border.slice(permutation.slot(i - 1)),
    });
    assert!(slices.is_sorted(), "the entries of a border node ascend");
    let wanted = if position == WIDTH && border.next().is_none() {
        WIDTH
    } else if position == 0 && border.previous().is_none() {
        1
    } else {
        WIDTH.div_ceil(2)
    };
    // A slice has at most ten entries, so that sixteen entries have a boundary between slices.
    (1..=WIDTH)
        .filter(|&at| slices[at - 1] != slices[at])
        .min_by_key(|&at| at.abs_diff(wanted))
        .unwrap_or_else(|| unreachable!("sixteen entries have more than one slice"))
}

//! A border node copied for a walk.

use super::ahead::Siblings;
use crate::descend::{Restart, descend_by};
use crate::node::{BAG, Border, Copy, LAYER, Node, Seen, WIDTH, prefetch_node, rank};
use crate::sync::Backoff;

/// How the keys of a layer compare with the walk's end, as far as the bytes above the layer tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// All are within.
    Beyond,
    /// Those are whose slices come before this one.
    Slice(u64),
    /// Each must be compared.
    Unknown,
}

/// A copy of a border node.
pub(super) struct Frame<'g> {
    /// The layer's root, when the walk came into it.
    pub root: Option<Node<'g>>,
    pub siblings: Option<Siblings<'g>>,
    border: Option<Border<'g>>,
    pub count: usize,
    /// Forward: the next entry. Backward: entries left.
    pub position: usize,
    /// Forward: entries before this one need not be compared with the walk's end; backward: those from this one on.
    pub free: usize,
    pub end: End,
    /// Slice and rank of what is done in this layer, before the copied entries that are.
    pub done: Option<(u64, u8)>,
    pub copy: Copy<'g>,
}

impl<'g> Frame<'g> {
    /// Of no node: nothing is in it.
    pub fn new() -> Self {
        Frame {
            root: None,
            siblings: None,
            border: None,
            count: 0,
            position: 0,
            free: 0,
            end: End::Unknown,
            done: None,
            copy: Copy::new(),
        }
    }

    /// Nothing is left in it.
    pub fn clear(&mut self) {
        (self.count, self.position, self.free) = (0, 0, 0);
    }

    /// The slot of the next entry, if that need not be compared with the walk's end.
    #[inline]
    pub fn next_free<const FORWARD: bool>(&mut self) -> Option<usize> {
        if FORWARD && self.position < self.free {
            self.position += 1;
            Some(self.slot(self.position - 1))
        } else if !FORWARD && self.position > self.free {
            self.position -= 1;
            Some(self.slot(self.position))
        } else {
            None
        }
    }

    /// The entry taken last is to come once more.
    #[inline]
    pub fn put_back<const FORWARD: bool>(&mut self) {
        if FORWARD { self.position -= 1 } else { self.position += 1 }
    }

    /// The next entry and its slot.
    pub fn next<const FORWARD: bool>(&mut self) -> Option<(usize, usize)> {
        let entry = if FORWARD && self.position < self.count {
            self.position += 1;
            self.position - 1
        } else if !FORWARD && self.position > 0 {
            self.position -= 1;
            self.position
        } else {
            return None;
        };
        Some((entry, self.slot(entry)))
    }

    /// Copies a node as of one moment; fails if keys may have left it since `seen`.
    #[inline]
    pub fn take(&mut self, border: Border<'g>, mut seen: Seen) -> Result<(), Restart> {
        self.border = Some(border);
        loop {
            if seen.is_deleted() {
                return Err(Restart);
            }
            self.copy.take(border);
            self.count = self.copy.permutation().count().min(WIDTH);
            if !border.version().changed(seen) {
                return Ok(());
            }
            let now = border.stable();
            if seen.moved_on(now) {
                return Err(Restart);
            }
            seen = now;
        }
    }

    #[inline]
    pub fn slot(&self, entry: usize) -> usize {
        self.copy.permutation().slot(entry)
    }

    pub fn order(&self, entry: usize) -> (u64, u8) {
        let slot = self.slot(entry);
        (self.copy.slice(slot), rank(self.copy.code(slot)))
    }

    /// Entries before a slice and rank.
    pub fn below(&self, order: (u64, u8)) -> usize {
        (0..self.count).take_while(|&entry| self.order(entry) < order).count()
    }

    /// Finds out which entries need not be compared with the walk's end.
    #[inline]
    pub fn find_free<const FORWARD: bool>(&mut self) {
        let slice = |frame: &Self, entry: usize| frame.copy.slice(frame.slot(entry));
        self.free = match (self.end, FORWARD) {
            (End::Beyond, true) => self.count,
            (End::Beyond, false) => 0,
            (End::Unknown, true) => 0,
            (End::Unknown, false) => self.count,
            (End::Slice(end), true) => {
                let mut free = self.count;
                while free > 0 && slice(self, free - 1) >= end {
                    free -= 1;
                }
                free
            }
            (End::Slice(end), false) => {
                let mut free = 0;
                while free < self.count && slice(self, free) <= end {
                    free += 1;
                }
                free
            }
        };
    }

    /// After a move: asks for a node further on.
    #[inline]
    fn look_ahead<const FORWARD: bool>(&mut self) {
        let Some(siblings) = &mut self.siblings else { return };
        if siblings.prefetch_next::<FORWARD>() {
            return;
        }
        // Where they come from is not known: neighbours, and now and then a descent.
        let neighbour = if FORWARD { self.copy.next() } else { self.border.map_or(0, Border::previous) };
        if neighbour != 0 {
            prefetch_node(neighbour);
        }
        if siblings.is_far() && self.count > 0 {
            let slice = self.order(self.count - 1).0;
            let descent = self.root.and_then(|root| descend_by(root, slice).ok());
            self.siblings = descent.and_then(|(_, _, ancestors)| Siblings::find::<FORWARD>(ancestors, slice));
        }
    }

    /// Asks for the layers of the entries.
    #[inline]
    pub fn prefetch_layers(&self) {
        if self.copy.may_have_layers() {
            for slot in self.copy.permutation().slots() {
                if self.copy.code(slot) == LAYER {
                    prefetch_node(self.copy.word(slot));
                }
            }
        }
    }

    /// Compares the suffix of an entry, which has one, with another.
    pub fn compare_suffix(&self, entry: usize, other: &[u8]) -> (std::cmp::Ordering, bool) {
        let slot = self.slot(entry);
        let tail = self.copy.tail(slot);
        let suffix = match self.copy.code(slot) {
            BAG => self.copy.bagged(slot),
            code => &tail[..code as usize - 8],
        };
        (suffix.cmp(other), suffix.starts_with(other))
    }

    /// Replaces the copy by that of the next node, or the previous one. False if there is none.
    #[inline]
    pub fn advance<const FORWARD: bool>(&mut self) -> Result<bool, Restart> {
        if self.count > 0 {
            self.done = Some(self.order(if FORWARD { self.count - 1 } else { 0 }));
        }
        let moved = if FORWARD { self.forward()? } else { self.backward()? };
        if moved {
            self.find_free::<FORWARD>();
            self.look_ahead::<FORWARD>();
            self.prefetch_layers();
        }
        Ok(moved)
    }

    #[inline]
    fn forward(&mut self) -> Result<bool, Restart> {
        let word = self.copy.next();
        if word == 0 {
            return Ok(false);
        }
        // SAFETY: the node was next when the copy was made, under the guard.
        let Node::Border(next) = (unsafe { Node::from_word(word) }) else { return Err(Restart) };
        self.take(next, next.stable())?;
        self.position = 0;
        // A node may take over keys of a left neighbour that was unlinked.
        if self.count > 0 && self.done.is_some_and(|done| self.order(0) <= done) { Err(Restart) } else { Ok(true) }
    }

    fn backward(&mut self) -> Result<bool, Restart> {
        let Some(border) = self.border else { return Ok(false) };
        let mut backoff = Backoff::default();
        loop {
            let seen = border.stable();
            if seen.is_deleted() {
                return Err(Restart);
            }
            let word = border.previous();
            if word == 0 {
                if border.version().changed(seen) {
                    continue;
                }
                return Ok(false);
            }
            // SAFETY: the node was the left neighbour of one in the tree, under the guard.
            let Node::Border(left) = (unsafe { Node::from_word(word) }) else { return Err(Restart) };
            // If it is split or deleted, this node gets another neighbour.
            if self.take(left, left.stable()).is_ok() && self.copy.next() == border.word() {
                break;
            }
            backoff.wait();
        }
        self.position = self.count;
        let too_far = |done| self.count > 0 && self.order(self.count - 1) >= done;
        if self.done.is_some_and(too_far) { Err(Restart) } else { Ok(true) }
    }
}

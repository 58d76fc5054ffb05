//! Frames of a scan: the copy of one border node of a layer, and the position in it.

use super::prefetch::SiblingPrefetch;
use crate::descend::{Restart, descend_with_ancestors};
use crate::node::{BAG, Border, BorderCopy, LAYER, Node, VersionSnapshot, WIDTH, prefetch_node, rank};
use crate::sync::Backoff;

/// The bound that the scan's end puts on the slices of a layer, given the bytes above the layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LayerBound {
    /// All keys of the layer are in the range.
    None,
    /// Keys are in the range if their slices come before this one in the direction of the scan.
    Slice(u64),
    /// Each key must be compared with the end.
    Unknown,
}

/// A copy of a border node, and the scan's position in it.
pub(super) struct Frame<'g> {
    /// The layer's root at the time when the scan opened the layer.
    pub root: Option<Node<'g>>,
    pub siblings: Option<SiblingPrefetch<'g>>,
    border: Option<Border<'g>>,
    /// Number of entries in the copy.
    pub count: usize,
    /// Forward: index of the next entry. Backward: number of entries that are left.
    pub position: usize,
    /// Forward: entries before this index are in the range. Backward: entries from this index on are.
    pub range_limit: usize,
    pub bound: LayerBound,
    /// Slice and rank that the scan has passed in this layer before it came to the copied node.
    pub passed: Option<(u64, u8)>,
    pub copy: BorderCopy<'g>,
}

impl<'g> Frame<'g> {
    /// A frame without entries.
    pub fn new() -> Self {
        Frame {
            root: None,
            siblings: None,
            border: None,
            count: 0,
            position: 0,
            range_limit: 0,
            bound: LayerBound::Unknown,
            passed: None,
            copy: BorderCopy::new(),
        }
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        (self.count, self.position, self.range_limit) = (0, 0, 0);
    }

    /// Takes the next entry if it is known to be in the range. Returns its slot.
    #[inline]
    pub fn next_in_range<const FORWARD: bool>(&mut self) -> Option<usize> {
        if FORWARD && self.position < self.range_limit {
            self.position += 1;
            Some(self.slot(self.position - 1))
        } else if !FORWARD && self.position > self.range_limit {
            self.position -= 1;
            Some(self.slot(self.position))
        } else {
            None
        }
    }

    /// Puts the entry back that was taken last.
    #[inline]
    pub fn put_back<const FORWARD: bool>(&mut self) {
        if FORWARD { self.position -= 1 } else { self.position += 1 }
    }

    /// Takes the next entry. Returns its index and its slot.
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

    /// Takes a consistent copy of a node. Fails if keys may have left the node since `observed`.
    #[inline]
    pub fn take(&mut self, border: Border<'g>, mut observed: VersionSnapshot) -> Result<(), Restart> {
        self.border = Some(border);
        loop {
            if observed.is_deleted() {
                return Err(Restart);
            }
            self.copy.take(border);
            self.count = self.copy.permutation().count().min(WIDTH);
            if !border.version().changed(observed) {
                return Ok(());
            }
            let now = border.stable();
            if observed.keys_left(now) {
                return Err(Restart);
            }
            observed = now;
        }
    }

    #[inline]
    pub fn slot(&self, entry: usize) -> usize {
        self.copy.permutation().slot(entry)
    }

    /// Slice and rank of an entry.
    pub fn order(&self, entry: usize) -> (u64, u8) {
        let slot = self.slot(entry);
        (self.copy.slice(slot), rank(self.copy.code(slot)))
    }

    /// The number of entries before a slice and rank.
    pub fn count_before(&self, order: (u64, u8)) -> usize {
        (0..self.count).take_while(|&entry| self.order(entry) < order).count()
    }

    /// Finds the entries that are known to be in the range.
    #[inline]
    pub fn find_range_limit<const FORWARD: bool>(&mut self) {
        let slice = |frame: &Self, entry: usize| frame.copy.slice(frame.slot(entry));
        self.range_limit = match (self.bound, FORWARD) {
            (LayerBound::None, true) => self.count,
            (LayerBound::None, false) => 0,
            (LayerBound::Unknown, true) => 0,
            (LayerBound::Unknown, false) => self.count,
            (LayerBound::Slice(end), true) => {
                let mut limit = self.count;
                while limit > 0 && slice(self, limit - 1) >= end {
                    limit -= 1;
                }
                limit
            }
            (LayerBound::Slice(end), false) => {
                let mut limit = 0;
                while limit < self.count && slice(self, limit) <= end {
                    limit += 1;
                }
                limit
            }
        };
    }

    /// Prefetches one more of the following nodes.
    #[inline]
    fn prefetch_ahead<const FORWARD: bool>(&mut self) {
        let Some(siblings) = &mut self.siblings else { return };
        if siblings.prefetch_next::<FORWARD>() {
            return;
        }
        // The known parents have no more children. Prefetch the neighbour, and find new parents by a descent when the
        // scan has used up the prefetched nodes.
        let neighbour = if FORWARD { self.copy.next() } else { self.border.and_then(Border::previous) };
        if let Some(neighbour) = neighbour {
            prefetch_node(neighbour.word());
        }
        if siblings.is_exhausted() && self.count > 0 {
            let slice = self.order(self.count - 1).0;
            let descent = self.root.and_then(|root| descend_with_ancestors(root, slice).ok());
            self.siblings = descent.and_then(|(_, _, ancestors)| SiblingPrefetch::start::<FORWARD>(ancestors, slice));
        }
    }

    /// Prefetches the roots of the layers that the entries lead to.
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

    /// Compares the suffix of an entry that has one with another: the order, and whether it begins with the other.
    pub fn compare_suffix(&self, entry: usize, other: &[u8]) -> (std::cmp::Ordering, bool) {
        let slot = self.slot(entry);
        let tail = self.copy.tail(slot);
        let suffix = match self.copy.code(slot) {
            BAG => self.copy.bagged(slot),
            code => &tail[..code as usize - 8],
        };
        (suffix.cmp(other), suffix.starts_with(other))
    }

    /// Replaces the copy by that of the next node in the direction of the scan. Returns false if there is none.
    #[inline]
    pub fn advance<const FORWARD: bool>(&mut self) -> Result<bool, Restart> {
        if self.count > 0 {
            self.passed = Some(self.order(if FORWARD { self.count - 1 } else { 0 }));
        }
        let moved = if FORWARD { self.forward()? } else { self.backward()? };
        if moved {
            self.find_range_limit::<FORWARD>();
            self.prefetch_ahead::<FORWARD>();
            self.prefetch_layers();
        }
        Ok(moved)
    }

    #[inline]
    fn forward(&mut self) -> Result<bool, Restart> {
        let Some(next) = self.copy.next() else { return Ok(false) };
        self.take(next, next.stable())?;
        self.position = 0;
        // A node takes over the key range of a left neighbour that is unlinked.
        let is_passed = |passed| self.count > 0 && self.order(0) <= passed;
        if self.passed.is_some_and(is_passed) { Err(Restart) } else { Ok(true) }
    }

    fn backward(&mut self) -> Result<bool, Restart> {
        let Some(border) = self.border else { return Ok(false) };
        let mut backoff = Backoff::default();
        loop {
            let observed = border.stable();
            if observed.is_deleted() {
                return Err(Restart);
            }
            let Some(left) = border.previous() else {
                if border.version().changed(observed) {
                    continue;
                }
                return Ok(false);
            };
            // If the left node is split or deleted, this node gets another neighbour.
            if self.take(left, left.stable()).is_ok() && self.copy.next() == Some(border) {
                break;
            }
            backoff.wait();
        }
        self.position = self.count;
        let is_passed = |passed| self.count > 0 && self.order(self.count - 1) >= passed;
        if self.passed.is_some_and(is_passed) { Err(Restart) } else { Ok(true) }
    }
}

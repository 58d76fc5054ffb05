//! Compaction of a tree or a range of its keys: messages move to the leaves, and extents move to other places of the data file.
//!
//! Both work in steps, so that flushes and checkpoints can run in between. They do not change the rows.

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::{Error, Key, KeyRange, Result};
use crate::pages::Extent;
use crate::tree::flush::replace_child;
use crate::tree::{Flusher, InnerNode, Node, Part, Run};

/// Copies of extents, by the offsets of the originals.
pub(crate) type MovedExtents = HashMap<u64, Arc<Extent>>;

/// The result of a step of [`Flusher::drain`].
#[derive(Debug)]
pub(crate) struct Drained {
    pub root: InnerNode,
    /// The key from which on messages are left; `None` at the end.
    pub next: Option<Key>,
    /// Bytes of the leaves that were replaced, and of the messages.
    pub bytes: u64,
    /// The disk is full: the step ended early.
    pub is_full: bool,
}

/// The bytes of a step so far, and the number above which it ends.
struct Work {
    bytes: u64,
    limit: u64,
    is_full: bool,
}

impl Flusher<'_> {
    /// Moves the messages of the keys of `range` from `from` on, and of other keys in the same leaves, to the leaves, joins
    /// small leaves of nodes up to whose end the range reaches, and ends after about `limit` bytes or when the disk is full.
    ///
    /// # Errors
    /// Those of [`Flusher::flush_buffer`] except for [`Error::DiskFull`].
    pub fn drain(&self, root: &InnerNode, range: &KeyRange, from: &Key, limit: u64) -> Result<Drained> {
        let mut work = Work { bytes: 0, limit, is_full: false };
        let (root, next) = self.drain_node(root, range, from, &mut work)?;
        Ok(Drained { root: self.grow(root)?, next, bytes: work.bytes, is_full: work.is_full })
    }

    fn drain_node(
        &self,
        node: &InnerNode,
        range: &KeyRange,
        from: &Key,
        work: &mut Work,
    ) -> Result<(InnerNode, Option<Key>)> {
        let (mut node, mut from) = (node.clone(), from.clone());
        loop {
            let slot = node.child_of(&from);
            let (low, high) = node.bounds(slot);
            if low.is_some_and(|low| range.ends_before(low)) {
                return Ok((node, None));
            }
            let high = high.cloned();
            let share = self.clip_runs(&node.runs, low, high.as_ref())?;
            let mut next = None;
            match &*node.children[slot].clone() {
                Node::Leaf(_) if share.is_empty() => {}
                Node::Leaf(leaf) => {
                    let messages: u64 = share.iter().map(Run::bytes).sum();
                    match self.move_down_if_space(&node, slot, &share)? {
                        Some(moved) => node = moved,
                        None => {
                            work.is_full = true;
                            return Ok((node, Some(from)));
                        }
                    }
                    work.bytes += messages + leaf.as_ref().map_or(0, |leaf| leaf.meta.len);
                }
                Node::Inner(child) => {
                    let mut child = child.clone();
                    child.runs.splice(0..0, share);
                    let mut drained;
                    (drained, next) = self.drain_node(&child, range, &from, work)?;
                    node.runs = self.remainder(&node, slot)?;
                    if next.is_none() {
                        // A child that is drained in part has got all messages of its keys.
                        drained = self.settle(drained)?;
                    }
                    let replacement = self.divide(drained)?;
                    self.replace(&mut node, slot, replacement)?;
                }
            }
            match (next, high) {
                (Some(next), _) => return Ok((node, Some(next))),
                (None, None) => {
                    self.join_small_leaves(&mut node, work)?;
                    return Ok((node, None));
                }
                (None, Some(high)) if work.bytes >= work.limit => return Ok((node, Some(high))),
                (None, Some(high)) => from = high,
            }
        }
    }

    /// The node after child `slot` has received its `share` of the messages, in short extents if there is no space for
    /// others; `None` if there is none for these either.
    fn move_down_if_space(&self, node: &InnerNode, slot: usize, share: &[Run]) -> Result<Option<InnerNode>> {
        for flusher in [Flusher { ..*self }, self.with_short_extents()] {
            match flusher.move_down(node, slot, share) {
                Err(Error::DiskFull { .. }) => {}
                moved => return moved.map(Some),
            }
        }
        Ok(None)
    }

    /// Joins neighbouring leaves that fit into one and fill at most a third of their length on average: each has an
    /// index page. Messages of the node still apply to the joined leaf.
    fn join_small_leaves(&self, node: &mut InnerNode, work: &mut Work) -> Result<()> {
        let full = self.options.leaf_bytes as u64;
        let mut slot = 0;
        while slot < node.children.len() {
            let (mut group, mut bytes) = (Vec::new(), 0);
            for child in &node.children[slot..] {
                let Node::Leaf(Some(leaf)) = &**child else { break };
                if bytes + leaf.meta.data_bytes() > full {
                    break;
                }
                bytes += leaf.meta.data_bytes();
                group.push(leaf);
            }
            let count = group.len();
            if count < 2 || bytes > full / 3 * count as u64 {
                slot += 1;
                continue;
            }
            let joined = match self.join_leaves(&group) {
                Err(Error::DiskFull { .. }) => {
                    work.is_full = true;
                    return Ok(());
                }
                joined => joined?,
            };
            work.bytes += bytes;
            node.children.drain(slot + 1..slot + count);
            node.pivots.drain(slot..slot + count - 1);
            let leaves = joined.len();
            replace_child(node, slot, joined);
            slot += leaves;
        }
        Ok(())
    }
}

impl InnerNode {
    /// Bytes of the messages and leaves of this subtree that may have keys of a range.
    pub fn bytes_in(&self, range: &KeyRange) -> u64 {
        let is_in = |part: &&Part| range.may_overlap(part.first(), &part.extent.meta.last);
        let of_runs: u64 = self.runs.iter().flat_map(Run::parts).filter(is_in).map(|part| part.bytes).sum();
        let of_children = self.children.iter().map(|child| match &**child {
            Node::Leaf(None) => 0,
            Node::Leaf(Some(leaf)) if range.may_overlap(&leaf.meta.first, &leaf.meta.last) => leaf.meta.len,
            Node::Leaf(Some(_)) => 0,
            Node::Inner(inner) => inner.bytes_in(range),
        });
        of_runs + of_children.sum::<u64>()
    }

    /// The subtree with extents replaced by their copies; `None` if it has none of them.
    pub fn with_moved(&self, moved: &MovedExtents) -> Option<InnerNode> {
        let mut changed = None;
        for (i, run) in self.runs.iter().enumerate() {
            let copy_of = |extent: &Extent| moved.get(&extent.meta.offset).cloned();
            if run.parts().iter().any(|part| copy_of(&part.extent).is_some()) {
                changed.get_or_insert_with(|| self.clone()).runs[i].replace_extents(copy_of);
            }
        }
        for (i, child) in self.children.iter().enumerate() {
            let (low, high) = self.bounds(i);
            let is_within = |extent: &Arc<Extent>| {
                low.is_none_or(|low| **low <= *extent.meta.last) && high.is_none_or(|high| *extent.meta.first < **high)
            };
            let replaced = match &**child {
                Node::Leaf(None) => None,
                Node::Leaf(Some(leaf)) => moved.get(&leaf.meta.offset).map(|copy| Node::Leaf(Some(copy.clone()))),
                Node::Inner(inner) if moved.values().any(is_within) => inner.with_moved(moved).map(Node::Inner),
                Node::Inner(_) => None,
            };
            if let Some(replaced) = replaced {
                changed.get_or_insert_with(|| self.clone()).children[i] = Arc::new(replaced);
            }
        }
        changed
    }
}

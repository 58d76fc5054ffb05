//! Compaction of a whole tree: all messages move to the leaves, and extents move to other places of the data file.
//!
//! Both work in steps, so that flushes and checkpoints can run in between, and change nothing of the rows.

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::{Key, Result};
use crate::pages::Extent;
use crate::tree::flush::replace_child;
use crate::tree::{Flusher, InnerNode, Node, Run};

/// Copies of extents, by the offsets of the originals.
pub(crate) type MovedExtents = HashMap<u64, Arc<Extent>>;

impl Flusher<'_> {
    /// Moves the messages of the keys from `from` on to the leaves, joins small leaves, and ends after about `bytes` bytes.
    /// Returns the tree, and the key from which on messages are left; `None` at the end.
    ///
    /// # Errors
    /// Those of [`Flusher::flush_buffer`].
    pub fn drain(&self, root: &InnerNode, from: &Key, bytes: u64) -> Result<(InnerNode, Option<Key>)> {
        let mut left = bytes;
        let (root, next) = self.drain_node(root, from, &mut left)?;
        Ok((self.grow(root)?, next))
    }

    fn drain_node(&self, node: &InnerNode, from: &Key, left: &mut u64) -> Result<(InnerNode, Option<Key>)> {
        let (mut node, mut from) = (node.clone(), from.clone());
        loop {
            let slot = node.child_of(&from);
            let (low, high) = node.bounds(slot);
            let high = high.cloned();
            let share = self.clip_runs(&node.runs, low, high.as_ref())?;
            let mut next = None;
            match &*node.children[slot].clone() {
                Node::Leaf(_) if share.is_empty() => {}
                Node::Leaf(_) => {
                    *left = left.saturating_sub(share.iter().map(Run::bytes).sum::<u64>().max(1));
                    node = self.move_down(&node, slot, &share)?;
                }
                Node::Inner(child) => {
                    let mut child = child.clone();
                    child.runs.splice(0..0, share);
                    let drained;
                    (drained, next) = self.drain_node(&child, &from, left)?;
                    node.runs = self.remainder(&node, slot)?;
                    let replacement = self.divide(drained)?;
                    self.replace(&mut node, slot, replacement)?;
                }
            }
            match (next, high) {
                (Some(next), _) => return Ok((node, Some(next))),
                (None, None) => {
                    self.join_small_leaves(&mut node, left)?;
                    return Ok((node, None));
                }
                (None, Some(high)) if *left == 0 => return Ok((node, Some(high))),
                (None, Some(high)) => from = high,
            }
        }
    }
}

impl Flusher<'_> {
    /// Joins neighbouring leaves that fit into one and fill at most a third of their length on average: each has an index
    /// page. No run of the node has messages for them.
    fn join_small_leaves(&self, node: &mut InnerNode, left: &mut u64) -> Result<()> {
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
            let joined = self.join_leaves(&group)?;
            *left = left.saturating_sub(bytes);
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
    /// The subtree with extents replaced by their copies; `None` if it has none of them.
    pub fn with_moved(&self, moved: &MovedExtents) -> Option<InnerNode> {
        let mut changed = None;
        for (i, run) in self.runs.iter().enumerate() {
            for (j, part) in run.parts.iter().enumerate() {
                if let Some(copy) = moved.get(&part.extent.meta.offset) {
                    changed.get_or_insert_with(|| self.clone()).runs[i].parts[j].extent = copy.clone();
                }
            }
        }
        for (i, child) in self.children.iter().enumerate() {
            let (low, high) = self.bounds(i);
            let is_within = |extent: &Arc<Extent>| {
                low.is_none_or(|low| **low <= *extent.meta.last) && high.is_none_or(|high| *extent.meta.first < **high)
            };
            let replaced = match &**child {
                Node::Leaf(extent) => extent
                    .as_ref()
                    .and_then(|extent| moved.get(&extent.meta.offset))
                    .map(|e| Node::Leaf(Some(e.clone()))),
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

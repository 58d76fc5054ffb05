//! Flushes: buffers are written as runs, runs move down, leaves are rebuilt (section 1 of the Bε-tree paper).
//!
//! A run moves down by reference: a child receives the parts of its parent's runs that lie in its key range, and no
//! message is rewritten. Messages are rewritten in two cases: a node with more than `runs_per_node` runs merges some of
//! them, and a leaf that receives messages is replaced by new leaves. If the pending bytes of a node exceed its budget,
//! or if its messages are many but small, the child with the most pending bytes receives its messages. With
//! [`MergePolicy::Leveled`](crate::MergePolicy::Leveled), an inner node merges received messages into its only run. The
//! decisions are those of [`FlushPolicy`].
//!
//! Bulk-loaded extents become leaves without a rewrite if they lie between existing leaves and no run on the path has
//! messages for their keys. Other loaded extents become a run of the root. A small leaf is joined with a neighbour, as
//! are inner nodes with few children.
//!
//! On a full disk, a flush writes the run of a buffer, and moves messages down as far as the space allows. The rest of
//! the work is postponed. Nodes then receive fewer messages before they move them down, so that deletes free space
//! early.
//!
//! *Invariants.* A flush never changes a published node: it copies the nodes on its path. Memory is bounded as for
//! [`Rewrite`], with batches of about two leaves' bytes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::{Error, Key, Options, Result, TreeId};
use crate::buffer::RootBuffer;
use crate::codec::Codecs;
use crate::pages::{Extent, ExtentWriter, Files, Purpose, WriteBehind};
use crate::tree::rewrite::{Output, Rewrite};
use crate::tree::{FlushPolicy, FlushStep, InnerNode, Node, Part, Run, Sketches, TreeSample};

/// Flushes messages within one tree. Works on copies of nodes; the caller publishes the new root.
pub(crate) struct Flusher<'a> {
    pub tree: TreeId,
    pub codecs: &'a Arc<Codecs>,
    pub files: &'a Arc<Files>,
    pub options: &'a Options,
    /// Of extents that are not runs of buffers.
    pub purpose: Purpose,
    /// Extents are at most about this long.
    pub extent_bytes: usize,
    /// Writes that the flusher does not wait for; `None` if it waits for each.
    pub behind: Option<&'a Arc<WriteBehind>>,
}

/// On a full disk, extents for which there is no space are written in so many parts, because the space may be
/// fragmented.
pub(crate) const FULL_DISK_PARTS: usize = 4;

impl<'a> Flusher<'a> {
    /// The same flusher, which does not wait for its writes: the caller calls [`WriteBehind::finish`] before it uses the result.
    pub fn with_behind(self, behind: &'a Arc<WriteBehind>) -> Self {
        Flusher { behind: Some(behind), ..self }
    }

    /// The same flusher for a transaction that has not committed.
    pub fn for_transaction(self) -> Self {
        Flusher { purpose: Purpose::Load, ..self }
    }

    /// The same flusher with short extents.
    pub(super) fn with_short_extents(&self) -> Self {
        Flusher { extent_bytes: self.options.leaf_bytes / FULL_DISK_PARTS, ..*self }
    }

    fn policy(&self) -> FlushPolicy<'_> {
        FlushPolicy { options: self.options, disk_is_full: self.files.space.is_full() }
    }

    pub(super) fn writer(&self, target_bytes: usize) -> ExtentWriter {
        let (page_bytes, target_bytes) = (self.options.page_bytes, target_bytes.min(self.extent_bytes));
        let writer = ExtentWriter::new(self.tree, self.codecs, self.files, page_bytes, target_bytes);
        writer.with_purpose(self.purpose).with_behind(self.behind)
    }

    /// The tree `root` with the messages of `buffer` added, which are newer than all messages of the tree, and its sample.
    /// `sample` is that of the tree before.
    ///
    /// # Errors
    /// Device errors, [`Error::DiskFull`], [`Error::Corrupt`], errors of upsert functions.
    pub fn flush_buffer(
        &self,
        root: &InnerNode,
        sample: Option<&Arc<TreeSample>>,
        buffer: &Arc<RootBuffer>,
    ) -> Result<(InnerNode, Option<Arc<TreeSample>>)> {
        let built = match sample {
            None => self.unless_damaged(self.sample_before(root, buffer))?,
            Some(_) => None,
        };
        let sample = sample.or(built.as_ref());
        let mut sketches = sample.map(|sample| sample.sketches.clone());
        let root = match self.straight_to_leaf(root, buffer, sketches.as_mut()) {
            Ok(Some(root)) => root,
            Ok(None) | Err(Error::DiskFull { .. }) => self.add_messages(root, buffer, sketches.as_mut())?,
            Err(error) => return Err(error),
        };
        if let Some(sketches) = &mut sketches {
            sketches.added = sketches.added.saturating_add(buffer.len() as u64);
        }
        let sample = self.unless_damaged(self.sample_flushed(&root, sample, sketches, buffer))?;
        Ok((root, sample))
    }

    /// The tree with the messages of the buffer as a run of the root.
    fn add_messages(
        &self,
        root: &InnerNode,
        buffer: &Arc<RootBuffer>,
        sketches: Option<&mut Sketches>,
    ) -> Result<InnerNode> {
        self.settle_root(self.add_run(root, buffer, sketches)?)
    }

    /// As [`flush_buffer`](Self::flush_buffer), without reading anything of the tree, which may be damaged.
    ///
    /// # Errors
    /// Device errors, [`Error::DiskFull`], errors of upsert functions.
    pub fn keep_as_run(&self, root: &InnerNode, buffer: &Arc<RootBuffer>) -> Result<InnerNode> {
        self.add_run(root, buffer, None)
    }

    fn add_run(
        &self,
        root: &InnerNode,
        buffer: &Arc<RootBuffer>,
        sketches: Option<&mut Sketches>,
    ) -> Result<InnerNode> {
        let mut messages = self.rewrite(Output::Messages).observed(sketches);
        messages.add_buffer(buffer);
        let run = match self.write_run(messages, Purpose::Checkpoint) {
            Err(Error::DiskFull { .. }) => {
                let mut messages = self.rewrite(Output::Messages);
                messages.add_buffer(buffer);
                self.with_short_extents().write_run(messages, Purpose::Checkpoint)?
            }
            run => run?,
        };
        let mut root = root.clone();
        if !run.is_empty() {
            root.runs.insert(0, run);
        }
        Ok(root)
    }

    pub(super) fn rewrite(&self, output: Output) -> Rewrite<'_> {
        let batch_bytes = 2 * self.options.leaf_bytes + 16 * self.options.page_bytes;
        Rewrite::new(self.codecs, self.files, output, batch_bytes)
    }

    /// Applies the messages of the buffer to a leaf directly if all of them belong to one leaf and no run on the path
    /// has messages for their key range. `None` if that is not the case, or if the messages are few for the leaf.
    fn straight_to_leaf(
        &self,
        root: &InnerNode,
        buffer: &Arc<RootBuffer>,
        sketches: Option<&mut Sketches>,
    ) -> Result<Option<InnerNode>> {
        let Some((first, last)) = buffer.ends() else { return Ok(Some(root.clone())) };
        let (first, last, bytes) = (&first, &last, buffer.message_bytes());
        let mut node = root;
        let mut slots = Vec::new();
        loop {
            let child = node.child_of(first);
            let parts = node.runs.iter().flat_map(Run::parts);
            let pending = parts.into_iter().any(|part| part.overlaps(Some(first), None) && *part.first() <= **last);
            if child != node.child_of(last) || pending {
                return Ok(None);
            }
            slots.push(child);
            match &*node.children[child] {
                Node::Inner(inner) => node = inner,
                Node::Leaf(extent) => {
                    let leaf_bytes = extent.as_ref().map_or(0, |extent| extent.meta.len as usize);
                    if !self.policy().rebuilds_directly(leaf_bytes, bytes) {
                        return Ok(None);
                    }
                    break;
                }
            }
        }
        let root = self.rebuild_path(root, &slots, buffer, sketches)?;
        Ok(Some(self.grow(root)?))
    }

    fn rebuild_path(
        &self,
        inner: &InnerNode,
        slots: &[usize],
        buffer: &Arc<RootBuffer>,
        sketches: Option<&mut Sketches>,
    ) -> Result<InnerNode> {
        let mut inner = inner.clone();
        let slot = slots[0];
        let replacement = match &*inner.children[slot] {
            Node::Leaf(extent) => {
                let mut rows = self.rewrite(Output::Rows).observed(sketches);
                rows.add_buffer(buffer);
                self.rebuild_leaf(extent.as_ref(), rows, buffer.message_bytes())?
            }
            Node::Inner(child) => self.divide(self.rebuild_path(child, &slots[1..], buffer, sketches)?)?,
        };
        self.replace(&mut inner, slot, replacement)?;
        Ok(inner)
    }

    /// The tree with bulk-loaded extents added, which are newer than all messages of the tree. Also returns true if no key
    /// of the extents had a row or a message: all of them became leaves between others.
    ///
    /// # Errors
    /// Those of [`Flusher::flush_buffer`].
    pub fn add_loaded(&self, root: &InnerNode, extents: Vec<Arc<Extent>>) -> Result<(InnerNode, bool)> {
        let mut rest = Vec::new();
        let mut root = self.grow(self.fill_gaps(root, extents, &mut rest)?)?;
        if rest.is_empty() {
            return Ok((root, true));
        }
        rest.sort_unstable_by(|a, b| a.meta.first.cmp(&b.meta.first));
        root.runs.insert(0, Run::of_extents(rest));
        Ok((self.settle_root(root)?, false))
    }

    /// Adds extents (ascending) as leaves if they lie between the node's leaves and no run on the path has messages for
    /// their keys; such messages are older than the extents but would be applied on top of them. The other extents go
    /// to `rest`.
    fn fill_gaps(&self, node: &InnerNode, extents: Vec<Arc<Extent>>, rest: &mut Vec<Arc<Extent>>) -> Result<InnerNode> {
        let mut fitting: Vec<(usize, Vec<Arc<Extent>>)> = Vec::new();
        for extent in extents {
            let (first, last) = (&extent.meta.first, &extent.meta.last);
            let slot = node.child_of(first);
            let pending =
                |run: &Run| run.overlapping(Some(first), None).next().is_some_and(|part| *part.first() <= **last);
            if slot != node.child_of(last) || node.runs.iter().any(pending) {
                rest.push(extent);
            } else if let Some((_, same)) = fitting.last_mut().filter(|(other, _)| *other == slot) {
                same.push(extent);
            } else {
                fitting.push((slot, vec![extent]));
            }
        }
        let mut node = node.clone();
        // From the last slot to the first, so that the numbers of the remaining slots stay valid.
        for (slot, extents) in fitting.into_iter().rev() {
            let replacement = match &*node.children[slot] {
                Node::Leaf(leaf) => between(leaf.as_ref(), extents, rest),
                Node::Inner(child) => self.divide(self.fill_gaps(child, extents, rest)?)?,
            };
            replace_child(&mut node, slot, replacement);
        }
        Ok(node)
    }

    /// Moves messages down until every changed node is within its budget, on a full disk as far as the space allows.
    ///
    /// # Errors
    /// Those of [`Flusher::flush_buffer`].
    pub fn settle_root(&self, root: InnerNode) -> Result<InnerNode> {
        let root = self.settle(root)?;
        self.grow(root)
    }

    /// As [`settle_root`](Self::settle_root), for all nodes of the tree.
    ///
    /// # Errors
    /// Those of [`Flusher::flush_buffer`].
    pub fn settle_all(&self, root: &InnerNode) -> Result<InnerNode> {
        let root = self.settle_below(root)?;
        self.grow(root)
    }

    fn settle_below(&self, node: &InnerNode) -> Result<InnerNode> {
        let mut node = node.clone();
        // From the last slot to the first, so that the numbers of the remaining slots stay valid.
        for slot in (0..node.children.len()).rev() {
            if let Node::Inner(child) = &*node.children[slot].clone()
                && self.has_excess(child)
            {
                let replacement = self.divide(self.settle_below(child)?)?;
                replace_child(&mut node, slot, replacement);
            }
        }
        self.settle(node)
    }

    /// True if this node or one below exceeds its limits.
    pub fn has_excess(&self, node: &InnerNode) -> bool {
        self.policy().next_step(&node.sizes()).is_some() || node.inner_children().any(|child| self.has_excess(child))
    }

    pub(super) fn settle(&self, mut node: InnerNode) -> Result<InnerNode> {
        loop {
            node = match self.settle_step(&node) {
                Ok(Some(next)) => next,
                Ok(None) => return Ok(node),
                Err(Error::DiskFull { .. }) => {
                    self.files.postponed.store(true, Ordering::Relaxed);
                    return Ok(node);
                }
                Err(error) => return Err(error),
            };
            self.files.moves.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The node after a child has received its messages, or after its runs were merged; `None` if it is within its
    /// budget.
    fn settle_step(&self, node: &InnerNode) -> Result<Option<InnerNode>> {
        match self.policy().next_step(&node.sizes()) {
            None => return Ok(None),
            Some(FlushStep::Merge(runs)) => {
                let mut node = node.clone();
                self.merge_runs(&mut node, runs)?;
                return Ok(Some(node));
            }
            Some(FlushStep::MoveDown) => {}
        }
        let children = self.heaviest_children(node)?;
        let mut full = None;
        for flusher in [Flusher { ..*self }, self.with_short_extents()] {
            for (slot, share) in &children {
                match flusher.move_down(node, *slot, share) {
                    // The space may be enough for another child, or for shorter extents.
                    Err(error @ Error::DiskFull { .. }) => full = Some(error),
                    moved => return moved.map(Some),
                }
            }
        }
        full.map_or(Ok(None), Err)
    }

    /// The node after child `slot` has received its `share` of the messages.
    pub(super) fn move_down(&self, node: &InnerNode, slot: usize, share: &[Run]) -> Result<InnerNode> {
        let rest = self.remainder(node, slot)?;
        let replacement = match &*node.children[slot] {
            Node::Leaf(extent) => {
                let bytes: u64 = share.iter().map(Run::bytes).sum();
                let mut rows = self.rewrite(Output::Rows);
                share.iter().for_each(|run| rows.add_run(run));
                self.rebuild_leaf(extent.as_ref(), rows, bytes as usize)?
            }
            Node::Inner(child) => {
                let mut child = child.clone();
                child.runs.splice(0..0, share.iter().cloned());
                if self.policy().merges_received() && child.runs.len() > 1 {
                    let runs = 0..child.runs.len();
                    self.merge_runs(&mut child, runs)?;
                }
                self.divide(self.settle(child)?)?
            }
        };
        let mut node = node.clone();
        node.runs = rest;
        self.replace(&mut node, slot, replacement)?;
        Ok(node)
    }

    /// Replaces child `slot` by `replacement`; a single small replacement is joined with a neighbour.
    pub(super) fn replace(&self, node: &mut InnerNode, slot: usize, replacement: Vec<(Key, Arc<Node>)>) -> Result<()> {
        let single = replacement.len() == 1;
        replace_child(node, slot, replacement);
        if !single {
            return Ok(());
        }
        for left in [Some(slot), slot.checked_sub(1)].into_iter().flatten() {
            if left + 1 == node.children.len() {
                continue;
            }
            let joined = match (&*node.children[left], &*node.children[left + 1]) {
                (Node::Leaf(Some(a)), Node::Leaf(Some(b)))
                    if self.policy().joins_leaves(a.meta.data_bytes(), b.meta.data_bytes()) =>
                {
                    match self.join_leaves(&[a, b]) {
                        Err(Error::DiskFull { .. }) => break,
                        joined => joined?,
                    }
                }
                (Node::Inner(a), Node::Inner(b)) if self.policy().joins_nodes(a.children.len(), b.children.len()) => {
                    vec![(Key::default(), Arc::new(Node::Inner(join_inner(a, &node.pivots[left], b))))]
                }
                _ => continue,
            };
            node.children.remove(left + 1);
            node.pivots.remove(left);
            replace_child(node, left, joined);
            break;
        }
        Ok(())
    }

    /// Leaves, with their first keys, that replace neighbours (in key order).
    pub(super) fn join_leaves(&self, leaves: &[&Arc<Extent>]) -> Result<Vec<(Key, Arc<Node>)>> {
        let mut writer = self.writer(self.options.leaf_bytes);
        let mut rows = self.rewrite(Output::Rows);
        rows.add_leaves(leaves.iter().copied());
        rows.write(&mut writer)?;
        Ok(leaves_of(writer.finish()?))
    }

    /// The children that have pending messages, those with the most bytes first, and the parts of each run in their key
    /// ranges. Only the first one unless the disk is full.
    fn heaviest_children(&self, node: &InnerNode) -> Result<Vec<(usize, Vec<Run>)>> {
        let share = |slot| {
            let (low, high) = node.bounds(slot);
            self.clip_runs(&node.runs, low, high)
        };
        let mut shares = (0..node.children.len()).map(share).collect::<Result<Vec<Vec<Run>>>>()?;
        // A part may have an estimate of 0 bytes.
        let bytes = |runs: &Vec<Run>| runs.iter().flat_map(Run::parts).map(|part| part.bytes.max(1)).sum();
        let mut slots = self.policy().heaviest_children(&shares.iter().map(bytes).collect::<Vec<u64>>());
        if !self.files.space.is_full() {
            slots.truncate(1);
        }
        Ok(slots.into_iter().map(|slot| (slot, std::mem::take(&mut shares[slot]))).collect())
    }

    /// The runs of a node without the key range of child `slot`.
    pub(super) fn remainder(&self, node: &InnerNode, slot: usize) -> Result<Vec<Run>> {
        let (low, high) = node.bounds(slot);
        let rest = |run: &Run| {
            let mut parts = Vec::new();
            if let Some(low) = low {
                parts.append(&mut self.clip_parts(run, None, Some(low))?);
            }
            if let Some(high) = high {
                parts.append(&mut self.clip_parts(run, Some(high), None)?);
            }
            Ok(Run::new(parts))
        };
        without_empty(node.runs.iter().map(rest))
    }

    /// The runs cut to `[low, high)`, without the runs that become empty.
    pub(super) fn clip_runs(&self, runs: &[Run], low: Option<&Key>, high: Option<&Key>) -> Result<Vec<Run>> {
        without_empty(runs.iter().map(|run| Ok(Run::new(self.clip_parts(run, low, high)?))))
    }

    fn clip_parts(&self, run: &Run, low: Option<&Key>, high: Option<&Key>) -> Result<Vec<Part>> {
        let parts = run.overlapping(low.map(|low| &**low), high.map(|high| &**high));
        parts.map(|part| self.clip(part, low, high)).collect()
    }

    fn clip(&self, part: &Part, low: Option<&Key>, high: Option<&Key>) -> Result<Part> {
        let meta = &part.extent.meta;
        let new_low = low.filter(|low| **low > meta.first && part.low.as_ref().is_none_or(|own| own < *low));
        let new_high = high.filter(|high| **high <= meta.last && part.high.as_ref().is_none_or(|own| own > *high));
        if new_low.is_none() && new_high.is_none() {
            return Ok(part.clone());
        }
        let low = new_low.or(part.low.as_ref()).cloned();
        let high = new_high.or(part.high.as_ref()).cloned();
        let index = self.files.read_index(&part.extent, &self.codecs.schema)?;
        let from = low.as_ref().map_or(0, |low| index.find(low));
        let to = high.as_ref().map_or(index.rows() - 1, |high| index.find(high));
        let (mut bytes, mut rows) = (0, 0);
        for page in from..=to {
            let (reference, page_rows) = index.entry(page);
            let share = if (page == from && low.is_some()) || (page == to && high.is_some()) { 2 } else { 1 };
            bytes += u64::from(reference.len) / share;
            rows += u64::from(page_rows) / share;
        }
        Ok(Part { extent: part.extent.clone(), low, high, bytes, rows: rows.max(1) })
    }

    /// Merges neighbouring runs of a node into one.
    fn merge_runs(&self, node: &mut InnerNode, merged: Range<usize>) -> Result<()> {
        let mut messages = self.rewrite(Output::Messages);
        node.runs[merged.clone()].iter().for_each(|run| messages.add_run(run));
        let run = self.write_run(messages, self.purpose)?;
        // Clipped parts may have no messages.
        node.runs.splice(merged, Some(run).filter(|run| !run.is_empty()));
        Ok(())
    }

    /// Writes messages as a run.
    pub(super) fn write_run(&self, messages: Rewrite<'_>, purpose: Purpose) -> Result<Run> {
        let mut writer = self.writer(self.options.leaf_bytes).with_purpose(purpose);
        messages.write(&mut writer)?;
        Ok(Run::of_extents(writer.finish()?))
    }

    /// Applies about `message_bytes` bytes of messages, the inputs of `rows`, to a leaf. Returns the leaves that replace
    /// it, with their first keys.
    fn rebuild_leaf(
        &self,
        extent: Option<&Arc<Extent>>,
        mut rows: Rewrite<'_>,
        message_bytes: usize,
    ) -> Result<Vec<(Key, Arc<Node>)>> {
        let old_bytes = extent.map_or(0, |extent| extent.meta.len as usize);
        let mut writer = self.writer(self.policy().leaf_target_bytes(old_bytes, message_bytes));
        rows.add_leaves(extent);
        rows.write(&mut writer)?;
        Ok(leaves_of(writer.finish()?))
    }

    /// Splits a node with too many children; each part has its lower bound. An empty node gives no parts.
    pub(super) fn divide(&self, node: InnerNode) -> Result<Vec<(Key, Arc<Node>)>> {
        let low = Key::default();
        if node.is_empty() {
            return Ok(Vec::new());
        }
        let slots = self.policy().divide(node.children.len());
        if slots.len() == 1 {
            return Ok(vec![(low, Arc::new(Node::Inner(node)))]);
        }
        let mut divided = Vec::with_capacity(slots.len());
        for Range { start: from, end: to } in slots {
            let first = from.checked_sub(1).map(|pivot| &node.pivots[pivot]);
            let runs = self.clip_runs(&node.runs, first, node.pivots.get(to - 1))?;
            let inner = InnerNode::new(node.pivots[from..to - 1].to_vec(), node.children[from..to].to_vec(), runs);
            divided.push((first.cloned().unwrap_or_else(|| low.clone()), Arc::new(Node::Inner(inner))));
        }
        Ok(divided)
    }

    /// Adds levels above a root with too many children, and removes levels with a single child.
    pub(super) fn grow(&self, mut root: InnerNode) -> Result<InnerNode> {
        if root.is_empty() {
            return Ok(InnerNode::empty());
        }
        while let [only] = root.children.as_slice()
            && let Node::Inner(child) = &**only
        {
            let runs = root.runs.iter().chain(&child.runs).cloned().collect();
            root = InnerNode::new(child.pivots.clone(), child.children.clone(), runs);
        }
        loop {
            let divided = self.divide(root)?;
            if let [(_, only)] = divided.as_slice()
                && let Node::Inner(inner) = &**only
            {
                return Ok(inner.clone());
            }
            root = inner_of(divided, Vec::new());
        }
    }
}

/// An inner node over children with their lower bounds; the bound of the first child is not used.
fn inner_of(children: Vec<(Key, Arc<Node>)>, runs: Vec<Run>) -> InnerNode {
    let pivots = children.iter().skip(1).map(|(low, _)| low.clone()).collect();
    InnerNode::new(pivots, children.into_iter().map(|(_, child)| child).collect(), runs)
}

fn leaves_of(extents: Vec<Arc<Extent>>) -> Vec<(Key, Arc<Node>)> {
    extents.into_iter().map(|extent| (extent.meta.first.clone(), Arc::new(Node::Leaf(Some(extent))))).collect()
}

/// The leaf and the extents (ascending) that lie completely before or after it; the other extents go to `rest`.
fn between(
    leaf: Option<&Arc<Extent>>,
    mut extents: Vec<Arc<Extent>>,
    rest: &mut Vec<Arc<Extent>>,
) -> Vec<(Key, Arc<Node>)> {
    if let Some(leaf) = leaf {
        let outside =
            |extent: &mut Arc<Extent>| extent.meta.last < leaf.meta.first || extent.meta.first > leaf.meta.last;
        rest.extend(extents.extract_if(.., |extent| !outside(extent)));
        let at = extents.partition_point(|extent| extent.meta.first < leaf.meta.first);
        extents.insert(at, leaf.clone());
    }
    leaves_of(extents)
}

fn without_empty(runs: impl Iterator<Item = Result<Run>>) -> Result<Vec<Run>> {
    runs.filter(|run| !run.as_ref().is_ok_and(Run::is_empty)).collect()
}

/// Joins two neighbours into one node; `pivot` lies between them. Their runs share no keys, so that a run of each
/// becomes one.
fn join_inner(left: &InnerNode, pivot: &Key, right: &InnerNode) -> InnerNode {
    let pivots = left.pivots.iter().chain([pivot]).chain(&right.pivots).cloned().collect();
    let children = left.children.iter().chain(&right.children).cloned().collect();
    let parts = |node: &InnerNode, at: usize| node.runs.get(at).map_or(Vec::new(), |run| run.parts().to_vec());
    let joined = |at| Run::new([parts(left, at), parts(right, at)].concat());
    InnerNode::new(pivots, children, (0..left.runs.len().max(right.runs.len())).map(joined).collect())
}

/// Replaces child `slot` by `replacement`, nodes with their lower bounds; the first node keeps the lower bound of the
/// slot.
pub(super) fn replace_child(node: &mut InnerNode, slot: usize, replacement: Vec<(Key, Arc<Node>)>) {
    if replacement.is_empty() {
        if node.children.len() == 1 {
            node.children[0] = Arc::new(Node::Leaf(None));
        } else {
            // The range of a neighbour is extended over the range of the empty child.
            node.children.remove(slot);
            node.pivots.remove(slot.saturating_sub(1));
        }
    } else {
        let pivots: Vec<Key> = replacement.iter().skip(1).map(|(low, _)| low.clone()).collect();
        node.pivots.splice(slot..slot, pivots);
        node.children.splice(slot..=slot, replacement.into_iter().map(|(_, child)| child));
    }
    node.recount();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_replaced_in_place() {
        let key = |text: &str| Key::from(text.as_bytes());
        let leaf = || Arc::new(Node::Leaf(None));
        let mut node = InnerNode::new(vec![key("b"), key("c")], vec![leaf(), leaf(), leaf()], Vec::new());
        replace_child(&mut node, 1, vec![(key("b"), leaf()), (key("bm"), leaf())]);
        assert_eq!(node.pivots, [key("b"), key("bm"), key("c")]);
        replace_child(&mut node, 0, Vec::new());
        assert_eq!(node.pivots, [key("bm"), key("c")]);
        replace_child(&mut node, 2, Vec::new());
        assert_eq!(node.pivots, [key("bm")]);
        assert_eq!(node.children.len(), 2);
    }
}

//! A tree's structure in memory: inner nodes, leaves and runs, immutable and shared between versions.
//!
//! ```text
//!            root ── runs: newest messages first, each a sorted list of extent parts
//!           / | \        pivots: child i holds keys in [pivot i-1, pivot i)
//!      inner inner …
//!      / | \
//!   leaf leaf …          a leaf is one extent of rows, or empty
//! ```
//!
//! *Invariants.* Messages in a node are newer than the messages in the nodes below it. Runs of a node that share keys
//! are listed newest first. The parts of a run are disjoint and ascending. The keys of a run are unique. A change
//! copies the nodes on its path.

use std::sync::Arc;

use crate::base::Key;
use crate::pages::Extent;
use crate::tree::{KeyHeads, NodeSizes};

#[derive(Debug, Clone)]
pub(crate) enum Node {
    /// An extent of rows; `None`: no rows.
    Leaf(Option<Arc<Extent>>),
    Inner(InnerNode),
}

impl Node {
    /// Rows in the leaves below.
    pub fn rows(&self) -> u64 {
        match self {
            Node::Leaf(extent) => extent.as_ref().map_or(0, |extent| extent.meta.rows),
            Node::Inner(inner) => inner.rows,
        }
    }
    /// Estimated change of the number of rows by the messages in runs of this node and below.
    pub fn net_rows(&self) -> i64 {
        match self {
            Node::Leaf(_) => 0,
            Node::Inner(inner) => inner.net_rows(),
        }
    }
    /// Data pages in the leaves below.
    pub fn pages(&self) -> u64 {
        match self {
            Node::Leaf(extent) => extent.as_ref().map_or(0, |extent| u64::from(extent.meta.pages)),
            Node::Inner(inner) => inner.pages,
        }
    }
    /// Levels of nodes, including this one.
    pub fn depth(&self) -> u64 {
        match self {
            Node::Leaf(_) => 1,
            Node::Inner(inner) => inner.depth(),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct InnerNode {
    /// One fewer than `children`; child i holds the keys in `[pivots[i - 1], pivots[i])`.
    pub pivots: Vec<Key>,
    pub children: Vec<Arc<Node>>,
    /// Newest first.
    pub runs: Vec<Run>,
    rows: u64,
    pages: u64,
    /// Estimated change of the number of rows by the messages in runs of the nodes below.
    net_rows: i64,
    /// Of the pivots.
    heads: KeyHeads,
}

/// Messages written together: a sorted list of disjoint parts.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    parts: Vec<Part>,
    /// Of the first keys of the parts.
    heads: KeyHeads,
}

/// The keys in `[low, high)` of an extent.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub extent: Arc<Extent>,
    /// Inclusive lower bound; `None`: the extent's first key.
    pub low: Option<Key>,
    /// Exclusive upper bound; `None`: the extent ends after its last key.
    pub high: Option<Key>,
    /// Estimated bytes of the messages within the bounds.
    pub bytes: u64,
    /// Estimated number of messages within the bounds.
    pub rows: u64,
}

impl Part {
    pub fn whole(extent: Arc<Extent>) -> Self {
        let (bytes, rows) = (extent.meta.len, extent.meta.rows);
        Part { extent, low: None, high: None, bytes, rows }
    }

    /// Estimated change of the number of rows by the messages within the bounds.
    pub fn net_rows(&self) -> i64 {
        let meta = &self.extent.meta;
        if self.low.is_none() && self.high.is_none() {
            return meta.net_rows;
        }
        (meta.net_rows as f64 * self.rows as f64 / meta.rows as f64) as i64
    }

    /// Lower bound on the keys of the part.
    pub fn first(&self) -> &[u8] {
        match &self.low {
            Some(low) if **low > *self.extent.meta.first => low,
            _ => &self.extent.meta.first,
        }
    }

    /// True if the part may have a message of this key.
    pub fn may_contain(&self, key: &[u8]) -> bool {
        *key >= *self.extent.meta.first
            && *key <= *self.extent.meta.last
            && self.low.as_ref().is_none_or(|low| *key >= **low)
            && self.high.as_ref().is_none_or(|high| *key < **high)
    }

    /// True if the part may have keys in `[low, high)`; `None` stands for no bound.
    pub fn overlaps(&self, low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        let starts_before_high = high.is_none_or(|high| self.first() < high);
        let ends_after_low = low.is_none_or(|low| {
            *self.extent.meta.last >= *low && self.high.as_ref().is_none_or(|own_high| **own_high > *low)
        });
        starts_before_high && ends_after_low
    }
}

impl InnerNode {
    pub fn new(pivots: Vec<Key>, children: Vec<Arc<Node>>, runs: Vec<Run>) -> Self {
        let heads = KeyHeads::default();
        let mut inner = InnerNode { pivots, children, runs, rows: 0, pages: 0, net_rows: 0, heads };
        inner.recount();
        inner
    }

    /// A tree without rows: one empty leaf.
    pub fn empty() -> Self {
        InnerNode::new(Vec::new(), vec![Arc::new(Node::Leaf(None))], Vec::new())
    }

    /// Recomputes the sums over the children, and the heads of the pivots, after a change.
    pub fn recount(&mut self) {
        assert_eq!(self.pivots.len() + 1, self.children.len(), "an inner node has one pivot fewer than children");
        self.heads = KeyHeads::new(self.pivots.iter().map(|pivot| &**pivot));
        self.rows = self.children.iter().map(|child| child.rows()).sum();
        self.pages = self.children.iter().map(|child| child.pages()).sum();
        self.net_rows = self.children.iter().map(|child| child.net_rows()).sum();
    }

    /// True if the subtree has neither rows nor messages.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
            && self.children.iter().all(|child| match &**child {
                Node::Leaf(extent) => extent.is_none(),
                Node::Inner(inner) => inner.is_empty(),
            })
    }

    /// True if no node of the subtree has runs: the leaves have all rows.
    pub fn is_settled(&self) -> bool {
        self.runs.is_empty()
            && self.children.iter().all(|child| match &**child {
                Node::Leaf(_) => true,
                Node::Inner(inner) => inner.is_settled(),
            })
    }

    /// Number of the child whose range holds `key`.
    pub fn child_of(&self, key: &[u8]) -> usize {
        assert_eq!(self.heads.len(), self.pivots.len(), "the pivots have changed since the last count");
        self.heads.count_to(key, |at| &self.pivots[at])
    }

    /// The bounds of child `i`; `None` at the ends, where the bound is that of this node.
    pub fn bounds(&self, i: usize) -> (Option<&Key>, Option<&Key>) {
        (i.checked_sub(1).map(|before| &self.pivots[before]), self.pivots.get(i))
    }

    /// Estimated bytes of messages in this node.
    pub fn pending_bytes(&self) -> u64 {
        self.runs.iter().map(Run::bytes).sum()
    }

    /// Estimated number of messages in this node.
    pub fn pending_rows(&self) -> u64 {
        self.runs.iter().flat_map(Run::parts).map(|part| part.rows).sum()
    }

    /// The sizes that decide about flushes.
    pub fn sizes(&self) -> NodeSizes {
        let runs = self.runs.iter().map(Run::bytes).collect();
        NodeSizes { runs, messages: self.pending_rows(), rows: self.rows, pages: self.pages }
    }

    /// Rows in the leaves below.
    pub fn rows(&self) -> u64 {
        self.rows
    }
    /// Estimated change of the number of rows by the messages in runs of this node and below.
    pub fn net_rows(&self) -> i64 {
        self.net_rows + self.runs.iter().map(Run::net_rows).sum::<i64>()
    }
    pub fn pages(&self) -> u64 {
        self.pages
    }
    /// Estimated bytes of messages in runs of this node and below.
    pub fn run_bytes(&self) -> u64 {
        self.pending_bytes() + self.inner_children().map(InnerNode::run_bytes).sum::<u64>()
    }
    /// The children that are inner nodes.
    pub fn inner_children(&self) -> impl Iterator<Item = &InnerNode> {
        self.children.iter().filter_map(|child| match &**child {
            Node::Inner(inner) => Some(inner),
            Node::Leaf(_) => None,
        })
    }
    /// Levels of nodes, including this one.
    pub fn depth(&self) -> u64 {
        1 + self.children.iter().map(|child| child.depth()).max().unwrap_or(0)
    }

    /// The extents of the leaves below, in key order.
    pub fn leaves(&self) -> Vec<Arc<Extent>> {
        fn add(inner: &InnerNode, leaves: &mut Vec<Arc<Extent>>) {
            for child in &inner.children {
                match &**child {
                    Node::Leaf(extent) => leaves.extend(extent.clone()),
                    Node::Inner(inner) => add(inner, leaves),
                }
            }
        }
        let mut leaves = Vec::new();
        add(self, &mut leaves);
        leaves
    }

    /// Calls `visit` for every reference to an extent in this subtree, including those of this node's runs.
    pub fn visit_extents(&self, visit: &mut impl FnMut(&Arc<Extent>)) {
        for part in self.runs.iter().flat_map(Run::parts) {
            visit(&part.extent);
        }
        for child in &self.children {
            match &**child {
                Node::Leaf(Some(extent)) => visit(extent),
                Node::Leaf(None) => {}
                Node::Inner(inner) => inner.visit_extents(visit),
            }
        }
    }
}

impl Run {
    /// A run of disjoint parts in ascending order.
    pub fn new(parts: Vec<Part>) -> Run {
        let heads = KeyHeads::new(parts.iter().map(Part::first));
        Run { parts, heads }
    }

    /// A run of whole extents.
    pub fn of_extents(extents: Vec<Arc<Extent>>) -> Run {
        Run::new(extents.into_iter().map(Part::whole).collect())
    }

    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Replaces extents by copies with the same keys.
    pub fn replace_extents(&mut self, copy_of: impl Fn(&Extent) -> Option<Arc<Extent>>) {
        for part in &mut self.parts {
            if let Some(copy) = copy_of(&part.extent) {
                part.extent = copy;
            }
        }
    }

    /// The part that may have a message of this key.
    pub fn part_of(&self, key: &[u8]) -> Option<&Part> {
        self.candidate(key).filter(|part| part.may_contain(key))
    }

    /// The only part that may have a message of this key, unless it ends before the key.
    pub fn candidate(&self, key: &[u8]) -> Option<&Part> {
        let begun = self.heads.count_to(key, |at| self.parts[at].first());
        self.parts.get(begun.checked_sub(1)?)
    }

    /// Estimated change of the number of rows by the messages of the run.
    pub fn net_rows(&self) -> i64 {
        self.parts.iter().map(Part::net_rows).sum()
    }

    /// Estimated bytes of messages.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).sum()
    }

    /// Estimated number of messages.
    pub fn rows(&self) -> u64 {
        self.parts.iter().map(|part| part.rows).sum()
    }

    /// The parts that may have keys in `[low, high)`.
    pub fn overlapping<'a, 'k>(
        &'a self,
        low: Option<&'k [u8]>,
        high: Option<&'k [u8]>,
    ) -> impl Iterator<Item = &'a Part> + use<'a, 'k> {
        // Parts are disjoint and ascending. Of the parts that begin at or before `low`, only the last one can reach it.
        let from = low.map_or(0, |low| {
            let begun = self.heads.count_to(low, |at| self.parts[at].first());
            match begun.checked_sub(1) {
                Some(last) if self.parts[last].overlaps(Some(low), None) => last,
                _ => begun,
            }
        });
        self.parts[from..].iter().take_while(move |part| part.overlaps(None, high))
    }
}

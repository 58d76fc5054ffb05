//! Versions, snapshots and views of trees.
//!
//! A version of the store maps tree ids to tree versions. A commit or flush publishes a new version; a snapshot keeps
//! the version it was taken from, and a view is one tree of a snapshot. Estimates use row and page counts in the nodes,
//! and read at most two index pages.
//!
//! *Invariants.* A published version never changes, except that commits add messages to the active buffer, which
//! snapshots skip by their sequence number. The version holds references to its extents, so that their space is not
//! reused.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::base::{Direction, Error, Key, KeyRange, RangeEstimate, Registration, Result, Schema, TreeId};
use crate::buffer::RootBuffer;
use crate::codec::Codecs;
use crate::locator::{Located, Locator, Locators};
use crate::pages::{Extent, Files, PageSource};
use crate::tree::{Counter, Cursor, InnerNode, LeafIndex, Node};

/// A version of one tree: its nodes, and the root buffers above them.
#[derive(Debug, Clone)]
pub(crate) struct TreeVersion {
    pub codecs: Arc<Codecs>,
    pub root: Arc<InnerNode>,
    /// Buffers being flushed, newest first.
    pub frozen: Vec<Arc<RootBuffer>>,
    pub active: Arc<RootBuffer>,
}

impl TreeVersion {
    /// A version without buffered messages.
    pub fn new(codecs: Arc<Codecs>, root: Arc<InnerNode>) -> Self {
        TreeVersion { codecs, root, frozen: Vec::new(), active: Arc::default() }
    }

    /// The version of a memory tree: one buffer and an empty root.
    pub fn in_memory(codecs: Arc<Codecs>, active: Arc<RootBuffer>) -> Self {
        TreeVersion { codecs, root: Arc::new(InnerNode::empty()), frozen: Vec::new(), active }
    }

    /// The only buffer with messages; `None` if no buffer or several have messages.
    pub fn only_buffer(&self) -> Option<&Arc<RootBuffer>> {
        let mut filled = std::iter::once(&self.active).chain(&self.frozen).filter(|buffer| !buffer.is_empty());
        filled.next().filter(|_| filled.next().is_none())
    }

    /// Bytes of the buffers in memory.
    pub fn buffer_bytes(&self) -> usize {
        std::iter::once(&self.active).chain(&self.frozen).map(|buffer| buffer.bytes()).sum()
    }
}

/// The versions of all trees at one moment. Replaced as a whole; a reader keeps the one that it started with.
#[derive(Debug, Default, Clone)]
pub(crate) struct StoreVersion {
    pub trees: BTreeMap<TreeId, Arc<TreeVersion>>,
}

impl StoreVersion {
    /// The same trees without buffered messages.
    pub fn without_buffers(&self) -> StoreVersion {
        let bare = |version: &TreeVersion| Arc::new(TreeVersion::new(version.codecs.clone(), version.root.clone()));
        StoreVersion { trees: self.trees.iter().map(|(&tree, version)| (tree, bare(version))).collect() }
    }
}

/// Number of pages sampled to estimate the cached share of a tree.
const CACHED_SAMPLE: u64 = 64;

/// The whole store as of one sequence number. Taking a snapshot copies pointers under short locks; cloning it is cheap.
/// The extents and messages that a snapshot sees are not freed while it exists.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub(crate) sequence: u64,
    pub(crate) state: Arc<StoreVersion>,
    pub(crate) locators: Arc<Locators>,
    /// Present if the store has memory trees.
    pub(crate) registration: Option<Arc<Registration>>,
}

impl Snapshot {
    /// The newest commit that the snapshot sees.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// A view of a tree.
    ///
    /// # Errors
    /// [`Error::TreeNotFound`] if the tree does not exist in this snapshot.
    pub fn tree(&self, tree: TreeId) -> Result<TreeView> {
        let version = self.state.trees.get(&tree).ok_or(Error::TreeNotFound(tree))?.clone();
        let registration = self.registration.clone().filter(|_| tree.is_memory());
        let (files, locator) = (self.locators.files.clone(), self.locators.get(tree));
        Ok(TreeView { tree, sequence: self.sequence, version, files, locator, registration })
    }
}

/// One tree as of a snapshot. `Clone` is cheap.
#[derive(Debug, Clone)]
pub struct TreeView {
    pub(crate) tree: TreeId,
    pub(crate) sequence: u64,
    pub(crate) version: Arc<TreeVersion>,
    pub(crate) files: Arc<Files>,
    /// May lack the leaves written after it.
    pub(crate) locator: Option<Arc<Locator>>,
    #[expect(dead_code, reason = "keeps messages visible to this view from being garbage-collected")]
    pub(crate) registration: Option<Arc<Registration>>,
}

impl TreeView {
    /// Columns and key of the tree.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.version.codecs.schema
    }

    /// The id of the tree.
    pub fn tree(&self) -> TreeId {
        self.tree
    }

    /// The codec for keys of this tree.
    pub fn key_codec(&self) -> &crate::KeyCodec {
        &self.version.codecs.key
    }

    /// A cursor over the rows of a range, in key order.
    pub fn cursor<'s, P: PageSource>(&self, source: &'s P, range: KeyRange, direction: Direction) -> Cursor<'s, P> {
        Cursor::new(self.clone(), source, range, direction)
    }

    /// A counter of the rows of a range.
    pub fn counter<'s, P: PageSource>(&self, source: &'s P, range: KeyRange) -> Counter<'s, P> {
        Counter { cursor: self.cursor(source, range, Direction::Ascending).counting() }
    }

    /// Estimated rows, data pages and bytes in a range. Leaves inside the range count whole, by the sums of their
    /// nodes. The two leaves at the ends are estimated by their index pages, which are read if they are not cached.
    /// Messages in the root's runs count as rows: all of them for the whole tree, a tenth otherwise. Buffered messages
    /// count for the whole tree only. Memory trees estimate by the positions of the range's ends in the map; they have
    /// no pages.
    pub fn estimate(&self, range: &KeyRange) -> RangeEstimate {
        if self.tree.is_memory() {
            return self.version.active.estimate(range);
        }
        let root = &self.version.root;
        let low = bound_key(&range.start);
        let high = bound_key(&range.end);
        let mut estimate = RangeEstimate::default();
        if let (Some(low), Some(high)) = (low, high)
            && low > high
        {
            return estimate;
        }
        self.add_estimate(root, low, high, &mut estimate);
        for run in &root.runs {
            for part in run.overlapping(low, high) {
                let share = if low.is_none() && high.is_none() { 1.0 } else { 0.1 };
                estimate.rows += part.rows as f64 * share;
            }
        }
        if low.is_none() && high.is_none() {
            let buffered = std::iter::once(&self.version.active).chain(&self.version.frozen);
            estimate.rows += buffered.map(|buffer| buffer.len() as f64).sum::<f64>();
        }
        estimate
    }

    fn add_estimate(&self, inner: &InnerNode, low: Option<&[u8]>, high: Option<&[u8]>, estimate: &mut RangeEstimate) {
        let from = low.map_or(0, |low| inner.child_of(low));
        let to = high.map_or(inner.children.len() - 1, |high| inner.child_of(high));
        for (i, child) in inner.children.iter().enumerate().take(to + 1).skip(from) {
            let (child_low, child_high) = (if i == from { low } else { None }, if i == to { high } else { None });
            let (fraction, pages) = match &**child {
                _ if child_low.is_none() && child_high.is_none() => (1.0, child.pages() as f64),
                Node::Inner(inner) => {
                    self.add_estimate(inner, child_low, child_high, estimate);
                    continue;
                }
                Node::Leaf(None) => continue,
                Node::Leaf(Some(extent)) => match self.located_exactly(extent, child_low, child_high) {
                    Some(located) => fraction_of(&LeafIndex::Located(located), child_low, child_high),
                    None => match self.files.read_index(extent, self.schema()) {
                        Ok(index) => fraction_of(&LeafIndex::Page(index), child_low, child_high),
                        Err(_) => (0.5, child.pages() as f64 / 2.0),
                    },
                },
            };
            estimate.rows += child.rows() as f64 * fraction;
            estimate.pages += pages;
            estimate.bytes += pages * f64::from(self.files.page_bytes);
        }
    }

    /// The locator's entries of a leaf, if their words decide at both keys.
    fn located_exactly(&self, extent: &Arc<Extent>, low: Option<&[u8]>, high: Option<&[u8]>) -> Option<Located> {
        let located = self.locator.as_ref()?.locate(extent)?;
        let is_certain = low.into_iter().chain(high).all(|key| located.find(key).1);
        is_certain.then_some(located)
    }

    /// Number of levels of nodes, including the leaves.
    pub fn depth(&self) -> u64 {
        self.version.root.depth()
    }

    /// The share (0 to 1) of the tree's data pages that are in the cache, estimated by an even sample. No I/O. 1 for
    /// memory trees.
    pub fn cached_share(&self) -> f64 {
        if self.tree.is_memory() {
            return 1.0;
        }
        let pages = self.version.root.pages();
        let sample = pages.min(CACHED_SAMPLE);
        let cached = (0..sample).filter(|i| self.is_cached(i * pages / sample)).count();
        cached as f64 / sample.max(1) as f64
    }

    /// True if data page `number`, counted over all leaves, is in memory.
    fn is_cached(&self, mut number: u64) -> bool {
        let mut inner = &*self.version.root;
        loop {
            let mut children = inner.children.iter();
            let child = children.find(|child| match number.checked_sub(child.pages()) {
                Some(rest) => {
                    number = rest;
                    false
                }
                None => true,
            });
            match child.map(|child| &**child) {
                Some(Node::Inner(child)) => inner = child,
                Some(Node::Leaf(Some(extent))) => {
                    if let Some(located) = self.locator.as_ref().and_then(|locator| locator.locate(extent)) {
                        let page = located.entry(number as usize).0.offset;
                        return located.held(number as usize).is_some() || self.files.cache.peek(page).is_some();
                    }
                    let index = self.files.cache.peek(extent.index().offset);
                    let page = index.map(|index| index.entry(number as usize).0);
                    return page.is_some_and(|page| self.files.cache.peek(page.offset).is_some());
                }
                Some(Node::Leaf(None)) | None => return false,
            }
        }
    }

    /// Splits a range into at most `parts` consecutive ranges with about equal numbers of leaves (of rows, in memory
    /// trees).
    pub fn split(&self, range: &KeyRange, parts: usize) -> Vec<KeyRange> {
        let pivots: Vec<Vec<u8>> = if self.tree.is_memory() {
            self.version.active.split_keys(range, parts.saturating_sub(1))
        } else {
            let mut pivots: Vec<&Key> = Vec::new();
            collect_pivots(&self.version.root, range, &mut pivots);
            let parts = parts.clamp(1, pivots.len() + 1);
            (1..parts).map(|part| pivots[part * (pivots.len() + 1) / parts - 1].to_vec()).collect()
        };
        let mut ranges = Vec::with_capacity(pivots.len() + 1);
        let mut start = range.start.clone();
        for pivot in pivots {
            ranges.push(KeyRange { start, end: Bound::Excluded(pivot.clone()) });
            start = Bound::Included(pivot);
        }
        ranges.push(KeyRange { start, end: range.end.clone() });
        ranges
    }
}

fn bound_key(bound: &Bound<Vec<u8>>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

/// Share of a leaf's rows between two keys, and number of its pages. A page at an end counts half its rows.
fn fraction_of(index: &LeafIndex, low: Option<&[u8]>, high: Option<&[u8]>) -> (f64, f64) {
    let pages = index.pages();
    let from = low.map_or(0, |low| index.find(low));
    let to = high.map_or(pages.saturating_sub(1), |high| index.find(high));
    let rows_of = |page: usize| f64::from(index.entry(page).1);
    let total: f64 = (0..pages).map(rows_of).sum();
    let mut rows: f64 = (from..=to.min(pages.saturating_sub(1))).map(rows_of).sum();
    if low.is_some() {
        rows -= rows_of(from) / 2.0;
    }
    if high.is_some() {
        rows -= rows_of(to) / 2.0;
    }
    if from == to && low.is_some() && high.is_some() {
        rows = rows_of(from).min(4.0);
    }
    (rows.max(1.0) / total.max(1.0), (to.saturating_sub(from) + 1) as f64)
}

fn collect_pivots<'a>(inner: &'a InnerNode, range: &KeyRange, pivots: &mut Vec<&'a Key>) {
    for (i, child) in inner.children.iter().enumerate() {
        let (low, high) = inner.bounds(i);
        let ends_before = high.is_some_and(|high| bound_key(&range.start).is_some_and(|start| **high <= *start));
        let starts_after = low.is_some_and(|low| bound_key(&range.end).is_some_and(|end| **low >= *end));
        if ends_before || starts_after {
            continue;
        }
        if let Some(low) = low
            && range.contains(low)
            && bound_key(&range.start) != Some(&**low)
        {
            pivots.push(low);
        }
        if let Node::Inner(inner) = &**child {
            collect_pivots(inner, range, pivots);
        }
    }
}

//! Versions, snapshots and views of trees.
//!
//! A version of the store maps tree ids to tree versions. A commit or flush publishes a new version; a snapshot keeps
//! the version it was taken from, and a view is one tree of a snapshot.
//!
//! *Invariants.* A published version never changes, except that commits add messages to the active buffer, which
//! snapshots skip by their sequence number. The version holds references to its extents, so that their space is not
//! reused.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use keyaki_masstree::pin;

use crate::base::{Direction, Error, Key, KeyRange, Registration, Result, Schema, TreeId};
use crate::buffer::{BufferBuilder, RootBuffer};
use crate::codec::Codecs;
use crate::locator::{Locator, Locators};
use crate::message::{Upserts, Widened};
use crate::pages::{Extent, Files, PageSource};
use crate::tree::{
    Counter, Cursor, InnerNode, Node, OwnBuffer, OwnWrites, ReadSet, RowCounts, Run, TreeSample, ValueBounds,
};

/// A version of one tree: its nodes, and the root buffers above them.
#[derive(Debug, Clone)]
pub(crate) struct TreeVersion {
    pub codecs: Arc<Codecs>,
    pub root: Arc<InnerNode>,
    /// Buffers being flushed, newest first.
    pub frozen: Vec<Arc<RootBuffer>>,
    pub active: Arc<RootBuffer>,
    /// Shared by all versions with the same messages.
    pub counts: Arc<RowCounts>,
    /// Shared by all versions of the tree.
    pub bounds: Arc<ValueBounds>,
    /// The sample of the rows of `root`, if there is one.
    pub sample: Option<Arc<TreeSample>>,
    /// The error of a flush, after which the tree accepts no changes.
    pub damage: Option<Arc<Error>>,
    /// Sequence number of the commit that created the tree; 0 for trees of the checkpoint with which the store was
    /// opened.
    pub created: u64,
}

impl TreeVersion {
    /// A version without buffered messages.
    pub fn new(codecs: Arc<Codecs>, root: Arc<InnerNode>, counts: Arc<RowCounts>, bounds: Arc<ValueBounds>) -> Self {
        let (frozen, active) = (Vec::new(), Arc::default());
        TreeVersion { codecs, root, frozen, active, counts, bounds, sample: None, damage: None, created: 0 }
    }

    /// A tree on disk without rows.
    pub fn empty(codecs: Arc<Codecs>) -> Self {
        let bounds = ValueBounds::empty(&codecs);
        TreeVersion::new(codecs, Arc::new(InnerNode::empty()), RowCounts::new(0, Some(0)), bounds)
    }

    /// The version of a memory tree: one buffer, which has one insert for each row, and an empty root.
    pub fn in_memory(codecs: Arc<Codecs>, active: Arc<RootBuffer>) -> Self {
        let counts = RowCounts::new(0, Some(active.len() as u64));
        let bounds = ValueBounds::unknown(&codecs);
        TreeVersion { active, ..TreeVersion::new(codecs, Arc::new(InnerNode::empty()), counts, bounds) }
    }

    /// The version after its buffers have been written to `root`, of which `sample` is the sample.
    pub fn with_root(&self, root: Arc<InnerNode>, sample: Option<Arc<TreeSample>>) -> Self {
        let version = TreeVersion::new(self.codecs.clone(), root, self.counts.clone(), self.bounds.clone());
        TreeVersion { sample, damage: self.damage.clone(), created: self.created, ..version }
    }

    /// Checks that the tree accepts changes.
    ///
    /// # Errors
    /// [`Error::Quarantined`].
    pub fn check_intact(&self, tree: TreeId) -> Result<()> {
        self.damage.as_ref().map_or(Ok(()), |cause| Err(Error::Quarantined { tree, cause: cause.clone() }))
    }

    /// The version without its buffers.
    pub fn without_buffers(&self) -> Self {
        self.with_root(self.root.clone(), self.sample.clone())
    }

    /// The version with the columns of `schema`; further ones have their missing values in all rows. All buffered
    /// messages are encoded again, in one new buffer: snapshots and flushes keep the old ones.
    ///
    /// # Errors
    /// None for a schema that [extends](Schema::extends) that of the tree, and checked messages.
    pub fn extended(&self, schema: Schema) -> Result<Self> {
        assert!(schema.extends(&self.codecs.schema), "the columns of a tree are kept");
        let codecs = Arc::new(Codecs::new(schema.added_to(&self.codecs.schema)));
        let (mut messages, guard) = (BufferBuilder::default(), pin());
        for buffer in self.frozen.iter().rev().chain([&self.active]) {
            let mut failed = false;
            let mut chain = Vec::new();
            buffer.walk(&KeyRange::all(), false, &guard, |key, newest| {
                chain.clear();
                chain.extend(std::iter::successors(Some(newest), |message| message.older()));
                for message in chain.iter().rev() {
                    let (sequence, prior) = (message.sequence(), message.prior());
                    match Widened::new(message.message(), &self.codecs.row, &codecs.row) {
                        Some(widened) => messages.push(key, sequence, &widened.message(), prior),
                        None => failed = true,
                    }
                }
                !failed
            });
            if failed {
                return Err(Error::InvalidRow { len: 0 });
            }
        }
        let bounds = self.bounds.extended(&codecs);
        let sample = self.sample.as_ref().map(|sample| Arc::new(sample.extended(&codecs.schema)));
        let version = TreeVersion::new(codecs, self.root.clone(), self.counts.clone(), bounds);
        let version = TreeVersion { sample, created: self.created, ..version };
        messages.merge_into(&version.active)?;
        Ok(version)
    }

    /// The tree without rows, of which only the columns are of interest.
    pub fn emptied(&self) -> Self {
        let version = self.with_root(Arc::new(InnerNode::empty()), None);
        version.with_counts(RowCounts::new(0, None))
    }

    /// True if the tree has extents.
    pub fn has_extents(&self) -> bool {
        let mut found = false;
        self.visit_extents(&mut |_| found = true);
        found
    }

    /// This version with other counts.
    pub fn with_counts(&self, counts: Arc<RowCounts>) -> Self {
        TreeVersion { counts, ..self.clone() }
    }

    /// Calls `visit` for every reference to an extent.
    pub fn visit_extents(&self, visit: &mut impl FnMut(&Arc<Extent>)) {
        self.root.visit_extents(visit);
        self.sample.iter().flat_map(|sample| &sample.leaves).for_each(visit);
    }

    /// All buffers, newest first.
    pub fn buffers(&self) -> impl Iterator<Item = &Arc<RootBuffer>> {
        std::iter::once(&self.active).chain(&self.frozen)
    }

    /// Bytes of the buffers in memory.
    pub fn buffer_bytes(&self) -> usize {
        self.buffers().map(|buffer| buffer.bytes()).sum()
    }
}

/// The versions of all trees at one moment. Replaced as a whole; a reader keeps the one that it started with.
#[derive(Debug, Default, Clone)]
pub(crate) struct StoreVersion {
    pub trees: BTreeMap<TreeId, Arc<TreeVersion>>,
}

impl StoreVersion {
    /// The same trees with the numbers of rows as of commit `sequence`. The versions of a tree share their counts, which later
    /// commits change.
    pub fn counted_at(&self, sequence: u64) -> StoreVersion {
        let counted = |version: &TreeVersion| {
            Arc::new(version.with_counts(RowCounts::new(sequence, version.counts.at(sequence))))
        };
        StoreVersion { trees: self.trees.iter().map(|(&tree, version)| (tree, counted(version))).collect() }
    }

    /// The same trees without buffered messages.
    pub fn without_buffers(&self) -> StoreVersion {
        let bare = |version: &TreeVersion| Arc::new(version.without_buffers());
        StoreVersion { trees: self.trees.iter().map(|(&tree, version)| (tree, bare(version))).collect() }
    }
}

/// Number of pages sampled to estimate the cached share of a tree.
const CACHED_SAMPLE: u64 = 64;
/// A range of at most this many leaves is split between their pages: that many index pages are read.
const LEAVES_SPLIT_MAX: usize = 4;

/// The whole store as of one sequence number. Taking a snapshot copies pointers under short locks; cloning it is cheap.
/// The extents and messages that a snapshot sees are not freed while it exists.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub(crate) sequence: u64,
    /// Number of replacements of the store's state before this one.
    pub(crate) generation: u64,
    pub(crate) state: Arc<StoreVersion>,
    pub(crate) locators: Arc<Locators>,
    /// Present if the store has memory trees.
    pub(crate) registration: Option<Arc<Registration>>,
    /// The uncommitted writes of a transaction that the snapshot sees.
    pub(crate) own: Option<OwnWrites>,
    /// Records the ranges that are read, for a serializable transaction.
    pub(crate) reads: Option<Arc<ReadSet>>,
}

impl TreeView {
    /// The functions that resolve the upserts of the tree.
    pub(crate) fn upserts(&self) -> Upserts<'_> {
        Upserts::new(&self.files.upserts, &self.version.codecs)
    }
}

impl Snapshot {
    /// False if [`Store::renew`](crate::Store::renew) never renews the snapshot, because the store has memory trees, or
    /// because it is the snapshot of a transaction.
    pub fn is_renewable(&self) -> bool {
        self.registration.is_none() && self.own.is_none()
    }

    /// Two snapshots of the same generation have the same trees and buffers, and differ in their commits only.
    pub fn generation(&self) -> u64 {
        self.generation
    }

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
        let own = self.own.as_ref().and_then(|own| own.tree(tree));
        let reads = self.reads.clone();
        Ok(TreeView {
            tree,
            sequence: self.sequence,
            version,
            files,
            locator,
            registration,
            own,
            reads,
            ignores_cache: false,
        })
    }
}

/// Shares (0 to 1) of a tree's data pages that are in the page cache. Both are 1 for memory trees.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CachedShare {
    /// Pages with all their columns, which lookups need.
    pub whole: f64,
    /// Pages with all or some of their columns: scans may have read them without the others.
    pub any: f64,
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
    /// The messages of the view's transaction, newer than all others, and the newest statement that the view sees.
    pub(crate) own: Option<(Arc<OwnBuffer>, u64)>,
    /// Records the ranges that are read.
    pub(crate) reads: Option<Arc<ReadSet>>,
    /// Estimates and splits do not depend on pages in the cache.
    pub(crate) ignores_cache: bool,
}

impl TreeView {
    /// Makes this the view of a snapshot of the same generation.
    ///
    /// # Panics
    /// If the snapshot has another version of the tree.
    pub fn renew(&mut self, snapshot: &Snapshot) {
        let version = snapshot.state.trees.get(&self.tree);
        assert!(version.is_some_and(|version| Arc::ptr_eq(version, &self.version)), "a snapshot of another generation");
        assert!(self.own.is_none() && snapshot.own.is_none(), "views of transactions are not renewed");
        self.sequence = snapshot.sequence;
    }

    /// Columns and key of the tree.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.version.codecs.schema
    }

    /// The same view, whose reads a serializable transaction does not depend on. It must depend on their results in another
    /// way ([`Transaction::depend_on_existence`](crate::Transaction::depend_on_existence)).
    pub fn unrecorded(self) -> TreeView {
        TreeView { reads: None, ..self }
    }

    /// The same view, whose estimates and splits are those of every process that has the same version of the tree, whatever pages
    /// it has in its cache. Ranges of few leaves are split between their pages, too.
    pub fn ignoring_cache(self) -> TreeView {
        TreeView { ignores_cache: true, ..self }
    }

    /// The id of the tree.
    pub fn tree(&self) -> TreeId {
        self.tree
    }

    /// The codec for keys of this tree.
    pub fn key_codec(&self) -> &crate::KeyCodec {
        &self.version.codecs.key
    }

    /// The number of rows of the tree, in constant time. `None` if it is unknown: a commit had messages about whose keys the
    /// writer knew nothing ([`WriteBatch::insert`](crate::WriteBatch::insert), deletes, upserts), an older program wrote the
    /// tree, or the view is more than about a thousand commits old. See [`TreeView::settle_rows`].
    pub fn live_rows(&self) -> Option<u64> {
        self.record(&KeyRange::all());
        self.known_rows()
    }

    /// As [`TreeView::live_rows`], for estimates, on which no result depends.
    pub(super) fn known_rows(&self) -> Option<u64> {
        let committed = self.version.counts.at(self.sequence)?;
        match &self.own {
            Some((own, statement)) => committed.checked_add_signed(own.delta(*statement)?),
            None => Some(committed),
        }
    }

    /// The buffers above the tree, newest first, each with the sequence number of the newest message that the view sees.
    pub(crate) fn buffers(&self) -> impl Iterator<Item = (&Arc<RootBuffer>, u64)> {
        self.own_buffer().into_iter().chain(self.committed_buffers())
    }

    /// The buffer of the view's transaction.
    pub(crate) fn own_buffer(&self) -> Option<(&Arc<RootBuffer>, u64)> {
        self.own.as_ref().map(|(own, statement)| (own.messages(), *statement))
    }

    /// The runs of the view's transaction, newest first: older than its buffer, and newer than the committed buffers.
    pub(crate) fn own_runs(&self) -> &[Run] {
        self.own.as_ref().map_or(&[], |(own, _)| &own.runs)
    }

    /// The buffers of commits, newest first.
    pub(crate) fn committed_buffers(&self) -> impl Iterator<Item = (&Arc<RootBuffer>, u64)> {
        let committed = std::iter::once(&self.version.active).chain(&self.version.frozen);
        committed.map(|buffer| (buffer, self.sequence))
    }

    /// The only buffer with messages; `None` if no buffer or several have messages, or if the transaction has runs.
    pub(crate) fn only_buffer(&self) -> Option<(&Arc<RootBuffer>, u64)> {
        if !self.own_runs().is_empty() {
            return None;
        }
        let mut filled = self.buffers().filter(|(buffer, _)| !buffer.is_empty());
        filled.next().filter(|_| filled.next().is_none())
    }

    /// Bytes of the dictionaries with which pages of the tree are compressed.
    pub fn dictionary_bytes(&self) -> usize {
        self.files.dictionaries.of(self.tree).all().iter().map(|(_, dictionary)| dictionary.bytes().len()).sum()
    }

    /// Returns true if the tree has neither rows nor pending messages. False does not prove that it has rows: they may all
    /// be deleted by messages.
    pub fn is_empty(&self) -> bool {
        self.record(&KeyRange::all());
        self.has_nothing()
    }

    /// As [`TreeView::is_empty`], for estimates.
    pub(super) fn has_nothing(&self) -> bool {
        self.version.root.is_empty()
            && self.own_runs().is_empty()
            && self.buffers().all(|(buffer, _)| buffer.is_empty())
    }

    /// Stores the number of rows of the tree as counted in this view, so that the number is known for this view and, until
    /// the next commit with an unknown effect, for all later ones. Returns false, without an effect, if such a commit
    /// followed this view already, if the number is known, or if the view is one of a transaction. The next checkpoint
    /// makes the number durable.
    pub fn settle_rows(&self, rows: u64) -> bool {
        self.own.is_none() && self.version.counts.settle(self.sequence, rows)
    }

    /// A cursor over the rows of a range, in key order.
    pub fn cursor<P: PageSource>(&self, source: P, range: KeyRange, direction: Direction) -> Cursor<'_, P> {
        self.record(&range);
        Cursor::new(Cow::Borrowed(self), source, range, direction)
    }

    /// A cursor that owns its view.
    pub(crate) fn into_cursor<P: PageSource>(
        self,
        source: P,
        range: KeyRange,
        direction: Direction,
    ) -> Cursor<'static, P> {
        self.record(&range);
        Cursor::new(Cow::Owned(self), source, range, direction)
    }

    /// Records that `range` is read.
    fn record(&self, range: &KeyRange) {
        if let Some(reads) = &self.reads {
            reads.add(self.tree, range);
        }
    }

    /// A counter of the rows of a range.
    pub fn counter<P: PageSource>(&self, source: P, range: KeyRange) -> Counter<'_, P> {
        Counter { cursor: self.cursor(source, range, Direction::Ascending).counting() }
    }

    /// Number of levels of nodes, including the leaves.
    pub fn depth(&self) -> u64 {
        self.version.root.depth()
    }

    /// Budget of the page cache in bytes.
    pub fn page_cache_budget(&self) -> usize {
        self.files.cache.budget()
    }

    /// The shares of the tree's data pages that are in the cache, estimated by an even sample. No I/O.
    pub fn cached_share(&self) -> CachedShare {
        if self.tree.is_memory() {
            return CachedShare { whole: 1.0, any: 1.0 };
        }
        let pages = self.version.root.pages();
        let sample = pages.min(CACHED_SAMPLE);
        let (mut whole, mut any) = (0, 0);
        for is_whole in (0..sample).filter_map(|i| self.is_whole_in_cache(i * pages / sample)) {
            whole += u64::from(is_whole);
            any += 1;
        }
        let share = |count: u64| count as f64 / sample.max(1) as f64;
        CachedShare { whole: share(whole), any: share(any) }
    }

    /// True if data page `number`, counted over all leaves, is in memory with all its columns; `None` if it is not in
    /// memory.
    fn is_whole_in_cache(&self, mut number: u64) -> Option<bool> {
        let is_whole = |offset| self.files.cache.peek_any(offset).map(|page| page.is_whole());
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
                        let held = located.held(number as usize).map(|_| true);
                        return held.or_else(|| is_whole(located.entry(number as usize).0.offset));
                    }
                    let index = self.files.cache.peek(extent.index().offset)?;
                    return is_whole(index.entry(number as usize).0.offset);
                }
                Some(Node::Leaf(None)) | None => return None,
            }
        }
    }

    /// Splits a range into at most `parts` consecutive ranges with about equal numbers of leaves (of rows, in memory
    /// trees).
    pub fn split(&self, range: &KeyRange, parts: usize) -> Vec<KeyRange> {
        self.split_groups(range, parts, self.schema().key_columns())
    }

    /// As [`split`](Self::split), but keys with the same values in the first `columns` key columns stay in one range.
    pub fn split_groups(&self, range: &KeyRange, parts: usize, columns: usize) -> Vec<KeyRange> {
        let pivots: Vec<Vec<u8>> = if self.tree.is_memory() {
            self.version.active.split_keys(range, parts.saturating_sub(1))
        } else {
            let mut pivots: Vec<&Key> = Vec::new();
            collect_pivots(&self.version.root, range, &mut pivots);
            let fences = if self.ignores_cache && pivots.len() + 1 < parts { self.fences(range) } else { Vec::new() };
            pivots.extend(&fences);
            pivots.sort_unstable();
            let parts = parts.clamp(1, pivots.len() + 1);
            (1..parts).map(|part| pivots[part * (pivots.len() + 1) / parts - 1].to_vec()).collect()
        };
        let codec = self.key_codec();
        let mut ranges = Vec::with_capacity(pivots.len() + 1);
        let mut start = range.start.clone();
        for mut pivot in pivots {
            // A pivot that ends within these columns separates their values, too: no key is a prefix of another.
            if columns < self.schema().key_columns()
                && let Some(len) = codec.prefix_len(&pivot, columns)
            {
                pivot.truncate(len);
            }
            if bound_key(&start).is_some_and(|start| *pivot <= *start) {
                continue;
            }
            ranges.push(KeyRange { start, end: Bound::Excluded(pivot.clone()) });
            start = Bound::Included(pivot);
        }
        ranges.push(KeyRange { start, end: range.end.clone() });
        ranges
    }
}

impl TreeView {
    /// The keys within a range at which pages begin, if it has at most [`LEAVES_SPLIT_MAX`] leaves; without those of leaves whose
    /// index page cannot be read.
    fn fences(&self, range: &KeyRange) -> Vec<Key> {
        let mut leaves = Vec::new();
        collect_leaves(&self.version.root, range, &mut leaves);
        if leaves.len() > LEAVES_SPLIT_MAX {
            return Vec::new();
        }
        let indexes = leaves.into_iter().filter_map(|leaf| self.files.read_index(leaf, self.schema()).ok());
        let fences = indexes.flat_map(|index| {
            let pages = index.pages_in(range).skip(1);
            pages.map(|page| Key::from(index.fence(page))).collect::<Vec<_>>()
        });
        fences.filter(|fence| range.contains(fence)).collect()
    }
}

pub(super) fn bound_key(bound: &Bound<Vec<u8>>) -> Option<&[u8]> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) => Some(key),
        Bound::Unbounded => None,
    }
}

/// The leaves with rows that may lie in a range.
fn collect_leaves<'a>(inner: &'a InnerNode, range: &KeyRange, leaves: &mut Vec<&'a Arc<Extent>>) {
    for child in &inner.children {
        match &**child {
            Node::Inner(inner) => collect_leaves(inner, range, leaves),
            Node::Leaf(Some(extent)) if range.may_overlap(&extent.meta.first, &extent.meta.last) => leaves.push(extent),
            Node::Leaf(_) => {}
        }
    }
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

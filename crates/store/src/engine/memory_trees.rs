//! Trees that are held in memory only: a root buffer and nothing else.
//!
//! Their ids have the top bit set. A commit applies its changes to them under its sequence number, but neither log nor
//! checkpoints know them: after opening there are none, and whoever had them builds them anew, by [`MemoryBuilder`] and
//! [`Store::install_memory`]. Their buffers are never frozen, and do not count in the budget of buffers; what nobody asks
//! for any more is collected (see `buffer::garbage`).
//!
//! Rows built in bulk have number 0, so that every snapshot of the tree sees them, and every later message is newer.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow_array::RecordBatch;
use keyaki_masstree::pin;

use crate::base::{Error, KeyRange, Result, Schema, TreeId};
use crate::buffer::{BufferBuilder, MessageChain, RootBuffer};
use crate::codec::Codecs;
use crate::engine::{CommitToken, Loaded, LoadedRows, OTHER_SCHEMA, OTHER_TREE, Shared, Store, check_new};
use crate::message::{KEY_LIMIT, MessageBytes, Operation, VALUE_LIMIT, WriteBatch, decode};
use crate::tree::{StoreVersion, TreeVersion};

/// Dirty keys that a commit looks at beside those that it makes dirty.
const KEYS_PER_COMMIT: usize = 16;
/// Dirty keys above which the background thread looks at them.
const KEYS_LEFT: usize = 1024;
/// Dirty keys that it looks at while commits wait.
const KEYS_PER_TURN: usize = 256;

/// What a memory tree is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryTreeStats {
    /// Keys, with those that are deleted but still seen by some snapshot.
    pub entries: u64,
    /// Of nodes, keys, values and messages that are not collected yet.
    pub bytes: u64,
    /// Levels of the first layer's B+-tree.
    pub depth: u32,
    /// B+-trees in the trie.
    pub layers: u64,
    /// Most layers below one another; a layer covers 8 bytes of keys.
    pub layers_deepest: u32,
    /// Leaf nodes of all B+-trees.
    pub border_nodes: u64,
    /// InnerNode nodes of all B+-trees.
    pub interior_nodes: u64,
}

/// Gathers rows, in any order, for a tree that is held in memory only. Made by [`Store::memory_builder`]; several threads may
/// fill one each, and [`append`](MemoryBuilder::append) joins them.
#[derive(Debug)]
pub struct MemoryBuilder {
    tree: TreeId,
    codecs: Arc<Codecs>,
    rows: BufferBuilder,
}

impl MemoryBuilder {
    pub(crate) fn new(tree: TreeId, codecs: Arc<Codecs>) -> MemoryBuilder {
        MemoryBuilder { tree, codecs, rows: BufferBuilder::default() }
    }

    /// Adds rows: all columns, in schema order.
    ///
    /// # Errors
    /// [`Error::ColumnCount`], [`Error::ColumnType`], [`Error::NullValue`] if the columns are not those of the schema,
    /// [`Error::TooLarge`]: no row of the batch is added then.
    pub fn push(&mut self, rows: &RecordBatch) -> Result<()> {
        self.codecs.schema.check_columns(rows.columns(), self.codecs.schema.columns().len())?;
        let (bytes, ends) = self.codecs.key.encode_batch(rows.columns(), 0..rows.num_rows());
        let ends = ends[1..].to_vec();
        let longest = ends.iter().scan(0, |start, &end| Some(end - std::mem::replace(start, end))).max();
        check_len("key", longest.unwrap_or(0), KEY_LIMIT)?;
        let encoder = self.codecs.row.encoder(rows.columns());
        let (mut values, mut content, mut value) = (Vec::with_capacity(rows.num_rows()), 0, Vec::new());
        for row in 0..rows.num_rows() {
            value.clear();
            encoder.encode(row, &mut value);
            check_len("row", value.len(), VALUE_LIMIT)?;
            content += value.len();
            values.push(MessageChain::new(0, &MessageBytes::Insert(&value), None));
        }
        self.rows.push_rows(bytes, ends, values.into_iter(), content);
        Ok(())
    }

    /// Adds the rows of another builder, behind its own.
    ///
    /// # Errors
    /// [`Error::TreeMismatch`] if it is for another tree or schema.
    pub fn append(&mut self, other: MemoryBuilder) -> Result<()> {
        if other.tree != self.tree {
            return Err(Error::TreeMismatch { tree: self.tree, reason: OTHER_TREE });
        }
        if !other.codecs.schema.is_alike(&self.codecs.schema) {
            return Err(Error::TreeMismatch { tree: self.tree, reason: OTHER_SCHEMA });
        }
        self.rows.append(other.rows);
        Ok(())
    }

    /// Rows added so far.
    pub fn rows(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Bytes held, with what sorting will take.
    pub fn bytes(&self) -> usize {
        self.rows.bytes()
    }

    /// Sorts the rows and builds the tree's buffer, with `threads` threads.
    ///
    /// # Errors
    /// [`Error::DuplicateKey`] if a key occurs twice (the row is one of those, counted as they were added);
    /// [`Error::WrongTreeKind`] if the tree is not one in memory.
    pub fn finish(self, threads: usize) -> Result<Loaded> {
        if !self.tree.is_memory() {
            return Err(Error::WrongTreeKind { tree: self.tree, in_memory: false });
        }
        let buffer = self.rows.build(threads)?;
        Ok(Loaded::in_memory(self.tree, self.codecs, Arc::new(buffer)))
    }
}

fn check_len(what: &'static str, len: usize, limit: usize) -> Result<()> {
    if len > limit {
        return Err(Error::TooLarge { what, bytes: len as u64, limit: limit as u64 });
    }
    Ok(())
}

impl Store {
    /// An id that no memory tree has had since the store was opened.
    pub fn new_memory_tree_id(&self) -> TreeId {
        next_id(&self.shared.next_memory_tree, TreeId::MEMORY_END)
    }

    /// A builder of memory tree `tree`, which may not exist yet.
    pub fn memory_builder(&self, tree: TreeId, schema: &Schema) -> MemoryBuilder {
        MemoryBuilder::new(tree, Arc::new(Codecs::new(schema.clone())))
    }

    /// Creates memory trees of the rows that were built for them. Nothing is written; snapshots taken from now on see them.
    ///
    /// # Errors
    /// [`Error::TreeExists`], [`Error::TooMany`]; [`Error::TreeMismatch`], [`Error::WrongTreeKind`] if rows were loaded for
    /// another tree or on disk. Nothing changes then.
    pub fn install_memory(&self, loaded: Vec<(TreeId, Loaded)>) -> Result<()> {
        let _commit = self.shared.commit.lock();
        let mut current = self.shared.state.write();
        let mut state = StoreVersion::clone(&current);
        for (tree, loaded) in loaded {
            let (codecs, buffer) = loaded.into_memory(tree)?;
            check_new(tree, state.trees.contains_key(&tree))?;
            state.trees.insert(tree, Arc::new(TreeVersion::in_memory(codecs, buffer)));
            self.shared.next_memory_tree.fetch_max(tree.next().get(), Ordering::Relaxed);
        }
        *current = Arc::new(state);
        Ok(())
    }

    /// Gives the page cache what trees in memory and locators leave of its memory, an eighth at least.
    pub fn share_memory(&self) {
        self.shared.share_memory();
    }

    /// What a memory tree is made of; none if there is no such tree. Looks at all of its nodes.
    pub fn memory_tree_stats(&self, tree: TreeId) -> Option<MemoryTreeStats> {
        let state = self.shared.state.read().clone();
        let version = state.trees.get(&tree).filter(|_| tree.is_memory())?;
        Some(version.active.stats())
    }
}

/// Takes an id; none is given beyond `last`, which no tree can have.
pub(crate) fn next_id(next: &AtomicU32, last: TreeId) -> TreeId {
    let taken = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| (id < last.get()).then_some(id + 1));
    taken.map_or(last, TreeId::new)
}

impl RootBuffer {
    fn stats(&self) -> MemoryTreeStats {
        let Some(map) = self.map() else { return MemoryTreeStats::default() };
        let shape = map.shape();
        MemoryTreeStats {
            entries: map.len() as u64,
            bytes: self.bytes() as u64,
            depth: shape.depth as u32,
            layers: shape.layers as u64,
            layers_deepest: shape.layers_deepest as u32,
            border_nodes: shape.border_nodes as u64,
            interior_nodes: shape.interior_nodes as u64,
        }
    }
}

impl Shared {
    /// Memory trees of a state.
    fn memory_trees(state: &StoreVersion) -> impl Iterator<Item = (&TreeId, &Arc<TreeVersion>)> {
        state.trees.range(TreeId::MEMORY_START..)
    }

    /// Bytes of memory trees.
    pub fn memory_tree_bytes(&self) -> usize {
        let state = self.state.read().clone();
        Self::memory_trees(&state).map(|(_, version)| version.buffer_bytes()).sum()
    }

    /// See [`Store::share_memory`].
    pub fn share_memory(&self) {
        let (all, trees) = (self.options.cache_bytes, self.memory_tree_bytes());
        self.locators.evict_pages(trees as u64);
        let (locators, held) = self.locators.bytes();
        let taken = trees + (locators + held) as usize;
        let left = all.saturating_sub(taken).max(all / 8);
        let (_, budget) = self.files.cache.usage();
        if left.abs_diff(budget) > all / 64 {
            self.files.cache.set_budget(left);
        }
    }

    /// Applies the part of a batch that is about memory trees, which has been checked, to their buffers, and to the set of trees.
    pub fn apply_in_memory(
        &self,
        _commit: &CommitToken,
        state: &mut Cow<'_, StoreVersion>,
        sequence: u64,
        batch: &WriteBatch,
    ) -> Result<()> {
        if batch.in_memory.is_empty() {
            return Ok(());
        }
        let live = self.snapshots.live(|| self.visible());
        let mut written: Vec<(TreeId, usize)> = Vec::new();
        decode(&batch.in_memory, |operation| {
            match operation {
                Operation::Message { tree, key, message } => {
                    let version = state.trees.get(&tree).ok_or(Error::TreeNotFound(tree))?;
                    version.active.insert_in_memory(key, sequence, message, &live, &self.files.upserts);
                    match written.last_mut().filter(|(last, _)| *last == tree) {
                        Some((_, messages)) => *messages += 1,
                        None => written.push((tree, 1)),
                    }
                }
                Operation::CreateTree { tree, schema } => {
                    let version = TreeVersion::in_memory(Arc::new(Codecs::new(schema)), Arc::default());
                    state.to_mut().trees.insert(tree, Arc::new(version));
                    self.next_memory_tree.fetch_max(tree.next().get(), Ordering::Relaxed);
                }
                Operation::DropTree { tree } => drop(state.to_mut().trees.remove(&tree)),
            }
            Ok(())
        })?;
        for (tree, messages) in written {
            if let Some(version) = state.trees.get(&tree) {
                version.active.collect_garbage(2 * messages + KEYS_PER_COMMIT, &live);
            }
        }
        Ok(())
    }

    /// Whether commits have left behind more than they should.
    pub fn has_fresh_garbage(&self) -> bool {
        let state = self.state.read().clone();
        Self::memory_trees(&state).any(|(_, version)| version.active.dirty_keys().0 > KEYS_LEFT)
    }

    /// Whether there is much that may be collected some time.
    pub fn has_garbage(&self) -> bool {
        let state = self.state.read().clone();
        Self::memory_trees(&state).any(|(_, version)| is_much(version.active.dirty_keys()))
    }

    /// Collects what nobody asks for of memory trees, a little at a time.
    pub fn collect_garbage(&self) {
        let state = self.state.read().clone();
        for (_, version) in Self::memory_trees(&state) {
            let mut goes_on = is_much(version.active.dirty_keys());
            while goes_on {
                let _commit = self.commit.lock();
                let live = self.snapshots.live(|| self.visible());
                goes_on = version.active.collect_garbage(KEYS_PER_TURN, &live);
            }
        }
    }

    /// The rows that were built for memory trees, if these are, or will be after `batch`, such that they fit.
    ///
    /// # Errors
    /// [`Error::TreeNotFound`], [`Error::WrongTreeKind`], [`Error::TreeMismatch`].
    pub fn check_built(&self, state: &StoreVersion, batch: &WriteBatch, built: Vec<(TreeId, Loaded)>) -> Result<Built> {
        let mut created: HashMap<TreeId, Option<Arc<Schema>>> = HashMap::new();
        decode(&batch.in_memory, |operation| {
            match operation {
                Operation::CreateTree { tree, schema } => drop(created.insert(tree, Some(Arc::new(schema)))),
                Operation::DropTree { tree } => drop(created.insert(tree, None)),
                Operation::Message { .. } => {}
            }
            Ok(())
        })?;
        let check = |(tree, loaded): (TreeId, Loaded)| {
            let schema = match created.get(&tree) {
                Some(schema) => schema.clone(),
                None => state.trees.get(&tree).map(|version| version.codecs.schema.clone()),
            };
            let schema = schema.ok_or(Error::TreeNotFound(tree))?;
            match loaded.into_rows(tree, &schema, &self.files)? {
                LoadedRows::Memory(tree, buffer) => Ok((tree, buffer)),
                LoadedRows::Extents(_) => unreachable!("`into_rows` gives rows in memory for tree {tree} in memory"),
            }
        };
        built.into_iter().map(check).collect()
    }

    /// The memory trees of `state` after `batch`, with `built` (newer than that) put into them. All of it was checked.
    pub fn install_built(
        &self,
        commit: &CommitToken,
        state: &StoreVersion,
        sequence: u64,
        batch: &WriteBatch,
        built: Built,
    ) -> Result<StoreVersion> {
        let trees = Self::memory_trees(state).map(|(&tree, version)| (tree, version.clone()));
        let mut installed = Cow::Owned(StoreVersion { trees: trees.collect() });
        self.apply_in_memory(commit, &mut installed, sequence, batch)?;
        let mut installed = installed.into_owned();
        for (tree, buffer) in built {
            let version = installed.trees.get_mut(&tree).ok_or(Error::TreeNotFound(tree))?;
            if version.active.is_empty() {
                // Older snapshots keep the empty one.
                *version = Arc::new(TreeVersion::in_memory(version.codecs.clone(), buffer));
                continue;
            }
            let live = self.snapshots.live(|| self.visible());
            buffer.walk(&KeyRange::all(), false, &pin(), |key, chain| {
                let message = chain.message();
                version.active.insert_in_memory(key, sequence, message, &live, &self.files.upserts);
                true
            });
        }
        Ok(installed)
    }
}

/// Rows for memory trees.
pub(crate) type Built = Vec<(TreeId, Arc<RootBuffer>)>;

/// Whether it is time for the background thread to look at dirty keys.
fn is_much((fresh, held): (usize, usize)) -> bool {
    fresh.max(held) > KEYS_LEFT
}

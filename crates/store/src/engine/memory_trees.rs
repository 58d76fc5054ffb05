//! Memory trees: trees that consist of a root buffer only and have no files.
//!
//! A commit applies its changes to memory trees under its sequence number, as to trees on disk, but neither the log nor
//! checkpoints contain them. An opened database has no memory trees; the application rebuilds them by [`MemoryBuilder`]
//! and [`Store::install_memory`]. Their buffers are never frozen and do not count towards the buffer budget. Messages
//! that no snapshot can see are garbage-collected (see [`crate::buffer`]).
//!
//! *Invariants.* Rows built in bulk have sequence number 0: every snapshot with the tree sees them, and every later
//! message is newer. Each view of a memory tree holds a registration, so that garbage collection keeps the messages
//! that it sees.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::RecordBatch;
use keyaki_masstree::pin;
use keyaki_primitives::sync::atomic::{AtomicU32, Ordering};

use crate::base::{Error, KeyRange, Prior, Result, Schema, TreeId};
use crate::buffer::{BufferBuilder, MessageChain, RootBuffer};
use crate::codec::Codecs;
use crate::engine::{CommitToken, Loaded, LoadedRows, OTHER_SCHEMA, OTHER_TREE, RowChanges, Shared, Store, check_new};
use crate::message::{KEY_LIMIT, MessageBytes, Operation, Upserts, VALUE_LIMIT, WriteBatch, decode};
use crate::tree::{StoreVersion, TreeVersion};

/// Dirty keys that a commit processes in addition to twice the number of its messages.
const KEYS_PER_COMMIT: usize = 16;
/// Number of dirty keys of a tree above which the background thread processes them.
const KEYS_LEFT: usize = 1024;
/// Dirty keys that the background thread processes each time it holds the commit lock.
const KEYS_PER_TURN: usize = 256;

/// Size and shape of a memory tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryTreeStats {
    /// Number of keys, including deleted keys that are not garbage-collected yet.
    pub entries: u64,
    /// Bytes of nodes, keys and messages, including messages that are not garbage-collected yet.
    pub bytes: u64,
    /// Number of levels of the B+-tree of the first layer.
    pub depth: u32,
    /// Number of B+-trees in the trie.
    pub layers: u64,
    /// Maximum number of layers on a path; a layer covers 8 bytes of the key.
    pub layers_deepest: u32,
    /// Number of leaf nodes of all B+-trees.
    pub border_nodes: u64,
    /// Number of inner nodes of all B+-trees.
    pub interior_nodes: u64,
}

/// Collects rows in any order for a memory tree. Created by [`Store::memory_builder`]. Several threads may fill one
/// builder each; [`append`](MemoryBuilder::append) joins them.
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
    /// [`Error::ColumnCount`], [`Error::ColumnType`], [`Error::NullValue`] if the columns are not those of the schema;
    /// [`Error::TooLarge`] for a key or row above its limit. No row of the batch is added then.
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
            values.push(MessageChain::new(0, &MessageBytes::Insert(&value), Prior::Absent, None));
        }
        self.rows.push_rows(bytes, ends, values.into_iter(), content);
        Ok(())
    }

    /// Appends the rows of another builder.
    ///
    /// # Errors
    /// [`Error::TreeMismatch`] if `other` builds another tree or has another schema.
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

    /// Number of rows added.
    pub fn rows(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Bytes in memory, including the temporary memory of the sort.
    pub fn bytes(&self) -> usize {
        self.rows.bytes()
    }

    /// Sorts the rows and builds the tree's buffer, with `threads` threads.
    ///
    /// # Errors
    /// [`Error::DuplicateKey`] with the number of a row, in the order of `push`, whose key another row has too;
    /// [`Error::WrongTreeKind`] if the id is that of a tree on disk.
    pub fn finish(self, threads: usize) -> Result<Loaded> {
        if !self.tree.is_memory() {
            return Err(Error::WrongTreeKind { tree: self.tree, kind: self.tree.kind() });
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
    /// A new id of a memory tree, unique since the store was opened. Once all ids are used, it returns an id that
    /// commits reject with [`Error::TooMany`].
    pub fn new_memory_tree_id(&self) -> TreeId {
        next_id(&self.shared.next_memory_tree, TreeId::MEMORY_END)
    }

    /// A builder of rows for memory tree `tree`, which need not exist yet.
    pub fn memory_builder(&self, tree: TreeId, schema: &Schema) -> MemoryBuilder {
        MemoryBuilder::new(tree, Arc::new(Codecs::new(schema.clone())))
    }

    /// Creates memory trees from rows that were built for them. Nothing is written to disk. Later snapshots see the
    /// trees.
    ///
    /// # Errors
    /// [`Error::TreeExists`], [`Error::TooMany`]; [`Error::TreeMismatch`], [`Error::WrongTreeKind`] if rows were loaded
    /// for another tree or for a tree on disk. Nothing changes then.
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
        self.shared.replace_state(&mut current, state);
        Ok(())
    }

    /// Sets the budget of the page cache to `cache_bytes` minus the bytes of memory trees, locators and their pages,
    /// but at least to an eighth of `cache_bytes`. Evicts the pages of locators if they exceed the memory limit.
    pub fn share_memory(&self) {
        self.shared.share_memory();
    }

    /// Statistics of a memory tree; `None` if it does not exist. Visits all nodes of the tree.
    pub fn memory_tree_stats(&self, tree: TreeId) -> Option<MemoryTreeStats> {
        let state = self.shared.state.read().clone();
        let version = state.trees.get(&tree).filter(|_| tree.is_memory())?;
        Some(version.active.stats())
    }
}

/// Assigns the next id. Once the ids are used up, returns `last`, which no tree can have.
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
    /// The memory trees of a state.
    fn memory_trees(state: &StoreVersion) -> impl Iterator<Item = (&TreeId, &Arc<TreeVersion>)> {
        state.trees.range(TreeId::MEMORY_START..)
    }

    /// Bytes of all memory trees.
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

    /// Applies the operations of a checked batch on memory trees, then garbage-collects in the trees written.
    ///
    /// # Errors
    /// None for a checked batch.
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
        let mut changes = RowChanges::new(sequence);
        decode(&batch.in_memory, |operation| {
            match operation {
                Operation::Message { tree, key, message, .. } => {
                    let version = state.trees.get(&tree).ok_or(Error::TreeNotFound(tree))?;
                    let upserts = Upserts::new(&self.files.upserts, &version.codecs);
                    let delta = version.active.insert_in_memory(key, sequence, message, &live, upserts);
                    changes.add(state, tree, delta);
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
                Operation::DropTree { tree } => {
                    changes.finish(state);
                    state.to_mut().trees.remove(&tree);
                }
                Operation::ExtendTree { tree, .. } => return Err(Error::WrongTreeKind { tree, kind: tree.kind() }),
            }
            Ok(())
        })?;
        changes.finish(state);
        for (tree, messages) in written {
            if let Some(version) = state.trees.get(&tree) {
                version.active.collect_garbage(2 * messages + KEYS_PER_COMMIT, &live);
            }
        }
        Ok(())
    }

    /// True if a memory tree has more than [`KEYS_LEFT`] dirty keys that were not processed yet.
    pub fn has_fresh_garbage(&self) -> bool {
        let state = self.state.read().clone();
        Self::memory_trees(&state).any(|(_, version)| version.active.dirty_keys().0 > KEYS_LEFT)
    }

    /// True if a memory tree has more than [`KEYS_LEFT`] dirty keys in one queue, including keys kept by snapshots.
    pub fn has_garbage(&self) -> bool {
        let state = self.state.read().clone();
        Self::memory_trees(&state).any(|(_, version)| exceeds_limit(version.active.dirty_keys()))
    }

    /// Garbage-collects in memory trees, [`KEYS_PER_TURN`] keys at a time so that commits can run in between.
    pub fn collect_garbage(&self) {
        let state = self.state.read().clone();
        for (_, version) in Self::memory_trees(&state) {
            let mut remaining = exceeds_limit(version.active.dirty_keys());
            while remaining {
                let _commit = self.commit.lock();
                let live = self.snapshots.live(|| self.visible());
                remaining = version.active.collect_garbage(KEYS_PER_TURN, &live);
            }
        }
    }

    /// The buffers built for memory trees, after checking that the trees exist after `batch` and have the same schemas.
    ///
    /// # Errors
    /// [`Error::TreeNotFound`], [`Error::WrongTreeKind`], [`Error::TreeMismatch`].
    pub fn check_built(&self, state: &StoreVersion, batch: &WriteBatch, built: Vec<(TreeId, Loaded)>) -> Result<Built> {
        let mut created: HashMap<TreeId, Option<Arc<Schema>>> = HashMap::new();
        decode(&batch.in_memory, |operation| {
            match operation {
                Operation::CreateTree { tree, schema } => drop(created.insert(tree, Some(Arc::new(schema)))),
                Operation::DropTree { tree } => drop(created.insert(tree, None)),
                Operation::Message { .. } | Operation::ExtendTree { .. } => {}
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
                LoadedRows::Extents(_) => unreachable!("`into_rows` returned extents for memory tree {tree}"),
            }
        };
        built.into_iter().map(check).collect()
    }

    /// The memory trees of `state` after `batch`, with the rows of `built` inserted after it. Batch and rows have been
    /// checked.
    ///
    /// # Errors
    /// None for a checked batch and checked rows.
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
                // Older snapshots keep the empty buffer.
                *version = Arc::new(TreeVersion::in_memory(version.codecs.clone(), buffer));
                continue;
            }
            let live = self.snapshots.live(|| self.visible());
            buffer.walk(&KeyRange::all(), false, &pin(), |key, chain| {
                let message = chain.message();
                let upserts = Upserts::new(&self.files.upserts, &version.codecs);
                let delta = version.active.insert_in_memory(key, sequence, message, &live, upserts);
                version.counts.add(sequence, delta);
                true
            });
        }
        Ok(installed)
    }
}

/// Buffers built for memory trees.
pub(crate) type Built = Vec<(TreeId, Arc<RootBuffer>)>;

/// True if the background thread should process the dirty keys of a tree.
fn exceeds_limit((fresh, held): (usize, usize)) -> bool {
    fresh.max(held) > KEYS_LEFT
}

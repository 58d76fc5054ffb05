//! Compaction of the data file: messages move to leaves, then extents move from the end of the file to free space
//! before them, and the file system gets the rest back.
//!
//! Each step holds the maintenance lock, copies about 64 leaves and publishes the changed trees. Flushes, checkpoints
//! and commits run between the steps. Replaced extents become free with the next checkpoint, unless snapshots or
//! transactions still read them.
//!
//! A moved extent is copied page by page, with new positions in the pages, and verified on the way. Nothing is decoded.
//!
//! *Invariants.* A crash at any time finds a complete checkpoint and its log: a step writes to free space only. Damaged
//! pages, and all pages of quarantined trees, stay at their places.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::base::{Error, Key, KeyRange, Result, Schema, TreeId};
use crate::engine::{Checkpointed, Shared, Store};
use crate::pages::{Extent, Kept};
use crate::tree::{Drained, InnerNode, MovedExtents, StoreVersion, TreeSample, TreeVersion};

/// Number of leaves whose bytes a step copies, about.
const STEP_LEAVES: u64 = 64;
/// Number of passes over the end of the file, at most: each frees space for the next one.
const PASSES_MAX: usize = 8;

/// The effect of a compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vacuumed {
    /// Length of the data file before, in bytes.
    pub bytes_before: u64,
    /// Length of the data file afterwards, in bytes.
    pub bytes_after: u64,
    /// False if `progress` has ended it.
    pub is_complete: bool,
}

/// Progress of a compaction: the number of bytes copied, and an estimate of all.
struct Progress<'a> {
    report: &'a (dyn Fn(u64, u64) -> bool + Sync),
    done: u64,
    total: u64,
    /// Bytes copied since the last checkpoint, which has freed the originals.
    since_checkpoint: u64,
}

impl Progress<'_> {
    /// False if the compaction is to end.
    fn add(&mut self, bytes: u64) -> bool {
        self.done += bytes;
        self.since_checkpoint += bytes;
        self.total = self.total.max(self.done);
        (self.report)(self.done, self.total)
    }
}

/// An extent at the end of the file, and the columns of its tree.
struct High {
    tree: TreeId,
    schema: Arc<Schema>,
    extent: Arc<Extent>,
}

impl Store {
    /// Moves all messages of the `wanted` trees to their leaves, joins small leaves, and shortens the data file by
    /// moving the extents at its end, of all trees, to free space. Commits and reads continue meanwhile. Space that
    /// snapshots or transactions use stays in use. `progress` receives the number of bytes copied so far and an
    /// estimate of all, and ends the compaction by returning false; the finished steps remain. Quarantined trees and
    /// damaged pages are left as they are. On a full disk, messages move down as far as the space allows. Blocks.
    ///
    /// # Errors
    /// Those of [`Store::checkpoint`].
    pub fn vacuum(
        &self,
        wanted: impl Fn(TreeId) -> bool,
        progress: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<Vacuumed> {
        let shared = &self.shared;
        shared.run_structural_change(|| shared.make_checkpoint(false))?;
        let bytes_before = shared.files.space.usage().1;
        let (mut trees, mut total) = (Vec::new(), 0);
        for (&tree, version) in intact(&shared.state.read().clone()).filter(|(tree, _)| wanted(**tree)) {
            trees.push(tree);
            if !version.root.is_settled() {
                // At most: each leaf once.
                total += version.root.bytes_in(&KeyRange::all());
            }
        }
        let high = shared.extents_beyond(shared.files.space.dense_len());
        total += high.iter().map(|high| high.extent.meta.len).sum::<u64>();
        drop(high);
        let mut progress = Progress { report: progress, done: 0, total, since_checkpoint: 0 };
        let mut is_complete = progress.add(0);
        for tree in trees {
            is_complete = is_complete && shared.drain_tree(tree, &KeyRange::all(), &mut progress)?;
        }
        is_complete = is_complete && shared.shorten(&mut progress)?;
        let bytes_after = shared.files.space.usage().1;
        Ok(Vacuumed { bytes_before, bytes_after, is_complete })
    }

    /// Moves the messages of a range of keys of a tree to their leaves, so that reads of the range read one place only. The
    /// leaves at the ends of the range take all their messages. The data file keeps its length: the space that becomes free
    /// is used again. `progress` is that of [`Store::vacuum`]; returns false if it has ended the compaction. Quarantined
    /// trees are left as they are, a damaged page ends the compaction of its tree, and on a full disk, messages move down as
    /// far as the space allows. Blocks.
    ///
    /// # Errors
    /// [`Error::TreeNotFound`], and those of [`Store::checkpoint`].
    pub fn compact(
        &self,
        tree: TreeId,
        range: &KeyRange,
        progress: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<bool> {
        let shared = &self.shared;
        if !shared.state.read().trees.contains_key(&tree) {
            return Err(Error::TreeNotFound(tree));
        }
        if tree.is_memory() || range.is_empty() {
            return Ok(true);
        }
        shared.run_structural_change(|| shared.make_checkpoint(false))?;
        let state = shared.state.read().clone();
        let Some((_, version)) = intact(&state).find(|(found, _)| **found == tree) else { return Ok(true) };
        let total = if version.root.is_settled() { 0 } else { version.root.bytes_in(range) };
        drop(state);
        let mut progress = Progress { report: progress, done: 0, total, since_checkpoint: 0 };
        let is_complete = progress.add(0) && shared.drain_tree(tree, range, &mut progress)?;
        if progress.since_checkpoint > 0 {
            shared.run_structural_change(|| shared.make_checkpoint(true))?;
        }
        Ok(is_complete)
    }
}

/// The trees on disk that are not quarantined.
fn intact(state: &StoreVersion) -> impl Iterator<Item = (&TreeId, &Arc<TreeVersion>)> {
    state.trees.range(..TreeId::MEMORY_START).filter(|(_, version)| version.damage.is_none())
}

impl Shared {
    fn step_bytes(&self) -> u64 {
        STEP_LEAVES * self.options.leaf_bytes as u64
    }

    /// Moves the messages of a range of keys of a tree to its leaves. False if `progress` has ended it.
    fn drain_tree(&self, tree: TreeId, range: &KeyRange, progress: &mut Progress<'_>) -> Result<bool> {
        let mut from: Key = match &range.start {
            Bound::Included(key) | Bound::Excluded(key) => key.as_slice().into(),
            Bound::Unbounded => Key::default(),
        };
        let goes_on = loop {
            let drained = match self.run_structural_change(|| self.drain_step(tree, range, &from)) {
                Ok(Some(drained)) => drained,
                Ok(None) => break true,
                Err(error) if error.is_damage() => {
                    tracing::warn!(%error, %tree, "a damaged tree is not compacted");
                    break true;
                }
                Err(error) => return Err(error),
            };
            if !progress.add(drained.bytes) {
                break false;
            }
            if drained.is_full || progress.since_checkpoint >= self.step_bytes() {
                self.run_structural_change(|| self.make_checkpoint(true))?;
                progress.since_checkpoint = 0;
            }
            match drained.next {
                // The checkpoint has freed nothing either.
                Some(_) if drained.is_full && drained.bytes == 0 => break true,
                Some(next) => from = next,
                None => break true,
            }
        };
        self.leaves_changed();
        Ok(goes_on)
    }

    /// Moves some messages of the keys of a range from `from` on to the leaves. `None` if the tree was dropped or is
    /// quarantined.
    fn drain_step(&self, tree: TreeId, range: &KeyRange, from: &Key) -> Result<Option<Drained>> {
        let checkpointed = self.maintenance.lock();
        let state = self.without_frozen(&checkpointed)?;
        let Some(version) = state.trees.get(&tree).filter(|version| version.damage.is_none()) else { return Ok(None) };
        let mut drained = self.flusher(tree, version).drain(&version.root, range, from, self.step_bytes())?;
        if drained.bytes > 0 {
            let root = std::mem::replace(&mut drained.root, InnerNode::empty());
            self.publish(tree, version, &version.with_root(Arc::new(root), version.sample.clone()));
        }
        Ok(Some(drained))
    }

    /// The current state without frozen buffers: as long as the maintenance lock is held, of which `checkpointed` is
    /// the proof, the roots of its trees can be replaced.
    fn without_frozen(&self, checkpointed: &Checkpointed) -> Result<Arc<StoreVersion>> {
        self.check_poison()?;
        if self.state.read().trees.values().any(|version| !version.frozen.is_empty()) {
            // A flush has failed.
            self.flush_now(checkpointed)?;
        }
        Ok(self.state.read().clone())
    }

    /// Moves extents from the end of the data file to free space before them, in several passes. A pass uses the space
    /// that the one before has freed. False if `progress` has ended it.
    fn shorten(&self, progress: &mut Progress<'_>) -> Result<bool> {
        let mut len = u64::MAX;
        for pass in 0..=PASSES_MAX {
            self.run_structural_change(|| self.lower_node_tables(&mut self.maintenance.lock()))?;
            self.drop_released();
            self.files.trim(Kept::Room)?;
            let (_, now) = self.files.space.usage();
            if now >= len || pass == PASSES_MAX {
                break;
            }
            len = now;
            let mut high = self.extents_beyond(self.files.space.dense_len());
            while !high.is_empty() {
                let bytes = self.run_structural_change(|| self.move_step(&mut high))?;
                if !progress.add(bytes) {
                    return Ok(false);
                }
            }
            self.leaves_changed();
        }
        Ok(true)
    }

    /// The extents of all trees that end behind `end`, in the order of their offsets.
    fn extents_beyond(&self, end: u64) -> Vec<High> {
        let state = self.state.read().clone();
        let mut found = BTreeMap::new();
        for (&tree, version) in intact(&state) {
            version.visit_extents(&mut |extent: &Arc<Extent>| {
                if extent.meta.offset + extent.meta.len > end {
                    let (schema, extent) = (version.codecs.schema.clone(), extent.clone());
                    found.insert(extent.meta.offset, High { tree, schema, extent });
                }
            });
        }
        found.into_values().collect()
    }

    /// Moves some of the last extents of `high` to free space before them, and removes them from the list. Returns the
    /// number of bytes of these.
    fn move_step(&self, high: &mut Vec<High>) -> Result<u64> {
        let checkpointed = self.maintenance.lock();
        let state = self.without_frozen(&checkpointed)?;
        let mut moved: BTreeMap<TreeId, MovedExtents> = BTreeMap::new();
        let mut bytes = 0;
        while bytes < self.step_bytes()
            && let Some(High { tree, schema, extent }) = high.pop()
        {
            bytes += extent.meta.len;
            if Arc::strong_count(&extent) == 1 {
                // No tree has it any more.
                continue;
            }
            match extent.moved_down(&schema) {
                Ok(Some(copy)) => drop(moved.entry(tree).or_default().insert(extent.meta.offset, Arc::new(copy))),
                Ok(None) => {}
                Err(error) if error.is_damage() => tracing::warn!(%error, %tree, "a damaged extent is not moved"),
                Err(error) => return Err(error),
            }
        }
        for (&tree, version) in intact(&state) {
            let Some(moved) = moved.get(&tree) else { continue };
            let root = version.root.with_moved(moved).map_or_else(|| version.root.clone(), Arc::new);
            let sample = version.sample.as_ref().map(|sample| with_moved(sample, moved));
            self.publish(tree, version, &version.with_root(root, sample));
        }
        Ok(bytes)
    }

    /// Moves the node table and the range for the next one to free space before them. Writes two checkpoints, which
    /// also make replaced extents free.
    fn lower_node_tables(&self, checkpointed: &mut Checkpointed) -> Result<()> {
        for _ in 0..2 {
            if let Some(spare) = checkpointed.spare_table
                && let Some(offset) = self.files.space.find_below(spare.1, spare.0)
            {
                checkpointed.spare_table = Some((offset, spare.1));
                self.files.space.free(spare.0, spare.1);
            }
            self.advance_checkpoint(checkpointed, true)?;
        }
        Ok(())
    }
}

fn with_moved(sample: &Arc<TreeSample>, moved: &MovedExtents) -> Arc<TreeSample> {
    if !sample.leaves.iter().any(|leaf| moved.contains_key(&leaf.meta.offset)) {
        return sample.clone();
    }
    let copy = |leaf: &Arc<Extent>| moved.get(&leaf.meta.offset).unwrap_or(leaf).clone();
    Arc::new(TreeSample { leaves: sample.leaves.iter().map(copy).collect(), ..TreeSample::clone(sample) })
}

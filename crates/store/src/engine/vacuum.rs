//! Compaction of the data file: messages move to leaves, then extents move from the end of the file to free space before
//! them, and the file system gets the rest back.
//!
//! Each step holds the maintenance lock, copies a bounded number of bytes and publishes the changed trees. Flushes,
//! checkpoints and commits run between the steps. What a step replaces becomes free with the next checkpoint, unless
//! snapshots or transactions still read it.
//!
//! A moved extent is copied page by page, with new positions in the pages, and verified on the way. Nothing is decoded.
//!
//! *Invariants.* A crash at any time finds a complete checkpoint and its log: a step writes to free space only. Damaged
//! pages stay where they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::base::{Error, Key, Result, TreeId};
use crate::engine::{Checkpointed, Shared, Store};
use crate::pages::Extent;
use crate::tree::{MovedExtents, TreeSample, TreeVersion};

/// Number of leaves whose bytes a step moves, about.
const STEP_LEAVES: u64 = 64;
/// Number of passes over the end of the file, at most: each frees space for the next one.
const PASSES_MAX: usize = 8;

/// What a compaction has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vacuumed {
    /// Length of the data file before, in bytes.
    pub bytes_before: u64,
    /// Length of the data file afterwards, in bytes.
    pub bytes_after: u64,
    /// False if `progress` has ended it.
    pub is_complete: bool,
}

/// Progress of a compaction: bytes that were moved, and how many there are.
struct Progress<'a> {
    report: &'a (dyn Fn(u64, u64) -> bool + Sync),
    done: u64,
    total: u64,
}

impl Progress<'_> {
    /// False if the compaction is to end.
    fn add(&mut self, bytes: u64) -> bool {
        self.done += bytes;
        self.total = self.total.max(self.done);
        (self.report)(self.done, self.total)
    }
}

impl Store {
    /// Moves all messages of the `wanted` trees to their leaves, and shortens the data file by moving the extents at its
    /// end, of all trees, to free space. Commits and reads continue meanwhile. Space that snapshots or transactions use
    /// stays in use. `progress` receives the numbers of bytes moved so far and in total, and ends the compaction by
    /// returning false; what was done until then remains. Damaged trees and pages are left as they are. Blocks.
    ///
    /// # Errors
    /// Those of [`Store::checkpoint`]. On a full disk, messages move down as far as the space allows, which is no error.
    pub fn vacuum(
        &self,
        wanted: impl Fn(TreeId) -> bool,
        progress: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<Vacuumed> {
        let shared = &self.shared;
        shared.run_structural_change(|| shared.make_checkpoint(false))?;
        let bytes_before = shared.files.space.usage().1;
        let state = shared.state.read().clone();
        let trees: Vec<(TreeId, u64)> = state
            .trees
            .range(..TreeId::MEMORY_START)
            .filter(|(tree, version)| wanted(**tree) && version.damage.is_none())
            .map(|(tree, version)| (*tree, version.root.run_bytes()))
            .collect();
        drop(state);
        let high = shared.extents_beyond(shared.files.space.dense_len());
        let total =
            trees.iter().map(|(_, bytes)| bytes).sum::<u64>() + high.iter().map(|(_, e)| e.meta.len).sum::<u64>();
        drop(high);
        let mut progress = Progress { report: progress, done: 0, total };
        let mut is_complete = progress.add(0);
        for (tree, _) in trees {
            is_complete = is_complete && shared.drain_tree(tree, &mut progress)?;
        }
        is_complete = is_complete && shared.shorten(&mut progress)?;
        let bytes_after = shared.files.space.usage().1;
        Ok(Vacuumed { bytes_before, bytes_after, is_complete })
    }
}

impl Shared {
    /// Moves all messages of a tree to its leaves. False if `progress` has ended it.
    fn drain_tree(&self, tree: TreeId, progress: &mut Progress<'_>) -> Result<bool> {
        let (mut from, mut was_full, mut replaced) = (Some(Key::default()), false, 0);
        while let Some(start) = from.take() {
            match self.run_structural_change(|| self.drain_step(tree, &start)) {
                Ok((next, bytes)) => {
                    (from, was_full, replaced) = (next, false, replaced + bytes);
                    if !progress.add(bytes) {
                        return Ok(false);
                    }
                    if replaced < self.step_bytes() {
                        continue;
                    }
                }
                // Once more, with the space that a checkpoint frees.
                Err(Error::DiskFull { .. }) if !was_full => (from, was_full) = (Some(start), true),
                Err(Error::DiskFull { .. }) => {}
                Err(error) if error.is_damage() => tracing::warn!(%error, %tree, "a damaged tree is not compacted"),
                Err(error) => return Err(error),
            }
            self.run_structural_change(|| self.make_checkpoint(true))?;
            replaced = 0;
        }
        Ok(true)
    }

    fn step_bytes(&self) -> u64 {
        STEP_LEAVES * self.options.leaf_bytes as u64
    }

    /// Moves some messages of the keys from `from` on to the leaves. Returns the key to continue from, and the number of
    /// bytes moved.
    fn drain_step(&self, tree: TreeId, from: &Key) -> Result<(Option<Key>, u64)> {
        let checkpointed = self.maintenance.lock();
        let Some(version) = self.flushed_version(&checkpointed, tree)? else { return Ok((None, 0)) };
        let before = version.root.run_bytes();
        let (root, next) = self.flusher(tree, &version).drain(&version.root, from, self.step_bytes())?;
        let bytes = before.saturating_sub(root.run_bytes());
        self.publish(tree, &version, &version.with_root(Arc::new(root), version.sample.clone()));
        self.leaves_changed();
        Ok((next, bytes))
    }

    /// The version of a tree without frozen buffers, whose root can be replaced as long as the maintenance lock is held;
    /// `None` if it was dropped or is damaged.
    fn flushed_version(&self, checkpointed: &Checkpointed, tree: TreeId) -> Result<Option<Arc<TreeVersion>>> {
        self.flush_now(checkpointed)?;
        let version = self.state.read().trees.get(&tree).cloned();
        Ok(version.filter(|version| version.damage.is_none()))
    }

    /// Moves extents from the end of the data file to free space before them, in several passes: what a pass replaces is
    /// free in the next one. False if `progress` has ended it.
    fn shorten(&self, progress: &mut Progress<'_>) -> Result<bool> {
        let mut len = u64::MAX;
        for pass in 0..=PASSES_MAX {
            self.run_structural_change(|| self.lower_node_tables(&mut self.maintenance.lock()))?;
            self.files.trim(true)?;
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
        }
        Ok(true)
    }

    /// The extents of all trees that end behind `end`, those with the highest offsets last.
    fn extents_beyond(&self, end: u64) -> Vec<(TreeId, Arc<Extent>)> {
        let state = self.state.read().clone();
        let mut found = BTreeMap::new();
        for (&tree, version) in state.trees.range(..TreeId::MEMORY_START) {
            version.visit_extents(&mut |extent: &Arc<Extent>| {
                if extent.meta.offset + extent.meta.len > end {
                    found.insert(extent.meta.offset, (tree, extent.clone()));
                }
            });
        }
        found.into_values().collect()
    }

    /// Moves some of the last extents of `high` to free space before them, and removes them from the list. Returns the
    /// number of bytes of these.
    fn move_step(&self, high: &mut Vec<(TreeId, Arc<Extent>)>) -> Result<u64> {
        let checkpointed = self.maintenance.lock();
        self.flush_now(&checkpointed)?;
        let state = self.state.read().clone();
        let mut moved: BTreeMap<TreeId, MovedExtents> = BTreeMap::new();
        let mut bytes = 0;
        while bytes < self.step_bytes()
            && let Some((tree, extent)) = high.pop()
        {
            bytes += extent.meta.len;
            let Some(version) = state.trees.get(&tree) else { continue };
            match extent.moved_down(&version.codecs.schema) {
                Ok(Some(copy)) => drop(moved.entry(tree).or_default().insert(extent.meta.offset, Arc::new(copy))),
                Ok(None) => {}
                Err(error) if error.is_damage() => tracing::warn!(%error, %tree, "a damaged extent is not moved"),
                Err(error) => return Err(error),
            }
        }
        for (tree, moved) in moved {
            let version = &state.trees[&tree];
            let root = version.root.with_moved(&moved).map_or_else(|| version.root.clone(), Arc::new);
            let sample = version.sample.as_ref().map(|sample| with_moved(sample, &moved));
            self.publish(tree, version, &version.with_root(root, sample));
        }
        self.leaves_changed();
        Ok(bytes)
    }

    /// Moves the node table and the range for the next one to free space before them. Writes two checkpoints, which also
    /// make replaced extents free.
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

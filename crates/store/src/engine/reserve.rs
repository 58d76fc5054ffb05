//! Full disks: commits that free space, and checkpoints that return it.
//!
//! Space is freed only by a checkpoint, which needs space itself: for the runs of all root buffers and for a node
//! table. Four rules keep both available:
//!
//! - *Room.* A commit that adds rows is refused unless the data file has free space for one and a half times the bytes
//!   of all root buffers, beside the reserve. The file grows for it while the disk has space. In a small file, reserve and
//!   room are short, see [`Space`](crate::pages::Space), and so are the segments of the log.
//! - *Reserve.* A part of the data file is free space that only flushes and checkpoints use, see
//!   [`Purpose`](crate::pages::Purpose). The space that they free fills it first.
//! - *Node tables.* A checkpoint is written only if a second range is set aside that is as long as its node table.
//! - *Released trees.* The extents of a dropped tree are released without a flush, by a checkpoint of the same commits
//!   as the previous one, in which the tree is empty ([`Shared::release_dropped`]). Its node table is not longer than
//!   the previous one, so it fits into the range that was set aside. The log keeps all records. A replay applies the
//!   messages for the tree to an empty tree, and then drops it: the record of the drop is durable before.
//!
//! A drop is therefore possible if the log has space for its record, and returns the extents of the tree. Deletes
//! become runs in the reserve. [`Shared::make_space`] moves them to leaves in steps, and writes a checkpoint whenever
//! the space for the next step is used up, so that each step uses the space that the steps before have freed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use keyaki_device::BLOCK;

use crate::base::{Error, Result, TreeId};
use crate::engine::node_table::Trained;
use crate::engine::{Checkpointed, Shared};
use crate::log::LogReserve;
use crate::message::WriteBatch;
use crate::pages::{Kept, Purpose};
use crate::tree::StoreVersion;

/// A range of the data file: offset and length in bytes.
pub(crate) type Place = (u64, u64);

/// Bytes of a small tree in the node table, which there are two of.
const TREE_ENTRY_BYTES: u64 = 1 << 10;
/// Trees with more rows may get a sample of this many bytes, for which a small file has no space.
const SMALL_ROWS_MAX: u64 = 8192;
const SAMPLE_BYTES: u64 = 1 << 20;
/// A range for a node table of `len` bytes may be longer by this, beside a factor of four.
const TABLE_EXCESS_MAX: u64 = 1 << 20;

fn is_apt(place: Place, len: u64) -> bool {
    (len..=4 * len + TABLE_EXCESS_MAX).contains(&place.1)
}

impl Shared {
    /// Bytes that the runs of all root buffers need, and bytes that a checkpoint may need beside them: for each tree with messages, a page
    /// and an index page, and for each tree its entry in the node table, and its sample.
    pub fn run_bytes(&self) -> (u64, u64) {
        let state = self.state.read().clone();
        let trees = state.trees.range(..TreeId::MEMORY_START).map(|(_, version)| version);
        trees.fold((0, 0), |(bytes, excess), version| {
            let buffer = version.buffer_bytes() as u64;
            let pages = if buffer > 0 { 2 * self.options.page_bytes as u64 } else { 0 };
            let sample = if version.root.rows() > SMALL_ROWS_MAX { SAMPLE_BYTES } else { 0 };
            (bytes + buffer * 3 / 2, excess + pages + sample + TREE_ENTRY_BYTES)
        })
    }

    /// Provides the room for a batch that adds rows. If the database will not be small any more, the log gets its usual
    /// lengths first.
    ///
    /// # Errors
    /// [`Error::DiskFull`], other device errors.
    pub fn make_room(&self, batch: &WriteBatch) -> Result<()> {
        let (mut bytes, mut excess) = self.run_bytes();
        bytes += batch.bytes.len() as u64 * 3 / 2;
        excess += batch.schemas().count() as u64 * (2 * self.options.page_bytes as u64 + TREE_ENTRY_BYTES);
        if self.files.space.remains_small(bytes + excess) {
            return self.files.make_small_room(bytes + excess);
        }
        self.log.lengthen()?;
        let made = self.files.make_room(bytes);
        if made.is_err() && self.files.space.is_small() {
            self.log.set_short(true);
        }
        made
    }

    /// Makes a database with little data small again, so that it needs less space.
    fn become_small(&self) {
        let _commits = self.commit.lock();
        let (bytes, excess) = self.run_bytes();
        if self.files.space.become_small(bytes + excess) {
            self.log.set_short(true);
        }
    }

    /// A range for a node table of `len` bytes. Afterwards, `checkpointed` has a range for the next one of this length:
    /// the one that is set aside, or that of the previous table, which becomes free.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: nothing has changed. [`Error::Poisoned`], device errors.
    pub fn place_table(&self, checkpointed: &mut Checkpointed, len: u64) -> Result<Place> {
        let allocate = || {
            // With space to grow, so that most tables take the two ranges in turn.
            let len = (len + len / 8).next_multiple_of(BLOCK as u64);
            Ok((self.files.allocate(len, Purpose::Checkpoint)?, len))
        };
        let place = match checkpointed.spare_table.take_if(|spare| is_apt(*spare, len)) {
            Some(spare) => spare,
            None => match (allocate(), checkpointed.spare_table) {
                (Ok(place), _) => place,
                (Err(Error::DiskFull { .. }), Some(spare)) if spare.1 >= len => {
                    checkpointed.spare_table = None;
                    spare
                }
                (Err(error), _) => return Err(error),
            },
        };
        let is_long = |next: Place| next.1 >= len;
        if !checkpointed.spare_table.is_some_and(is_long) && !is_long(checkpointed.meta) {
            match allocate() {
                Ok(next) => self.set_table_aside(checkpointed, next, len),
                Err(error) => {
                    self.set_table_aside(checkpointed, place, len);
                    return Err(error);
                }
            }
        }
        Ok(place)
    }

    /// Sets one of two ranges aside, for a node table of `len` bytes, and frees the other: the shorter one that is long
    /// enough, or else the longer one.
    pub fn set_table_aside(&self, checkpointed: &mut Checkpointed, place: Place, len: u64) {
        let Some(other) = checkpointed.spare_table.replace(place) else { return };
        let is_better = |a: Place, b: Place| if a.1.min(b.1) >= len { a.1 < b.1 } else { a.1 > b.1 };
        let (kept, freed) = if is_better(other, place) { (other, place) } else { (place, other) };
        checkpointed.spare_table = Some(kept);
        self.files.space.free(freed.0, freed.1);
    }

    /// Commits a batch that was refused because the disk is full. Batches that free space may use the reserve of the
    /// log. Returns as [`Shared::try_submit`].
    pub fn submit_on_full_disk(
        &self,
        batch: &WriteBatch,
        check: impl Fn(&StoreVersion) -> Result<()>,
    ) -> Result<(u64, u64)> {
        let frees = batch.frees_space()?;
        if !frees.any() {
            loop {
                self.try_make_space()?;
                let segment = self.log.newest_segment();
                let submitted = self.try_submit(batch, &check, LogReserve::Keep);
                // A record that used up the spare segment was refused for lack of another one. The next checkpoint begins in the
                // new segment, so that the one before it becomes the spare segment.
                if !matches!(submitted, Err(Error::DiskFull { .. })) || self.log.newest_segment() == segment {
                    return submitted;
                }
            }
        }
        let mut submitted = self.try_submit(batch, &check, LogReserve::Use);
        if matches!(submitted, Err(Error::DiskFull { .. })) {
            self.try_make_space()?;
            submitted = self.try_submit(batch, check, LogReserve::Use);
        }
        if submitted.is_ok() && frees.drops_trees {
            self.request_space();
        }
        submitted
    }

    /// As [`Shared::make_space`], but does nothing if nothing has changed since the last call, and a full disk is no
    /// error. Writers that are refused at the same time wait for one call.
    fn try_make_space(&self) -> Result<()> {
        let current = || {
            let inserted = self.inserted.load(Ordering::Acquire);
            Some((inserted, self.files.space.usage().0, self.log.newest_segment()))
        };
        let mut futile = self.futile.lock();
        // Readers of other processes may have ended. A structural change under way releases them itself.
        if let Some(mut checkpointed) = self.maintenance.try_lock() {
            self.release_pins(&mut checkpointed);
        }
        if *futile == current() {
            return Ok(());
        }
        let made = self.make_space();
        *futile = current();
        match made {
            Err(Error::DiskFull { .. }) => Ok(()),
            made => made,
        }
    }

    /// Returns the space of dropped trees and deleted rows on a full disk: writes checkpoints as long as they free
    /// space for moving more messages to leaves.
    ///
    /// # Errors
    /// Those of [`Store::checkpoint`](crate::Store::checkpoint).
    pub fn make_space(&self) -> Result<()> {
        match self.run_structural_change(|| self.release_dropped()) {
            // A checkpoint may find other space.
            Ok(()) | Err(Error::DiskFull { .. }) => {}
            Err(error) => return Err(error),
        }
        self.files.postponed.store(true, Ordering::Relaxed);
        let flushed = loop {
            let moves = self.files.moves.load(Ordering::Relaxed);
            let flushed = self.run_structural_change(|| self.make_checkpoint(true));
            let is_done = !self.files.postponed.load(Ordering::Relaxed);
            if flushed.is_err() || is_done || self.files.moves.load(Ordering::Relaxed) == moves {
                break flushed;
            }
        };
        self.become_small();
        if !self.log.keep_spare()? {
            // The log needs its reserve more than the data file needs free space.
            self.files.trim(Kept::Reserve)?;
            self.log.keep_spare()?;
        }
        flushed
    }

    /// Has the background thread return the space that a commit has freed on a full disk.
    pub fn request_space(&self) {
        let mut work = self.work.lock();
        work.reclaim = true;
        self.ask_for_work(&mut work);
    }

    /// Releases the extents of the trees that were dropped since the newest checkpoint.
    ///
    /// # Errors
    /// [`Error::Poisoned`], device errors; [`Error::DiskFull`] if no range for the node table could be set aside
    /// before.
    fn release_dropped(&self) -> Result<()> {
        let mut checkpointed = self.maintenance.lock();
        self.check_poison()?;
        let current = self.state.read().clone();
        let mut state = StoreVersion::clone(&checkpointed.state);
        let mut releases = false;
        for (tree, version) in &mut state.trees {
            let is_dropped = current.trees.get(tree).is_none_or(|now| now.created != version.created);
            if is_dropped && version.has_extents() {
                *version = Arc::new(version.emptied());
                releases = true;
            }
        }
        if !releases {
            return Ok(());
        }
        // A replay must find the drops, whatever the durability.
        self.log.sync()?;
        let (sequence, log) = (checkpointed.sequence, checkpointed.log);
        // A replay counts the rows of later commits.
        self.write_checkpoint(&mut checkpointed, state.counted_at(sequence), sequence, log, Trained::Stored)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use arrow_array::{ArrayRef, BinaryViewArray};
    use keyaki_device::simulated::Simulated;

    use super::*;
    use crate::base::{Options, Schema, TreeId};
    use crate::codec::KeyCodec;
    use crate::engine::Store;

    const DROPPED: TreeId = TreeId::new(20);
    const COUNTED: TreeId = TreeId::new(21);

    fn open(simulated: &Simulated) -> Store {
        Store::open(simulated.device(), Path::new("/db"), Options::default()).unwrap()
    }

    #[test]
    fn a_checkpoint_that_releases_a_tree_keeps_the_counts_of_others() {
        let (simulated, schema) = (Simulated::new(Default::default()), Schema::key_value());
        let keys: Vec<Vec<u8>> = (0..10_u8)
            .map(|key| {
                let column: ArrayRef = Arc::new(BinaryViewArray::from_iter_values([[key]]));
                let mut encoded = Vec::new();
                KeyCodec::new(&schema).encode(&[column], 0, &mut encoded);
                encoded
            })
            .collect();
        let store = open(&simulated);
        let mut batch = WriteBatch::new();
        for tree in [DROPPED, COUNTED] {
            batch.create_tree(tree, &schema);
            keys.iter().for_each(|key| batch.insert_new_raw(tree, key, b"row"));
        }
        store.commit(batch).unwrap();
        drop(store);
        // After opening, the checkpoint shares its counts with the trees.
        let store = open(&simulated);
        let mut batch = WriteBatch::new();
        keys[..3].iter().for_each(|key| batch.delete_existing_raw(COUNTED, key));
        batch.drop_tree(DROPPED);
        store.commit(batch).unwrap();
        let live = |store: &Store| store.snapshot().tree(COUNTED).unwrap().live_rows();
        assert_eq!(live(&store), Some(7));
        let checkpoints = store.stats().checkpoints;
        store.shared.release_dropped().unwrap();
        assert_eq!(store.stats().checkpoints, checkpoints + 1);
        simulated.crash();
        drop(store);
        assert_eq!(live(&open(&simulated)), Some(7));
    }
}

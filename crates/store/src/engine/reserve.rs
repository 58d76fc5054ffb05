//! The reserve for full disks: a checkpoint is always possible, and so are commits that free space.
//!
//! Only a checkpoint frees space. It writes the messages in root buffers, as runs, and a node table. A commit is therefore
//! admitted only if the data file has reserved space for both ([`Space`](crate::pages::Space)):
//!
//! - slots for the runs of all buffers, by the bound of [`RunLayout`], with the messages of the commit;
//! - a range for the node table. Writing buffers as runs adds one extent with one part for each slot to the table, at most
//!   [`PART_BYTES_MAX`] bytes and two keys. A flush publishes other changes of a tree only if the resulting table fits, too.
//!
//! A flush that finds no other space writes buffers as runs into the slots, reads nothing, and changes nothing else. It
//! and the checkpoint thus succeed. The bound adds up: the run of two sets of messages takes no more slots than two runs.
//!
//! *Levels.* Commits that add rows leave more space than others:
//!
//! | commit | slots that stay free beside the reserve | tables |
//! |---|---|---|
//! | adds rows | those in which flushes work, and [`ALLOWANCE`] | two, with space for the messages in `ALLOWANCE` |
//! | only deletes rows | [`DROP_SLOTS`] | one |
//! | drops trees | none | one |
//!
//! When a commit that adds rows has been refused, these are certain to succeed: commits that drop or truncate trees, as long as
//! their other messages take at most `DROP_SLOTS` slots, and deletes until their messages take `ALLOWANCE - DROP_SLOTS` slots. A slot
//! holds the messages of a quarter of a leaf: with default options, the reserve takes 12 MiB of messages of deletes by the bound. Each
//! of these commits is followed by a checkpoint, which returns the space of dropped trees. Flushes use it to apply deletes to leaves, which
//! frees the space of the deleted rows and of the messages. More deletes proceed in steps, as far as the steps before have freed space.
//!
//! *Leases.* Computing the bound takes time proportional to the number of trees. A commit takes its share from a lease, a part of the
//! reserve that has no messages yet. When the lease is used up, the bound of all buffers is computed, and a new lease added to it.
//!
//! *After a crash* the log refills the buffers. On a full disk every flush is part of a checkpoint, so these are not more messages
//! than those in the buffers before.

use std::sync::atomic::Ordering;

use crate::base::{Result, TreeId};
use crate::codec::PageBound;
use crate::engine::{BatchContents, CommitToken, Shared};
use crate::message::{KEY_LIMIT, Messages, WriteBatch};
use crate::pages::{Purpose, RunLayout};
use crate::tree::StoreVersion;

/// Slots that commits which add rows leave for those that free space.
pub(crate) const ALLOWANCE: u64 = 64;
/// Slots that commits which only delete rows leave for those that drop trees.
const DROP_SLOTS: u64 = 16;
/// Slots of a lease, if the disk has the space.
const LEASE_SLOTS: u64 = 16;
/// Bytes of an extent and a part in the node table, without keys.
const PART_BYTES_MAX: u64 = 128;
/// Further bytes of the node table that commits which add rows leave.
const TABLE_ALLOWANCE: u64 = 16 << 10;

/// The use that a commit may make of the reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// It adds rows.
    Add,
    /// It only deletes rows.
    Delete,
    /// It drops trees.
    Drop,
}

impl Level {
    /// Slots that it leaves beside the reserve.
    fn kept(self, shared: &Shared) -> u64 {
        match self {
            Level::Add => shared.files.space.kept_slots(),
            Level::Delete => DROP_SLOTS,
            Level::Drop => 0,
        }
    }
}

/// The part of the reserve that has no messages yet.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Bytes of data pages.
    bytes: u64,
    /// The lease serves only commits of this level or a later one, with messages of at most this length to trees with
    /// such pages.
    level: Level,
    longest: u64,
    bound: PageBound,
}

impl Default for Lease {
    fn default() -> Self {
        Lease { bytes: 0, level: Level::Drop, longest: 0, bound: PageBound::default() }
    }
}

/// The space that the messages of a batch may take.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cost {
    pub messages: Messages,
    /// Number of trees, or more, that have no messages in their active buffer.
    pub fresh: u64,
    /// For trees that are created or extended.
    pub bound: PageBound,
}

impl Shared {
    pub fn run_layout(&self) -> RunLayout {
        RunLayout::new(self.options.page_bytes, self.options.leaf_bytes)
    }

    /// Reserves space for the messages of a batch. The caller holds the commit lock until they are in the buffers.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: nothing has changed. Device errors.
    pub fn reserve_for(
        &self,
        commit: &CommitToken,
        state: &StoreVersion,
        batch: &WriteBatch,
        contents: &BatchContents,
        level: Level,
    ) -> Result<()> {
        if batch.bytes.is_empty() {
            return Ok(());
        }
        let (mut lease, layout, cost) = (self.lease.lock(), self.run_layout(), contents.cost);
        if lease.level <= level && cost.messages.longest <= lease.longest && cost.bound.is_within(lease.bound) {
            let needed = layout.added_bytes(lease.bound, cost.messages) + cost.fresh * layout.target_bytes() as u64;
            if needed <= lease.bytes && !contents.changes_trees {
                lease.bytes -= needed;
                return Ok(());
            }
        }
        *lease = self.renewed_lease(commit, state, (batch.bytes.len() as u64, cost), level)?;
        if contents.changes_trees {
            // Schemas have the same encoding in the table, which has a few further numbers for each tree.
            self.new_tree_bytes.fetch_add(2 * batch.bytes.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Computes the bound for all buffers and a batch of `batch_bytes` bytes, and reserves the space. Returns a new lease.
    fn renewed_lease(
        &self,
        _commit: &CommitToken,
        state: &StoreVersion,
        (batch_bytes, cost): (u64, Cost),
        level: Level,
    ) -> Result<Lease> {
        let (space, layout) = (&self.files.space, self.run_layout());
        let mut bound = cost.bound;
        for (_, version) in state.trees.range(..TreeId::MEMORY_START) {
            bound = bound.max(version.codecs.page_bound);
        }
        let longest = cost.messages.longest.max(self.options.page_bytes as u64 / 4);
        let buffered = self.buffered_slots(state, cost.bound, longest);
        let slot_bytes = self.slot_bytes(layout.slot_bytes(bound, longest).max(buffered.1));
        let added = layout.added_bytes(bound, cost.messages).div_ceil(layout.target_bytes() as u64) + cost.fresh;
        let needed = buffered.0 + added;
        let (reserve_before, slot_bytes_before) = (space.reserve(), space.slot_bytes());
        space.set_slot_bytes(slot_bytes);
        let kept = level.kept(self);
        let reserved = (self.files.set_reserve(needed + LEASE_SLOTS, kept).map(|()| LEASE_SLOTS))
            .or_else(|_| self.files.set_reserve(needed, kept).map(|()| 0))
            .and_then(|leased| {
                let table = self.table_bytes.load(Ordering::Relaxed) + 2 * batch_bytes;
                let table = |slots: u64| self.table_with(table, slots, longest);
                match level {
                    Level::Add => {
                        let table = table(needed + leased + ALLOWANCE) + TABLE_ALLOWANCE;
                        self.files.keep_tables(table, 2, kept)?;
                    }
                    Level::Delete | Level::Drop => self.files.keep_tables(table(needed + leased), 1, kept)?,
                }
                Ok(leased)
            });
        match reserved {
            Ok(leased) => Ok(Lease { bytes: leased * layout.target_bytes() as u64, level, longest, bound }),
            Err(error) => {
                space.set_slot_bytes(slot_bytes_before);
                space.force_reserve(reserve_before);
                Err(error)
            }
        }
    }

    /// Slots for all buffers, and their length. `bound` is that of a tree that is about to be extended, and `longest` the length of
    /// messages that any of the buffers may receive: the bound adds up only for messages of one maximum length.
    fn buffered_slots(&self, state: &StoreVersion, bound: PageBound, longest: u64) -> (u64, u64) {
        let layout = self.run_layout();
        let (mut slots, mut slot_bytes) = (0, 0);
        for (_, version) in state.trees.range(..TreeId::MEMORY_START) {
            let bound = version.codecs.page_bound.max(bound);
            for messages in version.buffers().map(|buffer| buffer.messages()).filter(|messages| messages.count > 0) {
                let messages = Messages { longest: messages.longest.max(longest), ..messages };
                slots += layout.slots(bound, messages);
                slot_bytes = layout.slot_bytes(bound, messages.longest).max(slot_bytes);
            }
        }
        (slots, slot_bytes)
    }

    /// The length of slots that hold extents of `bytes` bytes.
    fn slot_bytes(&self, bytes: u64) -> u64 {
        let ordinary = self.run_layout().ordinary_slot_bytes();
        if bytes <= ordinary { ordinary } else { bytes.next_power_of_two() }
    }

    /// Sets the reserve to what the buffers need. The next commit takes a new lease.
    pub fn refresh_reserve(&self, _commit: &CommitToken) {
        let state = self.state.read().clone();
        let mut lease = self.lease.lock();
        let (slots, slot_bytes) = self.buffered_slots(&state, PageBound::default(), 0);
        self.files.space.set_slot_bytes(self.slot_bytes(slot_bytes));
        self.files.space.force_reserve(slots);
        let buffers = state.trees.values().flat_map(|version| version.buffers());
        let longest = buffers.map(|buffer| buffer.messages().longest).max().unwrap_or(0);
        *lease = Lease { longest, ..Lease::default() };
    }

    /// Accounts for a tree whose part of the node table changes from `old` to `new` bytes.
    ///
    /// # Errors
    /// [`Error::DiskFull`] if the next node table may not have the space then. Nothing has changed.
    pub fn change_table(&self, old: u64, new: u64) -> Result<()> {
        let lease = self.lease.lock();
        let bytes = (self.table_bytes.load(Ordering::Relaxed) + new).saturating_sub(old);
        if new > old {
            let table = self.table_with(bytes, self.files.space.reserve(), lease.longest);
            self.files.keep_tables(table, 1, self.files.space.kept_slots())?;
        }
        self.table_bytes.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Length of a table of `table_bytes` bytes with the trees created since the checkpoint, and with messages in `slots` slots.
    fn table_with(&self, table_bytes: u64, slots: u64, longest: u64) -> u64 {
        let part = PART_BYTES_MAX + 2 * longest.min(KEY_LIMIT as u64);
        table_bytes + self.new_tree_bytes.load(Ordering::Relaxed) + slots * part
    }

    /// Sets free space aside for the next tables, as far as there is some, after opening.
    pub fn find_tables(&self) {
        let (bytes, longest) = (self.table_bytes.load(Ordering::Relaxed), self.lease.lock().longest);
        self.files.space.find_tables(self.table_with(bytes, self.files.space.reserve(), longest));
    }

    /// Sets space aside for the tables after one of `len` bytes, which an installation is about to write.
    ///
    /// # Errors
    /// [`Error::DiskFull`]: the installation must not take place.
    pub fn keep_tables_after(&self, len: u64) -> Result<()> {
        let lease = self.lease.lock();
        let table = self.table_with(len, self.files.space.reserve() + ALLOWANCE, lease.longest);
        self.files.keep_tables(table, 2, self.files.space.kept_slots())
    }

    /// Accounts for a node table of `len` bytes that was written. `new_tree_bytes` were those at its cut.
    pub fn table_written(&self, len: u64, new_tree_bytes: u64) {
        let _lease = self.lease.lock();
        self.table_bytes.store(len, Ordering::Relaxed);
        self.new_tree_bytes.fetch_sub(new_tree_bytes, Ordering::Relaxed);
    }

    /// A range for a node table of `len` bytes: its offset and its length.
    ///
    /// # Errors
    /// [`Error::DiskFull`].
    pub fn place_table(&self, len: u64) -> Result<(u64, u64)> {
        match self.files.space.take_table(len) {
            Some(place) => Ok(place),
            None => Ok((self.files.allocate(len, Purpose::Checkpoint)?, len)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
    use keyaki_device::simulated::{Simulated, SimulatedOptions};
    use keyaki_primitives::Random;

    use super::*;
    use crate::base::{Column, ColumnType, Options, Schema};
    use crate::engine::Store;

    const TREE: TreeId = TreeId::new(1);

    fn schema(columns: usize) -> Schema {
        let column = |i: usize| {
            let ty = if i.is_multiple_of(3) { ColumnType::Text } else { ColumnType::Int64 };
            Column { name: format!("c{i}"), ty, nullable: i > 0 }
        };
        Schema::new((0..columns).map(column).collect(), 1)
    }

    /// Rows of random lengths: some are much longer than the others, and some can be compressed.
    fn rows(schema: &Schema, random: &mut Random, count: usize) -> RecordBatch {
        let (kind, longest) = (random.below(4), 1 << random.below(16));
        let noise = |random: &mut Random, len: u64| -> String {
            (0..len).map(|_| char::from(b' ' + random.below(90) as u8)).collect()
        };
        let count = count as u64;
        let arrays = schema.columns().iter().enumerate().map(|(i, column)| {
            let array: ArrayRef = match column.ty {
                ColumnType::Text => {
                    let texts = (0..count).map(|row| {
                        let len = if random.below(50) == 0 { random.below(longest) } else { random.below(30) };
                        match (i, kind) {
                            (0, _) => Some(format!("{row:08}{}", noise(random, row % 12))),
                            (_, 0) => None,
                            (_, 1) => Some("x".repeat(len as usize)),
                            _ => Some(noise(random, len)).filter(|_| random.below(5) > 0),
                        }
                    });
                    Arc::new(StringViewArray::from_iter(texts))
                }
                _ => {
                    let bits = random.below(63);
                    let number = |random: &mut Random| random.next_u64() as i64 >> bits;
                    let numbers = (0..count).map(|_| Some(number(random)).filter(|_| random.below(3) > 0));
                    Arc::new(Int64Array::from_iter(numbers))
                }
            };
            array
        });
        RecordBatch::try_new(schema.arrow().clone(), arrays.collect()).unwrap()
    }

    /// Runs of random messages take at most the slots of their bound, and each extent fits into a slot.
    #[test]
    fn the_bound_holds() {
        let (mut slots_sum, mut taken_sum) = (0, 0);
        for seed in 0..60 {
            let mut random = Random::new(seed);
            let page_bytes = 4096 << random.below(3);
            let leaf_bytes = page_bytes << random.below(5);
            let options = Options { page_bytes, leaf_bytes, buffer_bytes: 1 << 30, ..Options::default() };
            let simulated = Simulated::new(SimulatedOptions::default());
            let store = Store::open(simulated.device(), Path::new("/db"), options).unwrap();
            let schema = schema([1, 2, 5, 30, 120][random.below(5) as usize]);
            let mut batch = WriteBatch::new();
            batch.create_tree(TREE, &schema);
            store.commit(batch).unwrap();
            for _ in 0..1 + random.below(3) {
                let mut batch = WriteBatch::new();
                let most = [10, 300, 3000][random.below(3) as usize];
                let count = 1 + random.below(most) as usize;
                let rows = rows(&schema, &mut random, count);
                batch.insert(TREE, &schema, &rows).unwrap();
                if random.below(2) == 0 {
                    batch.delete(TREE, &schema, &rows.project(&[0]).unwrap().slice(count / 3, count / 3)).unwrap();
                }
                store.commit(batch).unwrap();
            }
            let shared = &store.shared;
            let state = shared.state.read().clone();
            let version = &state.trees[&TREE];
            let (slots, _) = shared.buffered_slots(&state, PageBound::default(), 0);
            assert!(shared.files.space.reserve() >= slots, "seed {seed}");
            let run = shared.flusher(TREE, version).reserved_run(&version.active, None).unwrap();
            let longest = run.parts.iter().map(|part| part.extent.meta.len).max().unwrap();
            assert!(longest <= shared.files.space.slot_bytes(), "seed {seed}: an extent of {longest} bytes");
            assert!(run.parts.len() as u64 <= slots, "seed {seed}: {} extents, bound {slots}", run.parts.len());
            let keys = 2 * version.active.messages().longest.min(KEY_LIMIT as u64);
            let root =
                crate::tree::InnerNode::new(Vec::new(), vec![Arc::new(crate::tree::Node::Leaf(None))], vec![run]);
            let flushed = version.with_root(Arc::new(root), None);
            let bytes = |version| crate::engine::node_table::tree_bytes(TREE, version) as u64;
            assert!(bytes(&flushed) <= bytes(version) + slots * (PART_BYTES_MAX + keys), "seed {seed}");
            taken_sum += flushed.root.runs[0].parts.len() as u64;
            slots_sum += slots;
        }
        println!("bound {slots_sum} slots, taken {taken_sum}");
    }

    /// The reserve follows the buffers: it covers them after every commit, and is empty after a checkpoint.
    #[test]
    fn the_reserve_covers_all_buffers() {
        let simulated = Simulated::new(SimulatedOptions::default());
        let store = Store::open(simulated.device(), Path::new("/db"), Options::default()).unwrap();
        let (mut random, schema) = (Random::new(7), schema(5));
        for tree in 1..5 {
            let mut batch = WriteBatch::new();
            batch.create_tree(TreeId::new(tree), &schema);
            store.commit(batch).unwrap();
        }
        for _ in 0..300 {
            let (mut batch, tree) = (WriteBatch::new(), TreeId::new(1 + random.below(4) as u32));
            let count = 1 + random.below(200) as usize;
            batch.insert(tree, &schema, &rows(&schema, &mut random, count)).unwrap();
            store.commit(batch).unwrap();
            let shared = &store.shared;
            let (slots, slot_bytes) = shared.buffered_slots(&shared.state.read().clone(), PageBound::default(), 0);
            let space = &shared.files.space;
            assert!(space.reserve() >= slots && space.slot_bytes() >= slot_bytes);
        }
        store.checkpoint().unwrap();
        assert_eq!(store.shared.files.space.reserve(), 0);
    }
}

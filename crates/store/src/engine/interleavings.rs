//! Snapshots beside commits, freezes, flushes and publications under shuttle: a real store on the simulated device,
//! with other threads at every access to a lock, to an atomic of the engine, and before every operation of the device.
//!
//! Each commit adds one to a counter in each tree and inserts a row into each tree. A snapshot at sequence number s
//! must therefore find s (less the commits that created the trees) in the counters, and as many rows: it sees each
//! message up to s exactly once, wherever the message is at that time, and no later one.
//!
//! Not scheduled: accesses within the Masstree of a buffer (it has interleaving tests of its own) and within message
//! chains, and the flush by several threads, for which the buffers are too small.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::sync::thread::spawn;
use keyaki_primitives::sync::{Limits, explore};

use crate::base::{Column, ColumnType, Direction, Durability, Error, KeyRange, Options, Result, Schema, TreeId};
use crate::codec::ColumnChange;
use crate::engine::Store;
use crate::message::WriteBatch;
use crate::pages::block_on;
use crate::tree::Snapshot;

const ONE: &[TreeId] = &[TreeId::new(20)];
const TWO: &[TreeId] = &[TreeId::new(20), TreeId::new(21)];
const WITH_MEMORY: &[TreeId] = &[TreeId::new(20), TreeId::new(1 << 31 | 1)];
/// A tree that a thread creates or drops.
const OTHER: TreeId = TreeId::new(30);
/// The key of the counter. Rows have greater keys.
const COUNTER: i64 = 0;

struct Model {
    medium: Simulated,
    store: Store,
    trees: &'static [TreeId],
    /// Sequence number of the last commit that created a tree.
    created: u64,
    /// The key of the next row.
    next_key: AtomicU64,
    /// The newest acknowledged commit.
    acknowledged: AtomicU64,
}

/// A key and a value. Memory trees have floats, because they do not bound sums of integers.
fn schema(tree: TreeId) -> Schema {
    let ty = if tree.is_memory() { ColumnType::Float64 } else { ColumnType::Int64 };
    let column = |name: &str, ty| Column { name: name.into(), ty, nullable: false };
    Schema::new(vec![column("key", ColumnType::Int64), column("value", ty)], 1)
}

fn columns(tree: TreeId, key: i64, value: i64) -> [ArrayRef; 2] {
    let value: ArrayRef = match tree.is_memory() {
        true => Arc::new(Float64Array::from(vec![value as f64])),
        false => Arc::new(Int64Array::from(vec![value])),
    };
    [Arc::new(Int64Array::from(vec![key])), value]
}

fn insert(batch: &mut WriteBatch, tree: TreeId, key: i64, value: i64) {
    let rows = RecordBatch::try_new(schema(tree).arrow().clone(), columns(tree, key, value).to_vec()).unwrap();
    batch.insert(tree, &schema(tree), &rows).unwrap();
}

fn options(durability: Durability, buffer_bytes: usize) -> Options {
    let (page_bytes, leaf_bytes) = (4096, 8192);
    Options { durability, buffer_bytes, page_bytes, leaf_bytes, cache_bytes: 64 << 10, ..Options::default() }
}

fn open(medium: &Simulated, durability: Durability, buffer_bytes: usize) -> Store {
    Store::open(medium.device(), Path::new("/db"), options(durability, buffer_bytes)).unwrap()
}

impl Model {
    fn new(durability: Durability, buffer_bytes: usize, trees: &'static [TreeId]) -> Model {
        let medium = Simulated::new(SimulatedOptions::default());
        let store = open(&medium, durability, buffer_bytes);
        let mut batch = WriteBatch::new();
        trees.iter().for_each(|&tree| batch.create_tree(tree, &schema(tree)));
        let created = store.commit(batch).unwrap();
        let (next_key, acknowledged) = (AtomicU64::new(1), AtomicU64::new(created));
        Model { medium, store, trees, created, next_key, acknowledged }
    }

    /// A batch that counts itself in all trees.
    fn batch(&self) -> WriteBatch {
        let (mut batch, key) = (WriteBatch::new(), self.next_key.fetch_add(1, Ordering::SeqCst) as i64);
        for &tree in self.trees {
            let counter = columns(tree, COUNTER, 1);
            batch.upsert_rows(tree, &schema(tree), &counter, &[ColumnChange::Add], None).unwrap();
            insert(&mut batch, tree, key, key);
        }
        batch
    }

    fn acknowledge(&self, sequence: u64) {
        self.acknowledged.fetch_max(sequence, Ordering::SeqCst);
    }

    fn commit(&self) {
        let sequence = self.store.commit(self.batch()).unwrap();
        self.acknowledge(sequence);
    }

    /// Freezes and flushes all buffers.
    fn flush(&self) {
        let shared = &self.store.shared;
        shared.flush_now(&shared.maintenance.lock()).unwrap();
    }

    /// Checks that a snapshot is one of the commits up to its sequence number, and sees those acknowledged before it.
    fn check(&self, snapshot: &Snapshot, acknowledged: u64) {
        let sequence = snapshot.sequence();
        assert!(sequence >= acknowledged, "a snapshot at {sequence} after commit {acknowledged} was acknowledged");
        let expected = sequence - self.created;
        for &tree in self.trees {
            let (counter, rows) = contents(&self.store, snapshot, tree).unwrap();
            assert_eq!(counter, expected, "counter of tree {tree} in a snapshot at {sequence}");
            assert_eq!(rows, expected, "rows of tree {tree} in a snapshot at {sequence}");
        }
    }

    /// Visible commits must survive as acknowledged ones do.
    fn read(&self) {
        let acknowledged = self.acknowledged.load(Ordering::SeqCst);
        let snapshot = self.store.snapshot();
        self.check(&snapshot, acknowledged);
        self.acknowledge(snapshot.sequence());
    }

    fn read_latest(&self) {
        let acknowledged = self.acknowledged.load(Ordering::SeqCst);
        self.check(&self.store.latest(), acknowledged);
    }

    /// Renews a snapshot as a reader of many statements does.
    fn read_renewed(&self) {
        let mut snapshot = self.store.snapshot();
        for _ in 0..3 {
            let (acknowledged, before) = (self.acknowledged.load(Ordering::SeqCst), snapshot.sequence());
            if !self.store.renew(&mut snapshot) {
                snapshot = self.store.snapshot();
            }
            assert!(snapshot.sequence() >= before, "a renewed snapshot is older");
            self.check(&snapshot, acknowledged);
        }
    }

    /// Cuts the power. Acknowledged commits must be recovered.
    fn check_recovery(self, durability: Durability) {
        self.store.shared.poison("the process dies");
        drop(self.store);
        self.medium.crash();
        let store = open(&self.medium, durability, 1 << 20);
        let acknowledged = self.acknowledged.into_inner();
        let model = Model { store, next_key: AtomicU64::new(0), acknowledged: AtomicU64::new(0), ..self };
        model.check(&model.store.snapshot(), acknowledged);
    }
}

/// The counter of a tree, and the number of its other rows.
fn contents(store: &Store, snapshot: &Snapshot, tree: TreeId) -> Result<(u64, u64)> {
    let (view, source, mut found) = (snapshot.tree(tree)?, store.blocking(), (0, 0));
    let mut cursor = view.cursor(&source, KeyRange::all(), Direction::Ascending);
    while let Some(chunk) = block_on(cursor.next())? {
        let arrays = chunk.to_arrays(&[0, 1])?;
        for (row, &key) in arrays[0].as_primitive::<Int64Type>().values().iter().enumerate() {
            match key {
                COUNTER if tree.is_memory() => found.0 += arrays[1].as_primitive::<Float64Type>().value(row) as u64,
                COUNTER => found.0 += arrays[1].as_primitive::<Int64Type>().value(row) as u64,
                _ => found.1 += 1,
            }
        }
    }
    Ok(found)
}

type Work = fn(&Model);

/// Runs the threads on one store, and `after` at the end.
fn run<const N: usize>(
    schedules: usize,
    new: impl Fn() -> Model + Send + Sync + 'static,
    threads: [Work; N],
    after: impl Fn(Model) + Send + Sync + 'static,
) {
    explore(Limits::schedules(schedules), move || {
        let model = Arc::new(new());
        let handles = threads.map(|work| {
            let model = model.clone();
            spawn(move || work(&model))
        });
        handles.into_iter().for_each(|handle| handle.join().unwrap());
        let Ok(model) = Arc::try_unwrap(model) else { panic!("a thread still uses the store") };
        model.read();
        model.read_latest();
        after(model);
    });
}

#[test]
fn snapshots_beside_flushes() {
    let flush: Work = |model| {
        model.flush();
        model.flush();
    };
    let commit: Work = |model| (0..2).for_each(|_| model.commit());
    let read: Work = |model| {
        model.read();
        model.read_latest();
    };
    run(200, || Model::new(Durability::Off, 1 << 20, TWO), [commit, commit, flush, read], drop);
}

#[test]
fn durable_snapshots_beside_checkpoints() {
    let checkpoint: Work = |model| model.store.checkpoint().unwrap();
    let commit: Work = |model| (0..2).for_each(|_| model.commit());
    let new = || Model::new(Durability::Full, 1 << 20, TWO);
    run(200, new, [commit, commit, checkpoint, Model::read], |model| model.check_recovery(Durability::Full));
}

#[test]
fn renewed_snapshots_beside_flushes() {
    let commit: Work = |model| (0..2).for_each(|_| model.commit());
    let new = || Model::new(Durability::Off, 1 << 20, TWO);
    run(200, new, [commit, commit, Model::flush, Model::read_renewed], drop);
}

#[test]
fn snapshots_of_memory_trees_beside_commits() {
    let commit: Work = |model| (0..2).for_each(|_| model.commit());
    // As the background thread does for more keys than these.
    let collect: Work = |model| {
        let (shared, state) = (&model.store.shared, model.store.latest().state);
        for _ in 0..2 {
            let _commit = shared.commit.lock();
            let live = shared.snapshots.live(|| shared.visible());
            state.trees[&model.trees[1]].active.collect_garbage(100, &live);
        }
        model.flush();
    };
    let new = || Model::new(Durability::Off, 1 << 20, WITH_MEMORY);
    run(200, new, [commit, commit, collect, Model::read], drop);
}

/// The installation of a batch replaces all trees, beside commits.
#[test]
fn snapshots_beside_installations() {
    let install: Work = |model| model.store.install(model.batch(), Vec::new()).unwrap();
    let new = || Model::new(Durability::Full, 1 << 20, TWO);
    run(200, new, [Model::commit, install, Model::read, Model::read_renewed], drop);
}

/// A snapshot sees a tree if and only if it sees the commit that created it, with all rows of that commit.
#[test]
fn snapshots_beside_new_trees() {
    let create: Work = |model| {
        let mut batch = model.batch();
        batch.create_tree(OTHER, &schema(OTHER));
        insert(&mut batch, OTHER, 1, 1);
        let sequence = model.store.commit(batch).unwrap();
        model.acknowledge(sequence);
        let snapshot = model.store.snapshot();
        assert_eq!(contents(&model.store, &snapshot, OTHER).unwrap(), (0, 1));
    };
    let read: Work = |model| {
        model.read();
        let snapshot = model.store.snapshot();
        if let Ok(view) = snapshot.tree(OTHER) {
            let (created, sequence) = (view.version.created, snapshot.sequence());
            assert!(created <= sequence, "a tree created at {created} in a snapshot at {sequence}");
            assert_eq!(contents(&model.store, &snapshot, OTHER).unwrap(), (0, 1));
        }
    };
    let new = || Model::new(Durability::Full, 1 << 20, TWO);
    run(200, new, [create, Model::commit, Model::flush, read], drop);
}

/// Buffers without room: commits wait for the background thread, which flushes.
#[test]
fn commits_wait_for_background_flushes() {
    let commit: Work = |model| (0..2).for_each(|_| model.commit());
    let new = || Model::new(Durability::Off, 1, TWO);
    run(150, new, [commit, commit, Model::read], drop);
}

/// A power failure at any time. Commits that a snapshot has seen are durable.
#[test]
fn visible_commits_survive_a_power_failure() {
    let commit: Work = |model| {
        for _ in 0..2 {
            match model.store.commit(model.batch()) {
                Ok(sequence) => model.acknowledge(sequence),
                Err(Error::Poisoned { .. } | Error::Device(_)) => return,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let crash: Work = |model| model.medium.crash();
    let new = || Model::new(Durability::Full, 1 << 20, TWO);
    run(200, new, [commit, commit, Model::read, crash], |model| model.check_recovery(Durability::Full));
}

/// Read-modify-write transactions beside flushes, which move the messages that conflict checks look up.
#[test]
fn transactions_lose_no_updates_beside_flushes() {
    let increment: Work = |model| {
        for _ in 0..4 {
            let mut transaction = model.store.begin();
            let (tree, mut batch) = (model.trees[0], WriteBatch::new());
            let counter = contents(&model.store, &transaction.snapshot(), tree).unwrap().0;
            let key = model.next_key.fetch_add(1, Ordering::SeqCst) as i64;
            insert(&mut batch, tree, COUNTER, counter as i64 + 1);
            insert(&mut batch, tree, key, key);
            transaction.write(batch).unwrap();
            match transaction.commit().and_then(|submitted| submitted.map(|submitted| submitted.wait()).transpose()) {
                Ok(sequence) => return model.acknowledge(sequence.unwrap()),
                Err(Error::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    };
    let new = || Model::new(Durability::Off, 1 << 20, ONE);
    run(300, new, [increment, increment, Model::flush], drop);
}

/// A flush moves the message of the commit with which a transaction conflicts, beside the check of the transaction.
#[test]
fn conflicts_are_found_beside_flushes() {
    explore(Limits::schedules(300), || {
        let model = Arc::new(Model::new(Durability::Off, 1 << 20, ONE));
        let mut transaction = model.store.begin();
        transaction.write(model.batch()).unwrap();
        model.commit();
        let flusher = model.clone();
        let flusher = spawn(move || flusher.flush());
        assert!(matches!(transaction.commit(), Err(Error::Conflict { .. })));
        flusher.join().unwrap();
        model.read();
    });
}

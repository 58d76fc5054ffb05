//! Transactions that spill their writes: many runs, savepoints between them, trees that are created and dropped, sums,
//! conflicts, crashes, and the space of what is given up.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array};
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::{
    ColumnChange, Durability, Error, KeyRange, Options, Savepoint, Snapshot, Store, TreeId, WriteBatch,
};

use common::{number_key as key, number_rows, number_schema as schema};

const TREE: TreeId = TreeId::new(20);

type Model = BTreeMap<i64, i64>;

fn options() -> Options {
    Options {
        buffer_bytes: 1 << 20,
        cache_bytes: 1 << 20,
        page_bytes: 4096,
        leaf_bytes: 16_384,
        fan_out: 4,
        node_buffer_bytes: 60_000,
        durability: Durability::Full,
        ..Options::default()
    }
}

fn open(simulated: &Simulated) -> Store {
    Store::open(simulated.device(), Path::new("/db"), options()).unwrap()
}

fn new_store(seed: u64) -> (Simulated, Store) {
    let simulated = Simulated::new(SimulatedOptions { seed, ..Default::default() });
    let store = open(&simulated);
    let mut batch = WriteBatch::new();
    batch.create_tree(TREE, &schema());
    store.commit(batch).unwrap();
    (simulated, store)
}

fn rows(store: &Store, snapshot: &Snapshot, tree: TreeId) -> Model {
    number_rows(store, &snapshot.tree(tree).unwrap())
}

fn put(tree: TreeId, rows: &[(i64, i64)]) -> WriteBatch {
    let mut batch = WriteBatch::new();
    rows.iter().for_each(|(number, value)| batch.insert_raw(tree, &key(*number), &value.to_le_bytes()));
    batch
}

fn used_bytes(store: &Store) -> u64 {
    store.stats().data_bytes_used
}

/// A transaction much larger than its memory: inserts, updates and deletes in many spills, which are merged meanwhile.
#[test]
fn many_spills() {
    let (simulated, store) = new_store(1);
    let mut model: Model = (0..5_000).map(|number| (number * 3, number)).collect();
    let all: Vec<(i64, i64)> = model.iter().map(|(&number, &value)| (number, value)).collect();
    store.commit(put(TREE, &all)).unwrap();
    let mut batch = WriteBatch::new();
    batch.insert_new_raw(TREE, &key(-1), &0_i64.to_le_bytes());
    store.commit(batch).unwrap();
    store.checkpoint().unwrap();
    model.insert(-1, 0);
    let committed = model.clone();
    let mut random = Random::new(1);
    let mut transaction = store.begin();
    for step in 0..60 {
        let mut batch = WriteBatch::new();
        for _ in 0..700 {
            let number = random.below(20_000) as i64;
            match (model.contains_key(&number), random.below(3)) {
                (true, 0) => {
                    batch.delete_existing_raw(TREE, &key(number));
                    model.remove(&number);
                }
                (is_old, _) => {
                    let value = random.below(1 << 40) as i64;
                    match is_old {
                        true => batch.update_raw(TREE, &key(number), &value.to_le_bytes()),
                        false => batch.insert_new_raw(TREE, &key(number), &value.to_le_bytes()),
                    }
                    model.insert(number, value);
                }
            }
        }
        transaction.write(batch).unwrap();
        transaction.spill(&[]).unwrap();
        assert!(transaction.bytes() < 100_000, "{} bytes after step {step}", transaction.bytes());
        if step % 7 == 0 {
            let snapshot = transaction.snapshot();
            assert_eq!(rows(&store, &snapshot, TREE), model);
            let view = snapshot.tree(TREE).unwrap();
            assert_eq!(view.live_rows(), Some(model.len() as u64));
            let half = KeyRange { start: std::ops::Bound::Included(key(10_000)), ..KeyRange::all() };
            let expected = model.range(10_000..).count() as f64;
            let found = view.estimate(&half).rows;
            assert!((found / expected - 1.0).abs() < 0.3, "an estimate of {found} for {expected} rows");
            // A flush of other commits lies below.
            let mut batch = WriteBatch::new();
            batch.update_raw(TREE, &key(-1), &(step as i64).to_le_bytes());
            store.commit(batch).unwrap();
            store.checkpoint().unwrap();
            assert_eq!(rows(&store, &snapshot, TREE), model);
        }
    }
    assert_eq!(rows(&store, &store.snapshot(), TREE).len(), committed.len());
    transaction.commit().unwrap().unwrap().wait().unwrap();
    model.insert(-1, 56);
    assert_eq!(rows(&store, &store.snapshot(), TREE), model);
    assert_eq!(store.snapshot().tree(TREE).unwrap().live_rows(), Some(model.len() as u64));
    drop(store);
    simulated.crash();
    let store = open(&simulated);
    assert_eq!(rows(&store, &store.snapshot(), TREE), model);
    assert_eq!(store.snapshot().tree(TREE).unwrap().live_rows(), Some(model.len() as u64));
}

#[test]
fn savepoints_between_spills() {
    for seed in 0..30 {
        let (_, store) = new_store(seed);
        let mut random = Random::new(seed);
        let mut transaction = store.begin();
        let mut model = Model::new();
        let mut live: Vec<(Savepoint, Model)> = Vec::new();
        for _ in 0..120 {
            match random.below(9) {
                0 => live.push((transaction.savepoint(), model.clone())),
                1 if !live.is_empty() => {
                    live.truncate(1 + random.below(live.len() as u64) as usize);
                    let (savepoint, before) = live.last().unwrap();
                    transaction.roll_back_to(*savepoint);
                    model = before.clone();
                }
                // Released.
                2 => live.truncate(live.len().saturating_sub(1 + random.below(2) as usize)),
                3 | 4 => {
                    let savepoints: Vec<Savepoint> = live.iter().map(|(savepoint, _)| *savepoint).collect();
                    transaction.spill(&savepoints).unwrap();
                }
                _ => {
                    let (number, value) = (random.below(40) as i64, random.below(1000) as i64);
                    transaction.write(put(TREE, &[(number, value)])).unwrap();
                    model.insert(number, value);
                }
            }
            assert_eq!(rows(&store, &transaction.snapshot(), TREE), model, "seed {seed}");
        }
        if let Some(submitted) = transaction.commit().unwrap() {
            submitted.wait().unwrap();
        }
        assert_eq!(rows(&store, &store.snapshot(), TREE), model, "seed {seed}");
    }
}

#[test]
fn trees_that_the_transaction_creates_and_drops() {
    let (simulated, store) = new_store(3);
    store.commit(put(TREE, &[(1, 1)])).unwrap();
    let before = used_bytes(&store);
    let [kept, lost, memory] = [store.new_tree_id(), store.new_tree_id(), TreeId::new(1 << 31 | 5)];
    let mut transaction = store.begin();
    let mut batch = put(TREE, &[(2, 2)]);
    [kept, lost, memory].into_iter().for_each(|tree| batch.create_tree(tree, &schema()));
    batch.append(put(kept, &[(3, 3)]));
    batch.append(put(lost, &[(4, 4)]));
    batch.append(put(memory, &[(5, 5)]));
    transaction.write(batch).unwrap();
    let savepoint = transaction.savepoint();
    transaction.spill(&[savepoint]).unwrap();
    let mut batch = WriteBatch::new();
    batch.drop_tree(lost);
    batch.drop_tree(TREE);
    batch.append(put(kept, &[(6, 6)]));
    transaction.write(batch).unwrap();
    transaction.spill(&[savepoint]).unwrap();
    assert!(transaction.snapshot().tree(lost).is_err() && transaction.snapshot().tree(TREE).is_err());
    assert_eq!(rows(&store, &transaction.snapshot(), kept), [(3, 3), (6, 6)].into());
    transaction.roll_back_to(savepoint);
    assert_eq!(rows(&store, &transaction.snapshot(), lost), [(4, 4)].into());
    assert_eq!(rows(&store, &transaction.snapshot(), TREE), [(1, 1), (2, 2)].into());
    let mut batch = WriteBatch::new();
    batch.drop_tree(lost);
    transaction.write(batch).unwrap();
    transaction.write(put(memory, &[(7, 7)])).unwrap();
    transaction.commit().unwrap().unwrap().wait().unwrap();
    let snapshot = store.snapshot();
    assert!(snapshot.tree(lost).is_err());
    assert_eq!(rows(&store, &snapshot, kept), [(3, 3)].into());
    assert_eq!(rows(&store, &snapshot, TREE), [(1, 1), (2, 2)].into());
    assert_eq!(rows(&store, &snapshot, memory), [(5, 5), (7, 7)].into());
    assert_eq!(snapshot.tree(kept).unwrap().live_rows(), None, "blind inserts");
    drop((snapshot, store));
    let store = open(&simulated);
    assert_eq!(rows(&store, &store.snapshot(), kept), [(3, 3)].into());
    assert!(used_bytes(&store) < before + (1 << 20));
}

/// A savepoint lies between the writes to a tree and its end.
#[test]
fn trees_that_are_dropped_after_a_savepoint() {
    let (_, store) = new_store(11);
    store.commit(put(TREE, &[(1, 1)])).unwrap();
    let [made, other] = [store.new_tree_id(), store.new_tree_id()];
    let mut transaction = store.begin();
    let mut batch = put(TREE, &[(2, 2)]);
    [made, other].into_iter().for_each(|tree| batch.create_tree(tree, &schema()));
    batch.append(put(made, &[(3, 3)]));
    transaction.write(batch).unwrap();
    let savepoint = transaction.savepoint();
    let mut batch = WriteBatch::new();
    [TREE, made].into_iter().for_each(|tree| batch.drop_tree(tree));
    batch.append(put(other, &[(4, 4)]));
    transaction.write(batch).unwrap();
    transaction.spill(&[savepoint]).unwrap();
    assert!(transaction.snapshot().tree(TREE).is_err());
    assert_eq!(rows(&store, &transaction.snapshot(), other), [(4, 4)].into());
    transaction.roll_back_to(savepoint);
    assert_eq!(rows(&store, &transaction.snapshot(), TREE), [(1, 1), (2, 2)].into());
    assert_eq!(rows(&store, &transaction.snapshot(), made), [(3, 3)].into());
    transaction.commit().unwrap().unwrap().wait().unwrap();
    assert_eq!(rows(&store, &store.snapshot(), TREE), [(1, 1), (2, 2)].into());
    assert_eq!(rows(&store, &store.snapshot(), made), [(3, 3)].into());
}

/// Read committed: the writes to each tree are checked against their own bases.
#[test]
fn bases_of_spilled_statements() {
    let memory = TreeId::new(1 << 31 | 5);
    for (number, is_conflict) in [(1, false), (7, true)] {
        let (_, store) = new_store(12);
        let other = store.new_tree_id();
        let mut batch = WriteBatch::new();
        [other, memory].into_iter().for_each(|tree| batch.create_tree(tree, &schema()));
        store.commit(batch).unwrap();
        let mut transaction = store.begin();
        transaction.write(put(TREE, &[(7, 7)])).unwrap();
        let mut batch = put(other, &[(1, 1)]);
        batch.append(put(memory, &[(1, 1)]));
        store.commit(batch).unwrap();
        transaction.refresh();
        let mut batch = put(other, &[(1, 2)]);
        batch.append(put(memory, &[(1, 2)]));
        transaction.write(batch).unwrap();
        transaction.spill(&[]).unwrap();
        store.commit(put(TREE, &[(number, 0)])).unwrap();
        let committed = transaction.commit();
        assert_eq!(matches!(committed, Err(Error::Conflict { tree: TREE })), is_conflict);
        assert_eq!(committed.is_ok(), !is_conflict);
    }
}

/// Runs that are given up are free space, also after a crash.
#[test]
fn space_is_freed() {
    let (simulated, store) = new_store(4);
    store.checkpoint().unwrap();
    let before = used_bytes(&store);
    let many: Vec<(i64, i64)> = (0..20_000).map(|number| (number, number)).collect();
    let mut transaction = store.begin();
    let savepoint = transaction.savepoint();
    transaction.write(put(TREE, &many)).unwrap();
    transaction.spill(&[]).unwrap();
    let spilled = used_bytes(&store);
    assert!(spilled > before + 50_000, "{before} bytes before, {spilled} bytes after");
    transaction.roll_back_to(savepoint);
    assert_eq!(used_bytes(&store), before);
    assert!(transaction.is_read_only() && !transaction.has_spilled());
    transaction.write(put(TREE, &many)).unwrap();
    transaction.spill(&[]).unwrap();
    drop(transaction);
    assert_eq!(used_bytes(&store), before);
    let mut transaction = store.begin();
    transaction.write(put(TREE, &many)).unwrap();
    transaction.spill(&[]).unwrap();
    simulated.crash();
    drop((transaction, store));
    let store = open(&simulated);
    assert_eq!(used_bytes(&store), before);
    assert_eq!(rows(&store, &store.snapshot(), TREE), Model::new());
}

/// Conflicts with commits in buffers, in flushed buffers, and with bulk loads; also with the tree as a whole.
#[test]
fn conflicts_of_spilled_writes() {
    for (other, flushes) in [(5, false), (5, true), (6, false), (6, true)] {
        let (_, store) = new_store(5);
        let mut transaction = store.begin();
        transaction.write(put(TREE, &[(5, 1), (900, 1)])).unwrap();
        transaction.spill(&[]).unwrap();
        transaction.write(put(TREE, &[(7, 1)])).unwrap();
        store.commit(put(TREE, &[(other, 2)])).unwrap();
        if flushes {
            store.checkpoint().unwrap();
        }
        let committed = transaction.commit();
        assert_eq!(matches!(committed, Err(Error::Conflict { tree: TREE })), other == 5, "flushes: {flushes}");
        let expected = if other == 5 { vec![(5, 2)] } else { vec![(5, 1), (6, 2), (7, 1), (900, 1)] };
        assert_eq!(rows(&store, &store.snapshot(), TREE), expected.into_iter().collect());
    }
    let (_, store) = new_store(6);
    let [mut first, mut second] = [store.begin(), store.begin()];
    first.write(put(TREE, &[(1, 1)])).unwrap();
    first.spill(&[]).unwrap();
    second.write(put(TREE, &[(2, 2)])).unwrap();
    second.spill(&[]).unwrap();
    first.commit().unwrap().unwrap().wait().unwrap();
    assert!(matches!(second.commit(), Err(Error::Conflict { .. })), "a commit of runs may have changed any key");
    let mut late = store.begin();
    late.write(put(TREE, &[(3, 3)])).unwrap();
    late.spill(&[]).unwrap();
    let mut batch = WriteBatch::new();
    batch.drop_tree(TREE);
    store.commit(batch).unwrap();
    assert!(matches!(late.commit(), Err(Error::Conflict { .. })));
}

/// Many dependencies become one on the whole tree.
#[test]
fn dependencies_are_widened() {
    let (_, store) = new_store(7);
    let other = store.new_tree_id();
    let mut batch = WriteBatch::new();
    batch.create_tree(other, &schema());
    store.commit(batch).unwrap();
    for (tree, is_conflict) in [(TREE, true), (other, false)] {
        let mut transaction = store.begin();
        for number in 0..20_000 {
            transaction.depend_on(TREE, KeyRange::point(key(number)));
        }
        transaction.write(put(TREE, &[(1, 1)])).unwrap();
        let before = transaction.bytes();
        transaction.spill(&[]).unwrap();
        assert!(transaction.bytes() < before / 10, "{} of {before} bytes", transaction.bytes());
        store.commit(put(tree, &[(50_000, 1)])).unwrap();
        assert_eq!(matches!(transaction.commit(), Err(Error::Conflict { .. })), is_conflict);
    }
}

/// Adds to the values of keys without reading them.
fn add(numbers: &[i64], amount: i64) -> WriteBatch {
    let column = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
    let rows = [column(numbers.to_vec()), column(vec![amount; numbers.len()])];
    let mut batch = WriteBatch::new();
    batch.upsert_rows(TREE, &schema(), &rows, &[ColumnChange::Add], Some(&rows)).unwrap();
    batch
}

#[test]
fn sums_stay_in_range() {
    let (_, store) = new_store(8);
    // An upsert raises the bound to the new row and by the argument.
    let part = i64::MAX / 16;
    let mut transaction = store.begin();
    transaction.write(add(&[1, 2], part)).unwrap();
    transaction.spill(&[]).unwrap();
    transaction.write(add(&[1], 5)).unwrap();
    transaction.spill(&[]).unwrap();
    assert!(matches!(transaction.write(add(&[1], 12 * part)), Err(Error::UpsertRange { tree: TREE })));
    let savepoint = transaction.savepoint();
    transaction.write(add(&[3], 8 * part)).unwrap();
    transaction.spill(&[savepoint]).unwrap();
    assert!(transaction.write(add(&[1], 6 * part)).is_err());
    transaction.roll_back_to(savepoint);
    transaction.write(add(&[1], 6 * part)).unwrap();
    transaction.commit().unwrap().unwrap().wait().unwrap();
    assert_eq!(rows(&store, &store.snapshot(), TREE), [(1, 7 * part + 5), (2, part)].into());
    assert!(
        matches!(store.commit(add(&[9], 5 * part)), Err(Error::UpsertRange { .. })),
        "the bounds include spilled sums"
    );

    // Another commit raises the bound between the admission and the commit.
    let (_, store) = new_store(9);
    let mut transaction = store.begin();
    transaction.write(add(&[1], 7 * part)).unwrap();
    transaction.spill(&[]).unwrap();
    store.commit(put(TREE, &[(2, 4 * part)])).unwrap();
    assert!(matches!(transaction.commit(), Err(Error::UpsertRange { tree: TREE })));
    let mut transaction = store.begin();
    transaction.write(put(TREE, &[(3, 15 * part)])).unwrap();
    transaction.spill(&[]).unwrap();
    store.commit(put(TREE, &[(4, -15 * part)])).unwrap();
    transaction.commit().unwrap().unwrap().wait().unwrap();
}

/// An error of the device while a transaction spills leaves its writes where they were.
#[test]
fn a_failed_spill_changes_nothing() {
    let (simulated, store) = new_store(10);
    let mut transaction = store.begin();
    transaction.write(put(TREE, &[(1, 1), (2, 2)])).unwrap();
    simulated.crash_after_operations(0);
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| transaction.spill(&[])));
    assert!(failed.is_err() || failed.is_ok_and(|result| result.is_err()));
    assert!(!transaction.has_spilled());
}

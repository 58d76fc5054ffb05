//! Lifetimes: visibility and durability of commits, changes of the durability, use of handles after the store is
//! closed, trees dropped during a flush, bulk loads installed in another tree.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Call, Gate, Hooked, key_value_rows};
use keyaki_device::Device;
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_store::key_value::KeyValue;
use keyaki_store::{Direction, Durability, Error, KeyRange, Options, Schema, Store, TreeId, WriteBatch, block_on};
use parking_lot::Mutex;

const TREE: TreeId = TreeId::new(2);
const DIR: &str = "/db";

fn simulated() -> Arc<dyn Device> {
    Arc::new(Simulated::new(SimulatedOptions::default()))
}

fn open(device: Arc<dyn Device>, options: Options) -> Store {
    Store::open(device, Path::new(DIR), options).unwrap()
}

fn create(tree: TreeId) -> WriteBatch {
    let mut batch = WriteBatch::new();
    batch.create_tree(tree, &Schema::key_value());
    batch
}

/// A device on which syncs of log files wait at the gate.
fn gated_log(gate: &Arc<Gate>) -> Arc<dyn Device> {
    let gate = gate.clone();
    Hooked::device(simulated(), move |call| {
        if matches!(call, Call::Sync(name) if name.starts_with("log-")) {
            gate.pass();
        }
    })
}

#[test]
fn trees_appear_and_vanish_once_durable() {
    let gate = Arc::new(Gate::default());
    let store = open(gated_log(&gate), Options::default());
    store.commit(create(TreeId::new(7))).unwrap();
    for (batch, there) in [(create(TreeId::new(8)), [true, false]), (drop_tree(TreeId::new(7)), [true, true])] {
        gate.close();
        std::thread::scope(|scope| {
            let commit = scope.spawn(|| store.commit(batch).unwrap());
            gate.wait_for_one();
            let snapshot = store.snapshot();
            assert_eq!(
                [7, 8].map(|tree| snapshot.tree(TreeId::new(tree)).is_ok()),
                there,
                "the change is visible before it is durable"
            );
            gate.open();
            commit.join().unwrap();
        });
    }
    assert_eq!([7, 8].map(|tree| store.snapshot().tree(TreeId::new(tree)).is_ok()), [false, true]);
}

fn drop_tree(tree: TreeId) -> WriteBatch {
    let mut batch = WriteBatch::new();
    batch.drop_tree(tree);
    batch
}

#[test]
fn a_commit_that_creates_a_tree_is_atomic() {
    let store = open(simulated(), Options::default());
    let done = AtomicBool::new(false);
    let (store, done) = (&store, &done);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for tree in 100..400 {
                let mut batch = create(TreeId::new(tree));
                batch.insert_raw(TreeId::new(tree), b"key\0\0", b"value");
                store.commit(batch).unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
        while !done.load(Ordering::SeqCst) {
            let snapshot = store.snapshot();
            for tree in (100..400).rev() {
                let Ok(view) = snapshot.tree(TreeId::new(tree)) else { continue };
                let pages = store.blocking();
                let mut cursor = view.cursor(&pages, KeyRange::all(), Direction::Ascending);
                assert!(block_on(cursor.next()).unwrap().is_some(), "tree {tree} is visible without its row");
                break;
            }
        }
    });
}

#[test]
fn switching_to_full_durability_hides_nothing() {
    let gate = Arc::new(Gate::default());
    let store = open(gated_log(&gate), Options { durability: Durability::Normal, ..Options::default() });
    let map = KeyValue::open(&store, TREE).unwrap();
    gate.close();
    map.insert(b"a", b"1").unwrap();
    assert_eq!(map.get(b"a").unwrap().as_deref(), Some(b"1".as_slice()));
    std::thread::scope(|scope| {
        let switch = scope.spawn(|| store.set_durability(Durability::Full));
        gate.wait_for_one();
        common::eventually("the setting does not change", || store.durability() == Durability::Full);
        assert_eq!(map.get(b"a").unwrap().as_deref(), Some(b"1".as_slice()), "a visible row became invisible");
        gate.open();
        switch.join().unwrap();
    });
    assert_eq!(store.snapshot().sequence(), store.latest().sequence());
    map.insert(b"b", b"2").unwrap();
    assert_eq!(map.range(.., Direction::Ascending).unwrap().count(), 2);
    // The other changes of the durability.
    for durability in [Durability::Off, Durability::Full, Durability::Normal] {
        store.set_durability(durability);
        map.insert(b"c", b"3").unwrap();
        assert_eq!(store.snapshot().sequence(), store.latest().sequence());
        assert_eq!(map.range(.., Direction::Ascending).unwrap().count(), 3);
    }
}

#[test]
fn the_lock_is_released_last() {
    for durability in [Durability::Full, Durability::Normal, Durability::Off] {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let seen = calls.clone();
        let device = Hooked::device(simulated(), move |call| seen.lock().push(call.clone()));
        let store = open(device, Options { durability, ..Options::default() });
        let map = KeyValue::open(&store, TREE).unwrap();
        map.insert(b"a", b"1").unwrap();
        let snapshot = map.snapshot().unwrap();
        drop((map, store));
        let unlocked = calls.lock().iter().position(|call| *call == Call::Unlock).unwrap();
        drop(snapshot);
        assert_eq!(calls.lock()[unlocked..], [Call::Unlock], "{durability:?}: the database was used without its lock");
    }
}

#[test]
fn handles_give_errors_after_the_store_is_closed() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let seen = calls.clone();
    let device = Hooked::device(simulated(), move |call| seen.lock().push(call.clone()));
    let store = open(device, Options::default());
    let map = KeyValue::open(&store, TREE).unwrap();
    for i in 0..2000_u32 {
        map.insert(&i.to_be_bytes(), &[1; 100]).unwrap();
    }
    store.checkpoint().unwrap();
    let snapshot = map.snapshot().unwrap();
    let mut range = snapshot.range(.., Direction::Ascending);
    range.next().unwrap().unwrap();
    let pages = store.blocking();
    let view = store.snapshot().tree(TREE).unwrap();
    let mut cursor = view.cursor(&pages, KeyRange::all(), Direction::Descending);
    block_on(cursor.next()).unwrap().unwrap();
    let schema = Schema::key_value();
    let mut writer = store.bulk_writer(TREE, &schema);
    let keys: Vec<[u8; 4]> = (0..60_000_u32).map(u32::to_be_bytes).collect();
    let rows = key_value_rows(keys.iter().map(|key| (key.as_slice(), [2; 100].as_slice())));
    writer.push(&rows.slice(0, 100)).unwrap();
    let loaded = {
        let mut writer = store.bulk_writer(TREE, &schema);
        writer.push(&rows.slice(0, 100)).unwrap();
        writer.finish().unwrap()
    };
    let loaded_view = loaded.view(&store, TREE, &schema);

    drop((map, store));
    let before = calls.lock().len();
    assert!(matches!(snapshot.get(&7_u32.to_be_bytes()), Err(Error::Closed)));
    assert!(range.any(|row| matches!(row, Err(Error::Closed))), "a range continues after the store is closed");
    assert!(matches!(block_on(cursor.next()), Err(Error::Closed)));
    let mut cursor = loaded_view.cursor(&pages, KeyRange::all(), Direction::Ascending);
    assert!(matches!(block_on(cursor.next()), Err(Error::Closed)));
    let pushed = writer.push(&rows.slice(100, rows.num_rows() - 100));
    let finished = pushed.and_then(|()| writer.finish());
    assert!(matches!(finished, Err(Error::Closed)));
    let _ = view.estimate(&KeyRange::all());
    drop((snapshot, range, view, loaded, loaded_view));
    assert_eq!(calls.lock()[before..], [], "the files were used after the store was closed");
}

#[test]
fn a_tree_dropped_and_created_again_under_a_flush_is_empty() {
    for install in [false, true] {
        let gate = Arc::new(Gate::default());
        let at = gate.clone();
        let device = Hooked::device(simulated(), move |call| {
            if *call == Call::Write("data".into()) {
                at.pass();
            }
        });
        let store = open(device.clone(), Options::default());
        let map = KeyValue::open(&store, TREE).unwrap();
        for i in 0..100_u32 {
            map.insert(&i.to_be_bytes(), b"old").unwrap();
        }
        gate.close();
        std::thread::scope(|scope| {
            let flush = scope.spawn(|| match install {
                true => store.install(WriteBatch::new(), Vec::new()).unwrap(),
                false => store.checkpoint().unwrap(),
            });
            gate.wait_for_one();
            let mut batch = drop_tree(TREE);
            batch.create_tree(TREE, &Schema::key_value());
            store.commit(batch).unwrap();
            map.insert(b"new", b"new").unwrap();
            gate.open();
            flush.join().unwrap();
        });
        let rows =
            |map: &KeyValue| map.range(.., Direction::Ascending).unwrap().map(Result::unwrap).collect::<Vec<_>>();
        let expected = [(b"new".to_vec(), b"new".to_vec())];
        assert_eq!(rows(&map), expected, "install: {install}");
        drop((map, store));
        let store = open(device, Options::default());
        let map = KeyValue::open(&store, TREE).unwrap();
        assert_eq!(rows(&map), expected, "install: {install}, after reopening");
    }
}

#[test]
fn loaded_rows_install_in_their_own_tree_only() {
    let store = open(simulated(), Options::default());
    let schema = Schema::key_value();
    let load = |tree| {
        let mut writer = store.bulk_writer(tree, &schema);
        writer.push(&key_value_rows([(b"a".as_slice(), b"1".as_slice())].into_iter())).unwrap();
        writer.finish().unwrap()
    };
    let other = Schema::new(schema.columns().to_vec(), 2);
    let mut batch = create(TreeId::new(20));
    batch.create_tree(TreeId::new(21), &other);
    store.commit(batch).unwrap();
    let install = |tree, loaded| store.install(WriteBatch::new(), vec![(tree, loaded)]);
    assert!(
        matches!(install(TreeId::new(20), load(TreeId::new(21))), Err(Error::TreeMismatch { tree, .. }) if tree.get() == 20),
        "rows of another tree"
    );
    assert!(
        matches!(install(TreeId::new(21), load(TreeId::new(21))), Err(Error::TreeMismatch { tree, .. }) if tree.get() == 21),
        "rows of another schema"
    );
    assert!(
        matches!(install(TreeId::new(22), load(TreeId::new(22))), Err(Error::TreeNotFound(tree)) if tree.get() == 22)
    );
    let elsewhere = open(simulated(), Options::default());
    elsewhere.commit(create(TreeId::new(20))).unwrap();
    let result = elsewhere.install(WriteBatch::new(), vec![(TreeId::new(20), load(TreeId::new(20)))]);
    assert!(matches!(result, Err(Error::TreeMismatch { tree, .. }) if tree.get() == 20), "rows of another store");
    install(TreeId::new(20), load(TreeId::new(20))).unwrap();
}

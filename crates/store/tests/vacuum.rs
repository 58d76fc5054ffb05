//! A compaction moves all messages to leaves and shortens the data file. It loses and changes no row, beside writers,
//! snapshots, damage and full disks.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::key_value::{KeyValue, KeyValueBatch};
use keyaki_store::{Direction, Error, KeyRange, Options, Store, TreeId, Vacuumed, WriteBatch};

const TREES: [TreeId; 2] = [TreeId::new(2), TreeId::new(3)];
const DATA: &str = "/db/data";

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    Options {
        buffer_bytes: 100_000,
        cache_bytes: 100_000,
        page_bytes: 4096,
        leaf_bytes: 16_384,
        fan_out: 4,
        node_buffer_bytes: 50_000,
        runs_per_node: 4,
        ..Options::default()
    }
}

fn open(simulated: &Simulated) -> (Store, Vec<KeyValue>) {
    let store = Store::open(simulated.device(), Path::new("/db"), options()).unwrap();
    let maps = TREES.iter().map(|&tree| KeyValue::open(&store, tree).unwrap()).collect();
    (store, maps)
}

fn simulated(seed: u64) -> Simulated {
    Simulated::new(SimulatedOptions { seed, ..Default::default() })
}

/// Up to 1,000 bytes that cannot be compressed.
fn value(random: &mut Random) -> Vec<u8> {
    (0..random.below(1000)).map(|_| random.below(256) as u8).collect()
}

/// Changes random rows of all trees; one in `deletes` changes is a delete.
fn change(maps: &[KeyValue], model: &mut Model, random: &mut Random, changes: u64, deletes: u64) {
    for _ in 0..changes {
        let key = format!("{:05}", random.below(20_000)).into_bytes();
        let mut batch = KeyValueBatch::default();
        if random.below(deletes) == 0 {
            maps.iter().for_each(|map| batch.delete(map, &key));
            model.remove(&key);
        } else {
            let value = value(random);
            maps.iter().for_each(|map| batch.insert(map, &key, &value));
            model.insert(key, value);
        }
        maps[0].commit(batch).unwrap();
    }
}

fn delete(maps: &[KeyValue], model: &mut Model, random: &mut Random, share: u64) {
    let keys: Vec<Vec<u8>> = model.keys().filter(|_| random.below(100) < share).cloned().collect();
    for keys in keys.chunks(50) {
        let mut batch = KeyValueBatch::default();
        for key in keys {
            maps.iter().for_each(|map| batch.delete(map, key));
            model.remove(key);
        }
        maps[0].commit(batch).unwrap();
    }
}

fn contents(map: &KeyValue) -> Model {
    map.range(.., Direction::Ascending).unwrap().map(Result::unwrap).collect()
}

fn check(store: &Store, maps: &[KeyValue], model: &Model) {
    for map in maps {
        assert!(contents(map) == *model, "a tree has other rows than the model");
    }
    let checked = store.check(|_| true, &|_, _| true).unwrap();
    assert!(checked.damage.is_empty(), "{:?}", checked.damage);
}

fn check_reopened(simulated: &Simulated, model: &Model) {
    let (store, maps) = open(simulated);
    check(&store, &maps, model);
}

/// Calls `work` until another thread has compacted the store five times.
fn beside_compactions(store: &Store, mut work: impl FnMut()) {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..5).for_each(|_| assert!(vacuum_once(store).is_complete));
            ended.store(true, Ordering::Release);
        });
        while !ended.load(Ordering::Acquire) {
            work();
        }
    });
}

fn vacuum_once(store: &Store) -> Vacuumed {
    store.vacuum(|_| true, &|_, _| true).unwrap()
}

fn vacuum(store: &Store) -> Vacuumed {
    let vacuumed = vacuum_once(store);
    assert!(vacuumed.is_complete && vacuumed.bytes_after == store.stats().data_file_bytes, "{vacuumed:?}");
    vacuumed
}

#[test]
fn a_compaction_shortens_the_file_to_its_rows() {
    for seed in 0..4 {
        let (simulated, mut random, mut model) = (simulated(seed), Random::new(seed), Model::new());
        let (store, maps) = open(&simulated);
        change(&maps, &mut model, &mut random, 6_000, 10);
        delete(&maps, &mut model, &mut random, 80);
        let vacuumed = vacuum(&store);
        check(&store, &maps, &model);
        let rows: u64 = model.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum::<u64>() * 2;
        // Pages of 4 KiB have few rows, and each leaf, of at most 16 KiB, has an index page of 4 KiB. The rest of the file is
        // the reserve for full disks.
        let used = store.stats().data_bytes_used;
        assert!(used < rows * 5 / 2, "{used} bytes for {rows} bytes of rows");
        assert!(vacuumed.bytes_after < used * 11 / 10 + (1 << 20), "{vacuumed:?} for {used} bytes");
        assert!(vacuumed.bytes_before > 2 * vacuumed.bytes_after, "{vacuumed:?}");
        for &tree in &TREES {
            assert_eq!(store.snapshot().tree(tree).unwrap().live_rows(), Some(model.len() as u64));
        }
        // The checkpoint is complete: nothing of the log is needed.
        simulated.crash();
        drop((store, maps));
        let (store, maps) = open(&simulated);
        check(&store, &maps, &model);
        change(&maps, &mut model, &mut random, 500, 10);
        check(&store, &maps, &model);
    }
}

#[test]
fn a_compaction_beside_a_writer_loses_no_commit() {
    let (simulated, mut random, mut model) = (simulated(5), Random::new(5), Model::new());
    let (store, maps) = open(&simulated);
    change(&maps, &mut model, &mut random, 3_000, 10);
    delete(&maps, &mut model, &mut random, 70);
    let before = store.snapshot();
    let pinned = before.tree(TREES[0]).unwrap().live_rows();
    beside_compactions(&store, || change(&maps, &mut model, &mut random, 100, 3));
    assert_eq!(before.tree(TREES[0]).unwrap().live_rows(), pinned, "a snapshot does not change");
    drop(before);
    vacuum(&store);
    check(&store, &maps, &model);
    drop((store, maps));
    check_reopened(&simulated, &model);
}

#[test]
fn a_compaction_can_be_ended_at_each_step() {
    let (simulated, mut random, mut model) = (simulated(6), Random::new(6), Model::new());
    let (store, maps) = open(&simulated);
    let mut was_complete = false;
    for calls in 0..100 {
        change(&maps, &mut model, &mut random, 500, 3);
        let count = AtomicU64::new(0);
        let vacuumed = store.vacuum(|_| true, &|done, total| {
            assert!(done <= total, "{done} of {total} bytes");
            count.fetch_add(1, Ordering::Relaxed) < calls
        });
        check(&store, &maps, &model);
        if vacuumed.unwrap().is_complete {
            was_complete = true;
            break;
        }
    }
    assert!(was_complete);
}

#[test]
fn a_range_is_compacted() {
    let (simulated, mut random, mut model) = (simulated(12), Random::new(12), Model::new());
    let (store, maps) = open(&simulated);
    change(&maps, &mut model, &mut random, 8_000, 10);
    // The bytes that the compaction of a range copies.
    let copied = |tree: TreeId, range: &KeyRange| {
        let copied = AtomicU64::new(0);
        let progress = |done, total| {
            assert!(done <= total, "{done} of {total} bytes");
            copied.store(done, Ordering::Relaxed);
            true
        };
        assert!(store.compact(tree, range, &progress).unwrap());
        copied.into_inner()
    };
    let pages_of = |map: &KeyValue, from: &[u8], to: &[u8]| {
        store.drop_caches();
        let before = store.stats().pages_read;
        let rows: Model = map.range(from..to, Direction::Ascending).unwrap().map(Result::unwrap).collect();
        assert!(
            rows == model.range(from.to_vec()..to.to_vec()).map(|(k, v)| (k.clone(), v.clone())).collect::<Model>()
        );
        store.stats().pages_read - before
    };
    store.checkpoint().unwrap();
    let inside = pages_of(&maps[0], b"08000", b"10000");
    maps[0].compact(b"08000".as_slice()..b"10000").unwrap();
    assert!(pages_of(&maps[0], b"08000", b"10000") < inside, "{inside} pages before");
    let encoded = |from: &[u8], to: &[u8]| KeyRange {
        start: Bound::Included([from, &[0, 0]].concat()),
        end: Bound::Excluded([to, &[0, 0]].concat()),
    };
    assert_eq!(copied(TREES[0], &encoded(b"10000", b"08000")), 0, "the range is empty");
    assert!(copied(TREES[0], &encoded(b"12000", b"14000")) > 0, "other ranges keep their messages");
    assert!(copied(TREES[1], &encoded(b"08000", b"10000")) > 0, "other trees keep their messages");
    check(&store, &maps, &model);
    let missing = store.compact(TreeId::new(9), &KeyRange::all(), &|_, _| true).unwrap_err();
    assert!(matches!(missing, Error::TreeNotFound(_)), "{missing}");
    drop((store, maps));
    check_reopened(&simulated, &model);
}

/// Nodes on the way to a range that is compacted again and again do not collect runs.
#[test]
fn compactions_of_a_range_keep_nodes_within_their_budgets() {
    let (simulated, mut random, mut model) = (simulated(13), Random::new(13), Model::new());
    let (store, maps) = open(&simulated);
    change(&maps, &mut model, &mut random, 12_000, 10);
    for round in 0..30 {
        change(&maps, &mut model, &mut random, 100, 10);
        if round == 15 {
            assert!(!store.compact(TREES[0], &KeyRange::all(), &|_, _| false).unwrap());
        }
        maps[0].compact(b"08000".as_slice()..=b"08010").unwrap();
    }
    store.drop_caches();
    let before = store.stats().pages_read;
    let rows = maps[0].range(b"08300".as_slice()..b"08310", Direction::Ascending).unwrap().count();
    assert_eq!(rows, model.range(b"08300".to_vec()..b"08310".to_vec()).count());
    let pages = store.stats().pages_read - before;
    assert!(pages < 40, "{pages} pages");
    check(&store, &maps, &model);
}

/// A step copies a bounded number of bytes, also if there are few messages for each leaf, and the file does not grow by the
/// length of the tree.
#[test]
fn steps_are_short() {
    let (simulated, mut random, mut model) = (simulated(11), Random::new(11), Model::new());
    let (store, maps) = open(&simulated);
    change(&maps, &mut model, &mut random, 12_000, 1_000);
    vacuum(&store);
    let keys: Vec<Vec<u8>> = model.keys().step_by(15).cloned().collect();
    for key in &keys {
        let mut batch = KeyValueBatch::default();
        maps.iter().for_each(|map| batch.insert(map, key, b"changed"));
        maps[0].commit(batch).unwrap();
        model.insert(key.clone(), b"changed".to_vec());
    }
    store.checkpoint().unwrap();
    let (before, step) = (store.stats().data_file_bytes, 64 * 16_384);
    let (last, longest) = (AtomicU64::new(0), AtomicU64::new(0));
    let vacuumed = store.vacuum(|_| true, &|done, _| {
        let bytes = done - last.swap(done, Ordering::Relaxed);
        longest.fetch_max(bytes, Ordering::Relaxed);
        let grown = store.stats().data_file_bytes.saturating_sub(before);
        assert!(grown < 12 * step, "the file has grown by {grown} bytes");
        true
    });
    assert!(vacuumed.unwrap().is_complete);
    let (done, longest) = (last.into_inner(), longest.into_inner());
    assert!(done > 4 * step && longest < 2 * step, "{done} bytes, up to {longest} in a step");
    check(&store, &maps, &model);
}

/// Definitions change between the steps.
#[test]
fn trees_are_dropped_and_created_meanwhile() {
    let (simulated, mut random, mut model) = (simulated(12), Random::new(12), Model::new());
    let (store, mut maps) = open(&simulated);
    change(&maps, &mut model, &mut random, 4_000, 10);
    let mut rounds = 0;
    beside_compactions(&store, || {
        let other = maps.pop().unwrap();
        let mut batch = WriteBatch::new();
        batch.drop_tree(TREES[1]);
        store.commit(batch).unwrap();
        drop(other);
        let copy = KeyValue::open(&store, TREES[1]).unwrap();
        for rows in model.iter().collect::<Vec<_>>().chunks(500) {
            let mut batch = KeyValueBatch::default();
            rows.iter().for_each(|(key, value)| batch.insert(&copy, key, value));
            copy.commit(batch).unwrap();
        }
        maps.push(copy);
        change(&maps, &mut model, &mut random, 50, 3);
        rounds += 1;
    });
    assert!(rounds > 0);
    check(&store, &maps, &model);
    drop((store, maps));
    check_reopened(&simulated, &model);
}

/// A quarantined tree stays at its place, where its damage is listed.
#[test]
fn quarantined_trees_do_not_move() {
    let (simulated, mut random, mut model) = (simulated(13), Random::new(13), Model::new());
    let (store, maps) = open(&simulated);
    change(&maps, &mut model, &mut random, 3_000, 1_000);
    vacuum(&store);
    let len = store.stats().data_file_bytes;
    for block in (10..len / 4096).step_by(7) {
        simulated.flip_bit(Path::new(DATA), block * 4096 + 1000, 3).unwrap();
    }
    store.drop_caches();
    for number in 0..3_000 {
        // The flush finds the damage sooner or later.
        let key = format!("{:05}", number * 7 % 20_000).into_bytes();
        if maps[0].insert(&key, &value(&mut random)).is_err() {
            break;
        }
    }
    let shown = |store: &Store| format!("{:?}", store.quarantined_trees());
    let before = shown(&store);
    assert!(before.contains("low: ["), "no tree with known keys is quarantined: {before}");
    assert!(store.vacuum(|_| true, &|_, _| true).unwrap().is_complete);
    assert_eq!(shown(&store), before);
}

/// Leaves that deletes have left small are joined, also in trees without messages.
#[test]
fn small_leaves_are_joined() {
    let (simulated, mut random, mut model) = (simulated(10), Random::new(10), Model::new());
    let (store, maps) = open(&simulated);
    change(&maps, &mut model, &mut random, 6_000, 1_000);
    vacuum(&store);
    let leaves = |store: &Store| {
        let trees = store.check(|_| true, &|_, _| true).unwrap().trees;
        trees.iter().map(|tree| tree.bytes - tree.pages * 4096).sum::<u64>() / 4096
    };
    let before = leaves(&store);
    for _ in 0..8 {
        // Few rows of each leaf at a time.
        delete(&maps, &mut model, &mut random, 30);
        vacuum(&store);
    }
    check(&store, &maps, &model);
    let after = leaves(&store);
    assert!(before > 200 && after * 8 < before, "{before} leaves, {after} with {} rows", model.len());
}

#[test]
fn only_the_wanted_trees_are_drained() {
    let (simulated, mut random, mut model) = (simulated(7), Random::new(7), Model::new());
    let (store, maps) = open(&simulated);
    change(&maps, &mut model, &mut random, 3_000, 10);
    let total = AtomicU64::new(0);
    let vacuumed = store.vacuum(|tree| tree == TREES[1], &|_, bytes| total.swap(bytes, Ordering::Relaxed) < u64::MAX);
    assert!(vacuumed.unwrap().is_complete && total.into_inner() > 0);
    check(&store, &maps, &model);
}

/// Damaged pages stay where they are, and do not keep the other trees from being compacted.
#[test]
fn damage_is_left_alone() {
    let (simulated, mut random, mut model) = (simulated(8), Random::new(8), Model::new());
    let (store, maps) = open(&simulated);
    change(&maps, &mut model, &mut random, 3_000, 1_000);
    let kept = model.clone();
    delete(&maps[1..], &mut model, &mut random, 90);
    store.checkpoint().unwrap();
    let len = store.stats().data_file_bytes;
    let mut damaged = 0;
    for block in (10..len / 4096).step_by(40) {
        simulated.flip_bit(Path::new(DATA), block * 4096 + 1000, 3).unwrap();
        store.drop_caches();
        damaged = store.check(|_| true, &|_, _| true).unwrap().damage.len();
        if damaged > 3 {
            break;
        }
    }
    assert!(damaged > 3, "{damaged} damaged pages");
    for _ in 0..2 {
        match store.vacuum(|_| true, &|_, _| true) {
            Ok(vacuumed) => assert!(vacuumed.is_complete),
            Err(error) => panic!("{error}"),
        }
    }
    store.drop_caches();
    assert!(!store.check(|_| true, &|_, _| true).unwrap().damage.is_empty(), "damage does not disappear");
    for (map, model) in maps.iter().zip([&kept, &model]) {
        for (key, value) in model {
            match map.get(key) {
                Ok(found) => assert_eq!(found.as_ref(), Some(value)),
                Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
            }
        }
    }
}

/// On a full disk, deletes and a compaction make room for new rows.
#[test]
fn a_compaction_frees_a_full_disk() {
    let simulated = Simulated::new(SimulatedOptions { seed: 9, capacity_bytes: Some(24 << 20), ..Default::default() });
    let (mut random, mut model) = (Random::new(9), Model::new());
    let options = Options { checkpoint_log_bytes: 1 << 20, ..options() };
    let store = Store::open(simulated.device(), Path::new("/db"), options).unwrap();
    let maps = [KeyValue::open(&store, TREES[0]).unwrap()];
    let mut fill = |model: &mut Model| {
        let mut inserted = 0;
        for number in 0.. {
            let (key, value) = (format!("{number:06}").into_bytes(), value(&mut random));
            match maps[0].insert(&key, &value) {
                Ok(()) => inserted += usize::from(model.insert(key, value).is_none()),
                Err(Error::DiskFull { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
        inserted
    };
    assert!(fill(&mut model) > 5_000);
    let keys: Vec<Vec<u8>> =
        model.keys().enumerate().filter(|(at, _)| at % 10 > 0).map(|(_, key)| key.clone()).collect();
    for key in keys {
        maps[0].delete(&key).unwrap();
        model.remove(&key);
    }
    vacuum(&store);
    check(&store, &maps, &model);
    assert!(fill(&mut model) > 5_000, "the space is free again");
    check(&store, &maps, &model);
}

//! Limits: invalid input, full disks, failing upsert functions, many upserts of one key, minimal memory budgets.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Call, Hooked, eventually, key_value_rows};
use keyaki_device::simulated::{FaultKind, Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::key_value::{KeyValue, KeyValueBatch};
use keyaki_store::{
    Column, ColumnType, Direction, Durability, Error, KeyRange, Options, Schema, Store, TreeId, UpsertFunctions,
    WriteBatch,
};

const TREE: TreeId = TreeId::new(2);
const ADD: u32 = 1;
const PANIC: u32 = 2;
const REFUSE: u32 = 3;

fn options() -> Options {
    let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let add = move |old: Option<&[u8]>, operand: &[u8]| {
        Ok(Some((number(old.unwrap_or_default()) + number(operand)).to_le_bytes().to_vec()))
    };
    let upserts = UpsertFunctions::default()
        .with(ADD, add)
        .with(PANIC, |_, _| panic!("this function always panics"))
        .with(REFUSE, |_, _| Err("this function always refuses".into()));
    Options {
        durability: Durability::Off,
        buffer_bytes: 20_000,
        checkpoint_log_bytes: 200_000,
        cache_bytes: 50_000,
        page_bytes: 4096,
        leaf_bytes: 16_384,
        fan_out: 3,
        node_buffer_bytes: 30_000,
        runs_per_node: 3,
        upserts: Arc::new(upserts),
        ..Options::default()
    }
}

fn open(simulated: &Simulated, options: Options) -> (Store, KeyValue) {
    let store = Store::open(simulated.device(), Path::new("/db"), options).unwrap();
    let map = KeyValue::open(&store, TREE).unwrap();
    (store, map)
}

fn simulated() -> Simulated {
    Simulated::new(SimulatedOptions::default())
}

#[test]
fn unknown_upsert_functions_are_refused_at_once() {
    let (_store, map) = open(&simulated(), options());
    assert!(matches!(map.upsert(b"a", 77, b""), Err(Error::UnknownUpsert(77))));
    assert_eq!(map.get(b"a").unwrap(), None);
}

/// An upsert function that panics or fails gives errors to readers, and to writers once the buffers are full. No call
/// blocks forever.
#[test]
fn failing_upsert_functions_give_errors() {
    for function in [PANIC, REFUSE] {
        let (store, map) = open(&simulated(), options());
        map.insert(b"a", b"1").unwrap();
        map.upsert(b"a", function, b"").unwrap();
        assert!(matches!(map.get(b"a"), Err(Error::Upsert { function: found, .. }) if found == function));
        let failed = (0..10_000_u32).find_map(|i| map.insert(&i.to_be_bytes(), &[1; 100]).err());
        assert!(failed.is_some(), "the buffers exceeded their limit without an error");
        assert!(store.checkpoint().is_err());
        // Rows with other keys remain readable.
        assert_eq!(map.get(&7_u32.to_be_bytes()).unwrap(), Some(vec![1; 100]));
        // The tree can be dropped although the buffers are full, and then there is room again.
        let mut batch = WriteBatch::new();
        batch.drop_tree(TREE);
        let dropped = store.commit(batch);
        match function {
            REFUSE => dropped.map(drop).unwrap(),
            // The panic may have been one of a flush.
            _ => continue,
        }
        let other = KeyValue::open(&store, TreeId::new(3)).unwrap();
        (0..1000_u32).for_each(|i| other.insert(&i.to_be_bytes(), &[1; 100]).unwrap());
    }
}

/// A flush that panics, here in the device, poisons the store: no writer waits for it, and no acknowledged row is lost.
#[test]
fn a_panic_in_a_flush_poisons_the_store() {
    let panics = Arc::new(AtomicBool::new(false));
    let simulated = simulated();
    let now = panics.clone();
    let device = Hooked::device(simulated.device(), move |call| {
        if *call == Call::Write("data".into()) && now.swap(false, Ordering::SeqCst) {
            panic!("this write panics");
        }
    });
    let store = Store::open(device, Path::new("/db"), Options { durability: Durability::Full, ..options() }).unwrap();
    let map = KeyValue::open(&store, TREE).unwrap();
    panics.store(true, Ordering::SeqCst);
    let (mut acknowledged, mut stopped) = (0_u32, None);
    while stopped.is_none() && acknowledged < 100_000 {
        match map.insert(&acknowledged.to_be_bytes(), &[1; 100]) {
            Ok(()) => acknowledged += 1,
            Err(error) => stopped = Some(error),
        }
    }
    assert!(matches!(stopped, Some(Error::Poisoned { .. })), "{stopped:?}");
    // The commit that failed may be in the log, and visible.
    let rows = map.range(.., Direction::Ascending).unwrap().filter(Result::is_ok).count() as u32;
    assert!((acknowledged..=acknowledged + 1).contains(&rows), "{rows} rows, {acknowledged} acknowledged");
    drop((map, store));
    let (_store, map) = open(&simulated, options());
    let rows = map.range(.., Direction::Ascending).unwrap().map(Result::unwrap).count() as u32;
    // The commit that failed may be in the log.
    assert!(rows == acknowledged || rows == acknowledged + 1, "{rows} rows of {acknowledged}");
}

/// A panic of the background thread outside of a flush, here in an observer, poisons the store as well.
#[test]
fn a_panic_of_the_background_thread_poisons_the_store() {
    let (store, map) = open(&simulated(), options());
    store.observe_generations(|_| {
        if std::thread::current().name() == Some("keyaki-flush") {
            panic!("this observer panics");
        }
    });
    let (failed, failure) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let error = (0..10_000_u32).find_map(|i| map.insert(&i.to_be_bytes(), &[1; 100]).err());
        failed.send(error).unwrap();
    });
    let error = failure.recv_timeout(Duration::from_secs(60)).expect("a writer waits for a thread that has ended");
    assert!(matches!(error, Some(Error::Poisoned { .. })), "{error:?}");
}

#[test]
fn long_keys_are_refused_everywhere() {
    let (store, map) = open(&simulated(), options());
    let key = vec![1; (64 << 10) - 2];
    map.insert(&key, b"longest").unwrap();
    store.checkpoint().unwrap();
    assert_eq!(map.get(&key).unwrap().as_deref(), Some(b"longest".as_slice()));
    let key = vec![1; (64 << 10) - 1];
    assert!(matches!(map.insert(&key, b""), Err(Error::TooLarge { what: "key", .. })));
    let mut writer = store.bulk_writer(TREE, &Schema::key_value());
    let pushed = writer.push(&key_value_rows([(key.as_slice(), b"".as_slice())].into_iter()));
    assert!(matches!(pushed, Err(Error::TooLarge { what: "key", .. })));
    assert_eq!(writer.rows(), 0);
    assert_eq!(writer.finish().unwrap().rows(), 0);
}

#[test]
fn invalid_encodings_are_refused() {
    let (store, _map) = open(&simulated(), options());
    let column = |ty, nullable| Column { name: "c".into(), ty, nullable };
    let columns = vec![
        column(ColumnType::Int32, true),
        column(ColumnType::Text, false),
        column(ColumnType::Boolean, false),
        column(ColumnType::Text, true),
        column(ColumnType::Bytes, false),
    ];
    let mut batch = WriteBatch::new();
    batch.create_tree(TreeId::new(30), &Schema::new(columns, 2));
    store.commit(batch).unwrap();
    let commit = |key: &[u8], value: Option<&[u8]>| {
        let mut batch = WriteBatch::new();
        match value {
            Some(value) => batch.insert_raw(TreeId::new(30), key, value),
            None => batch.delete_raw(TreeId::new(30), key),
        }
        store.commit(batch)
    };
    let key = b"\x01\x80\0\0\x07abc\0\0";
    // Null bitmap, boolean, length of the first of two strings, the bytes of both.
    let value = b"\0\x01\x02okrest";
    commit(key, Some(value)).unwrap();
    commit(key, None).unwrap();
    commit(b"\0\0\0", Some(b"\x01\0\0")).unwrap();
    let keys: [&[u8]; 8] = [
        b"",
        b"\x02\x80\0\0\x07abc\0\0",
        b"\x01\x80\0\0\x07abc",
        b"\x01\x80\0\0\x07abc\0",
        b"\x01\x80\0\0\x07abc\0\0more",
        b"\x01\x80\0\0\x07a\0\x05bc\0\0",
        b"\x01\x80\0\0\x07\xff\xfe\0\0",
        b"\x01\x80\0",
    ];
    for key in keys {
        assert!(matches!(commit(key, Some(value)), Err(Error::InvalidKey { .. })), "key {key:?}");
        assert!(matches!(commit(key, None), Err(Error::InvalidKey { .. })), "key {key:?}");
    }
    let values: [&[u8]; 6] = [b"", b"\0", b"\0\x02\0", b"\0\x01\x09short", b"\0\x01\x02\xff\xfe", b"\0\x01"];
    for value in values {
        assert!(matches!(commit(key, Some(value)), Err(Error::InvalidRow { .. })), "value {value:?}");
    }
    store.checkpoint().unwrap();
}

#[test]
fn many_upserts_of_one_key() {
    for buffer_bytes in [20_000, 64 << 20] {
        let (store, map) = open(&simulated(), Options { buffer_bytes, checkpoint_log_bytes: 1 << 30, ..options() });
        map.insert(b"a", b"").unwrap();
        map.insert(b"z", b"").unwrap();
        store.checkpoint().unwrap();
        let count = 100_000_u64;
        for _ in 0..count / 1000 {
            let mut batch = KeyValueBatch::default();
            for _ in 0..1000 {
                batch.upsert(&map, b"counter", ADD, &1_u64.to_le_bytes());
            }
            map.commit(batch).unwrap();
        }
        let expected = Some(count.to_le_bytes().to_vec());
        assert_eq!(map.get(b"counter").unwrap(), expected);
        store.checkpoint().unwrap();
        assert_eq!(map.get(b"counter").unwrap(), expected);
    }
}

/// The log counts its length correctly after a checkpoint that failed because the disk was full.
#[test]
fn a_failed_checkpoint_is_repeated() {
    let simulated = simulated();
    let limits = Options { checkpoint_log_bytes: 1_000_000, buffer_bytes: 10 << 20, ..options() };
    let (store, map) = open(&simulated, limits);
    let mut random = Random::new(1);
    let mut write = |count: u32| {
        for i in 0..count {
            let value: Vec<u8> = (0..1000).map(|_| random.below(256) as u8).collect();
            map.insert(&i.to_be_bytes(), &value).unwrap();
        }
    };
    write(10);
    store.checkpoint().unwrap();
    write(900);
    let checkpoints = store.stats().checkpoints;
    // There is a reserve for checkpoints, so only a write can fail: here those of the run, in both attempts, because
    // the flush writes it again in shorter extents.
    (4..60).for_each(|write| simulated.fail_after(write, FaultKind::NoSpace));
    let failed = store.checkpoint();
    assert!(matches!(failed, Err(Error::DiskFull { .. })), "{failed:?}");
    simulated.clear_faults();
    assert_eq!(store.stats().checkpoints, checkpoints);
    write(200);
    eventually("the log is not cut", || store.stats().checkpoints > checkpoints);
}

/// After a sync that failed for lack of space, pages may be lost: no later checkpoint may refer to them.
#[test]
fn a_checkpoint_is_not_repeated_after_a_failed_sync() {
    let mut failures = 0;
    for successes in 0..8 {
        let simulated = simulated();
        let (store, map) = open(&simulated, Options { durability: Durability::Full, ..options() });
        for i in 0..20_u32 {
            map.insert(&i.to_be_bytes(), &[1; 100]).unwrap();
        }
        simulated.fail_sync_without_space(successes);
        let first = store.checkpoint();
        simulated.clear_faults();
        map.insert(b"later", b"row").unwrap_or_default();
        if let Err(error) = first {
            failures += 1;
            assert!(!matches!(error, Error::DiskFull { .. }), "sync {successes}: {error}");
            let again = store.checkpoint();
            assert!(matches!(again, Err(Error::Poisoned { .. })), "sync {successes}: {again:?}");
        }
        simulated.crash();
        drop((map, store));
        let (_store, map) = open(&simulated, options());
        for i in 0..20_u32 {
            assert_eq!(map.get(&i.to_be_bytes()).unwrap().as_deref(), Some(&[1; 100][..]), "sync {successes}");
        }
    }
    assert!(failures >= 3, "{failures} of the syncs of a checkpoint failed");
}

/// 100 bytes that cannot be compressed.
fn noise(seed: u32) -> Vec<u8> {
    let mut random = Random::new(seed.into());
    (0..100).map(|_| random.below(256) as u8).collect()
}

fn leaves(store: &Store) -> usize {
    store.snapshot().tree(TREE).unwrap().split(&KeyRange::all(), usize::MAX).len()
}

/// Small leaves are joined with their neighbours.
#[test]
fn deletes_leave_few_leaves() {
    let (store, map) = open(&simulated(), Options { fan_out: 16, ..options() });
    let write = |what: &dyn Fn(&mut KeyValueBatch, u32)| {
        for first in (0..20_000_u32).step_by(100) {
            let mut batch = KeyValueBatch::default();
            (first..first + 100).for_each(|i| what(&mut batch, i));
            map.commit(batch).unwrap();
        }
        store.checkpoint().unwrap();
    };
    write(&|batch, i| batch.insert(&map, &i.to_be_bytes(), &noise(i)));
    let full = leaves(&store);
    assert!(full > 50, "{full} leaves");
    write(&|batch, i| {
        if i % 50 != 0 {
            batch.delete(&map, &i.to_be_bytes());
        }
    });
    let sparse = leaves(&store);
    assert!(sparse < full / 2, "{sparse} of {full} leaves remain for a fiftieth of the rows");
    let rows: Vec<_> = map.range(.., Direction::Ascending).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 400);
    assert!(rows.iter().zip(0_u32..).all(|((key, _), i)| **key == (i * 50).to_be_bytes()));
    write(&|batch, i| batch.delete(&map, &i.to_be_bytes()));
    assert_eq!(map.range(.., Direction::Ascending).unwrap().count(), 0);
    let none = leaves(&store);
    println!("{full} leaves, {sparse} after most of the deletes, {none} after all of them");
    assert!(none < full / 4, "{none} of {full} leaves remain without rows");
    map.insert(b"again", b"there").unwrap();
    assert_eq!(map.get(b"again").unwrap().as_deref(), Some(b"there".as_slice()));
}

/// Extents loaded between the leaves of a tree become leaves without a rewrite.
#[test]
fn loads_into_gaps_rewrite_nothing() {
    let simulated = simulated();
    let (store, map) = open(&simulated, options());
    let load = |keys: std::ops::Range<u32>| {
        let rows: Vec<_> = keys.map(|key| (key.to_be_bytes(), noise(key))).collect();
        let mut writer = store.bulk_writer(TREE, &Schema::key_value());
        writer.push(&key_value_rows(rows.iter().map(|(key, value)| (&key[..], &value[..])))).unwrap();
        let loaded = writer.finish().unwrap();
        let before = simulated.writes();
        store.install(WriteBatch::new(), vec![(TREE, loaded)]).unwrap();
        simulated.writes() - before
    };
    let mut expected = Vec::new();
    for keys in [10_000..20_000, 40_000..50_000, 50_000..60_000, 0..10_000, 20_000..40_000] {
        expected.extend(keys.clone());
        // In the log: the opening group of a segment and two empty records. In the data file: node table, two
        // superblocks.
        let writes = load(keys.clone());
        assert!(writes <= 8, "{writes} writes for a load of {keys:?} into a gap");
    }
    // Loads over existing rows and messages: the newer value wins.
    map.insert(&70_000_u32.to_be_bytes(), b"old").unwrap();
    map.delete(&5_u32.to_be_bytes()).unwrap();
    map.delete(&80_000_u32.to_be_bytes()).unwrap();
    store.checkpoint().unwrap();
    load(55_000..90_000);
    expected.extend(60_000..90_000);
    expected.retain(|key| *key != 5);
    expected.sort_unstable();
    let rows: Vec<_> = map.range(.., Direction::Ascending).unwrap().map(Result::unwrap).collect();
    let right = |(row, key): (&(Vec<u8>, Vec<u8>), &u32)| *row.0 == key.to_be_bytes() && *row.1 == noise(*key);
    assert_eq!(rows.len(), expected.len());
    assert!(rows.iter().zip(&expected).all(right));
    drop((map, store));
    assert_eq!(open(&simulated, options()).1.range(.., Direction::Descending).unwrap().count(), expected.len());
}

/// All results are correct with minimal memory budgets.
#[test]
fn tiny_budgets() {
    let tiny = Options {
        buffer_bytes: 1,
        checkpoint_log_bytes: 1,
        cache_bytes: 0,
        leaf_bytes: 4096,
        fan_out: 2,
        node_buffer_bytes: 0,
        runs_per_node: 1,
        ..options()
    };
    let simulated = simulated();
    let (store, map) = open(&simulated, tiny.clone());
    let mut model = BTreeMap::new();
    let mut random = Random::new(3);
    for _ in 0..400 {
        let key = random.below(100).to_be_bytes();
        match random.below(3) {
            0 => {
                map.delete(&key).unwrap();
                model.remove(&key);
            }
            1 => {
                map.upsert(&key, ADD, &5_u64.to_le_bytes()).unwrap();
                *model.entry(key).or_insert(0_u64) += 5;
            }
            _ => {
                map.insert(&key, &9_u64.to_le_bytes()).unwrap();
                model.insert(key, 9);
            }
        }
    }
    let check = |map: &KeyValue| {
        let rows: Vec<_> = map.range(.., Direction::Ascending).unwrap().map(Result::unwrap).collect();
        let expected: Vec<_> = model.iter().map(|(key, value)| (key.to_vec(), value.to_le_bytes().to_vec())).collect();
        assert_eq!(rows, expected);
    };
    check(&map);
    drop((store, map));
    check(&open(&simulated, tiny).1);
}

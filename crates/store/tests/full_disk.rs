//! Full disks: inserts are refused before the reserve is used up. Drops, truncations and deletes are not, and the space
//! that they free can be used again without reopening.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::Hooked;
use keyaki_device::Device;
use keyaki_device::simulated::{FaultKind, Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::key_value::{KeyValue, KeyValueBatch};
use keyaki_store::{Direction, Durability, Error, Options, Result, Schema, Store, TreeId, WriteBatch};

/// The tree that fills the disk, and one with a few rows.
const LARGE: TreeId = TreeId::new(2);
const SMALL: TreeId = TreeId::new(3);

const CAPACITY: u64 = 24 << 20;
const VALUE_BYTES: usize = 2000;

fn options() -> Options {
    Options {
        durability: Durability::Full,
        buffer_bytes: 1 << 20,
        checkpoint_log_bytes: 4 << 20,
        cache_bytes: 1 << 20,
        page_bytes: 4096,
        leaf_bytes: 64 << 10,
        node_buffer_bytes: 512 << 10,
        ..Options::default()
    }
}

struct Database {
    store: Store,
    large: KeyValue,
    small: KeyValue,
}

fn open_on(device: Arc<dyn Device>) -> Database {
    let store = Store::open(device, Path::new("/db"), options()).unwrap();
    let (large, small) = (KeyValue::open(&store, LARGE).unwrap(), KeyValue::open(&store, SMALL).unwrap());
    Database { store, large, small }
}

fn open(simulated: &Simulated) -> Database {
    open_on(simulated.device())
}

fn disk(seed: u64, capacity: u64) -> Simulated {
    Simulated::new(SimulatedOptions { seed, capacity_bytes: Some(capacity), ..Default::default() })
}

/// A value that cannot be compressed.
fn value(key: u32) -> Vec<u8> {
    let mut random = Random::new(key.into());
    (0..VALUE_BYTES).map(|_| random.below(256) as u8).collect()
}

/// Inserts rows from `first` on until the disk is full. Returns the first key that was refused.
fn fill(map: &KeyValue, first: u32) -> u32 {
    for key in first..first + 100_000 {
        match map.insert(&key.to_be_bytes(), &value(key)) {
            Ok(()) => {}
            Err(error @ Error::DiskFull { .. }) => {
                println!("row {key}: {error}");
                return key;
            }
            Err(error) => panic!("unexpected error of a full disk: {error}"),
        }
    }
    panic!("the disk does not become full");
}

fn check(map: &KeyValue, keys: impl Iterator<Item = u32>) {
    let rows = map.range(.., Direction::Ascending).unwrap().map(Result::unwrap);
    assert!(rows.eq(keys.map(|key| (key.to_be_bytes().to_vec(), value(key)))), "other rows than expected");
}

/// A full database: ten rows in the small tree, and the number of rows in the large one. With `rows`, other programs
/// fill the disk after that many rows.
fn full(simulated: &Simulated, rows: Option<u32>) -> (Database, u32) {
    let database = open(simulated);
    for key in 0..10_u32 {
        database.small.insert(&key.to_be_bytes(), &value(key)).unwrap();
    }
    if let Some(rows) = rows {
        for key in 0..rows {
            database.large.insert(&key.to_be_bytes(), &value(key)).unwrap();
        }
        simulated.set_capacity(Some(simulated.used_bytes()));
    }
    let end = fill(&database.large, rows.unwrap_or(0));
    for _ in 0..3 {
        let refused = database.small.insert(b"more", &value(0));
        assert!(matches!(refused, Err(Error::DiskFull { .. })), "{refused:?}");
    }
    (database, end)
}

fn remove_large(store: &Store, truncates: bool) -> Result<u64> {
    let mut batch = WriteBatch::new();
    batch.drop_tree(LARGE);
    if truncates {
        batch.create_tree(LARGE, &Schema::key_value());
    }
    store.commit(batch)
}

#[test]
fn a_dropped_tree_makes_space() {
    for rows in [None, Some(0), Some(300), Some(3000)] {
        let simulated = disk(1, CAPACITY);
        let (Database { store, large, small }, end) = full(&simulated, rows);
        assert!(end > 1000 || rows.is_some(), "only {end} rows fit");
        remove_large(&store, false).unwrap();
        drop(large);
        let more = 10 + end / 2;
        for key in 10..more {
            small.insert(&key.to_be_bytes(), &value(key)).unwrap();
        }
        drop((small, store));
        let database = open(&simulated);
        check(&database.small, 0..more);
        check(&database.large, 0..0);
    }
}

/// The extents of a dropped tree are free although the buffers of the other tree cannot be flushed.
#[test]
fn a_dropped_tree_needs_no_flush() {
    let simulated = disk(1, CAPACITY);
    let (Database { store, large, small }, end) = full(&simulated, None);
    store.checkpoint().unwrap();
    let used = store.stats().data_bytes_used;
    remove_large(&store, false).unwrap();
    drop(large);
    common::eventually("the extents of the tree are not free", || {
        store.stats().data_bytes_used < used - u64::from(end) / 2 * VALUE_BYTES as u64
    });
    // Also after a crash, whether or not the space was released before.
    simulated.crash();
    drop((small, store));
    let database = open(&simulated);
    check(&database.small, 0..10);
    check(&database.large, 0..0);
}

#[test]
fn a_truncated_tree_makes_space() {
    let simulated = disk(1, CAPACITY);
    let (Database { store, large, small }, _) = full(&simulated, None);
    for _ in 0..3 {
        remove_large(&store, true).unwrap();
        let end = fill(&large, 0);
        assert!(end > 1000, "only {end} rows fit");
        check(&large, 0..end);
    }
    let end = fill(&large, 0);
    drop((large, small, store));
    let database = open(&simulated);
    let rows = database.large.range(.., Direction::Ascending).unwrap().count() as u32;
    assert!(rows >= end, "{rows} rows of {end}");
}

#[test]
fn deleted_rows_make_space() {
    for rows in [None, Some(1000), Some(3000)] {
        let simulated = disk(2, CAPACITY);
        let (Database { store, large, small }, end) = full(&simulated, rows);
        for first in (0..end).step_by(500) {
            let mut batch = KeyValueBatch::default();
            (first..end.min(first + 500)).for_each(|key| batch.delete(&large, &key.to_be_bytes()));
            large.commit(batch).unwrap();
        }
        let again = fill(&small, 10);
        assert!(again > end / 2, "only {again} rows fit after {end} were deleted");
        check(&small, 0..again);
        check(&large, 0..0);
        drop((large, small, store));
        let database = open(&simulated);
        check(&database.small, 0..again);
        check(&database.large, 0..0);
    }
}

/// A tenth of the rows: the first ones, and in groups that are spread over all leaves.
#[test]
fn few_deleted_rows_make_space() {
    for group in [u32::MAX, 100] {
        let simulated = disk(2, CAPACITY);
        let (Database { large, small, .. }, end) = full(&simulated, None);
        let group = group.min(end);
        let is_deleted = |key: u32| key % group < group / 10;
        for key in (0..end).filter(|key| is_deleted(*key)) {
            large.delete(&key.to_be_bytes()).unwrap();
        }
        let again = fill(&small, 10) - 10;
        println!("{again} rows fit after {} were deleted, in groups of {}", end / 10, group / 10);
        // How much depends on the times of flushes: spread rows leave short holes.
        let least = if group == end { end / 40 } else { end / 200 };
        assert!(again > least, "only {again} rows fit after {} were deleted", end / 10);
        check(&large, (0..end).filter(|key| !is_deleted(*key)));
    }
}

/// The reserve survives a restart on the full disk.
#[test]
fn space_can_be_freed_after_a_restart() {
    for crashes in [false, true] {
        let simulated = disk(3, CAPACITY);
        let (database, end) = full(&simulated, None);
        if crashes {
            simulated.crash();
        }
        drop(database);
        simulated.set_capacity(Some(simulated.used_bytes()));
        let Database { store, large, small } = open(&simulated);
        check(&large, 0..end);
        remove_large(&store, false).unwrap();
        for key in 10..1000_u32 {
            small.insert(&key.to_be_bytes(), &value(key)).unwrap();
        }
        check(&small, 0..1000);
    }
}

/// Deletes in random order, in batches of random sizes, between inserts, checkpoints and crashes: none is refused, and
/// none is lost.
#[test]
fn random_deletes_are_not_refused() {
    let seeds = std::env::var("KEYAKI_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(2);
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let simulated = disk(seed, CAPACITY / 4 * 3 + random.below(CAPACITY / 4));
        let (mut database, end) = full(&simulated, (seed % 2 == 1).then_some(1000 + random.below(3000) as u32));
        let mut keys: Vec<u32> = (0..end).collect();
        for i in (1..keys.len()).rev() {
            keys.swap(i, random.below(i as u64 + 1) as usize);
        }
        while !keys.is_empty() {
            let most = 1 << random.below(12);
            let count = (1 + random.below(most) as usize).min(keys.len());
            let mut batch = KeyValueBatch::default();
            keys.drain(..count).for_each(|key| batch.delete(&database.large, &key.to_be_bytes()));
            database.large.commit(batch).unwrap_or_else(|error| panic!("seed {seed}, {} left: {error}", keys.len()));
            match random.below(20) {
                0 => {
                    simulated.crash();
                    drop(database);
                    database = open(&simulated);
                    let mut left = keys.clone();
                    left.sort_unstable();
                    check(&database.large, left.into_iter());
                }
                1 => drop(database.small.insert(&3_u32.to_be_bytes(), &value(3))),
                2 => database.store.checkpoint().unwrap(),
                _ => {}
            }
        }
        check(&database.large, 0..0);
        let again = fill(&database.small, 10);
        assert!(again > end / 2, "seed {seed}: only {again} rows fit after {end} were deleted");
        check(&database.small, 0..again);
    }
}

/// The disk becomes full at every call to the device in turn. The tree can be dropped nevertheless, then the other one
/// accepts as many rows again, and no acknowledged row is lost.
#[test]
fn a_drop_succeeds_wherever_the_disk_becomes_full() {
    let attempt = |full_at: u64| {
        let simulated = disk(full_at, u64::MAX);
        // Calls are counted after opening.
        let (calls, watched) = (Arc::new(AtomicU64::new(u64::MAX / 2)), simulated.clone());
        let device = Hooked::device(simulated.device(), {
            let calls = calls.clone();
            move |_| {
                if calls.fetch_add(1, Ordering::Relaxed) == full_at {
                    watched.set_capacity(Some(watched.used_bytes()));
                }
            }
        });
        let Database { store, large, small } = open_on(device);
        calls.store(0, Ordering::Relaxed);
        let mut end = 0_u32;
        // The steps have flushes, checkpoints and new log segments.
        let mut fill_step = |rows: u32| {
            for _ in 0..rows {
                match large.insert(&end.to_be_bytes(), &value(end)) {
                    Ok(()) => end += 1,
                    Err(Error::DiskFull { .. }) => return,
                    Err(error) => panic!("full at call {full_at}: {error}"),
                }
            }
        };
        fill_step(500);
        match store.checkpoint() {
            Ok(()) | Err(Error::DiskFull { .. }) => {}
            Err(error) => panic!("full at call {full_at}: {error}"),
        }
        fill_step(100);
        let reached = calls.load(Ordering::Relaxed) > full_at;
        check(&large, 0..end);
        simulated.set_capacity(Some(simulated.used_bytes()));
        remove_large(&store, full_at.is_multiple_of(2))
            .unwrap_or_else(|error| panic!("full at call {full_at}: {error}"));
        drop(large);
        for key in 0..end / 3 {
            let inserted = small.insert(&key.to_be_bytes(), &value(key));
            inserted.unwrap_or_else(|error| panic!("full at call {full_at}, row {key} of {end}: {error}"));
        }
        check(&small, 0..end / 3);
        simulated.crash();
        drop((small, store));
        let database = open(&simulated);
        check(&database.small, 0..end / 3);
        check(&database.large, 0..0);
        reached
    };
    // All calls on request; otherwise the first ones, and then some.
    let step = |call: u64| match std::env::var_os("KEYAKI_SEEDS") {
        None if call >= 30 => 23,
        _ => 1,
    };
    let mut full_at = 0;
    while attempt(full_at) {
        full_at += step(full_at);
    }
    assert!(full_at > 100, "only {full_at} calls");
}

/// Writes to the data file fail for lack of space, one after the other, as on file systems that copy on write. Nothing
/// is lost; only a failed write of the superblock or the log disables writes.
#[test]
fn writes_without_space_lose_nothing() {
    for failing in 0..60 {
        let simulated = disk(failing, CAPACITY);
        let database = open(&simulated);
        let mut acknowledged = 0;
        simulated.fail_after(failing * 5, FaultKind::NoSpace);
        for key in 0..600_u32 {
            match database.large.insert(&key.to_be_bytes(), &value(key)) {
                Ok(()) => acknowledged = key + 1,
                Err(Error::DiskFull { .. } | Error::Poisoned { .. } | Error::Device(_)) => break,
                Err(error) => panic!("write {failing}: {error}"),
            }
        }
        let removed = remove_large(&database.store, true);
        let is_poisoned = matches!(removed, Err(Error::Poisoned { .. }));
        assert!(removed.is_ok() || is_poisoned, "write {failing}: {removed:?}");
        if !is_poisoned {
            check(&database.large, 0..0);
            database.large.insert(&1_u32.to_be_bytes(), &value(1)).unwrap();
            acknowledged = 0;
        }
        simulated.crash();
        drop(database);
        let database = open(&simulated);
        let rows = database.large.range(.., Direction::Ascending).unwrap().count() as u32;
        assert!(rows >= acknowledged.max(u32::from(!is_poisoned)), "write {failing}: {rows} rows of {acknowledged}");
    }
}

fn open_with_long_leaves(simulated: &Simulated) -> Store {
    let options = Options { durability: Durability::Full, ..Options::default() };
    Store::open(simulated.device(), Path::new("/db"), options).unwrap()
}

/// What happens between the insertion and the deletion of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Between {
    Nothing,
    Reopen,
    Crash,
}

/// A database with few rows takes little space. When other programs fill the disk, it accepts further rows only as long as it can
/// remove all of them.
#[test]
fn rows_of_a_small_database_can_be_deleted() {
    for rows in [0_u32, 1, 10, 30, 40, 50, 60, 100, 300] {
        for (checkpoints, between) in [
            (false, Between::Nothing),
            (true, Between::Nothing),
            (false, Between::Reopen),
            (true, Between::Reopen),
            (false, Between::Crash),
            (true, Between::Crash),
        ] {
            let simulated = disk(u64::from(rows), u64::MAX);
            let open = || {
                let store = open_with_long_leaves(&simulated);
                let map = KeyValue::open(&store, SMALL).unwrap();
                (store, map)
            };
            let context = format!("{rows} rows, checkpoints: {checkpoints}, {between:?}");
            let (mut store, mut map) = open();
            (0..rows).for_each(|key| map.insert(&key.to_be_bytes(), &value(key)).unwrap());
            if rows <= 10 {
                assert!(simulated.used_bytes() < 1_000_000, "{context}: {} bytes", simulated.used_bytes());
            }
            if checkpoints {
                store.checkpoint().unwrap();
            }
            simulated.set_capacity(Some(simulated.used_bytes()));
            let end = fill(&map, rows);
            if between != Between::Nothing {
                drop(map);
                if between == Between::Crash {
                    simulated.crash();
                }
                drop(store);
                simulated.set_capacity(Some(simulated.used_bytes()));
                (store, map) = open();
                // Other programs take what a checkpoint returns.
                let _ = store.checkpoint();
                simulated.set_capacity(Some(simulated.used_bytes()));
            }
            check(&map, 0..end);
            for key in 0..end {
                map.delete(&key.to_be_bytes()).unwrap_or_else(|error| panic!("{context}, row {key} of {end}: {error}"));
            }
            check(&map, 0..0);
            let again = fill(&map, 0);
            println!("{context}: {end} rows, and {again} after their deletion");
            assert!(again > 0, "{context}: the space of {end} rows cannot be used again");
            let mut batch = WriteBatch::new();
            batch.drop_tree(SMALL);
            store.commit(batch).unwrap();
            drop((map, store));
            simulated.set_capacity(None);
            let (_store, map) = open();
            check(&map, 0..0);
            (0..100_u32).for_each(|key| map.insert(&key.to_be_bytes(), &value(key)).unwrap());
            check(&map, 0..100);
        }
    }
}

/// Rows that a small database could not accept leave it as it was, whatever space there is for a part of the reserve.
#[test]
fn refused_rows_leave_a_small_database_small() {
    for free in (0..48).map(|step| step * (256 << 10)) {
        let simulated = disk(free, u64::MAX);
        let store = open_with_long_leaves(&simulated);
        let map = KeyValue::open(&store, SMALL).unwrap();
        (0..10_u32).for_each(|key| map.insert(&key.to_be_bytes(), &value(key)).unwrap());
        simulated.set_capacity(Some(simulated.used_bytes() + free));
        let end = fill(&map, 10);
        (0..end).for_each(|key| map.delete(&key.to_be_bytes()).unwrap());
        let again = fill(&map, 0);
        assert!(again >= 10, "{free} bytes are free: {again} rows after the deletion of {end}");
        check(&map, 0..again);
    }
}

/// Short rows of several trees in a small database are deleted one by one on a full disk, with crashes in between.
#[test]
fn short_rows_of_many_trees_can_be_deleted() {
    const TREES: u32 = 4;
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let simulated = disk(seed, u64::MAX);
        let open = || {
            let store = open_with_long_leaves(&simulated);
            let maps: Vec<KeyValue> =
                (0..TREES).map(|tree| KeyValue::open(&store, TreeId::new(2 + tree)).unwrap()).collect();
            (store, maps)
        };
        let (mut store, mut maps) = open();
        let mut keys: Vec<u32> = Vec::new();
        let insert = |maps: &[KeyValue], key: u32| {
            let mut batch = KeyValueBatch::default();
            maps.iter().for_each(|map| batch.insert(map, &key.to_be_bytes(), b"short"));
            maps[0].commit(batch)
        };
        for key in 0..u32::MAX {
            if key == 100 {
                simulated.set_capacity(Some(simulated.used_bytes()));
            }
            match insert(&maps, key) {
                Ok(()) => keys.push(key),
                Err(Error::DiskFull { .. }) => break,
                Err(error) => panic!("seed {seed}: {error}"),
            }
            if key % 200 == 199 && seed % 2 == 0 {
                let _ = store.checkpoint();
            }
        }
        assert!(keys.len() > 200, "seed {seed}: only {} rows", keys.len());
        for i in (1..keys.len()).rev() {
            keys.swap(i, random.below(i as u64 + 1) as usize);
        }
        while let Some(key) = keys.pop() {
            let mut batch = KeyValueBatch::default();
            maps.iter().for_each(|map| batch.delete(map, &key.to_be_bytes()));
            maps[0].commit(batch).unwrap_or_else(|error| panic!("seed {seed}, {} left: {error}", keys.len()));
            if random.below(150) == 0 {
                simulated.crash();
                drop((maps, store));
                simulated.set_capacity(Some(simulated.used_bytes()));
                (store, maps) = open();
            }
        }
        for map in &maps {
            assert_eq!(map.range(.., Direction::Ascending).unwrap().count(), 0, "seed {seed}");
        }
    }
}

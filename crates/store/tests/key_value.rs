//! Gets and ranges of key-value trees that read many pages at a time: they agree with a model, read each page once,
//! report damaged pages, and may change threads.

mod common;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use keyaki_device::metered::{Issued, Metering};
use keyaki_device::model::Model;
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_device::{Device, Operation};
use keyaki_primitives::Random;
use keyaki_store::key_value::{KeyValue, KeyValueBatch};
use keyaki_store::{
    Direction, Durability, Error, KeyRange, MergePolicy, Options, Store, TreeId, UpsertFunctions, block_on,
};

const TREE: TreeId = TreeId::new(1);
const DIR: &str = "/db";
const APPEND: u32 = 1;

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn simulated(seed: u64) -> Simulated {
    Simulated::new(SimulatedOptions { seed, model: Model::nvme(), ..SimulatedOptions::default() })
}

fn open(device: Arc<dyn Device>, options: Options) -> (Store, KeyValue) {
    let append = |old: Option<&[u8]>, more: &[u8]| Ok(Some([old.unwrap_or_default(), more].concat()));
    let upserts = Arc::new(UpsertFunctions::default().with(APPEND, append));
    let store = Store::open(device, Path::new(DIR), Options { upserts, ..options }).unwrap();
    let map = KeyValue::open(&store, TREE).unwrap();
    (store, map)
}

/// Small nodes, so that reads meet runs on several levels, and a cache of a few pages.
fn small() -> Options {
    let (leaf_bytes, node_buffer_bytes, cache_bytes) = (64 << 10, 64 << 10, 64 << 10);
    Options { leaf_bytes, node_buffer_bytes, cache_bytes, buffer_bytes: 64 << 10, fan_out: 4, ..Options::default() }
}

fn key(number: u64) -> Vec<u8> {
    // Different lengths, with zero bytes.
    let mut key = format!("{number:06}").into_bytes();
    key.extend(std::iter::repeat_n(0, number as usize % 3));
    key
}

/// A tree of random changes and its rows.
fn random_tree(map: &KeyValue, random: &mut Random, keys: u64, changes: u64) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for _ in 0..changes / 100 {
        let mut batch = KeyValueBatch::default();
        for _ in 0..100 {
            let key = key(random.below(keys));
            match random.below(6) {
                0 => {
                    batch.delete(map, &key);
                    model.remove(&key);
                }
                1 => {
                    batch.upsert(map, &key, APPEND, b"+");
                    model.entry(key).or_default().push(b'+');
                }
                _ => {
                    let value = vec![random.below(256) as u8; random.below(100) as usize];
                    batch.insert(map, &key, &value);
                    model.insert(key, value);
                }
            }
        }
        map.commit(batch).unwrap();
    }
    model
}

/// True if the values are those of all keys of the model.
fn is_equal(values: &[Option<Vec<u8>>], model: &BTreeMap<Vec<u8>, Vec<u8>>) -> bool {
    values.iter().map(Option::as_ref).eq(model.values().map(Some))
}

fn ordered(rows: impl DoubleEndedIterator<Item = (Vec<u8>, Vec<u8>)>, direction: Direction) -> Rows {
    match direction {
        Direction::Ascending => rows.collect(),
        Direction::Descending => rows.rev().collect(),
    }
}

#[test]
fn reads_agree_with_a_model() {
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let device = simulated(seed);
        let (store, map) = open(device.device(), small());
        let model = random_tree(&map, &mut random, 4_000, 20_000);
        if seed % 2 == 0 {
            store.checkpoint().unwrap();
        }
        for round in 0..60 {
            if random.below(3) == 0 {
                store.cache().clear();
            }
            let keys: Vec<Vec<u8>> = (0..random.below(300)).map(|_| key(random.below(5_000))).collect();
            let expected: Vec<Option<Vec<u8>>> = keys.iter().map(|key| model.get(key).cloned()).collect();
            assert_eq!(map.get_many(&keys).unwrap(), expected, "seed {seed}, round {round}");

            let mut bound = || match (random.below(3), key(random.below(5_000))) {
                (0, _) => Bound::Unbounded,
                (1, key) => Bound::Included(key),
                (_, key) => Bound::Excluded(key),
            };
            let (mut start, mut end) = (bound(), bound());
            if let (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) =
                (&start, &end)
                && low >= high
            {
                (start, end) = (end, Bound::Unbounded);
            }
            let direction = [Direction::Ascending, Direction::Descending][random.below(2) as usize];
            let taken = if random.below(2) == 0 { usize::MAX } else { random.below(200) as usize };
            let borrowed = (start.as_ref().map(Vec::as_slice), end.as_ref().map(Vec::as_slice));
            let range = map.range(borrowed, direction).unwrap();
            let found: Rows = range.take(taken).map(Result::unwrap).collect();
            let rows = model.range::<Vec<u8>, _>((start.as_ref(), end.as_ref()));
            let mut expected = ordered(rows.map(|(key, value)| (key.clone(), value.clone())), direction);
            expected.truncate(taken);
            assert_eq!(found, expected, "seed {seed}, round {round}: {start:?} to {end:?}, {direction:?}");
        }
    }
}

#[test]
fn pages_are_read_once_and_together() {
    let device = Metering::new(simulated(0).device(), &["data", "log"], |path| usize::from(!path.ends_with("data")));
    let meters = device.meters().clone();
    let reads = || meters.snapshot("data", Operation::Read, Issued::Queued);
    let (store, map) = open(Arc::new(device), Options::default());
    let mut random = Random::new(1);
    let mut value = || (0..100).map(|_| random.below(256) as u8).collect();
    let rows: Rows = (0..40_000_u64).map(|number| (number.to_be_bytes().to_vec(), value())).collect();
    let mut batch = KeyValueBatch::default();
    rows.iter().for_each(|(key, value)| batch.insert(&map, key, value));
    map.commit(batch).unwrap();
    // The rows become leaves.
    let mut writer = store.bulk_writer(TREE, &keyaki_store::Schema::key_value());
    let columns = common::key_value_rows(rows.iter().map(|(key, value)| (key.as_slice(), value.as_slice())));
    writer.push(&columns).unwrap();
    let mut batch = keyaki_store::WriteBatch::new();
    batch.drop_tree(TREE);
    batch.create_tree(TREE, &keyaki_store::Schema::key_value());
    store.commit(batch).unwrap();
    store.install(keyaki_store::WriteBatch::new(), vec![(TREE, writer.finish().unwrap())]).unwrap();
    let pages = store.snapshot().tree(TREE).unwrap();
    assert!(pages.depth() > 1);

    // A whole tree: every page once, in reads of many pages.
    store.cache().clear();
    let (before, pages_before) = (reads(), store.stats().pages_read);
    assert_eq!(map.range(.., Direction::Ascending).unwrap().map(Result::unwrap).collect::<Rows>(), rows);
    let (after, pages) = (reads(), store.stats().pages_read - pages_before);
    let (requests, bytes) = (after.completed - before.completed, after.bytes - before.bytes);
    assert!(pages >= 300 && bytes < 9_000 * pages, "{pages} pages, {bytes} bytes");
    assert!(requests * 8 < pages, "{pages} pages in {requests} reads");

    // The beginning of a range: little more than it needs.
    for direction in [Direction::Ascending, Direction::Descending] {
        store.cache().clear();
        let before = reads();
        let start = 20_000_u64.to_be_bytes();
        let mut range = match direction {
            Direction::Ascending => map.range(start.as_slice().., direction).unwrap(),
            Direction::Descending => map.range(..start.as_slice(), direction).unwrap(),
        };
        assert!(range.next().is_some_and(|row| row.is_ok()));
        drop(range);
        let bytes = reads().bytes - before.bytes;
        assert!(bytes < 160 << 10, "{bytes} bytes for one row");
    }

    // Keys of the same page: one read.
    store.cache().clear();
    let pages_before = store.stats().pages_read;
    let keys: Vec<[u8; 8]> = (0..20_u64).map(u64::to_be_bytes).collect();
    assert!(map.get_many(&keys).unwrap().iter().all(Option::is_some));
    assert!(store.stats().pages_read - pages_before <= 2, "an index page and a data page");
    assert_eq!(map.get_many::<&[u8]>(&[]).unwrap(), Vec::<Option<Vec<u8>>>::new());
}

#[test]
fn unreadable_pages_fail_only_their_readers() {
    let device = simulated(3);
    let (store, map) = open(device.device(), small());
    let model = random_tree(&map, &mut Random::new(3), 4_000, 20_000);
    store.checkpoint().unwrap();
    let data = Path::new(DIR).join("data");
    let keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    let mut failed = 0;
    for block in (4..100_u64).map(|number| number * 3 * 4096) {
        device.fail_reads(&data, block..block + 4096).unwrap();
        store.cache().clear();
        // A range returns the rows before the page, then the error, and continues when the page is readable again.
        let mut range = map.range(.., Direction::Ascending).unwrap();
        let mut rows = BTreeMap::new();
        loop {
            match range.next_row() {
                Ok(Some((key, value))) => assert!(rows.insert(key.to_vec(), value.to_vec()).is_none()),
                Ok(None) => break,
                Err(Error::Device(_)) => {
                    failed += 1;
                    // Gets need the page if newer messages do not settle all of its keys.
                    match map.get_many(&keys) {
                        Ok(values) => assert!(is_equal(&values, &model)),
                        Err(error) => assert!(matches!(error, Error::Device(_)), "{error}"),
                    }
                    device.clear_faults();
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(rows == model, "an unreadable page changed the rows of a range");
        device.clear_faults();
        assert!(is_equal(&map.get_many(&keys).unwrap(), &model));
    }
    assert!(failed > 0, "no block belongs to the tree");
}

#[test]
fn failed_read_ahead_is_not_final() {
    let device = simulated(4);
    let (store, map) = open(device.device(), small());
    let model = random_tree(&map, &mut Random::new(4), 4_000, 20_000);
    store.checkpoint().unwrap();
    let data = Path::new(DIR).join("data");
    // Every block fails once: as a part of a longer read, alone, or when it is read ahead.
    for block in 1..2_000 {
        device.fail_next_reads(&data, block * 4096..(block + 1) * 4096, 1).unwrap();
    }
    store.cache().clear();
    let (mut range, mut rows) = (map.range(.., Direction::Ascending).unwrap(), Vec::new());
    loop {
        match range.next_row() {
            Ok(Some((key, value))) => rows.push((key.to_vec(), value.to_vec())),
            Ok(None) => break,
            Err(Error::Device(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(rows.into_iter().eq(model), "failed reads changed the rows of a range");
}

#[test]
fn damage_ends_a_range() {
    let device = simulated(6);
    let (store, map) = open(device.device(), small());
    let model = random_tree(&map, &mut Random::new(6), 4_000, 20_000);
    store.checkpoint().unwrap();
    let data = Path::new(DIR).join("data");
    let mut failed = 0;
    // Where the pages are depends on the order in which flushes have ended.
    for block in 4..400 {
        device.flip_bit(&data, block * 4096 + 3_000, 2).unwrap();
        store.cache().clear();
        let mut range = map.range(.., Direction::Ascending).unwrap();
        let rows = range.by_ref().take_while(Result::is_ok).count();
        if rows < model.len() {
            assert!(range.next().is_none(), "the iterator ends");
            for _ in 0..2 {
                assert!(matches!(range.next_row(), Err(Error::Corrupt { .. })), "no row is skipped");
            }
            failed += usize::from(rows > 0);
        }
        device.flip_bit(&data, block * 4096 + 3_000, 2).unwrap();
    }
    assert!(failed > 0, "no block belongs to a leaf");
}

#[test]
fn long_rows_of_runs_make_short_chunks() {
    let (store, map) = open(simulated(7).device(), Options { cache_bytes: 1 << 20, ..Options::default() });
    let mut random = Random::new(7);
    let value: Vec<u8> = (0..100 << 10).map(|_| random.below(256) as u8).collect();
    for key in 0..100_u64 {
        map.insert(&key.to_be_bytes(), &value).unwrap();
    }
    store.checkpoint().unwrap();
    // On top of the leaf, a run.
    for key in 0..100_u64 {
        map.insert(&key.to_be_bytes(), &value[1..]).unwrap();
    }
    store.checkpoint().unwrap();
    let (view, pages) = (store.snapshot().tree(TREE).unwrap(), store.blocking());
    let mut cursor = view.cursor(&pages, KeyRange::all(), Direction::Ascending);
    let mut rows = 0;
    while let Some(chunk) = block_on(cursor.next()).unwrap() {
        rows += chunk.rows();
        assert!(chunk.rows() <= 24, "a chunk of {} rows of 100 KiB", chunk.rows());
    }
    assert_eq!(rows, 100);
    assert!(map.range(.., Direction::Descending).unwrap().all(|row| row.unwrap().1 == value[1..]));
}

#[test]
fn ranges_change_threads() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    let store = Store::open(keyaki_device::open_default().unwrap(), directory.path(), options).unwrap();
    let map = KeyValue::open(&store, TREE).unwrap();
    let keys: Vec<[u8; 8]> = (0..30_000_u64).map(u64::to_be_bytes).collect();
    for part in keys.chunks(1_000) {
        let mut batch = KeyValueBatch::default();
        part.iter().for_each(|key| batch.insert(&map, key, &[1; 100]));
        map.commit(batch).unwrap();
    }
    store.checkpoint().unwrap();
    store.cache().clear();
    let mut range = map.range(.., Direction::Ascending).unwrap();
    for part in keys.chunks(700) {
        // Each thread begins with reads in flight that the one before has started.
        range = std::thread::spawn({
            let part = part.to_vec();
            move || {
                for key in part {
                    assert_eq!(range.next_row().unwrap(), Some((key.as_slice(), [1; 100].as_slice())));
                }
                range
            }
        })
        .join()
        .unwrap();
    }
    assert_eq!(range.next_row().unwrap(), None);
    // Concurrent readers, and ranges that end early on another thread.
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (map, keys) = (&map, &keys);
            scope.spawn(move || {
                for start in (thread..keys.len()).step_by(2_000) {
                    let range = map.range(keys[start].as_slice().., Direction::Ascending).unwrap();
                    let end = (start + 300).min(keys.len());
                    assert!(range.take(end - start).map(|row| row.unwrap().0).eq(keys[start..end].iter().copied()));
                    let some: Vec<[u8; 8]> = keys[start..end].iter().step_by(7).copied().collect();
                    assert!(map.get_many(&some).unwrap().iter().all(Option::is_some));
                }
            });
        }
    });
}

#[test]
fn calls_after_closing_are_errors() {
    let device = simulated(5);
    let (store, map) = open(device.device(), small());
    let model = random_tree(&map, &mut Random::new(5), 4_000, 20_000);
    store.checkpoint().unwrap();
    store.cache().clear();
    let snapshot = map.snapshot().unwrap();
    let mut range = snapshot.range(.., Direction::Ascending);
    assert!(range.next_row().unwrap().is_some());
    drop((map, store));
    assert!(matches!(snapshot.get_many(&[model.keys().next().unwrap()]), Err(Error::Closed)));
    let mut rows = 1;
    let error = loop {
        match range.next_row() {
            Ok(Some(_)) => rows += 1,
            Ok(None) => panic!("a range ended without an error"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Closed), "{error}");
    assert!(rows < model.len());
    assert!(matches!(range.next(), Some(Err(Error::Closed))) && range.next().is_none(), "the iterator ends");
}

/// Pages of deleted keys take more memory than a chunk may keep.
#[test]
fn rows_behind_many_deleted_ones_are_found() {
    const ROWS: u64 = 300_000;
    let options = Options {
        buffer_bytes: 64 << 20,
        cache_bytes: 8 << 20,
        page_bytes: 8192,
        leaf_bytes: 2 << 20,
        node_buffer_bytes: 64 << 20,
        durability: Durability::Off,
        ..Options::default()
    };
    let store = Store::open(Simulated::new(SimulatedOptions::default()).device(), Path::new("/db"), options).unwrap();
    let map = KeyValue::open(&store, TreeId::new(1)).unwrap();
    // Incompressible keys in ascending order, so that a deleted one takes as many bytes as a row.
    let key = |row: u64| [row.to_be_bytes(), Random::new(row).next_u64().to_be_bytes()].concat();
    let commit = |rows: std::ops::Range<u64>, change: &dyn Fn(&mut KeyValueBatch, u64)| {
        for first in rows.clone().step_by(1000) {
            let mut batch = KeyValueBatch::default();
            (first..rows.end.min(first + 1000)).for_each(|row| change(&mut batch, row));
            map.commit(batch).unwrap();
        }
        store.checkpoint().unwrap();
    };
    commit(0..ROWS, &|batch, row| batch.insert(&map, &key(row), b""));
    store.vacuum(|_| true, &|_, _| true).unwrap();
    let written = store.stats().bytes_flushed;
    commit(1000..ROWS - 1000, &|batch, row| batch.delete(&map, &key(row)));
    assert!(store.stats().bytes_flushed > written, "the deletes are in a run");
    for direction in [Direction::Ascending, Direction::Descending] {
        let found: Vec<Vec<u8>> = map.range(.., direction).unwrap().map(|row| row.unwrap().0).collect();
        let mut expected: Vec<Vec<u8>> = (0..1000).chain(ROWS - 1000..ROWS).map(key).collect();
        if direction == Direction::Descending {
            expected.reverse();
        }
        assert!(found == expected, "{} of {} rows, {direction:?}", found.len(), expected.len());
    }
}

/// Under [`MergePolicy::Leveled`], each inner node has one run of messages, so that ranges have fewer pages. A database
/// of one policy is read and written under the other.
#[test]
fn nodes_have_one_run_under_the_leveled_policy() {
    let pages_of_scans = |policies: [MergePolicy; 2]| {
        let (mut random, device) = (Random::new(1), simulated(1));
        let (mut pages, mut model) = (0, BTreeMap::new());
        for merge_policy in policies {
            let (store, map) = open(device.device(), Options { merge_policy, ..small() });
            for _ in 0..20 {
                let mut batch = KeyValueBatch::default();
                for _ in 0..500 {
                    let (key, value) = (random.next_u64().to_be_bytes(), random.next_u64().to_be_bytes().repeat(8));
                    batch.insert(&map, &key, &value);
                    model.insert(key.to_vec(), value);
                }
                map.commit(batch).unwrap();
                store.checkpoint().unwrap();
            }
            let before = store.stats().pages_read;
            for _ in 0..100 {
                store.drop_caches();
                let from = random.next_u64().to_be_bytes();
                let found = map.range(from.as_slice().., Direction::Ascending).unwrap().take(10).map(Result::unwrap);
                assert!(found.map(|row| row.0).eq(model.range(from.to_vec()..).take(10).map(|row| row.0.clone())));
            }
            pages = store.stats().pages_read - before;
            let rows: Vec<_> = map.range(.., Direction::Ascending).unwrap().map(Result::unwrap).collect();
            assert!(rows.into_iter().eq(model.clone()), "the rows differ under {merge_policy:?}");
        }
        pages
    };
    let (tiered, leveled) = (MergePolicy::Tiered, MergePolicy::Leveled);
    let [many, one] = [[tiered, tiered], [leveled, leveled]].map(pages_of_scans);
    assert!(one * 3 < many * 2, "the scans read {one} pages of single runs, {many} of several");
    let converted = pages_of_scans([tiered, leveled]);
    assert!(converted * 3 < many * 2, "the scans read {converted} pages of a converted tree, {many} of several runs");
    pages_of_scans([leveled, tiered]);
}

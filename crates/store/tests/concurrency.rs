//! Many threads on one store: writers with disjoint keys, readers of snapshots, checkpoints, bulk loads, and a tree
//! that is created and dropped repeatedly. Each commit writes the same number into all keys of its writer, so a reader
//! detects a snapshot with part of a commit.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow_array::cast::AsArray;
use common::key_value_rows;
use keyaki_device::Device;
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::key_value::{KeyValue, KeyValueBatch};
use keyaki_store::{
    Direction, Durability, Error, KeyRange, Options, Schema, Store, TreeId, UpsertFunctions, WriteBatch, block_on,
};

/// Two trees on disk and a memory tree.
const TREES: [TreeId; 3] = [TreeId::new(1), TreeId::new(2), TreeId::new(1 << 31 | 1)];
const WRITERS: u64 = 3;
const KEYS: u64 = 40;
const ROUNDS: u64 = 150;
const ADD: u32 = 1;

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn options(durability: Durability) -> Options {
    let add = |old: Option<&[u8]>, operand: &[u8]| {
        Ok(Some((number(old.unwrap_or_default()) + number(operand)).to_le_bytes().to_vec()))
    };
    Options {
        durability,
        buffer_bytes: 40_000,
        checkpoint_log_bytes: 200_000,
        cache_bytes: 100_000,
        page_bytes: 4096,
        leaf_bytes: 8192,
        fan_out: 3,
        node_buffer_bytes: 10_000,
        runs_per_node: 3,
        upserts: Arc::new(UpsertFunctions::default().with(ADD, add)),
        ..Options::default()
    }
}

fn open(device: &Arc<dyn Device>, durability: Durability) -> (Store, Vec<KeyValue>) {
    let store = Store::open(device.clone(), Path::new("/db"), options(durability)).unwrap();
    let maps = TREES.iter().map(|&tree| KeyValue::open(&store, tree).unwrap()).collect();
    (store, maps)
}

fn key(writer: u64, i: u64) -> Vec<u8> {
    // The keys of the writers interleave.
    format!("{i:04}-{writer}").into_bytes()
}

/// The number of each writer in a snapshot, after checking that all its keys in all trees have this number.
fn check(store: &Store, trees: &[TreeId], latest: bool, random: &mut Random) -> [u64; WRITERS as usize] {
    let snapshot = if latest { store.latest() } else { store.snapshot() };
    let mut numbers: [Option<u64>; WRITERS as usize] = [None; WRITERS as usize];
    for &tree in trees {
        let view = snapshot.tree(tree).unwrap();
        let pages = store.blocking();
        let direction = [Direction::Ascending, Direction::Descending][random.below(2) as usize];
        let mut cursor = view.cursor(&pages, KeyRange::all(), direction);
        let mut rows = [0; WRITERS as usize];
        while let Some(chunk) = block_on(cursor.next()).unwrap() {
            let columns = chunk.to_arrays(&[0, 1]).unwrap();
            let (keys, values) = (columns[0].as_binary_view(), columns[1].as_binary_view());
            for row in 0..chunk.rows() {
                let writer = usize::from(keys.value(row)[5] - b'0');
                let number = number(values.value(row));
                let expected = numbers[writer].get_or_insert(number);
                assert_eq!(*expected, number, "tree {tree} has part of a commit of writer {writer}");
                rows[writer] += 1;
            }
        }
        for (writer, number) in numbers.iter().enumerate() {
            let expected = if number.is_some_and(|number| number > 0) { KEYS } else { 0 };
            assert_eq!(rows[writer], expected, "rows of writer {writer} in tree {tree}");
        }
    }
    numbers.map(|number| number.unwrap_or(0))
}

fn write(maps: &[KeyValue], writer: u64, acknowledged: &AtomicU64, random: &mut Random) {
    for round in 1..=ROUNDS {
        let upserts = round > 1 && random.below(3) == 0;
        let mut batch = KeyValueBatch::default();
        for map in maps {
            for i in 0..KEYS {
                match upserts {
                    true => batch.upsert(map, &key(writer, i), ADD, &1_u64.to_le_bytes()),
                    false => {
                        let mut value = round.to_le_bytes().to_vec();
                        value.resize(8 + random.below(60) as usize, 7);
                        batch.insert(map, &key(writer, i), &value);
                    }
                }
            }
        }
        maps[0].commit(batch).unwrap();
        acknowledged.store(round, Ordering::SeqCst);
    }
}

/// Creates a tree, writes to it and drops it, again and again under the same id, while other threads flush.
fn create_and_drop(store: &Store, done: &AtomicBool, random: &mut Random) {
    let mut generation = 0_u64;
    while !done.load(Ordering::SeqCst) {
        generation += 1;
        let value = generation.to_le_bytes();
        let mut batch = WriteBatch::new();
        batch.create_tree(TreeId::new(9), &Schema::key_value());
        store.commit(batch).unwrap();
        let map = KeyValue::open(store, TreeId::new(9)).unwrap();
        for i in 0..random.below(40) {
            map.insert(&i.to_be_bytes(), &value).unwrap();
        }
        if random.below(2) == 0 {
            let mut writer = store.bulk_writer(TreeId::new(9), &Schema::key_value());
            let keys: Vec<_> = (0..random.below(300)).map(u64::to_be_bytes).collect();
            writer.push(&key_value_rows(keys.iter().map(|key| (&key[..], &value[..])))).unwrap();
            store.install(WriteBatch::new(), vec![(TreeId::new(9), writer.finish().unwrap())]).unwrap();
        }
        for row in map.range(.., Direction::Ascending).unwrap() {
            assert_eq!(row.unwrap().1, value, "a row of the tree dropped before");
        }
        let mut batch = WriteBatch::new();
        batch.drop_tree(TreeId::new(9));
        store.commit(batch).unwrap();
    }
}

fn run(durability: Durability) {
    let device: Arc<dyn Device> = Arc::new(Simulated::new(SimulatedOptions::default()));
    let (store, maps) = open(&device, durability);
    let acknowledged: [AtomicU64; WRITERS as usize] = Default::default();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (store, maps, acknowledged, done) = (&store, &maps, &acknowledged, &done);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn(move || write(maps, writer, &acknowledged[writer as usize], &mut Random::new(writer)))
            })
            .collect();
        for reader in 0..2 {
            scope.spawn(move || {
                let mut random = Random::new(reader + 100);
                let mut before = [0; WRITERS as usize];
                while !done.load(Ordering::SeqCst) {
                    let promised: Vec<u64> = acknowledged.iter().map(|number| number.load(Ordering::SeqCst)).collect();
                    let seen = check(store, &TREES, reader == 1 && random.below(2) == 0, &mut random);
                    assert!(
                        seen.iter().zip(&promised).all(|(seen, promised)| seen >= promised),
                        "{seen:?} {promised:?}"
                    );
                    // Snapshots of acknowledged commits are monotonic; `latest` may show a commit earlier than
                    // `snapshot`.
                    assert!(reader == 1 || seen.iter().zip(&before).all(|(seen, before)| seen >= before));
                    before = seen;
                }
            });
        }
        scope.spawn(move || {
            let mut random = Random::new(200);
            while !done.load(Ordering::SeqCst) {
                match random.below(4) {
                    0 => store.drop_caches(),
                    1 => store.install(WriteBatch::new(), Vec::new()).unwrap(),
                    _ => store.checkpoint().unwrap(),
                }
            }
        });
        scope.spawn(move || create_and_drop(store, done, &mut Random::new(300)));
        // If a writer panics, the other threads must still end.
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::SeqCst);
        assert!(results.iter().all(Result::is_ok), "a writer failed");
    });
    assert_eq!(check(&store, &TREES, false, &mut Random::new(1)), [ROUNDS; WRITERS as usize]);
    drop((maps, store));
    let (store, maps) = open(&device, durability);
    assert_eq!(check(&store, &TREES[..2], false, &mut Random::new(2)), [ROUNDS; WRITERS as usize]);
    assert!(matches!(store.snapshot().tree(TreeId::new(9)), Err(Error::TreeNotFound(tree)) if tree.get() == 9));
    drop(maps);
}

#[test]
fn snapshots_are_whole_under_full_durability() {
    run(Durability::Full);
}

#[test]
fn snapshots_are_whole_under_normal_durability() {
    run(Durability::Normal);
}

/// The durability changes continuously; a commit that was visible stays visible.
#[test]
fn durability_changes_under_writers() {
    let device: Arc<dyn Device> = Arc::new(Simulated::new(SimulatedOptions::default()));
    let (store, maps) = open(&device, Durability::Normal);
    let acknowledged = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (store, maps, acknowledged, done) = (&store, &maps, &acknowledged, &done);
        scope.spawn(move || {
            let mut random = Random::new(1);
            while !done.load(Ordering::SeqCst) {
                let durabilities = [Durability::Full, Durability::Normal, Durability::Off];
                store.set_durability(durabilities[random.below(3) as usize]);
            }
        });
        scope.spawn(move || {
            let mut before = 0;
            while !done.load(Ordering::SeqCst) {
                let promised = acknowledged.load(Ordering::SeqCst);
                let snapshot = store.snapshot();
                assert!(snapshot.sequence() >= before, "a snapshot is older than the snapshot before");
                before = snapshot.sequence();
                assert!(check(store, &TREES, false, &mut Random::new(3))[0] >= promised);
            }
        });
        let writer = scope.spawn(move || write(maps, 0, acknowledged, &mut Random::new(2)));
        let result = writer.join();
        done.store(true, Ordering::SeqCst);
        assert!(result.is_ok());
    });
    store.set_durability(Durability::Full);
    assert_eq!(store.snapshot().sequence(), store.latest().sequence());
}

/// Under full durability, a submitted commit is visible to the next writer at once, and to readers only after one of
/// the commits that share its `fdatasync` has returned.
#[test]
fn submitted_commits_share_a_sync_and_become_visible_when_durable() {
    let syncs = Arc::new(AtomicU64::new(0));
    let counted = syncs.clone();
    let device = common::Hooked::device(Arc::new(Simulated::new(SimulatedOptions::default())), move |call| {
        if matches!(call, common::Call::Sync(_)) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let store = Store::open(device, Path::new("/db"), options(Durability::Full)).unwrap();
    let tree = TREES[0];
    let mut create = WriteBatch::new();
    create.create_tree(tree, &Schema::key_value());
    store.commit(create).unwrap();
    let rows = |latest: bool| {
        let view = if latest { store.latest() } else { store.snapshot() }.tree(tree).unwrap();
        let pages = store.blocking();
        let mut counter = view.counter(&pages, KeyRange::all());
        std::iter::from_fn(|| block_on(counter.next()).unwrap()).sum::<u64>()
    };
    let before = syncs.load(Ordering::Relaxed);
    let submitted: Vec<_> = (0..5u64)
        .map(|i| {
            let mut batch = WriteBatch::new();
            let bytes = i.to_be_bytes();
            let rows = key_value_rows([(&bytes[..], &bytes[..])].into_iter());
            batch.insert(tree, &Schema::key_value(), &rows).unwrap();
            store.submit(batch).unwrap()
        })
        .collect();
    assert_eq!((rows(true), rows(false)), (5, 0));
    let sequences: Vec<u64> = submitted.into_iter().map(|submitted| submitted.wait().unwrap()).collect();
    assert!(sequences.is_sorted_by(|a, b| a + 1 == *b), "{sequences:?}");
    assert_eq!((rows(true), rows(false)), (5, 5));
    assert_eq!(syncs.load(Ordering::Relaxed), before + 1, "five commits must share one sync");
}

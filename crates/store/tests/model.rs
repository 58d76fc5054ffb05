//! Long random histories, compared with a `BTreeMap`: writes, deletes, upserts, flushes, checkpoints, bulk loads,
//! reopenings, and snapshots held during all of them. Scans in both directions and lookups are compared at regular
//! intervals. The histories run on a tree on disk, on a tree with a locator, and on a memory tree, which is rebuilt
//! after each reopening.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryViewArray, RecordBatch};
use keyaki_device::Device;
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::key_value::{KeyValue, KeyValueBatch, KeyValueSnapshot};
use keyaki_store::{
    Direction, Durability, Error, Goal, Loaded, LocatorOptions, MergePolicy, Options, Schema, Store, TreeId,
    UpsertFunctions, WriteBatch,
};

const TREE: TreeId = TreeId::new(2);
/// A tree on disk with a locator.
const LOCATED_TREE: TreeId = TreeId::new(3);
const MEMORY_TREE: TreeId = TreeId::new(1 << 31 | 7);
const APPEND: u32 = 1;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A small linear congruential generator: histories must not depend on a crate's version.
/// Random keys and values.
trait RandomRows {
    fn key(&mut self, keys: u64) -> Vec<u8>;
    fn value(&mut self) -> Vec<u8>;
}

impl RandomRows for Random {
    fn key(&mut self, keys: u64) -> Vec<u8> {
        let number = self.below(keys);
        // Keys that are prefixes of others, with zero bytes.
        match number % 3 {
            0 => number.to_be_bytes().to_vec(),
            1 => format!("k{number:05}").into_bytes(),
            _ => vec![0; (number % 50) as usize],
        }
    }
    fn value(&mut self) -> Vec<u8> {
        let len = if self.below(50) == 0 { 9000 } else { self.below(60) } as usize;
        let byte = self.next_u64() as u8;
        vec![byte; len]
    }
}

const POLICIES: [MergePolicy; 2] = [MergePolicy::Tiered, MergePolicy::Leveled];

fn options(seed: u64) -> Options {
    let append = |old: Option<&[u8]>, operand: &[u8]| Ok(Some([old.unwrap_or_default(), operand].concat()));
    Options {
        buffer_bytes: 20_000,
        checkpoint_log_bytes: 200_000,
        cache_bytes: 200_000,
        page_bytes: 4096,
        leaf_bytes: 16_384,
        fan_out: 2 + (seed % 5) as usize,
        node_buffer_bytes: 30_000,
        runs_per_node: 1 + (seed % 4) as usize,
        merge_policy: POLICIES[(seed / 3 % 2) as usize],
        upserts: Arc::new(UpsertFunctions::default().with(APPEND, append)),
        ..Options::default()
    }
}

/// Compares the whole tree in both directions, five random ranges and five random keys.
fn compare(snapshot: &KeyValueSnapshot, model: &Model, random: &mut Random, keys: u64) {
    assert_eq!(snapshot.count(..).unwrap(), model.len() as u64, "the number of all rows");
    let found: Model = snapshot.range(.., Direction::Ascending).map(Result::unwrap).collect();
    assert!(found == *model, "a scan differs: {} rows, {} expected", found.len(), model.len());
    let down: Vec<_> = snapshot.range(.., Direction::Descending).map(Result::unwrap).collect();
    assert!(down.iter().map(|(key, value)| (key, value)).eq(model.iter().rev()), "a descending scan differs");
    for _ in 0..5 {
        let (a, b) = (random.key(keys), random.key(keys));
        let (low, high) = if a < b { (a, b) } else { (b, a) };
        let bounds: (Bound<&[u8]>, Bound<&[u8]>) = match random.below(4) {
            0 => (Bound::Included(&low), Bound::Excluded(&high)),
            1 if low < high => (Bound::Excluded(&low), Bound::Included(&high)),
            2 => (Bound::Unbounded, Bound::Included(&high)),
            _ => (Bound::Included(&low), Bound::Unbounded),
        };
        let expected: Vec<_> = match bounds {
            (Bound::Included(a), Bound::Excluded(b)) if a == b => Vec::new(),
            _ => model.range::<[u8], _>(bounds).map(|(key, value)| (key.clone(), value.clone())).collect(),
        };
        assert_eq!(snapshot.count(bounds).unwrap(), expected.len() as u64, "rows in {bounds:?}");
        let mut found: Vec<_> = snapshot.range(bounds, Direction::Ascending).map(Result::unwrap).collect();
        assert_eq!(found, expected, "range {bounds:?}");
        found = snapshot.range(bounds, Direction::Descending).map(Result::unwrap).collect();
        found.reverse();
        assert_eq!(found, expected, "descending range {bounds:?}");
        let key = random.key(keys);
        assert_eq!(snapshot.get(&key).unwrap().as_ref(), model.get(&key), "key {key:?}");
    }
}

/// Bulk-loads rows into the whole key range or into a part of it, which may be empty.
fn load(store: &Store, tree: TreeId, model: &mut Model, random: &mut Random, keys: u64) {
    let prefix = match random.below(2) {
        0 => Vec::new(),
        _ => format!("k{:03}", random.below(1000)).into_bytes(),
    };
    let key = |random: &mut Random| [prefix.clone(), random.key(keys)].concat();
    let rows: Model = (0..random.below(300)).map(|_| (key(random), random.value())).collect();
    let loaded = match tree.is_memory() {
        true => in_memory(store, tree, &rows, random),
        false => on_disk(store, tree, &rows),
    };
    assert_eq!(loaded.rows(), rows.len() as u64);
    let mut batch = WriteBatch::new();
    batch.create_tree(store.new_tree_id(), &Schema::key_value());
    store.install(batch, vec![(tree, loaded)]).unwrap();
    model.extend(rows);
}

fn batch<'r>(rows: impl Iterator<Item = (&'r Vec<u8>, &'r Vec<u8>)>) -> RecordBatch {
    let (keys, values): (Vec<&[u8]>, Vec<&[u8]>) = rows.map(|(key, value)| (key.as_slice(), value.as_slice())).unzip();
    let column = |values: Vec<&[u8]>| Arc::new(BinaryViewArray::from(values)) as ArrayRef;
    RecordBatch::try_new(Schema::key_value().arrow().clone(), vec![column(keys), column(values)]).unwrap()
}

fn on_disk(store: &Store, tree: TreeId, rows: &Model) -> Loaded {
    let mut writer = store.bulk_writer(tree, &Schema::key_value());
    for part in rows.iter().collect::<Vec<_>>().chunks(70) {
        writer.push(&batch(part.iter().copied())).unwrap();
    }
    writer.finish().unwrap()
}

/// Builds rows of a memory tree in random order, with several builders.
fn in_memory(store: &Store, tree: TreeId, rows: &Model, random: &mut Random) -> Loaded {
    let mut shuffled: Vec<_> = rows.iter().collect();
    for i in 1..shuffled.len() {
        shuffled.swap(i, random.below(i as u64 + 1) as usize);
    }
    let mut all = store.memory_builder(tree, &Schema::key_value());
    for part in shuffled.chunks(70) {
        let mut builder = store.memory_builder(tree, &Schema::key_value());
        builder.push(&batch(part.iter().copied())).unwrap();
        all.append(builder).unwrap();
    }
    all.finish(1 + random.below(3) as usize).unwrap()
}

/// Deletes all keys between two random keys.
fn clear(map: &KeyValue, model: &mut Model, random: &mut Random, keys: u64) {
    let (a, b) = (random.key(keys), random.key(keys));
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    let mut batch = KeyValueBatch::default();
    let gone: Vec<Vec<u8>> = model.range(low..high).map(|(key, _)| key.clone()).collect();
    for key in gone {
        batch.delete(map, &key);
        model.remove(&key);
    }
    map.commit(batch).unwrap();
}

/// Requests a locator with a random memory budget: without pages in memory, with all pages, or with 100 kB.
fn locate(store: &Store, random: &mut Random) {
    let goal = [Goal::Smallest, Goal::Fastest][random.below(2) as usize];
    let memory_bytes = [None, Some(1 << 30), Some(100_000)][random.below(3) as usize];
    store.set_locator(LOCATED_TREE, LocatorOptions { goal, memory_bytes }).unwrap();
    if random.below(2) == 0 {
        store.wait_for_locators();
    }
}

fn history(seed: u64, steps: u64, tree: TreeId) {
    let device: Arc<dyn Device> = Arc::new(Simulated::new(SimulatedOptions { seed, ..Default::default() }));
    let dir = Path::new("/db");
    let mut random = Random::new(seed);
    let keys = [50, 500, 5000][(seed % 3) as usize];
    let mut store = Store::open(device.clone(), dir, options(seed)).unwrap();
    let mut map = KeyValue::open(&store, tree).unwrap();
    let mut model = Model::new();
    let mut held: Vec<(KeyValueSnapshot, Model)> = Vec::new();
    if tree == LOCATED_TREE {
        locate(&store, &mut random);
    }
    for step in 0..steps {
        match random.below(100) {
            0..=79 => {
                let mut batch = KeyValueBatch::default();
                for _ in 0..1 + random.below(40) {
                    let key = random.key(keys);
                    match random.below(10) {
                        0..=5 => {
                            let value = random.value();
                            batch.insert(&map, &key, &value);
                            model.insert(key, value);
                        }
                        6..=7 => {
                            batch.delete(&map, &key);
                            model.remove(&key);
                        }
                        _ => {
                            let operand = [random.next_u64() as u8];
                            batch.upsert(&map, &key, APPEND, &operand);
                            model.entry(key).or_default().extend(operand);
                        }
                    }
                }
                map.commit(batch).unwrap();
            }
            80..=83 => store.checkpoint().unwrap(),
            84..=85 => load(&store, tree, &mut model, &mut random, keys),
            86 => clear(&map, &mut model, &mut random, keys),
            87..=90 => held.push((map.snapshot().unwrap(), model.clone())),
            91..=93 if !held.is_empty() => {
                let (snapshot, then) = held.swap_remove(random.below(held.len() as u64) as usize);
                compare(&snapshot, &then, &mut random, keys);
            }
            94 => {
                held.clear();
                drop((map, store));
                // A database may be opened with another policy.
                let options = Options { merge_policy: *random.pick(&POLICIES), ..options(seed) };
                store = Store::open(device.clone(), dir, options).unwrap();
                if tree.is_memory() {
                    assert!(matches!(store.latest().tree(tree), Err(Error::TreeNotFound(_))));
                    let loaded = in_memory(&store, tree, &model, &mut random);
                    store.install_memory(vec![(tree, loaded)]).unwrap();
                }
                map = KeyValue::open(&store, tree).unwrap();
                if tree == LOCATED_TREE {
                    locate(&store, &mut random);
                }
            }
            95 if tree == LOCATED_TREE => store.wait_for_locators(),
            95 => store.drop_caches(),
            _ => compare(&map.snapshot().unwrap(), &model, &mut random, keys),
        }
        if step % 200 == 199 {
            compare(&map.snapshot().unwrap(), &model, &mut random, keys);
        }
    }
    for (snapshot, then) in held {
        compare(&snapshot, &then, &mut random, keys);
    }
    compare(&map.snapshot().unwrap(), &model, &mut random, keys);
}

#[test]
fn histories_agree_with_a_map() {
    let seeds = std::env::var("KEYAKI_SEEDS").map_or(12, |text| text.parse().unwrap());
    for seed in 0..seeds {
        println!("seed {seed}");
        history(seed, 400, TREE);
    }
}

#[test]
fn histories_in_memory_agree_with_a_map() {
    let seeds = std::env::var("KEYAKI_SEEDS").map_or(12, |text| text.parse().unwrap());
    for seed in 0..seeds {
        println!("seed {seed}");
        history(seed, 400, MEMORY_TREE);
    }
}

#[test]
fn histories_with_a_locator_agree_with_a_map() {
    let seeds = std::env::var("KEYAKI_SEEDS").map_or(12, |text| text.parse().unwrap());
    for seed in 0..seeds {
        println!("seed {seed}");
        history(seed, 400, LOCATED_TREE);
    }
}

#[test]
fn closed_databases_survive_under_every_durability() {
    for durability in [Durability::Full, Durability::Normal, Durability::Off] {
        let device: Arc<dyn Device> = Arc::new(Simulated::new(SimulatedOptions::default()));
        let options = Options { durability, ..options(1) };
        let store = Store::open(device.clone(), Path::new("/db"), options.clone()).unwrap();
        let map = KeyValue::open(&store, TREE).unwrap();
        for i in 0..500_u32 {
            map.insert(&i.to_be_bytes(), b"value").unwrap();
        }
        assert_eq!(map.range(.., Direction::Ascending).unwrap().count(), 500);
        drop((map, store));
        let store = Store::open(device, Path::new("/db"), options).unwrap();
        let map = KeyValue::open(&store, TREE).unwrap();
        assert_eq!(map.range(.., Direction::Ascending).unwrap().count(), 500);
    }
}

/// Merges of runs, and rebuilds of leaves, with many more messages than a batch of a flush has.
#[test]
fn merges_of_many_batches_agree_with_a_map() {
    for (seed, large_values) in [(1, false), (2, true), (4, false), (5, true)] {
        let device: Arc<dyn Device> = Arc::new(Simulated::new(SimulatedOptions::default()));
        let options = Options {
            buffer_bytes: 1 << 30,
            leaf_bytes: 4096,
            node_buffer_bytes: [2 << 20, 200_000][seed as usize % 2],
            runs_per_node: 3,
            ..options(seed)
        };
        let store = Store::open(device, Path::new("/db"), options).unwrap();
        let map = KeyValue::open(&store, TREE).unwrap();
        let (mut random, mut model) = (Random::new(seed), Model::new());
        for round in 0..10 {
            let mut batch = KeyValueBatch::default();
            for _ in 0..2500 {
                let key = random.below(8000).to_be_bytes().to_vec();
                // The last rounds mostly delete.
                match random.below(if round < 7 { 6 } else { 2 }) {
                    0 => {
                        batch.delete(&map, &key);
                        model.remove(&key);
                    }
                    1 => {
                        batch.upsert(&map, &key, APPEND, b"+");
                        model.entry(key).or_default().push(b'+');
                    }
                    _ => {
                        let len = if large_values && random.below(40) == 0 { 9000 } else { random.below(40) };
                        let value = vec![random.below(256) as u8; len as usize];
                        batch.insert(&map, &key, &value);
                        model.insert(key, value);
                    }
                }
            }
            map.commit(batch).unwrap();
            store.checkpoint().unwrap();
            assert_eq!(store.stats().buffer_bytes, 0);
            compare(&map.snapshot().unwrap(), &model, &mut random, 8000);
        }
    }
}

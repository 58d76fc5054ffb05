//! Numbers of rows that are known without reading pages, and counts of ranges, compared with a `BTreeMap` over long random
//! histories: messages about whose keys the writer knows something or nothing, upserts, flushes, checkpoints, bulk loads,
//! reopenings, crashes, and snapshots held during all of them.

mod common;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::{
    Direction, Durability, KeyRange, Loaded, MergePolicy, Options, Result, Store, TreeId, TreeView, UpsertFunctions,
    WriteBatch, block_on,
};

use common::{number_key as key, number_rows, number_schema as schema};

const TREE: TreeId = TreeId::new(20);
const MEMORY_TREE: TreeId = TreeId::new(1 << 31 | 3);
const TREES: [TreeId; 2] = [TREE, MEMORY_TREE];
/// Adds the operand to the value; a row whose value becomes a multiple of 5 is deleted.
const ADD: u32 = 7;

type Model = BTreeMap<i64, i64>;

fn add(old: Option<i64>, operand: i64) -> Option<i64> {
    Some(old.unwrap_or(0) + operand).filter(|sum| sum % 5 != 0)
}

fn options(seed: u64) -> Options {
    let number = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap());
    let upsert = move |old: Option<&[u8]>, operand: &[u8]| {
        Ok(add(old.map(number), number(operand)).map(|sum| sum.to_le_bytes().to_vec()))
    };
    Options {
        buffer_bytes: 20_000,
        checkpoint_log_bytes: 100_000,
        cache_bytes: 200_000,
        page_bytes: 4096,
        leaf_bytes: 16_384,
        fan_out: 2 + (seed % 5) as usize,
        node_buffer_bytes: 30_000,
        runs_per_node: 1 + (seed % 4) as usize,
        merge_policy: [MergePolicy::Tiered, MergePolicy::Leveled][(seed / 4 % 2) as usize],
        durability: [Durability::Full, Durability::Normal][(seed % 2) as usize],
        upserts: Arc::new(UpsertFunctions::default().with(ADD, upsert)),
        ..Options::default()
    }
}

/// How much the writer of a history knows.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Writer {
    /// Everything: the number of rows is always known.
    Knows,
    /// One message in this many is blind.
    Guesses(u64),
}

fn count(store: &Store, view: &TreeView, range: &KeyRange) -> u64 {
    let source = store.blocking();
    let (mut counter, mut rows) = (view.counter(&source, range.clone()), 0);
    while let Some(more) = block_on(counter.next()).unwrap() {
        rows += more;
    }
    rows
}

fn scan(store: &Store, view: &TreeView) -> u64 {
    let source = store.blocking();
    let (mut cursor, mut rows) = (view.cursor(&source, KeyRange::all(), Direction::Ascending), 0);
    while let Some(chunk) = block_on(cursor.next()).unwrap() {
        rows += chunk.rows() as u64;
    }
    rows
}

/// Compares the number of rows, if it is known, and counts of ranges with the model.
fn check(store: &Store, view: &TreeView, model: &Model, keys: i64, random: &mut Random) {
    assert_eq!(scan(store, view), model.len() as u64, "a scan");
    assert!(view.live_rows().is_none_or(|rows| rows == model.len() as u64), "{:?} live rows", view.live_rows());
    assert_eq!(count(store, view, &KeyRange::all()), model.len() as u64, "all rows");
    for _ in 0..6 {
        let (a, b) = (random.below(keys as u64) as i64, random.below(keys as u64) as i64);
        let (low, high) = (a.min(b), a.max(b));
        let (range, rows) = match random.below(4) {
            0 => (KeyRange::point(key(low)), model.range(low..=low).count()),
            1 => {
                let (start, end) = (Bound::Included(key(low)), Bound::Excluded(key(high)));
                (KeyRange { start, end }, model.range(low..high).count())
            }
            2 => {
                let (start, end) = (Bound::Excluded(key(low)), Bound::Included(key(high)));
                (KeyRange { start, end }, model.range(low..=high).filter(|(key, _)| **key > low).count())
            }
            _ => {
                let (start, end) = (Bound::Included(key(low)), Bound::Unbounded);
                (KeyRange { start, end }, model.range(low..).count())
            }
        };
        assert_eq!(count(store, view, &range), rows as u64, "{range:?}");
    }
}

/// A commit of random messages for both trees.
fn change(writer: Writer, model: &mut Model, keys: i64, random: &mut Random) -> WriteBatch {
    let mut batch = WriteBatch::new();
    for _ in 0..1 + random.below(40) {
        let number = random.below(keys as u64) as i64;
        let value = random.below(1000) as i64;
        let (key, row) = (key(number), value.to_le_bytes());
        let is_blind = matches!(writer, Writer::Guesses(one_in) if random.below(one_in) == 0);
        match random.below(10) {
            0..=4 => {
                let old = model.insert(number, value);
                for tree in TREES {
                    match old {
                        _ if is_blind => batch.insert_raw(tree, &key, &row),
                        None => batch.insert_new_raw(tree, &key, &row),
                        Some(_) => batch.update_raw(tree, &key, &row),
                    }
                }
            }
            5..=8 if is_blind => {
                model.remove(&number);
                TREES.iter().for_each(|&tree| batch.delete_raw(tree, &key));
            }
            5..=8 if model.remove(&number).is_some() => {
                TREES.iter().for_each(|&tree| batch.delete_existing_raw(tree, &key));
            }
            9 if is_blind => {
                match add(model.get(&number).copied(), value) {
                    Some(sum) => model.insert(number, sum),
                    None => model.remove(&number),
                };
                TREES.iter().for_each(|&tree| batch.upsert_raw(tree, &key, ADD, &row));
            }
            _ => {}
        }
    }
    batch
}

fn batch_of(rows: &Model) -> RecordBatch {
    let column = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
    let columns = vec![column(rows.keys().copied().collect()), column(rows.values().copied().collect())];
    RecordBatch::try_new(schema().arrow().clone(), columns).unwrap()
}

type Loads = Result<Vec<(TreeId, Loaded)>>;

/// Rows for both trees, loaded in bulk. Only new keys if the writer knows.
fn load(store: &Store, writer: Writer, model: &mut Model, keys: i64, random: &mut Random) -> Loads {
    let first = random.below(keys as u64) as i64;
    let mut rows: Model = (0..random.below(300) as i64).map(|i| (first + i * 2, i)).collect();
    let is_new = writer == Writer::Knows;
    rows.retain(|key, _| !is_new || !model.contains_key(key));
    let mut on_disk = store.bulk_writer(TREE, &schema());
    on_disk.push(&batch_of(&rows))?;
    let on_disk = on_disk.finish()?;
    let in_memory = build(store, &rows);
    model.extend(rows);
    Ok(vec![(TREE, if is_new { on_disk.claim_new_keys() } else { on_disk }), (MEMORY_TREE, in_memory)])
}

fn build(store: &Store, rows: &Model) -> Loaded {
    let mut builder = store.memory_builder(MEMORY_TREE, &schema());
    builder.push(&batch_of(rows)).unwrap();
    builder.finish(1).unwrap()
}

fn open(simulated: &Simulated, seed: u64) -> Result<Store> {
    let store = Store::open(simulated.device(), Path::new("/db"), options(seed))?;
    if store.latest().tree(TREE).is_err() {
        let mut batch = WriteBatch::new();
        batch.create_tree(TREE, &schema());
        store.commit(batch)?;
    }
    Ok(store)
}

fn history(seed: u64, writer: Writer) {
    let simulated = Simulated::new(SimulatedOptions { seed, ..Default::default() });
    let mut random = Random::new(seed);
    let keys = [60, 800, 9000][(seed % 3) as usize];
    let mut model = Model::new();
    let mut store = open(&simulated, seed).unwrap();
    store.install_memory(vec![(MEMORY_TREE, build(&store, &model))]).unwrap();
    let mut held: Vec<([TreeView; 2], Model)> = Vec::new();
    let views = |store: &Store| TREES.map(|tree| store.latest().tree(tree).unwrap());
    for _ in 0..350 {
        match random.below(100) {
            0..=79 => {
                let batch = change(writer, &mut model, keys, &mut random);
                store.commit(batch).unwrap();
            }
            80..=83 => store.checkpoint().unwrap(),
            84..=85 => {
                let loaded = load(&store, writer, &mut model, keys, &mut random).unwrap();
                store.install(WriteBatch::new(), loaded).unwrap();
            }
            86..=88 => held.push((views(&store), model.clone())),
            89..=90 if !held.is_empty() => {
                let (then, model) = held.swap_remove(random.below(held.len() as u64) as usize);
                then.iter().for_each(|view| check(&store, view, &model, keys, &mut random));
                // The count of an old view makes later ones known, unless blind messages followed.
                then[0].settle_rows(model.len() as u64);
            }
            91 => {
                let view = &views(&store)[0];
                let was_known = view.live_rows().is_some();
                assert_ne!(view.settle_rows(model.len() as u64), was_known);
                assert_eq!(view.live_rows(), Some(model.len() as u64));
            }
            92 => {
                held.clear();
                let known = views(&store)[0].live_rows();
                drop(store);
                store = open(&simulated, seed).unwrap();
                let view = store.latest().tree(TREE).unwrap();
                assert!(known.is_none() || view.live_rows() == known, "closing keeps the number of rows");
                store.install_memory(vec![(MEMORY_TREE, build(&store, &model))]).unwrap();
            }
            _ => views(&store).iter().for_each(|view| check(&store, view, &model, keys, &mut random)),
        }
        let [on_disk, in_memory] = views(&store);
        assert_eq!(in_memory.live_rows(), Some(model.len() as u64), "memory trees know their rows");
        assert!(on_disk.live_rows().is_none_or(|rows| rows == model.len() as u64), "{:?}", on_disk.live_rows());
        assert!(writer != Writer::Knows || on_disk.live_rows().is_some(), "all messages are known");
    }
    for (then, model) in held {
        then.iter().for_each(|view| check(&store, view, &model, keys, &mut random));
    }
}

fn seeds(otherwise: u64) -> u64 {
    std::env::var("KEYAKI_SEEDS").map_or(otherwise, |text| text.parse().unwrap())
}

#[test]
fn histories_of_known_messages() {
    for seed in 0..seeds(12) {
        println!("seed {seed}");
        history(seed, Writer::Knows);
    }
}

#[test]
fn histories_with_blind_messages() {
    for seed in 0..seeds(12) {
        println!("seed {seed}");
        history(seed, Writer::Guesses([3, 50, 2000][(seed / 3 % 3) as usize]));
    }
}

/// After a crash, the number of rows that is known from the checkpoint and the log is the number of rows found.
#[test]
fn numbers_of_rows_survive_crashes() {
    for seed in 0..seeds(150) {
        println!("seed {seed}");
        let simulated = Simulated::new(SimulatedOptions { seed, ..Default::default() });
        let mut random = Random::new(seed);
        let writer = [Writer::Knows, Writer::Guesses(300)][(seed / 2 % 2) as usize];
        let mut found = Model::new();
        for _ in 0..4 {
            simulated.crash_after_operations(20 + random.below(150));
            let mut run = || -> Result<()> {
                let store = open(&simulated, seed)?;
                let mut model = found.clone();
                store.install_memory(vec![(MEMORY_TREE, build(&store, &model))])?;
                for _ in 0..80 {
                    match random.below(20) {
                        0 => store.checkpoint()?,
                        1 => {
                            let loaded = load(&store, writer, &mut model, 500, &mut random)?;
                            store.install(WriteBatch::new(), loaded)?;
                        }
                        _ => drop(store.commit(change(writer, &mut model, 500, &mut random))?),
                    }
                    let view = store.latest().tree(TREE)?;
                    assert!(view.live_rows().is_none_or(|rows| rows == model.len() as u64));
                    assert!(writer != Writer::Knows || view.live_rows().is_some());
                }
                Ok(())
            };
            // The crash ends the run, unless it has fewer operations.
            let _ = run();
            simulated.crash();
            let store = open(&simulated, seed).unwrap();
            let view = store.latest().tree(TREE).unwrap();
            let rows = scan(&store, &view);
            assert!(view.live_rows().is_none_or(|known| known == rows), "{:?} rows, found {rows}", view.live_rows());
            assert!(writer != Writer::Knows || view.live_rows().is_some());
            assert_eq!(count(&store, &view, &KeyRange::all()), rows);
            found = number_rows(&store, &view);
            drop(view);
            drop(store);
        }
    }
}

/// Crashes the device when it is dropped.
struct PowerOff<'a>(&'a Simulated);

impl Drop for PowerOff<'_> {
    fn drop(&mut self) {
        self.0.crash();
    }
}

/// Snapshots taken beside writers, flushes, checkpoints and bulk loads see the number of rows that they count, and so does
/// the recovery from a checkpoint that was written beside writers.
#[test]
fn snapshots_beside_writers_see_their_number_of_rows() {
    for seed in 0..8 {
        let simulated = Simulated::new(SimulatedOptions { seed, ..Default::default() });
        let store = open(&simulated, seed).unwrap();
        std::thread::scope(|scope| {
            for writer in 1..=2 {
                let store = store.clone();
                scope.spawn(move || {
                    for commit in 0.. {
                        let (mut batch, first) = (WriteBatch::new(), writer << 40 | commit << 8);
                        (0..20).for_each(|i| batch.insert_new_raw(TREE, &key(first + i), &[0; 8]));
                        (0..commit % 3).for_each(|i| batch.delete_existing_raw(TREE, &key(first + i)));
                        if store.commit(batch).is_err() {
                            // Power is off.
                            return;
                        }
                    }
                });
            }
            // Also ends the writers if an assertion fails.
            let _power_off = PowerOff(&simulated);
            for turn in 0..20 {
                match turn % 3 {
                    0 => store.checkpoint().unwrap(),
                    1 => {
                        let rows: Model = (0..50).map(|i| (-1 - turn * 50 - i, i)).collect();
                        let mut writer = store.bulk_writer(TREE, &schema());
                        writer.push(&batch_of(&rows)).unwrap();
                        let loaded = writer.finish().unwrap().claim_new_keys();
                        store.install(WriteBatch::new(), vec![(TREE, loaded)]).unwrap();
                    }
                    _ => {}
                }
                for snapshot in [store.snapshot(), store.latest()] {
                    let view = snapshot.tree(TREE).unwrap();
                    let known = view.live_rows().expect("all messages are known");
                    assert_eq!(known, scan(&store, &view), "seed {seed}");
                    assert_eq!(known, count(&store, &view, &KeyRange::all()), "seed {seed}");
                }
            }
            store.checkpoint().unwrap();
        });
        drop(store);
        let store = open(&simulated, seed).unwrap();
        let view = store.latest().tree(TREE).unwrap();
        assert_eq!(view.live_rows(), Some(scan(&store, &view)), "seed {seed}");
    }
}

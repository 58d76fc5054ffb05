//! Trees with each method of compression, through their whole life.

use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::{
    BackupMode, Column, ColumnType, Compression, Direction, KeyRange, Options, Schema, Snapshot, Store, TreeId,
    WriteBatch, block_on,
};

const TREE: TreeId = TreeId::new(20);
const DATABASE: &str = "/db";
const ROWS: i64 = 6000;

fn options() -> Options {
    Options { buffer_bytes: 1 << 20, page_bytes: 4096, leaf_bytes: 262_144, fan_out: 4, ..Options::default() }
}

fn simulated() -> Simulated {
    Simulated::new(SimulatedOptions { seed: 9, ..Default::default() })
}

fn open(simulated: &Simulated) -> Store {
    Store::open(simulated.device(), Path::new(DATABASE), options()).unwrap()
}

fn schema(compression: Compression) -> Schema {
    let column = |name: &str, ty| Column { name: name.into(), ty, nullable: false };
    let columns = vec![column("id", ColumnType::Int64), column("a", ColumnType::Text), column("b", ColumnType::Text)];
    Schema::new(columns, 1).compressed(compression)
}

/// A few of a hundred words, different in each row and round.
fn text(id: i64, round: i64) -> String {
    let parts = ["request", "compr", "zelk", "cust", "serr", "ova", "ible", "st", "ata", "mit"];
    let word = |i: usize| format!("{}{}{} ", parts[i % 10], parts[i / 10 % 10], parts[i / 3 % 10]);
    let mut random = Random::new((id * 100 + round) as u64);
    (0..3 + id % 5).map(|_| word(random.below(100) as usize)).collect::<String>() + &(id * 31).to_string()
}

fn rows(ids: impl Iterator<Item = i64> + Clone, round: i64) -> RecordBatch {
    let texts = |factor| -> ArrayRef {
        Arc::new(StringViewArray::from_iter_values(ids.clone().map(|id| text(id * factor, round))))
    };
    let columns = vec![Arc::new(Int64Array::from_iter_values(ids.clone())) as ArrayRef, texts(1), texts(3)];
    RecordBatch::try_new(schema(Compression::None).arrow().clone(), columns).unwrap()
}

fn load(store: &Store, compression: Compression) {
    let schema = schema(compression);
    let mut writer = store.bulk_writer(TREE, &schema);
    writer.push(&rows(0..ROWS, 0)).unwrap();
    let mut batch = WriteBatch::new();
    batch.create_tree(TREE, &schema);
    store.install(batch, vec![(TREE, writer.finish().unwrap())]).unwrap();
}

/// Writes every `step`th row in commits of 100 rows.
fn update(store: &Store, step: usize, round: i64) {
    let schema = store.latest().tree(TREE).unwrap().schema().clone();
    let ids: Vec<i64> = (0..ROWS).step_by(step).collect();
    for ids in ids.chunks(100) {
        let mut batch = WriteBatch::new();
        batch.insert(TREE, &schema, &rows(ids.iter().copied(), round)).unwrap();
        store.commit(batch).unwrap();
    }
}

/// Checks that a snapshot has all rows, of which every `step`th one is of `round`.
fn assert_rows(store: &Store, snapshot: &Snapshot, step: usize, round: i64) {
    let (view, source) = (snapshot.tree(TREE).unwrap(), store.blocking());
    let mut cursor = view.cursor(&source, KeyRange::all(), Direction::Ascending);
    let mut next = 0;
    while let Some(chunk) = block_on(cursor.next()).unwrap() {
        let columns = chunk.to_arrays(&[0, 1, 2]).unwrap();
        for row in 0..chunk.rows() {
            let round = if (next as usize).is_multiple_of(step) { round } else { 0 };
            assert_eq!(columns[0].as_primitive::<Int64Type>().value(row), next);
            assert_eq!(columns[1].as_string_view().value(row), text(next, round));
            assert_eq!(columns[2].as_string_view().value(row), text(next * 3, round));
            next += 1;
        }
    }
    assert_eq!(next, ROWS);
}

fn data_bytes(store: &Store) -> u64 {
    store.stats().data_bytes_used
}

fn dictionary_bytes(store: &Store) -> usize {
    store.latest().tree(TREE).unwrap().dictionary_bytes()
}

#[test]
fn methods_take_different_space_and_survive() {
    let used = Compression::ALL.map(|method| {
        let simulated = simulated();
        let store = open(&simulated);
        load(&store, method);
        let loaded = data_bytes(&store);
        assert_rows(&store, &store.latest(), 1, 0);
        update(&store, 3, 1);
        store.checkpoint().unwrap();
        drop(store);
        let store = open(&simulated);
        assert_eq!(store.latest().tree(TREE).unwrap().schema().compression(), method);
        assert_rows(&store, &store.latest(), 3, 1);
        // Written by the program that has only read the dictionaries.
        update(&store, 3, 2);
        store.checkpoint().unwrap();
        store.drop_caches();
        assert_rows(&store, &store.latest(), 3, 2);
        loaded
    });
    assert!(used[2] < used[1] && used[1] < used[0], "{used:?}");
}

#[test]
fn small_commits_get_dictionaries() {
    let simulated = simulated();
    let store = open(&simulated);
    let mut batch = WriteBatch::new();
    batch.create_tree(TREE, &schema(Compression::Zstd));
    store.commit(batch).unwrap();
    update(&store, 1, 0);
    store.checkpoint().unwrap();
    let (trained, used) = (dictionary_bytes(&store), data_bytes(&store));
    assert!(trained > 0);
    drop(store);
    let store = open(&simulated);
    assert_eq!(dictionary_bytes(&store), trained);
    assert_rows(&store, &store.latest(), 1, 0);
    let other = Simulated::new(SimulatedOptions { seed: 10, ..Default::default() });
    let plain = open(&other);
    load(&plain, Compression::Lz4);
    assert!(used * 10 < data_bytes(&plain) * 8, "{used} bytes, {} with LZ4", data_bytes(&plain));
    assert_eq!(dictionary_bytes(&plain), 0);
}

#[test]
fn a_changed_method_concerns_later_pages() {
    let simulated = simulated();
    let store = open(&simulated);
    load(&store, Compression::None);
    let before = data_bytes(&store);
    for (round, method) in [Compression::Zstd, Compression::Lz4, Compression::Zstd].into_iter().enumerate() {
        let old = store.latest();
        let mut batch = WriteBatch::new();
        batch.extend_tree(TREE, &schema(method));
        store.commit(batch).unwrap();
        assert_eq!(store.latest().tree(TREE).unwrap().schema().compression(), method);
        update(&store, 1, round as i64);
        store.checkpoint().unwrap();
        store.vacuum(|tree| tree == TREE, &|_, _| true).unwrap();
        store.drop_caches();
        assert_rows(&store, &store.latest(), 1, round as i64);
        assert_rows(&store, &old, 1, (round as i64 - 1).max(0));
    }
    assert!(data_bytes(&store) * 2 < before, "{} of {before} bytes", data_bytes(&store));
    drop(store);
    // The change is in the log, and in the checkpoint.
    let store = open(&simulated);
    assert_eq!(store.latest().tree(TREE).unwrap().schema().compression(), Compression::Zstd);
    assert_rows(&store, &store.latest(), 1, 2);
}

/// A tree with the id of a dropped one has other columns, or the same.
#[test]
fn ids_are_used_again() {
    let simulated = simulated();
    let store = open(&simulated);
    load(&store, Compression::Zstd);
    let old = store.latest();
    assert!(dictionary_bytes(&store) > 0);
    let replace = |schema: &Schema| {
        let mut batch = WriteBatch::new();
        batch.drop_tree(TREE);
        batch.create_tree(TREE, schema);
        store.commit(batch).unwrap();
        store.checkpoint().unwrap();
    };
    replace(&Schema::key_value().compressed(Compression::Zstd));
    replace(&Schema::new(schema(Compression::Zstd).columns()[..2].to_vec(), 2));
    replace(&schema(Compression::Zstd));
    update(&store, 1, 3);
    store.checkpoint().unwrap();
    store.drop_caches();
    assert_rows(&store, &old, 1, 0);
    assert_rows(&store, &store.latest(), 1, 3);
    drop((old, store));
    let store = open(&simulated);
    assert_rows(&store, &store.latest(), 1, 3);
}

#[test]
fn copies_readers_and_old_snapshots_have_the_dictionaries() {
    let simulated = simulated();
    let store = open(&simulated);
    load(&store, Compression::Zstd);
    update(&store, 4, 5);
    store.backup(Path::new("/copy"), BackupMode::Full, &|_, _| true, &|| true).unwrap();
    let reader = Store::open_read_only(simulated.device(), Path::new(DATABASE), options()).unwrap();
    assert_rows(&reader, &reader.latest(), 4, 5);
    update(&store, 4, 6);
    store.checkpoint().unwrap();
    reader.refresh(&|_| {}).unwrap();
    assert_rows(&reader, &reader.latest(), 4, 6);
    drop(reader);
    let snapshot = store.latest();
    let mut batch = WriteBatch::new();
    batch.drop_tree(TREE);
    store.commit(batch).unwrap();
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
    store.drop_caches();
    assert_rows(&store, &snapshot, 4, 6);
    drop(store);
    let copy = Store::open(simulated.device(), Path::new("/copy"), options()).unwrap();
    assert_rows(&copy, &copy.latest(), 4, 5);
}

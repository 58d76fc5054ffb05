//! Memory trees: commits shared with trees on disk, garbage collection, bulk construction.

mod common;

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use common::{Call, Hooked, eventually, key_value_rows};
use keyaki_device::Device;
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::key_value::{KeyValue, KeyValueBatch, KeyValueSnapshot};
use keyaki_store::{
    Column, ColumnType, Direction, Durability, Error, KeyRange, Options, Schema, Snapshot, Store, TreeId, TreeKind,
    UpsertFunctions, WriteBatch, block_on,
};

const DISK: TreeId = TreeId::new(20);
const MEMORY: TreeId = TreeId::new(1 << 31 | 3);

/// The tree id whose number is `by` higher.
fn offset(tree: TreeId, by: u32) -> TreeId {
    TreeId::new(tree.get() + by)
}

fn device() -> Arc<dyn Device> {
    Arc::new(Simulated::new(SimulatedOptions::default()))
}

fn open(device: &Arc<dyn Device>, durability: Durability) -> Store {
    let options = Options { durability, buffer_bytes: 1 << 20, ..Options::default() };
    Store::open(device.clone(), Path::new("/db"), options).unwrap()
}

fn rows(snapshot: &KeyValueSnapshot, direction: Direction) -> Vec<(Vec<u8>, Vec<u8>)> {
    snapshot.range(.., direction).map(Result::unwrap).collect()
}

/// Key: a number and a text; value: a text.
fn schema() -> Schema {
    let column = |name: &str, ty, nullable| Column { name: name.into(), ty, nullable };
    let columns = vec![
        column("group", ColumnType::Int64, true),
        column("name", ColumnType::Text, false),
        column("note", ColumnType::Text, true),
    ];
    Schema::new(columns, 2)
}

fn batch(numbers: impl Iterator<Item = i64>) -> RecordBatch {
    let numbers: Vec<i64> = numbers.collect();
    let group: Int64Array = numbers.iter().map(|number| (number % 11 != 0).then_some(number % 11)).collect();
    let name: StringViewArray = numbers.iter().map(|number| Some(format!("name of {number}"))).collect();
    let note: StringViewArray =
        numbers.iter().map(|number| (number % 3 != 0).then(|| format!("note {number}"))).collect();
    let columns: Vec<ArrayRef> = vec![Arc::new(group), Arc::new(name), Arc::new(note)];
    RecordBatch::try_new(schema().arrow().clone(), columns).unwrap()
}

/// All rows as text, in the cursor's order.
fn texts(store: &Store, snapshot: &Snapshot, tree: TreeId, direction: Direction) -> Vec<String> {
    let (view, pages) = (snapshot.tree(tree).unwrap(), store.blocking());
    let mut cursor = view.cursor(&pages, KeyRange::all(), direction);
    let mut texts = Vec::new();
    while let Some(chunk) = block_on(cursor.next()).unwrap() {
        let columns = chunk.to_arrays(&[2, 0, 1]).unwrap();
        let (note, group, name) = (columns[0].as_string_view(), columns[1].as_primitive::<Int64Type>(), &columns[2]);
        let name = name.as_string_view();
        for row in 0..chunk.rows() {
            let group = group.iter().nth(row).unwrap();
            texts.push(format!("{group:?} {} {:?}", name.value(row), note.iter().nth(row).unwrap()));
        }
        // Every second row, without the note.
        let even: Vec<u32> = (0..chunk.rows() as u32).step_by(2).collect();
        let mut builders = vec![keyaki_store::ColumnBuilder::new(ColumnType::Text, 0)];
        chunk.append_selected(&[1], &even, &mut builders).unwrap();
        let selected = builders[0].finish();
        assert!(
            even.iter().enumerate().all(|(i, &row)| selected.as_string_view().value(i) == name.value(row as usize))
        );
    }
    texts
}

#[test]
fn columns_equal_those_from_disk() {
    let store = open(&device(), Durability::Full);
    let mut changes = WriteBatch::new();
    for tree in [DISK, MEMORY] {
        changes.create_tree(tree, &schema());
        changes.insert(tree, &schema(), &batch(0..3000)).unwrap();
        changes.delete(tree, &schema(), &batch((0..3000).step_by(7))).unwrap();
    }
    assert!(!changes.is_empty() && changes.bytes() > 0);
    store.commit(changes).unwrap();
    store.checkpoint().unwrap();
    let mut changes = WriteBatch::new();
    for tree in [DISK, MEMORY] {
        changes.insert(tree, &schema(), &batch(5000..5100)).unwrap();
    }
    store.commit(changes).unwrap();
    let snapshot = store.snapshot();
    for direction in [Direction::Ascending, Direction::Descending] {
        let found = texts(&store, &snapshot, MEMORY, direction);
        assert_eq!(found.len(), 3000 - 429 + 100);
        assert_eq!(found, texts(&store, &snapshot, DISK, direction));
    }
    let view = snapshot.tree(MEMORY).unwrap();
    assert_eq!((**view.schema() == schema(), view.cached_share().whole), (true, 1.0));
    // The parts together cover the whole range.
    let whole = KeyRange::prefix(vec![1]);
    let parts = view.split(&whole, 7);
    assert!(parts.len() > 3 && parts.len() <= 7, "{} parts", parts.len());
    let count = |range: &KeyRange| {
        let pages = store.blocking();
        let mut cursor = view.cursor(&pages, range.clone(), Direction::Ascending);
        let mut rows = 0;
        while let Some(chunk) = block_on(cursor.next()).unwrap() {
            rows += chunk.rows();
        }
        rows
    };
    assert_eq!(parts.iter().map(count).sum::<usize>(), count(&whole));
    let estimate = view.estimate(&whole);
    let exact = count(&whole) as f64;
    assert!(
        estimate.pages == 0.0 && estimate.bytes > exact && (estimate.rows / exact - 1.0).abs() < 0.5,
        "{estimate:?}"
    );
    assert!(view.split(&KeyRange::point(vec![1, 2]), 4).len() == 1);
}

#[test]
fn built_in_bulk() {
    let store = open(&device(), Durability::Full);
    let (first, second) = (store.new_memory_tree_id(), store.new_memory_tree_id());
    assert!(first.is_memory() && second.is_memory() && first != second && !store.new_tree_id().is_memory());
    let build = |tree| {
        let mut all = store.memory_builder(tree, &schema());
        std::thread::scope(|scope| {
            let fill = |part: i64| {
                let mut builder = store.memory_builder(tree, &schema());
                (0..10).for_each(|i| {
                    builder.push(&batch((part * 1000 + i * 100)..(part * 1000 + i * 100 + 100))).unwrap()
                });
                builder
            };
            let parts: Vec<_> = (0..4).rev().map(|part| scope.spawn(move || fill(part))).collect();
            parts.into_iter().for_each(|part| all.append(part.join().unwrap()).unwrap());
        });
        assert!(all.rows() == 4000 && all.bytes() > 4000 * 20);
        all.finish(3).unwrap()
    };
    let mut changes = WriteBatch::new();
    changes.create_tree(first, &schema());
    changes.create_tree(DISK, &schema());
    changes.insert(DISK, &schema(), &batch(0..4000)).unwrap();
    let loaded = build(first);
    assert_eq!(texts_of_loaded(&store, &loaded, first), 4000);
    let before = store.snapshot();
    store.install(changes, vec![(first, loaded)]).unwrap();
    store.install_memory(vec![(second, build(second))]).unwrap();
    assert!(before.tree(first).is_err() && before.tree(second).is_err());
    let snapshot = store.snapshot();
    for tree in [first, second] {
        assert_eq!(
            texts(&store, &snapshot, tree, Direction::Descending),
            texts(&store, &snapshot, DISK, Direction::Descending)
        );
    }
    let stats = store.memory_tree_stats(first).unwrap();
    assert!(stats.entries == 4000 && stats.depth > 0 && stats.layers > 1 && stats.bytes > 4000 * 20, "{stats:?}");
    assert!(store.stats().memory_tree_bytes >= 2 * stats.bytes && store.stats().buffer_bytes == 0);
    assert_eq!(store.memory_tree_stats(DISK), None);
    // Later changes are newer than the rows built in bulk.
    let mut changes = WriteBatch::new();
    for tree in [first, DISK] {
        changes.delete(tree, &schema(), &batch(0..1000)).unwrap();
    }
    store.commit(changes).unwrap();
    assert_eq!(texts(&store, &snapshot, first, Direction::Ascending).len(), 4000);
    let later = store.snapshot();
    assert_eq!(texts(&store, &later, first, Direction::Ascending), texts(&store, &later, DISK, Direction::Ascending));
    // Rows loaded into a tree replace rows with the same keys.
    store.install(WriteBatch::new(), vec![(first, build(first))]).unwrap();
    assert_eq!(texts(&store, &later, first, Direction::Ascending).len(), 3000);
    assert_eq!(texts(&store, &store.snapshot(), first, Direction::Ascending).len(), 4000);
}

fn texts_of_loaded(store: &Store, loaded: &keyaki_store::Loaded, tree: TreeId) -> usize {
    let (view, pages) = (loaded.view(store, tree, &schema()), store.blocking());
    assert!(loaded.bytes() > 0);
    let mut cursor = view.cursor(&pages, loaded.range().unwrap(), Direction::Ascending);
    let mut rows = 0;
    while let Some(chunk) = block_on(cursor.next()).unwrap() {
        rows += chunk.rows();
    }
    rows
}

#[test]
fn mismatched_rows_are_refused() {
    let store = open(&device(), Durability::Full);
    let tree = store.new_memory_tree_id();
    let mut twice = store.memory_builder(tree, &schema());
    twice.push(&batch(0..50)).unwrap();
    twice.push(&batch(40..41)).unwrap();
    assert!(matches!(twice.finish(2), Err(Error::DuplicateKey { row: 40 | 50 })));
    let mut other = store.memory_builder(tree, &Schema::key_value());
    assert!(matches!(other.push(&batch(0..1)), Err(Error::ColumnType { .. })));
    let long = vec![7; 100_000];
    assert!(matches!(other.push(&key_value_rows([(&long[..], &b""[..])].into_iter())), Err(Error::TooLarge { .. })));
    assert_eq!(other.rows(), 0);
    let mut builder = store.memory_builder(tree, &schema());
    assert!(matches!(builder.append(other), Err(Error::TreeMismatch { .. })));
    assert!(matches!(
        store.memory_builder(DISK, &schema()).finish(1),
        Err(Error::WrongTreeKind { kind: TreeKind::Disk, .. })
    ));
    builder.push(&batch(0..10)).unwrap();
    // A missing tree, another tree, an existing tree.
    let loaded = |builder: keyaki_store::MemoryBuilder| builder.finish(1).unwrap();
    let built = |tree, schema: &Schema| loaded(store.memory_builder(tree, schema));
    assert!(matches!(
        store.install(WriteBatch::new(), vec![(tree, built(tree, &schema()))]),
        Err(Error::TreeNotFound(_))
    ));
    assert!(matches!(
        store.install_memory(vec![(offset(tree, 1), built(tree, &schema()))]),
        Err(Error::TreeMismatch { .. })
    ));
    store.install_memory(vec![(tree, loaded(builder))]).unwrap();
    assert!(matches!(store.install_memory(vec![(tree, built(tree, &schema()))]), Err(Error::TreeExists(_))));
    let other = built(tree, &Schema::key_value());
    assert!(matches!(store.install(WriteBatch::new(), vec![(tree, other)]), Err(Error::TreeMismatch { .. })));
    assert!(matches!(
        store.install_memory(vec![(TreeId::new(u32::MAX), built(TreeId::new(u32::MAX), &schema()))]),
        Err(Error::TooMany { .. })
    ));
    let on_disk = store.bulk_writer(tree, &schema()).finish().unwrap();
    assert!(matches!(
        store.install(WriteBatch::new(), vec![(tree, on_disk)]),
        Err(Error::WrongTreeKind { kind: TreeKind::Memory, .. })
    ));
    // Commits are checked in the same way.
    let mut changes = WriteBatch::new();
    changes.create_tree(tree, &schema());
    assert!(matches!(store.commit(changes), Err(Error::TreeExists(_))));
    let mut changes = WriteBatch::new();
    changes.insert_raw(tree, b"no key", b"");
    assert!(matches!(store.commit(changes), Err(Error::InvalidKey { .. })));
    let mut changes = WriteBatch::new();
    changes.drop_tree(offset(tree, 9));
    assert!(matches!(store.commit(changes), Err(Error::TreeNotFound(_))));
    let sequence = store.snapshot().sequence();
    let mut changes = WriteBatch::new();
    changes.drop_tree(tree);
    store.commit(changes).unwrap();
    assert_eq!(store.snapshot().sequence(), sequence + 1);
    assert!(store.snapshot().tree(tree).is_err() && store.memory_tree_stats(tree).is_none());
    // Tree ids are not assigned twice.
    store.install_memory(vec![(offset(tree, 5), built(offset(tree, 5), &schema()))]).unwrap();
    assert_eq!(store.new_memory_tree_id(), offset(tree, 6));
}

/// A commit to memory trees only is visible at once. It waits for syncs of earlier commits, but needs none of its own.
#[test]
fn commits_without_a_log() {
    let syncs = Arc::new(AtomicU64::new(0));
    let counted = syncs.clone();
    let device = Hooked::device(device(), move |call| {
        if matches!(call, Call::Sync(name) if name.starts_with("log-")) {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let store = open(&device, Durability::Full);
    let disk = KeyValue::open(&store, DISK).unwrap();
    let memory = KeyValue::open(&store, MEMORY).unwrap();
    disk.insert(b"a", b"1").unwrap();
    let before = syncs.load(Ordering::SeqCst);
    for i in 0..100_u32 {
        memory.insert(&i.to_be_bytes(), b"x").unwrap();
        assert_eq!(memory.get(&i.to_be_bytes()).unwrap().as_deref(), Some(&b"x"[..]));
    }
    assert_eq!(syncs.load(Ordering::SeqCst), before);
    let (seen, snapshot) = (store.snapshot().sequence(), memory.snapshot().unwrap());
    disk.insert(b"b", b"2").unwrap();
    assert_eq!(store.snapshot().sequence(), seen + 1);
    memory.delete(&7_u32.to_be_bytes()).unwrap();
    assert_eq!(rows(&snapshot, Direction::Descending).len(), 100);
    assert_eq!(rows(&memory.snapshot().unwrap(), Direction::Ascending).len(), 99);
    drop((disk, memory, store, snapshot));
    let store = open(&device, Durability::Full);
    assert!(matches!(store.snapshot().tree(MEMORY), Err(Error::TreeNotFound(_))));
    assert_eq!(rows(&KeyValue::open(&store, DISK).unwrap().snapshot().unwrap(), Direction::Ascending).len(), 2);
}

/// A crash removes memory trees and leaves trees on disk intact.
#[test]
fn a_crash_removes_memory_trees() {
    let simulated = Arc::new(Simulated::new(SimulatedOptions::default()));
    let device: Arc<dyn Device> = simulated.clone();
    let store = open(&device, Durability::Full);
    let (disk, memory) = (KeyValue::open(&store, DISK).unwrap(), KeyValue::open(&store, MEMORY).unwrap());
    for i in 0..50_u32 {
        let mut batch = KeyValueBatch::default();
        batch.insert(&disk, &i.to_be_bytes(), b"x");
        batch.insert(&memory, &i.to_be_bytes(), b"y");
        disk.commit(batch).unwrap();
        memory.delete(&i.to_be_bytes()).unwrap();
    }
    simulated.crash();
    let store = open(&device, Durability::Full);
    assert!(matches!(store.snapshot().tree(MEMORY), Err(Error::TreeNotFound(_))));
    let disk = KeyValue::open(&store, DISK).unwrap();
    assert_eq!(rows(&disk.snapshot().unwrap(), Direction::Ascending).len(), 50);
}

#[test]
fn upserts_are_applied_at_once() {
    let append = |old: Option<&[u8]>, operand: &[u8]| match operand {
        b"fail" => Err("as told".to_string()),
        b"gone" => Ok(None),
        operand => Ok(Some([old.unwrap_or_default(), operand].concat())),
    };
    let upserts = Arc::new(UpsertFunctions::default().with(1, append));
    let options = Options { upserts, ..Options::default() };
    let store = Store::open(device(), Path::new("/db"), options).unwrap();
    let map = KeyValue::open(&store, MEMORY).unwrap();
    for _ in 0..1000 {
        map.upsert(b"k", 1, b"x").unwrap();
    }
    assert_eq!(map.get(b"k").unwrap().unwrap().len(), 1000);
    assert!(store.memory_tree_stats(MEMORY).unwrap().bytes < 20_000);
    map.upsert(b"k", 1, b"gone").unwrap();
    assert_eq!(map.get(b"k").unwrap(), None);
    map.upsert(b"k", 1, b"fail").unwrap();
    map.upsert(b"k", 1, b"y").unwrap();
    assert!(matches!(map.get(b"k"), Err(Error::Upsert { .. })));
    for direction in [Direction::Ascending, Direction::Descending] {
        assert!(matches!(map.range(.., direction).unwrap().next(), Some(Err(Error::Upsert { .. }))));
    }
    map.insert(b"k", b"z").unwrap();
    assert_eq!(map.get(b"k").unwrap().unwrap(), b"z");
    assert!(map.upsert(b"k", 2, b"").is_err());
}

fn bytes(store: &Store) -> u64 {
    store.stats().memory_tree_bytes
}

#[test]
fn updates_use_bounded_memory() {
    let store = open(&device(), Durability::Off);
    let map = KeyValue::open(&store, MEMORY).unwrap();
    let mut random = Random::new(1);
    let held = AtomicU64::new(0);
    let mut round = |keys: u64| {
        let mut batch = KeyValueBatch::default();
        for _ in 0..500 {
            // Keys that are updated, and keys that are inserted and deleted.
            let key = random.below(keys).to_be_bytes();
            match random.below(3) {
                0 => batch.delete(&map, &key),
                _ => batch.insert(&map, &key, &[7; 40]),
            }
            let fresh = held.fetch_add(1, Ordering::Relaxed).to_be_bytes();
            batch.insert(&map, &[&b"fresh"[..], &fresh].concat(), &[8; 40]);
            let old = (held.load(Ordering::Relaxed).saturating_sub(2000)).to_be_bytes();
            batch.delete(&map, &[&b"fresh"[..], &old].concat());
        }
        map.commit(batch).unwrap();
    };
    (0..100).for_each(|_| round(5000));
    let usual = bytes(&store);
    (0..1000).for_each(|_| round(5000));
    assert!(bytes(&store) < usual * 3 / 2, "{usual} bytes became {}", bytes(&store));
    // Snapshots keep the messages that they see, and no others.
    let snapshots: Vec<_> = (0..3)
        .map(|_| {
            round(5000);
            (map.snapshot().unwrap(), rows(&map.snapshot().unwrap(), Direction::Ascending))
        })
        .collect();
    (0..1000).for_each(|_| round(5000));
    assert!(bytes(&store) < usual * 5, "{usual} bytes became {} under snapshots", bytes(&store));
    for (snapshot, mut then) in snapshots {
        assert!(rows(&snapshot, Direction::Ascending) == then);
        then.reverse();
        assert!(rows(&snapshot, Direction::Descending) == then);
    }
    (0..100).for_each(|_| round(5000));
    assert!(bytes(&store) < usual * 3 / 2, "{usual} bytes became {} after snapshots", bytes(&store));
}

/// After a large delete without further commits, the background thread collects the garbage, also once a snapshot ends.
#[test]
fn large_deletes_are_garbage_collected() {
    let store = open(&device(), Durability::Full);
    let map = KeyValue::open(&store, MEMORY).unwrap();
    let change = |delete: bool| {
        let mut batch = KeyValueBatch::default();
        for i in 0..50_000_u64 {
            let key = (i * 7919).to_be_bytes();
            if delete { batch.delete(&map, &key) } else { batch.insert(&map, &key, b"some value or other") }
        }
        map.commit(batch).unwrap();
    };
    for hold in [false, true] {
        change(false);
        assert_eq!(store.memory_tree_stats(MEMORY).unwrap().entries, 50_000);
        let snapshot = hold.then(|| map.snapshot().unwrap());
        change(true);
        if let Some(snapshot) = snapshot {
            std::thread::sleep(std::time::Duration::from_millis(300));
            assert_eq!(rows(&snapshot, Direction::Ascending).len(), 50_000);
        }
        assert_eq!(rows(&map.snapshot().unwrap(), Direction::Ascending).len(), 0);
        eventually("deleted rows stay", || store.memory_tree_stats(MEMORY).unwrap().entries < 2000);
        eventually("their bytes stay", || bytes(&store) < 1 << 20);
    }
}

/// Compares a tree on disk with a memory tree that is written by the same commits.
fn compare(snapshot: &Snapshot, store: &Store, random: &mut Random) {
    let (low, high) = (random.below(400).to_be_bytes(), random.below(400).to_be_bytes());
    let range = match random.below(3) {
        0 => KeyRange::all(),
        1 => KeyRange { start: Bound::Included(low.to_vec()), end: Bound::Excluded(high.to_vec()) },
        _ => KeyRange { start: Bound::Excluded(low.to_vec()), end: Bound::Unbounded },
    };
    let direction = [Direction::Ascending, Direction::Descending][random.below(2) as usize];
    let pages = store.blocking();
    let read = |tree: TreeId| {
        let view = snapshot.tree(tree).unwrap();
        let mut cursor = view.cursor(&pages, range.clone(), direction);
        let mut rows = Vec::new();
        while let Some(chunk) = block_on(cursor.next()).unwrap() {
            let columns = chunk.to_arrays(&[0, 1]).unwrap();
            let (keys, values) = (columns[0].as_binary_view(), columns[1].as_binary_view());
            rows.extend((0..chunk.rows()).map(|row| (keys.value(row).to_vec(), values.value(row).to_vec())));
        }
        rows
    };
    let (disk, memory) = (read(DISK), read(MEMORY));
    assert!(disk == memory, "{} rows on disk, {} in memory, at {}", disk.len(), memory.len(), snapshot.sequence());
}

fn readers_compare(durability: Durability) {
    let store = open(&device(), durability);
    let maps = [KeyValue::open(&store, DISK).unwrap(), KeyValue::open(&store, MEMORY).unwrap()];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (store, maps, done) = (&store, &maps, &done);
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                scope.spawn(move || {
                    let mut random = Random::new(writer);
                    for round in 0..400_u64 {
                        let mut batch = KeyValueBatch::default();
                        // Every 50th commit leaves enough garbage to wake the background thread.
                        let keys = if round % 50 == 0 { 3000 } else { 1 + random.below(60) };
                        for _ in 0..keys {
                            let key = random.below(if keys == 3000 { 5000 } else { 400 }).to_be_bytes();
                            let delete = random.below(2) == 0;
                            for map in maps {
                                if delete {
                                    batch.delete(map, &key)
                                } else {
                                    batch.insert(map, &key, &round.to_be_bytes())
                                }
                            }
                        }
                        maps[0].commit(batch).unwrap();
                    }
                })
            })
            .collect();
        for reader in 0..2 {
            scope.spawn(move || {
                let mut random = Random::new(reader + 10);
                let mut held = Vec::new();
                while !done.load(Ordering::SeqCst) {
                    held.push(if random.below(3) == 0 { store.latest() } else { store.snapshot() });
                    let number = random.below(held.len() as u64) as usize;
                    compare(&held[number], store, &mut random);
                    if held.len() > 4 {
                        held.swap_remove(random.below(5) as usize);
                    }
                }
            });
        }
        let results: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
        done.store(true, Ordering::SeqCst);
        assert!(results.iter().all(Result::is_ok), "a writer failed");
    });
    compare(&store.snapshot(), &store, &mut Random::new(99));
}

#[test]
fn readers_under_full_durability() {
    readers_compare(Durability::Full);
}

#[test]
fn readers_without_durability() {
    readers_compare(Durability::Off);
}

//! Locators: number of pages read, pages kept in memory, and rebuilds after changes of the tree.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch};
use common::{Call, Hooked};
use keyaki_device::Device;
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::{
    Column, ColumnType, Direction, Error, Goal, KeyRange, LocatorOptions, LocatorStats, Options, Schema, Store, TreeId,
    TreeKind, WriteBatch, block_on,
};

const TREE: TreeId = TreeId::new(20);
const SMALL: LocatorOptions = LocatorOptions { goal: Goal::Smallest, memory_bytes: None };

fn schema(nullable: bool) -> Schema {
    let column = |name: &str, nullable| Column { name: name.into(), ty: ColumnType::Int64, nullable };
    Schema::new(vec![column("time", nullable), column("id", false), column("value", true)], 2)
}

/// A batch of rows (time, id).
fn batch(schema: &Schema, rows: &[(Option<i64>, i64)]) -> RecordBatch {
    let times: ArrayRef = Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>());
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1)));
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1 % 100_000_007 * 7919)));
    RecordBatch::try_new(schema.arrow().clone(), vec![times, ids, values]).unwrap()
}

struct Database {
    store: Store,
    schema: Schema,
    reads: Arc<AtomicU64>,
}

/// A database with one tree, bulk-loaded from sorted rows.
fn database(rows: &[(Option<i64>, i64)], nullable: bool) -> Database {
    let reads = Arc::new(AtomicU64::new(0));
    let counted = reads.clone();
    let device: Arc<dyn Device> = Arc::new(Simulated::new(SimulatedOptions::default()));
    let device = Hooked::device(device, move |call| {
        if *call == Call::Read("data".into()) {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let options = Options { page_bytes: 4096, leaf_bytes: 65_536, buffer_bytes: 1 << 20, ..Options::default() };
    let store = Store::open(device, Path::new("/db"), options).unwrap();
    let schema = schema(nullable);
    let mut create = WriteBatch::new();
    create.create_tree(TREE, &schema);
    store.commit(create).unwrap();
    let mut writer = store.bulk_writer(TREE, &schema);
    for part in rows.chunks(5000) {
        writer.push(&batch(&schema, part)).unwrap();
    }
    store.install(WriteBatch::new(), vec![(TREE, writer.finish().unwrap())]).unwrap();
    Database { store, schema, reads }
}

impl Database {
    fn locate(&self, options: LocatorOptions) -> LocatorStats {
        self.store.set_locator(TREE, options).unwrap();
        self.store.wait_for_locators();
        self.store.locator_stats(TREE).unwrap()
    }

    fn key(&self, time: i64, id: Option<i64>) -> Vec<u8> {
        let mut key = Vec::new();
        let view = self.store.snapshot().tree(TREE).unwrap();
        let columns = [Some(time), id].into_iter().flatten().map(|n| Arc::new(Int64Array::from(vec![n])) as ArrayRef);
        view.key_codec().encode(&columns.collect::<Vec<_>>(), 0, &mut key);
        key
    }

    fn rows(&self, range: &KeyRange, direction: Direction) -> Vec<(Option<i64>, i64)> {
        let view = self.store.snapshot().tree(TREE).unwrap();
        let source = self.store.blocking();
        let mut cursor = view.cursor(&source, range.clone(), direction);
        let mut rows = Vec::new();
        while let Some(chunk) = block_on(cursor.next()).unwrap() {
            let columns = chunk.to_arrays(&[0, 1]).unwrap();
            let (times, ids) = (columns[0].as_primitive::<Int64Type>(), columns[1].as_primitive::<Int64Type>());
            rows.extend((0..chunk.rows()).map(|i| (times.is_valid(i).then(|| times.value(i)), ids.value(i))));
        }
        rows
    }

    fn count(&self, range: &KeyRange) -> u64 {
        let view = self.store.snapshot().tree(TREE).unwrap();
        let source = self.store.blocking();
        let (mut counter, mut rows) = (view.counter(&source, range.clone()), 0);
        while let Some(more) = block_on(counter.next()).unwrap() {
            rows += more;
        }
        rows
    }

    /// The result of a call, and its number of reads of the data file with an empty cache.
    fn reads_of<T>(&self, call: impl FnOnce() -> T) -> (T, u64) {
        self.store.drop_caches();
        let before = self.reads.load(Ordering::SeqCst);
        let result = call();
        (result, self.reads.load(Ordering::SeqCst) - before)
    }

    fn insert(&self, rows: &[(Option<i64>, i64)]) {
        let mut commit = WriteBatch::new();
        commit.insert(TREE, &self.schema, &batch(&self.schema, rows)).unwrap();
        self.store.commit(commit).unwrap();
    }
}

/// The range from `low` (included) to `high` (excluded).
fn between(low: Vec<u8>, high: Vec<u8>) -> KeyRange {
    KeyRange { start: std::ops::Bound::Included(low), end: std::ops::Bound::Excluded(high) }
}

fn timestamps(rows: i64) -> Vec<(Option<i64>, i64)> {
    (0..rows)
        .map(|i| (Some(1_700_000_000_000_000 + i * 1000 + i * i % 977), i * 2_654_435_761 % 1_000_000_007))
        .collect()
}

#[test]
fn a_lookup_reads_one_page() {
    let rows = timestamps(200_000);
    let database = database(&rows, false);
    let before = database
        .reads_of(|| database.rows(&KeyRange::prefix(database.key(rows[7].0.unwrap(), None)), Direction::Ascending));
    assert_eq!(before.1, 2, "an index page and a data page");
    let stats = database.locate(SMALL);
    assert_eq!((stats.rows, stats.pages_missing, stats.problem), (200_000, 0, None));
    assert!(stats.pages > 100 && stats.leaves > 5, "{} pages of {} leaves", stats.pages, stats.leaves);
    let bits = stats.bytes as f64 * 8.0 / stats.rows as f64;
    assert!(bits < 2.0, "{bits} bits for each row");
    let mut random = Random::new(1);
    for _ in 0..300 {
        let row = rows[random.below(rows.len() as u64) as usize];
        let prefix = KeyRange::prefix(database.key(row.0.unwrap(), None));
        let (found, reads) = database.reads_of(|| database.rows(&prefix, Direction::Ascending));
        assert_eq!((found, reads), (vec![row], 1), "{row:?}");
        let point = KeyRange::point(database.key(row.0.unwrap(), Some(row.1)));
        let (found, reads) = database.reads_of(|| database.rows(&point, Direction::Ascending));
        assert_eq!((found, reads), (vec![row], 1), "{row:?} by its key");
    }
}

#[test]
fn counting_reads_the_ends() {
    let rows = timestamps(200_000);
    let database = database(&rows, false);
    for located in [false, true] {
        if located {
            database.locate(SMALL);
        }
        let mut random = Random::new(2);
        for _ in 0..100 {
            let (a, b) = (random.below(200_000) as usize, random.below(200_000) as usize);
            let (low, high) = (a.min(b), a.max(b));
            let key = |row: usize| database.key(rows[row].0.unwrap(), None);
            let (count, reads) = database.reads_of(|| database.count(&between(key(low), key(high))));
            assert_eq!(count, (high - low) as u64);
            assert!(reads <= if located { 2 } else { 4 }, "{reads} reads");
        }
        assert_eq!(database.reads_of(|| database.count(&KeyRange::all())), (200_000, 0));
    }
    // Messages are counted too; only the pages that they change are read.
    database.insert(&[(rows[100].0, -1), (Some(0), 0), (rows[150_000].0, rows[150_000].1)]);
    let (count, reads) = database.reads_of(|| database.count(&KeyRange::all()));
    assert_eq!(count, 200_002);
    assert!(reads <= 6, "{reads} reads");
}

#[test]
fn pages_in_memory_are_not_read() {
    let rows = timestamps(50_000);
    let database = database(&rows, false);
    let file = database.store.tree_bytes(TREE);
    let stats = database.locate(LocatorOptions { goal: Goal::Fastest, memory_bytes: Some(2 * file) });
    assert_eq!(stats.pages_held, stats.pages);
    assert!(stats.bytes_held + stats.bytes <= 2 * file, "{} and {} bytes", stats.bytes_held, stats.bytes);
    let taken = database.store.stats();
    assert_eq!((taken.locator_bytes, taken.held_bytes), (stats.bytes, stats.bytes_held));
    for direction in [Direction::Ascending, Direction::Descending] {
        let (mut found, reads) = database.reads_of(|| database.rows(&KeyRange::all(), direction));
        if direction == Direction::Descending {
            found.reverse();
        }
        assert!(found == rows && reads == 0, "{reads} reads, {direction:?}");
    }
    // If the pages do not all fit, none is kept.
    let stats = database.locate(LocatorOptions { goal: Goal::Fastest, memory_bytes: Some(file / 2) });
    assert_eq!((stats.pages_held, stats.bytes_held, stats.problem), (0, 0, None));
    let stats = database.locate(LocatorOptions { goal: Goal::Fastest, memory_bytes: Some(100) });
    assert!(stats.problem.unwrap().contains("the limit is 100 bytes"));
    assert!(database.rows(&KeyRange::all(), Direction::Ascending) == rows);
}

#[test]
fn keys_with_equal_words() {
    // Many rows with the same time, with a null time, and with the lowest and highest time.
    let mut rows: Vec<(Option<i64>, i64)> = (0..20_000).map(|id| (None, id)).collect();
    rows.extend((0..20_000).map(|id| (Some(i64::MIN), id)));
    rows.extend((0..20_000).map(|id| (Some(id / 7), id)));
    rows.extend((0..40_000).map(|id| (Some(1_000_000), id)));
    rows.extend((0..20_000).map(|id| (Some(i64::MAX), id)));
    let database = database(&rows, true);
    for options in [SMALL, LocatorOptions { goal: Goal::Fastest, memory_bytes: Some(1 << 30) }] {
        database.locate(options);
        let mut random = Random::new(3);
        let times = [i64::MIN, -1, 0, 1, 1000, 999_999, 1_000_000, 1_000_001, i64::MAX];
        for _ in 0..200 {
            let time = |random: &mut Random| times[random.below(times.len() as u64) as usize];
            let id = |random: &mut Random| (random.below(2) == 0).then(|| random.below(41_000) as i64);
            let bounds = [(time(&mut random), id(&mut random)), (time(&mut random), id(&mut random))];
            let (low, high) = (bounds[0].min(bounds[1]), bounds[0].max(bounds[1]));
            let range = between(database.key(low.0, low.1), database.key(high.0, high.1));
            let place = |bound: (i64, Option<i64>)| {
                rows.partition_point(|&row| row < (Some(bound.0), bound.1.unwrap_or(i64::MIN)))
            };
            let expected = &rows[place(low)..place(high).max(place(low))];
            assert!(database.rows(&range, Direction::Ascending) == expected, "{low:?} to {high:?}");
            assert!(database.rows(&range, Direction::Descending).iter().eq(expected.iter().rev()));
            assert_eq!(database.count(&range), expected.len() as u64, "{low:?} to {high:?}");
        }
        // The end key of this range sorts after all values.
        for (time, rows) in [(i64::MAX, 20_000), (1_000_000, 40_000)] {
            let prefix = KeyRange::prefix(database.key(time, None));
            assert_eq!(database.count(&prefix), rows);
            let found = database.rows(&prefix, Direction::Descending);
            assert!(found.len() as u64 == rows && found.iter().all(|row| row.0 == Some(time)));
            assert!(database.store.snapshot().tree(TREE).unwrap().estimate(&prefix).rows >= 1.0);
        }
        let nulls = KeyRange::prefix(vec![0]);
        assert_eq!(database.rows(&nulls, Direction::Ascending), rows[..20_000]);
        assert_eq!(database.count(&nulls), 20_000);
    }
}

#[test]
fn leaves_written_later_are_found_and_located() {
    let rows = timestamps(100_000);
    let database = database(&rows, false);
    database.locate(SMALL);
    let held = database.store.snapshot();
    let later: Vec<_> = (0..60_000).map(|i| (Some(1_800_000_000_000_000 + i), i)).collect();
    for part in later.chunks(1000) {
        database.insert(part);
    }
    let all: Vec<_> = rows.iter().chain(&later).copied().collect();
    assert!(database.rows(&KeyRange::all(), Direction::Ascending) == all);
    database.store.checkpoint().unwrap();
    assert!(database.rows(&KeyRange::all(), Direction::Ascending) == all);
    database.store.wait_for_locators();
    let stats = database.store.locator_stats(TREE).unwrap();
    // If most rows were flushed before the checkpoint, it wrote too few pages for another build.
    assert!(stats.rows > 150_000 && stats.pages_missing <= 4, "{stats:?}");
    assert!(database.rows(&KeyRange::all(), Direction::Descending).iter().eq(all.iter().rev()));
    // An older snapshot returns the same rows with the new locator.
    let view = held.tree(TREE).unwrap();
    let source = database.store.blocking();
    let (mut counter, mut count) = (view.counter(&source, KeyRange::all()), 0);
    while let Some(more) = block_on(counter.next()).unwrap() {
        count += more;
    }
    assert_eq!(count, 100_000);
}

#[test]
fn trees_without_locators() {
    let database = database(&timestamps(10), false);
    assert!(database.store.locator_stats(TREE).is_none());
    assert!(matches!(
        database.store.set_locator(TreeId::new(1 << 31), SMALL),
        Err(Error::WrongTreeKind { kind: TreeKind::Memory, .. })
    ));
    // The locator of a dropped tree is removed.
    database.locate(SMALL);
    let mut drop = WriteBatch::new();
    drop.drop_tree(TREE);
    database.store.commit(drop).unwrap();
    database.store.set_locator(TreeId::new(TREE.get() + 1), SMALL).unwrap();
    database.store.wait_for_locators();
    assert!(
        database.store.locator_stats(TREE).is_none()
            && database.store.locator_stats(TreeId::new(TREE.get() + 1)).is_none()
    );
    // The locator of an empty tree is empty.
    let mut create = WriteBatch::new();
    create.create_tree(TREE, &database.schema);
    database.store.commit(create).unwrap();
    let stats = database.locate(SMALL);
    assert_eq!((stats.pages, stats.rows, stats.problem), (0, 0, None));
    assert_eq!(database.count(&KeyRange::all()), 0);
}

#[test]
fn pages_are_evicted_for_memory_trees() {
    let rows = timestamps(50_000);
    let database = database(&rows, false);
    let store = &database.store;
    let file = store.tree_bytes(TREE);
    let options = LocatorOptions { goal: Goal::Fastest, memory_bytes: Some(1 << 30) };
    // The pages exceed the memory limit.
    store.set_memory_limit(file / 2);
    let stats = database.locate(options);
    assert_eq!(stats.pages_held, 0);
    assert!(stats.problem.unwrap().contains("memory limit is reached"));
    store.set_memory_limit(4 * file);
    let stats = database.locate(options);
    assert_eq!(stats.pages_held, stats.pages);
    // A memory tree that does not fit beside the pages evicts them.
    let memory = store.new_memory_tree_id();
    let mut builder = store.memory_builder(memory, &database.schema);
    builder.push(&batch(&database.schema, &rows)).unwrap();
    let loaded = builder.finish(1).unwrap();
    assert!(loaded.bytes() > 3 * file, "{} bytes", loaded.bytes());
    store.install_memory(vec![(memory, loaded)]).unwrap();
    store.share_memory();
    let stats = store.locator_stats(TREE).unwrap();
    assert_eq!((stats.pages_held, stats.pages_missing, store.stats().held_bytes), (0, 0, 0));
    assert!(stats.problem.unwrap().contains("pages evicted"));
    assert!(database.rows(&KeyRange::all(), Direction::Ascending) == rows);
}

#[test]
fn failed_builds_are_not_repeated() {
    let rows = timestamps(50_000);
    let database = database(&rows, false);
    let few = LocatorOptions { goal: Goal::Smallest, memory_bytes: Some(100) };
    let (stats, reads) = database.reads_of(|| database.locate(few));
    assert!(stats.problem.is_some() && stats.build_time.is_none());
    assert_eq!(reads, 0, "the page count alone shows that the locator is too large");
    // Enough for the checksums only.
    let pages = database.locate(SMALL).pages;
    let more = LocatorOptions { memory_bytes: Some(5 * pages), ..few };
    let (stats, reads) = database.reads_of(|| database.locate(more));
    assert!(stats.problem.is_some() && reads > 0);
    database.insert(&[(Some(1), 1)]);
    let (_, reads) = database.reads_of(|| {
        database.store.checkpoint().unwrap();
        database.store.wait_for_locators();
    });
    assert!(reads <= 4, "{reads} reads: all index pages were read");
}

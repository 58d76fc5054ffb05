//! Estimates of key ranges, compared with counts: points, prefixes of an index key, ranges of all sizes and the whole
//! tree, while the rows are in buffers, in runs and in leaves, after deletes, and after reopening.

use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use keyaki_device::Device;
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::Random;
use keyaki_store::{
    Column, ColumnType, Direction, KeyRange, Options, Schema, Store, TreeId, TreeView, WriteBatch, block_on,
};

const TREE: TreeId = TreeId::new(20);
const ROWS: i64 = 40_000;
/// Upper bound on the number of rows of a page.
const PAGE_ROWS_MAX: f64 = 1000.0;
/// Number of distinct values of the first column of the key.
const GROUPS: i64 = 400;

/// An index tree: a group and a row number.
fn schema() -> Schema {
    let column = |name: &str| Column { name: name.into(), ty: ColumnType::Int64, nullable: false };
    Schema::new(vec![column("group"), column("row"), column("value")], 2)
}

/// Every twentieth group is eleven times as large as the others.
fn group(row: i64) -> i64 {
    let random = (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    let group = (random >> 1) as i64 % GROUPS;
    if random & 1 == 0 { group } else { group / 20 * 20 }
}

fn rows(numbers: impl Iterator<Item = i64> + Clone) -> RecordBatch {
    let column = |values: Vec<i64>| Arc::new(Int64Array::from(values)) as ArrayRef;
    let columns = vec![
        column(numbers.clone().map(group).collect()),
        column(numbers.clone().collect()),
        column(numbers.collect()),
    ];
    RecordBatch::try_new(schema().arrow().clone(), columns).unwrap()
}

fn encode(group: i64, row: Option<i64>) -> Vec<u8> {
    let of = |number: i64| (number ^ i64::MIN).to_be_bytes();
    let row = row.map(of);
    [&of(group)[..], row.as_ref().map_or(&[], |row| &row[..])].concat()
}

fn options(seed: u64) -> Options {
    Options {
        buffer_bytes: 1 << 30,
        checkpoint_log_bytes: 1 << 30,
        page_bytes: 4096,
        leaf_bytes: 64 << 10,
        fan_out: 4 + (seed % 3) as usize * 4,
        node_buffer_bytes: if seed.is_multiple_of(2) { 100_000 } else { 1 << 30 },
        ..Options::default()
    }
}

fn count(store: &Store, view: &TreeView, range: &KeyRange) -> u64 {
    let source = store.blocking();
    let (mut counter, mut rows) = (view.counter(&source, range.clone()), 0);
    while let Some(more) = block_on(counter.next()).unwrap() {
        rows += more;
    }
    rows
}

/// Ranges of all sizes.
fn ranges(random: &mut Random) -> Vec<KeyRange> {
    let mut ranges =
        vec![KeyRange::all(), KeyRange { start: Bound::Included(encode(50, None)), end: Bound::Unbounded }];
    for _ in 0..40 {
        let row = random.below(ROWS as u64) as i64;
        ranges.push(KeyRange::point(encode(group(row), Some(row))));
        ranges.push(KeyRange::prefix(encode(group(row), None)));
        let group = random.below(GROUPS as u64) as i64;
        let width = 1 << random.below(9);
        let end = group + 1 + random.below(width) as i64;
        let (start, end) = (Bound::Included(encode(group, None)), Bound::Excluded(encode(end, None)));
        ranges.push(KeyRange { start, end });
    }
    ranges
}

/// Checks estimates twice: before and after counts have brought the pages at the ends of the ranges into the cache. The
/// shares of pages that are not cached are interpolated, so cold estimates may be off by the rows of two pages.
///
/// Where rows have been deleted, an estimate is the difference of two numbers, one of which may come from a sample. It
/// may then be off by half of the deleted rows.
fn check(store: &Store, state: &str, random: &mut Random) {
    let view = store.latest().tree(TREE).unwrap();
    let ranges = ranges(random);
    let source = store.blocking();
    let estimates = || -> Vec<f64> { ranges.iter().map(|range| view.estimate(range).rows).collect() };
    let cold = estimates();
    let rows: Vec<f64> = ranges.iter().map(|range| count(store, &view, range) as f64).collect();
    for range in &ranges {
        let mut cursor = view.cursor(&source, range.clone(), Direction::Ascending);
        while block_on(cursor.next()).unwrap().is_some() {}
    }
    for (name, estimates, slack) in [("cold", cold, 2.0 * PAGE_ROWS_MAX), ("warm", estimates(), 8.0)] {
        for ((range, rows), estimate) in ranges.iter().zip(&rows).zip(estimates) {
            let deleted = inserted(range) - rows;
            let slack = if state.contains("deleted") { slack + deleted / 2.0 } else { slack };
            assert!(
                (estimate - rows).abs() <= slack || (rows / 4.0..=rows * 4.0).contains(&estimate),
                "{state}, {name}: an estimate of {estimate} for {rows} rows in {range:?}"
            );
        }
    }
    let start = Instant::now();
    ranges.iter().for_each(|range| assert!(std::hint::black_box(view.estimate(range)).rows >= 0.0));
    println!("{state}: {} ns per estimate", start.elapsed().as_nanos() / ranges.len() as u128);
}

/// Number of rows in a range if all rows were inserted and none deleted.
fn inserted(range: &KeyRange) -> f64 {
    static KEYS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
        let mut keys: Vec<_> = (0..ROWS).map(|row| encode(group(row), Some(row))).collect();
        keys.sort();
        keys
    });
    let from = match &range.start {
        Bound::Included(start) | Bound::Excluded(start) => KEYS.partition_point(|key| key < start),
        Bound::Unbounded => 0,
    };
    KEYS[from..].iter().take_while(|key| range.contains(key)).count() as f64
}

fn history(seed: u64) {
    let device: Arc<dyn Device> = Arc::new(Simulated::new(SimulatedOptions::default()));
    let open = || Store::open(device.clone(), Path::new("/db"), options(seed)).unwrap();
    let (mut random, mut store) = (Random::new(seed), open());
    let mut creation = WriteBatch::new();
    creation.create_tree(TREE, &schema());
    store.commit(creation).unwrap();
    let insert = |store: &Store, numbers: std::ops::Range<i64>| {
        let mut batch = WriteBatch::new();
        batch.insert(TREE, &schema(), &rows(numbers)).unwrap();
        store.commit(batch).unwrap();
    };
    let delete = |store: &Store, which: &dyn Fn(i64) -> bool| {
        let gone: Vec<i64> = (0..ROWS).filter(|&row| which(row)).collect();
        let mut batch = WriteBatch::new();
        batch.delete(TREE, &schema(), &rows(gone.iter().copied())).unwrap();
        store.commit(batch).unwrap();
    };
    insert(&store, 0..ROWS / 2);
    check(&store, "buffers", &mut random);
    store.checkpoint().unwrap();
    insert(&store, ROWS / 2..ROWS / 4 * 3);
    check(&store, "half flushed", &mut random);
    store.checkpoint().unwrap();
    insert(&store, ROWS / 4 * 3..ROWS);
    store.checkpoint().unwrap();
    check(&store, "flushed", &mut random);
    drop(store);
    store = open();
    check(&store, "reopened", &mut random);
    // The first half of the key range loses all rows.
    let median = GROUPS / 2;
    delete(&store, &|row| group(row) < median);
    check(&store, "low groups deleted in buffers", &mut random);
    store.checkpoint().unwrap();
    check(&store, "low groups deleted", &mut random);
    delete(&store, &|row| group(row) >= median && row % 10 > 0);
    check(&store, "nine of ten deleted in buffers", &mut random);
    drop(store);
    store = open();
    check(&store, "nine of ten deleted and reopened", &mut random);
    delete(&store, &|row| group(row) >= median && row % 10 == 0);
    check(&store, "all deleted", &mut random);
    store.checkpoint().unwrap();
    check(&store, "all deleted and flushed", &mut random);
}

#[test]
fn estimates_are_within_a_factor_of_four() {
    for seed in 0..6 {
        println!("seed {seed}");
        history(seed);
    }
}

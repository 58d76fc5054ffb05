//! Model test: scans return the same rows as a sorted vector, for ranges, directions, filters, limits and both modes.

mod common;

use std::ops::Bound;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array};
use common::{COLUMNS, Database, Row, SumFilter, Table, Value, collect};
use keyaki_exec::{ExecutionMode, Executor, ExecutorOptions, Filter, Scan};
use keyaki_store::{Direction, KeyRange, Options, TreeView};
use proptest::prelude::*;

#[derive(Debug, Clone)]
struct Spec {
    table: Table,
    buffered_every: usize,
    /// Ascending, disjoint: [from, to).
    ranges: Vec<(i64, i64)>,
    descending: bool,
    columns: Vec<usize>,
    /// Filters: the columns of each, and the modulus of their sum.
    filters: Vec<(Vec<usize>, i64)>,
    limit: Option<u64>,
    batch_rows: usize,
    read_ahead_bytes: usize,
    cache_bytes: usize,
    workers: usize,
}

fn spec() -> impl Strategy<Value = Spec> {
    let number = || prop_oneof![1 => Just(None), 9 => (0i64..1000).prop_map(Some)];
    let size = prop_oneof![0usize..20, 0usize..3000];
    let table = size.prop_flat_map(move |size| proptest::collection::vec((number(), number()), size));
    let ranges = proptest::collection::vec(0i64..1000, 0..8).prop_map(|mut bounds| {
        bounds.sort_unstable();
        bounds.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>()
    });
    let filter = (proptest::collection::vec(0usize..3, 0..3), 2i64..20);
    let filters = proptest::collection::vec(filter, 0..4);
    (
        (table, 1usize..30, prop_oneof![3 => Just(vec![(-1, 1000)]), 1 => ranges], any::<bool>()),
        proptest::collection::vec(0..COLUMNS, 0..5),
        filters,
        proptest::option::of(0u64..500),
        prop_oneof![1usize..10, Just(1000usize)],
        (0usize..100_000, prop_oneof![Just(0usize), Just(1 << 20)], 1usize..3),
    )
        .prop_map(|((rows, buffered_every, ranges, descending), columns, filters, limit, batch_rows, rest)| Spec {
            table: Table { rows },
            buffered_every,
            ranges,
            descending,
            columns,
            filters,
            limit,
            batch_rows,
            read_ahead_bytes: rest.0,
            cache_bytes: rest.1,
            workers: rest.2,
        })
}

fn bound(view: &TreeView, value: i64) -> Vec<u8> {
    let mut key = Vec::new();
    view.key_codec().encode(&[Arc::new(Int64Array::from(vec![value])) as ArrayRef], 0, &mut key);
    key
}

fn expected(spec: &Spec) -> Vec<Row> {
    let mut rows = spec.table.values();
    rows.sort();
    rows.retain(|row| spec.ranges.iter().any(|&(from, to)| matches!(row[0], Value::Int(k) if k >= from && k < to)));
    for (columns, modulus) in &spec.filters {
        let filter = SumFilter { columns: columns.clone(), modulus: *modulus, remainder: 1 };
        rows.retain(|row| filter.passes(row));
    }
    if spec.descending {
        rows.reverse();
    }
    rows.truncate(spec.limit.map_or(usize::MAX, |limit| limit as usize));
    rows.iter().map(|row| spec.columns.iter().map(|&column| row[column].clone()).collect()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]
    #[test]
    fn scans_equal_sorted_rows(spec in spec()) {
        let store_options = Options { cache_bytes: spec.cache_bytes, ..common::options() };
        let tables = [spec.table.clone()];
        let database = Database::new(&tables, store_options, |id| id % spec.buffered_every == 0);
        let (workers, read_ahead_bytes) = (spec.workers, spec.read_ahead_bytes);
        let options = ExecutorOptions { workers, read_ahead_bytes, ..ExecutorOptions::default() };
        let executor = Executor::new(database.store.clone(), options).unwrap();
        let view = &database.views[0];
        let mut ranges: Vec<KeyRange> = spec
            .ranges
            .iter()
            .map(|&(from, to)| KeyRange {
                start: Bound::Included(bound(view, from)),
                end: Bound::Excluded(bound(view, to)),
            })
            .collect();
        if spec.descending {
            ranges.reverse();
        }
        for mode in [ExecutionMode::OutOfOrder, ExecutionMode::InOrder] {
            let filters = spec.filters.iter().map(|(columns, modulus)| {
                // A filter sees its own columns only.
                let indices = (0..columns.len()).collect();
                let filter = SumFilter { columns: indices, modulus: *modulus, remainder: 1 };
                (columns.clone(), Arc::new(filter) as Arc<dyn Filter>)
            });
            let scan = Scan {
                view: view.clone(),
                ranges: ranges.clone(),
                direction: if spec.descending { Direction::Descending } else { Direction::Ascending },
                columns: spec.columns.clone(),
                filters: filters.collect(),
                limit: spec.limit,
                batch_rows: spec.batch_rows,
                kept: Vec::new(),
            };
            let found = collect(executor.scan(scan, mode)).unwrap();
            prop_assert!(found == expected(&spec), "{mode:?}: {found:?}");
        }
    }
}

/// A scan whose first pages are cached reads the others ahead.
#[test]
fn read_ahead_begins_behind_cached_pages() {
    let table = Table { rows: (0..300_000).map(|i| (Some(i), Some(i * 7919 % 100_003))).collect() };
    let options = Options { cache_bytes: 64 << 20, leaf_bytes: 128 << 10, ..common::options() };
    let database = Database::new(&[table], options, |_| false);
    let view = &database.views[0];
    let options = ExecutorOptions { workers: 1, read_ahead_bytes: 64 << 10, ..ExecutorOptions::default() };
    let executor = Executor::new(database.store.clone(), options).unwrap();
    let scan = |limit| {
        let found = executor.scan(
            Scan {
                view: view.clone(),
                ranges: vec![KeyRange::all()],
                direction: Direction::Ascending,
                columns: vec![2],
                filters: Vec::new(),
                limit,
                batch_rows: 1000,
                kept: Vec::new(),
            },
            ExecutionMode::OutOfOrder,
        );
        let stats = found.stats().clone();
        let rows = collect(found).unwrap().len();
        (rows, stats.snapshot())
    };
    let pages = view.estimate(&KeyRange::all()).pages as u64;
    database.store.cache().clear();
    let (_, first) = scan(Some(150_000));
    assert!(first.pages_read > pages / 3 && first.pages_read < pages, "{pages} pages: {first:?}");
    let (rows, second) = scan(None);
    assert_eq!(rows, 300_000);
    assert!(second.pages_read > pages / 3 && second.pages_read < pages, "{pages} pages: {second:?}");
    let on_demand = second.pages_requested - second.pages_cached - second.pages_shared;
    assert!(on_demand * 10 < second.pages_read, "{on_demand} of {} pages were not read ahead", second.pages_read);
    let (_, third) = scan(None);
    assert_eq!((third.pages_read, third.pages_cached), (0, third.pages_requested), "{third:?}");
}

/// With a small read-ahead and a small cache, a scan reads each page once, and at least 90 % of them ahead.
fn check_read_ahead(database: &Database, view: &TreeView, rows: usize, pages: u64) {
    let options = ExecutorOptions { workers: 1, read_ahead_bytes: 64 << 10, ..ExecutorOptions::default() };
    let executor = Executor::new(database.store.clone(), options).unwrap();
    let scan = Scan {
        view: view.clone(),
        ranges: vec![KeyRange::all()],
        direction: Direction::Ascending,
        columns: vec![2],
        filters: Vec::new(),
        limit: None,
        batch_rows: 1000,
        kept: Vec::new(),
    };
    let found = executor.scan(scan, ExecutionMode::OutOfOrder);
    let stats = found.stats().clone();
    assert_eq!(collect(found).unwrap().len(), rows);
    let stats = stats.snapshot();
    assert!(stats.pages_read >= pages && stats.pages_requested >= stats.pages_read, "{pages} pages: {stats:?}");
    let on_demand = stats.pages_requested - stats.pages_cached - stats.pages_shared;
    assert!(on_demand * 10 < pages, "{on_demand} of {pages} pages were not read ahead");
}

fn small_cache() -> Options {
    Options { cache_bytes: 1 << 16, leaf_bytes: 128 << 10, ..common::options() }
}

/// A page advised twice (for a leaf ahead, then when that leaf is entered) is read once, and counts once against the
/// budget.
#[test]
fn pages_ahead_are_read_once() {
    let table = Table { rows: (0..300_000).map(|i| (Some(i), Some(i * 7919 % 100_003))).collect() };
    let database = Database::new(&[table], small_cache(), |_| false);
    let view = &database.views[0];
    check_read_ahead(&database, view, 300_000, view.estimate(&KeyRange::all()).pages as u64);
}

/// Requests for pages of messages, between those of leaves, do not end the read-ahead.
#[test]
fn pages_of_messages_do_not_end_the_read_ahead() {
    let table = Table { rows: (0..300_000).map(|i| (Some(i), Some(i * 7919 % 100_003))).collect() };
    let database = Database::new(&[table], small_cache(), |id| id % 50 == 0);
    database.store.checkpoint().unwrap();
    let snapshot = database.store.snapshot();
    let view = snapshot.tree(database.views[0].tree()).unwrap();
    check_read_ahead(&database, &view, 300_000, view.estimate(&KeyRange::all()).pages as u64);
}

/// A scan keeps the columns that it uses, and those given to it. A scan of other columns reads the pages again, with all
/// columns.
#[test]
fn pages_of_scans_have_the_columns_in_use() {
    let table = Table { rows: (0..100_000).map(|i| (Some(i), Some(i * 7919 % 100_003))).collect() };
    let database = Database::new(&[table], Options { cache_bytes: 64 << 20, ..common::options() }, |_| false);
    let view = &database.views[0];
    let executor = Executor::new(database.store.clone(), ExecutorOptions { workers: 1, ..Default::default() }).unwrap();
    let run = |columns: Vec<usize>, kept: Vec<usize>| {
        let rows = executor.scan(Scan { kept, ..Scan::whole(view.clone(), columns, 1000) }, ExecutionMode::OutOfOrder);
        let stats = rows.stats().clone();
        assert_eq!(collect(rows).unwrap().len(), 100_000);
        (stats.snapshot().pages_read, database.store.cache().usage().0, view.cached_share())
    };
    database.store.cache().clear();
    let pages = view.estimate(&KeyRange::all()).pages as u64;
    let (read, keys_only, shares) = run(vec![0], vec![]);
    assert!(read >= pages && shares.any == 1.0 && shares.whole < 0.2, "{read} of {pages} pages, {shares:?}");
    assert_eq!(run(vec![1, 0], vec![]).0, 0, "the key is in memory");
    let (read, whole, shares) = run(vec![2], vec![]);
    assert!(read > pages / 2 && 2 * keys_only < whole, "{read} of {pages} pages; {keys_only}, then {whole} bytes");
    assert_eq!((shares.whole, run(vec![2, 3], vec![]).0, run(vec![0], vec![]).0), (1.0, 0, 0));
    database.store.cache().clear();
    let (_, with_numbers, _) = run(vec![0], vec![2]);
    assert!(keys_only < with_numbers && with_numbers < whole, "{keys_only}, {with_numbers}, {whole} bytes");
    assert_eq!(run(vec![2], vec![]).0, 0, "column 2 was kept");
}

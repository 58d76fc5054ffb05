//! Model test: pipelines return the same rows as nested loops, under random limits of memory, credits and queue depth.

mod common;

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, UInt64Array};
use common::{COLUMNS, Database, Row, SumFilter, Table, Value, collect_pushing, multiset};
use keyaki_exec::{
    Driver, DriverScan, ExecutionMode, Executor, ExecutorOptions, Filter, Join, KeyPart, Pipeline, Step,
};
use keyaki_store::{KeyRange, Options};
use proptest::prelude::*;

/// A random step; column numbers are taken modulo the number of columns.
#[derive(Debug, Clone)]
struct StepSpec {
    table: usize,
    key: Vec<PartSpec>,
    columns: Vec<usize>,
    join: Join,
    filter: Option<(usize, usize, i64)>,
    keep: Option<Vec<usize>>,
}

#[derive(Debug, Clone)]
enum PartSpec {
    Column(usize),
    Constant(Option<i64>),
}

#[derive(Debug, Clone)]
struct Spec {
    tables: Vec<Table>,
    buffered_every: usize,
    driver_filter: Option<(usize, usize, i64)>,
    steps: Vec<StepSpec>,
    batch_rows: usize,
    memory_bytes: usize,
    options: ExecutorOptions,
    cache_bytes: usize,
    /// If not 0, the rows of the driver are pushed in batches of this size.
    pushed_rows: usize,
}

fn table() -> impl Strategy<Value = Table> {
    let number = || prop_oneof![1 => Just(None), 6 => (0i64..7).prop_map(Some)];
    let few = proptest::collection::vec((number(), number()), 0..40);
    // One key for nine rows of ten: lookups with many matches, over several pages.
    let skewed = proptest::collection::vec((prop_oneof![9 => Just(Some(3)), 1 => number()], number()), 300..900);
    prop_oneof![6 => few, 1 => skewed].prop_map(|rows| Table { rows })
}

fn step() -> impl Strategy<Value = StepSpec> {
    let part = prop_oneof![
        6 => (0usize..20).prop_map(PartSpec::Column),
        1 => prop_oneof![3 => (0i64..7).prop_map(Some), 1 => Just(None)].prop_map(PartSpec::Constant),
    ];
    (
        0usize..4,
        proptest::collection::vec(part, 1..=2),
        proptest::collection::vec(0..COLUMNS, 0..=4),
        prop_oneof![Just(Join::Inner), Just(Join::LeftOuter), Just(Join::LeftSemi), Just(Join::LeftAnti)],
        proptest::option::of((0usize..20, 0usize..20, 2i64..5)),
        proptest::option::of(proptest::collection::vec(0usize..20, 0..6)),
    )
        .prop_map(|(table, key, columns, join, filter, keep)| StepSpec { table, key, columns, join, filter, keep })
}

fn spec() -> impl Strategy<Value = Spec> {
    let options = (1usize..=4, 1usize..40, prop_oneof![Just(1usize), 1usize..50], 0usize..2, 1usize..5, 0usize..3)
        .prop_map(|(workers, queue_depth, tasks_in_flight, gap, max, ahead)| ExecutorOptions {
            workers,
            queue_depth,
            tasks_in_flight,
            coalesce_gap_bytes: gap * 4096,
            coalesce_max_bytes: max * 8192,
            read_ahead_bytes: ahead * 10_000,
        });
    (
        proptest::collection::vec(table(), 1..4),
        1usize..5,
        proptest::option::of((0usize..20, 0usize..20, 2i64..5)),
        proptest::collection::vec(step(), 0..=3),
        prop_oneof![1usize..4, 1usize..100, Just(8192)],
        prop_oneof![0usize..2000, 0usize..200_000, Just(64 << 20)],
        options,
        (prop_oneof![Just(0usize), Just(1 << 20)], prop_oneof![Just(0usize), 1usize..100]),
    )
        .prop_map(|(tables, buffered_every, driver_filter, steps, batch_rows, memory_bytes, options, last)| {
            let (cache_bytes, pushed_rows) = last;
            Spec {
                tables,
                buffered_every,
                driver_filter,
                steps,
                batch_rows,
                memory_bytes,
                options,
                cache_bytes,
                pushed_rows,
            }
        })
}

/// The indices of the columns that hold numbers; `types` has true for these.
fn numbers(types: &[bool]) -> Vec<usize> {
    (0..types.len()).filter(|&column| types[column]).collect()
}

fn filter(spec: &Option<(usize, usize, i64)>, types: &[bool]) -> Option<SumFilter> {
    let numbers = numbers(types);
    let &(a, b, modulus) = spec.as_ref().filter(|_| !numbers.is_empty())?;
    let columns = vec![numbers[a % numbers.len()], numbers[b % numbers.len()]];
    Some(SumFilter { columns, modulus, remainder: 0 })
}

const IS_NUMBER: [bool; COLUMNS] = [true, true, true, false];

/// The pipeline, and the rows expected of it.
fn build(spec: &Spec, database: &Database, mode: ExecutionMode) -> (Pipeline, Vec<Row>) {
    let mut types = IS_NUMBER.to_vec();
    let driver_filter = filter(&spec.driver_filter, &types);
    let mut rows = spec.tables[0].values();
    if let Some(filter) = &driver_filter {
        rows.retain(|row| filter.passes(row));
    }
    let mut steps = Vec::new();
    for step in &spec.steps {
        let table = step.table % spec.tables.len();
        let numbers = numbers(&types);
        let parts: Vec<PartSpec> = step
            .key
            .iter()
            .map(|part| match part {
                PartSpec::Column(column) if !numbers.is_empty() => PartSpec::Column(numbers[column % numbers.len()]),
                PartSpec::Column(_) => PartSpec::Constant(Some(3)),
                constant => constant.clone(),
            })
            .collect();
        let before = types.clone();
        types.extend(step.columns.iter().map(|&column| IS_NUMBER[column]));
        let filter = filter(&step.filter, &types);
        if is_existence(step.join) {
            types = before;
        }
        let keep = step.keep.as_ref().filter(|_| !types.is_empty());
        let keep: Option<Vec<usize>> = keep.map(|keep| keep.iter().map(|column| column % types.len()).collect());
        rows = naive_step(&rows, &spec.tables[table], &parts, step, filter.as_ref(), keep.as_deref());
        if let Some(keep) = &keep {
            types = keep.iter().map(|&column| types[column]).collect();
        }
        let key = parts.iter().map(|part| match part {
            PartSpec::Column(column) => KeyPart::Column(*column),
            PartSpec::Constant(value) => KeyPart::Constant(Arc::new(Int64Array::from(vec![*value])) as ArrayRef),
        });
        steps.push(Step {
            view: database.views[table].clone(),
            key: key.collect(),
            columns: step.columns.clone(),
            join: step.join,
            filter: filter.map(|filter| Arc::new(filter) as Arc<dyn Filter>),
            keep,
        });
    }
    let driver = Driver::Scan(DriverScan {
        view: database.views[0].clone(),
        ranges: vec![KeyRange::all()],
        columns: (0..COLUMNS).collect(),
        filter: driver_filter.map(|filter| Arc::new(filter) as Arc<dyn Filter>),
    });
    let is_pushed = spec.pushed_rows > 0 && !steps.is_empty();
    let driver = if is_pushed { Driver::Pushed(common::schema().arrow().clone()) } else { driver };
    let (batch_rows, memory_bytes) = (spec.batch_rows, spec.memory_bytes);
    (Pipeline { driver, steps, mode, batch_rows, memory_bytes, whole_pages: batch_rows % 2 == 0 }, rows)
}

fn naive_step(
    outer: &[Row],
    table: &Table,
    key: &[PartSpec],
    step: &StepSpec,
    filter: Option<&SumFilter>,
    keep: Option<&[usize]>,
) -> Vec<Row> {
    let inner = table.values();
    let mut joined = Vec::new();
    for row in outer {
        let wanted: Vec<Value> = key
            .iter()
            .map(|part| match part {
                PartSpec::Column(column) => row[*column].clone(),
                PartSpec::Constant(value) => common::int(*value),
            })
            .collect();
        let mut has_match = false;
        if !wanted.contains(&Value::Null) {
            for other in inner.iter().filter(|other| other[..wanted.len()] == wanted) {
                let pair: Row = row.iter().cloned().chain(step.columns.iter().map(|&c| other[c].clone())).collect();
                if filter.is_none_or(|filter| filter.passes(&pair)) {
                    has_match = true;
                    if !is_existence(step.join) {
                        joined.push(pair);
                    }
                }
            }
        }
        match step.join {
            Join::LeftOuter if !has_match => {
                joined.push(row.iter().cloned().chain(step.columns.iter().map(|_| Value::Null)).collect());
            }
            Join::LeftSemi if has_match => joined.push(row.clone()),
            Join::LeftAnti if !has_match => joined.push(row.clone()),
            _ => {}
        }
    }
    match keep {
        Some(keep) => joined.iter().map(|row| keep.iter().map(|&column| row[column].clone()).collect()).collect(),
        None => joined,
    }
}

fn is_existence(join: Join) -> bool {
    matches!(join, Join::LeftSemi | Join::LeftAnti)
}

/// True if the nested loops would take too long.
fn is_too_large(spec: &Spec) -> bool {
    let mut rows = spec.tables[0].rows.len();
    for step in &spec.steps {
        rows *= spec.tables[step.table % spec.tables.len()].rows.len().max(1) / 4 + 1;
    }
    rows > 2_000_000
}

/// The driver's rows that pass its filter.
fn pushed_batches(spec: &Spec) -> Vec<RecordBatch> {
    let rows = &spec.tables[0];
    if let Some(filter) = filter(&spec.driver_filter, &IS_NUMBER) {
        let values = rows.values();
        let all = rows.all();
        let passing: Vec<usize> = (0..values.len()).filter(|&row| filter.passes(&values[row])).collect();
        let indices = UInt64Array::from_iter_values(passing.iter().map(|&row| row as u64));
        let passing = arrow_select::take::take_record_batch(&all, &indices).unwrap();
        return slices(&passing, spec.pushed_rows);
    }
    slices(&rows.all(), spec.pushed_rows)
}

fn slices(batch: &RecordBatch, rows: usize) -> Vec<RecordBatch> {
    let starts = (0..batch.num_rows()).step_by(rows.max(1));
    starts.map(|start| batch.slice(start, rows.min(batch.num_rows() - start))).collect()
}

fn check(spec: &Spec) {
    let store_options = Options { cache_bytes: spec.cache_bytes, ..common::options() };
    let database = Database::new(&spec.tables, store_options, |id| id % spec.buffered_every == 0);
    let executor = Executor::new(database.store.clone(), spec.options.clone()).unwrap();
    for mode in [ExecutionMode::OutOfOrder, ExecutionMode::InOrder] {
        database.store.drop_caches();
        let (pipeline, expected) = build(spec, &database, mode);
        let pushed = match &pipeline.driver {
            Driver::Pushed(_) => pushed_batches(spec),
            Driver::Scan(_) => Vec::new(),
        };
        let rows = executor.pipeline(pipeline);
        let stats = rows.stats().clone();
        let found = collect_pushing(rows, pushed).unwrap();
        let counted = stats.snapshot();
        assert_eq!(*counted.rows.last().unwrap(), found.len() as u64);
        let is_measured = mode == ExecutionMode::OutOfOrder && counted.tasks > 0;
        assert_eq!(counted.busy_ns.len(), counted.rows.len());
        assert_eq!(counted.busy_ns.iter().any(|&time| time > 0), is_measured);
        assert!(multiset(found) == multiset(expected), "{mode:?}");
    }
    common::eventually("all fibers end", || executor.fiber_count() == 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]
    #[test]
    fn pipelines_equal_nested_loops(spec in spec()) {
        prop_assume!(!is_too_large(&spec));
        check(&spec);
    }
}

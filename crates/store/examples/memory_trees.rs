//! Measures memory trees against the same rows in a fully cached tree on disk and in a `BTreeMap` of encoded keys:
//! construction, scans, lookups, updates.
//!
//! ```sh
//! cargo run --release -p keyaki-store --example memory_trees -- DIRECTORY [rows]
//! ```

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use keyaki_store::{
    BlockingPages, Column, ColumnType, Direction, Durability, KeyCodec, KeyRange, Options, RowCodec, Schema, Store,
    TreeId, TreeView, WriteBatch, block_on,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    let number = (number ^ number >> 27).wrapping_mul(0x81da_def4_bc2d_d44d);
    number ^ number >> 33
}

fn column(name: &str, ty: ColumnType) -> Column {
    Column { name: name.into(), ty, nullable: false }
}

/// A workload: the schema and a generator of its rows.
struct Workload {
    name: &'static str,
    schema: Schema,
    rows: fn(std::ops::Range<u64>) -> Vec<ArrayRef>,
}

fn value_of(i: u64) -> i64 {
    (mix(i) % 1_000_000) as i64
}

/// Index entries (an indexed value with a million distinct values, then the row's key), and rows with two value
/// columns.
fn workloads() -> [Workload; 2] {
    let entries = Workload {
        name: "index entries (int64, int64)",
        schema: Schema::new(vec![column("value", ColumnType::Int64), column("row", ColumnType::Int64)], 2),
        rows: |range| {
            let value = Int64Array::from_iter_values(range.clone().map(value_of));
            vec![Arc::new(value), Arc::new(Int64Array::from_iter_values(range.map(|i| i as i64)))]
        },
    };
    let rows = Workload {
        name: "rows (int64 key; int64, text)",
        schema: Schema::new(
            vec![
                column("key", ColumnType::Int64),
                column("number", ColumnType::Int64),
                column("text", ColumnType::Text),
            ],
            1,
        ),
        rows: |range| {
            let text =
                StringViewArray::from_iter_values(range.clone().map(|i| format!("text of row {i}, of some length")));
            let number = Int64Array::from_iter_values(range.clone().map(value_of));
            vec![Arc::new(Int64Array::from_iter_values(range.map(|i| mix(i) as i64))), Arc::new(number), Arc::new(text)]
        },
    };
    [entries, rows]
}

impl Workload {
    fn batch(&self, range: std::ops::Range<u64>) -> Outcome<RecordBatch> {
        Ok(RecordBatch::try_new(self.schema.arrow().clone(), (self.rows)(range))?)
    }

    /// Encoded keys of `count` random rows.
    fn keys(&self, rows: u64, count: u64) -> Vec<Vec<u8>> {
        let codec = KeyCodec::new(&self.schema);
        let key = |i| {
            let mut key = Vec::new();
            codec.encode(&(self.rows)(i..i + 1), 0, &mut key);
            key
        };
        (0..count).map(|i| key(mix(i) % rows)).collect()
    }
}

fn walk(view: &TreeView, pages: &BlockingPages, direction: Direction) -> Outcome<f64> {
    let columns: Vec<usize> = (0..view.schema().columns().len()).collect();
    let start = Instant::now();
    let mut cursor = view.cursor(pages, KeyRange::all(), direction);
    let mut rows = 0;
    while let Some(chunk) = block_on(cursor.next())? {
        std::hint::black_box(chunk.to_arrays(&columns)?);
        rows += chunk.rows();
    }
    Ok(rows as f64 / start.elapsed().as_secs_f64() / 1e6)
}

/// Average nanoseconds to read a range of at least `wanted` rows from each key on; a point lookup if `wanted` is 1.
fn ranges(view: &TreeView, pages: &BlockingPages, keys: &[Vec<u8>], wanted: usize) -> Outcome<f64> {
    let columns: Vec<usize> = (0..view.schema().columns().len()).collect();
    let start = Instant::now();
    for key in keys {
        let range = match wanted {
            1 => KeyRange::point(key.clone()),
            _ => KeyRange { start: Bound::Included(key.clone()), end: Bound::Unbounded },
        };
        let mut cursor = view.cursor(pages, range, Direction::Ascending);
        let mut rows = 0;
        while rows < wanted
            && let Some(chunk) = block_on(cursor.next())?
        {
            std::hint::black_box(chunk.to_arrays(&columns)?);
            rows += chunk.rows();
        }
    }
    Ok(start.elapsed().as_nanos() as f64 / keys.len() as f64)
}

fn measure(name: &str, view: &TreeView, pages: &BlockingPages, keys: &[Vec<u8>]) -> Outcome<()> {
    let up = walk(view, pages, Direction::Ascending)?;
    let down = walk(view, pages, Direction::Descending)?;
    let point = ranges(view, pages, keys, 1)?;
    let (ten, hundred) =
        (ranges(view, pages, &keys[..keys.len() / 4], 10)?, ranges(view, pages, &keys[..keys.len() / 10], 100)?);
    println!("{name:14} {up:7.2} {down:11.2} {point:12.0} {ten:12.0} {hundred:14.0}");
    Ok(())
}

/// The same measurements for a map of encoded rows, of which one byte of the key and the length of the value are read.
fn measure_map(map: &BTreeMap<Vec<u8>, Vec<u8>>, keys: &[Vec<u8>]) {
    let mut sum = 0;
    let mut look = |(key, value): (&Vec<u8>, &Vec<u8>)| sum += usize::from(key[0]) + value.len();
    let start = Instant::now();
    map.iter().for_each(&mut look);
    let up = map.len() as f64 / start.elapsed().as_secs_f64() / 1e6;
    let start = Instant::now();
    map.iter().rev().for_each(&mut look);
    let down = map.len() as f64 / start.elapsed().as_secs_f64() / 1e6;
    let mut ranges = |keys: &[Vec<u8>], count: usize| {
        let start = Instant::now();
        for key in keys {
            match count {
                1 => map.get_key_value(key).into_iter().for_each(&mut look),
                _ => map.range::<Vec<u8>, _>(key..).take(count).for_each(&mut look),
            }
        }
        start.elapsed().as_nanos() as f64 / keys.len() as f64
    };
    let (point, ten, hundred) = (ranges(keys, 1), ranges(keys, 10), ranges(keys, 100));
    std::hint::black_box(sum);
    println!("{:14} {up:7.2} {down:11.2} {point:12.0} {ten:12.0} {hundred:14.0}   (not decoded)", "BTreeMap");
}

/// Thousands of updates per second: rows are replaced, or deleted and inserted again, in commits of 100.
fn update(store: &Store, tree: TreeId, workload: &Workload, rows: u64, updates: u64) -> Outcome<f64> {
    let start = Instant::now();
    for i in 0..updates / 100 {
        let first = mix(i) % (rows - 100);
        let batch = workload.batch(first..first + 50)?;
        let mut changes = WriteBatch::new();
        changes.delete(tree, &workload.schema, &batch)?;
        changes.insert(tree, &workload.schema, &batch)?;
        store.commit(changes)?;
    }
    Ok(updates as f64 / start.elapsed().as_secs_f64() / 1e3)
}

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: memory_trees DIRECTORY [rows]")?;
    let rows: u64 = arguments.next().map_or(Ok(2_000_000), |text| text.parse())?;
    let options = Options { durability: Durability::Off, cache_bytes: 4 << 30, ..Options::default() };
    let store = Store::open(keyaki_device::open_default()?, Path::new(&directory), options)?;
    let pages = store.blocking();
    for workload in workloads() {
        println!("\n{}: {rows} rows", workload.name);
        let memory = store.new_memory_tree_id();
        let start = Instant::now();
        let mut builder = store.memory_builder(memory, &workload.schema);
        for first in (0..rows).step_by(8192) {
            builder.push(&workload.batch(first..(first + 8192).min(rows))?)?;
        }
        let pushed = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let loaded = builder.finish(std::thread::available_parallelism()?.get())?;
        println!(
            "built in {:.3} s (rows generated and pushed in {pushed:.3} s): {:.2} M rows/s sorted and built",
            start.elapsed().as_secs_f64(),
            rows as f64 / start.elapsed().as_secs_f64() / 1e6
        );
        store.install_memory(vec![(memory, loaded)])?;
        println!("{:?}", store.memory_tree_stats(memory));
        // The same rows in a tree on disk, in key order.
        let disk = store.new_tree_id();
        let mut writer = store.bulk_writer(disk, &workload.schema);
        let view = store.snapshot().tree(memory)?;
        let mut cursor = view.cursor(&pages, KeyRange::all(), Direction::Ascending);
        let columns: Vec<usize> = (0..workload.schema.columns().len()).collect();
        let (codec, mut map) = (RowCodec::new(&workload.schema), BTreeMap::new());
        let keys = KeyCodec::new(&workload.schema);
        while let Some(chunk) = block_on(cursor.next())? {
            let batch = RecordBatch::try_new(workload.schema.arrow().clone(), chunk.to_arrays(&columns)?)?;
            for row in 0..batch.num_rows() {
                let (mut key, mut value) = (Vec::new(), Vec::new());
                keys.encode(batch.columns(), row, &mut key);
                codec.encode(batch.columns(), row, &mut value);
                map.insert(key, value);
            }
            writer.push(&batch)?;
        }
        let mut creation = WriteBatch::new();
        creation.create_tree(disk, &workload.schema);
        store.install(creation, vec![(disk, writer.finish()?)])?;
        let on_disk = store.snapshot().tree(disk)?;
        // Load all pages into the cache.
        walk(&on_disk, &pages, Direction::Ascending)?;
        let wanted = workload.keys(rows, 200_000);
        println!("               M rows/s  descending    ns/lookup  range of 10  range of 100");
        for _ in 0..2 {
            measure("memory tree", &view, &pages, &wanted)?;
            measure("disk, cached", &on_disk, &pages, &wanted)?;
            measure_map(&map, &wanted);
        }
        drop(cursor);
        drop(view);
        println!("updates: {:.0} k/s in memory", update(&store, memory, &workload, rows, 1_000_000)?);
        println!("{:?}", store.memory_tree_stats(memory));
    }
    Ok(())
}

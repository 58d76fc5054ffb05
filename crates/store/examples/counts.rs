//! Measures counts and estimates of a tree with pending messages: rows in leaves, and as many messages in runs and in the
//! root buffer, whose writer knows which keys have rows.
//!
//! ```sh
//! cargo run --release -p keyaki-store --example counts -- DIRECTORY [rows [messages]]
//! ```

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use keyaki_store::{
    Column, ColumnType, Durability, KeyRange, Options, Schema, Store, TreeId, TreeView, WriteBatch, block_on,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const TREE: TreeId = TreeId::new(20);
/// Messages of a commit.
const BATCH: u64 = 1000;
/// Ranges of a measurement, and the keys of each.
const RANGES: u64 = 200;
const RANGE_KEYS: u64 = 20_000;

fn schema() -> Schema {
    let column = |name: &str| Column { name: name.into(), ty: ColumnType::Int64, nullable: false };
    Schema::new(vec![column("key"), column("value")], 1)
}

fn key(number: u64) -> [u8; 8] {
    (number ^ 1 << 63).to_be_bytes()
}

fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    let number = (number ^ number >> 27).wrapping_mul(0x81da_def4_bc2d_d44d);
    number ^ number >> 33
}

/// Loads rows with even keys.
fn load(store: &Store, rows: u64) -> Outcome {
    let mut creation = WriteBatch::new();
    creation.create_tree(TREE, &schema());
    store.commit(creation)?;
    let mut writer = store.bulk_writer(TREE, &schema());
    for first in (0..rows).step_by(65_536) {
        let keys: Vec<i64> = (first..(first + 65_536).min(rows)).map(|row| 2 * row as i64).collect();
        let values: Vec<i64> = keys.iter().map(|&key| mix(key as u64) as i64).collect();
        let columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(keys)), Arc::new(Int64Array::from(values))];
        writer.push(&RecordBatch::try_new(schema().arrow().clone(), columns)?)?;
    }
    store.install(WriteBatch::new(), vec![(TREE, writer.finish()?)])?;
    Ok(())
}

/// Writes messages for keys spread over the tree: half of them updates, a quarter each new keys and deletes. No key gets
/// two messages.
fn write(store: &Store, rows: u64, messages: std::ops::Range<u64>) -> Outcome {
    let start = Instant::now();
    let count = messages.end - messages.start;
    for first in messages.step_by(BATCH as usize) {
        let mut batch = WriteBatch::new();
        for message in first..first + BATCH {
            // A permutation of the rows if their number has no factor in common with the prime.
            let row = message * 982_451_653 % rows;
            let value = mix(message).to_le_bytes();
            match message % 4 {
                0 => batch.insert_new_raw(TREE, &key(2 * row + 1), &value),
                1 => batch.delete_existing_raw(TREE, &key(2 * row)),
                _ => batch.update_raw(TREE, &key(2 * row), &value),
            }
        }
        store.commit(batch)?;
    }
    println!("{:8.0} ns per message committed", start.elapsed().as_nanos() as f64 / count as f64);
    Ok(())
}

fn count(store: &Store, view: &TreeView, range: &KeyRange) -> Result<u64, keyaki_store::Error> {
    let source = store.blocking();
    let (mut counter, mut rows) = (view.counter(&source, range.clone()), 0);
    while let Some(more) = block_on(counter.next())? {
        rows += more;
    }
    Ok(rows)
}

fn measure(store: &Store, rows: u64) -> Outcome {
    let view = store.latest().tree(TREE)?;
    for attempt in ["cold", "warm"] {
        if attempt == "cold" {
            store.drop_caches();
        }
        let before = store.stats().pages_read;
        let start = Instant::now();
        let all = count(store, &view, &KeyRange::all())?;
        let pages = store.stats().pages_read - before;
        println!("{:8.1} ms for all {all} rows, {attempt}, {pages} pages read", start.elapsed().as_secs_f64() * 1e3);
    }
    let range = |i: u64| {
        let low = mix(i) % (2 * rows - RANGE_KEYS);
        let (start, end) = (Bound::Included(key(low).to_vec()), Bound::Excluded(key(low + RANGE_KEYS).to_vec()));
        KeyRange { start, end }
    };
    store.drop_caches();
    for attempt in ["cold", "warm"] {
        let (before, start, mut sum) = (store.stats().pages_read, Instant::now(), 0);
        for i in 0..RANGES {
            sum += count(store, &view, &range(i))?;
        }
        let (pages, each) = (store.stats().pages_read - before, start.elapsed().as_secs_f64() * 1e6 / RANGES as f64);
        println!("{each:8.1} µs per range of {} rows, {attempt}, {pages} pages read", sum / RANGES);
    }
    let start = Instant::now();
    let estimated: f64 = (0..RANGES).map(|i| view.estimate(&range(i)).rows).sum();
    let each = start.elapsed().as_nanos() as f64 / RANGES as f64;
    println!("{each:8.0} ns per estimate of {:.0} rows", estimated / RANGES as f64);
    let start = Instant::now();
    let mut known = None;
    for _ in 0..RANGES {
        known = std::hint::black_box(view.live_rows());
    }
    println!("{:8.0} ns for the number of rows: {known:?}", start.elapsed().as_nanos() as f64 / RANGES as f64);
    Ok(())
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let directory = arguments.first().ok_or("usage: counts DIRECTORY [rows [messages]]")?;
    let number = |i: usize, otherwise: u64| arguments.get(i).map_or(Ok(otherwise), |text| text.parse());
    let (rows, messages) = (number(1, 4_000_000)?, number(2, 2_000_000)? / 2 / BATCH * BATCH);
    let options = Options {
        durability: Durability::Off,
        buffer_bytes: 1 << 40,
        checkpoint_log_bytes: 1 << 40,
        node_buffer_bytes: 1 << 30,
        ..Options::default()
    };
    let store = Store::open(keyaki_device::open_default()?, Path::new(directory), options)?;
    load(&store, rows)?;
    measure(&store, rows)?;
    write(&store, rows, 0..messages)?;
    let start = Instant::now();
    store.checkpoint()?;
    println!("{:8.1} ms for a checkpoint", start.elapsed().as_secs_f64() * 1e3);
    write(&store, rows, messages..2 * messages)?;
    measure(&store, rows)?;
    // Exit without closing the store, which would write a checkpoint.
    std::process::exit(0);
}

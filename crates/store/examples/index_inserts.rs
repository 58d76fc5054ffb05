//! Measures inserts into secondary indexes: entries with random keys, in several trees, in more data than memory. Prints
//! the rate of each tenth, and at the end the time of reads of one key.
//!
//! ```sh
//! cargo run --release -p keyaki-store --example index_inserts -- DIRECTORY [rows] [option=value …]
//! ```
//! Options: `trees`, and those of the example `key_value`.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use keyaki_store::{
    Column, ColumnType, Direction, Durability, KeyRange, Options, Schema, Snapshot, Store, TreeId, WriteBatch, block_on,
};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Rows of a commit.
const BATCH: u64 = 2048;
/// Number of distinct values of each indexed column.
const VALUES: u64 = 100_000;
const READS: u64 = 2000;

/// An index of one integer column: its value, and the row's key.
fn schema() -> Schema {
    let column = |name: &str| Column { name: name.into(), ty: ColumnType::Int64, nullable: false };
    Schema::new(vec![column("value"), column("id")], 2)
}

fn tree(number: u64) -> TreeId {
    TreeId::new(20 + number as u32)
}

fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    let number = (number ^ number >> 27).wrapping_mul(0x81da_def4_bc2d_d44d);
    number ^ number >> 33
}

fn value(tree: u64, row: u64) -> u64 {
    mix(row.wrapping_mul(16) + tree) % VALUES
}

fn key(value: u64, row: Option<u64>) -> Vec<u8> {
    let integer = |number: u64| (number ^ 1 << 63).to_be_bytes();
    [&integer(value)[..], row.map(integer).as_ref().map_or(&[], |bytes| &bytes[..])].concat()
}

fn insert(store: &Store, trees: u64, rows: std::ops::Range<u64>) -> Outcome {
    let schema = Arc::new(schema());
    let mut batch = WriteBatch::new();
    for number in 0..trees {
        batch.encoded_for(tree(number), &schema);
        for row in rows.clone() {
            batch.insert_new_raw(tree(number), &key(value(number, row), Some(row)), &[]);
        }
    }
    store.commit(batch)?;
    Ok(())
}

/// The number of entries with a value.
fn entries(store: &Store, snapshot: &Snapshot, number: u64, value: u64) -> Outcome<usize> {
    let range = KeyRange { start: Bound::Included(key(value, None)), end: Bound::Excluded(key(value + 1, None)) };
    let pages = store.blocking();
    let view = snapshot.tree(tree(number))?;
    let mut cursor = view.cursor(&pages, range, Direction::Ascending);
    let mut entries = 0;
    while let Some(chunk) = block_on(cursor.next())? {
        entries += chunk.rows();
    }
    Ok(entries)
}

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: index_inserts DIRECTORY [rows] [option=value …]")?;
    let rows: u64 = arguments.next().map_or(Ok(10_000_000), |text| text.parse())?;
    let mut options = Options { durability: Durability::Off, ..Options::default() };
    let mut trees = 3;
    for argument in arguments {
        let (name, value) = argument.split_once('=').ok_or("options are name=value")?;
        let value: usize = value.parse()?;
        match name {
            "trees" => trees = value as u64,
            "page_bytes" => options.page_bytes = value,
            "leaf_bytes" => options.leaf_bytes = value,
            "fan_out" => options.fan_out = value,
            "node_buffer_bytes" => options.node_buffer_bytes = value,
            "runs_per_node" => options.runs_per_node = value,
            "buffer_bytes" => options.buffer_bytes = value,
            "cache_bytes" => options.cache_bytes = value,
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    println!("{options:?}");
    let store = Store::open(keyaki_device::open_default()?, Path::new(&directory), options)?;
    let mut creation = WriteBatch::new();
    (0..trees).for_each(|number| creation.create_tree(tree(number), &schema()));
    store.commit(creation)?;

    let (beginning, written) = (Instant::now(), bytes_written());
    for tenth in 0..10 {
        let start = Instant::now();
        let part = rows * tenth / 10..rows * (tenth + 1) / 10;
        for first in part.clone().step_by(BATCH as usize) {
            insert(&store, trees, first..(first + BATCH).min(part.end))?;
        }
        let rate = (part.end - part.start) as f64 / start.elapsed().as_secs_f64();
        println!("{:>12} rows, {rate:>9.0} rows/s", part.end);
    }
    let rate = rows as f64 / beginning.elapsed().as_secs_f64();
    let written = (bytes_written() - written) as f64 / (rows * trees * 16) as f64;
    println!("{rate:.0} rows/s, {written:.2} bytes written for each byte of entries, log included");
    let stats = store.stats();
    println!("{:.2} bytes of the data file for each byte", stats.data_bytes_used as f64 / (rows * trees * 16) as f64);

    let snapshot = store.latest();
    for state in ["cold", "warm"] {
        if state == "cold" {
            store.drop_caches();
        }
        let (start, pages) = (Instant::now(), store.stats().pages_read);
        let mut found = 0;
        for read in 0..READS {
            found += entries(&store, &snapshot, read % trees, mix(read) % VALUES)?;
        }
        let micros = start.elapsed().as_secs_f64() * 1e6 / READS as f64;
        let pages = (store.stats().pages_read - pages) as f64 / READS as f64;
        println!(
            "{state} reads of a value: {micros:.1} µs, {pages:.1} pages read, {:.0} entries",
            found as f64 / READS as f64
        );
    }
    Ok(())
}

/// Bytes that this process has written to storage.
fn bytes_written() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let of = |line: &str| line.strip_prefix("write_bytes: ")?.parse().ok();
    io.lines().find_map(of).unwrap_or(0)
}

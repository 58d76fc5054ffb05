//! Measures root buffers and recovery: commits, reads of unflushed rows, memory per message, replay of a log.
//!
//! ```sh
//! cargo run --release -p keyaki-store --example buffers -- commits DIRECTORY
//! cargo run --release -p keyaki-store --example buffers -- fill DIRECTORY [rows [batch]]
//! cargo run --release -p keyaki-store --example buffers -- recover DIRECTORY
//! ```
//! `fill` exits without closing the store, which leaves a log as a crash does. `recover` may run on it any number of
//! times.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use keyaki_store::key_value::KeyValue;
use keyaki_store::{
    Column, ColumnType, Direction, Durability, KeyRange, Options, Schema, Store, TreeId, TreeView, WriteBatch, block_on,
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const ROWS: TreeId = TreeId::new(1);
const ENTRIES: TreeId = TreeId::new(2);

/// Opens a store that never flushes or checkpoints in the background.
fn open(directory: &Path) -> keyaki_store::Result<Store> {
    let options = Options {
        durability: Durability::Off,
        buffer_bytes: 1 << 40,
        checkpoint_log_bytes: 1 << 40,
        ..Options::default()
    };
    Store::open(keyaki_device::open_default()?, directory, options)
}

fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    let number = (number ^ number >> 27).wrapping_mul(0x81da_def4_bc2d_d44d);
    number ^ number >> 33
}

/// An index entry: the indexed value and the row's key.
fn entry_schema() -> Schema {
    let column = |name: &str| Column { name: name.into(), ty: ColumnType::Int64, nullable: false };
    Schema::new(vec![column("value"), column("row")], 2)
}

fn entry_key(i: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&((mix(i) % 1_000_000) | (1 << 63)).to_be_bytes());
    key[8..].copy_from_slice(&(i | (1 << 63)).to_be_bytes());
    key
}

/// An encoded key of the key-value tree: 14 bytes and the terminator of two bytes.
fn row_key(i: u64) -> [u8; 16] {
    let mut key = *b"row 0000000000\0\0";
    let mut number = mix(i) % 10_000_000_000;
    for digit in key[4..14].iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    key
}

fn row_value(i: u64) -> [u8; 100] {
    let mut value = [0; 100];
    value.chunks_mut(8).zip(0..).for_each(|(part, j)| part.copy_from_slice(&mix(i + j).to_le_bytes()[..part.len()]));
    value
}

fn add(batch: &mut WriteBatch, tree: TreeId, i: u64) {
    match tree {
        ROWS => batch.insert_raw(tree, &row_key(i), &row_value(i)),
        _ => batch.insert_raw(tree, &entry_key(i), b""),
    }
}

/// Resident memory of the process, in bytes.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<f64>().ok()).unwrap_or(0.0) * 1024.0
}

fn write(store: &Store, tree: TreeId, numbers: std::ops::Range<u64>, batch_rows: u64, threads: u64) {
    let next = AtomicU64::new(numbers.start);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let first = next.fetch_add(batch_rows, Ordering::Relaxed);
                    if first >= numbers.end {
                        return;
                    }
                    let mut batch = WriteBatch::new();
                    (first..first + batch_rows).for_each(|i| add(&mut batch, tree, i));
                    if let Err(error) = store.commit(batch) {
                        panic!("{error}");
                    }
                }
            });
        }
    });
}

fn commits(directory: &Path) -> Outcome {
    let store = open(directory)?;
    KeyValue::open(&store, ROWS)?;
    let mut batch = WriteBatch::new();
    batch.create_tree(ENTRIES, &entry_schema());
    store.commit(batch)?;
    println!("tree     threads    rows/commit  commits/s      rows/s  B/message (counted, resident)");
    for (tree, name) in [(ROWS, "rows"), (ENTRIES, "entries")] {
        let mut first = 0;
        for (threads, batch_rows, rows) in
            [(1, 1, 400_000), (2, 1, 400_000), (1, 10, 500_000), (2, 10, 500_000), (1, 10_000, 1_000_000)]
        {
            let (before, resident_before) = (store.stats().buffer_bytes as f64, resident());
            let start = Instant::now();
            write(&store, tree, first..first + rows, batch_rows, threads);
            let seconds = start.elapsed().as_secs_f64();
            let bytes = (store.stats().buffer_bytes as f64 - before) / rows as f64;
            println!(
                "{name:8} {threads:7} {batch_rows:14} {:10.0} {:11.0}  {bytes:.0} {:.0}",
                (rows / batch_rows) as f64 / seconds,
                rows as f64 / seconds,
                (resident() - resident_before) / rows as f64
            );
            first += rows;
        }
        let view = store.latest().tree(tree)?;
        reads(&store, &view, tree, first)?;
    }
    // Exit without closing the store, which would write a checkpoint.
    std::process::exit(0);
}

fn reads(store: &Store, view: &TreeView, tree: TreeId, rows: u64) -> Outcome {
    let pages = store.blocking();
    let key = |i: u64| if tree == ROWS { row_key(i).to_vec() } else { entry_key(i).to_vec() };
    let lookups = 300_000;
    let start = Instant::now();
    for i in 0..lookups {
        let mut cursor = view.cursor(&pages, KeyRange::point(key(mix(i) % rows)), Direction::Ascending);
        let chunk = block_on(cursor.next())?.ok_or("a row is missing")?;
        std::hint::black_box(chunk.rows());
    }
    let point = start.elapsed().as_nanos() as f64 / f64::from(lookups as u32);
    let start = Instant::now();
    for i in 0..lookups / 10 {
        let start = std::ops::Bound::Included(key(mix(i) % rows));
        let range = KeyRange { start, end: std::ops::Bound::Unbounded };
        let mut cursor = view.cursor(&pages, range, Direction::Ascending);
        let mut seen = 0;
        while seen < 10
            && let Some(chunk) = block_on(cursor.next())?
        {
            seen += chunk.rows();
        }
    }
    let short = start.elapsed().as_nanos() as f64 / f64::from(lookups as u32 / 10);
    let mut rates = Vec::new();
    for direction in [Direction::Ascending, Direction::Descending] {
        let start = Instant::now();
        let mut cursor = view.cursor(&pages, KeyRange::all(), direction);
        let mut seen = 0;
        while let Some(chunk) = block_on(cursor.next())? {
            std::hint::black_box(chunk.to_arrays(&[1])?);
            seen += chunk.rows();
        }
        rates.push(seen as f64 / start.elapsed().as_secs_f64() / 1e6);
    }
    println!(
        "reads: point {point:.0} ns, range of 10 {short:.0} ns, all {:.2} M rows/s, descending {:.2} M rows/s",
        rates[0], rates[1]
    );
    Ok(())
}

fn fill(directory: &Path, rows: u64, batch_rows: u64) -> Outcome {
    let store = open(directory)?;
    KeyValue::open(&store, ROWS)?;
    let mut batch = WriteBatch::new();
    batch.create_tree(ENTRIES, &entry_schema());
    store.commit(batch)?;
    for first in (0..rows).step_by(batch_rows as usize) {
        let mut batch = WriteBatch::new();
        (first..(first + batch_rows).min(rows)).for_each(|i| {
            add(&mut batch, ROWS, i);
            add(&mut batch, ENTRIES, i);
        });
        store.commit(batch)?;
    }
    store.set_durability(Durability::Full);
    std::process::exit(0);
}

fn recover(directory: &Path) -> Outcome {
    let start = Instant::now();
    let (mut bytes, mut sum) = (0, 0);
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("log-")) {
            let log = std::fs::read(path)?;
            bytes += log.len();
            sum ^= crc32c::crc32c(&log);
        }
    }
    let read = start.elapsed().as_secs_f64();
    let before = resident();
    let start = Instant::now();
    let store = open(directory)?;
    let seconds = start.elapsed().as_secs_f64();
    let megabytes = bytes as f64 / 1e6;
    let counted = store.stats().buffer_bytes as f64 / 1e6;
    println!(
        "log of {megabytes:.0} MB: read and checksummed ({sum:08x}) at {:.0} MB/s; recovered in {seconds:.3} s ({:.0} MB/s, \
                 {:.2} times the reading time); buffers {counted:.0} MB, resident {:.0} MB",
        megabytes / read,
        megabytes / seconds,
        seconds / read,
        (resident() - before) / 1e6
    );
    std::process::exit(0);
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: buffers (commits | fill | recover) DIRECTORY [rows [batch]]";
    let (Some(command), Some(directory)) = (arguments.first(), arguments.get(1)) else { return Err(usage.into()) };
    let number = |i: usize, otherwise: u64| arguments.get(i).map_or(Ok(otherwise), |text| text.parse());
    match command.as_str() {
        "commits" => commits(Path::new(directory)),
        "fill" => fill(Path::new(directory), number(2, 1_000_000)?, number(3, 100)?),
        "recover" => recover(Path::new(directory)),
        _ => Err(usage.into()),
    }
}

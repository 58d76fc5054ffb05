//! Measures the key-value store: random inserts, point reads, short scans, a full scan, upserts.
//!
//! ```sh
//! cargo run --release -p keyaki-store --example key_value -- DIRECTORY [keys] [option=value …]
//! ```
//! Options: `page_bytes`, `leaf_bytes`, `fan_out`, `node_buffer_bytes`, `runs_per_node`, `buffer_bytes`, `cache_bytes`,
//! `checkpoint_log_bytes`; `leveled=1` selects `MergePolicy::Leveled`; `reads_only=1` reads the rows of an earlier run and
//! changes nothing; `no_upserts=1` leaves the upserts out, so that a later run reads the rows as inserted.

use std::sync::Arc;
use std::time::Instant;

use keyaki_store::key_value::{KeyValue, KeyValueBatch};
use keyaki_store::{Direction, Durability, MergePolicy, Options, Store, TreeId, UpsertFunctions};

/// As in the `keyaki` program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TREE: TreeId = TreeId::new(1);
const ADD: u32 = 1;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("usage: key_value DIRECTORY [keys] [option=value …]")?;
    let keys: u64 = arguments.next().map_or(Ok(2_000_000), |text| text.parse())?;
    let add = |old: Option<&[u8]>, operand: &[u8]| {
        let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let sum = number(old.unwrap_or_default()) + number(operand);
        Ok(Some(sum.to_le_bytes().to_vec()))
    };
    let mut options = Options {
        durability: Durability::Normal,
        upserts: Arc::new(UpsertFunctions::default().with(ADD, add)),
        ..Options::default()
    };
    let (mut reads_only, mut no_upserts) = (false, false);
    for argument in arguments {
        let (name, value) = argument.split_once('=').ok_or("options are name=value")?;
        let value: usize = value.parse()?;
        match name {
            "page_bytes" => options.page_bytes = value,
            "leaf_bytes" => options.leaf_bytes = value,
            "fan_out" => options.fan_out = value,
            "node_buffer_bytes" => options.node_buffer_bytes = value,
            "runs_per_node" => options.runs_per_node = value,
            "buffer_bytes" => options.buffer_bytes = value,
            "cache_bytes" => options.cache_bytes = value,
            "checkpoint_log_bytes" => options.checkpoint_log_bytes = value as u64,
            "leveled" if value != 0 => options.merge_policy = MergePolicy::Leveled,
            "leveled" => options.merge_policy = MergePolicy::Tiered,
            "reads_only" => reads_only = value != 0,
            "no_upserts" => no_upserts = value != 0,
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    println!("{options:?}");
    let store = Store::open(keyaki_device::open_default()?, directory.as_ref(), options)?;
    let map = KeyValue::open(&store, TREE)?;

    let (start, written) = (Instant::now(), bytes_written());
    for first in (0..keys).step_by(100).filter(|_| !reads_only) {
        let mut batch = KeyValueBatch::default();
        for i in first..(first + 100).min(keys) {
            batch.insert(&map, &key(i), &value(i));
        }
        map.commit(batch)?;
    }
    report("insert (batches of 100)", keys, start);
    let start = Instant::now();
    store.checkpoint()?;
    println!("checkpoint {:.2} s; {:?}", start.elapsed().as_secs_f64(), store.stats());
    let amplification = (bytes_written() - written) as f64 / (keys * 116) as f64;
    println!("bytes written per byte inserted, log included: {amplification:.2}");
    let depth = store.latest().tree(TREE)?.depth();
    let space = store.tree_bytes(TREE) as f64 / (keys * 116) as f64;
    println!("levels of nodes, with the leaves: {depth}; bytes of extents per byte inserted: {space:.3}");

    store.drop_caches();
    let gets = keys.min(100_000);
    let before = store.stats().pages_read;
    let start = Instant::now();
    for i in 0..gets {
        let i = i.wrapping_mul(7_919) % keys;
        assert!(map.get(&key(i))?.is_some(), "key {i} is missing");
    }
    report("get, one thread", gets, start);
    println!("  pages read per get: {:.2}", (store.stats().pages_read - before) as f64 / gets as f64);

    store.drop_caches();
    let start = Instant::now();
    for first in (0..gets).step_by(64) {
        let wanted: Vec<_> = (first..(first + 64).min(gets)).map(|i| key(i.wrapping_mul(104_729) % keys)).collect();
        assert!(map.get_many(&wanted)?.iter().all(Option::is_some), "a key is missing");
    }
    report("get_many, 64 keys at a time", gets, start);

    store.drop_caches();
    let before = store.stats().pages_read;
    let start = Instant::now();
    let scans = 1000;
    for i in 0..scans {
        let from = key(i * 31);
        let mut range = map.range(from.as_slice().., Direction::Ascending)?;
        let mut found = 0;
        while found < 1000 && range.next_row()?.is_some() {
            found += 1;
        }
        assert!(found > 0);
    }
    report("scans of 1,000", scans, start);
    println!("  pages read per scan: {:.1}", (store.stats().pages_read - before) as f64 / scans as f64);
    let start = Instant::now();
    let mut range = map.range(.., Direction::Ascending)?;
    let mut found = 0;
    while range.next_row()?.is_some() {
        found += 1;
    }
    assert_eq!(found, keys);
    report("rows of a full scan", keys, start);

    let start = Instant::now();
    let upserts = if reads_only || no_upserts { 0 } else { keys / 4 };
    for first in (0..upserts).step_by(100) {
        let mut batch = KeyValueBatch::default();
        for i in first..(first + 100).min(upserts) {
            batch.upsert(&map, &key(i.wrapping_mul(31) % keys), ADD, &1_u64.to_le_bytes());
        }
        map.commit(batch)?;
    }
    report("upsert (batches of 100)", upserts, start);
    Ok(())
}

/// A key of 16 bytes; the keys are distributed uniformly.
fn key(i: u64) -> [u8; 16] {
    let a = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let b = (a ^ (a >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mut key = [0; 16];
    key[..8].copy_from_slice(&b.to_be_bytes());
    key[8..].copy_from_slice(&i.to_be_bytes());
    key
}

/// An incompressible value of 100 bytes.
fn value(i: u64) -> [u8; 100] {
    let mut value = [0; 100];
    let mut random = keyaki_primitives::Random::new(i);
    for chunk in value.chunks_mut(8) {
        chunk.copy_from_slice(&random.next_u64().to_le_bytes()[..chunk.len()]);
    }
    value
}

/// Bytes that the process has written to devices, counted by the operating system; 0 if it does not count them.
fn bytes_written() -> u64 {
    let counters = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = counters.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

fn report(what: &str, operations: u64, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    println!("{what}: {:.0}/s ({operations} in {seconds:.2} s)", operations as f64 / seconds);
}

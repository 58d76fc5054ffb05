//! Measures the opening of a database with many trees, whose process ended without closing it, for writing and read-only, and
//! the refresh of a reader.
//!
//! ```sh
//! cargo run --release -p keyaki-store --example open -- DIRECTORY create [trees] [gigabytes]
//! cargo run --release -p keyaki-store --example open -- DIRECTORY
//! ```

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{BinaryViewArray, RecordBatch};
use arrow_schema::{Field, Schema as ArrowSchema};
use keyaki_primitives::Random;
use keyaki_store::key_value::KeyValue;
use keyaki_store::{Durability, Options, Schema, Store, TreeId, WriteBatch};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const FIRST_TREE: u32 = 100;
const VALUE_BYTES: usize = 1000;
const BATCH_ROWS: u64 = 1000;
/// Bytes of values that are committed after the last checkpoint.
const LOG_BYTES: usize = 64 << 20;
const REFRESHES: u32 = 10_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let directory = Path::new(arguments.first().ok_or("usage: open DIRECTORY [create [trees] [gigabytes]]")?);
    if arguments.get(1).is_some_and(|argument| argument == "create") {
        let number = |place: usize, default: u64| arguments.get(place).map_or(Ok(default), |text| text.parse());
        return create(directory, number(2, 1000)?, number(3, 10)?);
    }
    let device = keyaki_device::open_default()?;
    let start = Instant::now();
    let reader = Store::open_read_only(device.clone(), directory, Options::default())?;
    println!("open read-only, with the log: {:.2?}", start.elapsed());
    drop(reader);
    let start = Instant::now();
    let store = Store::open(device.clone(), directory, Options { create: false, ..Options::default() })?;
    println!("open, with the log: {:.2?}", start.elapsed());
    let map = KeyValue::open(&store, TreeId::new(FIRST_TREE))?;
    let start = Instant::now();
    map.get(&0_u64.to_be_bytes())?.ok_or("a key is missing")?;
    println!("first get: {:.2?}", start.elapsed());
    let start = Instant::now();
    store.checkpoint()?;
    println!("checkpoint: {:.2?}", start.elapsed());
    let start = Instant::now();
    let reader = Store::open_read_only(device, directory, Options::default())?;
    println!("open read-only beside it, without a log: {:.2?}", start.elapsed());
    let start = Instant::now();
    for _ in 0..REFRESHES {
        reader.refresh(&|_| ())?;
    }
    println!("refresh without changes: {:.2?}", start.elapsed() / REFRESHES);
    let (mut follow, mut rebuild) = (Duration::ZERO, Duration::ZERO);
    for number in 0..100_u64 {
        map.insert(&number.to_be_bytes(), b"changed")?;
        let start = Instant::now();
        reader.refresh(&|_| ())?;
        follow += start.elapsed();
        if number.is_multiple_of(10) {
            store.checkpoint()?;
            let start = Instant::now();
            reader.refresh(&|_| ())?;
            rebuild += start.elapsed();
        }
    }
    println!("refresh after a commit: {:.2?}, after a checkpoint: {:.2?}", follow / 100, rebuild / 10);
    let start = Instant::now();
    drop((map, reader, store));
    println!("close: {:.2?}", start.elapsed());
    Ok(())
}

/// Creates the database, and ends the process without closing it.
fn create(directory: &Path, trees: u64, gigabytes: u64) -> Result<(), Box<dyn Error>> {
    let options = Options { durability: Durability::Normal, ..Options::default() };
    let store = Store::open(keyaki_device::open_default()?, directory, options)?;
    let (schema, mut random, rows) =
        (Schema::key_value(), Random::new(1), (gigabytes << 30) / VALUE_BYTES as u64 / trees);
    let mut value = vec![0; VALUE_BYTES];
    let start = Instant::now();
    let mut loaded = Vec::new();
    for number in 0..trees {
        let tree = TreeId::new(FIRST_TREE + number as u32);
        let mut batch = WriteBatch::new();
        batch.create_tree(tree, &schema);
        store.commit(batch)?;
        let mut writer = store.bulk_writer(tree, &schema);
        for first in (0..rows).step_by(BATCH_ROWS as usize) {
            let keys = first..(first + BATCH_ROWS).min(rows);
            let values = keys.clone().map(|_| {
                value.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.below(u64::MAX).to_le_bytes()));
                value.clone()
            });
            let values = BinaryViewArray::from_iter_values(values);
            let keys = BinaryViewArray::from_iter_values(keys.map(|key| key.to_be_bytes()));
            let fields = ["key", "value"].map(|name| Field::new(name, arrow_schema::DataType::BinaryView, false));
            let schema = Arc::new(ArrowSchema::new(fields.to_vec()));
            writer.push(&RecordBatch::try_new(schema, vec![Arc::new(keys), Arc::new(values)])?)?;
        }
        loaded.push((tree, writer.finish()?));
        if loaded.len() == 50 {
            store.install(WriteBatch::new(), std::mem::take(&mut loaded))?;
        }
    }
    store.install(WriteBatch::new(), loaded)?;
    for number in 0..(LOG_BYTES / VALUE_BYTES) as u64 {
        let tree = TreeId::new(FIRST_TREE + (number % trees) as u32);
        KeyValue::open(&store, tree)?.insert(&random.below(rows).to_be_bytes(), &value)?;
    }
    // Syncs the log.
    store.set_durability(Durability::Full);
    let stats = store.stats();
    println!(
        "{trees} trees of {rows} rows, {} MB in use, in {:.1?}",
        stats.data_bytes_used / 1_000_000,
        start.elapsed()
    );
    // Without destructors: the next process replays the log.
    std::process::exit(0);
}

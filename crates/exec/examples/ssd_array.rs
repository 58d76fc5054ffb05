//! The query of the OoODE paper (customers of a range ⋈ orders ⋈ lineitems) on a simulated array of 40 SSDs, in order and
//! out of order. Time is that of the simulated device: computing takes none, so the figures show the reads of the two
//! modes, not the speed of a processor.
//!
//! `cargo run --release -p keyaki-exec --example ssd_array`

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, BinaryViewArray, Int64Array, RecordBatch};
use futures::StreamExt;
use keyaki_device::simulated::{Model, Simulated, SimulatedOptions};
use keyaki_exec::{
    Driver, DriverScan, ExecutionMode, Executor, ExecutorOptions, Join, KeyPart, Pipeline, StatsSnapshot, Step,
};
use keyaki_store::{Column, ColumnType, KeyRange, Options, Schema, Store, TreeId, TreeView, WriteBatch};

const CUSTOMERS: u64 = 40_000;
const ORDERS_PER_CUSTOMER: u64 = 10;
const LINES_PER_ORDER: u64 = 4;

/// A fixed pseudo-random permutation of the 64-bit numbers.
fn scatter(number: u64) -> u64 {
    let mixed = (number ^ (number >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 32)
}

/// Loads a table of two key columns, a number, and `padding` incompressible bytes.
fn load(store: &Store, mut rows: Vec<[i64; 3]>, padding: usize) -> Result<TreeId, Box<dyn Error>> {
    let column = |name: &str, ty| Column { name: name.into(), ty, nullable: false };
    let schema = Arc::new(Schema::new(
        vec![
            column("a", ColumnType::Int64),
            column("b", ColumnType::Int64),
            column("n", ColumnType::Int64),
            column("padding", ColumnType::Bytes),
        ],
        2,
    ));
    rows.sort_unstable();
    let tree = store.new_tree_id();
    let mut batch = WriteBatch::new();
    batch.create_tree(tree, &schema);
    let mut writer = store.bulk_writer(tree, &schema);
    for part in rows.chunks(8192) {
        let number = |at: usize| Arc::new(part.iter().map(|row| Some(row[at])).collect::<Int64Array>()) as ArrayRef;
        let noise = |row: &[i64; 3]| -> Vec<u8> {
            let seed = scatter(row[0] as u64).wrapping_add(row[1] as u64);
            (0..padding as u64).map(|byte| scatter(seed.wrapping_add(byte << 40)) as u8).collect()
        };
        let padding = BinaryViewArray::from_iter_values(part.iter().map(noise));
        let columns = vec![number(0), number(1), number(2), Arc::new(padding) as ArrayRef];
        writer.push(&RecordBatch::try_new(schema.arrow().clone(), columns)?)?;
    }
    store.install(batch, vec![(tree, writer.finish()?)])?;
    Ok(tree)
}

fn step(view: &TreeView, column: usize, columns: &[usize], keep: &[usize]) -> Step {
    Step {
        view: view.clone(),
        key: vec![KeyPart::Column(column)],
        columns: columns.to_vec(),
        join: Join::Inner,
        filter: None,
        keep: Some(keep.to_vec()),
    }
}

/// Runs the query. Returns the number of rows, the sum of their numbers, and the counters of the execution.
fn run(
    executor: &Executor,
    views: &[TreeView],
    share: f64,
    mode: ExecutionMode,
) -> Result<(u64, i64, StatsSnapshot), Box<dyn Error>> {
    let customers = (CUSTOMERS as f64 * share) as i64;
    let balance = Int64Array::from(vec![customers]);
    let mut end = Vec::new();
    views[0].key_codec().encode(&[Arc::new(balance) as ArrayRef], 0, &mut end);
    let below = KeyRange { start: std::ops::Bound::Unbounded, end: std::ops::Bound::Excluded(end) };
    let pipeline = Pipeline {
        driver: Driver::Scan(DriverScan {
            view: views[0].clone(),
            ranges: vec![below],
            columns: vec![1],
            filter: None,
        }),
        steps: vec![step(&views[1], 0, &[1], &[1]), step(&views[2], 0, &[2], &[1])],
        mode,
        batch_rows: 8192,
        memory_bytes: 256 << 20,
        whole_pages: false,
    };
    let mut rows = executor.pipeline(pipeline);
    let (mut count, mut sum) = (0, 0);
    while let Some(batch) = futures::executor::block_on(rows.next()) {
        let batch = batch?;
        count += batch.num_rows() as u64;
        sum += batch.column(0).as_primitive::<Int64Type>().values().iter().sum::<i64>();
    }
    Ok((count, sum, rows.stats().snapshot()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let device = Simulated::new(SimulatedOptions::default());
    let options = Options { page_bytes: 4096, cache_bytes: 64 << 20, ..Options::default() };
    let store = Store::open(device.device(), Path::new("/db"), options)?;

    // Keys: balance (a permutation of the customers' numbers), customer, order. The customer of each order is random.
    let customers = (0..CUSTOMERS).map(|c| [(c * 17_393 % CUSTOMERS) as i64, c as i64, 0]).collect();
    let order_count = CUSTOMERS * ORDERS_PER_CUSTOMER;
    let orders = (0..order_count).map(|o| [(scatter(o) % CUSTOMERS) as i64, o as i64, 0]).collect();
    let lines = (0..order_count * LINES_PER_ORDER)
        .map(|l| [(l / LINES_PER_ORDER) as i64, (l % LINES_PER_ORDER) as i64, (scatter(l) % 50) as i64])
        .collect();
    let trees = [load(&store, customers, 100)?, load(&store, orders, 40)?, load(&store, lines, 60)?];
    let snapshot = store.snapshot();
    let views = trees.map(|tree| snapshot.tree(tree)).into_iter().collect::<Result<Vec<_>, _>>()?;

    device.set_model(Model::ssd_array_40());
    let executor = Executor::new(
        store.clone(),
        ExecutorOptions { workers: 1, queue_depth: 2560, tasks_in_flight: 8192, ..ExecutorOptions::default() },
    )?;
    println!("{order_count} orders, {} lineitems; simulated 40-SSD array\n", order_count * LINES_PER_ORDER);
    println!("customers | mode         |    rows | seconds |   reads | pages read |      IOPS | in flight | ratio");
    for share in [0.0001, 0.001, 0.01, 0.1, 0.5] {
        let mut seconds_in_order = 0.0;
        let mut answer = None;
        for mode in [ExecutionMode::InOrder, ExecutionMode::OutOfOrder] {
            store.drop_caches();
            let (count, sum, stats) = run(&executor, &views, share, mode)?;
            assert!(answer.is_none_or(|other| other == (count, sum)), "both modes return the same rows");
            answer = Some((count, sum));
            let seconds = stats.elapsed_ns as f64 / 1e9;
            let ratio = match mode {
                ExecutionMode::InOrder => {
                    seconds_in_order = seconds;
                    String::new()
                }
                ExecutionMode::OutOfOrder => format!("{:.0}", seconds_in_order / seconds),
            };
            println!(
                "{:8.2}% | {:12} | {count:7} | {seconds:7.4} | {:7} | {:10} | {:9.0} | {:9} | {ratio:>5}",
                share * 100.0,
                format!("{mode:?}"),
                stats.reads,
                stats.pages_read,
                stats.reads as f64 / seconds,
                stats.in_flight_max,
            );
        }
    }
    Ok(())
}

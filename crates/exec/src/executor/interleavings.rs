//! The executor under shuttle: real workers, fibers and streams on the simulated device, with other threads at every
//! access to a lock, to an atomic of the runtime, and before every operation of the device.
//!
//! A lost wake-up of a worker, a fiber or a consumer is a deadlock, which shuttle reports. So is a worker that does not
//! end when the executor is dropped.
//!
//! Not scheduled: accesses within the ready queues, which are those of crossbeam, and within the wakers of fibers.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use futures::StreamExt;
use keyaki_device::simulated::{Simulated, SimulatedOptions};
use keyaki_primitives::sync::thread::{JoinHandle, spawn, yield_now};
use keyaki_primitives::sync::{Limits, explore};
use keyaki_store::{Column, ColumnType, Direction, KeyRange, Options, Schema, Store, TreeId, TreeView, WriteBatch};

use super::{Executor, Rows};
use crate::base::{
    Driver, DriverScan, Error, ExecutionMode, ExecutorOptions, Join, KeyPart, Pipeline, Result, Scan, Step,
};

const TREE: TreeId = TreeId::new(20);
const ROWS: i64 = 40;

struct Setup {
    device: Simulated,
    executor: Executor,
    view: TreeView,
    /// Pages of the tree.
    pages: u64,
}

/// (key, number of another row, text), in several pages.
fn schema() -> Arc<Schema> {
    let column = |name: &str, ty| Column { name: name.into(), ty, nullable: false };
    let columns =
        vec![column("key", ColumnType::Int64), column("other", ColumnType::Int64), column("text", ColumnType::Text)];
    Arc::new(Schema::new(columns, 1))
}

impl Setup {
    fn new() -> Setup {
        let device = Simulated::new(SimulatedOptions::default());
        let options = Options { page_bytes: 4096, leaf_bytes: 64 << 10, cache_bytes: 1 << 20, ..Options::default() };
        let store = Store::open(device.device(), Path::new("/db"), options).unwrap();
        let schema = schema();
        let mut batch = WriteBatch::new();
        batch.create_tree(TREE, &schema);
        let mut writer = store.bulk_writer(TREE, &schema);
        let text = |row: i64| {
            (0..20).map(|i| format!("{:016x}", (row * 20 + i).wrapping_mul(0x1e37_79b9_7f4a_7c15))).collect()
        };
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(0..ROWS)),
            Arc::new(Int64Array::from_iter_values((0..ROWS).map(|row| (row * 7) % ROWS))),
            Arc::new(
                (0..ROWS)
                    .map(|row| Some(text(row)))
                    .collect::<Vec<Option<String>>>()
                    .into_iter()
                    .collect::<StringViewArray>(),
            ),
        ];
        writer.push(&RecordBatch::try_new(schema.arrow().clone(), columns).unwrap()).unwrap();
        store.install(batch, vec![(TREE, writer.finish().unwrap())]).unwrap();
        store.drop_caches();
        let view = store.snapshot().tree(TREE).unwrap();
        let options = ExecutorOptions {
            workers: 2,
            queue_depth: 2,
            tasks_in_flight: 3,
            coalesce_max_bytes: 4096,
            read_ahead_bytes: 8192,
            ..ExecutorOptions::default()
        };
        let pages = store.tree_bytes(TREE) / 4096;
        assert!(pages >= 4, "{pages} pages");
        Setup { device, executor: Executor::new(store, options).unwrap(), view, pages }
    }

    fn scan(&self) -> Rows {
        let scan = Scan {
            view: self.view.clone(),
            ranges: vec![KeyRange::all()],
            direction: Direction::Ascending,
            columns: vec![0],
            filters: Vec::new(),
            limit: None,
            batch_rows: 8,
            kept: Vec::new(),
        };
        self.executor.scan(scan, ExecutionMode::OutOfOrder)
    }

    /// Joins each row with another one.
    fn join(&self) -> Rows {
        let (view, ranges) = (self.view.clone(), vec![KeyRange::all()]);
        let driver = Driver::Scan(DriverScan { view: view.clone(), ranges, columns: vec![0, 1], filter: None });
        let (key, columns, keep) = (vec![KeyPart::Column(1)], vec![0], Some(vec![0]));
        let step = Step { view, key, columns, join: Join::Inner, filter: None, keep };
        self.executor.pipeline(Pipeline {
            driver,
            steps: vec![step],
            mode: ExecutionMode::OutOfOrder,
            batch_rows: 8,
            memory_bytes: 1 << 20,
            whole_pages: false,
        })
    }

    /// Runs `work` on a thread of its own.
    fn start(self: &Arc<Self>, work: impl FnOnce(&Setup) + Send + 'static) -> JoinHandle<()> {
        let setup = self.clone();
        spawn(move || work(&setup))
    }
}

/// The first column of all rows.
fn collect(mut rows: Rows) -> Result<Vec<i64>> {
    shuttle::future::block_on(async {
        let mut all = Vec::new();
        while let Some(batch) = rows.next().await {
            all.extend_from_slice(batch?.column(0).as_primitive::<Int64Type>().values());
        }
        Ok(all)
    })
}

fn check(rows: Rows) {
    let rows = collect(rows).unwrap();
    assert_eq!(rows.len(), ROWS as usize);
    assert_eq!(rows.into_iter().collect::<BTreeSet<_>>(), (0..ROWS).collect());
}

fn is_read_error(result: &Result<Vec<i64>>) -> bool {
    matches!(result, Err(Error::Store(keyaki_store::Error::Device(_))))
}

/// Runs the threads on one executor, and drops it.
fn run<const N: usize>(schedules: usize, threads: [fn(&Setup); N]) {
    explore(Limits::schedules(schedules), move || {
        let setup = Arc::new(Setup::new());
        let threads = threads.map(|work| setup.start(work));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        while setup.executor.fiber_count() > 0 {
            yield_now();
        }
    });
}

#[test]
fn scans_and_pipelines_share_reads() {
    run(100, [|setup| check(setup.scan()), |setup| check(setup.join())]);
}

#[test]
fn a_query_reads_each_page_once() {
    run(
        100,
        [|setup| {
            let rows = setup.join();
            let stats = rows.stats().clone();
            check(rows);
            let read = stats.snapshot().pages_read;
            assert!((1..=setup.pages).contains(&read), "{read} pages read of {}", setup.pages);
        }],
    );
}

#[test]
fn a_cancelled_query_leaves_its_reads_to_others() {
    let cancel: fn(&Setup) = |setup| {
        let mut rows = setup.join();
        shuttle::future::block_on(rows.next()).unwrap().unwrap();
        drop(rows);
    };
    run(100, [cancel, |setup| check(setup.scan())]);
}

/// Unreadable pages end all queries with the error of the device, and later queries read the pages again.
#[test]
fn unreadable_pages_fail_all_waiters() {
    explore(Limits::schedules(100), || {
        let setup = Arc::new(Setup::new());
        setup.device.fail_reads(Path::new("/db/data"), 0..u64::MAX / 2).unwrap();
        let scan = setup.start(|setup| assert!(is_read_error(&collect(setup.scan()))));
        let join = setup.start(|setup| assert!(is_read_error(&collect(setup.join()))));
        scan.join().unwrap();
        join.join().unwrap();
        setup.device.clear_faults();
        check(setup.join());
    });
}

/// The device fails at any time: all queries end, and so do the workers.
#[test]
fn a_failed_device_ends_all_queries() {
    fn ends(rows: Rows) {
        let result = collect(rows);
        assert!(is_read_error(&result) || result.is_ok_and(|rows| rows.len() == ROWS as usize));
    }
    run(100, [|setup| ends(setup.scan()), |setup| ends(setup.join()), |setup| setup.device.crash()]);
}

//! Classes announced to the governor of the CPU caches, scans that spare these caches, touching of trees, and traces.

mod common;

use std::sync::{Arc, Mutex};

use common::{Database, Table, collect, options};
use keyaki_exec::{
    CacheUse, Driver, DriverScan, ExecutionMode, Executor, ExecutorOptions, Filter, Join, KeyPart, MemoryTrace,
    Pipeline, Scan, Step,
};
use keyaki_llc::governor::{Hardware, Software};
use keyaki_llc::sim::trace::TraceReader;
use keyaki_llc::software::{ScanMethod, Tuning};
use keyaki_llc::{Governor, GovernorOptions, WorkClass};
use keyaki_store::{Direction, KeyRange, TreeView};

const ROWS: i64 = 5_000;

fn database() -> Database {
    let table =
        |size: i64| Table { rows: (0..size).map(|row| (Some(row), Some(row * row * 7919 % 100_003))).collect() };
    Database::new(&[table(ROWS), table(100)], options(), |id| id % 50 == 0)
}

fn governor(method: ScanMethod) -> Governor {
    let mut tuning = Tuning::plain("a test");
    tuning.method = method;
    let (hardware, software) = (Hardware::Off, Software::Given(tuning));
    Governor::new(GovernorOptions { hardware, software, ..GovernorOptions::default() })
}

fn scan(view: &TreeView, filter: Option<(Vec<usize>, Arc<dyn Filter>)>) -> Scan {
    let (ranges, direction) = (vec![KeyRange::all()], Direction::Ascending);
    Scan {
        view: view.clone(),
        ranges,
        direction,
        columns: vec![0, 2, 3],
        filters: filter.into_iter().collect(),
        limit: None,
        batch_rows: 500,
        kept: Vec::new(),
    }
}

/// A filter that records the number of workers of each class at each evaluation.
#[derive(Debug)]
struct Watch {
    governor: Governor,
    seen: Mutex<Vec<[u32; 3]>>,
}

impl Watch {
    fn new(governor: &Governor) -> Arc<Watch> {
        Arc::new(Watch { governor: governor.clone(), seen: Mutex::default() })
    }

    fn most(&self) -> [u32; 3] {
        let seen = self.seen.lock().unwrap();
        seen.iter().fold([0; 3], |most, seen| [0, 1, 2].map(|class| most[class].max(seen[class])))
    }
}

impl Filter for Watch {
    fn evaluate(&self, rows: &arrow_array::RecordBatch) -> keyaki_exec::Result<arrow_array::BooleanArray> {
        let classes = self.governor.status().classes;
        self.seen.lock().unwrap().push([0, 1, 2].map(|class| classes[class].workers));
        Ok(arrow_array::BooleanArray::from(vec![true; rows.num_rows()]))
    }
}

#[test]
fn classes_are_announced_while_work_runs() {
    let database = database();
    let executor = Executor::new(database.store.clone(), ExecutorOptions { workers: 2, ..Default::default() }).unwrap();
    let governor = governor(ScanMethod::Plain);
    let is_idle = || governor.status().classes.iter().all(|class| class.workers == 0);
    // Workers stay announced until they sleep, which may be after the end of a query.
    let wait_until_idle = || common::eventually("workers are idle", is_idle);
    for mode in [ExecutionMode::OutOfOrder, ExecutionMode::InOrder] {
        wait_until_idle();
        let watch = Watch::new(&governor);
        let cache = CacheUse { governor: governor.clone(), class: WorkClass::Adaptive };
        let filtered = scan(&database.views[0], Some((vec![0], watch.clone())));
        assert_eq!(collect(executor.scan_as(filtered, mode, Some(cache))).unwrap().len(), ROWS as usize);
        let most = watch.most();
        // Workers that admit pages to the cache are announced as well.
        assert!(most[1] >= 1 && most[0] == 0 && most[2] == 0, "{mode:?}: {most:?}");

        wait_until_idle();
        let watch = Watch::new(&governor);
        let (ranges, columns) = (vec![KeyRange::all()], vec![0]);
        let driver = DriverScan { view: database.views[1].clone(), ranges, columns, filter: None };
        let step = Step {
            view: database.views[0].clone(),
            key: vec![KeyPart::Column(0)],
            columns: vec![2],
            join: Join::Inner,
            filter: Some(watch.clone()),
            keep: None,
        };
        let driver = Driver::Scan(driver);
        let pipeline =
            Pipeline { driver, steps: vec![step], mode, batch_rows: 100, memory_bytes: 1 << 20, whole_pages: false };
        let cache = CacheUse { governor: governor.clone(), class: WorkClass::Sensitive };
        assert_eq!(collect(executor.pipeline_as(pipeline, Some(cache))).unwrap().len(), 100);
        let most = watch.most();
        assert!(most[2] >= 1 && most[0] == 0 && most[1] == 0, "{most:?}");
    }
    wait_until_idle();
}

#[test]
fn streams_spare_pages_while_a_structure_is_protected() {
    let database = database();
    let executor = Executor::new(database.store.clone(), ExecutorOptions { workers: 1, ..Default::default() }).unwrap();
    let expected = collect(executor.scan(scan(&database.views[0], None), ExecutionMode::OutOfOrder)).unwrap();
    for method in [ScanMethod::FlushBehind { behind_bytes: 4096 }, ScanMethod::NonTemporal { ahead_bytes: 4096 }] {
        let governor = governor(method);
        let run = |class: WorkClass, filtered: bool, mode: ExecutionMode| {
            let filter = filtered.then(|| (vec![2], Watch::new(&governor) as Arc<dyn Filter>));
            let cache = CacheUse { governor: governor.clone(), class };
            let rows = executor.scan_as(scan(&database.views[0], filter), mode, Some(cache));
            let stats = rows.stats().clone();
            assert_eq!(collect(rows).unwrap(), expected, "{method}");
            let stats = stats.snapshot();
            (stats.pages_spared, stats.pages_requested)
        };
        assert_eq!(run(WorkClass::Streaming, false, ExecutionMode::OutOfOrder).0, 0, "nothing is protected");
        let _pin = governor.protect("something", &[&[0; 64]]);
        assert_eq!(run(WorkClass::Adaptive, false, ExecutionMode::OutOfOrder).0, 0);
        for filtered in [false, true] {
            for mode in [ExecutionMode::OutOfOrder, ExecutionMode::InOrder] {
                let (spared, requested) = run(WorkClass::Streaming, filtered, mode);
                // All but index pages. Pages with messages are divided among several chunks.
                assert!(spared >= requested * 8 / 10, "{spared} of {requested}");
            }
        }
    }
}

#[test]
fn touching_meets_all_pages_and_rows() {
    let database = database();
    let executor = Executor::new(database.store.clone(), ExecutorOptions { workers: 2, ..Default::default() }).unwrap();
    database.store.drop_caches();
    let touch = |keep| futures::executor::block_on(executor.touch(&database.views[0], keep, || true)).unwrap();
    let touched = touch(u64::MAX);
    assert_eq!(touched.rows, ROWS as u64);
    assert!(touched.index_pages > 1 && touched.data_pages > 10, "{touched:?}");
    assert_eq!(touched.kept.len() as u64, touched.index_pages + touched.data_pages);
    let offsets: std::collections::BTreeSet<u64> = touched.kept.iter().map(|(offset, _)| *offset).collect();
    assert_eq!(offsets.len(), touched.kept.len());
    assert!(offsets.iter().all(|&offset| database.store.cache().peek(offset).is_some()));
    assert!(touch(10_000).kept.len() <= 2);
    let cancelled = futures::executor::block_on(executor.touch(&database.views[0], 0, || false));
    assert!(matches!(cancelled, Err(keyaki_exec::Error::Cancelled)));
}

/// A file in memory.
#[derive(Debug, Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A full disk.
struct Full;

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > 1000 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn traces_have_the_lines_of_the_columns_that_are_read() {
    let database = database();
    let executor = Executor::new(database.store.clone(), ExecutorOptions { workers: 1, ..Default::default() }).unwrap();
    let out = Shared::default();
    let trees = [(database.views[0].tree(), "rows".to_string())];
    let trace = Arc::new(MemoryTrace::new(Box::new(out.clone()), &trees).unwrap());
    executor.set_memory_trace(Some(trace.clone()));
    collect(executor.scan(scan(&database.views[0], None), ExecutionMode::OutOfOrder)).unwrap();
    collect(executor.scan(scan(&database.views[1], None), ExecutionMode::InOrder)).unwrap();
    executor.set_memory_trace(None);
    collect(executor.scan(scan(&database.views[0], None), ExecutionMode::OutOfOrder)).unwrap();
    let accesses = trace.finish().unwrap();
    assert!(trace.finish().is_err());
    let bytes = out.0.lock().unwrap().clone();
    let reader = TraceReader::new(&bytes[..]).unwrap();
    assert_eq!(reader.header().objects, ["other", "rows"]);
    let recorded: Vec<_> = reader.collect::<Result<_, _>>().unwrap();
    assert_eq!(recorded.len() as u64, accesses);
    assert!(recorded.iter().all(|access| access.class == 3 && access.address % 64 == 0), "the queries have no class");
    let of = |object: u16| recorded.iter().filter(|access| access.object == object).count();
    assert!(of(1) > 10 * of(0) && of(0) > 0, "{} {}", of(1), of(0));
    // A full disk is reported at the end of the trace; queries are not affected.
    let trace = Arc::new(MemoryTrace::new(Box::new(Full), &trees).unwrap());
    executor.set_memory_trace(Some(trace.clone()));
    for _ in 0..30 {
        collect(executor.scan(scan(&database.views[0], None), ExecutionMode::OutOfOrder)).unwrap();
    }
    assert_eq!(trace.finish().unwrap_err().kind(), std::io::ErrorKind::StorageFull);
}

//! The pool of workers, and the streams of rows that it produces.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use futures::Stream;
use keyaki_store::Store;
use parking_lot::Mutex;

use crate::operators::join::{Execution, Plan, run_in_order};
use crate::operators::scan::{PolledScan, ScanPlan};
use crate::query::Query;
use crate::query::flow::Flow;
use crate::query::in_order::InOrder;
use crate::runtime::{self, Runtime};
use crate::source::{SequentialPages, TaskPages};
use crate::{CacheUse, Error, ExecutionMode, MemoryTrace, Pipeline, Result, Scan, Stats};

/// Bytes of output that an in-order scan may be ahead of its consumer, about.
const SCAN_OUTPUT_BYTES: usize = 8 << 20;
/// Bytes in the file of a row, about, where few are asked for.
const ROW_BYTES: usize = 32;

#[derive(Debug, Clone)]
pub struct ExecutorOptions {
    /// Worker threads; 0: one per core.
    pub workers: usize,
    /// Reads in flight per worker at the most.
    pub queue_depth: usize,
    /// Lookups in progress per worker and pipeline at the most (the credits of a pipeline).
    pub tasks_in_flight: usize,
    /// Neighbouring pages become one read if the gap between them is at most this long …
    pub coalesce_gap_bytes: usize,
    /// … and the read at most this long.
    pub coalesce_max_bytes: usize,
    /// How far a scan reads ahead.
    pub read_ahead_bytes: usize,
}

impl Default for ExecutorOptions {
    fn default() -> Self {
        ExecutorOptions {
            workers: 0,
            queue_depth: 256,
            tasks_in_flight: 2048,
            coalesce_gap_bytes: 0,
            coalesce_max_bytes: 256 << 10,
            read_ahead_bytes: 4 << 20,
        }
    }
}

/// Worker threads with a device queue each. `Clone` shares them; they end with the last handle (streams of rows count).
#[derive(Debug, Clone)]
pub struct Executor {
    pool: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    runtime: Arc<Runtime>,
    workers: Vec<JoinHandle<()>>,
    /// Threads of in-order queries.
    in_order: Mutex<Vec<JoinHandle<()>>>,
}

impl Executor {
    /// Starts the workers.
    ///
    /// # Errors
    /// If the device gives no queues or the system no threads.
    pub fn new(store: Store, mut options: ExecutorOptions) -> Result<Executor> {
        if options.workers == 0 {
            options.workers = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        }
        options.queue_depth = options.queue_depth.max(1);
        let (runtime, workers) = runtime::start(store, options)?;
        Ok(Executor { pool: Arc::new(Pool { runtime, workers, in_order: Mutex::default() }) })
    }

    /// Starts a pipeline. Rows come in no particular order (in order of the driver in [`crate::ExecutionMode::InOrder`]). A
    /// pipeline that does not fit its trees gives an error as its first item.
    pub fn pipeline(&self, pipeline: Pipeline) -> Rows {
        self.pipeline_as(pipeline, None)
    }

    /// As `pipeline`, as work of a class.
    pub fn pipeline_as(&self, pipeline: Pipeline, cache: Option<CacheUse>) -> Rows {
        let plan = match Plan::new(&pipeline) {
            Ok(plan) => plan,
            Err(error) => return self.failed(error),
        };
        let runtime = &self.pool.runtime;
        let stats = Stats::start(runtime.store.device(), plan.levels.len());
        let query = Arc::new(Query::new(stats.clone(), plan.views(), cache).traced(runtime.trace()));
        let schema = plan.schema().clone();
        match pipeline.mode {
            ExecutionMode::OutOfOrder => {
                let execution = Execution::start(plan, query, runtime, pipeline.memory_bytes);
                self.rows(schema, stats, Source::Pipeline(execution))
            }
            ExecutionMode::InOrder => {
                let flow = Flow::new(plan.last(), pipeline.memory_bytes);
                let run = Arc::new(InOrder::new(query, &schema, plan.batch_rows, flow));
                self.in_order(schema, stats, run, move |run, store| run_in_order(&plan, run, store))
            }
        }
    }

    /// Starts a scan; rows come in key order. I/O runs on the workers, decoding where the stream is polled (in
    /// [`crate::ExecutionMode::InOrder`] both run on a thread of their own).
    pub fn scan(&self, scan: Scan, mode: ExecutionMode) -> Rows {
        self.scan_as(scan, mode, None)
    }

    /// As `scan`, as work of a class.
    pub fn scan_as(&self, scan: Scan, mode: ExecutionMode, cache: Option<CacheUse>) -> Rows {
        let runtime = &self.pool.runtime;
        let stats = Stats::start(runtime.store.device(), 1);
        let query = Arc::new(Query::new(stats.clone(), vec![scan.view.clone()], cache).traced(runtime.trace()));
        // Few rows need few pages.
        let few = scan.limit.filter(|_| scan.filter.is_none()).map_or(usize::MAX, |rows| rows as usize);
        let read_ahead_bytes = runtime.options.read_ahead_bytes.min(few.saturating_mul(ROW_BYTES));
        let plan = match ScanPlan::new(scan) {
            Ok(plan) => plan,
            Err(error) => return self.failed(error),
        };
        let schema = plan.schema().clone();
        match mode {
            ExecutionMode::OutOfOrder => {
                let source = TaskPages::new(runtime.clone(), query.clone(), read_ahead_bytes);
                self.rows(schema, stats, Source::Scan(PolledScan::new(plan, query, source)))
            }
            ExecutionMode::InOrder => {
                let flow = Flow::new(0, SCAN_OUTPUT_BYTES);
                let run = Arc::new(InOrder::new(query, &schema, plan.batch_rows(), flow));
                self.in_order(schema, stats, run, move |run, store| {
                    let source = SequentialPages::new(store.clone(), run.query.clone());
                    keyaki_store::block_on(plan.run(&run.query, &source, run))
                })
            }
        }
    }

    /// Records which memory all queries touch from now on; `None`: no longer.
    pub fn set_memory_trace(&self, trace: Option<Arc<MemoryTrace>>) {
        self.pool.runtime.set_trace(trace);
    }

    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        &self.pool.runtime
    }

    pub fn options(&self) -> &ExecutorOptions {
        &self.pool.runtime.options
    }

    /// Tasks of all queries that have not ended. After the last stream of rows has been dropped, this goes to zero within
    /// the time of the reads in flight.
    pub fn task_count(&self) -> usize {
        self.pool.runtime.task_count()
    }

    fn rows(&self, schema: SchemaRef, stats: Stats, source: Source) -> Rows {
        Rows { schema, stats, source, _pool: self.pool.clone() }
    }

    fn failed(&self, error: Error) -> Rows {
        self.rows(Arc::new(Schema::empty()), Stats::default(), Source::Failed(Some(error)))
    }

    /// Does the work of an in-order query on a thread of its own.
    fn in_order(
        &self,
        schema: SchemaRef,
        stats: Stats,
        run: Arc<InOrder>,
        work: impl FnOnce(&InOrder, &Store) -> Result<()> + Send + 'static,
    ) -> Rows {
        let (store, thread_run) = (self.pool.runtime.store.clone(), run.clone());
        let body = move || thread_run.run(|| work(&thread_run, &store));
        let rows = self.rows(schema, stats, Source::InOrder(run));
        match std::thread::Builder::new().name("keyaki-in-order".into()).spawn(body) {
            Ok(thread) => {
                let mut threads = self.pool.in_order.lock();
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
                rows
            }
            Err(error) => self.failed(runtime::no_thread("keyaki-in-order", error)),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.runtime.close(std::mem::take(&mut self.workers));
        for thread in self.in_order.get_mut().drain(..) {
            // Its stream has been dropped, so it is about to end. (It may itself drop the last handle.)
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("the thread of an in-order query panicked");
            }
        }
    }
}

/// The output of a pipeline or scan. Dropping it cancels what is still running.
#[derive(Debug)]
pub struct Rows {
    schema: SchemaRef,
    stats: Stats,
    source: Source,
    _pool: Arc<Pool>,
}

enum Source {
    Pipeline(Arc<Execution>),
    Scan(PolledScan),
    InOrder(Arc<InOrder>),
    Failed(Option<Error>),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Pipeline(execution) => execution.fmt(f),
            Source::Scan(_) => f.write_str("Scan"),
            Source::InOrder(run) => run.fmt(f),
            Source::Failed(error) => f.debug_tuple("Failed").field(error).finish(),
        }
    }
}

impl Rows {
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub fn stats(&self) -> &Stats {
        &self.stats
    }
}

impl Stream for Rows {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut self.source {
            Source::Pipeline(execution) => execution.poll_next(context),
            Source::Scan(scan) => scan.poll_next(context),
            Source::InOrder(run) => run.poll_next(context),
            Source::Failed(error) => Poll::Ready(error.take().map(Err)),
        }
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        match &mut self.source {
            Source::Pipeline(execution) => execution.stop(Error::Cancelled),
            Source::Scan(scan) => scan.stop(),
            Source::InOrder(run) => run.stop(Error::Cancelled),
            Source::Failed(_) => {}
        }
    }
}

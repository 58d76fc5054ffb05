//! The pool of workers, and the start of queries on it.

use std::sync::Arc;
use std::thread::JoinHandle;

use arrow_schema::{Schema, SchemaRef};
use keyaki_primitives::sync::{self, Mutex};
use keyaki_store::{Store, TreeView};

use super::rows::{RowProducer, Rows};
use crate::base::{Error, ExecutionMode, ExecutorOptions, Pipeline, Result, Scan};
use crate::operators::{PipelineExecution, PipelinePlan, PolledScan, ScanPlan, run_in_order};
use crate::query::{CacheUse, Flow, InOrderQuery, MemoryTrace, Query, Stats};
use crate::runtime::{self, Runtime};
use crate::source::{BlockingTaskPages, TaskPages, Touched, touch_tree};

/// Bytes of output that an in-order scan holds before it waits for its consumer.
const IN_ORDER_SCAN_OUTPUT_BYTES: usize = 8 << 20;
/// Assumed length of a row in the data file, for the read-ahead of scans with a limit.
const ROW_BYTES: usize = 32;
/// Name of the threads of in-order queries.
const IN_ORDER_THREAD: &str = "keyaki-in-order";

/// Worker threads, each with a device queue, that run scans and pipelines.
///
/// Clones share the workers. The workers end when the last handle is dropped; streams of rows count as handles.
#[derive(Debug, Clone)]
pub struct Executor {
    pool: Arc<Pool>,
}

#[derive(Debug)]
pub(super) struct Pool {
    runtime: Arc<Runtime>,
    workers: Vec<sync::thread::JoinHandle<()>>,
    /// Threads of in-order queries.
    in_order: Mutex<Vec<JoinHandle<()>>>,
}

impl Executor {
    /// Starts the workers.
    ///
    /// # Errors
    /// If the device refuses a queue, or the operating system a thread.
    pub fn new(store: Store, mut options: ExecutorOptions) -> Result<Executor> {
        if options.workers == 0 {
            options.workers = std::thread::available_parallelism().map_or(1, |processors| processors.get());
        }
        options.queue_depth = options.queue_depth.max(1);
        let (runtime, workers) = runtime::start(store, options)?;
        Ok(Executor { pool: Arc::new(Pool { runtime, workers, in_order: Mutex::default() }) })
    }

    /// Starts a pipeline. Out of order, rows come in no particular order; in order, in that of the driver. If the pipeline
    /// does not fit its trees, the first item of the stream is an error. With [`Driver::Pushed`](crate::Driver::Pushed), the
    /// caller pushes the rows of the driver to the stream.
    pub fn pipeline(&self, pipeline: Pipeline) -> Rows {
        self.pipeline_as(pipeline, None)
    }

    /// Starts a pipeline as work of a class for the governor of the CPU caches.
    pub fn pipeline_as(&self, pipeline: Pipeline, cache: Option<CacheUse>) -> Rows {
        let plan = match PipelinePlan::new(&pipeline) {
            Ok(plan) => plan,
            Err(error) => return self.failed(error),
        };
        let runtime = &self.pool.runtime;
        let stats = Stats::start(runtime.store.device(), plan.levels.len());
        let query = Arc::new(Query::new(stats.clone(), plan.views(), cache).traced(runtime.trace()));
        let schema = plan.schema().clone();
        let pushed = plan.driver.is_none().then(|| plan.levels[0].schema.clone());
        let mut rows = match pipeline.mode {
            ExecutionMode::OutOfOrder => {
                let execution = PipelineExecution::start(plan, query, runtime, pipeline.memory_bytes);
                self.rows(schema, stats, RowProducer::Pipeline(execution))
            }
            ExecutionMode::InOrder => {
                let flow = Flow::new(plan.last(), pipeline.memory_bytes);
                let run = InOrderQuery::new(query, &schema, plan.batch_rows, flow);
                let run = Arc::new(if plan.driver.is_none() { run.with_pushed_rows() } else { run });
                self.in_order(schema, stats, run, move |run, store| run_in_order(&plan, run, store))
            }
        };
        rows.pushed = pushed;
        rows
    }

    /// Starts a scan. Rows come in key order. Out of order, reads run on the workers and decoding on the thread that polls
    /// the stream; in order, both run on a thread of their own. If the tree lacks a column, the first item of the stream
    /// is an error.
    pub fn scan(&self, scan: Scan, mode: ExecutionMode) -> Rows {
        self.scan_as(scan, mode, None)
    }

    /// Starts a scan as work of a class for the governor of the CPU caches.
    pub fn scan_as(&self, scan: Scan, mode: ExecutionMode, cache: Option<CacheUse>) -> Rows {
        let runtime = &self.pool.runtime;
        let stats = Stats::start(runtime.store.device(), 1);
        let query = Arc::new(Query::new(stats.clone(), vec![scan.view.clone()], cache).traced(runtime.trace()));
        // A small limit needs few pages. With a filter, the number of rows to read is unknown.
        let rows_max = scan.limit.filter(|_| scan.filters.is_empty()).map_or(usize::MAX, |rows| rows as usize);
        let read_ahead_bytes = runtime.options.read_ahead_bytes.min(rows_max.saturating_mul(ROW_BYTES));
        let plan = match ScanPlan::new(scan) {
            Ok(plan) => plan,
            Err(error) => return self.failed(error),
        };
        let schema = plan.schema().clone();
        match mode {
            ExecutionMode::OutOfOrder => {
                let source = TaskPages::new(runtime.clone(), query.clone(), read_ahead_bytes);
                let source = source.with_projection(plan.projection());
                self.rows(schema, stats, RowProducer::Scan(PolledScan::new(plan, query, source)))
            }
            ExecutionMode::InOrder => {
                let flow = Flow::new(0, IN_ORDER_SCAN_OUTPUT_BYTES);
                let run = Arc::new(InOrderQuery::new(query, &schema, plan.batch_rows(), flow));
                self.in_order(schema, stats, run, move |run, store| {
                    let source = BlockingTaskPages::new(store.clone(), run.query.clone());
                    keyaki_store::block_on(plan.run(&run.query, &source, run))
                })
            }
        }
    }

    /// Reads and touches every page and row of a tree, so that the tree is in the page cache and, as far as it fits, in the
    /// CPU caches. Keeps the first pages, up to `keep_bytes` bytes. `go_on` is called once per chunk of rows.
    ///
    /// # Errors
    /// Those of reading; [`Error::Cancelled`] if `go_on` returns false.
    pub async fn touch(&self, view: &TreeView, keep_bytes: u64, go_on: impl Fn() -> bool) -> Result<Touched> {
        touch_tree(&self.pool.runtime, view, keep_bytes, go_on).await
    }

    /// Traces the memory accesses of all queries started from now on; `None` ends tracing.
    pub fn set_memory_trace(&self, trace: Option<Arc<MemoryTrace>>) {
        self.pool.runtime.set_trace(trace);
    }

    /// The options in effect: `workers` and `queue_depth` are at least 1.
    pub fn options(&self) -> &ExecutorOptions {
        &self.pool.runtime.options
    }

    /// Fibers of all pipelines that have not ended. After the last stream of rows is dropped, the count becomes zero as soon
    /// as the reads in flight have completed.
    pub fn fiber_count(&self) -> usize {
        self.pool.runtime.fiber_count()
    }

    fn rows(&self, schema: SchemaRef, stats: Stats, producer: RowProducer) -> Rows {
        Rows { schema, stats, producer, pushed: None, _pool: self.pool.clone() }
    }

    fn failed(&self, error: Error) -> Rows {
        self.rows(Arc::new(Schema::empty()), Stats::default(), RowProducer::Failed(Some(error)))
    }

    /// Does the work of an in-order query on a thread of its own.
    fn in_order(
        &self,
        schema: SchemaRef,
        stats: Stats,
        run: Arc<InOrderQuery>,
        work: impl FnOnce(&InOrderQuery, &Store) -> Result<()> + Send + 'static,
    ) -> Rows {
        let (store, thread_run) = (self.pool.runtime.store.clone(), run.clone());
        let body = move || thread_run.run(|| work(&thread_run, &store));
        let rows = self.rows(schema, stats, RowProducer::InOrder(run));
        match std::thread::Builder::new().name(IN_ORDER_THREAD.into()).spawn(body) {
            Ok(thread) => {
                let mut threads = self.pool.in_order.lock();
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
                rows
            }
            Err(error) => self.failed(Error::start_thread(IN_ORDER_THREAD, error)),
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.runtime.close(std::mem::take(&mut self.workers));
        for thread in self.in_order.get_mut().drain(..) {
            // All streams are dropped, so the thread is about to end. It may itself drop the last handle.
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("thread \"{IN_ORDER_THREAD}\" panicked");
            }
        }
    }
}

//! A pipeline that runs out of order.
//!
//! Invariants, asserted at each decrement (counts are not reduced for work discarded when the query is stopped, so they
//! are upper bounds from then on):
//! - `waiting` is the number of tasks in the queue; `unfinished` adds the tasks that run.
//! - `units` is `unfinished` plus the number of non-empty buffers. A flushed buffer counts until its rows have become tasks
//!   or output, so `units` reaches zero once, at the end.
//! - `parked_count` is at least the number of parked fibers.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};

use arrow_array::RecordBatch;
use futures::future::poll_fn;
use keyaki_primitives::sync::Mutex;
use keyaki_store::KeyRange;

use super::fiber::{Fiber, yield_if_due};
use super::outer_batch::{LookupSharing, OuterBatch};
use super::plan::PipelinePlan;
use super::row_buffer::{BufferContents, RowBuffer};
use super::task_queue::{Task, TaskQueue};
use super::tasks::{RowSink, append_single, look_up, read_driver};
use crate::base::{Error, Result, panicked};
use crate::query::{Flow, Output, Query, Stats};
use crate::runtime::{BuffersRows, Fallible, Runtime, Urgency};
use crate::source::TaskPages;

/// Each range of the driver is split into up to this many parts per worker, which are read at the same time.
const DRIVER_PARTS_PER_WORKER: usize = 4;
/// Rows of the first output batch; each further one is twice as large, up to the full size.
const FIRST_OUTPUT_ROWS: usize = 64;
/// Longest time that output rows are held back for a larger batch while their worker has time to flush them.
const OUTPUT_HOLD_NS: u64 = 1_000_000;

/// A pipeline under way on the workers.
pub(crate) struct PipelineExecution {
    plan: PipelinePlan,
    query: Arc<Query>,
    runtime: Arc<Runtime>,
    output: Output,
    flow: Arc<Flow>,
    /// By worker and level. The last ones belong to the thread that starts the pipeline and pushes rows.
    buffers: Vec<Vec<Mutex<RowBuffer>>>,
    tasks: Mutex<TaskQueue>,
    /// Fibers that may exist at one time, not counting parked ones.
    credits: usize,
    /// Tasks in the queue.
    waiting: AtomicUsize,
    /// Lookups of the first step in the queue.
    waiting_first: AtomicUsize,
    /// Tasks in the queue or running.
    unfinished: AtomicUsize,
    /// Units of work: `unfinished` and non-empty buffers.
    units: AtomicUsize,
    /// Rows are pushed, and their end has not been announced. Counts as a unit.
    is_pushed_to: AtomicBool,
    /// Fibers that wait for room, with their levels, and the pusher of rows, which waits for room on level 0.
    parked: Mutex<Vec<(usize, Waker)>>,
    parked_count: AtomicUsize,
    /// Rows that the next output batch should have.
    output_rows: AtomicUsize,
    /// Time of the last output batch, on the device's clock.
    output_at_ns: AtomicU64,
}

impl std::fmt::Debug for PipelineExecution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rows: Vec<Vec<_>> = self
            .buffers
            .iter()
            .map(|levels| levels.iter().map(|buffer| buffer.try_lock().map(|buffer| buffer.rows())).collect())
            .collect();
        f.debug_struct("PipelineExecution")
            .field("flow", &self.flow)
            .field("tasks", &self.tasks)
            .field("waiting", &self.waiting)
            .field("unfinished", &self.unfinished)
            .field("units", &self.units)
            .field("parked", &self.parked)
            .field("buffered_rows", &rows)
            .finish_non_exhaustive()
    }
}

/// A fiber's credit, returned to the task queue while the fiber waits for room.
struct ParkedCredit<'a>(&'a Mutex<TaskQueue>);

impl<'a> ParkedCredit<'a> {
    fn new(tasks: &'a Mutex<TaskQueue>) -> Self {
        tasks.lock().park();
        ParkedCredit(tasks)
    }
}

impl Drop for ParkedCredit<'_> {
    fn drop(&mut self) {
        self.0.lock().unpark();
    }
}

impl PipelineExecution {
    /// Starts a pipeline on the workers.
    pub fn start(
        plan: PipelinePlan,
        query: Arc<Query>,
        runtime: &Arc<Runtime>,
        memory_bytes: usize,
    ) -> Arc<PipelineExecution> {
        let options = &runtime.options;
        let parts = options.workers * DRIVER_PARTS_PER_WORKER;
        let driver = plan.driver.iter().flat_map(|(view, ranges)| ranges.iter().map(move |range| (view, range)));
        let ranges: VecDeque<KeyRange> = driver.flat_map(|(view, range)| view.split(range, parts)).collect();
        let is_pushed_to = plan.driver.is_none();
        let range_count = ranges.len();
        let flow = Arc::new(Flow::new(plan.last(), memory_bytes));
        let buffer = |(level, plan)| Mutex::new(RowBuffer::new(plan, &flow, level));
        let execution = Arc::new(PipelineExecution {
            output: Output::new(plan.schema().clone(), plan.batch_rows, &flow),
            buffers: (0..=options.workers).map(|_| plan.levels.iter().enumerate().map(buffer).collect()).collect(),
            tasks: Mutex::new(TaskQueue::new(ranges, plan.steps.len())),
            credits: options.tasks_in_flight.max(1) * options.workers,
            waiting: AtomicUsize::new(range_count),
            waiting_first: AtomicUsize::new(0),
            unfinished: AtomicUsize::new(range_count),
            // One more for this function.
            units: AtomicUsize::new(range_count + 1 + usize::from(is_pushed_to)),
            is_pushed_to: AtomicBool::new(is_pushed_to),
            parked: Mutex::default(),
            parked_count: AtomicUsize::new(0),
            output_rows: AtomicUsize::new(FIRST_OUTPUT_ROWS.min(plan.batch_rows)),
            output_at_ns: AtomicU64::new(0),
            runtime: runtime.clone(),
            plan,
            query,
            flow,
        });
        let fallible: Arc<dyn Fallible> = execution.clone();
        runtime.register(Arc::downgrade(&fallible));
        execution.start_fibers();
        execution.unit_ended();
        execution
    }

    /// The next batch, for the consumer.
    pub fn poll_next(self: &Arc<Self>, context: &mut Context<'_>) -> Poll<Option<Result<RecordBatch>>> {
        let taken = ready!(self.output.poll_take(context));
        Poll::Ready(taken.map(|taken| {
            let taken = taken?;
            if taken.was_full {
                self.start_fibers();
            }
            Ok(taken.batch)
        }))
    }

    /// Resolves when rows may be pushed. To be polled by one thread at a time. A query that is stopped takes rows, and drops
    /// them.
    pub fn poll_push(&self, context: &mut Context<'_>) -> Poll<()> {
        self.poll_room(0, context).map(|_| ())
    }

    /// Adds rows of the driver's schema.
    pub fn push(self: &Arc<Self>, batch: RecordBatch) -> Result<()> {
        assert!(self.is_pushed_to.load(Ordering::SeqCst), "rows are pushed after their end");
        if self.query.is_stopped() || batch.num_rows() == 0 {
            return Ok(());
        }
        self.query.stats.rows(0, batch.num_rows());
        match self.add_lookups(0, batch) {
            // The output has the error that stopped the query.
            Err(_) if self.query.is_stopped() => return Ok(()),
            added => added?,
        }
        // Rows without a key may have gone to the next level.
        let own = self.buffers.len() - 1;
        self.flush_workers(own..own + 1, Urgency::Starved);
        self.start_fibers();
        Ok(())
    }

    /// No more rows will be pushed.
    pub fn end_push(self: &Arc<Self>) {
        if self.is_pushed_to.swap(false, Ordering::SeqCst) && !self.query.is_stopped() {
            self.unit_ended();
        }
    }

    /// Stops the query; running tasks end at their next check.
    pub fn stop(&self, reason: Error) {
        self.output.end(Err(reason));
        if !self.query.stop() {
            return;
        }
        let discarded = self.tasks.lock().clear();
        drop(discarded);
        for (level, buffer) in self.buffers.iter().flat_map(|levels| levels.iter().enumerate()) {
            let contents = buffer.lock().take(&self.flow, level);
            drop(contents);
        }
        let parked = std::mem::take(&mut *self.parked.lock());
        parked.into_iter().for_each(|(_, waker)| waker.wake());
    }

    // Tasks and fibers.

    /// True if work that adds rows to `level` may start or continue.
    fn may_run(&self, level: usize) -> bool {
        // The driver does not run far ahead of the lookups that its rows start.
        self.flow.has_room(level) && (level > 0 || self.waiting_first.load(Ordering::SeqCst) < 2 * self.credits)
    }

    /// The next task for a fiber, and its read-ahead in bytes; `None` if the fiber is to end.
    pub fn next_task(&self) -> Option<(Task, usize)> {
        let mut tasks = self.tasks.lock();
        if let Some(task) = tasks.pop(|level| self.may_run(level)) {
            let before = self.waiting.fetch_sub(1, Ordering::SeqCst);
            assert!(before > 0, "a task was queued that is not counted");
            self.waiting_first.store(tasks.waiting_first(), Ordering::SeqCst);
            let share = self.runtime.options.read_ahead_bytes / tasks.fibers().max(1);
            return Some((task, share));
        }
        tasks.end_fiber();
        None
    }

    /// Runs a task, reading ahead at most `read_ahead_bytes` bytes.
    pub async fn run(self: &Arc<Self>, task: Task, read_ahead_bytes: usize) -> Result<()> {
        let level = task.level();
        let source = TaskPages::new(self.runtime.clone(), self.query.clone(), read_ahead_bytes);
        let source = source.with_projection(self.plan.levels[level].projection.clone());
        match task {
            Task::DriverRange(range) => {
                let Some((view, _)) = &self.plan.driver else { return Ok(()) };
                read_driver(&self.plan, view, &source, range, self).await
            }
            Task::Lookup(step, lookup) => look_up(&self.plan, step, &source, &lookup, self).await,
        }
    }

    /// Accounts for the end of a task; an error stops the query.
    pub fn task_ended(self: &Arc<Self>, result: Result<()>) {
        if let Err(error) = result {
            self.stop(error);
            return;
        }
        let before = self.unfinished.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a task ended that is not counted");
        if before == 1 {
            // No task can add to the buffers any more.
            self.flush_workers(0..self.buffers.len(), Urgency::Starved);
        }
        self.unit_ended();
        self.wake_parked();
    }

    /// The calling fiber waits for a page or for room: another one may take its place.
    pub fn fiber_waits(self: &Arc<Self>) {
        self.tasks.lock().suspend();
        self.start_fibers();
    }

    /// The calling fiber continues after [`PipelineExecution::fiber_waits`].
    pub fn fiber_resumes(&self) {
        self.tasks.lock().resume();
    }

    /// The counters of the query.
    pub fn stats(&self) -> &Stats {
        &self.query.stats
    }

    /// Announces the query's class of work for the current worker.
    pub fn announce(&self) {
        self.runtime.announce(&self.query);
    }

    fn unit_ended(&self) {
        let before = self.units.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a unit of work ended that is not counted");
        if before == 1 {
            self.output.end(Ok(()));
            self.query.stats.end();
        }
    }

    /// Starts or wakes the fibers that can run. To be called after tasks were added or a level got room.
    fn start_fibers(self: &Arc<Self>) {
        self.wake_parked();
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let count = {
            let mut tasks = self.tasks.lock();
            tasks.start_fibers(self.runtime.options.workers, self.credits, |level| self.may_run(level))
        };
        for _ in 0..count {
            self.runtime.spawn(Fiber::new(self.clone()));
        }
    }

    /// Wakes the fibers parked for levels that have room.
    fn wake_parked(&self) {
        if self.parked_count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut woken = Vec::new();
        self.parked.lock().retain(|(level, waker)| {
            let stays = !self.may_run(*level);
            if !stays {
                woken.push(waker.clone());
            }
            stays
        });
        let before = self.parked_count.fetch_sub(woken.len(), Ordering::SeqCst);
        assert!(before >= woken.len(), "{} fibers were parked, {before} are counted", woken.len());
        woken.into_iter().for_each(Waker::wake);
    }

    /// Parks the caller until a level has room. It registers first and checks again second; a thread that makes room does
    /// the reverse, so no wake-up is lost.
    fn poll_room(&self, level: usize, context: &mut Context<'_>) -> Poll<Result<()>> {
        if !self.query.is_stopped() && !self.may_run(level) {
            let mut parked = self.parked.lock();
            // The pusher may register again before it is woken.
            let is_parked = |(at, waker): &(usize, Waker)| *at == level && waker.will_wake(context.waker());
            if self.plan.driver.is_some() || !parked.iter().any(is_parked) {
                parked.push((level, context.waker().clone()));
                self.parked_count.fetch_add(1, Ordering::SeqCst);
            }
        }
        if self.query.is_stopped() {
            Poll::Ready(Err(Error::Cancelled))
        } else if self.may_run(level) {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    // Rows.

    /// Turns rows of a level into output or lookups of the next step.
    fn process_rows(self: &Arc<Self>, level: usize, contents: BufferContents) -> Result<()> {
        let batch = contents.finish(&self.plan.levels[level])?;
        self.query.stats.rows(level, batch.num_rows());
        if batch.num_rows() > 0 {
            if level == self.plan.last() {
                self.emit(batch);
            } else {
                self.add_lookups(level, batch)?;
            }
        }
        self.start_fibers();
        Ok(())
    }

    fn emit(&self, batch: RecordBatch) {
        let rows = self.output_rows.load(Ordering::Relaxed);
        self.output_rows.store((rows * 2).min(self.plan.batch_rows), Ordering::Relaxed);
        self.output_at_ns.store(self.runtime.store.device().now_ns(), Ordering::Relaxed);
        self.output.push(batch);
    }

    fn add_lookups(self: &Arc<Self>, step: usize, batch: RecordBatch) -> Result<()> {
        let (outer, keyless) = OuterBatch::new(&self.plan.steps[step], batch, LookupSharing::ByKey, &self.flow, step)?;
        let outer = Arc::new(outer);
        if self.plan.levels[step + 1].join.keeps_unmatched() {
            append_single(self, step + 1, &outer, &keyless)?;
        }
        let count = outer.lookups();
        if count > 0 {
            self.units.fetch_add(count, Ordering::SeqCst);
            self.unfinished.fetch_add(count, Ordering::SeqCst);
            let mut tasks = self.tasks.lock();
            tasks.push(step, outer);
            self.waiting.fetch_add(count, Ordering::SeqCst);
            self.waiting_first.store(tasks.waiting_first(), Ordering::SeqCst);
        }
        Ok(())
    }

    /// True if a worker in the given state should flush its `rows` rows of a level.
    fn is_due(&self, level: usize, rows: usize, urgency: Urgency) -> bool {
        match urgency {
            Urgency::Starved => true,
            _ if level == self.plan.last() => {
                rows >= self.output_rows.load(Ordering::Relaxed)
                    || self.runtime.store.device().now_ns()
                        >= self.output_at_ns.load(Ordering::Relaxed) + OUTPUT_HOLD_NS
            }
            Urgency::Idle => true,
            Urgency::Saturated => self.waiting.load(Ordering::SeqCst) == 0,
        }
    }

    /// Flushes one worker's rows of a level, if they are due. Returns true if rows remain.
    fn flush_buffer(self: &Arc<Self>, worker: usize, level: usize, urgency: Urgency) -> Result<bool> {
        let mut buffer = self.buffers[worker][level].lock();
        if buffer.is_empty() {
            return Ok(false);
        }
        if !self.is_due(level, buffer.rows(), urgency) {
            return Ok(true);
        }
        let contents = buffer.take(&self.flow, level);
        drop(buffer);
        self.process_rows(level, contents)?;
        self.unit_ended();
        Ok(false)
    }

    /// Flushes the rows of several workers. Returns true if rows remain. Errors and panics stop the query.
    fn flush_workers(self: &Arc<Self>, workers: Range<usize>, urgency: Urgency) -> bool {
        let flush = || {
            let mut remain = false;
            // In ascending order of levels, because rows without a key go straight to the next level.
            for level in 0..=self.plan.last() {
                for worker in workers.clone() {
                    remain |= self.flush_buffer(worker, level, urgency)?;
                }
            }
            Ok(remain)
        };
        match std::panic::catch_unwind(AssertUnwindSafe(flush)).unwrap_or_else(|payload| Err(panicked(payload))) {
            Ok(remain) => remain,
            Err(error) => {
                self.stop(error);
                false
            }
        }
    }
}

impl RowSink for Arc<PipelineExecution> {
    fn append<T>(&self, level: usize, add: impl FnOnce(&mut RowBuffer) -> Result<T>) -> Result<T> {
        if self.query.is_stopped() {
            return Err(Error::Cancelled);
        }
        let worker = self.runtime.worker();
        let mut buffer = self.buffers[worker.unwrap_or(self.buffers.len() - 1)][level].lock();
        let was_empty = buffer.is_empty();
        let added = add(&mut buffer)?;
        if was_empty && !buffer.is_empty() {
            self.units.fetch_add(1, Ordering::SeqCst);
            if worker.is_some() {
                self.runtime.flush_later(self.clone());
            }
        }
        if buffer.rows() >= self.plan.levels[level].flush_rows {
            let contents = buffer.take(&self.flow, level);
            drop(buffer);
            self.process_rows(level, contents)?;
            self.unit_ended();
        }
        Ok(added)
    }

    fn query(&self) -> &Query {
        &self.query
    }

    async fn room(&self, level: usize) -> Result<()> {
        yield_if_due().await;
        if !self.may_run(level) {
            // The credit goes to a fiber that can make room.
            let _parked = ParkedCredit::new(&self.tasks);
            poll_fn(|context| self.poll_room(level, context)).await?;
        }
        Ok(())
    }
}

impl BuffersRows for PipelineExecution {
    fn flush(self: Arc<Self>, worker: usize, urgency: Urgency) -> bool {
        if self.query.is_stopped() {
            return false;
        }
        let is_last = self.unfinished.load(Ordering::SeqCst) == 0;
        self.flush_workers(worker..worker + 1, if is_last { Urgency::Starved } else { urgency })
    }
}

impl Fallible for PipelineExecution {
    fn fail(&self, error: Error) {
        self.stop(error);
    }
}

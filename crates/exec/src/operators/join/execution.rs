//! A pipeline that runs out of order.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};

use arrow_array::RecordBatch;
use futures::future::poll_fn;
use keyaki_store::KeyRange;
use parking_lot::Mutex;

use super::buffer::{Buffer, Collected};
use super::fiber::{Fiber, share_the_worker};
use super::jobs::{Job, Jobs};
use super::lookup::{Sink, append_lone, drive, look_up};
use super::outer::{Lookups, Outer};
use super::plan::Plan;
use crate::base::error::panicked;
use crate::query::Query;
use crate::query::flow::Flow;
use crate::query::output::Output;
use crate::runtime::{Buffered, Fallible, Runtime, Urgency};
use crate::source::TaskPages;
use crate::{Error, Join, Result};

/// The driver is divided into up to so many ranges a worker, which are read at the same time.
const DRIVER_PARTS_PER_WORKER: usize = 4;
/// Rows of the first output; later ones are larger.
const FIRST_OUTPUT_ROWS: usize = 64;
/// Longest time that finished rows wait for more while their worker has time to flush them.
const HOLD_NS: u64 = 1_000_000;

pub(crate) struct Execution {
    plan: Plan,
    query: Arc<Query>,
    runtime: Arc<Runtime>,
    output: Output,
    flow: Arc<Flow>,
    /// By worker and level.
    buffers: Vec<Vec<Mutex<Buffer>>>,
    jobs: Mutex<Jobs>,
    /// Fibers that may exist at one time, not counting those that wait for room.
    credits: usize,
    /// Jobs waiting.
    waiting: AtomicUsize,
    /// Lookups of the first step that wait.
    waiting_first: AtomicUsize,
    /// Jobs waiting or running.
    unfinished: AtomicUsize,
    /// `unfinished`, and non-empty buffers (emptied ones until their rows have become jobs or output).
    units: AtomicUsize,
    /// Fibers that wait until a level has room.
    parked: Mutex<Vec<(usize, Waker)>>,
    parked_count: AtomicUsize,
    /// Rows that the next output should have.
    output_rows: AtomicUsize,
    /// When the last output was made, device clock.
    output_at_ns: AtomicU64,
}

impl std::fmt::Debug for Execution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rows: Vec<Vec<_>> = self
            .buffers
            .iter()
            .map(|levels| levels.iter().map(|buffer| buffer.try_lock().map(|buffer| buffer.rows())).collect())
            .collect();
        f.debug_struct("Execution")
            .field("flow", &self.flow)
            .field("jobs", &self.jobs)
            .field("waiting", &self.waiting)
            .field("unfinished", &self.unfinished)
            .field("units", &self.units)
            .field("parked", &self.parked)
            .field("buffered_rows", &rows)
            .finish_non_exhaustive()
    }
}

impl Execution {
    /// Starts a pipeline on the workers.
    pub fn start(plan: Plan, query: Arc<Query>, runtime: &Arc<Runtime>, memory_bytes: usize) -> Arc<Execution> {
        let options = &runtime.options;
        let parts = options.workers * DRIVER_PARTS_PER_WORKER;
        let view = &plan.levels[0].view;
        let ranges: VecDeque<KeyRange> = plan.ranges.iter().flat_map(|range| view.split(range, parts)).collect();
        let range_count = ranges.len();
        let flow = Arc::new(Flow::new(plan.last(), memory_bytes));
        let buffer = |(level, plan)| Mutex::new(Buffer::new(plan, &flow, level));
        let execution = Arc::new(Execution {
            output: Output::new(plan.schema().clone(), plan.batch_rows),
            buffers: (0..options.workers).map(|_| plan.levels.iter().enumerate().map(buffer).collect()).collect(),
            jobs: Mutex::new(Jobs::new(ranges, plan.steps.len())),
            credits: options.tasks_in_flight.max(1) * options.workers,
            waiting: AtomicUsize::new(range_count),
            waiting_first: AtomicUsize::new(0),
            unfinished: AtomicUsize::new(range_count),
            units: AtomicUsize::new(range_count + 1),
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
        execution.pump();
        execution.unit_ends();
        execution
    }

    /// The next batch, for the consumer.
    pub fn poll_next(self: &Arc<Self>, context: &mut Context<'_>) -> Poll<Option<Result<RecordBatch>>> {
        let taken = ready!(self.output.poll_take(context));
        Poll::Ready(taken.map(|taken| {
            let (batch, bytes) = taken?;
            if self.flow.subtract(self.plan.last(), bytes) {
                self.pump();
            }
            Ok(batch)
        }))
    }

    /// Stops the query; what is running ends at its next step.
    pub fn stop(&self, reason: Error) {
        self.output.end(Err(reason));
        if !self.query.stop() {
            return;
        }
        let jobs = std::mem::replace(&mut *self.jobs.lock(), Jobs::new(VecDeque::new(), self.plan.steps.len()));
        drop(jobs);
        for (level, buffer) in self.buffers.iter().flat_map(|levels| levels.iter().enumerate()) {
            let collected = buffer.lock().take(&self.flow, level);
            drop(collected);
        }
        let parked = std::mem::take(&mut *self.parked.lock());
        parked.into_iter().for_each(|(_, waker)| waker.wake());
    }

    // Jobs and fibers.

    /// Whether something that adds rows to `level` may be started or go on.
    fn may_run(&self, level: usize) -> bool {
        // The driver should not run far ahead of the lookups that its rows ask for.
        self.flow.has_room(level) && (level > 0 || self.waiting_first.load(Ordering::SeqCst) < 2 * self.credits)
    }

    /// The next job for a fiber, and how far it may read ahead; `None` if the fiber is to end.
    pub fn next_job(&self) -> Option<(Job, usize)> {
        let mut jobs = self.jobs.lock();
        if let Some(job) = jobs.pop(|level| self.may_run(level)) {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            self.waiting_first.store(jobs.waiting_first(), Ordering::SeqCst);
            let share = self.runtime.options.read_ahead_bytes / jobs.fibers().max(1);
            return Some((job, share));
        }
        jobs.end_fiber();
        None
    }

    pub async fn run(self: &Arc<Self>, job: Job, read_ahead_bytes: usize) -> Result<()> {
        self.query.stats.tasks(1);
        let source = TaskPages::new(self.runtime.clone(), self.query.clone(), read_ahead_bytes);
        match job {
            Job::Range(range) => drive(&self.plan, &source, range, self).await,
            Job::Lookup(step, lookup) => look_up(&self.plan, step, &source, &lookup, self).await,
        }
    }

    pub fn job_ends(self: &Arc<Self>, result: Result<()>) {
        if let Err(error) = result {
            self.stop(error);
            return;
        }
        if self.unfinished.fetch_sub(1, Ordering::SeqCst) == 1 {
            // Nothing is left that could add to the buffers.
            self.flush_workers(0..self.buffers.len(), Urgency::Starved);
        }
        self.unit_ends();
        self.relieve();
    }

    pub fn fiber_waits(self: &Arc<Self>) {
        self.jobs.lock().suspend();
        self.pump();
    }

    /// Tells that the current worker works for this now.
    pub fn announce(&self) {
        self.runtime.announce(&self.query);
    }

    pub fn fiber_resumes(&self) {
        self.jobs.lock().resume();
    }

    fn unit_ends(&self) {
        if self.units.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.output.end(Ok(()));
            self.query.stats.end();
        }
    }

    /// Starts or wakes the fibers that can go on. To be called whenever jobs were added or room was made.
    fn pump(self: &Arc<Self>) {
        self.relieve();
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        let count = {
            let mut jobs = self.jobs.lock();
            jobs.start_fibers(self.runtime.options.workers, self.credits, |level| self.may_run(level))
        };
        for _ in 0..count {
            self.runtime.spawn(Fiber::new(self.clone()));
        }
    }

    /// Wakes the fibers that wait for room where there is some.
    fn relieve(&self) {
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
        self.parked_count.fetch_sub(woken.len(), Ordering::SeqCst);
        woken.into_iter().for_each(Waker::wake);
    }

    /// Parks the caller until a level has room. Registers first and looks again second: who makes room does the reverse.
    fn poll_room(&self, level: usize, context: &mut Context<'_>) -> Poll<Result<()>> {
        if !self.query.is_stopped() && !self.may_run(level) {
            let mut parked = self.parked.lock();
            parked.push((level, context.waker().clone()));
            self.parked_count.fetch_add(1, Ordering::SeqCst);
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

    /// Makes a level's rows into the jobs of the next step, or output.
    fn advance(self: &Arc<Self>, level: usize, collected: Collected) -> Result<()> {
        let batch = collected.finish(&self.plan.levels[level])?;
        self.query.stats.rows(level, batch.num_rows());
        if batch.num_rows() > 0 {
            if level == self.plan.last() {
                self.emit(batch);
            } else {
                self.add_lookups(level, batch)?;
            }
        }
        self.pump();
        Ok(())
    }

    fn emit(&self, batch: RecordBatch) {
        let bytes = batch.get_array_memory_size();
        self.flow.add(self.plan.last(), bytes);
        let rows = self.output_rows.load(Ordering::Relaxed);
        self.output_rows.store((rows * 2).min(self.plan.batch_rows), Ordering::Relaxed);
        self.output_at_ns.store(self.runtime.store.device().now_ns(), Ordering::Relaxed);
        self.output.push(batch, bytes);
    }

    fn add_lookups(self: &Arc<Self>, step: usize, batch: RecordBatch) -> Result<()> {
        let (outer, keyless) = Outer::new(&self.plan.steps[step], batch, Lookups::Shared, &self.flow, step)?;
        let outer = Arc::new(outer);
        if self.plan.levels[step + 1].join == Join::LeftOuter {
            append_lone(self, step + 1, &outer, &keyless)?;
        }
        let count = outer.lookups();
        if count > 0 {
            self.units.fetch_add(count, Ordering::SeqCst);
            self.unfinished.fetch_add(count, Ordering::SeqCst);
            let mut jobs = self.jobs.lock();
            jobs.push(step, outer);
            self.waiting.fetch_add(count, Ordering::SeqCst);
            self.waiting_first.store(jobs.waiting_first(), Ordering::SeqCst);
        }
        Ok(())
    }

    /// Whether a worker with time to spare should flush its rows of a level.
    fn is_due(&self, level: usize, rows: usize, urgency: Urgency) -> bool {
        match urgency {
            Urgency::Starved => true,
            _ if level == self.plan.last() => {
                rows >= self.output_rows.load(Ordering::Relaxed)
                    || self.runtime.store.device().now_ns() >= self.output_at_ns.load(Ordering::Relaxed) + HOLD_NS
            }
            Urgency::Idle => true,
            Urgency::Saturated => self.waiting.load(Ordering::SeqCst) == 0,
        }
    }

    /// Flushes one worker's rows of a level, if they are due. Returns whether there are some that are not.
    fn flush_buffer(self: &Arc<Self>, worker: usize, level: usize, urgency: Urgency) -> Result<bool> {
        let mut buffer = self.buffers[worker][level].lock();
        if buffer.is_empty() {
            return Ok(false);
        }
        if !self.is_due(level, buffer.rows(), urgency) {
            return Ok(true);
        }
        let collected = buffer.take(&self.flow, level);
        drop(buffer);
        self.advance(level, collected)?;
        self.unit_ends();
        Ok(false)
    }

    /// Flushes the rows of some workers. Returns whether some are left.
    fn flush_workers(self: &Arc<Self>, workers: Range<usize>, urgency: Urgency) -> bool {
        let flush = || {
            let mut left = false;
            // Level by level, because rows that have no key go straight to the next one.
            for level in 0..=self.plan.last() {
                for worker in workers.clone() {
                    left |= self.flush_buffer(worker, level, urgency)?;
                }
            }
            Ok(left)
        };
        match std::panic::catch_unwind(AssertUnwindSafe(flush)).unwrap_or_else(|payload| Err(panicked(payload))) {
            Ok(left) => left,
            Err(error) => {
                self.stop(error);
                false
            }
        }
    }
}

impl Sink for Arc<Execution> {
    fn query(&self) -> &Query {
        &self.query
    }

    fn append<T>(&self, level: usize, add: impl FnOnce(&mut Buffer) -> Result<T>) -> Result<T> {
        if self.query.is_stopped() {
            return Err(Error::Cancelled);
        }
        let worker = self.runtime.worker().unwrap_or(0);
        let mut buffer = self.buffers[worker][level].lock();
        let was_empty = buffer.is_empty();
        let added = add(&mut buffer)?;
        if was_empty && !buffer.is_empty() {
            self.units.fetch_add(1, Ordering::SeqCst);
            self.runtime.hold_back(self.clone());
        }
        if buffer.rows() >= self.plan.levels[level].flush_rows {
            let collected = buffer.take(&self.flow, level);
            drop(buffer);
            self.advance(level, collected)?;
            self.unit_ends();
        }
        Ok(added)
    }

    async fn room(&self, level: usize) -> Result<()> {
        share_the_worker().await;
        if !self.may_run(level) {
            // The credit goes to whoever can make room.
            self.jobs.lock().park();
            poll_fn(|context| self.poll_room(level, context)).await?;
            self.jobs.lock().unpark();
        }
        Ok(())
    }
}

impl Buffered for Execution {
    fn flush(self: Arc<Self>, worker: usize, urgency: Urgency) -> bool {
        if self.query.is_stopped() {
            return false;
        }
        let last = self.unfinished.load(Ordering::SeqCst) == 0;
        self.flush_workers(worker..worker + 1, if last { Urgency::Starved } else { urgency })
    }
}

impl Fallible for Execution {
    fn fail(&self, error: Error) {
        self.stop(error);
    }
}

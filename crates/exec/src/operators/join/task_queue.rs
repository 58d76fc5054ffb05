//! The tasks of a pipeline that wait to be run, and the counts of the fibers that run them.
//!
//! Invariants:
//! - `waiting` of a step is the number of lookups in its batches that have not been popped.
//! - Each live fiber is counted in `fibers`, except while it is parked: it waits for room on a level, and its credit is
//!   free for a fiber that can make room. When parked fibers resume, `fibers` may exceed the credits.
//! - Each live fiber that waits neither for a page nor for room is counted in `runnable`.

use std::collections::VecDeque;
use std::sync::Arc;

use keyaki_store::KeyRange;

use super::outer_batch::{Lookup, OuterBatch};

/// Waiting lookups that justify one more runnable fiber (up to one per worker).
const LOOKUPS_PER_FIBER: usize = 16;

/// A unit of work that a fiber runs from start to end.
#[derive(Debug)]
pub(crate) enum Task {
    /// Reads a range of the driver.
    DriverRange(KeyRange),
    /// A lookup of a step.
    Lookup(usize, Lookup),
}

impl Task {
    /// The level of the rows that it adds.
    pub fn level(&self) -> usize {
        match self {
            Task::DriverRange(_) => 0,
            Task::Lookup(step, _) => step + 1,
        }
    }
}

#[derive(Debug)]
pub(super) struct TaskQueue {
    ranges: VecDeque<KeyRange>,
    /// By step.
    lookups: Vec<PendingLookups>,
    /// Fibers that are not parked.
    fibers: usize,
    /// Fibers that are not waiting.
    runnable: usize,
}

/// The lookups of one step.
#[derive(Default)]
struct PendingLookups {
    /// Batches with the number of their next lookup.
    batches: VecDeque<(Arc<OuterBatch>, usize)>,
    waiting: usize,
}

impl std::fmt::Debug for PendingLookups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {} batches", self.waiting, self.batches.len())
    }
}

/// Tasks taken out of a queue; dropped outside its lock.
pub(super) struct DiscardedTasks {
    _ranges: VecDeque<KeyRange>,
    _lookups: Vec<PendingLookups>,
}

impl TaskQueue {
    /// The driver ranges of a pipeline with `steps` steps.
    pub fn new(ranges: VecDeque<KeyRange>, steps: usize) -> Self {
        let lookups = (0..steps).map(|_| PendingLookups::default()).collect();
        TaskQueue { ranges, lookups, fibers: 0, runnable: 0 }
    }

    /// Adds the lookups of a batch, of which there is at least one.
    pub fn push(&mut self, step: usize, outer: Arc<OuterBatch>) {
        assert!(outer.lookups() > 0, "a batch without lookups");
        self.lookups[step].waiting += outer.lookups();
        self.lookups[step].batches.push_back((outer, 0));
    }

    /// Removes all tasks of a stopped query. Its fibers stay counted until they end.
    pub fn clear(&mut self) -> DiscardedTasks {
        let lookups = self.lookups.iter_mut().map(std::mem::take).collect();
        DiscardedTasks { _ranges: std::mem::take(&mut self.ranges), _lookups: lookups }
    }

    /// Lookups of the first step that wait.
    pub fn waiting_first(&self) -> usize {
        self.lookups.first().map_or(0, |lookups| lookups.waiting)
    }

    /// The next task, deepest step first. `may_run(level)` returns true if rows may be added to a level.
    pub fn pop(&mut self, may_run: impl Fn(usize) -> bool) -> Option<Task> {
        for (step, lookups) in self.lookups.iter_mut().enumerate().rev() {
            if !may_run(step + 1) {
                continue;
            }
            if let Some((outer, next)) = lookups.batches.front_mut() {
                assert!(lookups.waiting > 0 && *next < outer.lookups(), "lookups of step {step}");
                let lookup = Lookup { outer: outer.clone(), number: *next };
                *next += 1;
                lookups.waiting -= 1;
                if *next == outer.lookups() {
                    lookups.batches.pop_front();
                }
                return Some(Task::Lookup(step, lookup));
            }
        }
        if may_run(0) { self.ranges.pop_front().map(Task::DriverRange) } else { None }
    }

    /// Fibers that are not parked.
    pub fn fibers(&self) -> usize {
        self.fibers
    }

    /// Counts as many new fibers as the tasks that may run justify, and returns their number: up to one runnable fiber per
    /// worker, within the credits.
    pub fn start_fibers(&mut self, workers: usize, credits: usize, may_run: impl Fn(usize) -> bool) -> usize {
        let startable = |(step, lookups): (usize, &PendingLookups)| if may_run(step + 1) { lookups.waiting } else { 0 };
        let lookups: usize = self.lookups.iter().enumerate().map(startable).sum();
        let ranges = if !self.ranges.is_empty() && may_run(0) { self.ranges.len() } else { 0 };
        let wanted = (ranges + lookups.div_ceil(LOOKUPS_PER_FIBER)).min(workers);
        let count = wanted.saturating_sub(self.runnable).min(credits.saturating_sub(self.fibers));
        self.fibers += count;
        self.runnable += count;
        assert!(count == 0 || self.fibers <= credits, "{} fibers for {credits} credits", self.fibers);
        count
    }

    /// A runnable fiber has ended.
    pub fn end_fiber(&mut self) {
        self.park();
        self.suspend();
    }

    /// A runnable fiber waits for a page or for room.
    pub fn suspend(&mut self) {
        assert!(self.runnable > 0, "a fiber that is not runnable is suspended");
        self.runnable -= 1;
    }

    /// A suspended fiber continues.
    pub fn resume(&mut self) {
        self.runnable += 1;
    }

    /// A fiber starts waiting for room, and returns its credit.
    pub fn park(&mut self) {
        assert!(self.fibers > 0, "a fiber returns a credit that it does not hold");
        self.fibers -= 1;
    }

    /// A parked fiber continues.
    pub fn unpark(&mut self) {
        self.fibers += 1;
    }
}

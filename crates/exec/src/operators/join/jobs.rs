//! The jobs of a pipeline that wait to be run, and the count of fibers that run them.

use std::collections::VecDeque;
use std::sync::Arc;

use keyaki_store::KeyRange;

use super::outer::{Lookup, Outer};

/// Lookups waiting that justify one more runnable fiber (up to one a worker).
const LOOKUPS_PER_FIBER: usize = 16;

#[derive(Debug)]
pub(crate) enum Job {
    /// Read a range of the driver.
    Range(KeyRange),
    /// A lookup of a step.
    Lookup(usize, Lookup),
}

#[derive(Debug)]
pub(super) struct Jobs {
    ranges: VecDeque<KeyRange>,
    /// By step.
    lookups: Vec<Lookups>,
    /// Fibers that exist and do not wait for room.
    fibers: usize,
    /// Fibers that neither wait for a page nor for room.
    runnable: usize,
}

#[derive(Default)]
struct Lookups {
    /// Batches with the number of their next lookup.
    batches: VecDeque<(Arc<Outer>, usize)>,
    waiting: usize,
}

impl std::fmt::Debug for Lookups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {} batches", self.waiting, self.batches.len())
    }
}

impl Jobs {
    pub fn new(ranges: VecDeque<KeyRange>, steps: usize) -> Self {
        let lookups = (0..steps).map(|_| Lookups::default()).collect();
        Jobs { ranges, lookups, fibers: 0, runnable: 0 }
    }

    /// Adds the lookups of a batch, of which there is at least one.
    pub fn push(&mut self, step: usize, outer: Arc<Outer>) {
        self.lookups[step].waiting += outer.lookups();
        self.lookups[step].batches.push_back((outer, 0));
    }

    /// Lookups of the first step that wait.
    pub fn waiting_first(&self) -> usize {
        self.lookups.first().map_or(0, |lookups| lookups.waiting)
    }

    /// The next job, deepest step first. `may_run(level)`: whether rows may be added to a level.
    pub fn pop(&mut self, may_run: impl Fn(usize) -> bool) -> Option<Job> {
        for (step, lookups) in self.lookups.iter_mut().enumerate().rev() {
            if !may_run(step + 1) {
                continue;
            }
            if let Some((outer, next)) = lookups.batches.front_mut() {
                let job = Lookup { outer: outer.clone(), number: *next };
                *next += 1;
                lookups.waiting -= 1;
                if *next == outer.lookups() {
                    lookups.batches.pop_front();
                }
                return Some(Job::Lookup(step, job));
            }
        }
        if may_run(0) { self.ranges.pop_front().map(Job::Range) } else { None }
    }

    // The counts of fibers saturate at zero: they start anew when the query is stopped, while its fibers end one by one.

    pub fn fibers(&self) -> usize {
        self.fibers
    }

    /// Counts in as many new fibers as there should be for the jobs that can be started: up to one runnable fiber a
    /// worker, within the credits.
    pub fn start_fibers(&mut self, workers: usize, credits: usize, may_run: impl Fn(usize) -> bool) -> usize {
        let startable = |(step, lookups): (usize, &Lookups)| if may_run(step + 1) { lookups.waiting } else { 0 };
        let lookups: usize = self.lookups.iter().enumerate().map(startable).sum();
        let ranges = if !self.ranges.is_empty() && may_run(0) { self.ranges.len() } else { 0 };
        let wanted = (ranges + lookups.div_ceil(LOOKUPS_PER_FIBER)).min(workers);
        let count = wanted.saturating_sub(self.runnable).min(credits.saturating_sub(self.fibers));
        self.fibers += count;
        self.runnable += count;
        count
    }

    /// A runnable fiber has ended.
    pub fn end_fiber(&mut self) {
        self.fibers = self.fibers.saturating_sub(1);
        self.suspend();
    }

    /// A runnable fiber waits, for a page or for room.
    pub fn suspend(&mut self) {
        self.runnable = self.runnable.saturating_sub(1);
    }

    /// A fiber that was suspended goes on.
    pub fn resume(&mut self) {
        self.runnable += 1;
    }

    /// A fiber is going to wait for room: its credit goes to whoever can make some.
    pub fn park(&mut self) {
        self.fibers = self.fibers.saturating_sub(1);
    }

    pub fn unpark(&mut self) {
        self.fibers += 1;
    }
}

//! The waker under shuttle, with a worker that waits as [`UringQueue`](super::queue::UringQueue) does. The counter of
//! the eventfd stands for the multishot poll of the ring: a wait ends when the counter is not 0.
//!
//! A lost wake-up leaves the worker in a wait for ever, so the schedule exceeds its steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyaki_primitives::sync::thread::{spawn, yield_now};
use keyaki_primitives::sync::{Limits, atomic, explore};

use super::waker::UringWaker;
use crate::interface::Waker;

/// A waker, with counters that the threads of a test share.
struct Model {
    waker: UringWaker,
    /// Work that other threads have handed to the worker.
    jobs: atomic::AtomicU64,
    /// Completed requests that the worker has not collected.
    completions: atomic::AtomicU64,
    /// The time-out of the next wait has passed.
    timeouts: atomic::AtomicU64,
    /// Calls of [`Waker::wake`].
    wakes: AtomicU64,
    /// Waits that the worker has begun.
    waits: AtomicU64,
    /// Writes to the eventfd.
    writes: AtomicU64,
    /// Wake-ups that the worker has consumed.
    consumed: AtomicU64,
}

/// The reason for which [`Model::complete`] returns.
#[derive(Debug, PartialEq, Eq)]
enum Returned {
    Completions(u64),
    Woken,
    TimedOut,
}

impl Model {
    fn new() -> Model {
        Model {
            waker: UringWaker::new().unwrap(),
            jobs: atomic::AtomicU64::new(0),
            completions: atomic::AtomicU64::new(0),
            timeouts: atomic::AtomicU64::new(0),
            wakes: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            consumed: AtomicU64::new(0),
        }
    }

    /// Hands a job to the worker.
    fn post(&self) {
        self.jobs.fetch_add(1, Ordering::SeqCst);
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.waker.wake();
    }

    /// The number of writes to the eventfd since the last call.
    fn read_event(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(self.waker.event_fd(), &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(rustix::io::Errno::AGAIN) => 0,
            Err(error) => panic!("{error}"),
        }
    }

    /// As `UringQueue::complete` with a time-out.
    fn complete(&self) -> Returned {
        let completed = self.completions.swap(0, Ordering::SeqCst);
        if completed > 0 {
            return Returned::Completions(completed);
        }
        if !self.waker.begin_wait() {
            self.consumed.fetch_add(1, Ordering::SeqCst);
            return Returned::Woken;
        }
        self.waits.fetch_add(1, Ordering::SeqCst);
        let returned = self.wait();
        self.waker.end_wait(matches!(returned, Returned::Completions(_)));
        returned
    }

    fn wait(&self) -> Returned {
        loop {
            // Blocks in the kernel until the poll or a request completes, or the time-out passes.
            while self.completions.load(Ordering::SeqCst) == 0 && self.timeouts.load(Ordering::SeqCst) == 0 {
                let writes = self.read_event();
                if writes > 0 {
                    self.writes.fetch_add(writes, Ordering::SeqCst);
                    break;
                }
                yield_now();
            }
            let completed = self.completions.swap(0, Ordering::SeqCst);
            if completed > 0 {
                return Returned::Completions(completed);
            }
            // A completion of the poll alone is no wake-up: it may belong to an earlier wait.
            if self.waker.is_notified() {
                self.consumed.fetch_add(1, Ordering::SeqCst);
                return Returned::Woken;
            }
            if self.timeouts.swap(0, Ordering::SeqCst) > 0 {
                return Returned::TimedOut;
            }
        }
    }

    /// The worker: takes jobs and completions until it has all of them. It looks for jobs only if it was woken or has
    /// timed out, because a wake-up beside completions stays pending.
    fn work(&self, jobs: u64, completions: u64) {
        let (mut taken, mut completed) = (0, 0);
        while taken < jobs || completed < completions {
            match self.complete() {
                Returned::Completions(count) => completed += count,
                Returned::Woken | Returned::TimedOut => taken += self.jobs.swap(0, Ordering::SeqCst),
            }
        }
    }

    /// Checks the counts after all threads have ended.
    fn check(&self) {
        let [wakes, waits, consumed] =
            [&self.wakes, &self.waits, &self.consumed].map(|count| count.load(Ordering::SeqCst));
        let writes = self.writes.load(Ordering::SeqCst) + self.read_event();
        assert!(writes <= waits, "{writes} writes to the eventfd for {waits} waits");
        assert!(writes <= wakes, "{writes} writes to the eventfd for {wakes} calls");
        assert!(consumed <= wakes, "{consumed} wake-ups by {wakes} calls");
    }
}

/// Runs the worker with threads that post a number of jobs each, a kernel that completes requests, and a clock.
fn run(schedules: usize, posts: &'static [u64], completions: u64, timeouts: u64) {
    explore(Limits { schedules, steps_max: 5000 }, move || {
        let model = Arc::new(Model::new());
        let start = |work: Box<dyn FnOnce(&Model) + Send>| {
            let model = model.clone();
            spawn(move || work(&model))
        };
        let mut threads = vec![start(Box::new(move |model| model.work(posts.iter().sum(), completions)))];
        for &count in posts {
            threads.push(start(Box::new(move |model| (0..count).for_each(|_| model.post()))));
        }
        threads.push(start(Box::new(move |model| {
            for _ in 0..completions {
                model.completions.fetch_add(1, Ordering::SeqCst);
            }
        })));
        threads.push(start(Box::new(move |model| {
            for _ in 0..timeouts {
                model.timeouts.fetch_add(1, Ordering::SeqCst);
            }
        })));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        model.check();
    });
}

#[test]
fn no_wake_up_is_lost() {
    run(10_000, &[2, 1], 0, 0);
}

#[test]
fn wake_ups_beside_completions() {
    run(10_000, &[2], 2, 0);
}

#[test]
fn wake_ups_beside_completions_and_time_outs() {
    run(10_000, &[1, 1], 1, 2);
}

/// A wake-up without a wait writes nothing and ends the next wait; further ones count as one.
#[test]
fn wake_ups_without_a_wait_write_nothing() {
    explore(Limits { schedules: 1000, steps_max: 5000 }, || {
        let model = Arc::new(Model::new());
        let threads = [(); 2].map(|()| {
            let model = model.clone();
            spawn(move || model.post())
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(model.read_event(), 0);
        assert!(!model.waker.begin_wait(), "the wake-up was lost");
        assert!(model.waker.begin_wait(), "two wake-ups count as one");
        model.waker.end_wait(false);
        assert_eq!(model.read_event(), 0);
    });
}

//! Threads for the steps of a bulk operation. Each step runs on all threads and ends before the next one begins.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The number of threads that take part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workers(usize);

impl Workers {
    pub fn new(threads: usize) -> Self {
        Workers(threads.max(1))
    }

    pub fn count(self) -> usize {
        self.0
    }

    /// Runs `work` with the number of each worker. Returns the results in that order. The caller's thread is worker 0.
    pub fn run<R: Send>(self, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
        if self.0 == 1 {
            return vec![work(0)];
        }
        thread::scope(|scope| {
            let work = &work;
            let others: Vec<_> = (1..self.0).map(|worker| scope.spawn(move || work(worker))).collect();
            let mut results = vec![work(0)];
            for other in others {
                match other.join() {
                    Ok(result) => results.push(result),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            results
        })
    }

    /// Runs `work` for each task on the next free worker. Returns the results in the order of the tasks. Each worker
    /// has its own state.
    pub fn run_tasks<S: Default, R: Send>(self, tasks: usize, work: impl Fn(&mut S, usize) -> R + Sync) -> Vec<R> {
        let next = AtomicUsize::new(0);
        let mut results: Vec<(usize, R)> = self
            .run(|_| {
                let (mut state, mut done) = (S::default(), Vec::new());
                loop {
                    let task = next.fetch_add(1, Ordering::Relaxed);
                    if task >= tasks {
                        return done;
                    }
                    done.push((task, work(&mut state, task)));
                }
            })
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(results.len(), tasks, "every task has run once");
        results.sort_unstable_by_key(|(task, _)| *task);
        results.into_iter().map(|(_, result)| result).collect()
    }
}

/// A worker's part of `count` items: parts are adjacent and of about equal size. For `worker == workers` it is the
/// empty range at the end.
pub(crate) fn part(count: usize, worker: usize, workers: usize) -> Range<usize> {
    assert!(worker <= workers && workers > 0, "part {worker} of {workers}");
    // In 128 bits the product does not overflow.
    let at = |worker: usize| (count as u128 * worker as u128 / workers as u128) as usize;
    at(worker)..at((worker + 1).min(workers))
}

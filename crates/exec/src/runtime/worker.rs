//! A worker thread: turns of task polls and device exchanges.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use async_task::Runnable;
use crossbeam_deque::Steal;
use keyaki_device::{Queue, Wait};

use super::reads::Reads;
use super::{LOCAL, Local, Runtime, Urgency};

/// Task polls between two exchanges with the device.
const POLLS_PER_TURN: usize = 64;
/// A worker with so many tasks left after its turn wakes a sleeping one to steal some.
const TASKS_WORTH_SHARING: usize = 2;
/// Turns after which rows held back are flushed even if the worker is never idle.
const TURNS_PER_FLUSH: u32 = 64;

struct Worker {
    runtime: Arc<Runtime>,
    local: Rc<Local>,
    reads: Reads,
}

/// The worker's thread.
pub(super) fn main(
    runtime: Arc<Runtime>,
    index: usize,
    tasks: crossbeam_deque::Worker<Runnable>,
    queue: Box<dyn Queue>,
) {
    pin(index);
    let local = Rc::new(Local {
        runtime: Arc::as_ptr(&runtime),
        worker: index,
        tasks,
        requests: Default::default(),
        buffered: Default::default(),
        announced: Default::default(),
    });
    LOCAL.with(|cell| {
        // The thread is new, so the cell is empty.
        let _ = cell.set(local.clone());
    });
    let mut worker = Worker { reads: Reads::new(runtime.clone(), queue), runtime: runtime.clone(), local };
    if std::panic::catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
        runtime.break_down();
    }
    while worker.local.tasks.pop().is_some() {}
}

/// Binds the thread to the `index`-th processor that it may use. It works unbound too, so errors are ignored.
#[cfg(target_os = "linux")]
fn pin(index: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)).collect();
    if let Some(&processor) = processors.get(index % processors.len().max(1)) {
        let mut set = CpuSet::new();
        set.set(processor);
        let _ = sched_setaffinity(None, &set);
    }
}

#[cfg(not(target_os = "linux"))]
fn pin(_index: usize) {}

impl Worker {
    fn run(&mut self) {
        let mut turns = 0u32;
        while !self.runtime.broken.load(Ordering::SeqCst) {
            self.run_tasks();
            self.take_requests();
            // First of all, because it may wake tasks, and may find that nothing is left to read.
            self.reads.dispatch();
            if !self.local.tasks.is_empty() {
                self.reads.exchange(Wait::No);
                if self.local.tasks.len() >= TASKS_WORTH_SHARING {
                    self.runtime.wake_one();
                }
                turns = turns.wrapping_add(1);
                if turns.is_multiple_of(TURNS_PER_FLUSH) {
                    self.flush(Urgency::Starved);
                }
            } else if !self.flush(self.urgency()) && !self.steal() {
                if self.runtime.may_end() && self.reads.is_empty() {
                    return;
                }
                self.sleep();
            }
        }
    }

    fn run_tasks(&mut self) {
        // Once a turn, so that tasks from outside get their share of a busy worker.
        self.take_injected();
        for _ in 0..POLLS_PER_TURN {
            let Some(runnable) = self.local.tasks.pop() else { return };
            // Tasks catch their panics themselves, except those of destructors.
            if std::panic::catch_unwind(AssertUnwindSafe(|| runnable.run())).is_err() {
                tracing::error!("a task panicked while it was dropped");
            }
        }
    }

    /// Moves tasks from the injector into the worker's queue. Returns whether there was one.
    fn take_injected(&self) -> bool {
        loop {
            match self.runtime.injector.steal_batch(&self.local.tasks) {
                Steal::Success(()) => return true,
                Steal::Empty => return false,
                Steal::Retry => {}
            }
        }
    }

    fn take_requests(&mut self) {
        let mut requests = self.local.requests.borrow_mut();
        self.reads.request(requests.drain(..));
        drop(requests);
        if self.runtime.request_count.load(Ordering::SeqCst) > 0 {
            let requests = {
                let mut requests = self.runtime.requests.lock();
                self.runtime.request_count.fetch_sub(requests.len(), Ordering::SeqCst);
                std::mem::take(&mut *requests)
            };
            self.reads.request(requests.into_iter());
        }
    }

    fn urgency(&self) -> Urgency {
        if self.reads.is_empty() {
            Urgency::Starved
        } else if self.reads.is_saturated() {
            Urgency::Saturated
        } else {
            Urgency::Idle
        }
    }

    /// Flushes the pipelines with rows held back here. Returns whether that made work for this worker.
    fn flush(&self, urgency: Urgency) -> bool {
        let buffered = std::mem::take(&mut *self.local.buffered.borrow_mut());
        for pipeline in buffered {
            if pipeline.clone().flush(self.local.worker, urgency) {
                self.local.buffered.borrow_mut().push(pipeline);
            }
        }
        !self.local.tasks.is_empty() || !self.local.requests.borrow().is_empty()
    }

    fn steal(&self) -> bool {
        let others = self.runtime.stealers.len();
        for step in 1..others {
            let victim = &self.runtime.stealers[(self.local.worker + step) % others];
            loop {
                match victim.steal_batch(&self.local.tasks) {
                    Steal::Success(()) => return true,
                    Steal::Empty => break,
                    Steal::Retry => {}
                }
            }
        }
        false
    }

    /// Hands over the reads asked for and sleeps until one comes back or another thread has work, in one call; does not
    /// sleep if there is work already.
    fn sleep(&mut self) {
        let bed = &self.runtime.beds[self.local.worker];
        bed.asleep.store(true, Ordering::SeqCst);
        self.runtime.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let work = !self.runtime.injector.is_empty()
            || self.runtime.request_count.load(Ordering::SeqCst) > 0
            || self.runtime.stealers.iter().any(|stealer| !stealer.is_empty())
            || self.runtime.may_end() && self.reads.is_empty();
        if !work {
            self.local.announced.borrow_mut().idle();
            self.reads.exchange(Wait::Until(None));
        }
        if self.runtime.beds[self.local.worker].asleep.swap(false, Ordering::SeqCst) {
            self.runtime.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

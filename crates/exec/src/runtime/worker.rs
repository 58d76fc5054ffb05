//! A worker thread: turns of fiber polls and exchanges with the device.

use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;

use async_task::Runnable;
use crossbeam_deque::Steal;
use keyaki_device::{Queue, Wait};
use keyaki_primitives::sync::atomic::{Ordering, fence};

use super::reads::WorkerReads;
use super::{CONTEXT, Runtime, Urgency, WorkerContext};

/// Fiber polls between two exchanges with the device.
const POLLS_PER_TURN: usize = 64;
/// A worker with this many ready fibers after its turn wakes a sleeping worker, which steals from it.
const FIBERS_WORTH_SHARING: usize = 2;
/// Turns after which buffered rows are flushed even if the worker is never idle.
const TURNS_PER_FLUSH: u32 = 64;

struct Worker {
    runtime: Arc<Runtime>,
    context: Rc<WorkerContext>,
    reads: WorkerReads,
}

/// The body of the thread of worker `index`.
pub(super) fn main(
    runtime: Arc<Runtime>,
    index: usize,
    ready: crossbeam_deque::Worker<Runnable>,
    queue: Box<dyn Queue>,
) {
    assert!(index < runtime.sleep_states.len(), "worker {index} of {}", runtime.sleep_states.len());
    pin(index);
    let context = Rc::new(WorkerContext {
        runtime: Arc::as_ptr(&runtime),
        worker: index,
        ready,
        requests: Default::default(),
        buffered: Default::default(),
        announced: Default::default(),
    });
    let is_first = CONTEXT.with(|cell| cell.set(context.clone()).is_ok());
    assert!(is_first, "a worker has a thread of its own");
    let mut worker = Worker { reads: WorkerReads::new(runtime.clone(), queue), runtime: runtime.clone(), context };
    if std::panic::catch_unwind(AssertUnwindSafe(|| worker.run())).is_err() {
        runtime.stop();
    }
    while worker.context.ready.pop().is_some() {}
}

/// Binds the thread to the `index`-th processor available to it. Errors are ignored: an unbound worker works, too.
#[cfg(all(target_os = "linux", not(feature = "shuttle")))]
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

#[cfg(not(all(target_os = "linux", not(feature = "shuttle"))))]
fn pin(_index: usize) {}

impl Worker {
    fn run(&mut self) {
        let mut turns = 0u32;
        while !self.runtime.is_stopped() {
            self.poll_fibers();
            self.take_requests();
            // Dropping requests of stopped queries may wake fibers, and may leave nothing to read.
            self.reads.dispatch();
            if !self.context.ready.is_empty() {
                self.reads.exchange(Wait::No);
                if self.context.ready.len() >= FIBERS_WORTH_SHARING {
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

    fn poll_fibers(&mut self) {
        // Once a turn, so that fibers scheduled by other threads get a share of a busy worker.
        self.take_injected();
        for _ in 0..POLLS_PER_TURN {
            let Some(runnable) = self.context.ready.pop() else { return };
            // Fibers catch panics, except those of destructors.
            if std::panic::catch_unwind(AssertUnwindSafe(|| runnable.run())).is_err() {
                tracing::error!("a fiber panicked while it was dropped");
            }
        }
    }

    /// Moves fibers from the injector into the worker's ready queue. Returns true if there was one.
    fn take_injected(&self) -> bool {
        loop {
            match self.runtime.injector.steal_batch(&self.context.ready) {
                Steal::Success(()) => return true,
                Steal::Empty => return false,
                Steal::Retry => {}
            }
        }
    }

    fn take_requests(&mut self) {
        let mut requests = self.context.requests.borrow_mut();
        self.reads.request(requests.drain(..));
        drop(requests);
        self.reads.request(self.runtime.take_requests().into_iter());
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

    /// Flushes the pipelines with rows buffered on this worker. Returns true if that made work for this worker.
    fn flush(&self, urgency: Urgency) -> bool {
        let buffered = std::mem::take(&mut *self.context.buffered.borrow_mut());
        for pipeline in buffered {
            if pipeline.clone().flush(self.context.worker, urgency) {
                self.context.buffered.borrow_mut().push(pipeline);
            }
        }
        !self.context.ready.is_empty() || !self.context.requests.borrow().is_empty()
    }

    fn steal(&self) -> bool {
        let others = self.runtime.stealers.len();
        for step in 1..others {
            let victim = &self.runtime.stealers[(self.context.worker + step) % others];
            loop {
                match victim.steal_batch(&self.context.ready) {
                    Steal::Success(()) => return true,
                    Steal::Empty => break,
                    Steal::Retry => {}
                }
            }
        }
        false
    }

    /// Submits the started reads and sleeps until one completes or another thread has work, in one call. Does not sleep
    /// if there is work already.
    fn sleep(&mut self) {
        let runtime = &*self.runtime;
        let state = &runtime.sleep_states[self.context.worker];
        // Counted before it is announced: a waker that sees the announcement decrements the count.
        runtime.sleepers.fetch_add(1, Ordering::SeqCst);
        let was_asleep = state.asleep.swap(true, Ordering::SeqCst);
        assert!(!was_asleep, "worker {} sleeps twice", self.context.worker);
        fence(Ordering::SeqCst);
        let has_work = !runtime.injector.is_empty()
            || runtime.request_count.load(Ordering::SeqCst) > 0
            || runtime.stealers.iter().any(|stealer| !stealer.is_empty())
            || runtime.may_end() && self.reads.is_empty();
        if !has_work {
            self.context.announced.borrow_mut().withdraw();
            self.reads.exchange(Wait::Until(None));
        }
        runtime.end_sleep(state);
    }
}

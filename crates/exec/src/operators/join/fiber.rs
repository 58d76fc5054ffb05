//! Fibers: futures that run one task of a pipeline after another.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use super::out_of_order::PipelineExecution;
use super::task_queue::Task;
use crate::base::{Result, panicked};

/// Tasks started, and chunks of rows processed, in one poll of a fiber.
const WORK_PER_POLL: u32 = 8;

thread_local! {
    /// Work that the poll under way on this thread may still do.
    static WORK_LEFT: Cell<u32> = const { Cell::new(0) };
    /// The task has yielded of its own accord, and woken itself.
    static HAS_YIELDED: Cell<bool> = const { Cell::new(false) };
}

/// Counts one piece of work, and yields if the poll under way has done its share.
pub(super) async fn yield_if_due() {
    if WORK_LEFT.get() > 0 {
        WORK_LEFT.set(WORK_LEFT.get() - 1);
        return;
    }
    let mut polled = false;
    poll_fn(|context| {
        if polled {
            return Poll::Ready(());
        }
        polled = true;
        HAS_YIELDED.set(true);
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

struct RunningTask {
    future: Pin<Box<dyn Future<Output = Result<()>> + Send>>,
    level: usize,
    /// The number of tasks for which its time counts.
    measured_as: u64,
}

pub(super) struct Fiber {
    execution: Arc<PipelineExecution>,
    task: Option<RunningTask>,
    /// Counted as runnable in [`TaskQueue`](super::task_queue::TaskQueue).
    runnable: bool,
}

impl Fiber {
    /// A fiber that the task queue has counted as runnable.
    pub fn new(execution: Arc<PipelineExecution>) -> Self {
        Fiber { execution, task: None, runnable: true }
    }

    /// Polls the current task or the next one. `None` if the fiber is to end.
    fn poll_task(&mut self, context: &mut Context<'_>) -> Option<Poll<Result<()>>> {
        let task = match &mut self.task {
            Some(task) => task,
            None => {
                let (task, read_ahead_bytes) = self.execution.next_task()?;
                let (level, measured_as) = (task.level(), self.execution.stats().task());
                let future = Box::pin(run(self.execution.clone(), task, read_ahead_bytes));
                self.task.insert(RunningTask { future, level, measured_as })
            }
        };
        let start = (task.measured_as > 0).then(Instant::now);
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| task.future.as_mut().poll(context)));
        if let Some(start) = start {
            self.execution.stats().busy(task.level, start.elapsed() * task.measured_as as u32);
        }
        Some(polled.unwrap_or_else(|payload| Poll::Ready(Err(panicked(payload)))))
    }
}

async fn run(execution: Arc<PipelineExecution>, task: Task, read_ahead_bytes: usize) -> Result<()> {
    execution.run(task, read_ahead_bytes).await
}

impl Future for Fiber {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if !this.runnable {
            this.runnable = true;
            this.execution.fiber_resumes();
        }
        this.execution.announce();
        WORK_LEFT.set(WORK_PER_POLL);
        HAS_YIELDED.set(false);
        while WORK_LEFT.get() > 0 {
            match this.poll_task(context) {
                None => return Poll::Ready(()),
                Some(Poll::Ready(result)) => {
                    WORK_LEFT.set(WORK_LEFT.get().saturating_sub(1));
                    this.task = None;
                    this.execution.task_ended(result);
                }
                Some(Poll::Pending) if HAS_YIELDED.get() => return Poll::Pending,
                Some(Poll::Pending) => {
                    this.runnable = false;
                    this.execution.fiber_waits();
                    return Poll::Pending;
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

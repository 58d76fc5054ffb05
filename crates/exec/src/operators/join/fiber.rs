//! Fibers: tasks that run one job after the other.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::execution::Execution;
use super::jobs::Job;
use crate::Result;
use crate::base::error::panicked;

/// Jobs begun, and chunks of rows worked on, in one poll of a fiber.
const WORK_PER_POLL: u32 = 8;

thread_local! {
    /// What is left of the poll that the current thread is in.
    static WORK_LEFT: Cell<u32> = const { Cell::new(0) };
    /// The task has stepped aside of its own accord, and woken itself.
    static STEPPED_ASIDE: Cell<bool> = const { Cell::new(false) };
}

/// Steps aside if the current poll has done its share.
pub(super) async fn share_the_worker() {
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
        STEPPED_ASIDE.set(true);
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

type Running = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

pub(super) struct Fiber {
    execution: Arc<Execution>,
    running: Option<Running>,
    /// Counted in [`super::jobs::Jobs::runnable`].
    runnable: bool,
}

impl Fiber {
    /// A fiber that has been counted as existing and runnable.
    pub fn new(execution: Arc<Execution>) -> Self {
        Fiber { execution, running: None, runnable: true }
    }

    /// Polls the current job. `None`: there are no more.
    fn poll_job(&mut self, context: &mut Context<'_>) -> Option<Poll<Result<()>>> {
        let running = match &mut self.running {
            Some(running) => running,
            None => {
                let (job, read_ahead_bytes) = self.execution.next_job()?;
                self.running.insert(Box::pin(run(self.execution.clone(), job, read_ahead_bytes)))
            }
        };
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context)));
        Some(polled.unwrap_or_else(|payload| Poll::Ready(Err(panicked(payload)))))
    }
}

async fn run(execution: Arc<Execution>, job: Job, read_ahead_bytes: usize) -> Result<()> {
    execution.run(job, read_ahead_bytes).await
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
        STEPPED_ASIDE.set(false);
        while WORK_LEFT.get() > 0 {
            match this.poll_job(context) {
                None => return Poll::Ready(()),
                Some(Poll::Ready(result)) => {
                    WORK_LEFT.set(WORK_LEFT.get().saturating_sub(1));
                    this.running = None;
                    this.execution.job_ends(result);
                }
                Some(Poll::Pending) if STEPPED_ASIDE.get() => return Poll::Pending,
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

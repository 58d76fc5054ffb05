//! The rows that the consumer of an in-order pipeline pushes to its thread.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use arrow_array::RecordBatch;
use keyaki_primitives::sync::{Condvar, Mutex};

use crate::base::Result;

/// Batches that wait for the thread, at most.
const BATCHES_MAX: usize = 2;

/// A bounded queue of batches.
#[derive(Debug, Default)]
pub(crate) struct Pushed {
    queue: Mutex<Queue>,
    /// Signals the thread that there are rows, or no more.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    batches: VecDeque<RecordBatch>,
    has_ended: bool,
    pusher: Option<Waker>,
}

impl Pushed {
    /// Resolves when the queue has room.
    pub fn poll_push(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut queue = self.queue.lock();
        if queue.batches.len() < BATCHES_MAX || queue.has_ended {
            return Poll::Ready(());
        }
        queue.pusher = Some(context.waker().clone());
        Poll::Pending
    }

    /// Adds a batch, which is dropped if the queue has ended.
    pub fn push(&self, batch: RecordBatch) {
        let mut queue = self.queue.lock();
        if !queue.has_ended {
            queue.batches.push_back(batch);
            self.changed.notify_all();
        }
    }

    /// No more batches will be pushed.
    pub fn end(&self) {
        self.queue.lock().has_ended = true;
        self.changed.notify_all();
    }

    /// Drops all batches and wakes both sides.
    pub fn stop(&self) {
        let (batches, pusher) = {
            let mut queue = self.queue.lock();
            queue.has_ended = true;
            (std::mem::take(&mut queue.batches), queue.pusher.take())
        };
        drop(batches);
        self.changed.notify_all();
        if let Some(pusher) = pusher {
            pusher.wake();
        }
    }

    pub fn is_empty(&self) -> bool {
        self.queue.lock().batches.is_empty()
    }

    /// Blocks the calling thread until there is a batch; `None` at the end.
    ///
    /// # Errors
    /// Those of `check`, which is called after each wait.
    pub fn wait(&self, check: impl Fn() -> Result<()>) -> Result<Option<RecordBatch>> {
        let mut queue = self.queue.lock();
        loop {
            check()?;
            if let Some(batch) = queue.batches.pop_front() {
                let pusher = queue.pusher.take();
                drop(queue);
                if let Some(pusher) = pusher {
                    pusher.wake();
                }
                return Ok(Some(batch));
            }
            if queue.has_ended {
                return Ok(None);
            }
            self.changed.wait(&mut queue);
        }
    }
}

//! The channel from a running query to its consumer.
//!
//! Out of order, pushing never blocks: producers check the channel's level of the [`Flow`] before they start a task that
//! leads to more output. In order, the producing thread waits for room after each push. The consumer takes several small
//! batches at once, concatenated, so a fast consumer receives its first rows early and a slow one receives large batches.
//!
//! Invariant: each queued batch carries its [`Charge`], so batches that are discarded return their bytes, too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use keyaki_primitives::sync::{Condvar, Mutex, MutexGuard};

use super::flow::{Charge, Flow};
use crate::base::{Error, Result};

#[derive(Debug)]
pub(crate) struct Output {
    schema: SchemaRef,
    batch_rows: usize,
    flow: Arc<Flow>,
    /// The last level of `flow`.
    level: usize,
    queue: Mutex<OutputQueue>,
    /// Signals a producing thread that there is room, or that the channel has ended.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct OutputQueue {
    batches: VecDeque<(RecordBatch, Charge)>,
    end: Option<Result<()>>,
    consumer: Option<Waker>,
}

/// Rows taken by the consumer.
#[derive(Debug)]
pub(crate) struct Taken {
    pub batch: RecordBatch,
    /// The output was full before, so tasks may be waiting for room.
    pub was_full: bool,
}

impl Output {
    /// An empty channel on the last level of `flow`. The consumer takes up to `batch_rows` rows at once, or one batch.
    pub fn new(schema: SchemaRef, batch_rows: usize, flow: &Arc<Flow>) -> Self {
        Output {
            schema,
            batch_rows: batch_rows.max(1),
            flow: flow.clone(),
            level: flow.last(),
            queue: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Adds a batch, unless the channel has ended.
    pub fn push(&self, batch: RecordBatch) {
        let mut charge = Charge::new(&self.flow, self.level);
        charge.set(batch.get_array_memory_size());
        let mut queue = self.queue.lock();
        if queue.end.is_none() {
            queue.batches.push_back((batch, charge));
            wake(queue);
        }
    }

    /// Ends the channel; only the first end counts. After an error the consumer gets no more batches.
    pub fn end(&self, end: Result<()>) {
        let mut queue = self.queue.lock();
        if queue.end.is_none() {
            if end.is_err() {
                queue.batches.clear();
            }
            queue.end = Some(end);
            wake(queue);
        }
        self.changed.notify_all();
    }

    /// The next rows; `None` at the end. Threads in [`Output::wait_for_room`] are not notified.
    pub fn poll_take(&self, context: &mut Context<'_>) -> Poll<Option<Result<Taken>>> {
        let mut queue = self.queue.lock();
        let Some(first) = queue.batches.pop_front() else {
            return match &mut queue.end {
                Some(Ok(())) => Poll::Ready(None),
                Some(end) => Poll::Ready(std::mem::replace(end, Ok(())).err().map(Err)),
                None => {
                    queue.consumer = Some(context.waker().clone());
                    Poll::Pending
                }
            };
        };
        let mut rows = first.0.num_rows();
        let (mut batches, mut charges) = (vec![first.0], vec![first.1]);
        while let Some((next, _)) = queue.batches.front()
            && rows + next.num_rows() <= self.batch_rows
        {
            rows += next.num_rows();
            if let Some((next, charge)) = queue.batches.pop_front() {
                batches.push(next);
                charges.push(charge);
            }
        }
        drop(queue);
        let batch = match batches.pop() {
            Some(only) if batches.is_empty() => Ok(only),
            last => concat_batches(&self.schema, batches.iter().chain(&last)).map_err(Error::from),
        };
        let was_full = charges.into_iter().fold(false, |was_full, charge| charge.release() | was_full);
        Poll::Ready(Some(batch.map(|batch| Taken { batch, was_full })))
    }

    /// Blocks the calling thread until the output has room or has ended.
    pub fn wait_for_room(&self) {
        let mut queue = self.queue.lock();
        while queue.end.is_none() && !self.flow.has_room(self.level) {
            self.changed.wait(&mut queue);
        }
    }

    /// Makes threads in [`Output::wait_for_room`] check for room.
    pub fn notify(&self) {
        // A thread between its check and its wait holds the lock.
        drop(self.queue.lock());
        self.changed.notify_all();
    }
}

/// Wakes the consumer after `queue` is unlocked.
fn wake(mut queue: MutexGuard<'_, OutputQueue>) {
    let consumer = queue.consumer.take();
    drop(queue);
    if let Some(consumer) = consumer {
        consumer.wake();
    }
}

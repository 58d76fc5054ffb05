//! The channel from a running query to its consumer.
//!
//! Pushing never blocks: producers look at the level of the queue (see [`crate::operators::join`]) before they start anything that
//! leads to more output. Small batches that have piled up are put together when they are taken out, so a consumer that
//! keeps up gets rows early, and one that does not gets them in large batches.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use parking_lot::{Condvar, Mutex};

use crate::{Error, Result};

#[derive(Debug)]
pub(crate) struct Output {
    schema: SchemaRef,
    batch_rows: usize,
    state: Mutex<State>,
    /// Signals a producer thread that something was taken out, or that the query was stopped.
    taken: Condvar,
}

#[derive(Debug, Default)]
struct State {
    batches: VecDeque<(RecordBatch, usize)>,
    end: Option<Result<()>>,
    consumer: Option<Waker>,
}

impl Output {
    pub fn new(schema: SchemaRef, batch_rows: usize) -> Self {
        Output { schema, batch_rows: batch_rows.max(1), state: Mutex::default(), taken: Condvar::new() }
    }

    /// Adds a batch; `bytes` is what [`Output::poll_take`] will report for it.
    pub fn push(&self, batch: RecordBatch, bytes: usize) {
        let mut state = self.state.lock();
        if state.end.is_none() {
            state.batches.push_back((batch, bytes));
            wake(state);
        }
    }

    /// Ends the channel; the first end counts. After an error the consumer gets no more batches.
    pub fn end(&self, end: Result<()>) {
        let mut state = self.state.lock();
        if state.end.is_none() {
            if end.is_err() {
                state.batches.clear();
            }
            state.end = Some(end);
            wake(state);
        }
        self.taken.notify_all();
    }

    /// The next batch with the bytes it had; the end. (Call [`Output::notify`] once the bytes are accounted for.)
    pub fn poll_take(&self, context: &mut Context<'_>) -> Poll<Option<Result<(RecordBatch, usize)>>> {
        let mut state = self.state.lock();
        let Some((first, mut bytes)) = state.batches.pop_front() else {
            return match &mut state.end {
                Some(Ok(())) => Poll::Ready(None),
                Some(end) => Poll::Ready(std::mem::replace(end, Ok(())).err().map(Err)),
                None => {
                    state.consumer = Some(context.waker().clone());
                    Poll::Pending
                }
            };
        };
        let mut rows = first.num_rows();
        let mut batches = vec![first];
        while let Some((next, _)) = state.batches.front()
            && rows + next.num_rows() <= self.batch_rows
        {
            rows += next.num_rows();
            if let Some((next, next_bytes)) = state.batches.pop_front() {
                batches.push(next);
                bytes += next_bytes;
            }
        }
        drop(state);
        let batch = match batches.pop() {
            Some(only) if batches.is_empty() => Ok(only),
            last => concat_batches(&self.schema, batches.iter().chain(&last)).map_err(Error::from),
        };
        Poll::Ready(Some(batch.map(|batch| (batch, bytes))))
    }

    /// Blocks the calling thread until `ready` or the end of the channel.
    pub fn wait_until(&self, ready: impl Fn() -> bool) {
        let mut state = self.state.lock();
        while state.end.is_none() && !ready() {
            self.taken.wait(&mut state);
        }
    }

    /// Has threads in [`Output::wait_until`] look again.
    pub fn notify(&self) {
        drop(self.state.lock());
        self.taken.notify_all();
    }
}

fn wake(mut state: parking_lot::MutexGuard<'_, State>) {
    let consumer = state.consumer.take();
    drop(state);
    if let Some(consumer) = consumer {
        consumer.wake();
    }
}

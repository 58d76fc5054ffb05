//! A worker's queue of a metered device: each request has a slot, whose number is its tag in the wrapped queue.

use std::fmt;
use std::sync::Arc;

use super::file::MeteredFile;
use super::{Issued, Meters};
use crate::interface::{Completion, Device, ErrorKind, Operation, Queue, Request, Result, Wait, Waker};
use crate::memory::Buffer;

pub(super) struct MeteredQueue {
    inner: Box<dyn Queue>,
    clock: Arc<dyn Device>,
    meters: Arc<Meters>,
    slots: Vec<Slot>,
    /// Numbers of the slots without a request.
    free: Vec<usize>,
    /// Requests to files of other devices, which have failed.
    refused: Vec<Completion>,
}

/// A request in flight.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// The tag of the request.
    tag: u64,
    kind: usize,
    operation: Operation,
    started_ns: u64,
}

impl fmt::Debug for MeteredQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeteredQueue").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

impl MeteredQueue {
    pub(super) fn new(inner: Box<dyn Queue>, clock: Arc<dyn Device>, meters: Arc<Meters>) -> Self {
        MeteredQueue { inner, clock, meters, slots: Vec::new(), free: Vec::new(), refused: Vec::new() }
    }
}

impl Queue for MeteredQueue {
    fn buffer(&mut self, len: usize) -> Buffer {
        self.inner.buffer(len)
    }

    fn push(&mut self, request: Request) {
        let file = request.file.as_any().downcast_ref::<MeteredFile>();
        let Some(file) = file.filter(|file| file.belongs_to(&self.meters)) else {
            let error = request.error(ErrorKind::ForeignFile);
            self.refused.push(request.into_completion(Err(error)));
            return;
        };
        let (operation, bytes) = request.op.describe();
        let slot = Slot { tag: request.tag, kind: file.kind, operation, started_ns: self.clock.now_ns() };
        self.meters.meter(slot.kind, operation, Issued::Queued).start(bytes);
        let number = match self.free.pop() {
            Some(number) => {
                self.slots[number] = slot;
                number
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        let file = file.inner.clone();
        self.inner.push(Request { file, offset: request.offset, op: request.op, tag: number as u64 });
    }

    fn submit(&mut self) -> Result<()> {
        self.inner.submit()
    }

    fn complete(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<usize> {
        let before = out.len();
        out.append(&mut self.refused);
        let wait = if out.len() > before { Wait::No } else { wait };
        let first = out.len();
        let result = self.inner.complete(wait, out);
        if out.len() > first {
            let now_ns = self.clock.now_ns();
            for completion in &mut out[first..] {
                let number = completion.tag as usize;
                let Slot { tag, kind, operation, started_ns } = self.slots[number];
                completion.tag = tag;
                let meter = self.meters.meter(kind, operation, Issued::Queued);
                meter.complete(now_ns.saturating_sub(started_ns), completion.result.is_ok());
                self.free.push(number);
            }
        }
        match (result, out.len() - before) {
            (Err(error), 0) => Err(error),
            (_, count) => Ok(count),
        }
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.refused.len()
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.inner.waker()
    }
}

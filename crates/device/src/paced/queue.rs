//! A worker's queue of a paced device.
//!
//! A request gets its due time when it starts, and a slot, whose number is its tag in the wrapped queue. The timers of
//! all slots are in a heap. The queue delivers a slot when its timer has expired and the wrapped queue has completed it,
//! whichever happens last. The worker sleeps in the wrapped queue, until the next timer or its own time-out.
//!
//! Wake-ups have a flag of their own, which only the worker's waits consume. The wrapped queue's wake-up merely ends its
//! wait; one that comes late ends a later wait, after which the worker finds no flag and waits again.
//!
//! Invariant: `started` slots are occupied, and `started <= depth`. Each occupied slot has a timer in the heap, or is
//! late: its timer has expired before the wrapped queue's completion.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Pace;
use super::clock::sharpen_timers;
use super::file::PacedFile;
use crate::interface::{Completion, ErrorKind, Queue, Request, Result, Wait, Waker};
use crate::memory::Buffer;

/// A queue of a paced device.
pub(super) struct PacedQueue {
    inner: Box<dyn Queue>,
    pace: Arc<Pace>,
    waker: Arc<PacedWaker>,
    depth: usize,
    /// Pushed and not started.
    backlog: VecDeque<Request>,
    slots: Vec<Slot>,
    /// Numbers of the slots without a request.
    free: Vec<usize>,
    started: usize,
    /// Due times and numbers of the slots that are not due, the earliest first.
    timers: BinaryHeap<Reverse<(u64, usize)>>,
    /// Completions of the wrapped queue, between two calls empty.
    arrived: Vec<Completion>,
}

/// A request that has started.
#[derive(Debug, Default)]
struct Slot {
    /// The tag of the request.
    tag: u64,
    /// The due time has passed.
    due: bool,
    /// The wrapped queue's completion.
    completion: Option<Completion>,
}

impl fmt::Debug for PacedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (started, backlog) = (self.started, self.backlog.len());
        f.debug_struct("PacedQueue").field("started", &started).field("backlog", &backlog).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct PacedWaker {
    /// A wake-up is pending.
    notified: AtomicBool,
    inner: Arc<dyn Waker>,
}

impl Waker for PacedWaker {
    fn wake(&self) {
        self.notified.store(true, Ordering::SeqCst);
        self.inner.wake();
    }
}

impl PacedQueue {
    pub(super) fn new(inner: Box<dyn Queue>, depth: usize, pace: Arc<Pace>) -> Self {
        let waker = Arc::new(PacedWaker { notified: AtomicBool::new(false), inner: inner.waker() });
        PacedQueue {
            inner,
            pace,
            waker,
            depth: depth.max(1),
            backlog: VecDeque::new(),
            slots: Vec::new(),
            free: Vec::new(),
            started: 0,
            timers: BinaryHeap::new(),
            arrived: Vec::new(),
        }
    }

    /// Starts requests of the backlog as far as the depth allows.
    fn start(&mut self) {
        if self.backlog.is_empty() || self.started >= self.depth {
            return;
        }
        let pace = self.pace.clone();
        let mut service = pace.service.lock();
        let now_ns = pace.clock.now_ns();
        while self.started < self.depth
            && let Some(request) = self.backlog.pop_front()
        {
            self.started += 1;
            let number = self.free.pop().unwrap_or_else(|| {
                self.slots.push(Slot::default());
                self.slots.len() - 1
            });
            let Request { tag, offset, .. } = request;
            let file = request.file.as_any().downcast_ref::<PacedFile>();
            let Some(file) = file.filter(|file| file.belongs_to(&self.pace)) else {
                let error = request.error(ErrorKind::ForeignFile);
                self.timers.push(Reverse((now_ns, number)));
                self.slots[number] = Slot { tag, due: false, completion: Some(request.into_completion(Err(error))) };
                continue;
            };
            let (_, bytes) = request.op.describe();
            let due_ns = service.completion_ns(now_ns, file.address(offset), bytes as u64);
            assert!(due_ns >= now_ns, "a request is due before it starts");
            self.timers.push(Reverse((due_ns, number)));
            self.slots[number] = Slot { tag, due: false, completion: None };
            let file = file.inner.clone();
            self.inner.push(Request { file, offset, op: request.op, tag: number as u64 });
        }
    }

    /// Starts requests, waits in the wrapped queue, and moves requests that are complete and due to `out`.
    fn exchange(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<()> {
        self.start();
        let mut arrived = std::mem::take(&mut self.arrived);
        let result = self.inner.complete(wait, &mut arrived);
        for completion in arrived.drain(..) {
            let number = completion.tag as usize;
            let slot = &mut self.slots[number];
            assert!(slot.completion.is_none(), "slot {number} is completed twice");
            slot.completion = Some(completion);
            if slot.due {
                self.deliver(number, out);
            }
        }
        self.arrived = arrived;
        self.expire(out);
        result.map(drop)
    }

    /// Moves the completed requests whose timers have expired to `out`.
    fn expire(&mut self, out: &mut Vec<Completion>) {
        if self.timers.is_empty() {
            return;
        }
        let now_ns = self.pace.clock.now_ns();
        while let Some(&Reverse((due_ns, number))) = self.timers.peek()
            && due_ns <= now_ns
        {
            self.timers.pop();
            self.slots[number].due = true;
            if self.slots[number].completion.is_some() {
                self.deliver(number, out);
            }
        }
    }

    /// Moves a completion to `out` and frees its slot.
    fn deliver(&mut self, number: usize, out: &mut Vec<Completion>) {
        let slot = &mut self.slots[number];
        assert!(slot.due, "slot {number} is delivered before its due time");
        if let Some(completion) = slot.completion.take() {
            out.push(Completion { tag: slot.tag, ..completion });
            self.free.push(number);
            self.started -= 1;
        }
    }

    /// Waits for a completion, a wake-up or the end of the time-out.
    fn wait(&mut self, timeout: Option<Duration>, out: &mut Vec<Completion>) -> Result<()> {
        sharpen_timers();
        let nanoseconds = |timeout: Duration| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let deadline_ns = timeout.map(|timeout| self.pace.clock.now_ns().saturating_add(nanoseconds(timeout)));
        let before = out.len();
        while out.len() == before && !self.waker.notified.swap(false, Ordering::SeqCst) {
            let now_ns = self.pace.clock.now_ns();
            if deadline_ns.is_some_and(|deadline_ns| deadline_ns <= now_ns) {
                return Ok(());
            }
            let timer_ns = self.timers.peek().map(|&Reverse((due_ns, _))| due_ns);
            let until_ns = timer_ns.into_iter().chain(deadline_ns).min();
            let rest = until_ns.map(|until_ns| Duration::from_nanos(until_ns.saturating_sub(now_ns)));
            self.exchange(Wait::Until(rest), out)?;
        }
        Ok(())
    }

    /// [`Queue::complete`] without the count. On error, completions may have been moved too.
    fn try_complete(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<()> {
        let before = out.len();
        self.exchange(Wait::No, out)?;
        if let Wait::Until(timeout) = wait
            && out.len() == before
        {
            self.wait(timeout, out)?;
        }
        if !self.backlog.is_empty() && self.started < self.depth {
            self.submit()?;
        }
        Ok(())
    }
}

impl Queue for PacedQueue {
    fn buffer(&mut self, len: usize) -> Buffer {
        self.inner.buffer(len)
    }

    fn push(&mut self, request: Request) {
        self.backlog.push_back(request);
    }

    fn submit(&mut self) -> Result<()> {
        self.start();
        self.inner.submit()
    }

    fn complete(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<usize> {
        let before = out.len();
        let result = self.try_complete(wait, out);
        match (out.len() - before, result) {
            (0, Err(error)) => Err(error),
            (count, _) => Ok(count),
        }
    }

    fn in_flight(&self) -> usize {
        self.started + self.backlog.len()
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.waker.clone()
    }
}

impl Drop for PacedQueue {
    /// Waits for the due times of the started requests; the wrapped queue then waits for the requests themselves.
    fn drop(&mut self) {
        let last_ns = self.timers.iter().map(|&Reverse((due_ns, _))| due_ns).max();
        self.pace.clock.sleep_until(last_ns.unwrap_or(0));
    }
}

//! A worker's queue with its own ring.
//!
//! Requests move from `pending` into slots as the depth allows, and from there into the ring. Requests that complete
//! without the kernel (invalid or empty ones) wait in `ready`.
//!
//! Invariant: the ring is replaced or dropped only while the kernel works on none of the requests; otherwise the slots
//! are leaked.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inflight::InFlight;
use super::ring::{Block, Ring, Setup, depth_granted};
use super::waker::UringWaker;
use crate::interface::{Completion, Error, ErrorKind, Operation, Queue, Request, Result, Wait, Waker};
use crate::memory::{Arena, Buffer};

/// User data of the poll on the waker's eventfd. Requests never have this value.
const WAKE: u64 = u64::MAX;

/// A queue of io_uring.
pub(super) struct UringQueue {
    ring: Ring,
    inflight: InFlight,
    /// Pushed and not yet in a slot.
    pending: VecDeque<Request>,
    /// Completed without the kernel, and not yet collected.
    ready: Vec<Completion>,
    arena: Arena,
    waker: Arc<UringWaker>,
    /// The poll on the waker's eventfd is in the ring.
    armed: bool,
}

impl UringQueue {
    pub(super) fn new(depth: usize, setup: Setup) -> Result<Self> {
        let new = || {
            Ok(UringQueue {
                ring: Ring::new(depth, setup)?,
                inflight: InFlight::new(depth_granted(depth)),
                pending: VecDeque::new(),
                ready: Vec::new(),
                arena: Arena::new(depth),
                waker: Arc::new(UringWaker::new()?),
                armed: false,
            })
        };
        new().map_err(|error: io::Error| Error::without_path(Operation::CreateQueue, error))
    }

    /// Makes the calling thread the owner of the ring.
    fn claim(&mut self) -> Result<(), ErrorKind> {
        if self.ring.claim()? {
            return Ok(());
        }
        if self.in_kernel() > 0 {
            return Err(ErrorKind::QueueMoved);
        }
        // Entries that were not submitted are lost with the old ring: their requests need new ones.
        self.ring = self.ring.renewed(self.inflight.capacity())?;
        // SAFETY: the kernel had none of the requests, and the old ring with its completions is gone.
        unsafe { self.inflight.forget_entries() };
        self.armed = false;
        let claimed = self.ring.claim()?;
        assert!(claimed, "a new ring belongs to its first claimer");
        Ok(())
    }

    /// Requests that the kernel may be working on.
    fn in_kernel(&mut self) -> usize {
        let outside = self.inflight.unqueued() + self.ring.queued_requests();
        assert!(outside <= self.inflight.len(), "more entries than requests in flight");
        self.inflight.len() - outside
    }

    /// Moves pending requests into free slots, and the entries of all slots into the ring, as far as there is room.
    fn feed(&mut self) {
        while self.inflight.has_room()
            && let Some(request) = self.pending.pop_front()
        {
            if let Some(completion) = self.inflight.start(request) {
                self.ready.push(completion);
            }
        }
        // SAFETY: `reap` passes the completions of the ring to `finish`, and `drop` waits for them or leaks the slots.
        // When `claim` replaces the ring it calls `forget_entries`.
        unsafe { self.inflight.feed(&mut self.ring, &self.arena) };
    }

    /// Ensures that the ring polls the waker's eventfd.
    fn arm(&mut self) {
        if !self.armed {
            self.armed = self.ring.push_poll(self.waker.event_fd(), WAKE);
        }
    }

    /// Moves completions to `out`. Fails only if the kernel cannot poll the waker, after moving all completions.
    fn reap(&mut self, out: &mut Vec<Completion>) -> io::Result<()> {
        let mut result = Ok(());
        out.append(&mut self.ready);
        for entry in self.ring.completions() {
            if entry.user_data() != WAKE {
                // SAFETY: the entry is from the ring that `feed` pushes to, and `completions` yields it once.
                out.extend(unsafe { self.inflight.finish(&entry) });
                continue;
            }
            self.armed = io_uring::cqueue::more(entry.flags());
            if entry.result() < 0 {
                result = Err(io::Error::from_raw_os_error(entry.result().saturating_neg()));
            }
        }
        result
    }

    /// Blocks until a completion was moved to `out`, a wake-up arrived, or the deadline has passed.
    fn wait(&mut self, deadline: Option<Instant>, out: &mut Vec<Completion>) -> io::Result<()> {
        let before = out.len();
        loop {
            self.feed();
            self.arm();
            let block = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                _ if !self.ready.is_empty() => Block::No,
                None => Block::UntilCompletion,
                Some(Duration::ZERO) => Block::No,
                Some(rest) => Block::AtMost(rest),
            };
            self.ring.enter(block)?;
            self.reap(out)?;
            if out.len() > before || block == Block::No || self.waker.is_notified() {
                return Ok(());
            }
        }
    }

    /// [`Queue::complete`] without the count. On error, completions may have been moved too.
    fn try_complete(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<(), ErrorKind> {
        self.claim()?;
        let before = out.len();
        self.reap(out)?;
        if let Wait::Until(timeout) = wait
            && out.len() == before
            && self.waker.begin_wait()
        {
            let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
            let result = self.wait(deadline, out);
            self.waker.end_wait(out.len() > before);
            return Ok(result?);
        }
        self.feed();
        if self.ring.has_work() {
            self.ring.enter(Block::No)?;
        }
        Ok(self.reap(out)?)
    }

    /// Waits until the kernel works on none of the requests. Requests that it has not taken are not started.
    fn drain(&mut self) -> Result<(), ErrorKind> {
        let mut completed = Vec::new();
        while self.in_kernel() > 0 {
            if !self.ring.claim()? {
                return Err(ErrorKind::QueueMoved);
            }
            self.ring.wait_only()?;
            self.reap(&mut completed)?;
        }
        Ok(())
    }
}

impl Queue for UringQueue {
    fn buffer(&mut self, len: usize) -> Buffer {
        Buffer::from_arena(&mut self.arena, len)
    }

    fn push(&mut self, request: Request) {
        self.pending.push_back(request);
    }

    fn submit(&mut self) -> Result<()> {
        let mut submit = || {
            self.claim()?;
            self.feed();
            if self.ring.queued() > 0 {
                self.ring.enter(Block::No)?;
            }
            Ok(())
        };
        submit().map_err(|kind: ErrorKind| Error::without_path(Operation::Submit, kind))
    }

    fn complete(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<usize> {
        let before = out.len();
        match self.try_complete(wait, out) {
            // Completions are delivered in any case. A persistent error returns from the next call.
            Err(kind) if out.len() == before => Err(Error::without_path(Operation::Complete, kind)),
            _ => Ok(out.len() - before),
        }
    }

    fn in_flight(&self) -> usize {
        self.pending.len() + self.inflight.len() + self.ready.len()
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.waker.clone()
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        if let Err(error) = self.drain() {
            tracing::error!(%error, "an I/O queue was dropped with requests in flight, leaking their memory");
            std::mem::forget(std::mem::replace(&mut self.inflight, InFlight::new(0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::probe;
    use super::*;
    use crate::interface::{Device, File, Op, OpenMode};
    use crate::memory::BLOCK;
    use crate::os::OsDevice;

    fn device() -> OsDevice<Setup> {
        OsDevice::new(probe().unwrap(), crate::os::Caching::Bypass)
    }

    /// A file of 64 blocks, and a queue with reads of it in flight.
    fn busy() -> (tempfile::TempDir, Box<dyn Queue>) {
        let dir = tempfile::tempdir().unwrap();
        let device = device();
        let file: Arc<dyn File> = device.open(&dir.path().join("file"), OpenMode::CreateNew).unwrap();
        file.write_at(0, &Buffer::zeroed(64 * BLOCK)).unwrap();
        let mut queue = device.queue(16).unwrap();
        for tag in 0..16 {
            let buffer = if tag % 2 == 0 { queue.buffer(4 * BLOCK) } else { Buffer::zeroed(4 * BLOCK) };
            queue.push(Request { file: file.clone(), offset: tag * 4 * BLOCK as u64, op: Op::Read(buffer), tag });
        }
        queue.submit().unwrap();
        (dir, queue)
    }

    #[test]
    fn a_busy_queue_cannot_change_threads() {
        let (_dir, mut queue) = busy();
        let mut completed = Vec::new();
        let result = std::thread::scope(|scope| {
            let other = scope.spawn(|| queue.complete(Wait::Until(None), &mut Vec::new()));
            other.join().unwrap()
        });
        let error = result.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::QueueMoved) && error.path.is_none(), "{error}");
        // The owner loses nothing.
        while completed.len() < 16 {
            queue.complete(Wait::Until(None), &mut completed).unwrap();
        }
        assert!(completed.iter().all(|completion| completion.result.is_ok()));
    }

    #[test]
    fn a_busy_queue_may_be_dropped_anywhere() {
        let (_dir, queue) = busy();
        // Its memory is leaked, because this thread cannot find out when the kernel is done with it.
        std::thread::spawn(move || drop(queue)).join().unwrap();
        let (_dir, queue) = busy();
        drop(queue);
    }

    #[test]
    fn excessive_depths_are_limited() {
        let device = device();
        let mut queue = device.queue(100_000).unwrap();
        assert_eq!(queue.complete(Wait::No, &mut Vec::new()).unwrap(), 0);
        assert_eq!(device.queue(0).unwrap().in_flight(), 0);
    }
}

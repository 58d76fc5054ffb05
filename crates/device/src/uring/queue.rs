//! A worker's queue over a ring of its own.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inflight::InFlight;
use super::ring::{Block, Ring, Setup, depth_granted};
use super::waker::UringWaker;
use crate::arena::Arena;
use crate::{Buffer, Completion, Error, Queue, Request, Result, Wait, Waker};

/// User data of the poll on the waker's eventfd; requests have their slot's index.
const WAKE: u64 = u64::MAX;

pub(crate) struct UringQueue {
    ring: Ring,
    inflight: InFlight,
    /// Pushed and not yet in a slot.
    pending: VecDeque<Request>,
    /// Completed without the kernel.
    ready: Vec<Completion>,
    arena: Arena,
    waker: Arc<UringWaker>,
    /// The poll on the waker's eventfd is in the ring.
    armed: bool,
}

impl UringQueue {
    pub(crate) fn new(depth: usize, setup: Setup) -> Result<Self> {
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
        new().map_err(|error| failed("queue", error))
    }

    /// Makes the ring the calling thread's.
    fn claim(&mut self) -> io::Result<()> {
        if self.ring.claim()? {
            return Ok(());
        }
        if self.in_kernel() > 0 {
            return Err(io::Error::other("the queue was moved to another thread with requests in flight"));
        }
        // Unsubmitted entries die with the old ring: their requests need new ones.
        self.ring = self.ring.renewed(self.inflight.capacity())?;
        self.inflight.forget_entries();
        self.armed = false;
        self.ring.claim().map(drop)
    }

    /// Requests that the kernel may be working on.
    fn in_kernel(&mut self) -> usize {
        self.inflight.len() - self.inflight.waiting_for_retry() - self.ring.queued_requests()
    }

    /// Gives the ring as much as it may have.
    fn feed(&mut self) {
        while self.inflight.has_room()
            && let Some(request) = self.pending.pop_front()
        {
            if let Err(completion) = self.inflight.start(request) {
                self.ready.push(completion);
            }
        }
        self.inflight.feed(&mut self.ring, &self.arena);
    }

    fn arm(&mut self) {
        if !self.armed {
            self.armed = self.ring.push_poll(self.waker.event_fd(), WAKE);
        }
    }

    /// Moves what has completed to `out`. Fails only if the waker cannot be polled (after moving everything).
    fn reap(&mut self, out: &mut Vec<Completion>) -> io::Result<()> {
        let mut result = Ok(());
        out.append(&mut self.ready);
        for answer in self.ring.completions() {
            if answer.user_data() != WAKE {
                out.extend(self.inflight.finish(&answer));
                continue;
            }
            self.armed = io_uring::cqueue::more(answer.flags());
            if answer.result() < 0 {
                result = Err(io::Error::from_raw_os_error(-answer.result()));
            }
        }
        result
    }

    /// Blocks until there is something for `out`, a wake-up, or the deadline has passed.
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

    fn complete_or_fail(&mut self, wait: Wait, out: &mut Vec<Completion>) -> io::Result<()> {
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
            return result;
        }
        self.feed();
        if self.ring.has_work() {
            self.ring.enter(Block::No)?;
        }
        self.reap(out)
    }

    /// Waits until the kernel has let go of all requests; those it has not seen yet are not started.
    fn drain(&mut self) -> io::Result<()> {
        let mut completed = Vec::new();
        while self.in_kernel() > 0 {
            if !self.ring.claim()? {
                return Err(io::Error::other("dropped on another thread than the one that used it"));
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
            if self.ring.queued() > 0 { self.ring.enter(Block::No) } else { Ok(()) }
        };
        submit().map_err(|error| failed("submit", error))
    }

    fn complete(&mut self, wait: Wait, out: &mut Vec<Completion>) -> Result<usize> {
        let before = out.len();
        match self.complete_or_fail(wait, out) {
            // What has completed is handed over in any case; a lasting error will be seen by the next call.
            Err(error) if out.len() == before => Err(failed("complete", error)),
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
            tracing::error!(%error, "an I/O queue was dropped with requests in flight; their memory is leaked");
            std::mem::forget(std::mem::replace(&mut self.inflight, InFlight::new(0)));
        }
    }
}

fn failed(operation: &'static str, error: io::Error) -> Error {
    Error::on_path(operation, Path::new("io_uring"), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BLOCK, File, Op, OpenMode, uring};

    /// A file of 64 blocks, and a queue with reads of it in flight.
    fn busy() -> (tempfile::TempDir, Box<dyn Queue>) {
        let dir = tempfile::tempdir().unwrap();
        let device = uring().unwrap();
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
    fn a_busy_queue_does_not_change_threads() {
        let (_dir, mut queue) = busy();
        let mut completed = Vec::new();
        let error = std::thread::scope(|scope| {
            let stranger = scope.spawn(|| queue.complete(Wait::Until(None), &mut Vec::new()));
            stranger.join().unwrap()
        });
        assert!(error.unwrap_err().to_string().contains("another thread"));
        // Nothing is lost for its owner.
        while completed.len() < 16 {
            queue.complete(Wait::Until(None), &mut completed).unwrap();
        }
        assert!(completed.iter().all(|completion| completion.result.is_ok()));
    }

    #[test]
    fn a_busy_queue_may_be_dropped_anywhere() {
        let (_dir, queue) = busy();
        // Its memory is leaked, because this thread cannot learn when the kernel is done with it.
        std::thread::spawn(move || drop(queue)).join().unwrap();
        let (_dir, queue) = busy();
        drop(queue);
    }

    #[test]
    fn great_depths_are_granted_in_part() {
        let device = uring().unwrap();
        let mut queue = device.queue(100_000).unwrap();
        assert_eq!(queue.complete(Wait::No, &mut Vec::new()).unwrap(), 0);
        assert_eq!(device.queue(0).unwrap().in_flight(), 0);
    }
}

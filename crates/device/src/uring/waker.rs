//! Wakes a worker that sleeps in `io_uring_enter`. If the worker does not sleep, a wake-up costs one atomic exchange.
//!
//! The worker moves the state from IDLE to WAITING before it blocks, and back to IDLE afterwards. [`Waker::wake`] sets
//! it to NOTIFIED; only a caller that replaces WAITING writes to the eventfd. The ring polls the eventfd with a
//! multishot poll: one submission serves all wake-ups, each write gives a completion, and the eventfd is never read. A
//! completion of the poll alone is not a wake-up. The worker was woken if the state is NOTIFIED; it resets the state to
//! IDLE when it returns for that reason.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use keyaki_primitives::sync::atomic::{AtomicU8, Ordering};
use rustix::event::EventfdFlags;

use crate::interface::Waker;

const IDLE: u8 = 0;
const WAITING: u8 = 1;
const NOTIFIED: u8 = 2;

/// The waker of one queue.
#[derive(Debug)]
pub(super) struct UringWaker {
    state: AtomicU8,
    event: OwnedFd,
}

impl UringWaker {
    pub(super) fn new() -> std::io::Result<Self> {
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(UringWaker { state: AtomicU8::new(IDLE), event })
    }

    /// The eventfd, for the ring's poll.
    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Called by the worker before it blocks. False: a wake-up was pending, which this call consumes; do not block.
    pub(super) fn begin_wait(&self) -> bool {
        if self.state.compare_exchange(IDLE, WAITING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return true;
        }
        let before = self.state.swap(IDLE, Ordering::AcqRel);
        assert_eq!(before, NOTIFIED, "only the worker sets WAITING, and it ends each wait");
        false
    }

    /// True if a wake-up arrived during the wait.
    pub(super) fn is_notified(&self) -> bool {
        self.state.load(Ordering::Acquire) == NOTIFIED
    }

    /// Called by the worker after blocking. `keep_notification`: a wake-up stays pending for the next wait, because
    /// this wait returns completions.
    pub(super) fn end_wait(&self, keep_notification: bool) {
        if keep_notification {
            // Fails if the state is NOTIFIED, which is kept.
            let _ = self.state.compare_exchange(WAITING, IDLE, Ordering::AcqRel, Ordering::Acquire);
        } else {
            self.state.swap(IDLE, Ordering::AcqRel);
        }
    }
}

impl Waker for UringWaker {
    fn wake(&self) {
        if self.state.swap(NOTIFIED, Ordering::AcqRel) != WAITING {
            return;
        }
        loop {
            match rustix::io::write(&self.event, &1_u64.to_ne_bytes()) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    // Fails only if the counter is at its maximum, after 2^64 - 2 wake-ups.
                    tracing::error!(%error, "could not wake an I/O worker");
                    return;
                }
                Ok(_) => return,
            }
        }
    }
}

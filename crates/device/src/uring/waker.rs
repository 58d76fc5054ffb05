//! Waking a worker that sleeps in `io_uring_enter`, at the price of one atomic exchange when it does not sleep.
//!
//! The state goes IDLE → WAITING (worker, before it blocks) → IDLE (worker, after), and to NOTIFIED by [`Waker::wake`];
//! only who finds WAITING there writes to the eventfd. The ring polls the eventfd (multishot: one submission serves for
//! ever, and each write gives a completion), so nobody ever reads it. A completion of the poll alone means nothing: the
//! worker was woken if the state is NOTIFIED, which it takes back to IDLE when that is why it returns.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::event::EventfdFlags;

use crate::Waker;

const IDLE: u8 = 0;
const WAITING: u8 = 1;
const NOTIFIED: u8 = 2;

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

    pub(super) fn event_fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// Before blocking. False: there is a notification (now taken), do not block.
    pub(super) fn begin_wait(&self) -> bool {
        if self.state.compare_exchange(IDLE, WAITING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            return true;
        }
        // NOTIFIED, as only the worker itself sets WAITING, and it always ends its wait.
        self.state.swap(IDLE, Ordering::AcqRel);
        false
    }

    /// While blocking: has somebody called?
    pub(super) fn is_notified(&self) -> bool {
        self.state.load(Ordering::Acquire) == NOTIFIED
    }

    /// After blocking. A notification is kept for the next wait if this one has something else to show.
    pub(super) fn end_wait(&self, keep_notification: bool) {
        if keep_notification {
            // Fails if NOTIFIED, which is what to keep.
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
                    // Only a counter at its maximum (2^64 - 2 wake-ups) could refuse.
                    tracing::error!(%error, "cannot wake an I/O worker");
                    return;
                }
                Ok(_) => return,
            }
        }
    }
}

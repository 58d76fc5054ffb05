//! Queues over Linux io_uring.
//!
//! Each [`UringQueue`] has its own ring, so workers share nothing:
//!
//! ```text
//! push ──> pending ──> in flight ──> SQ ═╗ io_uring_enter: submits all and waits, in one system call
//!                      │ slots │         ║
//! out  <── completion ─┴───────┴──── CQ ═╝ also holds one multishot poll on the waker's eventfd
//! ```
//!
//! At most `depth` requests are in flight, and both rings have room for all of them and the poll, so neither ever
//! overflows. A slot keeps its request (file and buffer) alive until the completion arrives. The user data of the entry
//! are the slot's index and generation.
//!
//! If the kernel supports them, the ring is SINGLE_ISSUER and DEFER_TASKRUN ([`Setup::Deferred`]): the worker processes
//! completions in its own system calls instead of being interrupted. Such a ring belongs to the thread that first uses
//! it: it is created disabled, and enabled by the first submission. An idle queue that is used on another thread gets a
//! new ring. Using a queue on another thread while it is busy is an error.
//!
//! Invariant: memory that the kernel may still access is never freed. Dropping a queue waits for its requests; if that
//! is impossible, because another thread owns the ring, their memory is leaked.

mod inflight;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod queue;
mod ring;
mod waker;

use crate::interface::{Queue, Result};
use crate::os::Backend;

use queue::UringQueue;
pub(crate) use ring::{Setup, probe};

impl Backend for Setup {
    const NAME: &'static str = "uring";

    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        Ok(Box::new(UringQueue::new(depth, *self)?))
    }

    fn movable_queue(&self, depth: usize) -> Result<Box<dyn Queue>> {
        Ok(Box::new(UringQueue::new(depth, self.without_owner())?))
    }
}

//! Requests kept in flight by Linux io_uring.
//!
//! Each [`UringQueue`] has a ring of its own, so workers share nothing:
//!
//! ```text
//! push ──> pending ──> in flight ──> SQ ═╗ io_uring_enter: submits all and waits, in one system call
//!                      │ slots │         ║
//! out  <── completion ─┴───────┴──── CQ ═╝ also: one multishot poll on the waker's eventfd
//! ```
//!
//! Never more than `depth` requests are in flight, and the rings have room for all of them and the poll, so neither
//! ever overflows. A slot keeps the request (file and buffer) alive until its completion arrives; its index is the
//! completion's user data.
//!
//! Where the kernel has them, the ring is SINGLE_ISSUER and DEFER_TASKRUN ([`Setup::Deferred`]): completions are processed
//! when the worker asks, not by interrupting it. Such a ring belongs to the thread that first uses it: it is made disabled and enabled at
//! the first submission. A queue that moves on while idle gets a new ring; while busy, using it is an error.
//!
//! Invariant: memory that the kernel may still touch is never freed. Dropping a queue waits for its requests; where that
//! is impossible (the wrong thread), their memory is leaked.

mod inflight;
mod queue;
mod ring;
mod waker;

pub(crate) use queue::UringQueue;
pub(crate) use ring::{Setup, probe};

//! Asynchronous block I/O over files.
//!
//! A [`Device`] opens [`File`]s and creates [`Queue`]s. Files offer blocking calls, for the log, flushes and
//! checkpoints. A queue belongs to one worker thread and keeps many requests in flight: requests are pushed, handed to
//! the operating system in one batch by [`Queue::submit`], and come back in any order from [`Queue::complete`].
//!
//! There are three devices: [`uring`] (Linux io_uring, direct I/O), [`threads`] (a portable pool of blocking calls) and
//! [`simulated`] (in memory, deterministic, virtual time, injected faults).
//!
//! Invariants: offsets, lengths and buffer addresses are multiples of [`BLOCK`]. Crates above this one do all data I/O
//! through it.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod arena;
mod buffer;
pub mod calibrate;
#[cfg(test)]
mod conformance;
mod device;
mod error;
#[cfg(unix)]
mod os;
mod queue;
mod request;
#[cfg(unix)]
mod select;
pub mod simulated;
#[cfg(unix)]
mod threads;
#[cfg(target_os = "linux")]
mod uring;

pub use buffer::{BLOCK, Buffer};
pub use device::{Device, File, Lock, OpenMode};
pub use error::{ByteRange, Error, ErrorKind, Operation, Result};
pub use queue::{Completion, Op, Queue, Request, Wait, Waker};
#[cfg(unix)]
pub use select::{open_default, threads, uring};

/// Runs the README's example.
#[cfg(all(doctest, unix))]
#[doc = include_str!("../README.md")]
struct Readme;

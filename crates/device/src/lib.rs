//! Asynchronous block I/O over files.
//!
//! A [`Device`] opens [`File`]s and creates [`Queue`]s. Files offer blocking calls, for the log, flushes and
//! checkpoints. A queue belongs to one worker thread and keeps many requests in flight: requests are pushed, handed to
//! the operating system in one batch by [`Queue::submit`], and come back in any order from [`Queue::complete`].
//!
//! There are five devices: [`uring`] (Linux io_uring, direct I/O), [`threads`] (a portable pool of blocking calls),
//! [`simulated`] (in memory, deterministic, virtual time, injected faults), [`paced`] (another device, slowed down to
//! the service times of a model) and [`metered`] (another device, whose requests are counted).
//!
//! The modules are layers, lowest first; a module uses its own layer and the layers before it:
//! `memory, model < interface < os, simulated < metered, paced, threads, uring < select < calibrate`.
//!
//! Invariants: offsets, lengths and buffer addresses are multiples of [`BLOCK`]. Crates above this one do all data I/O
//! through it.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod calibrate;
#[cfg(test)]
mod conformance;
mod interface;
mod memory;
pub mod metered;
pub mod model;
#[cfg(unix)]
mod os;
pub mod paced;
#[cfg(unix)]
mod select;
pub mod simulated;
#[cfg(unix)]
mod threads;
#[cfg(target_os = "linux")]
mod uring;

pub use interface::{
    ByteRange, Completion, Device, Error, ErrorKind, File, Lock, Op, OpenMode, Operation, Queue, Request, Result, Wait,
    Waker,
};
pub use memory::{BLOCK, Buffer};
#[cfg(unix)]
pub use select::{open_cached, open_default, threads, uring};

/// Runs the README's example.
#[cfg(all(doctest, unix))]
#[doc = include_str!("../README.md")]
struct Readme;

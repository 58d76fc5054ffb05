//! Keeps index nodes and other hot data in the CPU's last-level cache while large scans stream past.
//!
//! - [`Governor`]: threads announce the class of their work (sensitive, adaptive, streaming). The governor adjusts
//!   capacity bit masks to the classes that run, and warms and pins memory. It uses hardware partitioning where the
//!   machine has it, else scans that bypass the cache, and reports the reason.
//! - [`resctrl`]: hardware partitioning on Linux (Intel CAT, AMD QoS): classes of service, capacity bit masks,
//!   monitoring.
//! - [`software`]: scans that bypass the cache, on every machine, with a method chosen by measurement.
//! - [`Caches`], [`calibrate`]: the caches as the system describes them, and as measured.
//! - [`sim`]: a simulator of caches whose ways are divided among classes of service. It tests policies.
//!
//! Each module can be used alone. Only the governor uses the others.
//!
//! Invariants: the operating system's state is restored. Groups are removed when they are dropped, at exit, and after a
//! crash by the next process that starts. Groups of others are never touched. No policy changes the results of a
//! program.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

pub mod calibrate;
pub mod governor;
mod machine;
mod mask;
pub mod resctrl;
pub mod sim;
pub mod software;
mod stats;

pub use governor::{Governor, GovernorOptions, Pin, WeakGovernor, WorkClass, Worker};
pub use machine::{Cache, CacheKind, Caches};
pub use mask::CapacityMask;
pub use stats::Quartiles;

/// Runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

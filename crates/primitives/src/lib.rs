//! Small primitives that the other crates share.
//!
//! - [`CACHE_LINE_BYTES`], [`prefetch`], [`prefetch_non_temporal`]: the processor's cache lines.
//! - [`AlignedMemory`]: owned, zeroed memory, in 2 MiB pages where it is large.
//! - [`HyperLogLog`]: estimates the number of distinct values.
//! - [`Random`]: a seeded random number generator whose sequence never changes.
//! - [`enter_background`]: a lower priority for background threads.
//! - [`sync`]: locks, atomics and threads, which tests can schedule deterministically.
//!
//! Invariants: every function is safe for every argument that its signature admits. Outside of [`sync`], no result
//! depends on the clock, the environment or global state, so equal calls give equal results on every machine.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod cache;
mod hyperloglog;
mod memory;
mod random;
pub mod sync;
mod thread;

pub use cache::{CACHE_LINE_BYTES, prefetch, prefetch_non_temporal};
pub use hyperloglog::HyperLogLog;
pub use memory::{AlignedMemory, HUGE_PAGE_BYTES};
pub use random::Random;
pub use thread::enter_background;

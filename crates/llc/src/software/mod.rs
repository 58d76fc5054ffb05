//! Keeping scans out of the caches without help from hardware partitioning.
//!
//! - [`ScanBuffers`]: what is read from files goes through a few buffers, used again and again, that fit into L2 together: then the
//!   data of a scan never reach the last level as lines of their own.
//! - [`for_each_block`]: a walk over memory that brings lines in by non-temporal prefetches, some way ahead, or throws them out
//!   (`clflushopt`) some way behind; [`sum`], [`count_between`] and [`count_byte`] are scans made of it.
//! - [`Tuning`]: what helps differs between processors, and the wrong distance does harm: so it is measured, once, in less than
//!   half a second, can be stored, and says "plain" where nothing helps.

mod buffers;
mod scan;
mod tuning;

pub use buffers::{AlignedBytes, ScanBuffer, ScanBuffers};
pub use scan::{BLOCK_BYTES, ScanMethod, count_between, count_byte, flush, for_each_block, prefetch_non_temporal, sum};
pub use tuning::{Figure, Tuning, TuningError, TuningOptions};

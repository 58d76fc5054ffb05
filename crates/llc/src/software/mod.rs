//! Scans that bypass the cache, for machines without hardware partitioning.
//!
//! - [`ScanBuffers`]: a scan of files reads into a few reused buffers that fit into half of L2 together, so its data do
//!   not occupy the last level.
//! - [`for_each_block`]: a walk over memory that loads lines by non-temporal prefetches a distance ahead, or flushes
//!   them (`clflushopt`) a distance behind. [`sum`], [`count_between`] and [`count_byte`] are scans built on it.
//! - [`Tuning`]: the best method differs between processors, and a wrong distance does harm. The method is therefore
//!   measured once, in less than half a second, and can be stored. Plain loads are chosen where no method helps.

mod buffers;
mod scan;
mod tuning;

pub use buffers::{AlignedBytes, ScanBuffer, ScanBuffers};
pub use scan::{BLOCK_BYTES, ScanMethod, count_between, count_byte, flush, for_each_block, prefetch_non_temporal, sum};
pub use tuning::{Figure, Tuning, TuningError, TuningOptions};

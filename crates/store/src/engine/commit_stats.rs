//! Counters and latencies of commits.

use std::time::Instant;

use keyaki_device::metered::Metered;

/// The commits since the store was opened.
#[derive(Debug, Clone, Default)]
pub struct CommitStats {
    /// Commits, the bytes of their changes, and the times until they were durable as far as
    /// [`Durability`](crate::Durability) requires, of those that were waited for.
    pub commits: Metered,
    /// Waits of commits, also of refused ones, for a flush, because the buffers were full.
    pub stalls: Metered,
}

/// The time since `start` in nanoseconds.
pub(crate) fn nanoseconds_since(start: Instant) -> u64 {
    start.elapsed().as_nanos().try_into().unwrap_or(u64::MAX)
}

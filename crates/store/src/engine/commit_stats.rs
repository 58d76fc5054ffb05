//! Counters and latencies of commits.

use std::time::Instant;

use keyaki_device::metered::Metered;

/// The commits since the store was opened.
#[derive(Debug, Clone, Default)]
pub struct CommitStats {
    /// Commits, the bytes of their changes, and their latencies until they are as durable as
    /// [`Durability`](crate::Durability) requires. A commit has no latency if its writer does not wait for it.
    pub commits: Metered,
    /// Waits of commits, also of refused ones, because the buffers exceeded one and a half times their
    /// budget.
    pub stalls: Metered,
}

/// The time since `start` in nanoseconds.
pub(crate) fn nanoseconds_since(start: Instant) -> u64 {
    start.elapsed().as_nanos().try_into().unwrap_or(u64::MAX)
}

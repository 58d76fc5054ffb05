//! What an execution did: for EXPLAIN ANALYZE, timelines and benchmarks.

use std::sync::Arc;

/// Live counters of one scan or pipeline. `Clone` shares them.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    _todo: Arc<()>,
}

#[derive(Debug, Clone, Default)]
pub struct StatsSnapshot {
    /// Pages asked for by tasks.
    pub pages_requested: u64,
    /// … found in the cache.
    pub pages_cached: u64,
    /// … that joined a read already in flight.
    pub pages_shared: u64,
    /// Pages read from the device (including read-ahead).
    pub pages_read: u64,
    /// Read requests to the device (coalesced pages count once).
    pub reads: u64,
    pub bytes_read: u64,
    /// Most reads in flight at one time, over all workers.
    pub in_flight_max: u64,
    pub tasks: u64,
    /// Rows that came out of the driver, and out of each step, after filters.
    pub rows: Vec<u64>,
    /// Device-clock nanoseconds from start to end (or now).
    pub elapsed_ns: u64,
    pub timeline: Vec<Sample>,
}

/// One point of the timeline.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Since the start, device clock.
    pub at_ns: u64,
    pub in_flight: u32,
    /// Reads completed since the start.
    pub reads: u64,
}

impl Stats {
    pub fn snapshot(&self) -> StatsSnapshot {
        todo!()
    }
}

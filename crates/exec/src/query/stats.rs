//! Counters of one query and a timeline of its reads, for EXPLAIN ANALYZE, plots and benchmarks.
//!
//! Counters are relaxed atomics. A snapshot taken while the query runs may combine counts of different moments; one taken
//! after its end is exact. Time is the device's clock, which is virtual on a simulated device.
//!
//! The timeline takes a sample when the first read completes, and when another one completes and [`SAMPLE_INTERVAL_NS`] have
//! passed since the last sample. When it has [`SAMPLES_MAX`] samples, every other one is dropped and the interval doubles, so its memory is bounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use keyaki_device::Device;
use keyaki_primitives::sync::Mutex;

/// Initial time between two samples of the timeline.
const SAMPLE_INTERVAL_NS: u64 = 1_000_000;
/// The first tasks of a query are all measured, further ones are sampled: one in this many.
const TASKS_MEASURED: u64 = 64;
const TASKS_PER_SAMPLE: u64 = 16;
/// Samples kept, at most.
const SAMPLES_MAX: usize = 2_000;

/// Live counters of one scan or pipeline. Clones share the counters.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Counters {
    clock: Option<Arc<dyn Device>>,
    started_ns: u64,
    /// 0 while running, else the nanoseconds from start to end, plus one.
    ended_ns: AtomicU64,

    pages_cached: AtomicU64,
    pages_shared: AtomicU64,
    pages_missed: AtomicU64,
    pages_spared: AtomicU64,
    tasks: AtomicU64,
    rows: Vec<AtomicU64>,
    busy_ns: Vec<AtomicU64>,

    pages_read: AtomicU64,
    reads_started: AtomicU64,
    reads_completed: AtomicU64,
    bytes_read: AtomicU64,
    in_flight_max: AtomicU64,

    next_sample_ns: AtomicU64,
    timeline: Mutex<Timeline>,
}

#[derive(Debug, Default)]
struct Timeline {
    interval_ns: u64,
    samples: Vec<Sample>,
}

/// The counters of a query at one moment.
#[derive(Debug, Clone, Default)]
pub struct StatsSnapshot {
    /// Pages that tasks requested: cached, shared and missed ones.
    pub pages_requested: u64,
    /// Requested pages found in the page cache, or already read ahead.
    pub pages_cached: u64,
    /// Requested pages that joined a read in flight.
    pub pages_shared: u64,
    /// Pages decoded with a method that keeps them out of the CPU caches.
    pub pages_spared: u64,
    /// Pages read from the device, including read-ahead.
    pub pages_read: u64,
    /// Reads handed to the device; pages read together count once.
    pub reads: u64,
    /// Bytes of these reads, including the gaps between coalesced pages.
    pub bytes_read: u64,
    /// Highest number of reads in flight at one time, over all workers.
    pub in_flight_max: u64,
    /// Tasks of a pipeline: driver ranges and lookups.
    pub tasks: u64,
    /// Rows per level after its filter: those of the driver (or scan), then those of each step.
    pub rows: Vec<u64>,
    /// Nanoseconds that the workers have spent on the tasks of each level of a pipeline that runs out of order, all workers together;
    /// extrapolated from a sample of the tasks. Zeros in order.
    pub busy_ns: Vec<u64>,
    /// The device's clock at the start.
    pub started_ns: u64,
    /// Nanoseconds of the device's clock from start to end, or until now.
    pub elapsed_ns: u64,
    /// Samples in ascending order of time.
    pub timeline: Vec<Sample>,
}

/// One point of the timeline.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Nanoseconds of the device's clock since the start.
    pub at_ns: u64,
    /// Reads in flight.
    pub in_flight: u32,
    /// Reads completed since the start.
    pub reads: u64,
}

impl Stats {
    /// Counters of a query with `levels` levels of rows, starting now.
    pub(crate) fn start(clock: &Arc<dyn Device>, levels: usize) -> Self {
        let counters = Counters {
            clock: Some(clock.clone()),
            started_ns: clock.now_ns(),
            rows: (0..levels).map(|_| AtomicU64::new(0)).collect(),
            busy_ns: (0..levels).map(|_| AtomicU64::new(0)).collect(),
            timeline: Mutex::new(Timeline { interval_ns: SAMPLE_INTERVAL_NS, samples: Vec::new() }),
            ..Counters::default()
        };
        Stats { counters: Arc::new(counters) }
    }

    /// The current values.
    pub fn snapshot(&self) -> StatsSnapshot {
        StatsSnapshot { timeline: self.counters.timeline.lock().samples.clone(), ..self.counters() }
    }

    /// The current values without the timeline.
    pub fn counters(&self) -> StatsSnapshot {
        let c = &*self.counters;
        let (cached, shared) = (c.pages_cached.load(Relaxed), c.pages_shared.load(Relaxed));
        StatsSnapshot {
            pages_requested: cached + shared + c.pages_missed.load(Relaxed),
            pages_cached: cached,
            pages_shared: shared,
            pages_spared: c.pages_spared.load(Relaxed),
            pages_read: c.pages_read.load(Relaxed),
            reads: c.reads_started.load(Relaxed),
            bytes_read: c.bytes_read.load(Relaxed),
            in_flight_max: c.in_flight_max.load(Relaxed),
            tasks: c.tasks.load(Relaxed),
            rows: c.rows.iter().map(|rows| rows.load(Relaxed)).collect(),
            busy_ns: c.busy_ns.iter().map(|time| time.load(Relaxed)).collect(),
            started_ns: c.started_ns,
            elapsed_ns: match c.ended_ns.load(Relaxed) {
                0 => c.clock.as_ref().map_or(0, |clock| clock.now_ns().saturating_sub(c.started_ns)),
                ended => ended - 1,
            },
            timeline: Vec::new(),
        }
    }

    pub(crate) fn page_cached(&self) {
        self.counters.pages_cached.fetch_add(1, Relaxed);
    }

    pub(crate) fn page_shared(&self) {
        self.counters.pages_shared.fetch_add(1, Relaxed);
    }

    pub(crate) fn page_missed(&self) {
        self.counters.pages_missed.fetch_add(1, Relaxed);
    }

    pub(crate) fn pages_spared(&self, count: u64) {
        if count > 0 {
            self.counters.pages_spared.fetch_add(count, Relaxed);
        }
    }

    /// Counts a task. Returns the number of tasks for which its time counts: 0 if it need not be measured.
    pub(crate) fn task(&self) -> u64 {
        let before = self.counters.tasks.fetch_add(1, Relaxed);
        match before {
            ..TASKS_MEASURED => 1,
            _ if before.is_multiple_of(TASKS_PER_SAMPLE) => TASKS_PER_SAMPLE,
            _ => 0,
        }
    }

    /// Adds the time that tasks of a level have taken.
    pub(crate) fn busy(&self, level: usize, time: Duration) {
        self.counters.busy_ns[level].fetch_add(time.as_nanos() as u64, Relaxed);
    }

    pub(crate) fn rows(&self, level: usize, count: usize) {
        self.counters.rows[level].fetch_add(count as u64, Relaxed);
    }

    /// Counts a read of `bytes` bytes as handed to the device.
    pub(crate) fn read_started(&self, bytes: u64) {
        let c = &*self.counters;
        c.bytes_read.fetch_add(bytes, Relaxed);
        let started = c.reads_started.fetch_add(1, Relaxed) + 1;
        c.in_flight_max.fetch_max(started.saturating_sub(c.reads_completed.load(Relaxed)), Relaxed);
    }

    /// Counts pages first requested by this query that are part of a read.
    pub(crate) fn pages_read(&self, count: u64) {
        self.counters.pages_read.fetch_add(count, Relaxed);
    }

    /// Counts a read as completed at `now_ns` of the device's clock, and takes a sample of the timeline if one is due.
    pub(crate) fn read_completed(&self, now_ns: u64) {
        let c = &*self.counters;
        let completed = c.reads_completed.fetch_add(1, Relaxed) + 1;
        let at_ns = now_ns.saturating_sub(c.started_ns);
        if at_ns < c.next_sample_ns.load(Relaxed) {
            return;
        }
        let in_flight = c.reads_started.load(Relaxed).saturating_sub(completed);
        let mut timeline = c.timeline.lock();
        if at_ns < c.next_sample_ns.load(Relaxed) {
            return; // Another worker took the sample.
        }
        if timeline.samples.len() >= SAMPLES_MAX {
            let mut index = 0;
            timeline.samples.retain(|_| {
                index += 1;
                index % 2 == 0
            });
            timeline.interval_ns *= 2;
        }
        timeline.samples.push(Sample { at_ns, in_flight: in_flight as u32, reads: completed });
        c.next_sample_ns.store(at_ns + timeline.interval_ns, Relaxed);
    }

    /// Stops the clock, unless it is stopped.
    pub(crate) fn end(&self) {
        let c = &*self.counters;
        if let Some(clock) = &c.clock {
            let elapsed = clock.now_ns().saturating_sub(c.started_ns) + 1;
            // Only the first end counts.
            let _ = c.ended_ns.compare_exchange(0, elapsed, Relaxed, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeline_has_a_single_short_read() {
        let timeline = Mutex::new(Timeline { interval_ns: SAMPLE_INTERVAL_NS, samples: Vec::new() });
        let stats = Stats { counters: Arc::new(Counters { timeline, ..Counters::default() }) };
        stats.read_started(4096);
        stats.read_completed(SAMPLE_INTERVAL_NS / 10);
        assert_eq!(stats.snapshot().timeline.len(), 1);
    }

    #[test]
    fn the_measured_tasks_stand_for_all() {
        let stats = Stats::default();
        let counted: u64 = (0..TASKS_MEASURED + 10 * TASKS_PER_SAMPLE).map(|_| stats.task()).sum();
        assert_eq!(counted, stats.counters().tasks);
    }

    #[test]
    fn the_timeline_stays_bounded() {
        let counters = Counters {
            timeline: Mutex::new(Timeline { interval_ns: SAMPLE_INTERVAL_NS, samples: Vec::new() }),
            ..Counters::default()
        };
        let stats = Stats { counters: Arc::new(counters) };
        for millisecond in 0..20_000 {
            stats.read_started(4096);
            stats.read_completed(millisecond * SAMPLE_INTERVAL_NS);
        }
        let snapshot = stats.snapshot();
        assert!(snapshot.timeline.len() <= SAMPLES_MAX);
        assert!(snapshot.timeline.len() >= SAMPLES_MAX / 4);
        assert!(snapshot.timeline.windows(2).all(|pair| pair[0].at_ns < pair[1].at_ns));
        assert_eq!(snapshot.reads, 20_000);
        assert_eq!(snapshot.in_flight_max, 1);
    }
}

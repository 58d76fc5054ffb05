//! Measurements of the machine's caches: load latency by working set, and the share of a warm working set that stays in
//! the cache during a pause. (On a virtual machine other virtual machines use the last level too.)

mod chase;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use chase::Chase;

use crate::{Caches, Quartiles};

/// Options of [`CacheProfile::measure`].
#[derive(Debug, Clone)]
pub struct CalibrateOptions {
    /// Working sets for the latency, in bytes.
    pub working_sets: Vec<usize>,
    /// Working sets in bytes, and pauses, for the retention.
    pub pauses: Vec<(usize, Duration)>,
    /// Rounds over all measurements.
    pub rounds: usize,
    /// Loads per measurement.
    pub probes: usize,
}

impl Default for CalibrateOptions {
    /// Working sets of 16 KiB to 64 MiB, pauses of 1 to 100 ms over 4 and 8 MiB. Takes a few seconds.
    fn default() -> Self {
        let quarters = |bits: u32| [1 << bits, 3 << (bits - 1)];
        let pauses = [1, 14, 100].map(Duration::from_millis);
        CalibrateOptions {
            working_sets: (14..26).flat_map(quarters).chain([64 << 20]).collect(),
            pauses: [4 << 20, 8 << 20].into_iter().flat_map(|bytes| pauses.map(|pause| (bytes, pause))).collect(),
            rounds: 7,
            probes: 20_000,
        }
    }
}

/// Load latency of a working set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Size of the working set.
    pub working_set_bytes: u64,
    /// Nanoseconds of a dependent load.
    pub load_ns: Quartiles,
}

/// Load latency of a working set before and after a pause.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Retention {
    /// Size of the working set.
    pub working_set_bytes: u64,
    /// Length of the pause.
    pub pause_ms: f64,
    /// Nanoseconds of a dependent load right after warming.
    pub before_ns: Quartiles,
    /// Nanoseconds of a dependent load after the pause.
    pub after_ns: Quartiles,
}

/// The machine's caches as described and as measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CacheProfile {
    /// The caches as the system describes them.
    pub caches: Caches,
    /// Share of the largest working set that was in huge pages; `None` if unknown.
    pub huge_pages: Option<f64>,
    /// Latency of each working set, in the order of the options.
    pub latencies: Vec<Latency>,
    /// Retention of each working set and pause, in the order of the options.
    pub retentions: Vec<Retention>,
}

impl CacheProfile {
    /// Runs all measurements once per round, so that other load on the machine affects all of them alike.
    ///
    /// # Errors
    /// If the system has not enough memory.
    pub fn measure(options: &CalibrateOptions) -> std::io::Result<Self> {
        let mut chases = Vec::new();
        for bytes in &options.working_sets {
            chases.push((Chase::new(*bytes, 1)?, Vec::new()));
        }
        let mut pauses = Vec::new();
        for (bytes, pause) in &options.pauses {
            pauses.push((Chase::new(*bytes, 2)?, *pause, Vec::new(), Vec::new()));
        }
        for _ in 0..options.rounds.max(1) {
            for (chase, samples) in &mut chases {
                chase.warm();
                samples.push(chase.run(options.probes));
            }
            for (chase, pause, before, after) in &mut pauses {
                chase.warm();
                before.push(chase.run(options.probes));
                std::thread::sleep(*pause);
                // Few loads, because each load brings a missing line back.
                after.push(chase.run(options.probes.min(chase.lines() / 8)));
            }
        }
        let huge_pages = chases.last().and_then(|(chase, _)| chase.huge_share());
        let latencies = chases
            .iter()
            .map(|(chase, samples)| Latency { working_set_bytes: chase.bytes(), load_ns: Quartiles::of(samples) });
        let retentions = pauses.iter().map(|(chase, pause, before, after)| Retention {
            working_set_bytes: chase.bytes(),
            pause_ms: pause.as_secs_f64() * 1e3,
            before_ns: Quartiles::of(before),
            after_ns: Quartiles::of(after),
        });
        Ok(CacheProfile {
            caches: Caches::detect(),
            huge_pages,
            latencies: latencies.collect(),
            retentions: retentions.collect(),
        })
    }

    /// Bytes that the caches hold in practice: the largest working set with at most half the latency of the largest
    /// measured one. 0 if there is none.
    pub fn effective_bytes(&self) -> u64 {
        let Some(memory) = self.latencies.iter().max_by_key(|latency| latency.working_set_bytes) else { return 0 };
        let served = self.latencies.iter().filter(|latency| latency.load_ns.median <= memory.load_ns.median / 2.0);
        served.map(|latency| latency.working_set_bytes).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_profile() {
        let options = CalibrateOptions {
            working_sets: vec![16 << 10, 1 << 20],
            pauses: vec![(64 << 10, Duration::from_millis(1))],
            rounds: 2,
            probes: 1_000,
        };
        let profile = CacheProfile::measure(&options).unwrap();
        assert_eq!(profile.latencies.len(), 2);
        assert!(profile.latencies.iter().all(|latency| latency.load_ns.median > 0.0));
        assert!(profile.retentions[0].after_ns.median > 0.0);
        let json = serde_json::to_string(&profile).unwrap();
        assert!(json.contains("working_set_bytes"));
    }

    #[test]
    fn the_effective_size_is_found() {
        let latency = |bits: u32, ns: f64| Latency { working_set_bytes: 1 << bits, load_ns: Quartiles::of(&[ns]) };
        let latencies =
            vec![latency(15, 1.5), latency(20, 8.0), latency(23, 13.0), latency(25, 120.0), latency(26, 150.0)];
        let mut profile =
            CacheProfile { caches: Caches::default(), huge_pages: None, latencies, retentions: Vec::new() };
        assert_eq!(profile.effective_bytes(), 8 << 20);
        profile.latencies.truncate(1);
        assert_eq!(profile.effective_bytes(), 0);
        profile.latencies.clear();
        assert_eq!(profile.effective_bytes(), 0);
    }
}

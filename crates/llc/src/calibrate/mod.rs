//! What the machine's caches can show: sizes as told, latency by working set as measured, and how much of a warm working set is
//! still there after a pause (on a virtual machine strangers use the last level, too).

mod chase;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use chase::Chase;

use crate::{Caches, Quartiles};

#[derive(Debug, Clone)]
pub struct CalibrateOptions {
    /// Working sets whose latency is measured.
    pub working_sets: Vec<usize>,
    /// Working sets and pauses for which it is measured what is left.
    pub pauses: Vec<(usize, Duration)>,
    /// Rounds over all of them.
    pub rounds: usize,
    /// Loads of one measurement.
    pub probes: usize,
}

impl Default for CalibrateOptions {
    /// 16 KiB to 64 MiB; pauses of 1 to 100 ms over 4 and 8 MiB. A few seconds.
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

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub working_set_bytes: u64,
    /// Nanoseconds of a dependent load.
    pub load_ns: Quartiles,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Retention {
    pub working_set_bytes: u64,
    pub pause_ms: f64,
    /// Right after warming, and after the pause.
    pub before_ns: Quartiles,
    pub after_ns: Quartiles,
}

/// What was told and what was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CacheProfile {
    pub caches: Caches,
    /// Share of the measured memory that was in huge pages; `None`: unknown.
    pub huge_pages: Option<f64>,
    pub latencies: Vec<Latency>,
    pub retentions: Vec<Retention>,
}

impl CacheProfile {
    /// Measures; everything once in each round, so that all figures see the same neighbours.
    ///
    /// # Errors
    /// If there is no memory for that.
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
                // Few loads: each brings back what it finds missing.
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

    /// The largest working set that is served well below the latency of the largest one measured (half of it, or less): what the
    /// caches hold in practice. 0 if none is.
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
    fn what_the_caches_hold() {
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

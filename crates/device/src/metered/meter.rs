//! Counters and latencies of one kind of request.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Buckets of latencies for each power of two.
const PER_DOUBLING: u32 = 4;
const BUCKETS: usize = 64 * PER_DOUBLING as usize;

/// Counters of one kind of request, or of other work. Relaxed atomics: a snapshot may combine counts of different
/// moments. Neighbours in an array share no cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub struct Meter {
    started: AtomicU64,
    failed: AtomicU64,
    bytes: AtomicU64,
    total_ns: AtomicU64,
    max_ns: AtomicU64,
    /// Numbers of completed requests by latency.
    buckets: Box<[AtomicU64]>,
}

impl Default for Meter {
    fn default() -> Self {
        Meter {
            started: AtomicU64::default(),
            failed: AtomicU64::default(),
            bytes: AtomicU64::default(),
            total_ns: AtomicU64::default(),
            max_ns: AtomicU64::default(),
            buckets: (0..BUCKETS).map(|_| AtomicU64::default()).collect(),
        }
    }
}

/// The requests of one kind since the device was created.
#[derive(Debug, Clone, Default)]
pub struct Metered {
    /// Requests that have started.
    pub started: u64,
    /// Requests that have ended, including failed ones.
    pub completed: u64,
    /// Requests that have ended with an error.
    pub failed: u64,
    /// Bytes of the requests that have started.
    pub bytes: u64,
    /// Mean time from start to end in nanoseconds; 0 without completed requests.
    pub mean_ns: f64,
    /// Longest time in nanoseconds.
    pub max_ns: u64,
    buckets: Vec<u64>,
}

impl Metered {
    /// The time in nanoseconds that a share of the requests did not exceed, for example 0.99: the upper end of its
    /// bucket, at most 25 % too high. 0 without completed requests.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let rank = (share.clamp(0.0, 1.0) * self.completed as f64).ceil().max(1.0) as u64;
        let mut count = 0;
        for (bucket, &requests) in self.buckets.iter().enumerate() {
            count += requests;
            if count >= rank {
                return end_ns(bucket).min(self.max_ns);
            }
        }
        0
    }
}

impl Meter {
    /// Counts a request of `bytes` bytes that starts.
    pub fn start(&self, bytes: usize) {
        self.started.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }

    /// Counts a request that has taken `ns` nanoseconds.
    pub fn complete(&self, ns: u64, succeeded: bool) {
        if !succeeded {
            self.failed.fetch_add(1, Relaxed);
        }
        self.total_ns.fetch_add(ns, Relaxed);
        self.max_ns.fetch_max(ns, Relaxed);
        self.buckets[bucket_of(ns)].fetch_add(1, Relaxed);
    }

    /// The requests until now.
    pub fn snapshot(&self) -> Metered {
        let buckets: Vec<u64> = self.buckets.iter().map(|count| count.load(Relaxed)).collect();
        let completed = buckets.iter().sum();
        Metered {
            // Requests may complete between the two reads.
            started: self.started.load(Relaxed).max(completed),
            completed,
            failed: self.failed.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            mean_ns: if completed == 0 { 0.0 } else { self.total_ns.load(Relaxed) as f64 / completed as f64 },
            max_ns: self.max_ns.load(Relaxed),
            buckets,
        }
    }
}

/// The bucket of a latency: its power of two, and the two bits behind the leading one.
fn bucket_of(ns: u64) -> usize {
    let ns = ns.max(PER_DOUBLING.into());
    let exponent = ns.ilog2();
    let fraction = (ns >> (exponent - 2)) & u64::from(PER_DOUBLING - 1);
    (exponent * PER_DOUBLING) as usize + fraction as usize
}

/// The highest latency in a bucket.
fn end_ns(bucket: usize) -> u64 {
    let (exponent, fraction) = (bucket as u32 / PER_DOUBLING, bucket as u64 % u64::from(PER_DOUBLING));
    let step = 1_u64 << exponent.saturating_sub(2);
    (1_u64 << exponent).saturating_add((fraction + 1).saturating_mul(step)).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_all_latencies_in_order() {
        for ns in (4..10_000).chain([1 << 20, (1 << 20) + 1, 123_456_789, u64::MAX / 2]) {
            let bucket = bucket_of(ns);
            assert!(ns <= end_ns(bucket), "{ns}");
            assert!(end_ns(bucket) as f64 <= ns as f64 * 1.25, "{ns}");
            assert!(ns == 4 || end_ns(bucket_of(ns) - 1) < ns, "{ns}");
        }
        assert!(bucket_of(u64::MAX) < BUCKETS);
        assert_eq!(bucket_of(0), bucket_of(4));
    }

    #[test]
    fn quantiles_follow_the_counts() {
        let meter = Meter::default();
        assert_eq!(meter.snapshot().quantile_ns(0.99), 0);
        for i in 0..100 {
            meter.start(4096);
            meter.complete(if i < 90 { 1_000 } else { 50_000 }, i != 0);
        }
        let metered = meter.snapshot();
        assert_eq!((metered.started, metered.completed, metered.failed, metered.bytes), (100, 100, 1, 409_600));
        assert!((1_000..=1_250).contains(&metered.quantile_ns(0.5)));
        assert_eq!(metered.quantile_ns(0.99), 50_000);
        assert_eq!(metered.max_ns, 50_000);
        assert_eq!(metered.mean_ns, 5_900.0);
    }
}

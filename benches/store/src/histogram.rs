//! Latencies in buckets of at most 1/64 relative width, so that millions of latencies need little memory.

/// Buckets for each power of two.
const PARTS_BITS: u32 = 6;
const PARTS: u64 = 1 << PARTS_BITS;

/// Counts of latencies in nanoseconds.
#[derive(Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Histogram {
    pub fn new() -> Self {
        Histogram { counts: vec![0; bucket(u64::MAX) + 1], total: 0, max: 0 }
    }

    pub fn add(&mut self, nanoseconds: u64) {
        self.counts[bucket(nanoseconds)] += 1;
        self.total += 1;
        self.max = self.max.max(nanoseconds);
    }

    /// The smallest latency, rounded up to the end of its bucket, that at least this share of all latencies do not
    /// exceed. Never above [`Histogram::max`].
    pub fn percentile(&self, share: f64) -> u64 {
        let rank = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return last(bucket).min(self.max);
            }
        }
        self.max
    }

    pub fn max(&self) -> u64 {
        self.max
    }
}

/// The bucket of a number. Numbers below twice [`PARTS`] have buckets of their own.
fn bucket(number: u64) -> usize {
    let shift = (63 - (number | 1).leading_zeros()).saturating_sub(PARTS_BITS);
    (u64::from(shift) * PARTS + (number >> shift)) as usize
}

/// The largest number of a bucket.
fn last(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / PARTS).saturating_sub(1);
    let part = bucket - shift * PARTS;
    (part << shift) | ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous_and_narrow() {
        for number in (0..100_000).chain([1 << 40, u64::MAX - 1, u64::MAX]) {
            let end = last(bucket(number));
            assert!(end >= number && end - number <= number / PARTS, "{number} is in the bucket up to {end}");
            assert!(end == u64::MAX || bucket(end + 1) == bucket(number) + 1);
        }
    }

    #[test]
    fn percentiles_are_ranks() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.percentile(0.5), 0);
        (1..=100).for_each(|number| histogram.add(number));
        assert_eq!(histogram.percentile(0.5), 50);
        assert_eq!(histogram.percentile(0.99), 99);
        assert_eq!(histogram.percentile(0.999), 100);
        histogram.add(1_000_000);
        assert_eq!(histogram.percentile(1.0), 1_000_000);
        assert_eq!(histogram.max(), 1_000_000);
    }
}

//! Sorted keys of the shapes that indexes meet, the same every time.

use keyaki_vast::Key;

/// A small generator of numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        ((self.next() as u128 * bound.max(1) as u128) >> 64) as u64
    }

    /// From above 0 to 1.
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// The time to the next of events that come independently, `mean` on average.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -self.unit().ln() * mean
    }
}

/// Distributions: `poisson1` to `poisson128`, `uniform`, `zipf`, `clustered`, `commits`.
pub const DISTRIBUTIONS: [&str; 5] = ["poisson8", "uniform", "zipf", "clustered", "commits"];

/// So many sorted keys. `None` for an unknown distribution.
pub fn sorted<K: Key + TryFrom<u64>>(distribution: &str, count: usize) -> Option<Vec<K>> {
    let mut random = Random(count as u64);
    let last = if K::BYTES == 4 { u32::MAX as u64 } else { u64::MAX };
    let key = |number: u64| K::try_from(number.min(last)).ok();
    if let Some(mean) = distribution.strip_prefix("poisson") {
        let mean: f64 = mean.parse().ok()?;
        // Timestamps of events: what is exact is added up, what is stored is whole.
        let mut at = 0.0;
        return (0..count)
            .map(|_| {
                at += random.exponential(mean);
                key(at as u64)
            })
            .collect();
    }
    match distribution {
        // Sorted as it is made: gaps between uniform numbers are exponential.
        "uniform" => {
            let mean = last as f64 / (count as f64 + 1.0) * 0.9999;
            let mut at = 0.0;
            (0..count)
                .map(|_| {
                    at += random.exponential(mean);
                    key(at as u64)
                })
                .collect()
        }
        // Gaps with a heavy tail: most are 1, some are of any size.
        "zipf" => {
            let longest = (last as f64 / count as f64 / 4.0).max(8.0);
            let mut at = 0.0;
            (0..count)
                .map(|_| {
                    at += longest.powf(random.unit()).floor().max(1.0);
                    key(at as u64)
                })
                .collect()
        }
        // Groups of neighbouring keys, with wide and uneven gaps between them.
        "clustered" => {
            let groups = (count / 1000).max(1) as f64;
            let far = last as f64 / groups / 2.0;
            let (mut at, mut left) = (0u64, 0);
            (0..count)
                .map(|_| {
                    if left == 0 {
                        left = 100 + random.below(1800);
                        at = at.saturating_add(random.exponential(far * 0.9) as u64);
                    }
                    left -= 1;
                    at = at.saturating_add(1 + random.below(4));
                    key(at)
                })
                .collect()
        }
        // Like the times of commits or log lines: days and nights, bursts within a second, many equal ones.
        "commits" => {
            let span = if K::BYTES == 4 { 1.8e9 } else { 1.0e12 };
            let mean = span / count as f64;
            let mut at = 1.0e9f64;
            (0..count)
                .map(|_| {
                    let day = (at / 86_400.0).fract();
                    let rate = 0.15 + 1.7 * (1.0 - (2.0 * day - 1.1).abs()).max(0.0);
                    if random.below(3) > 0 {
                        at += random.exponential(mean * 2.5) / rate.max(0.05);
                    }
                    key(at as u64)
                })
                .collect()
        }
        _ => None,
    }
}

/// Keys to search for, within the span of those that are there.
pub fn wanted<K: Key + TryFrom<u64> + Into<u64>>(keys: &[K], count: usize) -> Vec<K> {
    let mut random = Random(99);
    (0..count)
        .filter_map(|_| {
            // Half of them any number near a random row, so that dense and sparse parts get their share by rows.
            let row = random.below(keys.len() as u64 - 1) as usize;
            let (from, to): (u64, u64) = (keys[row].into(), keys[row + 1].into());
            K::try_from(from + random.below(to - from + 1)).ok()
        })
        .collect()
}

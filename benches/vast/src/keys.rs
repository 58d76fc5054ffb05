//! Sorted keys of typical distributions, the same in every run.

use keyaki_primitives::Random;
use keyaki_vast::Key;

/// An exponentially distributed number: the time to the next event of a Poisson process with this mean.
fn exponential(random: &mut Random, mean: f64) -> f64 {
    -random.unit_above_zero().ln() * mean
}

/// The default distributions. `poisson1` to `poisson128` exist, too.
pub const DISTRIBUTIONS: [&str; 5] = ["poisson8", "uniform", "zipf", "clustered", "commits"];

/// `count` sorted keys; `None` if the distribution is unknown.
pub fn sorted<K: Key + TryFrom<u64>>(distribution: &str, count: usize) -> Option<Vec<K>> {
    let mut random = Random::new(count as u64);
    let last = if K::BYTES == 4 { u32::MAX as u64 } else { u64::MAX };
    let key = |number: u64| K::try_from(number.min(last)).ok();
    if let Some(mean) = distribution.strip_prefix("poisson") {
        let mean: f64 = mean.parse().ok()?;
        // Timestamps of events, rounded to integers after the exact gaps have been added up.
        let mut at = 0.0;
        return (0..count)
            .map(|_| {
                at += exponential(&mut random, mean);
                key(at as u64)
            })
            .collect();
    }
    match distribution {
        // The gaps between sorted uniform numbers are exponential, so that the keys are generated in order.
        "uniform" => {
            let mean = last as f64 / (count as f64 + 1.0) * 0.9999;
            let mut at = 0.0;
            (0..count)
                .map(|_| {
                    at += exponential(&mut random, mean);
                    key(at as u64)
                })
                .collect()
        }
        // Gaps with a heavy tail: most are 1, a few are large.
        "zipf" => {
            let longest = (last as f64 / count as f64 / 4.0).max(8.0);
            let mut at = 0.0;
            (0..count)
                .map(|_| {
                    at += longest.powf(random.unit_above_zero()).floor().max(1.0);
                    key(at as u64)
                })
                .collect()
        }
        // Groups of neighbouring keys, with large and uneven gaps between the groups.
        "clustered" => {
            let groups = (count / 1000).max(1) as f64;
            let far = last as f64 / groups / 2.0;
            let (mut at, mut left) = (0u64, 0);
            (0..count)
                .map(|_| {
                    if left == 0 {
                        left = 100 + random.below(1800);
                        at = at.saturating_add(exponential(&mut random, far * 0.9) as u64);
                    }
                    left -= 1;
                    at = at.saturating_add(1 + random.below(4));
                    key(at)
                })
                .collect()
        }
        // Like times of commits or log lines: a daily rhythm, bursts within a second, many duplicates.
        "commits" => {
            let span = if K::BYTES == 4 { 1.8e9 } else { 1.0e12 };
            let mean = span / count as f64;
            let mut at = 1.0e9f64;
            (0..count)
                .map(|_| {
                    let day = (at / 86_400.0).fract();
                    let rate = 0.15 + 1.7 * (1.0 - (2.0 * day - 1.1).abs()).max(0.0);
                    if random.below(3) > 0 {
                        at += exponential(&mut random, mean * 2.5) / rate.max(0.05);
                    }
                    key(at as u64)
                })
                .collect()
        }
        _ => None,
    }
}

/// Search keys within the range of the keys.
pub fn wanted<K: Key + TryFrom<u64> + Into<u64>>(keys: &[K], count: usize) -> Vec<K> {
    let mut random = Random::new(99);
    (0..count)
        .filter_map(|_| {
            // A random number between two neighbouring keys: dense and sparse parts are searched in proportion to their
            // rows.
            let row = random.below(keys.len() as u64 - 1) as usize;
            let (from, to): (u64, u64) = (keys[row].into(), keys[row + 1].into());
            K::try_from(from + random.below(to - from + 1)).ok()
        })
        .collect()
}

//! Keys to test with: all that is awkward for compression.

use crate::Key;

/// A small generator of numbers (SplitMix64): the same every time.
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
        self.next() % bound.max(1)
    }
}

/// Kinds of keys.
pub const KINDS: [&str; 10] =
    ["uniform", "gaps", "equal", "few", "runs", "outliers", "clusters", "extremes", "dense", "powers"];

/// Sorted keys of a kind, `count` of them.
pub fn sorted<K: Key>(kind: &str, count: usize, seed: u64) -> Vec<K> {
    let mut random = Random(seed);
    let last = K::LAST;
    let mut at = random.below(1000);
    let mut keys: Vec<u64> = (0..count)
        .map(|row| match kind {
            "uniform" => random.next() & last,
            "gaps" => {
                at += random.below(16);
                at
            }
            "equal" => last / 3,
            "few" => random.below(7) * (last / 7),
            "runs" => {
                if random.below(300) == 0 {
                    at += 1 + random.below(100_000);
                }
                at
            }
            // One key far from the others in every few hundred.
            "outliers" => {
                at += if random.below(700) == 0 { last / (count as u64 + 1) } else { random.below(3) };
                at.min(last)
            }
            "clusters" => (random.below(12) * (last / 12)).saturating_add(random.below(5000)).min(last),
            "extremes" => match row % 4 {
                0 => random.below(3),
                1 => last - random.below(3),
                2 => last / 2 + random.below(2),
                _ => random.next() & last,
            },
            "dense" => row as u64,
            _ => (1u64 << random.below(K::BYTES as u64 * 8)) + random.below(2),
        })
        .collect();
    keys.sort_unstable();
    keys.into_iter().map(K::from_ordered).collect()
}

/// Keys to search for: those that are there, their neighbours, the ends, and any.
pub fn wanted<K: Key>(keys: &[K], seed: u64) -> Vec<K> {
    let mut random = Random(seed);
    let mut wanted = vec![0, 1, K::LAST - 1, K::LAST, K::LAST / 2, K::LAST / 2 + 1];
    for _ in 0..100 {
        wanted.push(random.next() & K::LAST);
        if !keys.is_empty() {
            let key = keys[random.below(keys.len() as u64) as usize].ordered();
            wanted.extend([key, key.wrapping_add(1) & K::LAST, key.wrapping_sub(1) & K::LAST]);
            wanted.push(key.wrapping_add(random.below(300)) & K::LAST);
        }
    }
    wanted.into_iter().map(K::from_ordered).collect()
}

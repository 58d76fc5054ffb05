//! Test keys of distributions that are difficult to compress.

use keyaki_primitives::Random;

use crate::Key;

/// Names of the distributions.
pub const KINDS: [&str; 10] =
    ["uniform", "gaps", "equal", "few", "runs", "outliers", "clusters", "extremes", "dense", "powers"];

/// `count` sorted keys of a distribution.
pub fn sorted<K: Key>(kind: &str, count: usize, seed: u64) -> Vec<K> {
    let mut random = Random::new(seed);
    let last = K::LAST;
    let mut at = random.below(1000);
    let mut keys: Vec<u64> = (0..count)
        .map(|row| match kind {
            "uniform" => random.next_u64() & last,
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
            // About one in 700 gaps is large.
            "outliers" => {
                at += if random.below(700) == 0 { last / (count as u64 + 1) } else { random.below(3) };
                at.min(last)
            }
            "clusters" => (random.below(12) * (last / 12)).saturating_add(random.below(5000)).min(last),
            "extremes" => match row % 4 {
                0 => random.below(3),
                1 => last - random.below(3),
                2 => last / 2 + random.below(2),
                _ => random.next_u64() & last,
            },
            "dense" => row as u64,
            _ => (1u64 << random.below(K::BYTES as u64 * 8)) + random.below(2),
        })
        .collect();
    keys.sort_unstable();
    keys.into_iter().map(K::from_ordered).collect()
}

/// Search keys: present keys, their neighbours, both ends of the range of the type, and random ones.
pub fn wanted<K: Key>(keys: &[K], seed: u64) -> Vec<K> {
    let mut random = Random::new(seed);
    let mut wanted = vec![0, 1, K::LAST - 1, K::LAST, K::LAST / 2, K::LAST / 2 + 1];
    for _ in 0..100 {
        wanted.push(random.next_u64() & K::LAST);
        if !keys.is_empty() {
            let key = keys[random.below(keys.len() as u64) as usize].ordered();
            wanted.extend([key, key.wrapping_add(1) & K::LAST, key.wrapping_sub(1) & K::LAST]);
            wanted.push(key.wrapping_add(random.below(300)) & K::LAST);
        }
    }
    wanted.into_iter().map(K::from_ordered).collect()
}

//! HyperLogLog: estimates the number of distinct values in 4 KiB with a standard error of 1.6 %.
//!
//! The leading bits of a hash select a register. The register keeps the maximum of the ranks of its hashes; the rank is
//! the number of leading zeros of the remaining bits, plus one. The estimator is Ertl's improved raw estimator ("New
//! cardinality estimation algorithms for HyperLogLog sketches", 2017), which needs neither tables nor a switch to
//! linear counting.

const INDEX_BITS: u32 = 12;
const REGISTERS: usize = 1 << INDEX_BITS;
/// Maximum rank: all remaining bits are zero.
const RANK_MAX: usize = (64 - INDEX_BITS) as usize + 1;

/// A sketch of a set of hashes.
#[derive(Clone, PartialEq, Eq)]
pub struct HyperLogLog {
    registers: Box<[u8; REGISTERS]>,
}

impl std::fmt::Debug for HyperLogLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("HyperLogLog").field(&self.count()).finish()
    }
}

impl Default for HyperLogLog {
    fn default() -> Self {
        HyperLogLog { registers: Box::new([0; REGISTERS]) }
    }
}

impl HyperLogLog {
    /// Length of [`HyperLogLog::registers`].
    pub const BYTES: usize = REGISTERS;

    /// The sketch with these registers; `None` unless they are [`HyperLogLog::BYTES`] numbers that ranks can have.
    pub fn from_registers(registers: &[u8]) -> Option<Self> {
        let registers: &[u8; REGISTERS] = registers.try_into().ok()?;
        let is_sound = registers.iter().all(|rank| usize::from(*rank) <= RANK_MAX);
        is_sound.then(|| HyperLogLog { registers: Box::new(*registers) })
    }

    /// The registers, for [`HyperLogLog::from_registers`].
    pub fn registers(&self) -> &[u8] {
        &*self.registers
    }

    /// Adds all hashes of another sketch.
    pub fn merge(&mut self, other: &HyperLogLog) {
        self.registers.iter_mut().zip(&*other.registers).for_each(|(own, other)| *own = (*own).max(*other));
    }

    /// Adds a hash, whose bits must be independent of each other.
    #[inline]
    pub fn add(&mut self, hash: u64) {
        let index = (hash >> (64 - INDEX_BITS)) as usize;
        // The added bit limits the count to the remaining bits.
        let rank = ((hash << INDEX_BITS) | (1 << (INDEX_BITS - 1))).leading_zeros() as u8 + 1;
        let register = &mut self.registers[index];
        *register = rank.max(*register);
    }

    /// Estimated number of distinct hashes added.
    pub fn count(&self) -> f64 {
        let mut ranks = [0u32; RANK_MAX + 1];
        for &rank in self.registers.iter() {
            ranks[usize::from(rank)] += 1;
        }
        let registers = REGISTERS as f64;
        let mut sum = registers * tau(1.0 - f64::from(ranks[RANK_MAX]) / registers);
        for rank in (1..RANK_MAX).rev() {
            sum = 0.5 * (sum + f64::from(ranks[rank]));
        }
        sum += registers * sigma(f64::from(ranks[0]) / registers);
        registers * registers / (2.0 * std::f64::consts::LN_2) / sum
    }
}

fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut factor, mut sum) = (1.0, x);
    loop {
        x *= x;
        let before = sum;
        sum += x * factor;
        factor += factor;
        if sum == before {
            return sum;
        }
    }
}

fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut factor, mut sum) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = sum;
        factor *= 0.5;
        sum -= (1.0 - x) * (1.0 - x) * factor;
        if sum == before {
            return sum / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn estimates_are_within_six_percent_up_to_two_million() {
        let mut random = Random::new(7);
        let mut sketch = HyperLogLog::default();
        assert_eq!(sketch.count(), 0.0);
        let mut added = 0u64;
        for target in [1u64, 10, 100, 1000, 10_000, 100_000, 2_000_000] {
            while added < target {
                let hash = random.next_u64();
                sketch.add(hash);
                sketch.add(hash);
                added += 1;
            }
            let error = (sketch.count() - target as f64).abs() / target as f64;
            assert!(error < 0.06, "{target}: {}", sketch.count());
        }
    }

    #[test]
    fn merged_sketches_count_the_union() {
        let mut random = Random::new(3);
        let (mut all, mut parts) = (HyperLogLog::default(), [HyperLogLog::default(), HyperLogLog::default()]);
        for i in 0..50_000 {
            let hash = random.next_u64();
            all.add(hash);
            parts[i % 2].add(hash);
            parts[usize::from(i % 3 == 0)].add(hash);
        }
        let [mut merged, other] = parts;
        merged.merge(&other);
        assert_eq!(merged, all);
        assert_eq!(HyperLogLog::from_registers(merged.registers()), Some(all));
        assert_eq!(HyperLogLog::from_registers(&[0; 5]), None);
        assert_eq!(HyperLogLog::from_registers(&[RANK_MAX as u8 + 1; HyperLogLog::BYTES]), None);
    }
}

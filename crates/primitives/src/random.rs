//! A seeded random number generator: SplitMix64 (Steele, Lea and Flood, 2014).
//!
//! The state is a counter that grows by the odd constant 2^64 / φ; each number is a bijective hash of it. The generator
//! passes BigCrush, takes a nanosecond per number and has one 64-bit word of state. It is not for secrets.
//!
//! Invariant: the same seed gives the same numbers on every machine and in every version. Simulations, benchmarks and
//! recorded failing seeds depend on this.

/// A SplitMix64 generator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Random(u64);

impl Random {
    /// The generator for a seed; every seed is good.
    pub const fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next number, uniform over all 64-bit numbers.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `bound`, uniform but for a bias of at most `bound` / 2^64.
    ///
    /// # Panics
    /// If `bound` is 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "a random number below 0");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// An index into a list of `len` elements.
    ///
    /// # Panics
    /// If `len` is 0.
    #[inline]
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// An element of a list.
    ///
    /// # Panics
    /// If the list is empty.
    pub fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.index(list.len())]
    }

    /// True with probability 1 / `n`.
    ///
    /// # Panics
    /// If `n` is 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A number from [0, 1), a multiple of 2^-53.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number from (0, 1], a multiple of 2^-53: safe to take the logarithm of.
    #[inline]
    pub fn unit_above_zero(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference implementation's numbers for this seed. They never change.
    #[test]
    fn the_sequence_is_splitmix64() {
        let mut random = Random::new(1_234_567);
        let numbers: Vec<u64> = (0..5).map(|_| random.next_u64()).collect();
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
                4_593_380_528_125_082_431,
                16_408_922_859_458_223_821
            ]
        );
    }

    #[test]
    fn numbers_stay_in_their_ranges_and_fill_them() {
        let mut random = Random::new(1);
        let mut counts = [0_u32; 10];
        for _ in 0..10_000 {
            counts[random.index(10)] += 1;
            assert!((0.0..1.0).contains(&random.unit()));
            let positive = random.unit_above_zero();
            assert!(positive > 0.0 && positive <= 1.0);
            assert!(random.one_in(1) && random.below(1) == 0);
            assert!(random.below(u64::MAX) < u64::MAX);
            assert!([3, 5].contains(random.pick(&[3, 5])));
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    #[should_panic(expected = "below 0")]
    fn nothing_is_below_zero() {
        Random::new(0).below(0);
    }
}

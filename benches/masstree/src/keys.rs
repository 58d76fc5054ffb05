//! Keys of the workloads: distinct, in random order, the same in every run.

use keyaki_primitives::Random;

/// A kind of keys of `N` bytes.
pub trait Keys<const N: usize> {
    /// The key of a number. Different numbers have different keys.
    fn key(number: u64) -> [u8; N];
}

/// Random 8-byte integers, big endian.
pub struct Integers;
/// Ten random decimal digits.
pub struct Decimal;
/// Twenty bytes: a constant slice of eight bytes and twelve random decimal digits.
pub struct Skewed;

impl Keys<8> for Integers {
    fn key(number: u64) -> [u8; 8] {
        mix(number).to_be_bytes()
    }
}

impl Keys<10> for Decimal {
    fn key(number: u64) -> [u8; 10] {
        digits(permute(number, 17, 10_000_000_000))
    }
}

impl Keys<20> for Skewed {
    fn key(number: u64) -> [u8; 20] {
        let mut key = *b"constant000000000000";
        key[8..].copy_from_slice(&digits::<12>(permute(number, 20, 1_000_000_000_000)));
        key
    }
}

fn digits<const N: usize>(mut number: u64) -> [u8; N] {
    let mut digits = [b'0'; N];
    for digit in digits.iter_mut().rev() {
        *digit += (number % 10) as u8;
        number /= 10;
    }
    digits
}

/// A bijection of 64-bit numbers that looks random: the first number of a generator with this seed.
pub fn mix(number: u64) -> u64 {
    Random::new(number).next_u64()
}

/// A bijection of the numbers below `limit`, which is at most 2^(2 half): a Feistel network, applied until the result
/// is below.
fn permute(number: u64, half: u32, limit: u64) -> u64 {
    let mask = (1 << half) - 1;
    let mut number = number;
    loop {
        let (mut left, mut right) = (number >> half, number & mask);
        for round in 0..4 {
            (left, right) = (right, left ^ mix(right << 8 | round) & mask);
        }
        number = left << half | right;
        if number < limit {
            return number;
        }
    }
}

/// A generator of Zipf-distributed ranks (exponent 0.99) by the method of Gray et al.
pub struct Zipf {
    count: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

const THETA: f64 = 0.99;

impl Zipf {
    pub fn new(count: u64) -> Self {
        // The harmonic sum, with its tail approximated by an integral.
        let exact = count.min(1 << 20);
        let head: f64 = (1..=exact).map(|rank| (rank as f64).powf(-THETA)).sum();
        let power = 1.0 - THETA;
        let tail = ((count as f64).powf(power) - (exact as f64).powf(power)) / power;
        let zeta = head + tail;
        let zeta_2 = 1.0 + 0.5f64.powf(THETA);
        let eta = (1.0 - (2.0 / count as f64).powf(power)) / (1.0 - zeta_2 / zeta);
        Zipf { count, zeta, alpha: 1.0 / power, eta }
    }

    /// The rank for a random number.
    pub fn rank(&self, random: u64) -> u64 {
        let uniform = (random >> 11) as f64 / (1u64 << 53) as f64;
        let scaled = uniform * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        let rank = self.count as f64 * (self.eta * uniform - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.count - 1)
    }
}

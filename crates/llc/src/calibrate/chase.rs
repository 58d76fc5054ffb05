//! Pointer chasing: measures the latency of dependent loads.
//!
//! Each cache line holds the index of the next one, in one random cycle through all lines. Neither prefetchers nor
//! overlapping loads can then hide the latency.
//!
//! Invariant: every index in the memory is below its number of words.

use std::io;
use std::time::Instant;

use keyaki_primitives::{AlignedMemory, CACHE_LINE_BYTES, Random};

/// Words of a cache line.
const WORDS_PER_LINE: usize = CACHE_LINE_BYTES / 8;

/// A working set for pointer chasing.
#[derive(Debug)]
pub struct Chase {
    memory: AlignedMemory,
    lines: usize,
    /// Index of the current word.
    at: u64,
}

impl Chase {
    /// A working set of `bytes` bytes, at least two lines. The seed determines the cycle.
    ///
    /// # Errors
    /// If the system has not enough memory.
    pub fn new(bytes: usize, seed: u64) -> io::Result<Self> {
        let lines = (bytes / CACHE_LINE_BYTES).max(2);
        let mut memory = AlignedMemory::huge(lines * CACHE_LINE_BYTES)?;
        let mut order: Vec<u32> = (0..lines as u32).collect();
        let mut random = Random::new(seed);
        // Sattolo's shuffle gives a single cycle.
        for last in (1..lines).rev() {
            order.swap(last, random.below(last as u64) as usize);
        }
        let words = memory.words_mut();
        for (line, next) in order.iter().enumerate() {
            words[line * WORDS_PER_LINE] = u64::from(*next) * WORDS_PER_LINE as u64;
        }
        Ok(Chase { memory, lines, at: 0 })
    }

    /// Bytes of the working set.
    pub fn bytes(&self) -> u64 {
        (self.lines * CACHE_LINE_BYTES) as u64
    }

    /// Cache lines of the working set.
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// The memory of the working set.
    pub fn words(&self) -> &[u64] {
        self.memory.words()
    }

    /// Share of the working set in huge pages, from 0 to 1; `None` if the system does not report it.
    pub fn huge_share(&self) -> Option<f64> {
        self.memory.huge_page_bytes().map(|bytes| (bytes as f64 / self.bytes() as f64).min(1.0))
    }

    /// Reads every line, twice.
    pub fn warm(&self) {
        for _ in 0..2 {
            let lines = self.memory.words().iter().step_by(WORDS_PER_LINE);
            std::hint::black_box(lines.fold(0_u64, |sum, word| sum.wrapping_add(*word)));
        }
    }

    /// Makes `steps` dependent loads (at least one). Returns nanoseconds per load.
    pub fn run(&mut self, steps: usize) -> f64 {
        let words = self.memory.words();
        let mut at = self.at;
        let start = Instant::now();
        for _ in 0..steps.max(1) {
            at = words[at as usize];
        }
        let elapsed = start.elapsed();
        self.at = std::hint::black_box(at);
        elapsed.as_nanos() as f64 / steps.max(1) as f64
    }

    /// Makes one dependent load, untimed. Returns the index of the next line's first word.
    #[inline]
    pub fn step(&mut self) -> u64 {
        self.at = self.memory.words()[self.at as usize];
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cycle_through_all_lines() {
        let mut chase = Chase::new(1000 * 64, 3).unwrap();
        let mut seen = vec![false; 1000];
        for _ in 0..1000 {
            let line = chase.at as usize / WORDS_PER_LINE;
            assert!(!std::mem::replace(&mut seen[line], true));
            chase.step();
        }
        assert_eq!(chase.at, 0);
        chase.warm();
        assert!(chase.run(1000) > 0.0);
        assert_eq!(Chase::new(0, 1).unwrap().lines(), 2);
    }
}

//! Walks over memory that leave the caches as they were.

use keyaki_primitives::CACHE_LINE_BYTES;
use serde::{Deserialize, Serialize};

/// How lines are brought in and thrown out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ScanMethod {
    /// Ordinary loads; the hardware does what it does.
    #[default]
    Plain,
    /// Announced by `prefetchnta` this many bytes ahead. Lines then do not go to the last level when they leave L1 or L2. Too short a
    /// distance has no effect: the hardware's own prefetcher is there before.
    NonTemporal { ahead_bytes: u32 },
    /// Thrown out by `clflushopt` this many bytes behind. Also lines that somebody else had brought in.
    FlushBehind { behind_bytes: u32 },
}

/// The bytes that are handed over at a time.
pub const BLOCK_BYTES: usize = 512;

impl ScanMethod {
    /// Whether this processor can do it. What it cannot do is done plainly.
    pub fn is_supported(self) -> bool {
        match self {
            ScanMethod::Plain => true,
            ScanMethod::NonTemporal { .. } => cfg!(target_arch = "x86_64"),
            ScanMethod::FlushBehind { .. } => has_clflushopt(),
        }
    }
}

impl std::fmt::Display for ScanMethod {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ScanMethod::Plain => write!(out, "plain loads"),
            ScanMethod::NonTemporal { ahead_bytes } => write!(out, "prefetchnta {ahead_bytes} bytes ahead"),
            ScanMethod::FlushBehind { behind_bytes } => write!(out, "clflushopt {behind_bytes} bytes behind"),
        }
    }
}

/// Calls `work` with one block of [`BLOCK_BYTES`] after the other, in order; the last one may be shorter.
///
/// ```
/// use keyaki_llc::software::{ScanMethod, for_each_block};
///
/// let column: Vec<u32> = (0..10_000).collect();
/// let mut even = 0;
/// for_each_block(&column, ScanMethod::NonTemporal { ahead_bytes: 4096 }, |block| {
///     even += block.iter().filter(|value| *value % 2 == 0).count();
/// });
/// assert_eq!(even, 5_000);
/// ```
#[inline]
pub fn for_each_block<T: Copy>(data: &[T], method: ScanMethod, mut work: impl FnMut(&[T])) {
    let per_block = (BLOCK_BYTES / size_of::<T>().max(1)).max(1);
    let method = if method.is_supported() { method } else { ScanMethod::Plain };
    let bytes = (data.as_ptr().cast::<u8>(), size_of_val(data));
    match method {
        ScanMethod::Plain => data.chunks(per_block).for_each(work),
        ScanMethod::NonTemporal { ahead_bytes } => {
            let mut at = ahead_bytes as usize;
            prefetch(bytes, 0, at.min(bytes.1));
            for block in data.chunks(per_block) {
                prefetch(bytes, at, size_of_val(block));
                work(block);
                at += size_of_val(block);
            }
        }
        ScanMethod::FlushBehind { behind_bytes } => {
            let (mut done, mut flushed, behind) = (0, 0, behind_bytes as usize);
            for block in data.chunks(per_block) {
                work(block);
                done += size_of_val(block);
                if done - flushed >= behind + BLOCK_BYTES {
                    flush_range(bytes, flushed, BLOCK_BYTES);
                    flushed += BLOCK_BYTES;
                }
            }
            flush_range(bytes, flushed, bytes.1 - flushed);
        }
    }
}

/// The sum of all words, modulo 2^64.
pub fn sum(data: &[u64], method: ScanMethod) -> u64 {
    let mut sum = 0_u64;
    for_each_block(data, method, |block| {
        sum = block.iter().fold(sum, |sum, word| sum.wrapping_add(*word));
    });
    sum
}

/// How many words are within the range, ends included.
pub fn count_between(data: &[u64], low: u64, high: u64, method: ScanMethod) -> u64 {
    let mut count = 0;
    for_each_block(data, method, |block| {
        count += block.iter().map(|word| u64::from(low <= *word && *word <= high)).sum::<u64>();
    });
    count
}

/// How many bytes are `wanted`.
pub fn count_byte(data: &[u8], wanted: u8, method: ScanMethod) -> u64 {
    let mut count = 0;
    for_each_block(data, method, |block| {
        count += block.iter().map(|byte| u64::from(*byte == wanted)).sum::<u64>();
    });
    count
}

/// Throws a range out of all caches, where the processor can (`clflushopt`); gives whether it can.
pub fn flush<T>(data: &[T]) -> bool {
    let can = has_clflushopt();
    if can {
        flush_range((data.as_ptr().cast(), size_of_val(data)), 0, size_of_val(data));
    }
    can
}

/// Announces `len` bytes from `from` on, as far as there are any.
#[inline(always)]
fn prefetch((start, total): (*const u8, usize), from: usize, len: usize) {
    let mut at = from;
    while at < from + len && at < total {
        keyaki_primitives::prefetch_non_temporal(start.wrapping_add(at));
        at += CACHE_LINE_BYTES;
    }
}

/// Announces memory that will be read soon, and only once: lines come into L1 alone. (On other processors than x86-64: nothing.)
pub fn prefetch_non_temporal(data: &[u8]) {
    prefetch((data.as_ptr(), data.len()), 0, data.len());
}

/// Throws out the lines of `len` bytes from `from` on. Only on processors that have the instruction.
#[inline(always)]
fn flush_range((start, total): (*const u8, usize), from: usize, len: usize) {
    let end = (from + len).min(total);
    let mut at = from;
    while at < end {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has clflushopt (asked by all callers); the address is within the slice; flushing a line changes
        // nothing that the program sees.
        unsafe {
            std::arch::asm!("clflushopt [{}]", in(reg) start.wrapping_add(at), options(nostack, preserves_flags));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = start;
        at += CACHE_LINE_BYTES;
    }
}

#[cfg(target_arch = "x86_64")]
fn has_clflushopt() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::sync::OnceLock;
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ebx & (1 << 23) != 0)
}

#[cfg(not(target_arch = "x86_64"))]
fn has_clflushopt() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_method() -> impl Strategy<Value = ScanMethod> {
        prop_oneof![
            Just(ScanMethod::Plain),
            (0_u32..100_000).prop_map(|ahead_bytes| ScanMethod::NonTemporal { ahead_bytes }),
            (0_u32..100_000).prop_map(|behind_bytes| ScanMethod::FlushBehind { behind_bytes }),
        ]
    }

    proptest! {
        #[test]
        fn every_method_sees_everything_once(len in 0_usize..5_000, skip in 0_usize..9, method in any_method()) {
            let words: Vec<u64> = (0..len as u64).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            let words = &words[skip.min(len)..];
            prop_assert_eq!(sum(words, method), words.iter().fold(0_u64, |sum, word| sum.wrapping_add(*word)));
            let mut seen = Vec::new();
            for_each_block(words, method, |block| seen.extend_from_slice(block));
            prop_assert_eq!(&seen, words);
            let within = words.iter().filter(|word| (100..=u64::MAX / 2).contains(*word)).count() as u64;
            prop_assert_eq!(count_between(words, 100, u64::MAX / 2, method), within);
            let bytes: Vec<u8> = words.iter().map(|word| (*word >> 60) as u8).collect();
            let bytes = &bytes[skip.min(bytes.len())..];
            let zeros = bytes.iter().filter(|byte| **byte == 0).count() as u64;
            prop_assert_eq!(count_byte(bytes, 0, method), zeros);
        }
    }

    #[test]
    fn odd_elements() {
        for method in [ScanMethod::NonTemporal { ahead_bytes: 64 }, ScanMethod::FlushBehind { behind_bytes: 0 }] {
            let mut seen = 0;
            for_each_block(&[[1_u8; 1000]; 7], method, |block| seen += block.len());
            for_each_block(&[(); 5], method, |block| seen += block.len());
            for_each_block(&[(1_u8, 2_u16); 300], method, |block| seen += block.len());
            assert_eq!(seen, 312);
        }
        flush(&[0_u8; 100]);
        assert!(ScanMethod::Plain.is_supported());
    }
}

//! Walks over memory that bypass the last-level cache.
//!
//! A method changes only which lines stay in the caches, never the results of a scan.

use keyaki_primitives::CACHE_LINE_BYTES;
use serde::{Deserialize, Serialize};

/// How a scan loads and evicts cache lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ScanMethod {
    /// Ordinary loads.
    #[default]
    Plain,
    /// Non-temporal prefetches (`prefetchnta`). The lines do not go to the last level when they leave L1 or L2.
    NonTemporal {
        /// Distance ahead of the loads. If it is too short it has no effect, because the hardware prefetcher is
        /// earlier.
        ahead_bytes: u32,
    },
    /// Flushes lines by `clflushopt` after they were read, including lines that others had loaded.
    FlushBehind {
        /// Distance behind the loads.
        behind_bytes: u32,
    },
}

/// Bytes of a block of [`for_each_block`].
pub const BLOCK_BYTES: usize = 512;

impl ScanMethod {
    /// True if the processor supports the method. Unsupported methods are replaced by [`ScanMethod::Plain`].
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

/// Calls `work` with consecutive blocks of [`BLOCK_BYTES`], in order; the last one may be shorter.
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
                    // SAFETY: the method is supported, so the processor has clflushopt; the range is `data`.
                    unsafe { flush_range(bytes, flushed, BLOCK_BYTES) };
                    flushed += BLOCK_BYTES;
                }
            }
            assert!(flushed <= bytes.1);
            // SAFETY: as above.
            unsafe { flush_range(bytes, flushed, bytes.1 - flushed) };
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

/// Number of words from `low` to `high`, both included.
pub fn count_between(data: &[u64], low: u64, high: u64, method: ScanMethod) -> u64 {
    let mut count = 0;
    for_each_block(data, method, |block| {
        count += block.iter().map(|word| u64::from(low <= *word && *word <= high)).sum::<u64>();
    });
    count
}

/// Number of bytes equal to `wanted`.
pub fn count_byte(data: &[u8], wanted: u8, method: ScanMethod) -> u64 {
    let mut count = 0;
    for_each_block(data, method, |block| {
        count += block.iter().map(|byte| u64::from(*byte == wanted)).sum::<u64>();
    });
    count
}

/// Flushes a range from all caches. False if the processor has no `clflushopt`; nothing is flushed then.
pub fn flush<T>(data: &[T]) -> bool {
    let can = has_clflushopt();
    if can {
        // SAFETY: the processor has clflushopt, and the range is `data`.
        unsafe { flush_range((data.as_ptr().cast(), size_of_val(data)), 0, size_of_val(data)) };
    }
    can
}

/// Prefetches the lines of `len` bytes from `from` on, up to the end of the range.
#[inline(always)]
fn prefetch((start, total): (*const u8, usize), from: usize, len: usize) {
    let mut at = from;
    while at < from + len && at < total {
        keyaki_primitives::prefetch_non_temporal(start.wrapping_add(at));
        at += CACHE_LINE_BYTES;
    }
}

/// Prefetches memory that will be read once, into L1 only. Does nothing on processors other than x86-64.
pub fn prefetch_non_temporal(data: &[u8]) {
    prefetch((data.as_ptr(), data.len()), 0, data.len());
}

/// Flushes the lines of `len` bytes from `from` on, up to the end of the range.
///
/// # Safety
/// The processor has `clflushopt` ([`has_clflushopt`]), and `total` bytes from `start` on are a borrowed slice.
#[inline(always)]
unsafe fn flush_range((start, total): (*const u8, usize), from: usize, len: usize) {
    let end = (from + len).min(total);
    let mut at = from;
    while at < end {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: by the caller's promise the instruction exists and the address is within the slice. Flushing a line
        // changes no contents.
        unsafe {
            std::arch::asm!("clflushopt [{}]", in(reg) start.wrapping_add(at), options(nostack, preserves_flags));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = start;
        at += CACHE_LINE_BYTES;
    }
}

/// True if the processor has `clflushopt`.
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
        fn every_method_visits_each_element_once(len in 0_usize..5_000, skip in 0_usize..9, method in any_method()) {
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
    fn elements_of_unusual_sizes_are_visited() {
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

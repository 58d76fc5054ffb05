//! Comparing a slice with all slices of a node at once.
//!
//! AVX-512 needs two comparisons for two cache lines, AVX2 four; other processors use a loop without branches. The
//! instruction set is detected once. The vector instructions are written in assembly because they read words that other
//! threads may be writing, which is undefined for ordinary loads. They read values that relaxed atomic loads could
//! read, or torn words. Readers check the node's version before they use the result, and words that matter to a reader
//! do not change without a mark.

use crate::sync::{AtomicU64, Relaxed};

/// Number of words that are compared: two cache lines.
pub(super) const WORDS: usize = 16;

/// A bit for each of sixteen words, the first one lowest: set if the word is at most the slice.
#[inline]
pub(super) fn at_most(words: &[AtomicU64; WORDS], slice: u64) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri), not(feature = "shuttle")))]
    match vector::level() {
        // SAFETY: the processor has the instructions, and a reference points to readable memory.
        vector::AVX512 => return unsafe { vector::at_most_512(words.as_ptr().cast(), slice) },
        // SAFETY: as above.
        vector::AVX2 => return unsafe { vector::at_most_256(words.as_ptr().cast(), slice) },
        _ => {}
    }
    (0..WORDS).fold(0, |mask, i| mask | u32::from(words[i].load(Relaxed) <= slice) << i)
}

/// A bit for each of sixteen words, the first one lowest: set if the word equals the slice.
#[inline]
pub(super) fn equal(words: &[AtomicU64; WORDS], slice: u64) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri), not(feature = "shuttle")))]
    match vector::level() {
        // SAFETY: the processor has the instructions, and a reference points to readable memory.
        vector::AVX512 => return unsafe { vector::equal_512(words.as_ptr().cast(), slice) },
        // SAFETY: as above.
        vector::AVX2 => return unsafe { vector::equal_256(words.as_ptr().cast(), slice) },
        _ => {}
    }
    (0..WORDS).fold(0, |mask, i| mask | u32::from(words[i].load(Relaxed) == slice) << i)
}

/// Copies whole cache lines that other threads may be writing. Returns false, without copying, if the processor lacks
/// the instructions.
///
/// # Safety
/// Both pointers are aligned to 64. `bytes` is a positive multiple of 64. So many bytes can be read at `from`, and
/// written at `to`, where no other thread accesses them.
#[cfg(all(target_arch = "x86_64", not(miri), not(feature = "shuttle")))]
#[inline]
pub(super) unsafe fn copy_lines(from: *const u64, to: *mut u64, bytes: usize) -> bool {
    match vector::level() {
        // SAFETY: the caller's promise; the processor has the instructions.
        vector::AVX512 => unsafe { vector::copy_512(from, to, bytes) },
        // SAFETY: as above.
        vector::AVX2 => unsafe { vector::copy_256(from, to, bytes) },
        _ => return false,
    }
    true
}

#[cfg(all(target_arch = "x86_64", not(miri), not(feature = "shuttle")))]
mod vector {
    use std::arch::asm;
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    const UNKNOWN: u8 = 0;
    pub const PORTABLE: u8 = 1;
    pub const AVX2: u8 = 2;
    pub const AVX512: u8 = 3;

    /// The best instruction set of the processor, once detected.
    static LEVEL: AtomicU8 = AtomicU8::new(UNKNOWN);

    #[inline]
    pub fn level() -> u8 {
        let level = LEVEL.load(Relaxed);
        if level == UNKNOWN { detect() } else { level }
    }

    #[cold]
    fn detect() -> u8 {
        let level = if is_x86_feature_detected!("avx512f") {
            AVX512
        } else if is_x86_feature_detected!("avx2") {
            AVX2
        } else {
            PORTABLE
        };
        LEVEL.store(level, Relaxed);
        level
    }

    /// # Safety
    /// `words` has 128 readable bytes; the processor has AVX-512F.
    #[inline(always)]
    pub unsafe fn at_most_512(words: *const u64, slice: u64) -> u32 {
        let (low, high): (u32, u32);
        // Registers 16 and up need no `vzeroupper` before SSE code.
        // SAFETY: it reads only memory that the caller promises to be readable, and changes only the named registers.
        unsafe {
            asm!(
                "vpbroadcastq zmm16, {slice}",
                "vpcmpnltuq k1, zmm16, [{words}]",
                "vpcmpnltuq k2, zmm16, [{words} + 64]",
                "kmovw {low:e}, k1",
                "kmovw {high:e}, k2",
                slice = in(reg) slice, words = in(reg) words, low = lateout(reg) low, high = lateout(reg) high,
                out("zmm16") _, out("k1") _, out("k2") _,
                options(nostack, readonly, preserves_flags),
            );
        }
        low | high << 8
    }

    /// # Safety
    /// `words` has 128 readable bytes; the processor has AVX-512F.
    #[inline(always)]
    pub unsafe fn equal_512(words: *const u64, slice: u64) -> u32 {
        let (low, high): (u32, u32);
        // SAFETY: it reads only memory that the caller promises to be readable, and changes only the named registers.
        unsafe {
            asm!(
                "vpbroadcastq zmm16, {slice}",
                "vpcmpeqq k1, zmm16, [{words}]",
                "vpcmpeqq k2, zmm16, [{words} + 64]",
                "kmovw {low:e}, k1",
                "kmovw {high:e}, k2",
                slice = in(reg) slice, words = in(reg) words, low = lateout(reg) low, high = lateout(reg) high,
                out("zmm16") _, out("k1") _, out("k2") _,
                options(nostack, readonly, preserves_flags),
            );
        }
        low | high << 8
    }

    /// # Safety
    /// As for `copy_lines`; the processor has AVX-512F.
    #[inline(always)]
    pub unsafe fn copy_512(from: *const u64, to: *mut u64, bytes: usize) {
        // SAFETY: it reads and writes only memory that the caller promises, and changes only the named registers.
        unsafe {
            asm!(
                "2:",
                "vmovdqa64 zmm16, [{from} + {at} - 64]",
                "vmovdqa64 [{to} + {at} - 64], zmm16",
                "sub {at}, 64",
                "jnz 2b",
                from = in(reg) from, to = in(reg) to, at = inout(reg) bytes => _, out("zmm16") _,
                options(nostack),
            );
        }
    }

    /// # Safety
    /// As for `copy_lines`; the processor has AVX2.
    #[inline]
    pub unsafe fn copy_256(from: *const u64, to: *mut u64, bytes: usize) {
        // SAFETY: it reads and writes only memory that the caller promises, and changes only the named registers.
        unsafe {
            asm!(
                "2:",
                "vmovdqa ymm0, [{from} + {at} - 64]",
                "vmovdqa ymm1, [{from} + {at} - 32]",
                "vmovdqa [{to} + {at} - 64], ymm0",
                "vmovdqa [{to} + {at} - 32], ymm1",
                "sub {at}, 64",
                "jnz 2b",
                "vzeroupper",
                from = in(reg) from, to = in(reg) to, at = inout(reg) bytes => _,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
                out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nostack),
            );
        }
    }

    /// # Safety
    /// `words` has 128 readable bytes; the processor has AVX2.
    #[inline]
    pub unsafe fn at_most_256(words: *const u64, slice: u64) -> u32 {
        let (a, b, c, d): (u32, u32, u32, u32);
        // The comparison is signed, so the highest bits are flipped first.
        // SAFETY: it reads only memory that the caller promises to be readable, and changes only the named registers.
        unsafe {
            asm!(
                "vmovq xmm0, {slice}",
                "vpbroadcastq ymm0, xmm0",
                "vpcmpeqd ymm5, ymm5, ymm5",
                "vpsllq ymm5, ymm5, 63",
                "vpxor ymm0, ymm0, ymm5",
                "vpxor ymm1, ymm5, [{words}]",
                "vpxor ymm2, ymm5, [{words} + 32]",
                "vpxor ymm3, ymm5, [{words} + 64]",
                "vpxor ymm4, ymm5, [{words} + 96]",
                "vpcmpgtq ymm1, ymm1, ymm0",
                "vpcmpgtq ymm2, ymm2, ymm0",
                "vpcmpgtq ymm3, ymm3, ymm0",
                "vpcmpgtq ymm4, ymm4, ymm0",
                "vmovmskpd {a:e}, ymm1",
                "vmovmskpd {b:e}, ymm2",
                "vmovmskpd {c:e}, ymm3",
                "vmovmskpd {d:e}, ymm4",
                "vzeroupper",
                slice = in(reg) slice, words = in(reg) words,
                a = out(reg) a, b = out(reg) b, c = out(reg) c, d = out(reg) d,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
                out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nostack, readonly, preserves_flags),
            );
        }
        !(a | b << 4 | c << 8 | d << 12) & 0xFFFF
    }

    /// # Safety
    /// `words` has 128 readable bytes; the processor has AVX2.
    #[inline]
    pub unsafe fn equal_256(words: *const u64, slice: u64) -> u32 {
        let (a, b, c, d): (u32, u32, u32, u32);
        // SAFETY: it reads only memory that the caller promises to be readable, and changes only the named registers.
        unsafe {
            asm!(
                "vmovq xmm0, {slice}",
                "vpbroadcastq ymm0, xmm0",
                "vpcmpeqq ymm1, ymm0, [{words}]",
                "vpcmpeqq ymm2, ymm0, [{words} + 32]",
                "vpcmpeqq ymm3, ymm0, [{words} + 64]",
                "vpcmpeqq ymm4, ymm0, [{words} + 96]",
                "vmovmskpd {a:e}, ymm1",
                "vmovmskpd {b:e}, ymm2",
                "vmovmskpd {c:e}, ymm3",
                "vmovmskpd {d:e}, ymm4",
                "vzeroupper",
                slice = in(reg) slice, words = in(reg) words,
                a = out(reg) a, b = out(reg) b, c = out(reg) c, d = out(reg) d,
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _, out("ymm4") _, out("ymm5") _,
                out("ymm6") _, out("ymm7") _, out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nostack, readonly, preserves_flags),
            );
        }
        a | b << 4 | c << 8 | d << 12
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(slice: u64, words: [u64; WORDS]) {
        let bits = |holds: fn(&u64, &u64) -> bool| {
            words.iter().enumerate().fold(0, |mask, (i, word)| mask | u32::from(holds(word, &slice)) << i)
        };
        let (at_most_expected, equal_expected) = (bits(u64::le), bits(u64::eq));
        let atomic = words.map(AtomicU64::new);
        assert_eq!((at_most(&atomic, slice), equal(&atomic, slice)), (at_most_expected, equal_expected));
        #[cfg(all(target_arch = "x86_64", not(miri), not(feature = "shuttle")))]
        {
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has AVX2; there are sixteen words.
                let found =
                    unsafe { (vector::at_most_256(words.as_ptr(), slice), vector::equal_256(words.as_ptr(), slice)) };
                assert_eq!(found, (at_most_expected, equal_expected));
            }
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: the processor has AVX-512F; there are sixteen words.
                let found =
                    unsafe { (vector::at_most_512(words.as_ptr(), slice), vector::equal_512(words.as_ptr(), slice)) };
                assert_eq!(found, (at_most_expected, equal_expected));
            }
        }
    }

    #[test]
    fn all_ways_agree() {
        let mut random = keyaki_primitives::Random::new(1);
        for round in 0..5000u64 {
            let words = std::array::from_fn(|_| {
                // Numbers near each other, and near both ends of the range.
                random.below(1 << 31).rotate_right((round % 64) as u32) & [3, u64::MAX, 1 << 63 | 1][round as usize % 3]
            });
            for slice in [words[0], words[15], 0, u64::MAX, 1 << 63, words[7] ^ 1] {
                check(slice, words);
            }
        }
    }
}

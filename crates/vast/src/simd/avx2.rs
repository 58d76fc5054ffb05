//! AVX2: a cache line is two registers. The comparisons are signed. Unsigned lanes of 4 and 8 bytes get their sign bits
//! flipped first; shorter ones are compared by a saturating subtraction.

use std::arch::x86_64::*;

use super::{Simd, Sse};
use crate::key::Key;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2;

/// Bits, one per byte, of the lanes of 32 bytes that are below `code`, and of those equal to it.
///
/// # Safety
/// The processor has AVX2; 32 bytes can be read.
#[inline(always)]
unsafe fn compare_32<const WIDTH: usize>(block: *const u8, code: u64) -> (u64, u64) {
    // SAFETY: the caller promises the instructions, and that 32 bytes can be read; the load assumes no alignment.
    unsafe {
        let lanes = _mm256_loadu_si256(block.cast());
        let zero = _mm256_setzero_si256();
        let (below, equal) = match WIDTH {
            1 => {
                let code = _mm256_set1_epi8(code as i8);
                let at_least = _mm256_cmpeq_epi8(_mm256_subs_epu8(code, lanes), zero);
                (_mm256_xor_si256(at_least, _mm256_set1_epi8(-1)), _mm256_cmpeq_epi8(lanes, code))
            }
            2 => {
                let code = _mm256_set1_epi16(code as i16);
                let at_least = _mm256_cmpeq_epi16(_mm256_subs_epu16(code, lanes), zero);
                (_mm256_xor_si256(at_least, _mm256_set1_epi8(-1)), _mm256_cmpeq_epi16(lanes, code))
            }
            4 => {
                let flip = _mm256_set1_epi32(i32::MIN);
                let code = _mm256_set1_epi32(code as i32);
                let below = _mm256_cmpgt_epi32(_mm256_xor_si256(code, flip), _mm256_xor_si256(lanes, flip));
                (below, _mm256_cmpeq_epi32(lanes, code))
            }
            _ => {
                let flip = _mm256_set1_epi64x(i64::MIN);
                let code = _mm256_set1_epi64x(code as i64);
                let below = _mm256_cmpgt_epi64(_mm256_xor_si256(code, flip), _mm256_xor_si256(lanes, flip));
                (below, _mm256_cmpeq_epi64(lanes, code))
            }
        };
        (_mm256_movemask_epi8(below) as u32 as u64, _mm256_movemask_epi8(equal) as u32 as u64)
    }
}

impl Simd for Avx2 {
    const LANE_BITS: bool = false;

    #[inline(always)]
    unsafe fn compare<const WIDTH: usize, const BLOCK: usize>(block: *const u8, code: u64) -> (u64, u64) {
        // SAFETY: the caller's promise; AVX2 includes the SSE that 16 bytes need.
        unsafe {
            match BLOCK {
                64 => {
                    let low = compare_32::<WIDTH>(block, code);
                    let high = compare_32::<WIDTH>(block.add(32), code);
                    (low.0 | high.0 << 32, low.1 | high.1 << 32)
                }
                32 => compare_32::<WIDTH>(block, code),
                _ => Sse::compare::<WIDTH, 16>(block, code),
            }
        }
    }

    #[inline(always)]
    unsafe fn signed_line_below<K: Key>(line: *const u8, key: K) -> usize {
        let key = key.ordered() ^ K::FLIP;
        let mut below = 0;
        for half in 0..2 {
            // SAFETY: the caller promises the instructions, and that 64 bytes can be read.
            unsafe {
                let keys = _mm256_loadu_si256(line.add(half * 32).cast());
                below += if K::BYTES == 4 {
                    let less = _mm256_cmpgt_epi32(_mm256_set1_epi32(key as i32), keys);
                    _mm256_movemask_ps(_mm256_castsi256_ps(less)).count_ones()
                } else {
                    let less = _mm256_cmpgt_epi64(_mm256_set1_epi64x(key as i64), keys);
                    _mm256_movemask_pd(_mm256_castsi256_pd(less)).count_ones()
                };
            }
        }
        below as usize
    }
}

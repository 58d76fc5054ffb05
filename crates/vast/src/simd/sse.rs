//! SSE4.2, the instruction set of the published tree: a cache line is four registers.

use std::arch::x86_64::*;

use super::Simd;
use crate::key::Key;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sse;

/// Bits, one per byte, of the lanes of 16 bytes that are below `code`, and of those equal to it.
///
/// # Safety
/// The processor has SSE4.2; 16 bytes can be read.
#[inline(always)]
unsafe fn compare_16<const WIDTH: usize>(block: *const u8, code: u64) -> (u64, u64) {
    // SAFETY: the caller promises the instructions, and that 16 bytes can be read; the load assumes no alignment.
    unsafe {
        let lanes = _mm_loadu_si128(block.cast());
        let zero = _mm_setzero_si128();
        let (below, equal) = match WIDTH {
            1 => {
                let code = _mm_set1_epi8(code as i8);
                let at_least = _mm_cmpeq_epi8(_mm_subs_epu8(code, lanes), zero);
                (_mm_xor_si128(at_least, _mm_set1_epi8(-1)), _mm_cmpeq_epi8(lanes, code))
            }
            2 => {
                let code = _mm_set1_epi16(code as i16);
                let at_least = _mm_cmpeq_epi16(_mm_subs_epu16(code, lanes), zero);
                (_mm_xor_si128(at_least, _mm_set1_epi8(-1)), _mm_cmpeq_epi16(lanes, code))
            }
            4 => {
                let flip = _mm_set1_epi32(i32::MIN);
                let code = _mm_set1_epi32(code as i32);
                let below = _mm_cmpgt_epi32(_mm_xor_si128(code, flip), _mm_xor_si128(lanes, flip));
                (below, _mm_cmpeq_epi32(lanes, code))
            }
            _ => {
                let flip = _mm_set1_epi64x(i64::MIN);
                let code = _mm_set1_epi64x(code as i64);
                let below = _mm_cmpgt_epi64(_mm_xor_si128(code, flip), _mm_xor_si128(lanes, flip));
                (below, _mm_cmpeq_epi64(lanes, code))
            }
        };
        (_mm_movemask_epi8(below) as u32 as u64, _mm_movemask_epi8(equal) as u32 as u64)
    }
}

impl Simd for Sse {
    const LANE_BITS: bool = false;

    #[inline(always)]
    unsafe fn compare<const WIDTH: usize, const BLOCK: usize>(block: *const u8, code: u64) -> (u64, u64) {
        let (mut below, mut equal) = (0, 0);
        for part in 0..BLOCK / 16 {
            // SAFETY: the caller's promise, for a part of the block.
            let masks = unsafe { compare_16::<WIDTH>(block.add(part * 16), code) };
            below |= masks.0 << (part * 16);
            equal |= masks.1 << (part * 16);
        }
        (below, equal)
    }

    #[inline(always)]
    unsafe fn signed_line_below<K: Key>(line: *const u8, key: K) -> usize {
        let key = key.ordered() ^ K::FLIP;
        let mut below = 0;
        for part in 0..4 {
            // SAFETY: the caller promises the instructions, and that 64 bytes can be read.
            unsafe {
                let keys = _mm_loadu_si128(line.add(part * 16).cast());
                below += if K::BYTES == 4 {
                    let less = _mm_cmpgt_epi32(_mm_set1_epi32(key as i32), keys);
                    _mm_movemask_ps(_mm_castsi128_ps(less)).count_ones()
                } else {
                    let less = _mm_cmpgt_epi64(_mm_set1_epi64x(key as i64), keys);
                    _mm_movemask_pd(_mm_castsi128_pd(less)).count_ones()
                };
            }
        }
        below as usize
    }
}

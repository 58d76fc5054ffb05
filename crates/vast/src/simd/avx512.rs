//! AVX-512: a cache line is one register, and a comparison gives one bit per lane.

use std::arch::x86_64::*;

use super::Simd;
use crate::header::Header;
use crate::key::Key;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512;

/// The products of 64-bit lanes.
///
/// # Safety
/// The processor has AVX-512.
#[inline(always)]
unsafe fn multiply(one: __m512i, other: __m512i) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe { _mm512_mullox_epi64(one, other) }
}

impl Simd for Avx512 {
    const LANE_BITS: bool = true;

    #[inline(always)]
    unsafe fn compare<const WIDTH: usize, const BLOCK: usize>(block: *const u8, code: u64) -> (u64, u64) {
        // SAFETY: the caller promises the instructions, and that BLOCK bytes can be read; loads assume no alignment.
        unsafe {
            match BLOCK {
                64 => {
                    let lanes = _mm512_loadu_si512(block.cast());
                    match WIDTH {
                        1 => {
                            let code = _mm512_set1_epi8(code as i8);
                            (_mm512_cmplt_epu8_mask(lanes, code), _mm512_cmpeq_epu8_mask(lanes, code))
                        }
                        2 => {
                            let code = _mm512_set1_epi16(code as i16);
                            (_mm512_cmplt_epu16_mask(lanes, code) as u64, _mm512_cmpeq_epu16_mask(lanes, code) as u64)
                        }
                        4 => {
                            let code = _mm512_set1_epi32(code as i32);
                            (_mm512_cmplt_epu32_mask(lanes, code) as u64, _mm512_cmpeq_epu32_mask(lanes, code) as u64)
                        }
                        _ => {
                            let code = _mm512_set1_epi64(code as i64);
                            (_mm512_cmplt_epu64_mask(lanes, code) as u64, _mm512_cmpeq_epu64_mask(lanes, code) as u64)
                        }
                    }
                }
                32 => {
                    let lanes = _mm256_loadu_si256(block.cast());
                    match WIDTH {
                        1 => {
                            let code = _mm256_set1_epi8(code as i8);
                            (_mm256_cmplt_epu8_mask(lanes, code) as u64, _mm256_cmpeq_epu8_mask(lanes, code) as u64)
                        }
                        2 => {
                            let code = _mm256_set1_epi16(code as i16);
                            (_mm256_cmplt_epu16_mask(lanes, code) as u64, _mm256_cmpeq_epu16_mask(lanes, code) as u64)
                        }
                        4 => {
                            let code = _mm256_set1_epi32(code as i32);
                            (_mm256_cmplt_epu32_mask(lanes, code) as u64, _mm256_cmpeq_epu32_mask(lanes, code) as u64)
                        }
                        _ => {
                            let code = _mm256_set1_epi64x(code as i64);
                            (_mm256_cmplt_epu64_mask(lanes, code) as u64, _mm256_cmpeq_epu64_mask(lanes, code) as u64)
                        }
                    }
                }
                _ => {
                    let lanes = _mm_loadu_si128(block.cast());
                    match WIDTH {
                        1 => {
                            let code = _mm_set1_epi8(code as i8);
                            (_mm_cmplt_epu8_mask(lanes, code) as u64, _mm_cmpeq_epu8_mask(lanes, code) as u64)
                        }
                        2 => {
                            let code = _mm_set1_epi16(code as i16);
                            (_mm_cmplt_epu16_mask(lanes, code) as u64, _mm_cmpeq_epu16_mask(lanes, code) as u64)
                        }
                        4 => {
                            let code = _mm_set1_epi32(code as i32);
                            (_mm_cmplt_epu32_mask(lanes, code) as u64, _mm_cmpeq_epu32_mask(lanes, code) as u64)
                        }
                        _ => {
                            let code = _mm_set1_epi64x(code as i64);
                            (_mm_cmplt_epu64_mask(lanes, code) as u64, _mm_cmpeq_epu64_mask(lanes, code) as u64)
                        }
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn unpack(header: &Header, residuals: *const u8, first: usize, values: &mut [u64]) {
        let width = header.width as usize;
        let mask = if width == 0 { 0 } else { u64::MAX >> (64 - width) };
        // SAFETY: the caller promises the instructions, and that 64 bytes can be read from the beginning of any group
        // of eight residuals of the block. Values are written in groups of eight.
        unsafe {
            // A group of eight residuals begins on a byte, so that the byte positions and shifts are the same for all
            // groups.
            let index = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
            let bit = multiply(index, _mm512_set1_epi64(width as i64));
            let first_byte = _mm512_srli_epi64::<3>(bit);
            let spread = _mm512_set1_epi64(0x0101_0101_0101_0101);
            // The first byte is at most 56, so that its product with the ones does not carry between bytes.
            let bytes = _mm512_add_epi8(multiply(first_byte, spread), _mm512_set1_epi64(0x0706_0504_0302_0100));
            let shift = _mm512_and_si512(bit, _mm512_set1_epi64(7));
            let mask = _mm512_set1_epi64(mask as i64);
            let base = _mm512_set1_epi64(header.base as i64);
            let slope = header.slope as i64;
            let left = _mm_cvtsi64_si128(header.exponent.max(0) as i64);
            let right = _mm_cvtsi64_si128((-header.exponent).max(0) as i64);
            let start = _mm512_add_epi64(index, _mm512_set1_epi64(first as i64 * 8));
            let mut rise = multiply(start, _mm512_set1_epi64(slope));
            let step = _mm512_set1_epi64(slope * 8);
            for (group, values) in values.chunks_exact_mut(8).enumerate() {
                let packed = _mm512_loadu_si512(residuals.add((first + group) * width).cast());
                let parts = _mm512_srlv_epi64(_mm512_permutexvar_epi8(bytes, packed), shift);
                let line = _mm512_sra_epi64(_mm512_sll_epi64(rise, left), right);
                let value = _mm512_add_epi64(_mm512_add_epi64(base, line), _mm512_and_si512(parts, mask));
                _mm512_storeu_si512(values.as_mut_ptr().cast(), value);
                rise = _mm512_add_epi64(rise, step);
            }
        }
    }

    #[inline(always)]
    unsafe fn signed_line_below<K: Key>(line: *const u8, key: K) -> usize {
        let key = key.ordered() ^ K::FLIP;
        // SAFETY: the caller promises the instructions, and that 64 bytes can be read.
        let below = unsafe {
            let keys = _mm512_loadu_si512(line.cast());
            if K::BYTES == 4 {
                _mm512_cmplt_epi32_mask(keys, _mm512_set1_epi32(key as i32)) as u64
            } else {
                _mm512_cmplt_epi64_mask(keys, _mm512_set1_epi64(key as i64)) as u64
            }
        };
        below.count_ones() as usize
    }
}

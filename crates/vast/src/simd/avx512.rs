//! AVX-512: a cache line is one register, and comparing gives a bit per lane at once.

use std::arch::x86_64::*;

use super::Simd;
use crate::key::Key;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512;

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

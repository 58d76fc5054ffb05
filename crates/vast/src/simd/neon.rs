//! NEON: a cache line is four registers. No instruction extracts one bit of each lane; pairwise additions of bytes with
//! one bit each do this.

use std::arch::aarch64::*;

use super::Simd;
use crate::key::Key;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon;

/// Byte masks, all ones, of the lanes of 16 bytes that are below `code`, and of those equal to it.
///
/// # Safety
/// 16 bytes can be read.
#[inline(always)]
unsafe fn compare_16<const WIDTH: usize>(block: *const u8, code: u64) -> (uint8x16_t, uint8x16_t) {
    // SAFETY: every AArch64 processor has NEON; the caller promises 16 bytes, and the load assumes no alignment.
    unsafe {
        let lanes = vld1q_u8(block);
        match WIDTH {
            1 => {
                let code = vdupq_n_u8(code as u8);
                (vcltq_u8(lanes, code), vceqq_u8(lanes, code))
            }
            2 => {
                let (lanes, code) = (vreinterpretq_u16_u8(lanes), vdupq_n_u16(code as u16));
                (vreinterpretq_u8_u16(vcltq_u16(lanes, code)), vreinterpretq_u8_u16(vceqq_u16(lanes, code)))
            }
            4 => {
                let (lanes, code) = (vreinterpretq_u32_u8(lanes), vdupq_n_u32(code as u32));
                (vreinterpretq_u8_u32(vcltq_u32(lanes, code)), vreinterpretq_u8_u32(vceqq_u32(lanes, code)))
            }
            _ => {
                let (lanes, code) = (vreinterpretq_u64_u8(lanes), vdupq_n_u64(code));
                (vreinterpretq_u8_u64(vcltq_u64(lanes, code)), vreinterpretq_u8_u64(vceqq_u64(lanes, code)))
            }
        }
    }
}

/// One bit per byte of four registers whose bytes are all ones or zero.
#[inline(always)]
fn bits(masks: [uint8x16_t; 4]) -> u64 {
    const BIT: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    // SAFETY: every AArch64 processor has NEON; the array has the 16 bytes that are loaded.
    unsafe {
        let bit = vld1q_u8(BIT.as_ptr());
        let low = vpaddq_u8(vandq_u8(masks[0], bit), vandq_u8(masks[1], bit));
        let high = vpaddq_u8(vandq_u8(masks[2], bit), vandq_u8(masks[3], bit));
        let sums = vpaddq_u8(low, high);
        vgetq_lane_u64::<0>(vreinterpretq_u64_u8(vpaddq_u8(sums, sums)))
    }
}

impl Simd for Neon {
    const LANE_BITS: bool = false;

    #[inline(always)]
    unsafe fn compare<const WIDTH: usize, const BLOCK: usize>(block: *const u8, code: u64) -> (u64, u64) {
        // SAFETY: every AArch64 processor has NEON; the parts are within the block, which the caller promises to be
        // readable.
        unsafe {
            let mut masks = [(vdupq_n_u8(0), vdupq_n_u8(0)); 4];
            for (part, mask) in masks.iter_mut().take(BLOCK / 16).enumerate() {
                *mask = compare_16::<WIDTH>(block.add(part * 16), code);
            }
            (bits(masks.map(|mask| mask.0)), bits(masks.map(|mask| mask.1)))
        }
    }

    #[inline(always)]
    unsafe fn signed_line_below<K: Key>(line: *const u8, key: K) -> usize {
        let key = key.ordered() ^ K::FLIP;
        // SAFETY: every AArch64 processor has NEON; the caller promises 64 bytes.
        unsafe {
            let mut masks = [vdupq_n_u8(0); 4];
            for (part, mask) in masks.iter_mut().enumerate() {
                let keys = vld1q_u8(line.add(part * 16));
                *mask = if K::BYTES == 4 {
                    let less = vcltq_s32(vreinterpretq_s32_u8(keys), vdupq_n_s32(key as i32));
                    vreinterpretq_u8_u32(less)
                } else {
                    let less = vcltq_s64(vreinterpretq_s64_u8(keys), vdupq_n_s64(key as i64));
                    vreinterpretq_u8_u64(less)
                };
            }
            bits(masks).count_ones() as usize / K::BYTES
        }
    }
}

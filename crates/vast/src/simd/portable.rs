//! Portable code, lane by lane, for any processor and for Miri. Compilers vectorise it where they can.

use super::Simd;
use crate::key::Key;
use crate::memory::read;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

impl Simd for Portable {
    const LANE_BITS: bool = true;

    #[inline(always)]
    unsafe fn compare<const WIDTH: usize, const BLOCK: usize>(block: *const u8, code: u64) -> (u64, u64) {
        let (mut below, mut equal) = (0, 0);
        for lane in 0..BLOCK / WIDTH {
            // SAFETY: within the block, which the caller promises to be readable.
            let value = unsafe {
                let at = block.add(lane * WIDTH);
                match WIDTH {
                    1 => read::<u8>(at) as u64,
                    2 => u16::from_le(read(at)) as u64,
                    4 => u32::from_le(read(at)) as u64,
                    _ => u64::from_le(read(at)),
                }
            };
            below |= ((value < code) as u64) << lane;
            equal |= ((value == code) as u64) << lane;
        }
        (below, equal)
    }

    #[inline(always)]
    unsafe fn signed_line_below<K: Key>(line: *const u8, key: K) -> usize {
        let mut below = 0;
        for lane in 0..64 / K::BYTES {
            // SAFETY: within the line, which the caller promises to be readable.
            below += (unsafe { read::<K>(line.add(lane * K::BYTES)) } < key) as usize;
        }
        below
    }
}

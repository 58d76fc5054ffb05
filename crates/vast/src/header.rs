//! The header of a block of a packed column: the block's line, and the position and width of its residuals.
//!
//! ```text
//! [base: 4 or 8 bytes][offset of the residuals / 16: u32][slope: i16][exponent: i8][width: u8]
//! ```

use crate::key::Key;
use crate::memory::read;

/// A block's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub base: u64,
    pub offset: u32,
    pub slope: i16,
    pub exponent: i8,
    pub width: u8,
}

impl Header {
    pub const fn bytes<V: Key>() -> usize {
        V::BYTES + 8
    }

    /// # Safety
    /// [`bytes`](Self::bytes) bytes can be read at `at`.
    #[inline(always)]
    pub unsafe fn read<V: Key>(at: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Header {
                base: if V::BYTES == 4 { read::<u32>(at) as u64 } else { read::<u64>(at) },
                offset: read(at.add(V::BYTES)),
                slope: read(at.add(V::BYTES + 4)),
                exponent: read(at.add(V::BYTES + 6)),
                width: read(at.add(V::BYTES + 7)),
            }
        }
    }

    pub fn write<V: Key>(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.base.to_le_bytes()[..V::BYTES]);
        bytes.extend_from_slice(&self.offset.to_le_bytes());
        bytes.extend_from_slice(&self.slope.to_le_bytes());
        bytes.extend_from_slice(&[self.exponent as u8, self.width]);
    }

    /// The height of the line at a value's index in the block, without the base.
    #[inline(always)]
    pub fn line(&self, index: usize) -> u64 {
        let rise = self.slope as i64 * index as i64;
        let (left, right) = (self.exponent.max(0) as u32, (-self.exponent).max(0) as u32);
        ((rise << (left & 63)) >> (right & 63)) as u64
    }
}

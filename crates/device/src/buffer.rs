//! Owned, block-aligned memory for direct I/O.

use std::ops::{Deref, DerefMut};

use crate::BLOCK;

/// Bytes whose address and length are multiples of [`BLOCK`].
#[derive(Debug)]
pub struct Buffer {
    blocks: Box<[Block]>,
}

#[derive(Debug, Clone, Copy)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK]);

impl Buffer {
    /// `len` zero bytes; `len` must be a multiple of [`BLOCK`].
    pub fn zeroed(len: usize) -> Self {
        assert!(len.is_multiple_of(BLOCK), "buffer of {len} bytes is not block-aligned");
        Buffer { blocks: vec![Block([0; BLOCK]); len / BLOCK].into_boxed_slice() }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.blocks.as_flattened_bytes()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.blocks.as_flattened_bytes_mut()
    }
}

trait Flatten {
    fn as_flattened_bytes(&self) -> &[u8];
    fn as_flattened_bytes_mut(&mut self) -> &mut [u8];
}

impl Flatten for [Block] {
    fn as_flattened_bytes(&self) -> &[u8] {
        // SAFETY: `Block` is `repr(C)` around bytes, without padding (its size equals its alignment).
        unsafe { std::slice::from_raw_parts(self.as_ptr().cast(), self.len() * BLOCK) }
    }
    fn as_flattened_bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr().cast(), self.len() * BLOCK) }
    }
}

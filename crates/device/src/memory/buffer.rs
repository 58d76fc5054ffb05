//! Owned, block-aligned memory for direct I/O.
//!
//! The bytes of a buffer live on the heap or in a slot of an [arena](super::arena): the arena of the queue that made
//! the buffer, or the arena that the whole process shares for large buffers. Dropping a buffer, on any thread, returns
//! its slot. A slot keeps its arena alive.
//!
//! Invariants: address and length are multiples of [`BLOCK`]. The bytes are initialised; a reused slot holds the bytes
//! of its last user. The address never changes while the buffer lives, so the `Buffer` value of a request in flight may
//! be moved in memory.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::arena::{Arena, Slot, shared_buffer};

/// Alignment of offsets, lengths and buffer addresses, in bytes.
pub const BLOCK: usize = 4096;

/// Bytes whose address and length are multiples of [`BLOCK`].
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    home: Home,
}

enum Home {
    Heap,
    Arena(Slot),
}

// SAFETY: a buffer owns its bytes exclusively, and a `Slot` may be dropped on any thread.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference gives read access only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `len` zero bytes.
    ///
    /// # Panics
    /// If `len` is not a multiple of [`BLOCK`].
    pub fn zeroed(len: usize) -> Self {
        match shared_buffer(len) {
            Some(mut buffer) => {
                buffer.fill(0);
                buffer
            }
            None => Buffer::on_heap(len),
        }
    }

    /// `len` bytes with unspecified contents: from `arena` if it has a free slot, else from the
    /// shared arena or the heap.
    pub(crate) fn from_arena(arena: &mut Arena, len: usize) -> Self {
        arena.buffer(len).or_else(|| shared_buffer(len)).unwrap_or_else(|| Buffer::on_heap(len))
    }

    /// `len` zero bytes on the heap.
    fn on_heap(len: usize) -> Self {
        let layout = layout(len);
        if len == 0 {
            return Buffer { start: layout.dangling_ptr(), len, home: Home::Heap };
        }
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        Buffer { start, len, home: Home::Heap }
    }

    /// The first `len` bytes of an arena's slot.
    ///
    /// # Safety
    /// `start` is the address of the slot, which has at least `len` initialised bytes that no other code accesses until
    /// `slot` is dropped.
    ///
    /// # Panics
    /// If `start` or `len` is not a multiple of [`BLOCK`].
    pub(crate) unsafe fn in_slot(start: NonNull<u8>, len: usize, slot: Slot) -> Self {
        assert!(start.as_ptr().addr().is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK));
        Buffer { start, len, home: Home::Arena(slot) }
    }

    /// The arena slot of this buffer, if it has one.
    pub(crate) fn slot(&self) -> Option<&Slot> {
        match &self.home {
            Home::Heap => None,
            Home::Arena(slot) => Some(slot),
        }
    }
}

fn layout(len: usize) -> Layout {
    assert!(len.is_multiple_of(BLOCK), "buffer of {len} bytes is not block-aligned");
    Layout::from_size_align(len, BLOCK).unwrap_or_else(|_| panic!("buffer of {len} bytes exceeds the address space"))
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if matches!(self.home, Home::Heap) && self.len > 0 {
            // SAFETY: `on_heap` allocated these bytes with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout(self.len)) }
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes that this buffer owns (or none at a dangling, aligned address).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let home = if self.slot().is_some() { "arena" } else { "heap" };
        write!(f, "Buffer({} bytes, {home})", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_zero() {
        // Repeated lengths, because the second buffer may reuse the memory of the first.
        for blocks in [0, 1, 3, 64, 64, 256, 512, 512, 513, 2000] {
            let mut buffer = Buffer::zeroed(blocks * BLOCK);
            assert_eq!(buffer.len(), blocks * BLOCK);
            assert!(buffer.as_ptr().addr().is_multiple_of(BLOCK));
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(7);
            assert!(buffer.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    #[should_panic(expected = "not block-aligned")]
    fn unaligned_lengths_panic() {
        Buffer::zeroed(100);
    }
}

//! Bags: the key suffixes of a border node that do not fit into the node itself.
//!
//! ```text
//!  0  bytes of this block, bytes used
//!  8  offset of the suffix of each slot, 0 if it has none here
//! 68  suffixes: length (4 bytes), bytes
//! ```
//!
//! The thread that has write access to the node appends a suffix and then stores its offset in the slot (release).
//! Bytes that have been written are never overwritten. A reader that loads an offset (acquire) therefore reads bytes
//! that do not change, even if the slot now belongs to another key; the node's version reveals that later. A full bag
//! is replaced by a new one that holds the suffixes still in use.
//!
//! Invariant: every offset is 0 or that of a complete suffix below `used`.

use std::marker::PhantomData;
use std::ptr::NonNull;

use super::permutation::WIDTH;
use crate::sync::{Acquire, AtomicU32, Relaxed, Release};

#[repr(C)]
struct Header {
    bytes: u32,
    used: AtomicU32,
    offsets: [AtomicU32; WIDTH],
}

const _: () = assert!(size_of::<Header>() == 8 + 4 * WIDTH, "a bag's layout");

const LENGTH_BYTES: usize = 4;

#[derive(Clone, Copy)]
pub(crate) struct Bag<'g> {
    header: NonNull<Header>,
    lifetime: PhantomData<&'g Header>,
}

impl<'g> Bag<'g> {
    /// Bytes of a bag without suffixes.
    pub const EMPTY_BYTES: usize = size_of::<Header>();

    /// Bytes that a suffix takes in a bag.
    pub fn cost(suffix: usize) -> usize {
        LENGTH_BYTES + suffix
    }

    /// # Safety
    /// The address is that of a bag that stays allocated during `'g`.
    #[inline]
    pub unsafe fn from_address(address: u64) -> Self {
        // SAFETY: addresses of bags are not zero.
        let header = unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(address as usize)) };
        Bag { header, lifetime: PhantomData }
    }

    /// Makes an empty bag.
    ///
    /// # Safety
    /// `memory` has `bytes` bytes, aligned to 4, that stay allocated during `'g`, and no other thread uses it.
    pub unsafe fn create(memory: NonNull<u8>, bytes: usize) -> Self {
        // Fifteen suffixes of the longest keys, and as many bytes again in reserve, are fewer than 2^31.
        assert!((Self::EMPTY_BYTES..u32::MAX as usize).contains(&bytes), "a bag of {bytes} bytes");
        let header = memory.cast::<Header>();
        let fresh = Header {
            bytes: bytes as u32,
            used: AtomicU32::new(Self::EMPTY_BYTES as u32),
            offsets: std::array::from_fn(|_| AtomicU32::new(0)),
        };
        // SAFETY: the caller gives suitable memory.
        unsafe { header.write(fresh) };
        header.as_ptr().expose_provenance();
        Bag { header, lifetime: PhantomData }
    }

    #[inline]
    fn header(self) -> &'g Header {
        // SAFETY: the bag is allocated during 'g; the fields of the header that change are atomic.
        unsafe { &*self.header.as_ptr() }
    }

    pub fn memory(self) -> NonNull<u8> {
        self.header.cast()
    }

    pub fn address(self) -> u64 {
        self.header.as_ptr().addr() as u64
    }

    pub fn bytes(self) -> usize {
        self.header().bytes as usize
    }

    /// Bytes that are not used yet.
    pub fn free(self) -> usize {
        let used = self.header().used.load(Relaxed) as usize;
        assert!(used <= self.bytes(), "{used} bytes used in a bag of {}", self.bytes());
        self.bytes() - used
    }

    /// The suffix of a slot, if the bag has one.
    #[inline]
    pub fn suffix(self, slot: usize) -> Option<&'g [u8]> {
        let offset = self.header().offsets[slot].load(Acquire) as usize;
        if offset == 0 {
            return None;
        }
        // SAFETY: the offset was stored after length and bytes had been written within the block. They are not written
        // again while the bag is allocated.
        unsafe {
            let at = self.header.cast::<u8>().add(offset);
            let length = at.cast::<u32>().read_unaligned() as usize;
            Some(std::slice::from_raw_parts(at.add(LENGTH_BYTES).as_ptr(), length))
        }
    }

    /// Appends the suffix of a slot. The caller has reserved room.
    ///
    /// # Safety
    /// The caller has exclusive write access to the bag's node, or the bag is in no node yet.
    pub unsafe fn append(self, slot: usize, suffix: &[u8]) {
        assert!(Self::cost(suffix.len()) <= self.free(), "no room for {} bytes in a bag", suffix.len());
        let offset = self.header().used.load(Relaxed) as usize;
        // SAFETY: the bytes from `used` on are within the block (asserted), and no reader has an offset to them yet.
        unsafe {
            let at = self.header.cast::<u8>().add(offset);
            at.cast::<u32>().write_unaligned(suffix.len() as u32);
            std::ptr::copy_nonoverlapping(suffix.as_ptr(), at.add(LENGTH_BYTES).as_ptr(), suffix.len());
        }
        self.header().used.store((offset + Self::cost(suffix.len())) as u32, Relaxed);
        self.header().offsets[slot].store(offset as u32, Release);
    }
}

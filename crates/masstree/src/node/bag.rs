//! Bags: the key suffixes of a border node that do not fit into the node itself.
//!
//! ```text
//!  0  bytes of this block, bytes used
//!  8  offset of the suffix of each slot, 0 if it has none here
//! 68  suffixes: length (4 bytes), bytes
//! ```
//!
//! Suffixes are appended by the holder of the node's lock, before the slot's offset tells where (release); what has been
//! written is never overwritten. So a reader who gets an offset (acquire) reads bytes that do not change, even if they are
//! no longer of the key it thinks of: the node's version tells it later. A bag that is full is replaced by one that holds
//! what is still in use.

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

const LENGTH_BYTES: usize = 4;

#[derive(Clone, Copy)]
pub(crate) struct Bag<'g> {
    header: NonNull<Header>,
    lifetime: PhantomData<&'g Header>,
}

impl<'g> Bag<'g> {
    /// Bytes of a bag without suffixes.
    pub const EMPTY_BYTES: usize = size_of::<Header>();

    /// Bytes that a suffix takes.
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

    /// An empty bag.
    ///
    /// # Safety
    /// `memory` has `bytes` bytes, aligned to 4, that stay allocated during `'g`, and nobody else has it.
    pub unsafe fn create(memory: NonNull<u8>, bytes: usize) -> Self {
        // Fifteen of the longest keys, and as much to spare, are below 2^31.
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
        // SAFETY: the bag is allocated during 'g; what changes in the header is atomic.
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

    /// Bytes that can still be appended.
    pub fn free(self) -> usize {
        self.bytes() - self.header().used.load(Relaxed) as usize
    }

    /// The suffix of a slot, if it has one here.
    #[inline]
    pub fn suffix(self, slot: usize) -> Option<&'g [u8]> {
        let offset = self.header().offsets[slot].load(Acquire) as usize;
        if offset == 0 {
            return None;
        }
        // SAFETY: the offset was stored after length and bytes were written within the block, and they are not written
        // again while the bag is allocated.
        unsafe {
            let at = self.header.cast::<u8>().add(offset);
            let length = at.cast::<u32>().read_unaligned() as usize;
            Some(std::slice::from_raw_parts(at.add(LENGTH_BYTES).as_ptr(), length))
        }
    }

    /// Appends the suffix of a slot; the caller holds the node's lock, or nobody else has the bag.
    pub fn append(self, slot: usize, suffix: &[u8]) {
        assert!(Self::cost(suffix.len()) <= self.free(), "a bag must have room for what is appended");
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

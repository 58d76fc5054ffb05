//! Memory of one map: blocks of whole cache lines, cut from chunks that grow with the map.
//!
//! The arena has several stripes, so that threads seldom contend. Each stripe has a lock, a free list for each block
//! size and a current chunk. Chunks grow from 4 KiB to 32 MiB. Large chunks are mapped with huge pages, because a
//! descent through gigabytes of 4 KiB pages spends most of its time in the page tables. All chunks are released when
//! the map is dropped: dropping a map of numbers costs nothing per key. Blocks of more than 2 KiB are allocated one by
//! one.
//!
//! All memory is initialised, with zeros at first: readers with an old permutation may read slots that have never been
//! used.
//!
//! Invariants: a block belongs to one owner from `allocate` to `free`; the bytes charged are those of all chunks and
//! large blocks.

use std::collections::HashMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use keyaki_primitives::{AlignedMemory, CACHE_LINE_BYTES};
use parking_lot::Mutex;

use crate::sync::{STRIPES, stripe};

/// Largest block that is cut from a chunk, in cache lines.
const LINES_MAX: usize = 32;
/// Sizes of the smallest and the largest chunk, in bytes.
const CHUNK_BYTES_MIN: usize = 4 << 10;
const CHUNK_BYTES_MAX: usize = 32 << 20;

const _: () = assert!(CHUNK_BYTES_MIN >= LINES_MAX * CACHE_LINE_BYTES, "every chunk has room for every small block");

/// Called with every change of the bytes that a map has from the system: positive when it takes some, negative when it
/// returns some.
pub(crate) type Charge = Arc<dyn Fn(isize) + Send + Sync>;

pub(crate) struct Arena {
    stripes: [CachePadded<Mutex<Stripe>>; STRIPES],
    charge: Option<Charge>,
}

struct Stripe {
    /// Address of the first free block of each size in cache lines, or 0. A free block begins with the address of the
    /// next.
    free: [usize; LINES_MAX + 1],
    /// Addresses of the unused end of the newest chunk.
    start: usize,
    end: usize,
    chunks: Vec<AlignedMemory>,
    chunk_bytes: usize,
    /// Blocks of more than `LINES_MAX` cache lines, by address.
    large: HashMap<usize, AlignedMemory>,
    large_bytes: usize,
    /// Bytes of blocks allocated through this stripe, less bytes freed through it. Blocks may be freed through another
    /// stripe, so that this can be negative.
    used: isize,
}

impl fmt::Debug for Arena {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (used, reserved) = self.bytes();
        formatter.debug_struct("Arena").field("used", &used).field("reserved", &reserved).finish()
    }
}

impl Arena {
    pub fn new(charge: Option<Charge>) -> Self {
        Arena { stripes: std::array::from_fn(|_| CachePadded::new(Mutex::new(Stripe::new()))), charge }
    }

    /// Allocates at least `bytes` bytes, aligned to 64 and initialised.
    pub fn allocate(&self, bytes: usize) -> NonNull<u8> {
        let lines = bytes.div_ceil(CACHE_LINE_BYTES);
        assert!(lines > 0, "a block of no bytes");
        let mut stripe = self.stripes[stripe()].lock();
        stripe.used += (lines * CACHE_LINE_BYTES) as isize;
        if lines > LINES_MAX {
            return self.allocate_large(&mut stripe, lines * CACHE_LINE_BYTES);
        }
        let first = stripe.free[lines];
        if first != 0 {
            let block = pointer(first);
            // SAFETY: a free block belongs to the stripe and begins with the address of the next.
            stripe.free[lines] = unsafe { block.cast::<usize>().read() };
            return block;
        }
        if stripe.end - stripe.start < lines * CACHE_LINE_BYTES {
            self.refill(&mut stripe);
        }
        let block = pointer(stripe.start);
        stripe.start += lines * CACHE_LINE_BYTES;
        assert!(stripe.start <= stripe.end, "a block within its chunk");
        block
    }

    fn allocate_large(&self, stripe: &mut Stripe, bytes: usize) -> NonNull<u8> {
        let memory = AlignedMemory::zeroed(bytes);
        let block = memory.start();
        stripe.large_bytes += memory.capacity();
        self.charge(memory.capacity() as isize);
        stripe.large.insert(expose(block), memory);
        block
    }

    /// Makes a new chunk. The unused end of the old one becomes free blocks.
    fn refill(&self, stripe: &mut Stripe) {
        while stripe.end - stripe.start >= CACHE_LINE_BYTES {
            let lines = ((stripe.end - stripe.start) / CACHE_LINE_BYTES).min(LINES_MAX);
            // SAFETY: the lines are the unused end of a chunk of this stripe.
            unsafe { stripe.release(pointer(stripe.start), lines) };
            stripe.start += lines * CACHE_LINE_BYTES;
        }
        let bytes = (stripe.chunk_bytes / 2).next_power_of_two().clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
        let chunk = AlignedMemory::zeroed(bytes);
        self.charge(chunk.capacity() as isize);
        stripe.start = expose(chunk.start());
        stripe.end = stripe.start + chunk.capacity();
        stripe.chunk_bytes += chunk.capacity();
        stripe.chunks.push(chunk);
    }

    /// Takes a block back.
    ///
    /// # Safety
    /// The block is from [`allocate`](Self::allocate) of this arena, with as many bytes, and nothing uses it any more.
    pub unsafe fn free(&self, block: NonNull<u8>, bytes: usize) {
        let lines = bytes.div_ceil(CACHE_LINE_BYTES);
        let mut own = self.stripes[stripe()].lock();
        own.used -= (lines * CACHE_LINE_BYTES) as isize;
        if lines <= LINES_MAX {
            // SAFETY: the caller's promise.
            unsafe { own.release(block, lines) };
            return;
        }
        drop(own);
        // A thread of another stripe may have allocated it.
        let freed = self.stripes.iter().any(|stripe| {
            let mut stripe = stripe.lock();
            let Some(memory) = stripe.large.remove(&expose(block)) else { return false };
            assert!(stripe.large_bytes >= memory.capacity(), "large blocks are counted");
            stripe.large_bytes -= memory.capacity();
            self.charge(-(memory.capacity() as isize));
            true
        });
        assert!(freed, "a large block belongs to one of the stripes");
    }

    fn charge(&self, bytes: isize) {
        if let Some(charge) = &self.charge {
            charge(bytes);
        }
    }

    /// Bytes in blocks that are in use or wait for readers, and bytes taken from the system.
    pub fn bytes(&self) -> (usize, usize) {
        let (mut used, mut reserved) = (0, 0);
        for stripe in &self.stripes {
            let stripe = stripe.lock();
            used += stripe.used;
            reserved += stripe.chunk_bytes + stripe.large_bytes;
        }
        // The stripes are read one after another, so that the sum may be below zero while other threads free blocks.
        (used.max(0) as usize, reserved)
    }
}

impl Stripe {
    fn new() -> Self {
        Stripe {
            free: [0; LINES_MAX + 1],
            start: 0,
            end: 0,
            chunks: Vec::new(),
            chunk_bytes: 0,
            large: HashMap::new(),
            large_bytes: 0,
            used: 0,
        }
    }

    /// Adds a block to its free list.
    ///
    /// # Safety
    /// The block has so many cache lines within a chunk of this arena, is aligned to 64, and nothing uses it.
    unsafe fn release(&mut self, block: NonNull<u8>, lines: usize) {
        // SAFETY: the caller's promise.
        unsafe { block.cast::<usize>().write(self.free[lines]) };
        self.free[lines] = expose(block);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let (mut used, mut reserved) = (0, 0);
        for stripe in &mut self.stripes {
            let stripe = stripe.get_mut();
            used += stripe.used;
            reserved += stripe.chunk_bytes + stripe.large_bytes;
        }
        assert!(used >= 0 && used as usize <= reserved, "{used} of {reserved} bytes are in use");
        self.charge(-(reserved as isize));
    }
}

fn expose(block: NonNull<u8>) -> usize {
    block.as_ptr().expose_provenance()
}

/// The block at an address that comes from [`expose`] of a chunk.
fn pointer(address: usize) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap_or(NonNull::dangling())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicIsize, Ordering};

    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_are_reused() {
        let charged = Arc::new(AtomicIsize::new(0));
        let sum = charged.clone();
        let arena = Arena::new(Some(Arc::new(move |bytes| {
            sum.fetch_add(bytes, Ordering::Relaxed);
        })));
        let mut blocks = Vec::new();
        for round in 0..3000usize {
            let bytes = if round.is_multiple_of(500) { 5000 } else { 64 * (round % 32 + 1) };
            let block = arena.allocate(bytes);
            assert!(block.as_ptr().addr().is_multiple_of(CACHE_LINE_BYTES));
            // SAFETY: the block belongs to the test and has so many bytes.
            unsafe { block.write_bytes(round as u8, bytes) };
            blocks.push((block, bytes, round as u8));
        }
        let (used, reserved) = arena.bytes();
        assert!(used <= reserved);
        assert_eq!(charged.load(Ordering::Relaxed), reserved as isize);
        for (block, bytes, content) in blocks.drain(..) {
            for at in 0..bytes {
                // SAFETY: within the block, which was written above.
                assert_eq!(unsafe { block.add(at).read() }, content);
            }
            // SAFETY: nothing uses the block any more.
            unsafe { arena.free(block, bytes) };
        }
        assert_eq!(arena.bytes().0, 0);
        let again = arena.allocate(640);
        assert!(arena.bytes().1 < reserved, "large blocks are returned to the system, small ones are reused");
        // SAFETY: nothing uses the block any more.
        unsafe { arena.free(again, 640) };
        drop(arena);
        assert_eq!(charged.load(Ordering::Relaxed), 0);
    }
}

//! Memory of one map: blocks of whole cache lines, cut from chunks that grow with the map.
//!
//! Blocks are handed out and taken back by stripes, each with its lock, its free lists (one for each number of lines) and its
//! chunk, so that threads seldom meet. Chunks start at 4 KiB and grow to 32 MiB; the large ones come straight from the
//! operating system with huge pages asked for, since a descent through gigabytes of 4 KiB pages spends most of its time in the
//! page tables. Chunks are given back when the map is dropped, all at once: dropping a map of numbers costs nothing per
//! key. Blocks of more than 2 KiB come from the global allocator.
//!
//! All memory is initialised (zeros at first): nodes read slots that have never held anything.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::HashMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use crate::sync::{STRIPES, stripe};

const LINE: usize = 64;
/// Largest block cut from a chunk, in lines.
const LINES_MAX: usize = 32;
const CHUNK_MIN: usize = 4 << 10;
const CHUNK_MAX: usize = 32 << 20;
/// Chunks from here on are mapped, with huge pages.
const MAP_MIN: usize = 1 << 20;

/// Called with every change of the bytes a map has from the system: what it takes (positive) and gives back.
pub(crate) type Charge = Arc<dyn Fn(isize) + Send + Sync>;

pub(crate) struct Arena {
    stripes: [CachePadded<Mutex<Stripe>>; STRIPES],
    charge: Option<Charge>,
}

struct Stripe {
    /// First free block of each number of lines; a free block begins with the address of the next.
    free: [usize; LINES_MAX + 1],
    /// What is left of the newest chunk.
    start: usize,
    end: usize,
    chunks: Vec<Chunk>,
    chunk_bytes: usize,
    /// Blocks from the global allocator, by address.
    large: HashMap<usize, usize>,
    large_bytes: usize,
    /// Bytes of blocks handed out here less those taken back here.
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

    /// Memory of at least `bytes` bytes, 64-byte aligned, initialised, that nobody else has.
    pub fn allocate(&self, bytes: usize) -> NonNull<u8> {
        let lines = bytes.div_ceil(LINE);
        let mut stripe = self.stripes[stripe()].lock();
        stripe.used += (lines * LINE) as isize;
        if lines > LINES_MAX {
            return self.allocate_large(&mut stripe, lines * LINE);
        }
        let first = stripe.free[lines];
        if first != 0 {
            let block = pointer(first);
            // SAFETY: a free block is ours alone and begins with the next one's address.
            stripe.free[lines] = unsafe { block.cast::<usize>().read() };
            return block;
        }
        if stripe.end - stripe.start < lines * LINE {
            self.refill(&mut stripe, CHUNK_MIN);
        }
        let block = pointer(stripe.start);
        stripe.start += lines * LINE;
        block
    }

    fn allocate_large(&self, stripe: &mut Stripe, bytes: usize) -> NonNull<u8> {
        let block = zeroed(bytes);
        stripe.large.insert(expose(block), bytes);
        stripe.large_bytes += bytes;
        self.charge(bytes as isize);
        block
    }

    /// A new chunk of at least `bytes` bytes; what is left of the old one becomes free blocks.
    fn refill(&self, stripe: &mut Stripe, bytes: usize) {
        while stripe.end - stripe.start >= LINE {
            let lines = ((stripe.end - stripe.start) / LINE).min(LINES_MAX);
            stripe.release(pointer(stripe.start), lines);
            stripe.start += lines * LINE;
        }
        let wanted = (stripe.chunk_bytes / 2).next_power_of_two().clamp(CHUNK_MIN, CHUNK_MAX);
        let bytes = bytes.max(wanted).next_multiple_of(CHUNK_MIN);
        let chunk = Chunk::new(bytes);
        self.charge(chunk.bytes as isize);
        stripe.start = expose(chunk.start);
        stripe.end = stripe.start + chunk.bytes;
        stripe.chunk_bytes += chunk.bytes;
        stripe.chunks.push(chunk);
    }

    /// Takes a block back.
    ///
    /// # Safety
    /// The block is of `allocate` with as many bytes and nobody uses it any more.
    pub unsafe fn free(&self, block: NonNull<u8>, bytes: usize) {
        let lines = bytes.div_ceil(LINE);
        let mut own = self.stripes[stripe()].lock();
        own.used -= (lines * LINE) as isize;
        if lines <= LINES_MAX {
            own.release(block, lines);
            return;
        }
        drop(own);
        // It may have been allocated by another stripe's thread.
        for stripe in &self.stripes {
            let mut stripe = stripe.lock();
            if let Some(bytes) = stripe.large.remove(&expose(block)) {
                stripe.large_bytes -= bytes;
                self.charge(-(bytes as isize));
                // SAFETY: it was made with this layout and nobody uses it.
                unsafe { dealloc(block.as_ptr(), layout(bytes)) };
                return;
            }
        }
        debug_assert!(false, "a large block is in one of the stripes");
    }

    fn charge(&self, bytes: isize) {
        if let Some(charge) = &self.charge {
            charge(bytes);
        }
    }

    /// Bytes in blocks that are in use (or wait for readers), and bytes taken from the system.
    pub fn bytes(&self) -> (usize, usize) {
        let (mut used, mut reserved) = (0, 0);
        for stripe in &self.stripes {
            let stripe = stripe.lock();
            used += stripe.used;
            reserved += stripe.chunk_bytes + stripe.large_bytes;
        }
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

    /// Puts a block that nobody uses into its free list.
    fn release(&mut self, block: NonNull<u8>, lines: usize) {
        // SAFETY: the callers give blocks of so many lines that nobody uses; they are aligned to 64.
        unsafe { block.cast::<usize>().write(self.free[lines]) };
        self.free[lines] = expose(block);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let mut given_back = 0;
        for stripe in &mut self.stripes {
            let stripe = stripe.get_mut();
            given_back += stripe.chunk_bytes + stripe.large_bytes;
            for (&address, &bytes) in &stripe.large {
                // SAFETY: made with this layout; nobody has the map any more.
                unsafe { dealloc(pointer(address).as_ptr(), layout(bytes)) };
            }
        }
        self.charge(-(given_back as isize));
    }
}

fn expose(block: NonNull<u8>) -> usize {
    block.as_ptr().expose_provenance()
}

fn pointer(address: usize) -> NonNull<u8> {
    // Addresses come from `expose` of blocks, which are not zero.
    NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap_or(NonNull::dangling())
}

fn layout(bytes: usize) -> Layout {
    // Bags are shorter than 2^32 bytes and chunks of that order: the layout is always valid.
    Layout::from_size_align(bytes, LINE).unwrap_or(Layout::new::<u64>())
}

fn zeroed(bytes: usize) -> NonNull<u8> {
    // SAFETY: the layout has at least one line.
    let block = unsafe { alloc_zeroed(layout(bytes)) };
    NonNull::new(block).unwrap_or_else(|| handle_alloc_error(layout(bytes)))
}

/// Zeroed memory from the system: huge pages, if it is large.
pub(crate) struct Chunk {
    pub start: NonNull<u8>,
    bytes: usize,
    mapping: Option<(NonNull<u8>, usize)>,
}

// SAFETY: a chunk is memory that the arena alone hands out.
unsafe impl Send for Chunk {}

impl Chunk {
    /// At least `bytes` bytes (not none), aligned to 64.
    pub fn new(bytes: usize) -> Self {
        if bytes >= MAP_MIN
            && let Some(chunk) = Self::mapped(bytes)
        {
            return chunk;
        }
        Chunk { start: zeroed(bytes), bytes, mapping: None }
    }

    /// Zeroed pages, aligned so that they can be huge.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn mapped(bytes: usize) -> Option<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        const HUGE: usize = 2 << 20;
        let total = bytes.next_multiple_of(HUGE) + HUGE;
        // SAFETY: a new private mapping touches nothing that exists.
        let mapping = unsafe {
            mmap_anonymous(std::ptr::null_mut(), total, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let mapping = NonNull::new(mapping.ok()?.cast::<u8>())?;
        // SAFETY: the aligned start is at most HUGE bytes into the mapping, which has as many to spare.
        let start = unsafe { mapping.add(mapping.as_ptr().align_offset(HUGE)) };
        let bytes = total - HUGE;
        // SAFETY: advice about our own mapping. Without huge pages everything works, only slower.
        let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        Some(Chunk { start, bytes, mapping: Some((mapping, total)) })
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    fn mapped(_: usize) -> Option<Self> {
        None
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        #[cfg(all(target_os = "linux", not(miri)))]
        if let Some((mapping, bytes)) = self.mapping {
            // SAFETY: this is the whole mapping, and nobody uses it any more.
            let _ = unsafe { rustix::mm::munmap(mapping.as_ptr().cast(), bytes) };
            return;
        }
        if self.mapping.is_none() {
            // SAFETY: made by `zeroed` with this layout; nobody uses it any more.
            unsafe { dealloc(self.start.as_ptr(), layout(self.bytes)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicIsize, Ordering};

    use super::*;

    #[test]
    fn blocks_are_apart_and_come_back() {
        let charged = Arc::new(AtomicIsize::new(0));
        let sum = charged.clone();
        let arena = Arena::new(Some(Arc::new(move |bytes| {
            sum.fetch_add(bytes, Ordering::Relaxed);
        })));
        let mut blocks = Vec::new();
        for round in 0..3000usize {
            let bytes = if round.is_multiple_of(500) { 5000 } else { 64 * (round % 32 + 1) };
            let block = arena.allocate(bytes);
            assert!(block.as_ptr().addr().is_multiple_of(LINE));
            // SAFETY: the block is ours and so long.
            unsafe { block.write_bytes(round as u8, bytes) };
            blocks.push((block, bytes, round as u8));
        }
        let (used, reserved) = arena.bytes();
        assert!(used <= reserved);
        assert_eq!(charged.load(Ordering::Relaxed), reserved as isize);
        for (block, bytes, content) in blocks.drain(..) {
            for at in 0..bytes {
                // SAFETY: within our block, which was written above.
                assert_eq!(unsafe { block.add(at).read() }, content);
            }
            // SAFETY: it is not used any more.
            unsafe { arena.free(block, bytes) };
        }
        assert_eq!(arena.bytes().0, 0);
        let again = arena.allocate(640);
        assert!(arena.bytes().1 < reserved, "large blocks were given back, small ones are used again");
        // SAFETY: it is not used any more.
        unsafe { arena.free(again, 640) };
        drop(arena);
        assert_eq!(charged.load(Ordering::Relaxed), 0);
    }
}

//! Memory for requests: one mapping, cut into segments, cut into slots.
//!
//! Each queue has an arena, and the process has one for large buffers made without a queue. Huge pages are the point: a
//! request into contiguous memory is one segment for the device where one into 4 KiB pages is hundreds, which can halve
//! the data rate; and memory that is used again need not be cleared by the kernel page by page.
//!
//! ```text
//! arena    | segment 0: slots of 16 KiB | segment 1: slots of 256 KiB | segment 2: not used yet | …
//! segment  2 MiB, aligned to 2 MiB (one huge page, one buffer registered with the kernel)
//! slot     a power of two from 4 KiB to 2 MiB; one bit in the segment's map: set = free
//! ```
//!
//! The mapping is reserved at the first allocation, and the kernel gives it memory segment by segment as they are used.
//! A segment serves one slot size at a time and takes on another when all its slots are free, so the arena adapts to
//! what is read. Only the owner of the [`Arena`] takes slots; any thread may give one back, by setting its bit.
//!
//! Invariant: a slot whose bit is clear belongs to exactly one [`Slot`]; only the owner clears bits.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyaki_primitives::AlignedMemory;
use parking_lot::Mutex;

use crate::{BLOCK, Buffer};

/// Bytes of a segment.
pub(crate) const SEGMENT: usize = 2 << 20;
const SLOT_MAX: usize = SEGMENT;
const WORDS: usize = SEGMENT / BLOCK / 64;
/// Segments of the largest arena.
pub(crate) const SEGMENTS_MAX: usize = 32;
/// Bytes per request in flight that a queue's arena has room for.
const BYTES_PER_REQUEST: usize = 1 << 20;
/// Segments of the arena that queues' strangers share.
const SEGMENTS_SHARED: usize = 16;
/// Buffers of this length and more come from the shared arena if they have no other.
const SHARED_FROM: usize = 64 << 10;

/// The owner's side: takes slots.
#[derive(Debug)]
pub(crate) struct Arena {
    shared: Option<Arc<Shared>>,
    segments: usize,
    /// Log2 of each segment's slot size; `None`: never used.
    slot_bits: Vec<Option<u32>>,
    /// The system refused the mapping.
    refused: bool,
}

static SHARED: Mutex<Arena> = Mutex::new(Arena::with_segments(SEGMENTS_SHARED));

/// A large buffer with unspecified contents from the process's own arena; none for short ones, or if it is exhausted.
pub(crate) fn shared_buffer(len: usize) -> Option<Buffer> {
    if len < SHARED_FROM { None } else { SHARED.lock().buffer(len) }
}

/// What owner and slots share.
struct Shared {
    memory: AlignedMemory,
    maps: Box<[Map]>,
}

/// Free slots of a segment, one bit each. On its own cache line, because several threads may free slots.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Map([AtomicU64; WORDS]);

/// A taken slot; dropping it frees it.
#[derive(Debug)]
pub(crate) struct Slot {
    shared: Arc<Shared>,
    segment: u16,
    index: u16,
}

impl Arena {
    /// An arena for `depth` requests in flight: at most 64 MiB (of address space: memory is taken by the segment, as it
    /// is needed).
    pub(crate) fn new(depth: usize) -> Self {
        Arena::with_segments((depth.saturating_mul(BYTES_PER_REQUEST) / SEGMENT + 2).min(SEGMENTS_MAX))
    }

    const fn with_segments(segments: usize) -> Self {
        Arena { shared: None, segments, slot_bits: Vec::new(), refused: false }
    }

    /// A buffer of `len` bytes with unspecified contents, if there is a slot to spare that it fits into.
    ///
    /// # Panics
    /// If `len` is not a multiple of [`BLOCK`].
    pub(crate) fn buffer(&mut self, len: usize) -> Option<Buffer> {
        assert!(len.is_multiple_of(BLOCK), "buffer of {len} bytes is not block-aligned");
        if len == 0 || len > SLOT_MAX || self.refused {
            return None;
        }
        let bits = len.next_power_of_two().trailing_zeros();
        if self.shared.is_none() {
            self.map();
        }
        let slot = take(self.shared.as_ref()?, &mut self.slot_bits, bits)?;
        // SAFETY: `take` gives a slot of 2^bits >= len bytes that nobody else has; mapped memory is initialised.
        Some(unsafe { Buffer::in_slot(slot.start(bits), len, slot) })
    }

    fn map(&mut self) {
        match Shared::map(self.segments) {
            Ok(shared) => {
                self.shared = Some(Arc::new(shared));
                self.slot_bits = vec![None; self.segments];
            }
            Err(error) => {
                tracing::warn!(%error, "no memory for an I/O arena; buffers come from the heap");
                self.refused = true;
            }
        }
    }

    /// The index and address of the segment `slot` lies in, if it is a slot of this arena.
    #[cfg(target_os = "linux")]
    pub(crate) fn segment_of(&self, slot: &Slot) -> Option<(u16, NonNull<u8>)> {
        let shared = self.shared.as_ref()?;
        Arc::ptr_eq(shared, &slot.shared).then(|| (slot.segment, shared.segment(slot.segment)))
    }
}

fn take(shared: &Arc<Shared>, slot_bits: &mut [Option<u32>], bits: u32) -> Option<Slot> {
    for (segment, map) in shared.maps.iter().enumerate() {
        if slot_bits[segment] == Some(bits)
            && let Some(index) = map.take()
        {
            return Some(Slot { shared: shared.clone(), segment: segment as u16, index });
        }
    }
    let segment = vacant(shared, slot_bits)?;
    slot_bits[segment] = Some(bits);
    let map = &shared.maps[segment];
    map.fill(SEGMENT >> bits);
    let index = map.take()?;
    Some(Slot { shared: shared.clone(), segment: segment as u16, index })
}

/// A segment without taken slots: one that has memory already, if possible.
fn vacant(shared: &Shared, slot_bits: &[Option<u32>]) -> Option<usize> {
    let idle = |&segment: &usize| slot_bits[segment].is_some_and(|bits| shared.maps[segment].is_full(SEGMENT >> bits));
    (0..slot_bits.len()).find(idle).or_else(|| slot_bits.iter().position(Option::is_none))
}

impl Slot {
    fn start(&self, bits: u32) -> NonNull<u8> {
        // SAFETY: `index` < SEGMENT >> bits, so the slot lies within its segment.
        unsafe { self.shared.segment(self.segment).add(usize::from(self.index) << bits) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shared.maps[usize::from(self.segment)].free(self.index);
    }
}

impl Map {
    /// Marks the first `slots` free, the rest as not there.
    fn fill(&self, slots: usize) {
        for (word, bits) in self.0.iter().enumerate() {
            bits.store(full_word(slots, word), Ordering::Relaxed);
        }
    }

    /// Whether all of `slots` are free. Acquire: what their users did to the memory has happened.
    fn is_full(&self, slots: usize) -> bool {
        self.0.iter().enumerate().all(|(word, bits)| bits.load(Ordering::Acquire) == full_word(slots, word))
    }

    fn take(&self) -> Option<u16> {
        self.0.iter().enumerate().find_map(|(word, bits)| {
            let free = bits.load(Ordering::Acquire);
            if free == 0 {
                return None;
            }
            let bit = free.trailing_zeros();
            // Only the owner clears bits, so the bit seen set is still set. AcqRel: as `is_full`, and the release
            // sequence of other slots' frees in this word goes on.
            bits.fetch_and(!(1 << bit), Ordering::AcqRel);
            Some((word * 64) as u16 + bit as u16)
        })
    }

    fn free(&self, index: u16) {
        self.0[usize::from(index / 64)].fetch_or(1 << (index % 64), Ordering::Release);
    }
}

fn full_word(slots: usize, word: usize) -> u64 {
    match slots.saturating_sub(word * 64) {
        0 => 0,
        rest @ 1..64 => (1 << rest) - 1,
        _ => u64::MAX,
    }
}

impl Shared {
    fn map(segments: usize) -> std::io::Result<Self> {
        let memory = AlignedMemory::huge(segments * SEGMENT)?;
        Ok(Shared { memory, maps: (0..segments).map(|_| Map::default()).collect() })
    }

    fn segment(&self, segment: u16) -> NonNull<u8> {
        assert!(usize::from(segment) < self.maps.len());
        // SAFETY: the memory holds `maps.len()` segments.
        unsafe { self.memory.start().add(usize::from(segment) * SEGMENT) }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("segments", &self.maps.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlap(a: &Buffer, b: &Buffer) -> bool {
        let (a, b) = (a.as_ptr_range(), b.as_ptr_range());
        a.start < b.end && b.start < a.end
    }

    #[test]
    fn buffers_are_aligned_disjoint_and_reused() {
        let mut arena = Arena::new(64);
        let buffers: Vec<_> = [4096, 16384, 12288, 262144, 4096, 1 << 20, 65536]
            .map(|len| arena.buffer(len).unwrap())
            .into_iter()
            .collect();
        for (i, a) in buffers.iter().enumerate() {
            assert!(a.as_ptr().addr().is_multiple_of(BLOCK));
            assert!(buffers[i + 1..].iter().all(|b| !overlap(a, b)));
        }
        let addresses: Vec<_> = buffers.iter().map(|b| b.as_ptr()).collect();
        drop(buffers);
        assert!(addresses.contains(&arena.buffer(16384).unwrap().as_ptr()));
    }

    #[test]
    fn exhaustion_is_noticed_and_segments_change_size() {
        let mut arena = Arena::new(1);
        let capacity = arena.segments * SEGMENT;
        let small: Vec<_> = (0..capacity / BLOCK).map(|_| arena.buffer(BLOCK).unwrap()).collect();
        assert!(arena.buffer(BLOCK).is_none(), "the arena is full");
        assert!(arena.buffer(SLOT_MAX).is_none());
        drop(small);
        let large: Vec<_> = (0..capacity / SLOT_MAX).map(|_| arena.buffer(SLOT_MAX).unwrap()).collect();
        assert!(arena.buffer(BLOCK).is_none());
        drop(large);
        assert!(arena.buffer(SLOT_MAX + BLOCK).is_none() && arena.buffer(0).is_none());
    }

    #[test]
    fn buffers_outlive_the_arena_and_may_be_dropped_elsewhere() {
        let mut arena = Arena::new(8);
        let mut buffers: Vec<_> = (0..100).map(|_| arena.buffer(16384).unwrap()).collect();
        drop(arena);
        std::thread::spawn(move || {
            for buffer in &mut buffers {
                buffer.fill(1);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn concurrent_frees_lose_no_slot() {
        let mut arena = Arena::new(512);
        let (sender, receiver) = crossbeam_channel::unbounded::<Buffer>();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let receiver = receiver.clone();
                std::thread::spawn(move || receiver.iter().for_each(drop))
            })
            .collect();
        for i in 0..20_000_usize {
            let Some(mut buffer) = arena.buffer(if i % 3 == 0 { BLOCK } else { 4 * BLOCK }) else { continue };
            buffer[0] = i as u8;
            sender.send(buffer).unwrap();
        }
        drop(sender);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let shared = arena.shared.clone().unwrap();
        for (map, bits) in shared.maps.iter().zip(&arena.slot_bits) {
            assert!(bits.is_none_or(|bits| map.is_full(SEGMENT >> bits)));
        }
    }
}

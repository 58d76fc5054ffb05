//! Memory for I/O buffers: an arena is one block of huge pages, divided into segments, divided into slots.
//!
//! Every queue has an arena, and the process has one for large buffers that are made without a queue. A request into
//! contiguous memory is one segment for the device; a request into 4 KiB pages is up to hundreds, which can halve the
//! data rate. Reused memory also saves the kernel from clearing pages.
//!
//! ```text
//! arena    | segment 0: slots of 16 KiB | segment 1: slots of 256 KiB | segment 2: unused | …
//! segment  2 MiB, aligned to 2 MiB (one huge page, one buffer registered with the kernel)
//! slot     a power of two from 4 KiB to 2 MiB; one bit in the segment's free map: set = free
//! ```
//!
//! The address space is reserved at the first allocation. The kernel adds memory segment by segment on first use. A
//! segment has one slot size at a time; when all its slots are free it can take another, so the arena adapts to the
//! request sizes. Only the owner of the [`Arena`] takes slots. Any thread may free a slot by setting its bit.
//!
//! Invariants: a slot whose bit is clear belongs to exactly one [`Slot`]. Only the owner clears bits.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyaki_primitives::{AlignedMemory, HUGE_PAGE_BYTES};
use parking_lot::Mutex;

use super::{BLOCK, Buffer};

/// Bytes of a segment.
pub(crate) const SEGMENT_BYTES: usize = HUGE_PAGE_BYTES;
const SLOT_BYTES_MAX: usize = SEGMENT_BYTES;
/// Words of a segment's free map, at one bit per smallest slot.
const MAP_WORDS: usize = SEGMENT_BYTES / BLOCK / 64;
/// Segments of the largest arena.
pub(crate) const SEGMENTS_MAX: usize = 32;
/// Arena bytes of a queue per request in flight.
const BYTES_PER_REQUEST: usize = 1 << 20;
/// Segments of the arena that the process shares.
const SEGMENTS_SHARED: usize = 16;
/// Buffers of this length and more come from the shared arena if they have no arena of their own.
const SHARED_BYTES_MIN: usize = 64 << 10;

// Segment numbers and slot numbers fit into `u16`, and whole segments into whole words.
const _: () = assert!(SEGMENTS_MAX <= 1 << 16 && SEGMENTS_SHARED <= SEGMENTS_MAX);
const _: () = assert!(SEGMENT_BYTES.is_multiple_of(64 * BLOCK) && SEGMENT_BYTES / BLOCK <= 1 << 16);

/// The side of the owner, which takes slots.
#[derive(Debug)]
pub(crate) struct Arena {
    shared: Option<Arc<Shared>>,
    segments: usize,
    /// Base-2 logarithm of each segment's slot size; `None` before its first use.
    slot_bits: Vec<Option<u32>>,
    /// The system refused the memory; all buffers come from elsewhere.
    refused: bool,
}

static SHARED: Mutex<Arena> = Mutex::new(Arena::with_segments(SEGMENTS_SHARED));

/// A buffer with unspecified contents from the shared arena; `None` if `len` is below 64 KiB or the arena is full.
pub(crate) fn shared_buffer(len: usize) -> Option<Buffer> {
    if len < SHARED_BYTES_MIN { None } else { SHARED.lock().buffer(len) }
}

/// The memory and free maps, shared by the owner and all slots.
struct Shared {
    memory: AlignedMemory,
    /// One per segment.
    maps: Box<[FreeMap]>,
}

/// Free slots of a segment, one bit each. Aligned to a cache line, because several threads may free slots.
#[derive(Debug, Default)]
#[repr(align(64))]
struct FreeMap([AtomicU64; MAP_WORDS]);

const _: () = assert!(align_of::<FreeMap>() == keyaki_primitives::CACHE_LINE_BYTES);

/// A segment of an arena: its number and first byte. Holding one proves that [`SEGMENT_BYTES`] bytes from `start` on
/// are the arena's memory.
#[derive(Debug, Clone, Copy)]
#[cfg(target_os = "linux")]
pub(crate) struct Segment<'a> {
    number: u16,
    start: NonNull<u8>,
    arena: std::marker::PhantomData<&'a Arena>,
}

#[cfg(target_os = "linux")]
impl Segment<'_> {
    /// The segment's number within its arena, below [`SEGMENTS_MAX`].
    pub(crate) fn number(self) -> u16 {
        self.number
    }

    /// The segment's first byte.
    pub(crate) fn start(self) -> NonNull<u8> {
        self.start
    }
}

/// A slot in use; dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct Slot {
    shared: Arc<Shared>,
    segment: u16,
    index: u16,
}

impl Arena {
    /// An arena for `depth` requests in flight: at most 64 MiB of address space, with memory added by the segment on
    /// first use.
    pub(crate) fn new(depth: usize) -> Self {
        Arena::with_segments((depth.saturating_mul(BYTES_PER_REQUEST) / SEGMENT_BYTES + 2).min(SEGMENTS_MAX))
    }

    const fn with_segments(segments: usize) -> Self {
        Arena { shared: None, segments, slot_bits: Vec::new(), refused: false }
    }

    /// A buffer of `len` bytes with unspecified contents; `None` if no free slot can hold it.
    ///
    /// # Panics
    /// If `len` is not a multiple of [`BLOCK`].
    pub(crate) fn buffer(&mut self, len: usize) -> Option<Buffer> {
        assert!(len.is_multiple_of(BLOCK), "buffer of {len} bytes is not block-aligned");
        if len == 0 || len > SLOT_BYTES_MAX || self.refused {
            return None;
        }
        let bits = len.next_power_of_two().trailing_zeros();
        if self.shared.is_none() {
            self.reserve();
        }
        let slot = take(self.shared.as_ref()?, &mut self.slot_bits, bits)?;
        // SAFETY: `take` returns a slot of 2^bits >= len bytes that no other buffer has; the arena's memory is initialised.
        Some(unsafe { Buffer::in_slot(slot.start(bits), len, slot) })
    }

    fn reserve(&mut self) {
        match Shared::new(self.segments) {
            Ok(shared) => {
                self.shared = Some(Arc::new(shared));
                self.slot_bits = vec![None; self.segments];
            }
            Err(error) => {
                tracing::warn!(%error, "could not reserve memory for I/O buffers; using the heap");
                self.refused = true;
            }
        }
    }

    /// The segment that contains `slot`; `None` if the slot belongs to another arena.
    #[cfg(target_os = "linux")]
    pub(crate) fn segment_of(&self, slot: &Slot) -> Option<Segment<'_>> {
        let shared = self.shared.as_ref()?;
        Arc::ptr_eq(shared, &slot.shared).then(|| Segment {
            number: slot.segment,
            start: shared.segment(slot.segment),
            arena: std::marker::PhantomData,
        })
    }
}

/// Takes a slot of 2^`bits` bytes: from a segment of that slot size, else from a segment without slots in use.
fn take(shared: &Arc<Shared>, slot_bits: &mut [Option<u32>], bits: u32) -> Option<Slot> {
    for (segment, map) in shared.maps.iter().enumerate() {
        if slot_bits[segment] == Some(bits)
            && let Some(index) = map.take()
        {
            return Some(Slot { shared: shared.clone(), segment: segment as u16, index });
        }
    }
    let segment = unused_segment(shared, slot_bits)?;
    slot_bits[segment] = Some(bits);
    let map = &shared.maps[segment];
    map.reset(SEGMENT_BYTES >> bits);
    let index = map.take()?;
    Some(Slot { shared: shared.clone(), segment: segment as u16, index })
}

/// A segment without slots in use, preferably one that already has memory.
fn unused_segment(shared: &Shared, slot_bits: &[Option<u32>]) -> Option<usize> {
    let idle = |&segment: &usize| {
        slot_bits[segment].is_some_and(|bits| shared.maps[segment].is_all_free(SEGMENT_BYTES >> bits))
    };
    (0..slot_bits.len()).find(idle).or_else(|| slot_bits.iter().position(Option::is_none))
}

impl Slot {
    fn start(&self, bits: u32) -> NonNull<u8> {
        let offset = usize::from(self.index) << bits;
        assert!(offset + (1 << bits) <= SEGMENT_BYTES);
        // SAFETY: the slot lies within its segment.
        unsafe { self.shared.segment(self.segment).add(offset) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shared.maps[usize::from(self.segment)].free(self.index);
    }
}

impl FreeMap {
    /// Marks the first `slots` slots as free and the rest as absent. No slot is in use.
    fn reset(&self, slots: usize) {
        for (word, bits) in self.0.iter().enumerate() {
            bits.store(full_word(slots, word), Ordering::Relaxed);
        }
    }

    /// True if all of the `slots` slots are free. Acquire: the accesses of their last users happened before.
    fn is_all_free(&self, slots: usize) -> bool {
        self.0.iter().enumerate().all(|(word, bits)| bits.load(Ordering::Acquire) == full_word(slots, word))
    }

    /// Takes a free slot; `None` if all are in use. Only the arena's owner calls this.
    fn take(&self) -> Option<u16> {
        self.0.iter().enumerate().find_map(|(word, bits)| {
            let free = bits.load(Ordering::Acquire);
            if free == 0 {
                return None;
            }
            let bit = free.trailing_zeros();
            // AcqRel: acquire as in `is_all_free`; release continues the release sequence of other frees in this word.
            let before = bits.fetch_and(!(1 << bit), Ordering::AcqRel);
            // Only the owner clears bits, so the bit seen set was still set.
            assert!(before & (1 << bit) != 0, "an I/O buffer slot was taken twice");
            Some((word * 64) as u16 + bit as u16)
        })
    }

    fn free(&self, index: u16) {
        let bit = 1 << (index % 64);
        let before = self.0[usize::from(index / 64)].fetch_or(bit, Ordering::Release);
        assert!(before & bit == 0, "an I/O buffer slot was freed twice");
    }
}

/// The word number `word` of a free map whose first `slots` bits are set.
fn full_word(slots: usize, word: usize) -> u64 {
    match slots.saturating_sub(word * 64) {
        0 => 0,
        rest @ 1..64 => (1 << rest) - 1,
        _ => u64::MAX,
    }
}

impl Shared {
    fn new(segments: usize) -> std::io::Result<Self> {
        assert!(segments <= SEGMENTS_MAX);
        let memory = AlignedMemory::huge(segments * SEGMENT_BYTES)?;
        assert!(memory.start().as_ptr().addr().is_multiple_of(SEGMENT_BYTES));
        Ok(Shared { memory, maps: (0..segments).map(|_| FreeMap::default()).collect() })
    }

    /// The first byte of a segment.
    fn segment(&self, segment: u16) -> NonNull<u8> {
        assert!(usize::from(segment) < self.maps.len());
        // SAFETY: the memory holds `maps.len()` segments.
        unsafe { self.memory.start().add(usize::from(segment) * SEGMENT_BYTES) }
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
    fn a_full_arena_gives_none_and_segments_change_slot_size() {
        let mut arena = Arena::new(1);
        let capacity = arena.segments * SEGMENT_BYTES;
        let small: Vec<_> = (0..capacity / BLOCK).map(|_| arena.buffer(BLOCK).unwrap()).collect();
        assert!(arena.buffer(BLOCK).is_none(), "the arena is full");
        assert!(arena.buffer(SLOT_BYTES_MAX).is_none());
        drop(small);
        let large: Vec<_> = (0..capacity / SLOT_BYTES_MAX).map(|_| arena.buffer(SLOT_BYTES_MAX).unwrap()).collect();
        assert!(arena.buffer(BLOCK).is_none());
        drop(large);
        assert!(arena.buffer(SLOT_BYTES_MAX + BLOCK).is_none() && arena.buffer(0).is_none());
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
            assert!(bits.is_none_or(|bits| map.is_all_free(SEGMENT_BYTES >> bits)));
        }
    }
}

//! Border nodes: up to 15 entries, each a key slice with the key's continuation, and a value or the root of the next
//! layer.
//!
//! ```text
//!   0  version, permutation, next, previous, bag
//!  40  code of each slot: the continuation of its key
//!  56  layout (width, tail words), slots that readers with an old permutation may still read
//!  64  slice × width
//!      value or layer root × width
//!      tail × width: room for short suffixes, 4 bytes × tail words each
//! ```
//!
//! A node of width 15 takes 304 bytes without tails and 364 with one word of tail: five or six cache lines, all
//! prefetched at once. Layers of few keys use narrower nodes (128 bytes for up to four keys).
//!
//! | code | continuation of the key after its slice |
//! |---|---|
//! | 0 … 8 | none: the key ends within the slice, after so many bytes |
//! | 9 … 24 | a suffix of code - 8 bytes, stored in the tail |
//! | `BAG` | a suffix stored in the bag |
//! | `LAYER` | several keys continue after this slice; the value is the word of the next layer's root |
//!
//! Entries are sorted by slice, then by rank (the code, at most 9). A slice has at most one entry of rank 9. All
//! entries of a slice are in the same node.
//!
//! Every field that changes is atomic. A racing reader therefore reads valid values, though not necessarily ones that
//! belong together; it detects that by the version. A writer publishes an entry by storing the permutation (release),
//! which readers load first (acquire). A slot that was freed may still be read by a reader with an old permutation.
//! Before the slot is reused, the node is marked as inserting, so that such readers read it again.
//!
//! Invariants: the permutation holds at most `width` entries, so that all their slots are below `width`; the layout
//! never changes; all bytes of a node are initialised when it is made.

mod continuation;
mod layout;
mod lookup;
mod write;

pub(crate) use continuation::Continuation;
pub(crate) use layout::{BorderLayout, TAIL_BYTES_MAX};
pub(crate) use lookup::Lookup;

use std::marker::PhantomData;
use std::ptr::NonNull;

use keyaki_primitives::CACHE_LINE_BYTES;

use super::copy::WORDS;
use super::exclusive::Exclusive;
use super::permutation::{Permutation, WIDTH};
use super::version::{Version, VersionSnapshot};
use super::{BORDER_TAG, Bag};
use crate::sync::{Acquire, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Relaxed, Release};

/// Code of an entry whose suffix is in the bag.
pub(crate) const BAG: u8 = 30;
/// Code of an entry that leads to the next layer.
pub(crate) const LAYER: u8 = 31;

/// Position of an entry among those of its slice.
#[inline]
pub(crate) fn rank(code: u8) -> u8 {
    code.min(9)
}

#[repr(C, align(64))]
struct Header {
    version: Version,
    permutation: AtomicU64,
    next: AtomicU64,
    previous: AtomicU64,
    bag: AtomicU64,
    codes: [AtomicU8; WIDTH + 1],
    layout: BorderLayout,
    stale: AtomicU16,
}

const _: () = assert!(size_of::<Header>() == CACHE_LINE_BYTES && align_of::<Header>() == CACHE_LINE_BYTES);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Border<'g> {
    header: NonNull<Header>,
    lifetime: PhantomData<&'g Header>,
}

impl<'g> Border<'g> {
    /// Offset of the next node's word.
    pub const NEXT_AT: usize = std::mem::offset_of!(Header, next);
    /// Offset of the codes.
    pub const CODES_AT: usize = std::mem::offset_of!(Header, codes);
    /// Offset of the slices.
    pub const SLICES_AT: usize = size_of::<Header>();

    /// # Safety
    /// The address is that of a border node that stays allocated during `'g`.
    #[inline]
    pub unsafe fn from_address(address: u64) -> Self {
        // SAFETY: addresses of nodes are not zero.
        let header = unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(address as usize)) };
        Border { header, lifetime: PhantomData }
    }

    /// Makes an empty node.
    ///
    /// # Safety
    /// `memory` has `layout.bytes()` initialised bytes, aligned to 64, that stay allocated during `'g`, and no other
    /// thread uses it.
    #[inline]
    pub unsafe fn create(memory: NonNull<u8>, flags: u64, layout: BorderLayout) -> Self {
        let header = memory.cast::<Header>();
        let fresh = Header {
            version: Version::new(flags, 0),
            permutation: AtomicU64::new(Permutation::EMPTY.0),
            next: AtomicU64::new(0),
            previous: AtomicU64::new(0),
            bag: AtomicU64::new(0),
            codes: [const { AtomicU8::new(0) }; WIDTH + 1],
            layout,
            stale: AtomicU16::new(0),
        };
        // SAFETY: the caller gives suitable memory.
        unsafe { header.write(fresh) };
        header.as_ptr().expose_provenance();
        Border { header, lifetime: PhantomData }
    }

    #[inline]
    fn header(self) -> &'g Header {
        // SAFETY: the node is allocated during 'g; the fields of the header that change are atomic.
        unsafe { &*self.header.as_ptr() }
    }

    pub fn memory(self) -> NonNull<u8> {
        self.header.cast()
    }

    #[inline]
    pub fn word(self) -> u64 {
        self.header.as_ptr().addr() as u64 | BORDER_TAG
    }

    #[inline]
    pub fn version(self) -> &'g Version {
        &self.header().version
    }

    /// A version without marks; waits for one.
    #[inline]
    pub fn stable(self) -> VersionSnapshot {
        self.version().stable()
    }

    #[inline]
    pub fn layout(self) -> BorderLayout {
        self.header().layout
    }

    #[inline]
    pub fn width(self) -> usize {
        self.header().layout.width as usize
    }

    #[inline]
    pub fn permutation(self) -> Permutation {
        Permutation(self.header().permutation.load(Acquire))
    }

    /// The right neighbour in the layer's list of border nodes.
    #[inline]
    pub fn next(self) -> Option<Border<'g>> {
        // SAFETY: the word is loaded during 'g from a node of the tree.
        unsafe { Self::from_link(self.header().next.load(Acquire)) }
    }

    /// The left neighbour in the layer's list of border nodes.
    #[inline]
    pub fn previous(self) -> Option<Border<'g>> {
        // SAFETY: the word is loaded during 'g from a node of the tree.
        unsafe { Self::from_link(self.header().previous.load(Acquire)) }
    }

    /// The border node of a link, which is 0 if there is none.
    ///
    /// # Safety
    /// The link is 0, or was loaded during `'g` from a border node that was in the tree during `'g`.
    #[inline]
    pub unsafe fn from_link(word: u64) -> Option<Border<'g>> {
        // SAFETY: neighbours of border nodes are border nodes. A neighbour is retired after it has been unlinked, so
        // that the guard behind 'g keeps it allocated.
        (word != 0).then(|| unsafe { Border::from_address(word & !BORDER_TAG) })
    }

    /// Sets the left neighbour of this node. A node's `previous` is protected by the lock of its left neighbour, old or
    /// new, which `_owner` proves; the first node's by its own.
    pub fn set_previous(self, previous: Option<Border<'_>>, _owner: &Exclusive<Border<'_>>) {
        self.header().previous.store(previous.map_or(0, Border::word), Release);
    }

    /// # Safety
    /// `offset` is within the node.
    #[inline]
    unsafe fn at(self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.layout().bytes());
        // SAFETY: the caller's promise.
        unsafe { self.header.cast::<u8>().add(offset) }
    }

    /// # Safety
    /// `slot` is below the width.
    #[inline]
    unsafe fn slice_at(self, slot: usize) -> &'g AtomicU64 {
        debug_assert!(slot < self.width());
        // SAFETY: within the node, aligned, initialised, and only ever used as an atomic.
        unsafe { self.at(Self::SLICES_AT + 8 * slot).cast().as_ref() }
    }

    /// # Safety
    /// `layout` is the node's, and `slot` is below its width.
    #[inline]
    unsafe fn value_at(self, layout: BorderLayout, slot: usize) -> &'g AtomicU64 {
        debug_assert!(layout == self.layout() && slot < self.width());
        // SAFETY: as for slices.
        unsafe { self.at(Self::SLICES_AT + 8 * (layout.width as usize + slot)).cast().as_ref() }
    }

    /// A word of a slot's tail.
    ///
    /// # Safety
    /// `layout` is the node's, `slot` is below its width and `index` below its tail words.
    #[inline]
    unsafe fn tail_at(self, layout: BorderLayout, slot: usize, index: usize) -> &'g AtomicU32 {
        debug_assert!(layout == self.layout() && slot < self.width() && index < layout.tail as usize);
        let offset = Self::SLICES_AT + 16 * layout.width as usize + 4 * (slot * layout.tail as usize + index);
        // SAFETY: as for slices.
        unsafe { self.at(offset).cast().as_ref() }
    }

    #[inline]
    pub fn slice(self, slot: usize) -> u64 {
        assert!(slot < self.width(), "slot {slot} of a border node");
        // SAFETY: the slot is below the width.
        unsafe { self.slice_at(slot) }.load(Relaxed)
    }

    /// The word of a slot's value, or of the layer's root.
    #[inline]
    pub fn value(self, slot: usize) -> u64 {
        assert!(slot < self.width(), "slot {slot} of a border node");
        // SAFETY: the slot is below the width.
        unsafe { self.value_at(self.layout(), slot) }.load(Acquire)
    }

    #[inline]
    pub fn code(self, slot: usize) -> u8 {
        self.header().codes[slot].load(Relaxed)
    }

    pub fn bag(self) -> Option<Bag<'g>> {
        let address = self.header().bag.load(Acquire);
        // SAFETY: a bag is retired after it has been replaced in its node, so that the guard behind 'g keeps it
        // allocated.
        (address != 0).then(|| unsafe { Bag::from_address(address) })
    }

    /// Copies the node's cache lines, while other threads may write to them.
    #[inline]
    pub fn copy_lines(self, to: &mut [u64; WORDS]) {
        #[cfg(all(target_arch = "x86_64", not(miri), not(feature = "shuttle")))]
        // SAFETY: a node consists of whole cache lines, and the largest has at most `WORDS` words.
        if unsafe { super::search::copy_lines(self.header.as_ptr().cast(), to.as_mut_ptr(), self.layout().bytes()) } {
            return;
        }
        self.copy_fields(to);
    }

    /// As [`copy_lines`](Self::copy_lines), field by field, without the fields that copies do not use.
    fn copy_fields(self, to: &mut [u64; WORDS]) {
        let layout = self.layout();
        let width = layout.width as usize;
        to[Self::NEXT_AT / 8] = self.header().next.load(Acquire);
        for (word, codes) in to[Self::CODES_AT / 8..].iter_mut().zip(self.header().codes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(std::array::from_fn(|i| codes[i].load(Relaxed)));
        }
        let slots = Self::SLICES_AT / 8;
        for slot in 0..width {
            // SAFETY: the slot is below the width.
            let (slice, value) = unsafe { (self.slice_at(slot), self.value_at(layout, slot)) };
            to[slots + slot] = slice.load(Relaxed);
            to[slots + width + slot] = value.load(Acquire);
        }
        let tails = &mut to[slots + 2 * width..];
        let word = |at: usize| {
            let tail = layout.tail as usize;
            if at < width * tail {
                // SAFETY: a quotient below the width and a remainder below the tail words.
                unsafe { self.tail_at(layout, at / tail, at % tail) }.load(Relaxed).to_ne_bytes()
            } else {
                [0; 4]
            }
        };
        for (i, to) in tails[..(width * layout.tail as usize).div_ceil(2)].iter_mut().enumerate() {
            let (one, other) = (word(2 * i), word(2 * i + 1));
            *to = u64::from_ne_bytes(std::array::from_fn(|byte| if byte < 4 { one[byte] } else { other[byte - 4] }));
        }
    }
}

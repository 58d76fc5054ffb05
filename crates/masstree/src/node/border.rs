//! Border nodes: up to 15 entries, each a key slice with what follows it, and a value or the next layer.
//!
//! ```text
//!   0  version, permutation, next, previous, bag
//!  40  code of each slot: what follows the slice
//!  56  shape (width, tail words), slots that stale readers may still look at
//!  64  slice × width
//!      value or layer × width
//!      tail × width: room for short suffixes, 4 bytes × tail words each
//! ```
//!
//! A node of width 15 takes 304 bytes without tails and 364 with one word of tail: five or six cache lines, all requested at
//! once. Layers of few keys use narrower nodes (128 bytes for up to four keys).
//!
//! | code | the entry's key, after its slice |
//! |---|---|
//! | 0 … 8 | ends within the slice, which has so many bytes |
//! | 9 … 24 | goes on for code - 8 bytes, which are in the tail |
//! | `BAG` | goes on; the rest is in the bag |
//! | `LAYER` | many keys with this slice go on; the value is the word of the next layer's root |
//!
//! Entries are sorted by slice, then by rank (code, at most 9); one slice has at most one entry of rank 9. All entries of a
//! slice are in the same node.
//!
//! Every field that changes is atomic, so that racing readers get a value, if perhaps not the one that belongs to the
//! others; the version then tells. Writers publish an entry by storing the permutation (release), which readers load first
//! (acquire). A slot that was freed may still be read by someone with an old permutation: when it is used again, the node
//! is marked as inserting, so that such readers read again.

use std::marker::PhantomData;
use std::ptr::NonNull;

use super::copy::WORDS;
use super::permutation::{Permutation, WIDTH};
use super::search;
use super::version::{Seen, Version};
use super::{BORDER_TAG, Bag};
use crate::key::Cursor;
use crate::sync::{Acquire, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Relaxed, Release};

/// The suffix is in the bag.
pub(crate) const BAG: u8 = 30;
/// The entry leads to the next layer.
pub(crate) const LAYER: u8 = 31;

/// Where an entry stands among those of its slice.
#[inline]
pub(crate) fn rank(code: u8) -> u8 {
    code.min(9)
}

/// Width and tail of a node: they never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub width: u8,
    /// Words of four bytes for each slot's suffix.
    pub tail: u8,
}

impl Shape {
    /// Longest tail, in words.
    pub const TAIL_MAX: u8 = 4;

    /// A full-width node for entries whose longest suffix has the given length: longer than the longest tail, and they
    /// all go into a bag.
    pub fn wide(suffix: usize) -> Self {
        Shape { width: WIDTH as u8, tail: Self::tail_for(suffix) }
    }

    /// The narrowest node for a layer of `count` entries.
    pub fn for_layer(count: usize, suffix: usize) -> Self {
        let width = match count {
            0..=4 => 4,
            5..=8 => 8,
            _ => WIDTH as u8,
        };
        Shape { width, tail: Self::tail_for(suffix) }
    }

    fn tail_for(suffix: usize) -> u8 {
        if suffix > 4 * Self::TAIL_MAX as usize { 0 } else { suffix.div_ceil(4) as u8 }
    }

    /// Longest suffix that fits into a tail, in bytes.
    #[inline]
    pub const fn tail_bytes(self) -> usize {
        4 * self.tail as usize
    }

    /// Bytes of such a node.
    pub const fn bytes(self) -> usize {
        (size_of::<Header>() + self.width as usize * (16 + self.tail_bytes())).next_multiple_of(64)
    }
}

#[repr(C, align(64))]
struct Header {
    version: Version,
    permutation: AtomicU64,
    next: AtomicU64,
    previous: AtomicU64,
    bag: AtomicU64,
    codes: [AtomicU8; WIDTH + 1],
    shape: Shape,
    stale: AtomicU16,
}

/// What a border node says about a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    Absent,
    /// The value's word.
    Value {
        slot: usize,
        word: u64,
    },
    /// Look in the layer of this root.
    Layer {
        slot: usize,
        word: u64,
    },
    /// Another key with the same slice goes on differently: the key is absent, and needs a layer to be inserted.
    Conflict {
        slot: usize,
    },
}

impl Lookup {
    /// The word of the key's value.
    #[inline]
    pub fn value(self) -> Option<u64> {
        if let Lookup::Value { word, .. } = self { Some(word) } else { None }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Border<'g> {
    header: NonNull<Header>,
    lifetime: PhantomData<&'g Header>,
}

impl<'g> Border<'g> {
    /// Where things are in a node.
    pub const NEXT_AT: usize = std::mem::offset_of!(Header, next);
    pub const CODES_AT: usize = std::mem::offset_of!(Header, codes);
    pub const SLICES_AT: usize = size_of::<Header>();

    /// # Safety
    /// The address is that of a border node that stays allocated during `'g`.
    #[inline]
    pub unsafe fn from_address(address: u64) -> Self {
        // SAFETY: addresses of nodes are not zero.
        let header = unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(address as usize)) };
        Border { header, lifetime: PhantomData }
    }

    /// An empty node.
    ///
    /// # Safety
    /// `memory` has `shape.bytes()` initialised bytes, 64-byte aligned, that stay allocated during `'g`, and nobody else
    /// has it.
    #[inline]
    pub unsafe fn create(memory: NonNull<u8>, flags: u64, shape: Shape) -> Self {
        let header = memory.cast::<Header>();
        let fresh = Header {
            version: Version::new(flags, 0),
            permutation: AtomicU64::new(Permutation::EMPTY.0),
            next: AtomicU64::new(0),
            previous: AtomicU64::new(0),
            bag: AtomicU64::new(0),
            codes: [const { AtomicU8::new(0) }; WIDTH + 1],
            shape,
            stale: AtomicU16::new(0),
        };
        // SAFETY: the caller gives suitable memory.
        unsafe { header.write(fresh) };
        header.as_ptr().expose_provenance();
        Border { header, lifetime: PhantomData }
    }

    #[inline]
    fn header(self) -> &'g Header {
        // SAFETY: the node is allocated during 'g; what changes in the header is atomic.
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

    #[inline]
    pub fn shape(self) -> Shape {
        self.header().shape
    }

    #[inline]
    pub fn width(self) -> usize {
        self.header().shape.width as usize
    }

    #[inline]
    pub fn permutation(self) -> Permutation {
        Permutation(self.header().permutation.load(Acquire))
    }

    /// Publishes a permutation; the node is locked.
    #[inline]
    pub fn set_permutation(self, permutation: Permutation) {
        self.header().permutation.store(permutation.0, Release);
    }

    /// The word of the next node, or zero.
    #[inline]
    pub fn next(self) -> u64 {
        self.header().next.load(Acquire)
    }

    /// The caller holds the lock of this node.
    pub fn set_next(self, word: u64) {
        self.header().next.store(word, Release);
    }

    /// The word of the previous node, or zero.
    #[inline]
    pub fn previous(self) -> u64 {
        self.header().previous.load(Acquire)
    }

    /// The caller holds the lock of the previous node (of this node, if it is the first).
    pub fn set_previous(self, word: u64) {
        self.header().previous.store(word, Release);
    }

    #[inline]
    fn at(self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.shape().bytes());
        // SAFETY: the callers keep to slots below the width, so that the offset is within the node.
        unsafe { self.header.cast::<u8>().add(offset) }
    }

    #[inline]
    pub fn slice(self, slot: usize) -> &'g AtomicU64 {
        debug_assert!(slot < self.width());
        // SAFETY: within the node, aligned; initialised and only ever used as an atomic.
        unsafe { self.at(64 + 8 * slot).cast().as_ref() }
    }

    /// The word of a slot's value, or of the layer's root.
    #[inline]
    pub fn value(self, slot: usize) -> &'g AtomicU64 {
        self.value_of(self.shape(), slot)
    }

    /// As [`value`](Self::value), for who has the node's shape at hand: it cannot be read again and again for nothing.
    #[inline]
    pub fn value_of(self, shape: Shape, slot: usize) -> &'g AtomicU64 {
        debug_assert!(shape == self.shape() && slot < self.width());
        // SAFETY: as for slices.
        unsafe { self.at(64 + 8 * (shape.width as usize + slot)).cast().as_ref() }
    }

    #[inline]
    fn tail(self, slot: usize, index: usize) -> &'g AtomicU32 {
        self.tail_of(self.shape(), slot, index)
    }

    /// A word of the tail of a slot, of a node with this shape.
    #[inline]
    pub fn tail_of(self, shape: Shape, slot: usize, index: usize) -> &'g AtomicU32 {
        debug_assert!(shape == self.shape() && slot < self.width() && index < shape.tail as usize);
        // SAFETY: as for slices.
        unsafe { self.at(64 + 16 * shape.width as usize + 4 * (slot * shape.tail as usize + index)).cast().as_ref() }
    }

    #[inline]
    pub fn code(self, slot: usize) -> u8 {
        self.header().codes[slot].load(Relaxed)
    }

    pub fn bag(self) -> Option<Bag<'g>> {
        let address = self.header().bag.load(Acquire);
        // SAFETY: a bag is retired after it has been replaced in its node, with the node's readers' epoch.
        (address != 0).then(|| unsafe { Bag::from_address(address) })
    }

    pub fn set_bag(self, bag: Bag<'_>) {
        self.header().bag.store(bag.address(), Release);
    }

    /// A bit for each slot whose slice is the given one, whether or not it holds an entry.
    #[inline]
    pub fn matches(self, slice: u64) -> u32 {
        let width = self.width();
        if width == WIDTH {
            return search::equal(self.words(), slice) & ((1 << WIDTH) - 1);
        }
        (0..width).fold(0, |mask, slot| mask | u32::from(self.slice(slot).load(Relaxed) == slice) << slot)
    }

    /// What the node says about a key. Without the lock, only the version tells whether that was so.
    #[inline]
    pub fn lookup(self, key: &Cursor<'_>, slice: u64, permutation: Permutation) -> Lookup {
        let mut candidates = self.matches(slice);
        let rank_wanted = key.rank();
        while candidates != 0 {
            let slot = candidates.trailing_zeros() as usize;
            candidates &= candidates - 1;
            let code = self.code(slot);
            if rank(code) != rank_wanted || !permutation.holds(slot) {
                continue;
            }
            let word = self.value(slot).load(Acquire);
            return match code {
                LAYER => Lookup::Layer { slot, word },
                0..=8 => Lookup::Value { slot, word },
                _ if self.suffix_is(slot, code, key.suffix()) => Lookup::Value { slot, word },
                _ => Lookup::Conflict { slot },
            };
        }
        Lookup::Absent
    }

    /// Whether the slot's suffix is the given one.
    #[inline]
    fn suffix_is(self, slot: usize, code: u8, suffix: &[u8]) -> bool {
        if code == BAG {
            return self.bag().and_then(|bag| bag.suffix(slot)) == Some(suffix);
        }
        let length = code as usize - 8;
        if length != suffix.len() || length > self.shape().tail_bytes() {
            return false;
        }
        suffix.chunks(4).enumerate().all(|(index, chunk)| {
            let word = self.tail(slot, index).load(Relaxed);
            word == tail_word(chunk)
        })
    }

    /// Where an entry stands, or would stand, in a node that the caller has locked.
    #[inline]
    pub fn position(self, slice: u64, rank_wanted: u8, permutation: Permutation) -> usize {
        let at_most = self.at_most(slice);
        let mut position = permutation.count_of(at_most);
        // Entries of the same slice that end later.
        while position > 0 {
            let slot = permutation.slot(position - 1);
            if self.slice(slot).load(Relaxed) != slice || rank(self.code(slot)) < rank_wanted {
                break;
            }
            position -= 1;
        }
        position
    }

    /// A bit for each slot whose slice is at most the given one, whether or not it holds an entry.
    #[inline]
    fn at_most(self, slice: u64) -> u32 {
        let width = self.width();
        if width == WIDTH {
            return search::at_most(self.words(), slice) & ((1 << WIDTH) - 1);
        }
        (0..width).fold(0, |mask, slot| mask | u32::from(self.slice(slot).load(Relaxed) <= slice) << slot)
    }

    /// The slices of a wide node, and the first value.
    #[inline]
    fn words(self) -> &'g [AtomicU64; WIDTH + 1] {
        debug_assert_eq!(self.width(), WIDTH);
        // SAFETY: sixteen words within the node (wide ones have 304 bytes at least), aligned, initialised, and only ever used
        // as atomics.
        unsafe { self.at(64).cast().as_ref() }
    }

    /// Whether someone with an old permutation may still look at the slot.
    #[inline]
    pub fn is_stale(self, slot: usize) -> bool {
        self.header().stale.load(Relaxed) & 1 << slot != 0
    }

    pub fn set_stale(self, slot: usize) {
        let stale = self.header().stale.load(Relaxed);
        self.header().stale.store(stale | 1 << slot, Relaxed);
    }

    /// The node has been marked: readers with old permutations will read again.
    pub fn clear_stale(self) {
        self.header().stale.store(0, Relaxed);
    }

    /// Whether an entry of this suffix needs the bag.
    #[inline]
    pub fn needs_bag(self, suffix: &[u8]) -> bool {
        suffix.len() > self.shape().tail_bytes()
    }

    /// Fills a free slot of a locked (or unpublished) node. If the suffix needs a bag, it has room.
    #[inline]
    #[expect(clippy::expect_used, reason = "callers reserve a bag before they fill in a suffix that needs one")]
    pub fn fill(self, slot: usize, slice: u64, rest: Rest<'_>, word: u64) {
        self.slice(slot).store(slice, Relaxed);
        self.value(slot).store(word, Release);
        let code = match rest {
            Rest::Ends(length) => length,
            Rest::Layer => LAYER,
            Rest::Suffix(suffix) if self.needs_bag(suffix) => {
                // The bag is made beforehand; without one, the entry would be lost.
                self.bag().expect("a bag is made before a long suffix is filled in").append(slot, suffix);
                BAG
            }
            Rest::Suffix(suffix) => {
                for (index, chunk) in suffix.chunks(4).enumerate() {
                    self.tail(slot, index).store(tail_word(chunk), Relaxed);
                }
                8 + suffix.len() as u8
            }
        };
        self.header().codes[slot].store(code, Relaxed);
    }

    /// Turns the entry of a slot into a layer; the node is locked and marked.
    pub fn set_layer(self, slot: usize, word: u64) {
        self.value(slot).store(word, Release);
        self.header().codes[slot].store(LAYER, Relaxed);
    }

    /// What follows the slice of a slot, of a node that nobody changes; `tail` has room for a short suffix.
    pub fn rest<'a>(self, slot: usize, tail: &'a mut [u8; 4 * Shape::TAIL_MAX as usize]) -> Rest<'a>
    where
        'g: 'a,
    {
        match self.code(slot) {
            LAYER => Rest::Layer,
            length @ 0..=8 => Rest::Ends(length),
            BAG => Rest::Suffix(self.bag().and_then(|bag| bag.suffix(slot)).unwrap_or_default()),
            code => {
                let length = code as usize - 8;
                for index in 0..length.div_ceil(4) {
                    let word = self.tail(slot, index).load(Relaxed).to_ne_bytes();
                    tail[4 * index..4 * index + 4].copy_from_slice(&word);
                }
                Rest::Suffix(&tail[..length])
            }
        }
    }

    /// Length of the suffix of a slot of a node that nobody changes; zero if it has none.
    pub fn suffix_bytes(self, slot: usize) -> usize {
        match self.code(slot) {
            0..=8 | LAYER => 0,
            BAG => self.bag().and_then(|bag| bag.suffix(slot)).map_or(0, <[u8]>::len),
            code => code as usize - 8,
        }
    }

    /// Copies the node's lines, while others may be writing.
    #[inline]
    pub fn copy_lines(self, to: &mut [u64; WORDS]) {
        #[cfg(all(target_arch = "x86_64", not(miri), not(feature = "shuttle")))]
        // SAFETY: a node is so many whole lines; the largest has `WORDS` words.
        if unsafe { search::copy_lines(self.header.as_ptr().cast(), to.as_mut_ptr(), self.shape().bytes()) } {
            return;
        }
        self.copy_fields(to);
    }

    /// The same, field by field, as far as copies are looked at.
    fn copy_fields(self, to: &mut [u64; WORDS]) {
        let shape = self.shape();
        let width = shape.width as usize;
        to[Self::NEXT_AT / 8] = self.next();
        for (word, codes) in to[Self::CODES_AT / 8..].iter_mut().zip(self.header().codes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(std::array::from_fn(|i| codes[i].load(Relaxed)));
        }
        let slots = Self::SLICES_AT / 8;
        for slot in 0..width {
            to[slots + slot] = self.slice(slot).load(Relaxed);
            to[slots + width + slot] = self.value_of(shape, slot).load(Acquire);
        }
        let tails = &mut to[slots + 2 * width..];
        let word = |at: usize| {
            let tail = shape.tail as usize;
            if at < width * tail {
                self.tail_of(shape, at / tail, at % tail).load(Relaxed).to_ne_bytes()
            } else {
                [0; 4]
            }
        };
        for (i, to) in tails[..(width * shape.tail as usize).div_ceil(2)].iter_mut().enumerate() {
            let (one, other) = (word(2 * i), word(2 * i + 1));
            *to = u64::from_ne_bytes(std::array::from_fn(|byte| if byte < 4 { one[byte] } else { other[byte - 4] }));
        }
    }

    /// Waits for a version without marks.
    #[inline]
    pub fn stable(self) -> Seen {
        self.version().stable()
    }
}

/// What follows an entry's slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest<'s> {
    Ends(u8),
    Suffix(&'s [u8]),
    Layer,
}

impl<'k> Rest<'k> {
    #[inline]
    pub fn of(key: &Cursor<'k>) -> Self {
        match key.remaining() {
            length @ 0..=8 => Rest::Ends(length as u8),
            _ => Rest::Suffix(key.suffix()),
        }
    }

    pub fn suffix(self) -> &'k [u8] {
        if let Rest::Suffix(suffix) = self { suffix } else { &[] }
    }

    #[inline]
    pub fn rank(self) -> u8 {
        if let Rest::Ends(length) = self { length } else { 9 }
    }
}

/// Up to four bytes, zero padded, as they are in memory.
#[inline]
fn tail_word(chunk: &[u8]) -> u32 {
    // Spelt out: a copy of so few bytes would be a call.
    u32::from_ne_bytes(match *chunk {
        [a, b, c, d, ..] => [a, b, c, d],
        [a, b, c] => [a, b, c, 0],
        [a, b] => [a, b, 0, 0],
        [a] => [a, 0, 0, 0],
        [] => [0; 4],
    })
}

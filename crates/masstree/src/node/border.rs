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

use std::marker::PhantomData;
use std::ptr::NonNull;

use keyaki_primitives::CACHE_LINE_BYTES;

use super::copy::WORDS;
use super::exclusive::Exclusive;
use super::permutation::{Permutation, WIDTH};
use super::search;
use super::version::{Version, VersionSnapshot};
use super::{BORDER_TAG, Bag, Node};
use crate::key::Cursor;
use crate::sync::{Acquire, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Relaxed, Release};

/// Code of an entry whose suffix is in the bag.
pub(crate) const BAG: u8 = 30;
/// Code of an entry that leads to the next layer.
pub(crate) const LAYER: u8 = 31;

/// Longest suffix that fits into a tail, in bytes.
pub(crate) const TAIL_BYTES_MAX: usize = 4 * BorderLayout::TAIL_WORDS_MAX as usize;

const _: () = assert!(8 + TAIL_BYTES_MAX < BAG as usize, "codes of suffixes in tails are below those with a meaning");

/// Position of an entry among those of its slice.
#[inline]
pub(crate) fn rank(code: u8) -> u8 {
    code.min(9)
}

/// Width and tail length of a border node. They never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BorderLayout {
    pub width: u8,
    /// Words of four bytes for each slot's suffix.
    pub tail: u8,
}

impl BorderLayout {
    /// Longest tail, in words.
    pub const TAIL_WORDS_MAX: u8 = 4;

    /// A full-width node for entries whose longest suffix has the given length. If that is too long for a tail, the
    /// node has no tails and all suffixes go into the bag.
    pub fn wide(suffix: usize) -> Self {
        BorderLayout { width: WIDTH as u8, tail: Self::tail_for(suffix) }
    }

    /// The narrowest node for a layer of `count` entries.
    pub fn for_layer(count: usize, suffix: usize) -> Self {
        let width = match count {
            0..=4 => 4,
            5..=8 => 8,
            _ => WIDTH as u8,
        };
        BorderLayout { width, tail: Self::tail_for(suffix) }
    }

    fn tail_for(suffix: usize) -> u8 {
        if suffix > TAIL_BYTES_MAX { 0 } else { suffix.div_ceil(4) as u8 }
    }

    /// Longest suffix that fits into the tail of such a node, in bytes.
    #[inline]
    pub const fn tail_bytes(self) -> usize {
        4 * self.tail as usize
    }

    /// Size of such a node in bytes.
    pub const fn bytes(self) -> usize {
        (size_of::<Header>() + self.width as usize * (16 + self.tail_bytes())).next_multiple_of(CACHE_LINE_BYTES)
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
    layout: BorderLayout,
    stale: AtomicU16,
}

const _: () = assert!(size_of::<Header>() == CACHE_LINE_BYTES && align_of::<Header>() == CACHE_LINE_BYTES);
const _: () = assert!(BorderLayout { width: 4, tail: 0 }.bytes() == 2 * CACHE_LINE_BYTES);
const _: () = assert!(BorderLayout { width: WIDTH as u8, tail: 0 }.bytes() == 5 * CACHE_LINE_BYTES);
const _: () = assert!(BorderLayout { width: WIDTH as u8, tail: 1 }.bytes() == 6 * CACHE_LINE_BYTES);

/// Result of looking up a key in a border node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    Absent,
    /// The key has a value, of this word.
    Value {
        slot: usize,
        word: u64,
    },
    /// The key is in the layer whose root has this word, or absent.
    Layer {
        slot: usize,
        word: u64,
    },
    /// The key is absent. Another key with the same slice continues differently: inserting the key makes a layer.
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

    /// A bit for each slot whose slice equals the given one, whether or not the slot holds an entry.
    #[inline]
    pub fn matches(self, slice: u64) -> u32 {
        let width = self.width();
        if width == WIDTH {
            // SAFETY: the node has full width.
            return search::equal(unsafe { self.words() }, slice) & ((1 << WIDTH) - 1);
        }
        // SAFETY: the slots are below the width.
        (0..width).fold(0, |mask, slot| mask | u32::from(unsafe { self.slice_at(slot) }.load(Relaxed) == slice) << slot)
    }

    /// Looks up a key. Unless the node is locked, the result is valid only if the version has not changed afterwards.
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
            // SAFETY: candidates are slots below the width.
            let word = unsafe { self.value_at(self.layout(), slot) }.load(Acquire);
            return match code {
                LAYER => Lookup::Layer { slot, word },
                0..=8 => Lookup::Value { slot, word },
                // SAFETY: candidates are slots below the width.
                _ if unsafe { self.suffix_is(slot, code, key.suffix()) } => Lookup::Value { slot, word },
                _ => Lookup::Conflict { slot },
            };
        }
        Lookup::Absent
    }

    /// Returns whether the slot's suffix equals the given one.
    ///
    /// # Safety
    /// `slot` is below the width.
    #[inline]
    unsafe fn suffix_is(self, slot: usize, code: u8, suffix: &[u8]) -> bool {
        if code == BAG {
            return self.bag().and_then(|bag| bag.suffix(slot)) == Some(suffix);
        }
        let layout = self.layout();
        let length = code as usize - 8;
        if length != suffix.len() || length > layout.tail_bytes() {
            return false;
        }
        suffix.chunks(4).enumerate().all(|(index, chunk)| {
            // SAFETY: the suffix is at most as long as the tail.
            let word = unsafe { self.tail_at(layout, slot, index) }.load(Relaxed);
            word == tail_word(chunk)
        })
    }

    /// A bit for each slot whose slice is at most the given one, whether or not the slot holds an entry.
    #[inline]
    fn at_most(self, slice: u64) -> u32 {
        let width = self.width();
        if width == WIDTH {
            // SAFETY: the node has full width.
            return search::at_most(unsafe { self.words() }, slice) & ((1 << WIDTH) - 1);
        }
        // SAFETY: the slots are below the width.
        (0..width).fold(0, |mask, slot| mask | u32::from(unsafe { self.slice_at(slot) }.load(Relaxed) <= slice) << slot)
    }

    /// The slices of a full-width node, and its first value.
    ///
    /// # Safety
    /// The node's width is [`WIDTH`].
    #[inline]
    unsafe fn words(self) -> &'g [AtomicU64; WIDTH + 1] {
        debug_assert_eq!(self.width(), WIDTH);
        // SAFETY: sixteen words within the node (a full-width one has 304 bytes at least), aligned, initialised, and
        // only ever used as atomics.
        unsafe { self.at(Self::SLICES_AT).cast().as_ref() }
    }

    /// Returns whether an entry with this suffix needs the bag.
    #[inline]
    pub fn needs_bag(self, suffix: &[u8]) -> bool {
        suffix.len() > self.layout().tail_bytes()
    }

    /// The continuation of a slot's key. `tail` receives a short suffix. While other threads may change the node, the
    /// result is valid only if the version has not changed afterwards.
    pub fn continuation<'a>(self, slot: usize, tail: &'a mut [u8; TAIL_BYTES_MAX]) -> Continuation<'a>
    where
        'g: 'a,
    {
        match self.code(slot) {
            LAYER => Continuation::Layer,
            length @ 0..=8 => Continuation::Ends(length),
            BAG => Continuation::Suffix(self.bag().and_then(|bag| bag.suffix(slot)).unwrap_or_default()),
            code => {
                let layout = self.layout();
                let length = code as usize - 8;
                assert!(
                    slot < self.width() && length <= layout.tail_bytes(),
                    "code {code} in slot {slot} of {layout:?}"
                );
                for index in 0..length.div_ceil(4) {
                    // SAFETY: the slot is below the width, and the suffix is at most as long as the tail.
                    let word = unsafe { self.tail_at(layout, slot, index) }.load(Relaxed).to_ne_bytes();
                    tail[4 * index..4 * index + 4].copy_from_slice(&word);
                }
                Continuation::Suffix(&tail[..length])
            }
        }
    }

    /// Length in bytes of a slot's suffix, in a node that no other thread changes; zero if it has none.
    pub fn suffix_bytes(self, slot: usize) -> usize {
        match self.code(slot) {
            0..=8 | LAYER => 0,
            BAG => self.bag().and_then(|bag| bag.suffix(slot)).map_or(0, <[u8]>::len),
            code => code as usize - 8,
        }
    }

    /// Copies the node's cache lines, while other threads may write to them.
    #[inline]
    pub fn copy_lines(self, to: &mut [u64; WORDS]) {
        #[cfg(all(target_arch = "x86_64", not(miri), not(feature = "shuttle")))]
        // SAFETY: a node consists of whole cache lines, and the largest has at most `WORDS` words.
        if unsafe { search::copy_lines(self.header.as_ptr().cast(), to.as_mut_ptr(), self.layout().bytes()) } {
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

impl<'g> Exclusive<Border<'g>> {
    /// Publishes a permutation. Its entries have been filled in.
    #[inline]
    pub fn set_permutation(&mut self, permutation: Permutation) {
        assert!(permutation.count() <= self.width(), "{permutation:?} in a node of width {}", self.width());
        self.header().permutation.store(permutation.0, Release);
    }

    /// Sets the right neighbour, another node of the layer.
    pub fn set_next(&mut self, next: Option<Border<'_>>) {
        self.header().next.store(next.map_or(0, Border::word), Release);
    }

    pub fn set_bag(&mut self, bag: Bag<'_>) {
        self.header().bag.store(bag.address(), Release);
    }

    /// Replaces the word of a slot's value.
    #[inline]
    pub fn set_value(&mut self, slot: usize, word: u64) {
        assert!(slot < self.width(), "slot {slot} of a border node");
        // SAFETY: the slot is below the width.
        unsafe { self.value_at(self.layout(), slot) }.store(word, Release);
    }

    /// Lets the entry of a slot lead to a layer. If it held a value before, the node is marked.
    pub fn set_layer(&mut self, slot: usize, root: Node<'_>) {
        self.set_value(slot, root.word());
        self.header().codes[slot].store(LAYER, Relaxed);
    }

    /// The position at which an entry stands, or would stand.
    #[inline]
    pub fn position(&self, slice: u64, rank_wanted: u8) -> usize {
        let permutation = self.permutation();
        let mut position = permutation.count_of(self.at_most(slice));
        // Step back over entries of the same slice and an equal or higher rank.
        while position > 0 {
            let slot = permutation.slot(position - 1);
            if self.slice(slot) != slice || rank(self.code(slot)) < rank_wanted {
                break;
            }
            position -= 1;
        }
        position
    }

    /// Returns whether a reader with an old permutation may still read the slot.
    #[inline]
    pub fn is_stale(&self, slot: usize) -> bool {
        self.header().stale.load(Relaxed) & 1 << slot != 0
    }

    /// Remembers that the slot's entry has been removed without a mark.
    pub fn set_stale(&mut self, slot: usize) {
        let stale = self.header().stale.load(Relaxed);
        self.header().stale.store(stale | 1 << slot, Relaxed);
    }

    /// The node has been marked: readers with old permutations will read it again.
    pub fn clear_stale(&mut self) {
        self.header().stale.store(0, Relaxed);
    }

    /// Fills a free slot with an entry. If the suffix needs a bag, the node has one with room for it.
    ///
    /// # Safety
    /// If the entry leads to a layer, `word` is the word of a node that stays in the tree as long as the entry.
    #[inline]
    #[expect(clippy::expect_used, reason = "callers reserve a bag before they fill in a suffix that needs one")]
    pub unsafe fn fill(&mut self, slot: usize, slice: u64, continuation: Continuation<'_>, word: u64) {
        assert!(slot < self.width(), "slot {slot} of a border node");
        let layout = self.layout();
        // SAFETY: the slot is below the width.
        unsafe { self.slice_at(slot) }.store(slice, Relaxed);
        // SAFETY: as above.
        unsafe { self.value_at(layout, slot) }.store(word, Release);
        let code = match continuation {
            Continuation::Ends(length) => length,
            Continuation::Layer => LAYER,
            Continuation::Suffix(suffix) if self.needs_bag(suffix) => {
                let bag = self.bag().expect("a bag for a long suffix");
                // SAFETY: this thread alone changes the node.
                unsafe { bag.append(slot, suffix) };
                BAG
            }
            Continuation::Suffix(suffix) => {
                for (index, chunk) in suffix.chunks(4).enumerate() {
                    // SAFETY: the slot is below the width, and the suffix is at most as long as the tail.
                    unsafe { self.tail_at(layout, slot, index) }.store(tail_word(chunk), Relaxed);
                }
                8 + suffix.len() as u8
            }
        };
        self.header().codes[slot].store(code, Relaxed);
    }
}

/// The continuation of an entry's key after its slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Continuation<'s> {
    /// None: the key ends within the slice, after so many bytes.
    Ends(u8),
    /// A suffix that only this key has.
    Suffix(&'s [u8]),
    /// Several keys continue, in the next layer.
    Layer,
}

impl<'k> Continuation<'k> {
    /// The continuation of a key in the cursor's layer.
    #[inline]
    pub fn of(key: &Cursor<'k>) -> Self {
        match key.remaining() {
            length @ 0..=8 => Continuation::Ends(length as u8),
            _ => Continuation::Suffix(key.suffix()),
        }
    }

    pub fn suffix(self) -> &'k [u8] {
        if let Continuation::Suffix(suffix) = self { suffix } else { &[] }
    }

    #[inline]
    pub fn rank(self) -> u8 {
        if let Continuation::Ends(length) = self { length } else { 9 }
    }
}

/// Up to four bytes, zero padded, in memory order.
#[inline]
fn tail_word(chunk: &[u8]) -> u32 {
    // Spelt out, because the compiler turns a copy of so few bytes into a function call.
    u32::from_ne_bytes(match *chunk {
        [a, b, c, d, ..] => [a, b, c, d],
        [a, b, c] => [a, b, c, 0],
        [a, b] => [a, b, 0, 0],
        [a] => [a, 0, 0, 0],
        [] => [0; 4],
    })
}

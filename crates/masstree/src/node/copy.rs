//! Copies of border nodes: whole cache lines, copied while other threads may write to them. A copy is consistent only
//! if the node's version has not changed meanwhile.

use super::border::{BAG, Border, BorderLayout, LAYER, TAIL_BYTES_MAX};
use super::permutation::{Permutation, WIDTH};

/// Words of the largest node, and room to read [`TAIL_BYTES_MAX`] bytes from the beginning of any of its tails.
pub(super) const WORDS: usize = LARGEST.bytes() / 8 + TAIL_BYTES_MAX / 8;

const LARGEST: BorderLayout = BorderLayout { width: WIDTH as u8, tail: BorderLayout::TAIL_WORDS_MAX };

const _: () = assert!(Border::SLICES_AT + 16 * WIDTH + WIDTH * TAIL_BYTES_MAX + TAIL_BYTES_MAX <= 8 * WORDS);

pub(crate) struct BorderCopy<'g> {
    lines: Lines,
    permutation: Permutation,
    layout: BorderLayout,
    /// Suffixes of the slots whose code is [`BAG`].
    bagged: [&'g [u8]; WIDTH],
}

#[repr(C, align(64))]
struct Lines([u64; WORDS]);

impl<'g> BorderCopy<'g> {
    /// A copy of no node, without entries.
    pub fn new() -> Self {
        BorderCopy {
            lines: Lines([0; WORDS]),
            permutation: Permutation::EMPTY,
            layout: BorderLayout { width: 0, tail: 0 },
            bagged: [&[]; WIDTH],
        }
    }

    /// Copies a node. The caller checks afterwards that the node's version has not changed.
    #[inline]
    pub fn take(&mut self, border: Border<'g>) {
        // The permutation publishes entries, so it is loaded first. Its entries do not change unless the node is
        // marked.
        self.permutation = border.permutation();
        self.layout = border.layout();
        border.copy_lines(&mut self.lines.0);
        if border.bag().is_some() {
            self.take_bagged(border);
        }
    }

    #[cold]
    fn take_bagged(&mut self, border: Border<'g>) {
        for slot in self.permutation.slots() {
            if self.code(slot) == BAG {
                self.bagged[slot] = border.bag().and_then(|bag| bag.suffix(slot)).unwrap_or_default();
            }
        }
    }

    #[inline]
    pub fn permutation(&self) -> Permutation {
        self.permutation
    }

    /// The right neighbour of the node.
    #[inline]
    pub fn next(&self) -> Option<Border<'g>> {
        // SAFETY: the word was loaded from a node of the tree during 'g; an unused copy has 0 here.
        unsafe { Border::from_link(self.lines.0[Border::NEXT_AT / 8]) }
    }

    #[inline]
    pub fn code(&self, slot: usize) -> u8 {
        self.bytes()[Border::CODES_AT + (slot & WIDTH)]
    }

    /// Returns whether the code of any slot is [`LAYER`], used or not.
    #[inline]
    pub fn may_have_layers(&self) -> bool {
        // A byte that equals `LAYER` is zero after the exclusive or; the rest is the usual test for a zero byte.
        const LAYERS: u64 = u64::from_ne_bytes([LAYER; 8]);
        const LOW: u64 = u64::from_ne_bytes([1; 8]);
        let zero = |word: u64| (word ^ LAYERS).wrapping_sub(LOW) & !(word ^ LAYERS) & (LOW << 7);
        let codes = Border::CODES_AT / 8;
        zero(self.lines.0[codes]) | zero(self.lines.0[codes + 1]) != 0
    }

    #[inline]
    pub fn slice(&self, slot: usize) -> u64 {
        self.lines.0[Border::SLICES_AT / 8 + (slot & WIDTH)]
    }

    /// The word of a slot's value, or of the layer's root.
    #[inline]
    pub fn word(&self, slot: usize) -> u64 {
        self.lines.0[Border::SLICES_AT / 8 + (self.layout.width as usize & WIDTH) + (slot & WIDTH)]
    }

    /// The tail of a slot, followed by bytes without meaning.
    #[inline]
    pub fn tail(&self, slot: usize) -> &[u8; TAIL_BYTES_MAX] {
        let (width, tail) = (self.layout.width as usize & WIDTH, self.layout.tail_bytes());
        let at = Border::SLICES_AT + 16 * width + (slot & WIDTH) * tail;
        // SAFETY: `width` and the slot are at most 15 and layouts have tails of at most `TAIL_BYTES_MAX` bytes, so that
        // `at` is at most 64 + 16 * 15 + 15 * 16. `WORDS` leaves room for a tail from there on (asserted above).
        unsafe { &*self.bytes().as_ptr().add(at).cast() }
    }

    /// The suffix of a slot whose code is [`BAG`].
    #[inline]
    pub fn bagged(&self, slot: usize) -> &'g [u8] {
        self.bagged[slot]
    }

    #[inline]
    fn bytes(&self) -> &[u8; 8 * WORDS] {
        // SAFETY: the words consist of as many bytes, all of them initialised.
        unsafe { &*self.lines.0.as_ptr().cast() }
    }
}

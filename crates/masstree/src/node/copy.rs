//! Copies of border nodes: whole cache lines, copied while others may write. Only the node's version tells whether a copy is of
//! one moment.

use super::border::{BAG, Border, LAYER, Shape};
use super::permutation::{Permutation, WIDTH};

/// Words of the largest node, and room to read a tail's length from any of its tails on.
pub(super) const WORDS: usize = Shape { width: WIDTH as u8, tail: Shape::TAIL_MAX }.bytes() / 8 + TAIL_BYTES / 8;

/// Longest tail, in bytes.
pub(crate) const TAIL_BYTES: usize = 4 * Shape::TAIL_MAX as usize;

pub(crate) struct Copy<'g> {
    lines: Lines,
    permutation: Permutation,
    shape: Shape,
    /// Suffixes of the slots that have them in the bag.
    bagged: [&'g [u8]; WIDTH],
}

#[repr(C, align(64))]
struct Lines([u64; WORDS]);

impl<'g> Copy<'g> {
    pub fn new() -> Self {
        Copy {
            lines: Lines([0; WORDS]),
            permutation: Permutation::EMPTY,
            shape: Shape { width: 0, tail: 0 },
            bagged: [&[]; WIDTH],
        }
    }

    /// Copies a node, perhaps of several moments.
    #[inline]
    pub fn take(&mut self, border: Border<'g>) {
        // Entries are published by the permutation: it comes first, and the entries that it has stay as they are unless the
        // node is marked.
        self.permutation = border.permutation();
        self.shape = border.shape();
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

    /// The word of the next node, or zero.
    #[inline]
    pub fn next(&self) -> u64 {
        self.lines.0[Border::NEXT_AT / 8]
    }

    #[inline]
    pub fn code(&self, slot: usize) -> u8 {
        self.bytes()[Border::CODES_AT + (slot & WIDTH)]
    }

    /// Whether a slot may lead to a layer.
    #[inline]
    pub fn may_have_layers(&self) -> bool {
        // Whether a byte of the codes is `LAYER`: zero after the exclusive or.
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
        self.lines.0[Border::SLICES_AT / 8 + (self.shape.width as usize & WIDTH) + (slot & WIDTH)]
    }

    /// The bytes after the slice of a slot whose suffix is in the tail, and some more.
    #[inline]
    pub fn tail(&self, slot: usize) -> &[u8; TAIL_BYTES] {
        // What is beyond the lines that were copied is left from another copy, and not used.
        let (width, tail) = (self.shape.width as usize & WIDTH, self.shape.tail_bytes());
        let at = Border::SLICES_AT + 16 * width + (slot & WIDTH) * tail;
        // SAFETY: shapes have tails of at most four words, so that at most 64 + 16 * 15 + 15 * 16 bytes are before it: the largest
        // node has as many, and there is room for a tail behind it.
        unsafe { &*self.bytes().as_ptr().add(at).cast() }
    }

    /// The suffix of a slot that has it in the bag.
    #[inline]
    pub fn bagged(&self, slot: usize) -> &'g [u8] {
        self.bagged[slot]
    }

    #[inline]
    fn bytes(&self) -> &[u8; 8 * WORDS] {
        // SAFETY: as many bytes, all of them initialised.
        unsafe { &*self.lines.0.as_ptr().cast() }
    }
}

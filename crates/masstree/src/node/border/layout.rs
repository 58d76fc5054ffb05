//! The layout of a border node: its width and the length of its tails.

use keyaki_primitives::CACHE_LINE_BYTES;

use super::BAG;
use crate::node::WIDTH;

/// Longest suffix that fits into a tail, in bytes.
pub(crate) const TAIL_BYTES_MAX: usize = 4 * BorderLayout::TAIL_WORDS_MAX as usize;

const _: () = assert!(8 + TAIL_BYTES_MAX < BAG as usize, "codes of suffixes in tails are below those with a meaning");

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

    /// Size of such a node in bytes: a header of one cache line, then slices, values and tails.
    pub const fn bytes(self) -> usize {
        (CACHE_LINE_BYTES + self.width as usize * (16 + self.tail_bytes())).next_multiple_of(CACHE_LINE_BYTES)
    }
}

const _: () = assert!(BorderLayout { width: 4, tail: 0 }.bytes() == 2 * CACHE_LINE_BYTES);
const _: () = assert!(BorderLayout { width: WIDTH as u8, tail: 0 }.bytes() == 5 * CACHE_LINE_BYTES);
const _: () = assert!(BorderLayout { width: WIDTH as u8, tail: 1 }.bytes() == 6 * CACHE_LINE_BYTES);

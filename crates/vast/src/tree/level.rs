//! A level of compression blocks: its shape, and where in the tree's bytes it lies.
//!
//! A *compression block* is the unit that shares a minimum and a prefix position: a small tree of SIMD blocks, laid out breadth
//! first. Its separators are what is left of the keys when the minimum has been subtracted and all but `width` bytes, from the
//! prefix position of the largest one, have been cut off. There are two layouts.
//!
//! ```text
//! published  depth SIMD blocks deep; every SIMD block is a register, 2^SH lanes, of which 2^SH - 1 are separators:
//!              minima:  [min of block 0][min of block 1] …                    (an array beside the blocks)
//!              block:   [shift|s s s][-|s s s][-|s s s] …                     (the root, then its children, …)
//! line       one SIMD block deep, header and all in one cache line, or in a half or a quarter of one:
//!              block:   [min|shift|s s s s s s s s s s s s s s s s s s s s]   (59, 27 or 11 separators of 8 bits for 32-bit keys)
//! ```
//!
//! Where the width is that of the keys, there is no header, and separators are whole keys: the uncompressed region. Unused
//! lanes at a block's end are all ones, which no compressed code is. The greatest code below that is left to search keys beyond the
//! block's separators: the shift is such that these stay below.

use crate::key::Key;
use crate::memory::LINE;

/// SIMD blocks in the height of a compression block, at most.
pub(crate) const DEPTH_MAX: usize = 8;

/// The shape of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Bytes of a separator: 1, 2, 4 or 8; as many as a key has: not compressed.
    pub width: u8,
    /// Bytes of a SIMD block: 16, 32 or 64.
    pub simd_bytes: u8,
    /// Height of a compression block in SIMD blocks.
    pub depth: u8,
    /// The line layout: a block is a SIMD block with the header in it.
    pub line: bool,
}

impl Shape {
    /// A compression block in a cache line.
    pub const fn line(width: u8) -> Self {
        Shape { width, simd_bytes: LINE as u8, depth: 1, line: true }
    }

    /// A compression block in a half of a cache line (separators of 1 or 2 bytes) or a quarter (of 1 byte): fewer separators
    /// share the codes, so that fewer keys share a separator's.
    pub const fn part(width: u8, simd_bytes: u8) -> Self {
        Shape { width, simd_bytes, depth: 1, line: true }
    }

    /// The published layout.
    pub const fn published(width: u8, simd_bytes: u8, depth: u8) -> Self {
        Shape { width, simd_bytes, depth, line: false }
    }

    /// What is wrong with it for keys of `K`.
    pub(crate) fn check<K: Key>(&self) -> Result<(), &'static str> {
        if !matches!(self.width, 1 | 2 | 4 | 8) || self.width as usize > K::BYTES {
            return Err("the width of separators is neither 1, 2, 4, 8 nor at most a key's");
        }
        if !matches!(self.simd_bytes, 16 | 32 | 64) {
            return Err("a SIMD block has neither 16, 32 nor 64 bytes");
        }
        if self.depth == 0 || self.depth as usize > DEPTH_MAX {
            return Err("a compression block is 1 to 8 SIMD blocks high");
        }
        let part = matches!((self.simd_bytes, self.width), (64, _) | (32, 1 | 2) | (16, 1));
        if self.line && (self.depth != 1 || !part || self.lanes::<K>() == 0) {
            return Err("no block in the line layout is like this");
        }
        let fanout = self.lanes::<K>() as u64 + 1;
        if fanout.checked_pow(self.depth as u32).is_none_or(|children| children > 1 << 24) {
            return Err("a compression block has more than 2^24 children");
        }
        Ok(())
    }

    pub(crate) fn exact<K: Key>(&self) -> bool {
        self.width as usize == K::BYTES
    }

    /// Lanes at the beginning of a SIMD block that are no separators.
    pub(crate) fn skip<K: Key>(&self) -> usize {
        match (self.exact::<K>(), self.line) {
            (true, _) => 0,
            (false, true) => K::BYTES / self.width as usize + 1,
            (false, false) => 1,
        }
    }

    /// Separators of a SIMD block.
    pub(crate) fn lanes<K: Key>(&self) -> usize {
        let lanes = self.simd_bytes as usize / self.width as usize;
        if self.exact::<K>() && !self.line { lanes - 1 } else { lanes.saturating_sub(self.skip::<K>()) }
    }

    /// Children of a compression block.
    pub(crate) fn children<K: Key>(&self) -> usize {
        (self.lanes::<K>() + 1).pow(self.depth as u32)
    }

    /// SIMD blocks of a compression block.
    pub(crate) fn simd_blocks<K: Key>(&self) -> usize {
        (0..self.depth as u32).map(|depth| (self.lanes::<K>() + 1).pow(depth)).sum()
    }

    /// Bits of the region's name: H8, H16, H32, H64.
    pub(crate) fn bits(&self) -> u32 {
        self.width as u32 * 8
    }

    /// The greatest code that a search key can have; separators stay below.
    pub(crate) fn code_max(&self) -> u64 {
        (u64::MAX >> (64 - self.bits())) - 1
    }
}

/// A level in the tree's bytes.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    pub shape: Shape,
    /// Compression blocks.
    pub count: usize,
    /// Where the blocks begin.
    pub blocks_at: usize,
    /// Where the array of minima begins, if there is one.
    pub minima_at: usize,
    /// Bytes of a compression block.
    pub block_bytes: usize,
    /// Children of a SIMD block and of a compression block.
    pub fanout: usize,
    pub children: usize,
    /// The last of all children there are, which are blocks of the level below or slots.
    pub last: usize,
    pub skip: u32,
    /// SIMD blocks before those of each depth.
    pub before: [usize; DEPTH_MAX],
}

impl Level {
    fn new<K: Key>(shape: Shape, below: usize) -> Self {
        let count = below.div_ceil(shape.children::<K>()).max(1);
        let fanout = shape.lanes::<K>() + 1;
        let mut before = [0; DEPTH_MAX];
        for depth in 1..shape.depth as usize {
            before[depth] = before[depth - 1] + fanout.pow(depth as u32 - 1);
        }
        Level {
            shape,
            count,
            blocks_at: 0,
            minima_at: 0,
            block_bytes: shape.simd_blocks::<K>() * shape.simd_bytes as usize,
            fanout,
            children: shape.children::<K>(),
            last: below.saturating_sub(1),
            skip: shape.skip::<K>() as u32,
            before,
        }
    }

    /// Whether minima are in an array beside the blocks.
    pub fn has_minima<K: Key>(&self) -> bool {
        !self.shape.exact::<K>() && !self.shape.line
    }

    /// The place in a compression block of the separator left of a child (counted from 1): SIMD block and lane.
    pub fn place(&self, child: usize) -> (usize, usize) {
        let mut step = self.children;
        for depth in 0..self.shape.depth as usize {
            step /= self.fanout;
            if child.is_multiple_of(step) {
                let block = child / (step * self.fanout);
                let lane = child / step % self.fanout;
                return (self.before[depth] + block, self.skip as usize + lane - 1);
            }
        }
        (0, 0) // not reached: the last step is 1
    }
}

/// Levels over so many slots, the root first, with their places; and the bytes they take. An error if the top level would have
/// more than one block.
pub(crate) fn lay_out<K: Key>(shapes: &[Shape], slots: usize) -> Result<(Vec<Level>, usize), &'static str> {
    let mut levels = Vec::with_capacity(shapes.len());
    let mut below = slots;
    for shape in shapes.iter().rev() {
        shape.check::<K>()?;
        let level = Level::new::<K>(*shape, below);
        below = level.count;
        levels.push(level);
    }
    if below > 1 {
        return Err("there are more slots than the levels lead to");
    }
    levels.reverse();
    let mut end = 0usize;
    for level in &mut levels {
        let place = |end: &mut usize, bytes: Option<usize>| {
            let start = end.checked_next_multiple_of(LINE)?;
            *end = start.checked_add(bytes?)?;
            Some(start)
        };
        let minima = if level.has_minima::<K>() { level.count.checked_mul(K::BYTES) } else { Some(0) };
        level.minima_at = place(&mut end, minima).ok_or("the tree is larger than the address space")?;
        let blocks = level.count.checked_mul(level.block_bytes);
        level.blocks_at = place(&mut end, blocks).ok_or("the tree is larger than the address space")?;
    }
    Ok((levels, end))
}

//! A level of compression blocks: its shape and its place in the tree's bytes.
//!
//! A *compression block* is a small tree of SIMD blocks, laid out breadth first, that share a minimum and a prefix
//! position. Separators are compressed by subtracting the minimum and keeping `width` bytes of the difference from the
//! prefix position on, which is chosen for the largest difference. There are two layouts.
//!
//! ```text
//! published  depth SIMD blocks deep; every SIMD block is a register, 2^SH lanes, of which 2^SH - 1 are separators:
//!              minima:  [min of block 0][min of block 1] …                    (an array beside the blocks)
//!              block:   [shift|s s s][-|s s s][-|s s s] …                     (the root, then its children, …)
//! line       one SIMD block deep, header and all in one cache line, or in a half or a quarter of one:
//!              block:   [min|shift|s s s s s s s s s s s s s s s s s s s s]   (59, 27 or 11 separators of 8 bits for 32-bit keys)
//! ```
//!
//! If the width is that of the keys, blocks have no header and separators are whole keys: this is the uncompressed
//! region. Unused lanes at a block's end are all ones, which is no code of a separator. The next lower code is reserved
//! for search keys beyond the block's separators: the prefix position is chosen such that separators stay below it.
//!
//! Invariant: `blocks_at + count * block_bytes`, and the end of the minima, are within the tree's bytes, and `last` is
//! the number of a child that exists.

use keyaki_primitives::CACHE_LINE_BYTES;

use crate::key::Key;

/// Most SIMD blocks in the height of a compression block.
pub(crate) const DEPTH_MAX: usize = 8;

/// The shape of a level's compression blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Bytes of a separator: 1, 2, 4 or 8. With the size of a key, separators are not compressed.
    pub width: u8,
    /// Bytes of a SIMD block: 16, 32 or 64.
    pub simd_bytes: u8,
    /// Height of a compression block in SIMD blocks, from 1 to 8.
    pub depth: u8,
    /// True if the layout is the line layout, in which a block is one SIMD block that contains its header.
    pub line: bool,
}

impl Shape {
    /// Compression blocks of one cache line.
    pub const fn line(width: u8) -> Self {
        Shape { width, simd_bytes: CACHE_LINE_BYTES as u8, depth: 1, line: true }
    }

    /// Compression blocks of half a cache line (for separators of 1 or 2 bytes) or a quarter (1 byte). Fewer separators
    /// share a minimum and a prefix position, so that fewer keys have the code of a separator.
    pub const fn part(width: u8, simd_bytes: u8) -> Self {
        Shape { width, simd_bytes, depth: 1, line: true }
    }

    /// Compression blocks of the published layout.
    pub const fn published(width: u8, simd_bytes: u8, depth: u8) -> Self {
        Shape { width, simd_bytes, depth, line: false }
    }

    /// Returns the reason if the shape is not valid for keys of `K`.
    pub(crate) fn check<K: Key>(&self) -> Result<(), &'static str> {
        if !matches!(self.width, 1 | 2 | 4 | 8) || self.width as usize > K::BYTES {
            return Err("separators must have 1, 2, 4 or 8 bytes and at most a key's");
        }
        if !matches!(self.simd_bytes, 16 | 32 | 64) {
            return Err("a SIMD block must have 16, 32 or 64 bytes");
        }
        if self.depth == 0 || self.depth as usize > DEPTH_MAX {
            return Err("a compression block must be 1 to 8 SIMD blocks high");
        }
        let part = matches!((self.simd_bytes, self.width), (64, _) | (32, 1 | 2) | (16, 1));
        if self.line && (self.depth != 1 || !part || self.lanes::<K>() == 0) {
            return Err("no block of the line layout has this size and width");
        }
        let fanout = self.lanes::<K>() as u64 + 1;
        if fanout.checked_pow(self.depth as u32).is_none_or(|children| children > 1 << 24) {
            return Err("a compression block has more than 2^24 children");
        }
        Ok(())
    }

    /// Returns whether separators are whole keys.
    pub(crate) fn exact<K: Key>(&self) -> bool {
        self.width as usize == K::BYTES
    }

    /// Number of lanes at the beginning of a SIMD block that belong to the header.
    pub(crate) fn skip<K: Key>(&self) -> usize {
        match (self.exact::<K>(), self.line) {
            (true, _) => 0,
            (false, true) => K::BYTES / self.width as usize + 1,
            (false, false) => 1,
        }
    }

    /// Number of separators of a SIMD block.
    pub(crate) fn lanes<K: Key>(&self) -> usize {
        let lanes = self.simd_bytes as usize / self.width as usize;
        if self.exact::<K>() && !self.line { lanes - 1 } else { lanes.saturating_sub(self.skip::<K>()) }
    }

    /// Number of children of a compression block.
    pub(crate) fn children<K: Key>(&self) -> usize {
        (self.lanes::<K>() + 1).pow(self.depth as u32)
    }

    /// Number of SIMD blocks of a compression block.
    pub(crate) fn simd_blocks<K: Key>(&self) -> usize {
        (0..self.depth as u32).map(|depth| (self.lanes::<K>() + 1).pow(depth)).sum()
    }

    /// Bits of a separator, as in the region's name: H8, H16, H32, H64.
    pub(crate) fn bits(&self) -> u32 {
        self.width as u32 * 8
    }

    /// The greatest code of a search key. The codes of separators are lower.
    pub(crate) fn code_max(&self) -> u64 {
        (u64::MAX >> (64 - self.bits())) - 1
    }
}

/// A level in the tree's bytes.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    pub shape: Shape,
    /// Number of compression blocks.
    pub count: usize,
    /// Offset of the first block in the tree's bytes.
    pub blocks_at: usize,
    /// Offset of the array of minima, if there is one.
    pub minima_at: usize,
    /// Bytes of a compression block.
    pub block_bytes: usize,
    /// Number of children of a SIMD block.
    pub fanout: usize,
    /// Number of children of a compression block.
    pub children: usize,
    /// Number of the last child of the level: a block of the level below, or a slot.
    pub last: usize,
    /// Lanes of the header in a SIMD block.
    pub skip: u32,
    /// For each depth, the number of SIMD blocks of a compression block at lower depths.
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

    /// Returns whether the minima are in an array beside the blocks.
    pub fn has_minima<K: Key>(&self) -> bool {
        !self.shape.exact::<K>() && !self.shape.line
    }

    /// The SIMD block and the lane, within a compression block, of the separator of a child (counted from 1).
    pub fn separator_lane(&self, child: usize) -> (usize, usize) {
        assert!(0 < child && child < self.children, "child {child} of {}", self.children);
        let mut step = self.children;
        for depth in 0..self.shape.depth as usize {
            step /= self.fanout;
            if child.is_multiple_of(step) {
                let block = child / (step * self.fanout);
                let lane = child / step % self.fanout;
                return (self.before[depth] + block, self.skip as usize + lane - 1);
            }
        }
        unreachable!("the last step is 1, which divides every number")
    }
}

/// Lays out levels over so many slots. Returns the levels, the root first, and the size of the tree in bytes. Fails if
/// the top level would have more than one block.
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
        return Err("too few levels for the number of slots");
    }
    levels.reverse();
    let mut end = 0usize;
    for level in &mut levels {
        let allocate = |end: &mut usize, bytes: Option<usize>| {
            let start = end.checked_next_multiple_of(CACHE_LINE_BYTES)?;
            *end = start.checked_add(bytes?)?;
            Some(start)
        };
        let minima = if level.has_minima::<K>() { level.count.checked_mul(K::BYTES) } else { Some(0) };
        level.minima_at = allocate(&mut end, minima).ok_or("the tree exceeds the address space")?;
        let blocks = level.count.checked_mul(level.block_bytes);
        level.blocks_at = allocate(&mut end, blocks).ok_or("the tree exceeds the address space")?;
        assert!(level.last / level.children < level.count, "the last child belongs to a block");
    }
    Ok((levels, end))
}

//! Construction: each level's compression blocks from the keys at the ends of slots, in parallel.
//!
//! Slots are numbered from the left, and every child of a level stands for the same number of them, so that the separators of
//! any block can be read from the keys without building a binary tree first. What would be blocks of less than a slot's keys
//! at the bottom are not there: that is the published trimming, for any slot size.

use rayon::prelude::*;

use super::level::Level;
use super::plan::{Plan, Settings};
use super::{Displacement, Sorted, Tree, plan};
use crate::error::Error;
use crate::key::Key;
use crate::memory::Buffer;
use crate::simd::Instructions;

/// Blocks that a thread builds at a time.
const BLOCKS_AT_ONCE: usize = 256;

impl<K: Key> Tree<K> {
    /// A tree over sorted keys (equal ones may be many), with parameters chosen for them.
    ///
    /// With [`Goal::Bounded`](crate::Goal::Bounded) the displacement is not above what was asked for.
    pub fn build<T: Sorted<K> + ?Sized>(keys: &T, settings: &Settings) -> Result<Self, Error> {
        for plan in plan::choose(keys, settings) {
            let tree = Self::build_with(keys, &plan)?;
            if settings.met_by(&tree) {
                return Ok(tree);
            }
        }
        Err(Error::Goal("no parameters keep to the goal and the memory given"))
    }

    /// A tree with the given parameters.
    pub fn build_with<T: Sorted<K> + ?Sized>(keys: &T, plan: &Plan) -> Result<Self, Error> {
        let rows = keys.len();
        let assembled = Self::assemble(plan, rows).map_err(Error::Plan)?;
        let mut buffer = Buffer::zeroed(assembled.length);
        let mut span = 1;
        for level in assembled.levels.iter().rev() {
            let grid = Grid { slot_rows: plan.slot_rows, slots: assembled.slots, span };
            fill_level(level, &grid, keys, &mut buffer);
            span = span.saturating_mul(level.children);
        }
        let mut tree = Tree {
            levels: assembled.levels,
            bytes: buffer.into(),
            rows,
            slot_rows: plan.slot_rows,
            slots: assembled.slots,
            window_lines: assembled.window_lines,
            whole_levels: assembled.whole_levels,
            reach: 0,
            displacement: Displacement::default(),
            instructions: Instructions::best(),
            _keys: std::marker::PhantomData,
        };
        tree.displacement = Displacement::of(&tree, keys);
        tree.reach = tree.displacement.max;
        Ok(tree)
    }
}

/// Slots, and how many of them a child of a level has.
pub(super) struct Grid {
    pub slot_rows: usize,
    pub slots: usize,
    pub span: usize,
}

impl Grid {
    /// Children of a block.
    pub fn present(&self, level: &Level, block: usize) -> usize {
        let first = block * level.children;
        self.slots.div_ceil(self.span).saturating_sub(first).min(level.children)
    }

    /// The last key left of a child (counted from 1). It leads fewer rows astray than the first key of the child itself would:
    /// none if the child begins with another code.
    pub fn separator<K: Key, T: Sorted<K> + ?Sized>(&self, level: &Level, keys: &T, block: usize, child: usize) -> u64 {
        keys.get((block * level.children + child) * self.span * self.slot_rows - 1).ordered()
    }
}

fn fill_level<K: Key, T: Sorted<K> + ?Sized>(level: &Level, grid: &Grid, keys: &T, buffer: &mut [u8]) {
    let minima_length = if level.has_minima::<K>() { level.count * K::BYTES } else { 0 };
    // Minima come before blocks.
    let (head, blocks) = buffer.split_at_mut(level.blocks_at);
    let minima = &mut head[level.minima_at..][..minima_length];
    let blocks = &mut blocks[..level.count * level.block_bytes];
    let fill = |(index, (blocks, minima)): (usize, (&mut [u8], &mut [u8]))| {
        for (within, block) in blocks.chunks_mut(level.block_bytes).enumerate() {
            let minimum = fill_block(level, grid, keys, index * BLOCKS_AT_ONCE + within, block);
            if !minima.is_empty() {
                minima[within * K::BYTES..][..K::BYTES].copy_from_slice(&minimum.to_le_bytes()[..K::BYTES]);
            }
        }
    };
    let block_chunks = blocks.par_chunks_mut(BLOCKS_AT_ONCE * level.block_bytes);
    if minima_length == 0 {
        block_chunks.enumerate().for_each(|(index, blocks)| fill((index, (blocks, &mut []))));
    } else {
        block_chunks.zip(minima.par_chunks_mut(BLOCKS_AT_ONCE * K::BYTES)).enumerate().for_each(fill);
    }
}

/// Compresses the separators of a block into its bytes. Its minimum.
pub(super) fn fill_block<K: Key, T: Sorted<K> + ?Sized>(
    level: &Level,
    grid: &Grid,
    keys: &T,
    block: usize,
    bytes: &mut [u8],
) -> u64 {
    bytes.fill(0xff);
    let shape = &level.shape;
    let present = grid.present(level, block);
    let (mut minimum, mut shift) = (0, 0);
    if !shape.exact::<K>() {
        if present > 1 {
            minimum = grid.separator(level, keys, block, 1);
            let maximum = grid.separator(level, keys, block, present - 1);
            shift = prefix(maximum.saturating_sub(minimum), shape.code_max());
        }
        let header = if shape.line { K::BYTES } else { 0 };
        bytes[..header].copy_from_slice(&minimum.to_le_bytes()[..header]);
        bytes[header] = shift as u8;
    }
    let width = shape.width as usize;
    for child in 1..present {
        // Keys out of order must not make a code that is too great.
        let key = grid.separator(level, keys, block, child);
        let code =
            if shape.exact::<K>() { key } else { (key.saturating_sub(minimum) >> shift).min(shape.code_max() - 1) };
        let (simd_block, lane) = level.place(child);
        let at = simd_block * shape.simd_bytes as usize + lane * width;
        bytes[at..at + width].copy_from_slice(&code.to_le_bytes()[..width]);
    }
    minimum
}

/// The prefix position: how far a number is shifted right to be below the greatest code.
fn prefix(range: u64, code_max: u64) -> u32 {
    let shift = (64 - range.leading_zeros()).saturating_sub(64 - code_max.leading_zeros());
    // A range of all ones, or but for the last bit, has a code too great.
    if range >> shift < code_max { shift } else { shift + 1 }
}

#[cfg(test)]
mod tests {
    use super::prefix;

    #[test]
    fn the_greatest_code_is_left_free() {
        for code_max in [u8::MAX as u64 - 1, u16::MAX as u64 - 1, u32::MAX as u64 - 1] {
            for range in (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1, u64::MAX >> bit]) {
                let shift = prefix(range, code_max);
                assert!(range >> shift < code_max);
                assert!(shift == 0 || range >> (shift - 1) >= code_max, "no bit more than needed is cut off");
            }
        }
    }
}

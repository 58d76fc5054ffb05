//! Construction: the compression blocks of each level are made in parallel from the keys at the ends of slots.
//!
//! Slots are numbered from the left, and every child of a level spans the same number of slots. The separators of any
//! block can therefore be read from the keys directly, without building a binary tree first. Blocks below the slots do
//! not exist: this is the published trimming of incomplete bottom blocks, for any slot size.

use bytes::Bytes;
use keyaki_primitives::{AlignedMemory, CACHE_LINE_BYTES};
use rayon::prelude::*;

use super::level::Level;
use super::plan::{Parameters, Plan};
use super::{Displacement, Tree, plan};
use crate::error::Error;
use crate::key::Key;
use crate::simd::Instructions;
use crate::sorted::Sorted;

/// Blocks that a thread builds in one task.
const BLOCKS_AT_ONCE: usize = 256;

impl<K: Key> Tree<K> {
    /// Builds a tree over sorted keys, which may contain duplicates, with a plan chosen for them.
    ///
    /// With [`Goal::Bounded`](crate::Goal::Bounded) the displacement does not exceed the bound.
    ///
    /// # Errors
    /// If no plan meets the goal within the memory limit.
    pub fn build<T: Sorted<K> + ?Sized>(keys: &T, parameters: &Parameters) -> Result<Self, Error> {
        for plan in plan::choose(keys, parameters) {
            let tree = Self::build_with(keys, &plan)?;
            if parameters.met_by(&tree) {
                return Ok(tree);
            }
        }
        Err(Error::Goal("no plan meets the goal within the memory limit"))
    }

    /// Builds a tree with the given plan.
    ///
    /// # Errors
    /// If the plan is not valid for so many keys.
    pub fn build_with<T: Sorted<K> + ?Sized>(keys: &T, plan: &Plan) -> Result<Self, Error> {
        let rows = keys.len();
        let layout = Self::lay_out(plan, rows).map_err(Error::Plan)?;
        let mut memory = AlignedMemory::zeroed(layout.bytes);
        assert!(memory.as_ptr().addr().is_multiple_of(CACHE_LINE_BYTES), "blocks are aligned to cache lines");
        let mut span = 1;
        for level in layout.levels.iter().rev() {
            let grid = Grid { slot_rows: plan.slot_rows, slots: layout.slots, span };
            fill_level(level, &grid, keys, &mut memory);
            span = span.saturating_mul(level.children);
        }
        let mut tree = Tree {
            levels: layout.levels,
            bytes: Bytes::from_owner(memory),
            rows,
            slot_rows: plan.slot_rows,
            slots: layout.slots,
            window_lines: layout.window_lines,
            whole_levels: layout.whole_levels,
            reach: 0,
            displacement: Displacement::default(),
            instructions: Instructions::best(),
            _keys: std::marker::PhantomData,
        };
        tree.displacement = Displacement::compute(&tree, keys);
        tree.reach = tree.displacement.max;
        assert!(tree.reach <= rows, "a displacement of {} in {rows} rows", tree.reach);
        Ok(tree)
    }
}

/// The slots as seen from a level.
pub(super) struct Grid {
    /// Rows of a slot.
    pub slot_rows: usize,
    /// Number of slots.
    pub slots: usize,
    /// Slots that a child of the level spans.
    pub span: usize,
}

impl Grid {
    /// The number of children that a block has. The last block of a level may have fewer than its shape allows.
    pub fn present(&self, level: &Level, block: usize) -> usize {
        let first = block * level.children;
        self.slots.div_ceil(self.span).saturating_sub(first).min(level.children)
    }

    /// The separator of a child (counted from 1): the last key to the left of it. Fewer rows are misled by it than by
    /// the first key of the child, and none if the child's first key has another code.
    pub fn separator<K: Key, T: Sorted<K> + ?Sized>(&self, level: &Level, keys: &T, block: usize, child: usize) -> u64 {
        keys.get((block * level.children + child) * self.span * self.slot_rows - 1).ordered()
    }
}

/// Fills in all blocks of a level.
fn fill_level<K: Key, T: Sorted<K> + ?Sized>(level: &Level, grid: &Grid, keys: &T, buffer: &mut [u8]) {
    let minima_length = if level.has_minima::<K>() { level.count * K::BYTES } else { 0 };
    // The array of minima comes before the blocks.
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

/// Compresses the separators of a block into its bytes. Returns the block's minimum.
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
        // If the keys are out of order, the code is limited to the valid ones.
        let key = grid.separator(level, keys, block, child);
        let code =
            if shape.exact::<K>() { key } else { (key.saturating_sub(minimum) >> shift).min(shape.code_max() - 1) };
        let (simd_block, lane) = level.separator_lane(child);
        let at = simd_block * shape.simd_bytes as usize + lane * width;
        bytes[at..at + width].copy_from_slice(&code.to_le_bytes()[..width]);
    }
    minimum
}

/// The prefix position of a block: the number of bits that a difference of `range` is shifted right to be below the
/// greatest code.
fn prefix(range: u64, code_max: u64) -> u32 {
    let shift = (64 - range.leading_zeros()).saturating_sub(64 - code_max.leading_zeros());
    // A prefix of all ones, or of all ones but the last bit, would give a code that is not allowed.
    if range >> shift < code_max { shift } else { shift + 1 }
}

#[cfg(test)]
mod tests {
    use super::prefix;

    #[test]
    fn separators_stay_below_the_greatest_code() {
        for code_max in [u8::MAX as u64 - 1, u16::MAX as u64 - 1, u32::MAX as u64 - 1] {
            for range in (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1, u64::MAX >> bit]) {
                let shift = prefix(range, code_max);
                assert!(range >> shift < code_max);
                assert!(shift == 0 || range >> (shift - 1) >= code_max, "no more bits than needed are cut off");
            }
        }
    }
}

//! The traversal: from the root to a slot, without a branch that depends on keys.
//!
//! At each compression block the search key is compressed as the separators were (minimum subtracted, cut to the prefix) and
//! compared with all lanes of a SIMD block at once; the number of separators below it is the child. A code that equals a
//! separator's tells nothing about the order of the keys, and the search goes left: so the slot it ends in never begins
//! behind the answer. Whether the answer may be behind the slot's end is found in passing (*open*): a code was equal, or the
//! slot is the last of its block.
//!
//! Every block number is clamped to those that exist: whatever the bytes say, only the tree's bytes are read.

use super::level::Level;
use crate::key::Key;
use crate::memory::{prefetch, read};
use crate::simd::Simd;

/// Descents that advance together.
pub(crate) const BATCH: usize = 64;

/// Runs `$body` with constants for the shape of a level: width, bytes of a SIMD block, and whether it is of the line layout.
macro_rules! with_shape {
    ($level:expr, $width:ident, $block:ident, $line:ident, $body:block) => {{
        macro_rules! shape {
            ($w:expr, $b:expr, $l:expr) => {{
                const $width: usize = $w;
                const $block: usize = $b;
                const $line: bool = $l;
                $body
            }};
        }
        let shape = &$level.shape;
        match (shape.line, shape.simd_bytes, shape.width) {
            (true, _, 1) => shape!(1, 64, true),
            (true, _, 2) => shape!(2, 64, true),
            (true, _, 4) => shape!(4, 64, true),
            (true, _, _) => shape!(8, 64, true),
            (false, 16, 1) => shape!(1, 16, false),
            (false, 16, 2) => shape!(2, 16, false),
            (false, 16, 4) => shape!(4, 16, false),
            (false, 16, _) => shape!(8, 16, false),
            (false, 32, 1) => shape!(1, 32, false),
            (false, 32, 2) => shape!(2, 32, false),
            (false, 32, 4) => shape!(4, 32, false),
            (false, 32, _) => shape!(8, 32, false),
            (false, _, 1) => shape!(1, 64, false),
            (false, _, 2) => shape!(2, 64, false),
            (false, _, 4) => shape!(4, 64, false),
            (false, _, _) => shape!(8, 64, false),
        }
    }};
}

/// The child of a block for a key (in order as unsigned), and whether the search is open to the right there.
///
/// # Safety
/// The processor has `S`. `tree` are bytes that hold the level as it was laid out for `K`, and `block` is below its count.
#[inline(always)]
unsafe fn step<S: Simd, K: Key, const WIDTH: usize, const BLOCK: usize, const INLINE: bool>(
    level: &Level,
    tree: *const u8,
    block: usize,
    key: u64,
) -> (usize, bool) {
    // SAFETY: the level's blocks and minima are in the tree's bytes, by the caller's promise; and SIMD blocks within a
    // block have numbers below `simd_blocks`, as at each depth the number is that of a child, below `fanout^depth`.
    unsafe {
        let start = tree.add(level.blocks_at + block * if INLINE { BLOCK } else { level.block_bytes });
        let code = if WIDTH == K::BYTES {
            key
        } else {
            let (minimum, shift) = if INLINE {
                (start, start.add(K::BYTES))
            } else {
                (tree.add(level.minima_at + block * K::BYTES), start)
            };
            let minimum = if K::BYTES == 4 { read::<u32>(minimum) as u64 } else { read::<u64>(minimum) };
            let code_max = u64::MAX >> (64 - WIDTH * 8);
            (key.saturating_sub(minimum) >> (*shift & 63)).min(code_max)
        };
        if INLINE {
            // Constants where `level` would have to be read.
            let skip = if WIDTH == K::BYTES { 0 } else { K::BYTES / WIDTH + 1 };
            let lanes = BLOCK / WIDTH - skip;
            let (below, equal) = S::compare::<WIDTH, BLOCK>(start, code);
            let child = S::count::<WIDTH>(S::skip::<WIDTH>(below, skip as u32));
            let tie = WIDTH != K::BYTES && S::skip::<WIDTH>(equal, skip as u32) != 0;
            return (child, tie || child == lanes);
        }
        let (mut child, mut tie) = (0, false);
        for depth in 0..level.shape.depth as usize {
            let (below, equal) = S::compare::<WIDTH, BLOCK>(start.add((level.before[depth] + child) * BLOCK), code);
            // A spare lane at the end of an uncompressed block is all ones: it is never below.
            let rank = S::count::<WIDTH>(S::skip::<WIDTH>(below, level.skip));
            tie |= WIDTH != K::BYTES && S::skip::<WIDTH>(equal, level.skip) != 0;
            child = child * level.fanout + rank.min(level.fanout - 1);
        }
        (child, tie || child == level.children - 1)
    }
}

/// The slot for a key, and whether the search is open to the right of it.
///
/// # Safety
/// The processor has `S`. `tree` are bytes that hold the levels as they were laid out for `K`; `slots` is not 0.
#[inline(always)]
pub(crate) unsafe fn descend<S: Simd, K: Key>(
    levels: &[Level],
    tree: *const u8,
    slots: usize,
    key: u64,
) -> (usize, bool) {
    let (mut at, mut open) = (0, false);
    for (index, level) in levels.iter().enumerate() {
        // SAFETY: `at` is 0 for the root and else clamped to the level's count.
        let child = with_shape!(level, WIDTH, BLOCK, INLINE, {
            unsafe { step::<S, K, WIDTH, BLOCK, INLINE>(level, tree, at, key) }
        });
        let count = levels.get(index + 1).map_or(slots, |below| below.count);
        at = (at * level.children + child.0).min(count - 1);
        open = child.1;
    }
    (at, open)
}

/// The same for up to [`BATCH`] keys at once, level by level; what each needs next is asked for while the others are worked on.
/// `after` is called with each slot, to ask for what is there.
///
/// # Safety
/// As `descend`. `slot` and `open` are as long as `keys`.
#[inline(always)]
pub(crate) unsafe fn descend_many<S: Simd, K: Key>(
    levels: &[Level],
    tree: *const u8,
    slots: usize,
    keys: &[u64],
    slot: &mut [usize],
    open: &mut [bool],
    ask: impl Fn(usize, bool),
) {
    slot.fill(0);
    open.fill(false);
    for (index, level) in levels.iter().enumerate() {
        let below = levels.get(index + 1);
        let count = below.map_or(slots, |below| below.count);
        with_shape!(level, WIDTH, BLOCK, INLINE, {
            for ((&key, at), open) in keys.iter().zip(slot.iter_mut()).zip(open.iter_mut()) {
                // SAFETY: `at` is 0 for the root and else clamped to the level's count.
                let child = unsafe { step::<S, K, WIDTH, BLOCK, INLINE>(level, tree, *at, key) };
                *at = (*at * level.children + child.0).min(count - 1);
                *open = child.1;
                match below {
                    Some(below) => prefetch(tree.wrapping_add(below.blocks_at + *at * below.block_bytes)),
                    None => ask(*at, child.1),
                }
            }
        });
    }
}

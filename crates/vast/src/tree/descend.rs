//! The traversal: from the root to a slot, without a branch that depends on keys.
//!
//! At each compression block the search key is compressed as the separators were (minimum subtracted, cut to the prefix) and
//! compared with all lanes of a SIMD block at once; the number of separators below it is the child. A code that equals a
//! separator's tells nothing about the order of the keys, and the search goes left: so the slot it ends in never begins
//! behind the answer. If no code was equal on the way, no comparison was wrong, and the answer is in the slot or right behind it;
//! else the search is *open*.
//!
//! Every block number is clamped to those that exist: whatever the bytes say, only the tree's bytes are read.

use super::level::Level;
use crate::key::Key;
use crate::memory::{prefetch, read};
use crate::simd::Simd;

/// Descents that advance together.
pub(crate) const BATCH: usize = 128;

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
            (true, 16, _) => shape!(1, 16, true),
            (true, 32, 1) => shape!(1, 32, true),
            (true, 32, _) => shape!(2, 32, true),
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

/// What a level's shape says, as far as it is not constant.
#[derive(Clone, Copy)]
struct Place {
    blocks: *const u8,
    minima: *const u8,
    block_bytes: usize,
    children: usize,
    /// The last block, or slot, of what is below.
    last: usize,
}

impl Place {
    /// # Safety
    /// `tree` are bytes that hold the level.
    #[inline(always)]
    unsafe fn new<K: Key, const WIDTH: usize, const BLOCK: usize, const INLINE: bool>(
        level: &Level,
        tree: *const u8,
        below: usize,
    ) -> Self {
        let constant = const { line_lanes::<K>(WIDTH, BLOCK) } + 1;
        // SAFETY: the level's blocks and minima are in the tree's bytes.
        unsafe {
            Place {
                blocks: tree.add(level.blocks_at),
                minima: tree.add(level.minima_at),
                block_bytes: if INLINE { BLOCK } else { level.block_bytes },
                children: if INLINE { constant } else { level.children },
                last: below - 1,
            }
        }
    }
}

/// Lanes before the separators of a block in the line layout, and separators.
const fn line_skip<K: Key>(width: usize) -> usize {
    if width == K::BYTES { 0 } else { K::BYTES / width + 1 }
}

const fn line_lanes<K: Key>(width: usize, block: usize) -> usize {
    (block / width).saturating_sub(line_skip::<K>(width))
}

/// The child of a block for a key (in order as unsigned), and whether it had the code of a separator.
///
/// # Safety
/// The processor has `S`. The place is that of the level in bytes that hold it as it was laid out for `K`, and `block` is below
/// its count.
#[inline(always)]
unsafe fn step<S: Simd, K: Key, const WIDTH: usize, const BLOCK: usize, const INLINE: bool>(
    level: &Level,
    place: Place,
    block: usize,
    key: u64,
) -> (usize, bool) {
    // SAFETY: the level's blocks and minima are in the tree's bytes, by the caller's promise; and SIMD blocks within a
    // block have numbers below `simd_blocks`, as at each depth the number is that of a child, below `fanout^depth`.
    unsafe {
        let start = place.blocks.add(block * place.block_bytes);
        let code = if WIDTH == K::BYTES {
            key
        } else {
            let (minimum, shift) =
                if INLINE { (start, start.add(K::BYTES)) } else { (place.minima.add(block * K::BYTES), start) };
            let minimum = if K::BYTES == 4 { read::<u32>(minimum) as u64 } else { read::<u64>(minimum) };
            let code_max = (u64::MAX >> (64 - WIDTH * 8)) - 1;
            (key.saturating_sub(minimum) >> (*shift & 63)).min(code_max)
        };
        if INLINE {
            let skip = const { line_skip::<K>(WIDTH) } as u32;
            let (below, equal) = S::compare::<WIDTH, BLOCK>(start, code);
            let child = S::count::<WIDTH>(S::skip::<WIDTH>(below, skip));
            return (child, WIDTH != K::BYTES && S::skip::<WIDTH>(equal, skip) != 0);
        }
        let (mut child, mut tie) = (0, false);
        for depth in 0..level.shape.depth as usize {
            let (below, equal) = S::compare::<WIDTH, BLOCK>(start.add((level.before[depth] + child) * BLOCK), code);
            // A spare lane at the end of an uncompressed block is all ones: it is never below.
            let rank = S::count::<WIDTH>(S::skip::<WIDTH>(below, level.skip));
            tie |= WIDTH != K::BYTES && S::skip::<WIDTH>(equal, level.skip) != 0;
            child = child * level.fanout + rank.min(level.fanout - 1);
        }
        (child, tie)
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
        let count = levels.get(index + 1).map_or(slots, |below| below.count);
        with_shape!(level, WIDTH, BLOCK, INLINE, {
            // SAFETY: `at` is 0 for the root and else clamped to the level's count; the rest is the caller's promise.
            unsafe {
                let place = Place::new::<K, WIDTH, BLOCK, INLINE>(level, tree, count);
                let (child, more) = step::<S, K, WIDTH, BLOCK, INLINE>(level, place, at, key);
                (at, open) = ((at * place.children + child).min(place.last), open | more);
            }
        });
    }
    (at, open)
}

/// The same for up to [`BATCH`] keys at once, level by level; what each needs next is asked for while the others are worked on.
/// `ask` is called with each slot, to ask for what is there.
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
            // SAFETY: `at` is 0 for the root and else clamped to the level's count; the rest is the caller's promise.
            unsafe {
                let place = Place::new::<K, WIDTH, BLOCK, INLINE>(level, tree, count);
                if let Some(below) = below {
                    let next = tree.add(below.blocks_at);
                    let next_bytes = below.block_bytes;
                    for ((&key, at), open) in keys.iter().zip(slot.iter_mut()).zip(open.iter_mut()) {
                        let (child, more) = step::<S, K, WIDTH, BLOCK, INLINE>(level, place, *at, key);
                        *at = (*at * place.children + child).min(place.last);
                        if WIDTH != K::BYTES {
                            *open |= more;
                        }
                        prefetch(next.wrapping_add(*at * next_bytes));
                    }
                } else {
                    for ((&key, at), open) in keys.iter().zip(slot.iter_mut()).zip(open.iter_mut()) {
                        let (child, more) = step::<S, K, WIDTH, BLOCK, INLINE>(level, place, *at, key);
                        (*at, *open) = ((*at * place.children + child).min(place.last), *open | more);
                        ask(*at, *open);
                    }
                }
            }
        });
    }
}

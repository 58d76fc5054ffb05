//! The traversal phase: from the root to a slot, without branches that depend on keys.
//!
//! At each compression block the search key is compressed like the separators: the minimum is subtracted and the
//! difference is shifted to the prefix position. It is then compared with all lanes of a SIMD block at once. The number
//! of separators below it is the index of the child. If the code equals a separator's code, the order of the keys is
//! not known, and the traversal goes left. The slot at its end therefore never begins after the answer. If no code on
//! the way was equal, every comparison was right, and the answer is in the slot or the row after it. Otherwise the
//! search is *open*: the answer may be further right.
//!
//! Invariant: every block number is clamped to those that exist. Whatever the bytes of a tree are, the traversal reads
//! only these bytes.

use std::hint::select_unpredictable;

use keyaki_primitives::{CACHE_LINE_BYTES, prefetch};

use super::level::Level;
use crate::memory::read;
use crate::simd::{Instructions, Simd, dispatch};

/// Number of descents that advance together.
pub(crate) const BATCH: usize = 128;

/// The levels of a tree over keys of `BYTES` bytes, for descents.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descent<'a, const BYTES: usize> {
    levels: &'a [Level],
    /// Number of levels, from the root on, that are cache lines of uncompressed keys.
    whole: usize,
    tree: *const u8,
}

/// The cache lines of a slot to prefetch as soon as the slot is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotPrefetch {
    /// Address of slot 0.
    pub start: *const u8,
    pub slot_bytes: usize,
    /// Offset of the first line in the slot.
    pub first: usize,
    /// Number of lines, 1 or 2.
    pub lines: usize,
}

/// Runs `$body` with constants for a level of the line layout: width of a separator and size of a block in bytes.
macro_rules! with_line {
    ($level:expr, $width:ident, $block:ident, $body:block) => {{
        macro_rules! shape {
            ($w:expr, $b:expr) => {{
                const $width: usize = $w;
                const $block: usize = $b;
                $body
            }};
        }
        match ($level.shape.simd_bytes, $level.shape.width) {
            (64, 1) => shape!(1, 64),
            (64, 2) => shape!(2, 64),
            (64, 4) => shape!(4, 64),
            (64, _) => shape!(8, 64),
            (32, 1) => shape!(1, 32),
            (32, _) => shape!(2, 32),
            (_, _) => shape!(1, 16),
        }
    }};
}

/// Runs `$body` with constants for a level of the published layout: width of a separator and size of a SIMD block in
/// bytes.
macro_rules! with_published {
    ($level:expr, $width:ident, $block:ident, $body:block) => {{
        macro_rules! shape {
            ($w:expr, $b:expr) => {{
                const $width: usize = $w;
                const $block: usize = $b;
                $body
            }};
        }
        match ($level.shape.simd_bytes, $level.shape.width) {
            (16, 1) => shape!(1, 16),
            (16, 2) => shape!(2, 16),
            (16, 4) => shape!(4, 16),
            (16, _) => shape!(8, 16),
            (32, 1) => shape!(1, 32),
            (32, 2) => shape!(2, 32),
            (32, 4) => shape!(4, 32),
            (32, _) => shape!(8, 32),
            (_, 1) => shape!(1, 64),
            (_, 2) => shape!(2, 64),
            (_, 4) => shape!(4, 64),
            (_, _) => shape!(8, 64),
        }
    }};
}

/// Number of lanes before the separators of a block in the line layout.
const fn line_skip(bytes: usize, width: usize) -> usize {
    if width == bytes { 0 } else { bytes / width + 1 }
}

/// Number of separators of a block in the line layout.
const fn line_lanes(bytes: usize, width: usize, block: usize) -> usize {
    (block / width).saturating_sub(line_skip(bytes, width))
}

/// One step of a descent: the child of a block, counted among all children of the level, and whether the key's code
/// equals that of a separator.
///
/// # Safety
/// The processor has `S`. `tree` points to bytes with the level as it was laid out for keys of `BYTES` bytes. `block`
/// is below the level's count.
#[inline(always)]
unsafe fn step<S: Simd, const BYTES: usize, const WIDTH: usize, const BLOCK: usize, const INLINE: bool>(
    level: &Level,
    tree: *const u8,
    block: usize,
    key: u64,
) -> (usize, bool) {
    // SAFETY: the level's blocks and minima are in the tree's bytes by the caller's promise. The numbers of SIMD blocks
    // within the block are below `simd_blocks`, because at each depth the number is that of a child, below
    // `fanout^depth`.
    unsafe {
        let start = tree.add(level.blocks_at + block * if INLINE { BLOCK } else { level.block_bytes });
        let code = if WIDTH == BYTES {
            key
        } else {
            let (minimum, shift) =
                if INLINE { (start, start.add(BYTES)) } else { (tree.add(level.minima_at + block * BYTES), start) };
            let minimum = if BYTES == 4 { read::<u32>(minimum) as u64 } else { read::<u64>(minimum) };
            let code_max = (u64::MAX >> (64 - WIDTH * 8)) - 1;
            // Compilers turn `min` and `max` into branches, which are mispredicted for keys at a block's ends.
            let above = select_unpredictable(key < minimum, 0, key.wrapping_sub(minimum)) >> (*shift & 63);
            select_unpredictable(above < code_max, above, code_max)
        };
        if INLINE {
            let skip = const { line_skip(BYTES, WIDTH) } as u32;
            let (below, equal) = S::compare::<WIDTH, BLOCK>(start, code);
            let child = S::count::<WIDTH>(S::skip::<WIDTH>(below, skip));
            let child = block * (const { line_lanes(BYTES, WIDTH, BLOCK) } + 1) + child;
            return (child.min(level.last), WIDTH != BYTES && S::skip::<WIDTH>(equal, skip) != 0);
        }
        let (mut child, mut tie) = (0, false);
        for depth in 0..level.shape.depth as usize {
            let (below, equal) = S::compare::<WIDTH, BLOCK>(start.add((level.before[depth] + child) * BLOCK), code);
            // The spare lane at the end of an uncompressed block is all ones: it is never below the key.
            let rank = S::count::<WIDTH>(S::skip::<WIDTH>(below, level.skip));
            tie |= WIDTH != BYTES && S::skip::<WIDTH>(equal, level.skip) != 0;
            child = child * level.fanout + rank.min(level.fanout - 1);
        }
        ((block * level.children + child).min(level.last), tie)
    }
}

/// One step through a level of the published layout.
///
/// # Safety
/// As for `step`.
#[inline(always)]
unsafe fn published<S: Simd, const BYTES: usize>(
    level: &Level,
    tree: *const u8,
    block: usize,
    key: u64,
) -> (usize, bool) {
    with_published!(level, WIDTH, BLOCK, {
        // SAFETY: the caller's promise.
        unsafe { step::<S, BYTES, WIDTH, BLOCK, false>(level, tree, block, key) }
    })
}

impl<'a, const BYTES: usize> Descent<'a, BYTES> {
    /// # Safety
    /// `tree` points to bytes with the levels as they were laid out for keys of `BYTES` bytes, over at least one slot.
    /// They stay valid as long as the result is used.
    #[inline(always)]
    pub unsafe fn new(levels: &'a [Level], whole: usize, tree: *const u8) -> Self {
        Descent { levels, whole, tree }
    }

    /// The slot for a key, and whether the search is open.
    ///
    /// # Safety
    /// The processor has `S`.
    #[inline(always)]
    pub unsafe fn one<S: Simd>(self, key: u64) -> (usize, bool) {
        let (mut at, mut open) = (0, false);
        let (whole, rest) = self.levels.split_at_checked(self.whole).unwrap_or((&[], self.levels));
        for level in whole {
            // SAFETY: `at` is 0 for the root and clamped to the level's count below it. `new` was promised the rest.
            (at, _) = unsafe {
                if BYTES == 4 {
                    step::<S, BYTES, 4, CACHE_LINE_BYTES, true>(level, self.tree, at, key)
                } else {
                    step::<S, BYTES, 8, CACHE_LINE_BYTES, true>(level, self.tree, at, key)
                }
            };
        }
        for level in rest {
            if !level.shape.line {
                // SAFETY: as above.
                let (child, more) = unsafe { published::<S, BYTES>(level, self.tree, at, key) };
                (at, open) = (child, open | more);
                continue;
            }
            with_line!(level, WIDTH, BLOCK, {
                // SAFETY: as above.
                let (child, more) = unsafe { step::<S, BYTES, WIDTH, BLOCK, true>(level, self.tree, at, key) };
                (at, open) = (child, open | more);
            });
        }
        (at, open)
    }

    /// As [`one`](Self::one) for up to [`BATCH`] keys at once, level by level. The next block of each descent is
    /// prefetched while the others advance.
    ///
    /// # Panics
    /// If `slot` or `open` is shorter than `keys`.
    pub fn many(
        self,
        instructions: Instructions,
        keys: &[u64],
        slot: &mut [usize],
        open: &mut [bool],
        lines: Option<SlotPrefetch>,
    ) {
        let (slot, open) = (&mut slot[..keys.len()], &mut open[..keys.len()]);
        dispatch!(instructions, S, fn run[const BYTES: usize](descent: Descent<'_, BYTES>, keys: &[u64], slot: &mut [usize], open: &mut [bool], lines: Option<SlotPrefetch>) {
            // SAFETY: the processor has `S`.
            unsafe { descent.batch::<S>(keys, slot, open, lines) };
            if let Some(lines) = lines {
                lines.prefetch_second(slot);
            }
        }, (self, keys, slot, open, lines))
    }

    /// # Safety
    /// The processor has `S`.
    #[inline(always)]
    unsafe fn batch<S: Simd>(self, keys: &[u64], slot: &mut [usize], open: &mut [bool], lines: Option<SlotPrefetch>) {
        slot.fill(0);
        open.fill(false);
        let tree = self.tree;
        for (index, level) in self.levels.iter().enumerate() {
            let (next, next_bytes) = match self.levels.get(index + 1) {
                Some(below) => (self.tree.wrapping_add(below.blocks_at), below.block_bytes),
                None => lines.map_or((self.tree, 0), |lines| (lines.start.wrapping_add(lines.first), lines.slot_bytes)),
            };
            macro_rules! level {
                ($line:expr, $WIDTH:expr, $BLOCK:expr) => {
                    for ((&key, at), open) in keys.iter().zip(slot.iter_mut()).zip(open.iter_mut()) {
                        // SAFETY: `at` is 0 for the root and clamped to the level's count below it. `new` was promised
                        // the rest.
                        let (child, more) = unsafe { step::<S, BYTES, $WIDTH, $BLOCK, $line>(level, tree, *at, key) };
                        *at = child;
                        if $WIDTH != BYTES {
                            *open |= more;
                        }
                        prefetch(next.wrapping_add(child.wrapping_mul(next_bytes)));
                    }
                };
            }
            if level.shape.line {
                with_line!(level, WIDTH, BLOCK, { level!(true, WIDTH, BLOCK) });
            } else {
                with_published!(level, WIDTH, BLOCK, { level!(false, WIDTH, BLOCK) });
            }
        }
    }
}

impl SlotPrefetch {
    /// Prefetches the second line of each slot. The first has been prefetched before.
    #[inline(always)]
    fn prefetch_second(&self, slots: &[usize]) {
        if self.lines > 1 {
            for slot in slots {
                prefetch(
                    self.start
                        .wrapping_add(slot.wrapping_mul(self.slot_bytes))
                        .wrapping_add(self.first + CACHE_LINE_BYTES),
                );
            }
        }
    }
}

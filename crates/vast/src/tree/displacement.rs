//! The displacement (Δw): the distance of answers from the slot in which the traversal ends, computed exactly for all
//! search keys without searching for them.
//!
//! The traversal is monotone: greater keys never end further left. The search keys that end in one slot are therefore
//! an interval. It ends with the last number that is compressed to the code of the separator to the right of the slot,
//! or at the end of the enclosing block's interval if that is lower. It is empty if the slots to the left end later. A pass from the top down finds the last search key
//! of each slot. The answer for that key is the greatest of the slot, and its distance from the slot's beginning is the
//! slot's displacement. The maximum over all slots bounds every search, present keys or not. The mean is taken over all
//! rows, each searched for once.
//!
//! A row *overshoots* a boundary between slots if its search ends to the left of the boundary although the row is to
//! the right of it. It is attributed to the region of the boundary's separator.

use rayon::prelude::*;

use super::Tree;
use super::build::Grid;
use super::level::Level;
use crate::key::Key;
use crate::memory::read;
use crate::sorted::Sorted;

/// Bottom blocks that a thread processes in one task.
const BLOCKS_AT_ONCE: usize = 64;

/// Distances in rows between answers and the beginning of the slot in which the traversal ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Displacement {
    /// The greatest distance of an answer, for any search key.
    pub max: usize,
    /// The mean distance over all rows, each searched for once.
    pub mean: f64,
    /// The contributions of the regions, from the top.
    pub regions: Vec<RegionDisplacement>,
}

/// The contribution of a region: consecutive levels with separators of the same width.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RegionDisplacement {
    /// Bits of a separator: 8, 16, 32 or 64 for the regions H8, H16, H32 and H64.
    pub bits: u32,
    /// Number of levels of compression blocks.
    pub levels: u32,
    /// Size of the levels in bytes.
    pub bytes: u64,
    /// The greatest distance, in rows, by which an answer overshoots a boundary.
    pub max: usize,
    /// The sum of these distances over all rows, divided by the number of rows.
    pub mean: f64,
    /// The fraction of rows that overshoot a boundary, from 0 to 1.
    pub share: f64,
}

/// The last search key whose traversal ends in a child, and the level whose separator determines it.
#[derive(Clone, Copy)]
struct LastKey {
    key: u64,
    level: usize,
}

/// Totals over the slots of some blocks, in rows.
#[derive(Clone, Default)]
struct Totals {
    max: usize,
    distance: u128,
    /// By level.
    overshoots: Vec<Overshoot>,
}

/// Rows and distances by which searches overshoot the boundaries of one level.
#[derive(Clone, Default)]
struct Overshoot {
    max: usize,
    distance: u128,
    rows: u64,
}

impl Displacement {
    pub(super) fn compute<K: Key, T: Sorted<K> + ?Sized>(tree: &Tree<K>, keys: &T) -> Self {
        let levels = &tree.levels;
        let mut lasts = vec![LastKey { key: K::LAST, level: 0 }];
        let mut span = levels.iter().map(|level| level.children).fold(1, usize::saturating_mul);
        for (index, level) in levels.iter().enumerate() {
            span /= level.children;
            if index + 1 == levels.len() {
                break;
            }
            let grid = Grid { slot_rows: tree.slot_rows, slots: tree.slots, span };
            let children = (0..level.count).flat_map(|block| lasts_of::<K>(tree, index, &grid, block, lasts[block]));
            lasts = children.collect();
            // Compression in one block can round beyond separators of the next. No search ends below those.
            for child in 1..lasts.len() {
                lasts[child].key = lasts[child].key.max(lasts[child - 1].key);
            }
        }
        let totals = (0..tree.slots.div_ceil(levels.last().map_or(1, |level| level.children)))
            .into_par_iter()
            .chunks(BLOCKS_AT_ONCE)
            .map(|blocks| {
                let mut totals =
                    Totals { overshoots: vec![Overshoot::default(); levels.len().max(1)], ..Totals::default() };
                for block in blocks {
                    let before = block.checked_sub(1).map(|block| lasts[block]);
                    add_slots(tree, keys, block, before, lasts[block], &mut totals);
                }
                totals
            });
        let totals = totals.reduce(Totals::default, Totals::add);
        let mean = |sum: u128| if tree.rows == 0 { 0.0 } else { sum as f64 / tree.rows as f64 };
        let mut regions: Vec<RegionDisplacement> = Vec::new();
        for (level, overshoot) in levels.iter().zip(&totals.overshoots) {
            if regions.last().is_none_or(|region| region.bits != level.shape.bits()) {
                regions.push(RegionDisplacement { bits: level.shape.bits(), ..RegionDisplacement::default() });
            }
            let Some(region) = regions.last_mut() else { continue };
            region.levels += 1;
            let minima = if level.has_minima::<K>() { level.count * K::BYTES } else { 0 };
            region.bytes += (level.count * level.block_bytes + minima) as u64;
            region.max = region.max.max(overshoot.max);
            region.mean += mean(overshoot.distance);
            region.share += mean(overshoot.rows as u128);
        }
        Displacement { max: totals.max, mean: mean(totals.distance), regions }
    }
}

impl Totals {
    fn add(mut self, other: Totals) -> Totals {
        self.max = self.max.max(other.max);
        self.distance += other.distance;
        self.overshoots.resize(self.overshoots.len().max(other.overshoots.len()), Overshoot::default());
        for (overshoot, other) in self.overshoots.iter_mut().zip(other.overshoots) {
            overshoot.max = overshoot.max.max(other.max);
            overshoot.distance += other.distance;
            overshoot.rows += other.rows;
        }
        self
    }
}

/// The last search key of each child of a block.
fn lasts_of<K: Key>(tree: &Tree<K>, index: usize, grid: &Grid, block: usize, own: LastKey) -> Vec<LastKey> {
    let level = &tree.levels[index];
    let start = level.blocks_at + block * level.block_bytes;
    let bytes = &tree.bytes[start..start + level.block_bytes];
    let minimum = level.has_minima::<K>().then(|| &tree.bytes[level.minima_at + block * K::BYTES..]);
    let present = grid.present(level, block);
    let mut lasts: Vec<LastKey> = (1..present)
        .map(|child| {
            let last = code_end::<K>(level, bytes, minimum, child);
            LastKey { key: last.min(own.key), level: index }
        })
        .collect();
    lasts.push(own);
    lasts
}

/// The last search key that is compressed to the code of a child's separator.
pub(super) fn code_end<K: Key>(level: &Level, block: &[u8], minimum: Option<&[u8]>, child: usize) -> u64 {
    let shape = &level.shape;
    let (simd_block, lane) = level.separator_lane(child);
    let at = simd_block * shape.simd_bytes as usize + lane * shape.width as usize;
    let code = number(&block[at..], shape.width as usize);
    if shape.exact::<K>() {
        return code;
    }
    let (minimum, shift) = match minimum {
        Some(minimum) => (number(minimum, K::BYTES), block[0]),
        None => (number(block, K::BYTES), block[K::BYTES]),
    };
    let end = minimum as u128 + ((code as u128 + 1) << shift) - 1;
    end.min(K::LAST as u128) as u64
}

fn number(bytes: &[u8], width: usize) -> u64 {
    let mut number = [0; 8];
    number[..width].copy_from_slice(&bytes[..width]);
    // SAFETY: eight bytes.
    u64::from_le(unsafe { read(number.as_ptr()) })
}

/// Adds the distances of the slots below a block of the lowest level to the totals. `before` is the last search key of
/// the previous block, `own` that of this one.
fn add_slots<K: Key, T: Sorted<K> + ?Sized>(
    tree: &Tree<K>,
    keys: &T,
    block: usize,
    before: Option<LastKey>,
    own: LastKey,
    totals: &mut Totals,
) {
    let grid = Grid { slot_rows: tree.slot_rows, slots: tree.slots, span: 1 };
    let (lasts, first) = match tree.levels.len().checked_sub(1) {
        Some(index) => (lasts_of(tree, index, &grid, block, own), block * tree.levels[index].children),
        None => (vec![own], block),
    };
    let mut from = before.map_or(0, |last| rows_to(keys, last.key, first * tree.slot_rows));
    for (slot, last) in (first..).zip(lasts) {
        let (start, boundary) = (slot * tree.slot_rows, ((slot + 1) * tree.slot_rows).min(tree.rows));
        let to = rows_to(keys, last.key, boundary);
        // The answer for the last search key is the first of the rows with that key.
        let answer =
            if to > start && keys.get(to - 1).ordered() == last.key { first_of(keys, last.key, start, to) } else { to };
        totals.max = totals.max.max(answer.saturating_sub(start));
        let overshoot = &mut totals.overshoots[last.level];
        overshoot.max = overshoot.max.max(answer.saturating_sub(boundary));
        // The searches for equal keys end in the same slot and have the same answer, the first of their rows.
        let mut first = from;
        for row in from..to {
            if row > from && keys.get(row) != keys.get(row - 1) {
                first = row;
            }
            totals.distance += first.saturating_sub(start) as u128;
            overshoot.distance += first.saturating_sub(boundary) as u128;
            overshoot.rows += (first > boundary) as u64;
        }
        from = from.max(to);
    }
}

/// The number of rows with keys up to `last`, which is at least `hint`.
pub(super) fn rows_to<K: Key, T: Sorted<K> + ?Sized>(keys: &T, last: u64, hint: usize) -> usize {
    let (mut from, mut step, length) = (hint, 1, keys.len());
    // Keys of rows before `from` are known to be up to `last`.
    while from < length && keys.get((from + step - 1).min(length - 1)).ordered() <= last {
        from = (from + step).min(length);
        step *= 2;
    }
    let mut to = (from + step - 1).min(length);
    while from < to {
        let middle = from + (to - from) / 2;
        if keys.get(middle).ordered() <= last {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    from
}

/// The first row from `from` on with this key, which is the key of row `to - 1`.
pub(super) fn first_of<K: Key, T: Sorted<K> + ?Sized>(keys: &T, key: u64, mut from: usize, mut to: usize) -> usize {
    to -= 1;
    while from < to {
        let middle = from + (to - from) / 2;
        if keys.get(middle).ordered() < key {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    from
}

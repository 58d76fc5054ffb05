//! How far answers are from where the traversal ends (Δw), exactly and for all search keys, found without searching for them.
//!
//! The traversal is monotone: greater keys never end further left. So the search keys that end in a slot are an interval, and
//! it ends where the code of the separator right of the slot ends: at the last number that is cut off to the same code, or
//! where the interval of an enclosing block ends, if that is earlier. From the top down that gives each slot its last search
//! key; the answer for that key is the greatest of the slot's, and its distance from the slot's beginning is the slot's
//! displacement. The maximum over all slots bounds every search, whatever is searched for. The mean is over the rows, each
//! searched for once, from its position. A row *past* a boundary was led left of a separator that is not above it; it counts for
//! the region of that separator.

use rayon::prelude::*;

use super::build::Grid;
use super::level::Level;
use super::{Sorted, Tree};
use crate::key::Key;
use crate::memory::read;

/// Bottom blocks that a thread looks at, at a time.
const BLOCKS_AT_ONCE: usize = 64;

/// Distances, in rows, from the beginning of the slot in which the traversal ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Displacement {
    /// The greatest distance of an answer, for any key searched for.
    pub max: usize,
    /// The mean distance of a row from where the search for it ends.
    pub mean: f64,
    /// What the regions have to do with it, from the top.
    pub regions: Vec<RegionDisplacement>,
}

/// The part of levels with separators of the same width.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RegionDisplacement {
    /// Bits of a separator: the region H8, H16, H32 or H64.
    pub bits: u32,
    /// Levels of compression blocks.
    pub levels: u32,
    /// Bytes.
    pub bytes: u64,
    /// The greatest distance of an answer behind a boundary that the search should have gone beyond.
    pub max: usize,
    /// The sum of such distances of all rows, divided by the number of rows.
    pub mean: f64,
    /// The share of rows behind such a boundary.
    pub share: f64,
}

/// The last search key that is led to a child, and the level whose separator says so.
#[derive(Clone, Copy)]
struct Last {
    key: u64,
    level: usize,
}

/// What the slots of some blocks come to.
#[derive(Clone, Default)]
struct Sums {
    max: usize,
    distance: u128,
    past: Vec<Past>,
}

#[derive(Clone, Default)]
struct Past {
    max: usize,
    distance: u128,
    rows: u64,
}

impl Displacement {
    pub(super) fn of<K: Key, T: Sorted<K> + ?Sized>(tree: &Tree<K>, keys: &T) -> Self {
        let levels = &tree.levels;
        let mut lasts = vec![Last { key: K::LAST, level: 0 }];
        let mut span = levels.iter().map(|level| level.children).fold(1, usize::saturating_mul);
        for (index, level) in levels.iter().enumerate() {
            span /= level.children;
            if index + 1 == levels.len() {
                break;
            }
            let grid = Grid { slot_rows: tree.slot_rows, slots: tree.slots, span };
            let children = (0..level.count).flat_map(|block| lasts_of::<K>(tree, index, &grid, block, lasts[block]));
            lasts = children.collect();
        }
        let sums = (0..tree.slots.div_ceil(levels.last().map_or(1, |level| level.children)))
            .into_par_iter()
            .chunks(BLOCKS_AT_ONCE)
            .map(|blocks| {
                let mut sums = Sums { past: vec![Past::default(); levels.len().max(1)], ..Sums::default() };
                for block in blocks {
                    let before = block.checked_sub(1).map(|block| lasts[block]);
                    slots_of(tree, keys, block, before, lasts[block], &mut sums);
                }
                sums
            });
        let sums = sums.reduce(Sums::default, Sums::add);
        let mean = |sum: u128| if tree.rows == 0 { 0.0 } else { sum as f64 / tree.rows as f64 };
        let mut regions: Vec<RegionDisplacement> = Vec::new();
        for (level, past) in levels.iter().zip(&sums.past) {
            if regions.last().is_none_or(|region| region.bits != level.shape.bits()) {
                regions.push(RegionDisplacement { bits: level.shape.bits(), ..RegionDisplacement::default() });
            }
            let Some(region) = regions.last_mut() else { continue };
            region.levels += 1;
            let minima = if level.has_minima::<K>() { level.count * K::BYTES } else { 0 };
            region.bytes += (level.count * level.block_bytes + minima) as u64;
            region.max = region.max.max(past.max);
            region.mean += mean(past.distance);
            region.share += mean(past.rows as u128);
        }
        Displacement { max: sums.max, mean: mean(sums.distance), regions }
    }
}

impl Sums {
    fn add(mut self, other: Sums) -> Sums {
        self.max = self.max.max(other.max);
        self.distance += other.distance;
        self.past.resize(self.past.len().max(other.past.len()), Past::default());
        for (past, other) in self.past.iter_mut().zip(other.past) {
            past.max = past.max.max(other.max);
            past.distance += other.distance;
            past.rows += other.rows;
        }
        self
    }
}

/// The last search key of each child of a block.
fn lasts_of<K: Key>(tree: &Tree<K>, index: usize, grid: &Grid, block: usize, own: Last) -> Vec<Last> {
    let level = &tree.levels[index];
    let start = level.blocks_at + block * level.block_bytes;
    let bytes = &tree.bytes[start..start + level.block_bytes];
    let minimum = level.has_minima::<K>().then(|| &tree.bytes[level.minima_at + block * K::BYTES..]);
    let present = grid.present(level, block);
    let mut lasts: Vec<Last> = (1..present)
        .map(|child| {
            let last = code_end::<K>(level, bytes, minimum, child);
            Last { key: last.min(own.key), level: index }
        })
        .collect();
    lasts.push(own);
    lasts
}

/// The last search key with the code of the separator left of a child.
pub(super) fn code_end<K: Key>(level: &Level, block: &[u8], minimum: Option<&[u8]>, child: usize) -> u64 {
    let shape = &level.shape;
    let (simd_block, lane) = level.place(child);
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

/// The slots of a block of the lowest level.
fn slots_of<K: Key, T: Sorted<K> + ?Sized>(
    tree: &Tree<K>,
    keys: &T,
    block: usize,
    before: Option<Last>,
    own: Last,
    sums: &mut Sums,
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
        // The answer for the last search key: before all rows that equal it.
        let answer =
            if to > start && keys.get(to - 1).ordered() == last.key { first_of(keys, last.key, start, to) } else { to };
        sums.max = sums.max.max(answer.saturating_sub(start));
        let past = &mut sums.past[last.level];
        past.max = past.max.max(answer.saturating_sub(boundary));
        // Equal keys end in the same slot, and have the same answer: the first of them.
        let mut first = from;
        for row in from..to {
            if row > from && keys.get(row) != keys.get(row - 1) {
                first = row;
            }
            sums.distance += first.saturating_sub(start) as u128;
            past.distance += first.saturating_sub(boundary) as u128;
            past.rows += (first > boundary) as u64;
        }
        from = from.max(to);
    }
}

/// Rows with keys up to `last`, which are at least `hint`.
pub(super) fn rows_to<K: Key, T: Sorted<K> + ?Sized>(keys: &T, last: u64, hint: usize) -> usize {
    let (mut from, mut step, length) = (hint, 1, keys.len());
    // Rows before `from` are known to be up to it.
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

/// The first row from `from` on whose key is `key`, which that of `to - 1` is.
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

//! Plans: the layout of a tree, either a published preset or chosen for the keys at hand.
//!
//! A plan consists of the slot size, which is the number of rows that the validation phase compares, and of the shape
//! of each level. Narrow separators make small levels with many children, but cannot distinguish keys that are close
//! together in a block with a large range. Searches for such keys overshoot and read further. Both effects are weighed
//! on a sample of the keys: for blocks all over the array, [`sample`] counts the rows that share the code of a boundary
//! before them, and the cache lines that this costs. Levels of wider separators are added on top until one block is
//! left.

use std::sync::OnceLock;

use keyaki_primitives::CACHE_LINE_BYTES;

use super::Tree;
use super::build::{Grid, fill_block};
use super::displacement::{code_end, first_of, rows_to};
use super::level::{Level, Shape, lay_out};
use crate::error::Error;
use crate::key::Key;
use crate::sorted::Sorted;

/// The goal of the choice of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The smallest tree whose estimated search time is at most 1.5 times that of the fastest small tree.
    Smallest,
    /// The fastest searches.
    Fastest,
    /// The smallest tree with a bounded displacement, for rows that are read from a device in pages.
    Bounded {
        /// Upper bound, at least 1, of the distance in rows between the slot in which the traversal ends and the
        /// answer.
        rows: usize,
    },
}

/// The parameters of the choice of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// The goal.
    pub goal: Goal,
    /// Upper bound of the tree's size in bytes.
    pub memory: Option<usize>,
    /// The caches of the processor that will search the tree.
    pub caches: Caches,
}

impl Parameters {
    /// Parameters with a goal and the caches of this machine.
    pub fn new(goal: Goal) -> Self {
        Parameters { goal, memory: None, caches: Caches::detect() }
    }

    /// Limits the tree's size in bytes.
    pub fn memory(self, bytes: usize) -> Self {
        Parameters { memory: Some(bytes), ..self }
    }

    /// Returns whether the tree meets the goal within the memory limit.
    pub(super) fn met_by<K: Key>(&self, tree: &Tree<K>) -> bool {
        let bounded = match self.goal {
            Goal::Bounded { rows } => tree.reach <= rows,
            _ => true,
        };
        bounded && self.memory.is_none_or(|memory| tree.bytes() <= memory)
    }
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters::new(Goal::Fastest)
    }
}

/// Sizes in bytes of the caches that a search can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// The private second-level cache of a core.
    pub private: usize,
    /// The shared last-level cache.
    pub shared: usize,
}

impl Caches {
    /// The caches of this machine; 1 MiB and 16 MiB if the system does not report them.
    pub fn detect() -> Self {
        static CACHES: OnceLock<Caches> = OnceLock::new();
        *CACHES.get_or_init(|| {
            let size = |index: u32| -> Option<usize> {
                let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
                let text = std::fs::read_to_string(path).ok()?;
                text.trim().strip_suffix('K')?.parse::<usize>().ok().map(|kibibytes| kibibytes << 10)
            };
            Caches { private: size(2).unwrap_or(1 << 20), shared: size(3).unwrap_or(16 << 20) }
        })
    }
}

/// The layout of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Rows of a slot.
    pub slot_rows: usize,
    /// The shapes of the levels, the root's first.
    pub shapes: Vec<Shape>,
}

/// A plan given by the heights of its regions, in levels of a binary tree, as in the publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Bytes of a SIMD register: 16, 32 or 64.
    pub register: u8,
    /// Height of the uncompressed region, H64 or H32.
    pub exact: u32,
    /// Height of the region H32 of 64-bit keys (0 for 32-bit keys).
    pub h32: u32,
    /// Height of the region H16. The region H8 has the remaining levels.
    pub h16: u32,
}

impl Preset {
    /// The published parameters for 128-bit registers: SIMD blocks of 2, 3 and 4 levels in compression blocks of 4, 6
    /// and 8 levels for the regions H32, H16 and H8.
    pub fn published(exact: u32, h16: u32) -> Self {
        Preset { register: 16, exact, h32: 0, h16 }
    }

    /// The plan for so many rows. Levels at the bottom that would not fill a SIMD block are trimmed.
    ///
    /// # Errors
    /// If the register size is not valid.
    pub fn plan<K: Key>(&self, rows: usize) -> Result<Plan, Error> {
        if !matches!(self.register, 16 | 32 | 64) {
            return Err(Error::Plan("a SIMD register must have 16, 32 or 64 bytes"));
        }
        let height = usize::BITS - rows.saturating_sub(1).leading_zeros();
        let mut left = height;
        let mut shapes = Vec::new();
        let mut levels = 0;
        // Compression blocks of 8-bit separators have at most 8 levels, because there are 256 codes.
        for (width, wanted, block) in [
            (K::BYTES as u8, self.exact, 4),
            (4, if K::BYTES == 8 { self.h32 } else { 0 }, 4),
            (2, self.h16, 6),
            (1, u32::MAX, 8),
        ] {
            let simd = (self.register as u32 / width as u32).ilog2();
            let mut blocks = wanted.min(left) / simd;
            let deepest = (block / simd).max(1);
            while blocks > 0 {
                let depth = blocks.min(deepest);
                shapes.push(Shape::published(width, self.register, depth as u8));
                (blocks, left, levels) = (blocks - depth, left - depth * simd, levels + depth * simd);
            }
        }
        let slot_rows = rows.div_ceil(1 << levels).max(1);
        Ok(Plan { slot_rows, shapes })
    }
}

/// Candidate shapes of the lowest level.
const BOTTOMS: [Shape; 7] = [
    Shape::line(1),
    Shape::part(1, 32),
    Shape::part(1, 16),
    Shape::line(2),
    Shape::part(2, 32),
    Shape::line(4),
    Shape::line(8),
];
/// Estimated cost in nanoseconds of an additional cache line in a batched search.
const LINE_COST: f64 = 10.0;
/// Estimated cost in nanoseconds of a level in a batched search.
const LEVEL_COST: f64 = 2.0;
/// Candidate slot sizes in cache lines.
const SLOT_LINES: [usize; 5] = [1, 2, 4, 8, 16];
/// Blocks sampled for each candidate level.
const SAMPLE: usize = 128;
/// [`Goal::Smallest`] accepts an estimated cost of this multiple of the lowest one.
const SLOWER: f64 = 1.5;
/// [`Goal::Fastest`] leaves levels uncompressed that take at most this many bytes.
const WHOLE_BYTES: usize = 16 << 10;
/// Additional cache lines per search, on average, that a level above the lowest may cost.
const UPPER_LINES: f64 = 0.02;

/// A candidate for the slot size and the lowest level.
struct Candidate {
    slot_rows: usize,
    shape: Shape,
    bytes: usize,
    /// Estimated nanoseconds of a batched search.
    cost: f64,
}

/// The plans to try, in this order, until one meets the goal.
pub(super) fn choose<K: Key, T: Sorted<K> + ?Sized>(keys: &T, parameters: &Parameters) -> Vec<Plan> {
    let mut candidates = candidates(keys, parameters);
    // Size limits, unless all candidates exceed them: for small trees three quarters of a bit per key, for fast trees
    // half the size of a B+-tree of whole keys in cache lines.
    let most = match parameters.goal {
        Goal::Smallest => keys.len() / 32 * 3,
        Goal::Fastest => keys.len() / 128 * K::BYTES * K::BYTES,
        Goal::Bounded { .. } => usize::MAX,
    };
    if candidates.iter().any(|candidate| candidate.bytes <= most) {
        candidates.retain(|candidate| candidate.bytes <= most);
    }
    let cheapest = candidates.iter().map(|candidate| candidate.cost).fold(f64::INFINITY, f64::min);
    let order = |candidates: &mut Vec<Candidate>, slower: f64| {
        let good = |candidate: &Candidate| candidate.cost <= cheapest * slower;
        candidates.sort_by(|one, other| {
            let by_bytes = one.bytes.cmp(&other.bytes);
            let by_cost = one.cost.total_cmp(&other.cost);
            good(other).cmp(&good(one)).then(if good(one) { by_bytes } else { by_cost })
        });
    };
    match parameters.goal {
        Goal::Fastest => order(&mut candidates, 1.02),
        Goal::Smallest => order(&mut candidates, SLOWER),
        Goal::Bounded { rows } => {
            candidates.retain(|candidate| candidate.slot_rows <= rows);
            candidates.sort_by_key(|candidate| candidate.bytes);
        }
    }
    let small = if parameters.goal == Goal::Fastest { WHOLE_BYTES } else { 0 };
    let mut plans: Vec<Plan> = Vec::new();
    if !matches!(parameters.goal, Goal::Bounded { .. }) {
        // The best candidate within the memory limit, then smaller and slower ones.
        let room = parameters.memory.unwrap_or(usize::MAX);
        candidates.sort_by_key(|candidate| candidate.bytes > room);
        plans.extend(candidates.first().map(|candidate| finish(keys, candidate, small)));
        if parameters.memory.is_some() {
            candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.bytes));
            plans.extend(
                candidates.iter().filter(|candidate| candidate.bytes <= room).map(|other| finish(keys, other, small)),
            );
            let lowest = candidates.last().map_or(1, |candidate| candidate.slot_rows);
            plans.extend((1..24).map(|more| uncompressed::<K>(keys.len(), lowest << more)));
        }
    } else if let Goal::Bounded { rows } = parameters.goal {
        plans.extend(candidates.iter().map(|candidate| finish(keys, candidate, small)));
        // Uncompressed separators cause no overshoot, so that this plan meets any bound.
        plans.push(uncompressed::<K>(keys.len(), rows.max(1)));
    }
    plans
}

/// All candidates with their estimated sizes and costs.
fn candidates<K: Key, T: Sorted<K> + ?Sized>(keys: &T, parameters: &Parameters) -> Vec<Candidate> {
    let per_line = CACHE_LINE_BYTES / K::BYTES;
    let mut slots: Vec<usize> = SLOT_LINES.iter().map(|lines| lines * per_line).collect();
    if let Goal::Bounded { rows } = parameters.goal {
        // A slot of half the bound leaves the other half for overshoots.
        slots.extend([rows, rows / 2, rows / 4].into_iter().filter(|&rows| rows > 16 * per_line));
    }
    let mut candidates = Vec::new();
    for slot_rows in slots {
        for shape in BOTTOMS {
            if shape.check::<K>().is_err() {
                continue;
            }
            let blocks = keys.len().div_ceil(slot_rows).div_ceil(shape.children::<K>());
            // The levels above mostly have 16-bit separators.
            let above = (blocks * CACHE_LINE_BYTES).div_ceil(Shape::line(2).children::<K>());
            let bytes = blocks * shape.simd_bytes as usize + above;
            let overshoot = sample(keys, shape, slot_rows, 1);
            let lines = slot_rows.div_ceil(per_line) as f64;
            let whole = Shape::line(K::BYTES as u8).children::<K>() as f64;
            let levels = 1.0 + (blocks as f64).log(whole).max(0.0).ceil() + f64::from(!shape.exact::<K>());
            let cost = access_cost(bytes, &parameters.caches)
                + validation_cost(lines)
                + LINE_COST * overshoot
                + LEVEL_COST * levels;
            candidates.push(Candidate { slot_rows, shape, bytes, cost });
        }
    }
    candidates
}

/// Estimated nanoseconds to load a random cache line of an array of so many bytes, with many other loads outstanding.
fn access_cost(bytes: usize, caches: &Caches) -> f64 {
    if bytes <= caches.private / 2 {
        1.0
    } else if bytes <= caches.private {
        2.0
    } else if bytes <= caches.shared / 4 {
        3.0
    } else if bytes <= caches.shared {
        5.0
    } else {
        10.0
    }
}

/// Estimated nanoseconds to load and compare the lines of a slot, which the validation narrows down by halving.
fn validation_cost(lines: f64) -> f64 {
    10.0 + 7.0 * lines.log2()
}

/// Completes a candidate to a plan by the levels above the lowest.
fn finish<K: Key, T: Sorted<K> + ?Sized>(keys: &T, candidate: &Candidate, small: usize) -> Plan {
    let mut shapes = vec![candidate.shape];
    let mut span = shapes[0].children::<K>();
    let slots = keys.len().div_ceil(candidate.slot_rows);
    let mut width = candidate.shape.width.max(2);
    while span < slots {
        // Uncompressed levels are the fastest, and are chosen where they are small in relation to the tree.
        let whole = slots.div_ceil(span).div_ceil(Shape::line(K::BYTES as u8).children::<K>()) * CACHE_LINE_BYTES;
        let small = whole <= small.max(candidate.bytes / 64);
        let fits = |width: u8| {
            width as usize == K::BYTES
                || !small && sample(keys, Shape::line(width), candidate.slot_rows, span) <= UPPER_LINES
        };
        while !fits(width) {
            width *= 2;
        }
        let shape = Shape::line(width);
        span = span.saturating_mul(shape.children::<K>());
        shapes.push(shape);
    }
    shapes.reverse();
    Plan { slot_rows: candidate.slot_rows, shapes }
}

/// The plan of a tree of uncompressed levels.
fn uncompressed<K: Key>(rows: usize, slot_rows: usize) -> Plan {
    let shape = Shape::line(K::BYTES as u8);
    let mut shapes = Vec::new();
    let mut span = 1usize;
    while span < rows.div_ceil(slot_rows) {
        span = span.saturating_mul(shape.children::<K>());
        shapes.push(shape);
    }
    Plan { slot_rows, shapes }
}

/// The average number of additional cache lines that searches read after their slots because of overshoots at a level
/// of this shape, estimated from a sample of its blocks.
fn sample<K: Key, T: Sorted<K> + ?Sized>(keys: &T, shape: Shape, slot_rows: usize, span: usize) -> f64 {
    if shape.exact::<K>() || keys.is_empty() {
        return 0.0;
    }
    let slots = keys.len().div_ceil(slot_rows);
    let Some(level) = level_of::<K>(shape, slots.div_ceil(span)) else { return 0.0 };
    let grid = Grid { slot_rows, slots, span };
    let blocks = level.count.min(SAMPLE);
    let mut bytes = vec![0; level.block_bytes];
    let (mut lines, mut rows) = (0.0, 0);
    for number in 0..blocks {
        let block = (number as u128 * level.count as u128 / blocks as u128) as usize;
        fill_block(&level, &grid, keys, block, &mut bytes);
        let present = grid.present(&level, block);
        rows += present * span * slot_rows;
        // Among separators with equal codes, the first one misleads all rows that have that code.
        let mut from = 0;
        for child in 1..present {
            let boundary = (block * level.children + child) * span * slot_rows;
            let to = rows_to(keys, code_end::<K>(&level, &bytes, None, child), boundary);
            // The answer for rows with the key at the boundary is not after the boundary.
            let equal = rows_to(keys, keys.get(boundary).ordered(), boundary);
            let first = from.max(equal).min(to);
            // If the last of these rows have equal keys, the first of them is the answer for all.
            let last = if to > first { first_of(keys, keys.get(to - 1).ordered(), first, to) } else { to };
            lines += lines_past::<K>(last - boundary) - lines_past::<K>(first - boundary);
            lines += (lines_past::<K>(last + 1 - boundary) - lines_past::<K>(last - boundary)) * (to - last) as f64;
            from = to;
        }
    }
    lines / rows.max(1) as f64
}

/// Cache lines that searches for the first `rows` rows after a boundary read after their slots, in total.
fn lines_past<K: Key>(rows: usize) -> f64 {
    let per_line = (CACHE_LINE_BYTES / K::BYTES) as f64;
    let rows = rows as f64;
    let far = (rows - per_line).max(0.0);
    // One additional line counts threefold, because few other searches overlap its latency. Rows further away cost the
    // lines that a galloping search reads.
    3.0 * rows.min(per_line) + far * (6.0 + 2.0 * (far / per_line + 1.0).log2())
}

/// A level of this shape with so many children.
fn level_of<K: Key>(shape: Shape, children: usize) -> Option<Level> {
    let mut shapes = vec![shape];
    let mut span = shape.children::<K>();
    while span < children {
        span = span.saturating_mul(shape.children::<K>());
        shapes.push(shape);
    }
    lay_out::<K>(&shapes, children).ok()?.0.pop()
}

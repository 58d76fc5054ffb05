//! Parameters: the published presets, and those chosen for the keys at hand.
//!
//! What is chosen is the slot (how many cache lines of keys are compared in the end) and, from the bottom up, the width of each
//! level's separators. Narrow separators make small levels with many children, but cannot tell apart keys that are close
//! together in a block that spans much; the searches that they lead astray read further. Both are weighed with a sample of the
//! very keys: for blocks all over the array it is counted how many rows lie behind a boundary whose code they share, and how
//! many more lines that costs. A level of wider separators then stands above each level until one block is left.

use std::sync::OnceLock;

use super::build::{Grid, fill_block};
use super::displacement::{code_end, first_of, rows_to};
use super::level::{Level, Shape, lay_out};
use super::{Sorted, Tree};
use crate::error::Error;
use crate::key::Key;
use crate::memory::LINE;

/// What a tree should be good at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Few bytes, as long as searches take not much longer than they could.
    Smallest,
    /// Fast searches.
    Fastest,
    /// An answer at most so many rows (not 0) behind where the traversal ends: where rows are read from far away, a page of them.
    Bounded {
        /// The bound.
        rows: usize,
    },
}

/// What parameters are chosen by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// What the tree should be good at.
    pub goal: Goal,
    /// Bytes of the tree, at most.
    pub memory: Option<usize>,
    /// The caches it will be searched with.
    pub caches: Caches,
}

impl Settings {
    /// Settings with a goal, for this machine.
    pub fn new(goal: Goal) -> Self {
        Settings { goal, memory: None, caches: Caches::detect() }
    }

    /// The same with a limit to the tree's bytes.
    pub fn memory(self, bytes: usize) -> Self {
        Settings { memory: Some(bytes), ..self }
    }

    pub(super) fn met_by<K: Key>(&self, tree: &Tree<K>) -> bool {
        let bounded = match self.goal {
            Goal::Bounded { rows } => tree.reach <= rows,
            _ => true,
        };
        bounded && self.memory.is_none_or(|memory| tree.bytes() <= memory)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings::new(Goal::Fastest)
    }
}

/// Bytes of the caches that a search can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches {
    /// A processor's own.
    pub private: usize,
    /// The one that all share.
    pub shared: usize,
}

impl Caches {
    /// Those of this machine, or ordinary ones if it does not tell.
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

/// Parameters of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Rows of a slot.
    pub slot_rows: usize,
    /// The levels of compression blocks, from the root.
    pub shapes: Vec<Shape>,
}

/// Heights as in the publication, in levels of a binary tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Bytes of a SIMD register: 16, 32 or 64.
    pub register: u8,
    /// Height of the uncompressed region, H64 or H32.
    pub exact: u32,
    /// Height of the region H32 of 64-bit keys (0 for 32-bit keys).
    pub h32: u32,
    /// Height of the region H16. H8 gets what is left.
    pub h16: u32,
}

impl Preset {
    /// The published parameters for 128-bit registers: SIMD blocks of 2, 3 and 4 levels in compression blocks of 4, 6 and 8.
    pub fn published(exact: u32, h16: u32) -> Self {
        Preset { register: 16, exact, h32: 0, h16 }
    }

    /// The plan for so many rows. What is left at the bottom and would not fill a SIMD block is trimmed.
    pub fn plan<K: Key>(&self, rows: usize) -> Result<Plan, Error> {
        if !matches!(self.register, 16 | 32 | 64) {
            return Err(Error::Plan("a SIMD register has 16, 32 or 64 bytes"));
        }
        let height = usize::BITS - rows.saturating_sub(1).leading_zeros();
        let mut left = height;
        let mut shapes = Vec::new();
        let mut levels = 0;
        // Compression blocks of 8-bit separators are not higher than 8 levels: there are no more codes than that.
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

/// Shapes of the lowest level that are considered.
const BOTTOMS: [Shape; 7] = [
    Shape::line(1),
    Shape::part(1, 32),
    Shape::part(1, 16),
    Shape::line(2),
    Shape::part(2, 32),
    Shape::line(4),
    Shape::line(8),
];
/// Nanoseconds for a line more, in a search among many.
const LINE_MORE: f64 = 10.0;
/// Nanoseconds for a level, in a search among many.
const LEVEL: f64 = 2.0;
/// Lines of a slot that are considered.
const LINES: [usize; 5] = [1, 2, 4, 8, 16];
/// Blocks that are looked at for each level considered.
const SAMPLE: usize = 128;
/// How much longer than the fastest of the small ones the smallest may take, by the estimate.
const SLOWER: f64 = 1.5;
/// Bytes of an uncompressed level that are small in any case, where few bytes are not the goal.
const WHOLE_BYTES: usize = 16 << 10;
/// More lines to read for a search, on average, that levels above the lowest may cost.
const UPPER_LINES: f64 = 0.02;

/// A bottom level that is considered.
struct Candidate {
    slot_rows: usize,
    shape: Shape,
    bytes: usize,
    /// Estimated nanoseconds of a search among many.
    cost: f64,
}

/// Plans to be tried in this order until one meets the goal.
pub(super) fn choose<K: Key, T: Sorted<K> + ?Sized>(keys: &T, settings: &Settings) -> Vec<Plan> {
    let mut candidates = candidates(keys, settings);
    // Small is less than three quarters of a bit for each key, and fast is not at the price of more than half the bytes of a
    // B+-tree of whole keys in cache lines; if anything is.
    let most = match settings.goal {
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
    match settings.goal {
        Goal::Fastest => order(&mut candidates, 1.02),
        Goal::Smallest => order(&mut candidates, SLOWER),
        Goal::Bounded { rows } => {
            candidates.retain(|candidate| candidate.slot_rows <= rows);
            candidates.sort_by_key(|candidate| candidate.bytes);
        }
    }
    let small = if settings.goal == Goal::Fastest { WHOLE_BYTES } else { 0 };
    let mut plans: Vec<Plan> = Vec::new();
    if !matches!(settings.goal, Goal::Bounded { .. }) {
        // The first that has room enough, and if none has, smaller and slower ones.
        let room = settings.memory.unwrap_or(usize::MAX);
        candidates.sort_by_key(|candidate| candidate.bytes > room);
        plans.extend(candidates.first().map(|candidate| finish(keys, candidate, small)));
        if settings.memory.is_some() {
            candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.bytes));
            plans.extend(
                candidates.iter().filter(|candidate| candidate.bytes <= room).map(|other| finish(keys, other, small)),
            );
            let lowest = candidates.last().map_or(1, |candidate| candidate.slot_rows);
            plans.extend((1..24).map(|more| uncompressed::<K>(keys.len(), lowest << more)));
        }
    } else if let Goal::Bounded { rows } = settings.goal {
        plans.extend(candidates.iter().map(|candidate| finish(keys, candidate, small)));
        // Whole keys lead astray by nothing: this meets any bound.
        plans.push(uncompressed::<K>(keys.len(), rows.max(1)));
    }
    plans
}

/// All bottom levels that are considered, with what they would cost.
fn candidates<K: Key, T: Sorted<K> + ?Sized>(keys: &T, settings: &Settings) -> Vec<Candidate> {
    let per_line = LINE / K::BYTES;
    let mut slots: Vec<usize> = LINES.iter().map(|lines| lines * per_line).collect();
    if let Goal::Bounded { rows } = settings.goal {
        // Half a bound leaves the other half for the displacement.
        slots.extend([rows, rows / 2, rows / 4].into_iter().filter(|&rows| rows > 16 * per_line));
    }
    let mut candidates = Vec::new();
    for slot_rows in slots {
        for shape in BOTTOMS {
            if shape.check::<K>().is_err() {
                continue;
            }
            let blocks = keys.len().div_ceil(slot_rows).div_ceil(shape.children::<K>());
            // Above them there are levels of 16-bit separators, mostly.
            let above = (blocks * LINE).div_ceil(Shape::line(2).children::<K>());
            let bytes = blocks * shape.simd_bytes as usize + above;
            let past = sample(keys, shape, slot_rows, 1);
            let lines = slot_rows.div_ceil(per_line) as f64;
            let whole = Shape::line(K::BYTES as u8).children::<K>() as f64;
            let levels = 1.0 + (blocks as f64).log(whole).max(0.0).ceil() + f64::from(!shape.exact::<K>());
            let cost = access(bytes, &settings.caches) + validation(lines) + LINE_MORE * past + LEVEL * levels;
            candidates.push(Candidate { slot_rows, shape, bytes, cost });
        }
    }
    candidates
}

/// Nanoseconds to get a random line of so many bytes, among many others that are under way.
fn access(bytes: usize, caches: &Caches) -> f64 {
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

/// Nanoseconds to get and compare the lines of a slot, which is narrowed down by halving.
fn validation(lines: f64) -> f64 {
    10.0 + 7.0 * lines.log2()
}

/// The levels above a bottom level.
fn finish<K: Key, T: Sorted<K> + ?Sized>(keys: &T, candidate: &Candidate, small: usize) -> Plan {
    let mut shapes = vec![candidate.shape];
    let mut span = shapes[0].children::<K>();
    let slots = keys.len().div_ceil(candidate.slot_rows);
    let mut width = candidate.shape.width.max(2);
    while span < slots {
        // Whole keys are compared soonest: they are taken for levels that are small all the same.
        let whole = slots.div_ceil(span).div_ceil(Shape::line(K::BYTES as u8).children::<K>()) * LINE;
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

/// A tree of whole keys.
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

/// Lines to read behind the slot for a search, on average, that a level of the given shape costs; from some of its blocks.
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
        // Of separators with equal codes, the first leads all rows astray that have that code.
        let mut from = 0;
        for child in 1..present {
            let boundary = (block * level.children + child) * span * slot_rows;
            let to = rows_to(keys, code_end::<K>(&level, &bytes, None, child), boundary);
            // The answer for rows that equal the one at the boundary is not behind it.
            let equal = rows_to(keys, keys.get(boundary).ordered(), boundary);
            let first = from.max(equal).min(to);
            // And of as many equal ones as there may be at the end, the first is the answer for all.
            let last = if to > first { first_of(keys, keys.get(to - 1).ordered(), first, to) } else { to };
            lines += lines_past::<K>(last - boundary) - lines_past::<K>(first - boundary);
            lines += (lines_past::<K>(last + 1 - boundary) - lines_past::<K>(last - boundary)) * (to - last) as f64;
            from = to;
        }
    }
    lines / rows.max(1) as f64
}

/// Lines that the first rows behind a boundary cost, all together.
fn lines_past<K: Key>(rows: usize) -> f64 {
    let per_line = (LINE / K::BYTES) as f64;
    let rows = rows as f64;
    let far = (rows - per_line).max(0.0);
    // One more line each, but late, when no other searches are left to wait with; and for those further away a few more, as
    // many as steps of growing length look at.
    3.0 * rows.min(per_line) + far * (6.0 + 2.0 * (far / per_line + 1.0).log2())
}

/// A single level of a shape in the line layout.
fn level_of<K: Key>(shape: Shape, children: usize) -> Option<Level> {
    let mut shapes = vec![shape];
    let mut span = shape.children::<K>();
    while span < children {
        span = span.saturating_mul(shape.children::<K>());
        shapes.push(shape);
    }
    lay_out::<K>(&shapes, children).ok()?.0.pop()
}

//! The tree: separators of a sorted sequence of integers, compressed, in a layout for SIMD instructions.
//!
//! A tree does not have the keys. It leads from a key to a *slot*, a group of `slot_rows` neighbouring rows, and the answer is
//! then found among the keys themselves, wherever they are.

mod build;
mod descend;
mod displacement;
mod level;
mod plan;
mod search;
mod serial;
mod validate;

pub use displacement::{Displacement, RegionDisplacement};
pub use level::Shape;
pub use plan::{Caches, Goal, Plan, Preset, Settings};
pub(crate) use validate::Plain;

use std::marker::PhantomData;

use bytes::Bytes;

use crate::key::Key;
use crate::simd::Instructions;
use level::Level;

/// A compressed search tree over sorted keys that are somewhere else.
///
/// Cloning it shares its memory.
#[derive(Clone, Debug)]
pub struct Tree<K: Key> {
    levels: Vec<Level>,
    bytes: Bytes,
    /// Rows below the tree, rows of a slot, slots.
    rows: usize,
    slot_rows: usize,
    slots: usize,
    /// Cache lines that a slot takes at most, if it begins with one.
    window_lines: usize,
    /// Levels from the root on that are lines of whole keys.
    whole_levels: usize,
    /// The answer is at most so many rows behind the beginning of the slot.
    reach: usize,
    displacement: Displacement,
    instructions: Instructions,
    _keys: PhantomData<K>,
}

/// Keys in sorted order that are read row by row.
///
/// The order is trusted where a tree is built: other orders give a tree with wrong answers, but nothing worse.
pub trait Sorted<K: Key>: Sync {
    /// Number of keys.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key of a row below the length.
    fn get(&self, row: usize) -> K;
}

impl<K: Key> Sorted<K> for [K] {
    fn len(&self) -> usize {
        <[K]>::len(self)
    }

    fn get(&self, row: usize) -> K {
        self[row]
    }
}

impl<K: Key> Tree<K> {
    /// Rows below the tree.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Bytes of the tree.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Bits of the tree for each row.
    pub fn bits_per_row(&self) -> f64 {
        if self.rows == 0 { 0.0 } else { self.bytes.len() as f64 * 8.0 / self.rows as f64 }
    }

    /// The parameters it was built with.
    pub fn plan(&self) -> Plan {
        Plan { slot_rows: self.slot_rows, shapes: self.levels.iter().map(|level| level.shape).collect() }
    }

    /// How far answers are from where the traversal ends: exact, found at construction.
    pub fn displacement(&self) -> &Displacement {
        &self.displacement
    }

    /// The instructions that it is searched with.
    pub fn instructions(&self) -> Instructions {
        self.instructions
    }

    /// The same tree searched with other instructions.
    pub fn with_instructions(mut self, instructions: Instructions) -> Self {
        self.instructions = instructions;
        self
    }

    fn assemble(plan: &Plan, rows: usize) -> Result<Assembled, &'static str> {
        if plan.slot_rows == 0 {
            return Err("a slot has no rows");
        }
        let slots = rows.div_ceil(plan.slot_rows);
        let (levels, length) = level::lay_out::<K>(&plan.shapes, slots)?;
        let window_lines = plan.slot_rows.div_ceil(crate::memory::LINE / K::BYTES);
        let whole = Shape::line(K::BYTES as u8);
        let whole_levels = plan.shapes.iter().take_while(|shape| **shape == whole).count();
        Ok(Assembled { levels, length, slots, window_lines, whole_levels })
    }
}

/// What follows from a plan and a number of rows.
struct Assembled {
    levels: Vec<Level>,
    length: usize,
    slots: usize,
    window_lines: usize,
    whole_levels: usize,
}

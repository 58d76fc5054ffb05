//! The tree: compressed separators of a sorted sequence of integers, in a layout for SIMD instructions.
//!
//! A tree does not contain the keys. It leads from a search key to a *slot*, a group of `slot_rows` consecutive rows.
//! The answer is then found in the keys themselves, which the caller stores.

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
pub use plan::{Caches, Goal, Parameters, Plan, Preset};
pub(crate) use validate::PlainKeys;

use std::marker::PhantomData;

use bytes::Bytes;
use keyaki_primitives::CACHE_LINE_BYTES;

use crate::key::Key;
use crate::simd::Instructions;
use level::Level;

/// A compressed search tree over sorted keys that are stored elsewhere.
///
/// A clone shares the memory.
#[derive(Clone, Debug)]
pub struct Tree<K: Key> {
    levels: Vec<Level>,
    bytes: Bytes,
    /// Number of rows below the tree.
    rows: usize,
    /// Rows of a slot. The last slot may have fewer.
    slot_rows: usize,
    slots: usize,
    /// Cache lines of a slot that begins at the start of a line.
    window_lines: usize,
    /// Number of levels, from the root on, that are cache lines of uncompressed keys.
    whole_levels: usize,
    /// Upper bound of the distance in rows from the beginning of a slot to the answer.
    reach: usize,
    displacement: Displacement,
    instructions: Instructions,
    _keys: PhantomData<K>,
}

impl<K: Key> Tree<K> {
    /// The number of rows below the tree.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Size of the tree in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Size of the tree in bits per row; 0 if there are no rows.
    pub fn bits_per_row(&self) -> f64 {
        if self.rows == 0 { 0.0 } else { self.bytes.len() as f64 * 8.0 / self.rows as f64 }
    }

    /// The plan that the tree was built with.
    pub fn plan(&self) -> Plan {
        Plan { slot_rows: self.slot_rows, shapes: self.levels.iter().map(|level| level.shape).collect() }
    }

    /// The distances between answers and the slots in which the traversal ends, computed exactly at construction.
    pub fn displacement(&self) -> &Displacement {
        &self.displacement
    }

    /// The instruction set that searches use.
    pub fn instructions(&self) -> Instructions {
        self.instructions
    }

    /// Selects the instruction set that searches use.
    pub fn with_instructions(mut self, instructions: Instructions) -> Self {
        self.instructions = instructions;
        self
    }

    fn lay_out(plan: &Plan, rows: usize) -> Result<Layout, &'static str> {
        if plan.slot_rows == 0 {
            return Err("a slot must have at least one row");
        }
        let slots = rows.div_ceil(plan.slot_rows);
        let (levels, bytes) = level::lay_out::<K>(&plan.shapes, slots)?;
        let window_lines = plan.slot_rows.div_ceil(CACHE_LINE_BYTES / K::BYTES);
        let whole = Shape::line(K::BYTES as u8);
        let whole_levels = plan.shapes.iter().take_while(|shape| **shape == whole).count();
        Ok(Layout { levels, bytes, slots, window_lines, whole_levels })
    }
}

/// The layout of a tree, which follows from its plan and the number of rows. See [`Tree`] for the fields.
struct Layout {
    levels: Vec<Level>,
    bytes: usize,
    slots: usize,
    window_lines: usize,
    whole_levels: usize,
}

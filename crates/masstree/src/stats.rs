//! What a map is made of.

use crate::guard::pin;
use crate::map::Masstree;
use crate::node::{LAYER, Node};
use crate::value::Value;

/// Bytes of a map. Values behind pointers are not among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// In nodes and suffixes, with those that wait for readers to let go of them.
    pub used_bytes: usize,
    /// Taken from the system.
    pub reserved_bytes: usize,
}

/// The shape of a map, as far as it was when it was walked through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    pub keys: usize,
    /// B+-trees: one for each slice that several keys share and go on after, and the first.
    pub layers: usize,
    pub layers_deepest: usize,
    /// Levels of the first layer's tree.
    pub depth: usize,
    pub border_nodes: usize,
    pub interior_nodes: usize,
}

impl<V: Value> Masstree<V> {
    /// Bytes in use and reserved.
    pub fn memory(&self) -> Memory {
        let (used_bytes, reserved_bytes) = self.tree.arena.bytes();
        Memory { used_bytes, reserved_bytes }
    }

    /// Walks through all nodes. Exclusive access: nobody writes meanwhile.
    pub fn shape(&mut self) -> Shape {
        let _guard = pin();
        let mut shape = Shape::default();
        self.tree.visit_nodes(|node, layer| {
            shape.layers_deepest = shape.layers_deepest.max(layer + 1);
            shape.layers += usize::from(node.version().stable().is_root());
            match node {
                Node::Interior(_) => shape.interior_nodes += 1,
                Node::Border(border) => {
                    shape.border_nodes += 1;
                    shape.keys += border.permutation().slots().filter(|&slot| border.code(slot) != LAYER).count();
                }
            }
        });
        shape.depth = self.tree.depth();
        shape
    }
}

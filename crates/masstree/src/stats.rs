//! Statistics: memory, and the shape of the trie and its trees.

use crate::guard::pin;
use crate::map::Masstree;
use crate::node::{LAYER, Node, View, WIDTH};
use crate::tree::Tree;
use crate::value::Value;

/// Memory of a map in bytes, without the values behind pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of nodes and suffixes, including retired ones that readers may still see.
    pub used_bytes: usize,
    /// Bytes taken from the system.
    pub reserved_bytes: usize,
}

/// The shape of a map, or of one of its layers. See [`Masstree::shape`] about concurrent writers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    /// Keys, that is entries of border nodes that hold values.
    pub keys: usize,
    /// B+-trees: the first layer's, and one for each slice that several keys share and after which they continue.
    pub layers: usize,
    /// Layers of the trie from the first to the deepest; 1 in a layer's own shape.
    pub layers_deepest: usize,
    /// Levels of the first layer's tree; in a layer's own shape, of its deepest tree.
    pub depth: usize,
    /// Border nodes, which hold entries.
    pub border_nodes: usize,
    /// Interior nodes, which hold separator slices and children.
    pub interior_nodes: usize,
    /// Entries of border nodes that lead to the next layer.
    pub links: usize,
    /// Entries that the border nodes can hold.
    pub slots: usize,
    /// Children of the interior nodes.
    pub children: usize,
}

impl Shape {
    /// Fraction of the border nodes' slots that are in use.
    pub fn border_fill(&self) -> f64 {
        (self.keys + self.links) as f64 / self.slots.max(1) as f64
    }

    /// Fraction of the interior nodes' child slots that are in use.
    pub fn interior_fill(&self) -> f64 {
        self.children as f64 / (self.interior_nodes * (WIDTH + 1)).max(1) as f64
    }
}

impl<V: Value> Masstree<V> {
    /// Memory in use and reserved.
    pub fn memory(&self) -> Memory {
        let (used_bytes, reserved_bytes) = self.tree.arena.bytes();
        Memory { used_bytes, reserved_bytes }
    }

    /// Counts nodes and entries by visiting all nodes, with the calling thread pinned.
    ///
    /// If no other thread writes, all numbers are exact. Otherwise each node is counted at most once, as of one moment.
    /// Nodes that are in the map all the time and whose ancestors are not split are counted. Nodes that are made, split
    /// off or unlinked meanwhile may be counted or not.
    pub fn shape(&self) -> Shape {
        let layers = self.shape_by_layer();
        let mut shape = Shape { layers_deepest: layers.len(), depth: layers[0].depth, ..Shape::default() };
        for layer in &layers {
            shape.keys += layer.keys;
            shape.layers += layer.layers;
            shape.border_nodes += layer.border_nodes;
            shape.interior_nodes += layer.interior_nodes;
            shape.links += layer.links;
            shape.slots += layer.slots;
            shape.children += layer.children;
        }
        shape
    }

    /// As [`shape`](Self::shape), for each layer of the trie: first the tree of the keys' bytes 0 to 7, then all trees
    /// of their bytes 8 to 15, and so on. There is at least the first layer.
    pub fn shape_by_layer(&self) -> Vec<Shape> {
        self.tree.shape_by_layer()
    }
}

impl Tree {
    fn shape_by_layer(&self) -> Vec<Shape> {
        let _guard = pin();
        let mut shapes = vec![Shape { layers: 1, layers_deepest: 1, ..Shape::default() }];
        // Word, layer and level of each node still to be visited.
        let mut pending = vec![(self.root_word(), 0, 1)];
        while let Some((word, layer, level)) = pending.pop() {
            // SAFETY: the word was that of a root or a child when its parent was read, and the thread is pinned.
            let Some(view) = (unsafe { Node::from_word(word) }).view() else { continue };
            let shape = &mut shapes[layer];
            shape.depth = shape.depth.max(level);
            match view {
                View::Interior(interior) => {
                    shape.interior_nodes += 1;
                    shape.children += interior.count + 1;
                    let children = interior.children[..=interior.count].iter().rev();
                    pending.extend(children.map(|&child| (child, layer, level + 1)));
                }
                View::Border(border) => {
                    let links: Vec<u64> =
                        (0..border.count).filter(|&i| border.codes[i] == LAYER).map(|i| border.words[i]).collect();
                    shape.border_nodes += 1;
                    shape.slots += border.width;
                    shape.keys += border.count - links.len();
                    shape.links += links.len();
                    if !links.is_empty() {
                        if shapes.len() == layer + 1 {
                            shapes.push(Shape { layers_deepest: 1, ..Shape::default() });
                        }
                        shapes[layer + 1].layers += links.len();
                        pending.extend(links.into_iter().rev().map(|root| (root, layer + 1, 1)));
                    }
                }
            }
        }
        shapes
    }
}

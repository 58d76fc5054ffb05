//! Checks of the structural invariants of a tree that no thread is writing to.

use crate::guard::pin;
use crate::node::{Border, Interior, LAYER, Node, rank};
use crate::tree::Tree;

impl Tree {
    /// Checks the whole structure. Returns the number of keys.
    pub fn check(&self) -> usize {
        let _guard = pin();
        let mut keys = 0;
        // Roots and the numbers of their layers. A stack, because there may be very many layers.
        let mut pending = vec![(self.root_word(), 0)];
        while let Some((root, layer)) = pending.pop() {
            keys += self.check_layer(root, layer, &mut pending);
        }
        assert_eq!(keys, self.len());
        keys
    }

    fn check_layer(&self, root: u64, layer: usize, pending: &mut Vec<(u64, usize)>) -> usize {
        // SAFETY: no thread writes, so that every word in the tree is that of a node.
        let node = unsafe { Node::from_word(root) };
        assert!(node.version().stable().is_root());
        let mut borders = Vec::new();
        self.check_node(node, None, None, &mut borders);
        assert!(borders.iter().all(|border| border.width() == 15) || borders.len() == 1);
        let mut keys = 0;
        let mut previous = None;
        for (i, border) in borders.iter().enumerate() {
            assert!(border.previous() == previous, "the left neighbour");
            previous = Some(*border);
            assert!(border.next() == borders.get(i + 1).copied(), "the right neighbour");
            let permutation = border.permutation();
            assert!(permutation.count() > 0 || layer == 0 && borders.len() == 1, "emptied nodes are unlinked");
            for slot in permutation.slots() {
                match border.code(slot) {
                    LAYER => pending.push((border.value(slot), layer + 1)),
                    0 => {
                        assert_eq!(layer, 0, "only the empty key ends before its first byte");
                        keys += 1;
                    }
                    _ => keys += 1,
                }
            }
        }
        keys
    }

    fn check_node<'g>(&self, node: Node<'g>, from: Option<u64>, to: Option<u64>, borders: &mut Vec<Border<'g>>) {
        match node {
            Node::Interior(interior) => self.check_interior(interior, from, to, borders),
            Node::Border(border) => {
                let order: Vec<_> =
                    border.permutation().slots().map(|slot| (border.slice(slot), rank(border.code(slot)))).collect();
                assert!(order.is_sorted_by(|a, b| a < b), "{order:?}");
                assert!(order.iter().all(|&(slice, _)| from.is_none_or(|from| from <= slice)));
                assert!(order.iter().all(|&(slice, _)| to.is_none_or(|to| slice < to)));
                borders.push(border);
            }
        }
    }

    fn check_interior<'g>(
        &self,
        interior: Interior<'g>,
        from: Option<u64>,
        to: Option<u64>,
        borders: &mut Vec<Border<'g>>,
    ) {
        let count = interior.version().stable().count();
        let slices: Vec<u64> = (0..count).map(|i| interior.slice(i)).collect();
        assert!(slices.is_sorted_by(|a, b| a < b));
        for i in 0..=count {
            let from = if i == 0 { from } else { Some(slices[i - 1]) };
            let to = if i == count { to } else { Some(slices[i]) };
            // SAFETY: no thread writes, so that every word in the tree is that of a node.
            let child = unsafe { Node::from_word(interior.child(i)) };
            assert!(!child.version().stable().is_root());
            self.check_node(child, from, to, borders);
        }
    }
}

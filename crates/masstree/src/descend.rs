//! Descents without locks: from a layer's root to the border node for a slice, and from the first layer to a key's
//! layer.
//!
//! Each step is hand over hand: it takes a stable version of the child before it checks that the parent has not changed
//! since the child was chosen. Under that version the child is responsible for the slice. If a node on the way was
//! split, or a root was replaced, the search restarts from the top, which is rare.

use crate::guard::Guard;
use crate::key::Cursor;
use crate::node::{Border, Interior, Lookup, Node, Permutation, VersionSnapshot, prefetch_node};
use crate::tree::Tree;

/// A concurrent change has invalidated the nodes read so far: the caller restarts from the top.
#[derive(Debug)]
pub(crate) struct Restart;

/// The border node responsible for a slice, and the version under which it is.
#[inline]
pub(crate) fn descend<'g>(root: Node<'g>, slice: u64) -> Result<(Border<'g>, VersionSnapshot), Restart> {
    descend_with_ancestors(root, slice).map(|(border, observed, _)| (border, observed))
}

/// The parent of a border node, and the parent's parent.
pub(crate) type Ancestors<'g> = [Option<Interior<'g>>; 2];

/// As [`descend`], with the border node's ancestors.
#[inline]
pub(crate) fn descend_with_ancestors<'g>(
    root: Node<'g>,
    slice: u64,
) -> Result<(Border<'g>, VersionSnapshot, Ancestors<'g>), Restart> {
    let mut node = root;
    let mut ancestors = [None; 2];
    let mut observed = node.version().stable();
    if !observed.is_root() || observed.is_deleted() {
        return Err(Restart);
    }
    loop {
        let interior = match node {
            Node::Border(border) => return Ok((border, observed, ancestors)),
            Node::Interior(interior) => interior,
        };
        let word = interior.child_for(slice, observed);
        if word != 0 {
            prefetch_node(word);
            // SAFETY: a child word at a position up to the count in `observed` is that of a node that has been a child
            // since then. The guard behind 'g keeps it allocated, see the module about interior nodes.
            let child = unsafe { Node::from_word(word) };
            let child_observed = child.version().stable();
            if !interior.version().changed(observed) {
                node = child;
                observed = child_observed;
                ancestors = [Some(interior), ancestors[0]];
                continue;
            }
        }
        let now = interior.version().stable();
        if observed.keys_left(now) || now.is_root() != observed.is_root() {
            return Err(Restart);
        }
        observed = now;
    }
}

/// Looks up a key in a border node, consistently. Returns the permutation and the version that the result belongs to.
#[inline]
pub(crate) fn lookup<'g>(
    border: Border<'g>,
    mut observed: VersionSnapshot,
    key: &Cursor<'_>,
    slice: u64,
) -> Result<(Lookup, Permutation, VersionSnapshot), Restart> {
    loop {
        let permutation = border.permutation();
        let found = border.lookup(key, slice, permutation);
        if observed.is_deleted() {
            return Err(Restart);
        }
        if !border.version().changed(observed) {
            return Ok((found, permutation, observed));
        }
        let now = border.stable();
        if observed.keys_left(now) {
            return Err(Restart);
        }
        observed = now;
    }
}

/// The location of a key, present or not: the border node responsible for it in the last layer on its way.
#[derive(Clone, Copy)]
pub(crate) struct KeyLocation<'g, 'k> {
    /// The key, in the layer of the node.
    pub key: Cursor<'k>,
    pub slice: u64,
    pub border: Border<'g>,
    /// The node's version when the key was looked up.
    pub observed: VersionSnapshot,
    /// The node's permutation when the key was looked up.
    pub permutation: Permutation,
    pub found: Lookup,
}

impl Tree {
    /// Locates a key.
    #[inline]
    pub fn locate<'g, 'k>(&self, key: &'k [u8], guard: &'g Guard) -> KeyLocation<'g, 'k> {
        loop {
            if let Ok(location) = self.try_locate(key, usize::MAX, guard) {
                return location;
            }
        }
    }

    /// Locates the entry of a layer that leads to the next layer on a key's way; `None` if there is none any more.
    pub fn locate_link<'g, 'k>(&self, key: &'k [u8], layer: usize, guard: &'g Guard) -> Option<KeyLocation<'g, 'k>> {
        loop {
            if let Ok(location) = self.try_locate(key, layer, guard) {
                let is_link = matches!(location.found, Lookup::Layer { .. }) && location.key.layer() == layer;
                return is_link.then_some(location);
            }
        }
    }

    #[inline]
    fn try_locate<'g, 'k>(
        &self,
        key: &'k [u8],
        last_layer: usize,
        guard: &'g Guard,
    ) -> Result<KeyLocation<'g, 'k>, Restart> {
        let mut key = Cursor::new(key);
        let mut root = self.root(guard);
        loop {
            let slice = key.slice();
            let (border, observed) = descend(root, slice)?;
            let (found, permutation, observed) = lookup(border, observed, &key, slice)?;
            match found {
                Lookup::Layer { word, .. } if key.layer() < last_layer => {
                    prefetch_node(word);
                    // SAFETY: the word was the root of a layer when the node was read consistently. The guard keeps it
                    // allocated.
                    root = unsafe { Node::from_word(word) };
                    key.advance();
                }
                _ => return Ok(KeyLocation { key, slice, border, observed, permutation, found }),
            }
        }
    }

    /// The word of a key's value.
    #[inline]
    pub fn get(&self, key: &[u8], guard: &Guard) -> Option<u64> {
        match self.locate(key, guard).found {
            Lookup::Value { word, .. } => Some(word),
            _ => None,
        }
    }
}

//! Descents without locks: from a layer's root to the border node for a slice, and from the first layer to a key's.
//!
//! Each step takes a child's version before it checks that the parent is still what it was when the child was chosen, so
//! that the child's version is one under which it was responsible for the slice. A split on the way, or a root that has
//! been replaced, starts the whole search again: that is rare, and simple.

use crate::guard::Guard;
use crate::key::Cursor;
use crate::node::{Border, Interior, Lookup, Node, Permutation, Seen, prefetch_node};
use crate::tree::Tree;

/// What was read is out of date: begin again at the top.
#[derive(Debug)]
pub(crate) struct Restart;

/// The border node responsible for a slice, and the version under which it is.
#[inline]
pub(crate) fn descend<'g>(root: Node<'g>, slice: u64) -> Result<(Border<'g>, Seen), Restart> {
    descend_by(root, slice).map(|(border, seen, _)| (border, seen))
}

/// The interior nodes above a border node: its parent, and the parent's.
pub(crate) type Ancestors<'g> = [Option<Interior<'g>>; 2];

/// As [`descend`], with the border node's ancestors.
#[inline]
pub(crate) fn descend_by<'g>(root: Node<'g>, slice: u64) -> Result<(Border<'g>, Seen, Ancestors<'g>), Restart> {
    let mut node = root;
    let mut ancestors = [None; 2];
    let mut seen = node.version().stable();
    if !seen.is_root() || seen.is_deleted() {
        return Err(Restart);
    }
    loop {
        let interior = match node {
            Node::Border(border) => return Ok((border, seen, ancestors)),
            Node::Interior(interior) => interior,
        };
        let word = interior.child_for(slice, seen);
        if word != 0 {
            prefetch_node(word);
            // SAFETY: a word at or below the count in `seen` is of a node that was a child since then: the guard behind 'g
            // keeps it allocated (see the module about interior nodes).
            let child = unsafe { Node::from_word(word) };
            let child_seen = child.version().stable();
            if !interior.version().changed(seen) {
                node = child;
                seen = child_seen;
                ancestors = [Some(interior), ancestors[0]];
                continue;
            }
        }
        let now = interior.version().stable();
        if seen.moved_on(now) || now.is_root() != seen.is_root() {
            return Err(Restart);
        }
        seen = now;
    }
}

/// What a border node says about a key, of one moment.
#[inline]
pub(crate) fn look<'g>(
    border: Border<'g>,
    mut seen: Seen,
    key: &Cursor<'_>,
    slice: u64,
) -> Result<(Lookup, Permutation, Seen), Restart> {
    loop {
        let permutation = border.permutation();
        let found = border.lookup(key, slice, permutation);
        if seen.is_deleted() {
            return Err(Restart);
        }
        if !border.version().changed(seen) {
            return Ok((found, permutation, seen));
        }
        let now = border.stable();
        if seen.moved_on(now) {
            return Err(Restart);
        }
        seen = now;
    }
}

/// Where a key is, or would be: the last layer on its way.
#[derive(Clone, Copy)]
pub(crate) struct Place<'g, 'k> {
    pub key: Cursor<'k>,
    pub slice: u64,
    pub border: Border<'g>,
    pub seen: Seen,
    /// What the node had when it was looked at.
    pub permutation: Permutation,
    pub found: Lookup,
}

impl Tree {
    /// Finds the place of a key.
    #[inline]
    pub fn find<'g, 'k>(&self, key: &'k [u8], guard: &'g Guard) -> Place<'g, 'k> {
        loop {
            if let Ok(place) = self.try_find(key, usize::MAX, guard) {
                return place;
            }
        }
    }

    /// Finds the entry, in a layer above a key's last, that leads to the next layer on its way. `None` if there is none any
    /// more.
    pub fn find_layer<'g, 'k>(&self, key: &'k [u8], layer: usize, guard: &'g Guard) -> Option<Place<'g, 'k>> {
        loop {
            if let Ok(place) = self.try_find(key, layer, guard) {
                let leads_on = matches!(place.found, Lookup::Layer { .. }) && place.key.layer() == layer;
                return leads_on.then_some(place);
            }
        }
    }

    #[inline]
    fn try_find<'g, 'k>(&self, key: &'k [u8], last: usize, guard: &'g Guard) -> Result<Place<'g, 'k>, Restart> {
        let mut key = Cursor::new(key);
        let mut root = self.root(guard);
        loop {
            let slice = key.slice();
            let (border, seen) = descend(root, slice)?;
            let (found, permutation, seen) = look(border, seen, &key, slice)?;
            match found {
                Lookup::Layer { word, .. } if key.layer() < last => {
                    prefetch_node(word);
                    // SAFETY: the word was the root of a layer in a state of the node that was current when looked at; the
                    // guard keeps it allocated.
                    root = unsafe { Node::from_word(word) };
                    key.advance();
                }
                _ => return Ok(Place { key, slice, border, seen, permutation, found }),
            }
        }
    }

    /// The word of a key's value.
    #[inline]
    pub fn get(&self, key: &[u8], guard: &Guard) -> Option<u64> {
        match self.find(key, guard).found {
            Lookup::Value { word, .. } => Some(word),
            _ => None,
        }
    }
}

//! Batched lookups: several descents take turns, so that while one waits for its next node the others work.
//!
//! A lookup alone spends most of its time waiting for memory. Here each step asks for the node it leads to, and the next step of the
//! same descent comes after a step of each of the others: by then the node has arrived.

use crate::descend::{Restart, look};
use crate::guard::Guard;
use crate::key::Cursor;
use crate::map::Masstree;
use crate::node::{Interior, Lookup, Node, Seen, prefetch_node};
use crate::tree::Tree;
use crate::value::Value;

/// Descents that take turns: more than a memory access has steps' time, fewer than the lines that can be under way.
const LANES: usize = 12;

/// A descent.
#[derive(Clone, Copy)]
struct Lane<'g, 'k> {
    index: usize,
    key: Cursor<'k>,
    slice: u64,
    /// The node to look at, which has been asked for.
    word: u64,
    /// Where it was found.
    parent: Option<(Interior<'g>, Seen)>,
}

impl<'g, 'k> Lane<'g, 'k> {
    #[inline]
    fn start(tree: &Tree, index: usize, key: &'k [u8]) -> Self {
        let key = Cursor::new(key);
        Lane { index, key, slice: key.slice(), word: tree.root_word(), parent: None }
    }

    /// One node further. The value's word (or that there is none) at the end.
    #[inline]
    fn step(&mut self, _: &'g Guard) -> Result<Option<Option<u64>>, Restart> {
        // SAFETY: the word is that of a root or a child found under the guard, see `descend`.
        let node: Node<'g> = unsafe { Node::from_word(self.word) };
        let seen = node.version().stable();
        match self.parent {
            Some((parent, parent_seen)) if parent.version().changed(parent_seen) => return Err(Restart),
            None if !seen.is_root() || seen.is_deleted() => return Err(Restart),
            _ => {}
        }
        let border = match node {
            Node::Border(border) => border,
            Node::Interior(interior) => {
                let word = interior.child_for(self.slice, seen);
                if word == 0 {
                    return Err(Restart);
                }
                prefetch_node(word);
                self.word = word;
                self.parent = Some((interior, seen));
                return Ok(None);
            }
        };
        match look(border, seen, &self.key, self.slice)?.0 {
            Lookup::Value { word, .. } => Ok(Some(Some(word))),
            Lookup::Absent | Lookup::Conflict { .. } => Ok(Some(None)),
            Lookup::Layer { word, .. } => {
                prefetch_node(word);
                self.key.advance();
                self.slice = self.key.slice();
                self.word = word;
                self.parent = None;
                Ok(None)
            }
        }
    }
}

impl<V: Value> Masstree<V> {
    /// Looks up many keys at once: `values` gets the value of each, in their order. Several times as fast as single lookups in
    /// a map that is larger than the caches.
    pub fn get_many<'g, K: AsRef<[u8]>>(&'g self, keys: &[K], values: &mut Vec<Option<V::Ref<'g>>>, guard: &'g Guard) {
        values.clear();
        values.resize_with(keys.len(), || None);
        let start = |index: usize| Lane::start(&self.tree, index, keys[index].as_ref());
        let mut next = keys.len().min(LANES);
        let mut lanes: Vec<Lane<'_, '_>> = (0..next).map(start).collect();
        while !lanes.is_empty() {
            let mut at = 0;
            while at < lanes.len() {
                match lanes[at].step(guard) {
                    Ok(None) => at += 1,
                    Err(Restart) => {
                        lanes[at] = start(lanes[at].index);
                        at += 1;
                    }
                    Ok(Some(found)) => {
                        // SAFETY: found in the map under the guard.
                        values[lanes[at].index] = found.map(|word| unsafe { V::borrow(word) });
                        if next < keys.len() {
                            lanes[at] = start(next);
                            next += 1;
                            at += 1;
                        } else {
                            lanes.swap_remove(at);
                        }
                    }
                }
            }
        }
    }
}

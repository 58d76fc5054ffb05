//! Batched lookups: several descents advance in turn, so that each works while the others wait for memory.
//!
//! A single lookup spends most of its time waiting for memory. Here each step prefetches the next node of its descent.
//! The descent's next step follows after one step of each of the others, when the node has arrived.

use crate::descend::{Restart, lookup};
use crate::guard::Guard;
use crate::key::Cursor;
use crate::map::Masstree;
use crate::node::{Interior, Lookup, Node, VersionSnapshot, prefetch_node};
use crate::tree::Tree;
use crate::value::Value;

/// Descents that advance in turn. Their steps take longer than a memory access, and their prefetches do not exceed the
/// cache misses that a core can have outstanding.
const DESCENTS: usize = 12;

#[derive(Clone, Copy)]
struct Descent<'g, 'k> {
    /// Index of the key in the batch.
    index: usize,
    key: Cursor<'k>,
    slice: u64,
    /// The next node, which has been prefetched.
    word: u64,
    /// The node's parent, with the version under which the node was its child.
    parent: Option<(Interior<'g>, VersionSnapshot)>,
}

impl<'g, 'k> Descent<'g, 'k> {
    #[inline]
    fn start(tree: &Tree, index: usize, key: &'k [u8]) -> Self {
        let key = Cursor::new(key);
        Descent { index, key, slice: key.slice(), word: tree.root_word(), parent: None }
    }

    /// Advances by one node. At the end of the descent it returns the word of the key's value, if there is one.
    #[inline]
    fn step(&mut self, _: &'g Guard) -> Result<Option<Option<u64>>, Restart> {
        // SAFETY: the word is that of a root or a child read under the guard, see `descend`.
        let node: Node<'g> = unsafe { Node::from_word(self.word) };
        let observed = node.version().stable();
        match self.parent {
            Some((parent, parent_observed)) if parent.version().changed(parent_observed) => return Err(Restart),
            None if !observed.is_root() || observed.is_deleted() => return Err(Restart),
            _ => {}
        }
        let border = match node {
            Node::Border(border) => border,
            Node::Interior(interior) => {
                let word = interior.child_for(self.slice, observed);
                if word == 0 {
                    return Err(Restart);
                }
                prefetch_node(word);
                self.word = word;
                self.parent = Some((interior, observed));
                return Ok(None);
            }
        };
        match lookup(border, observed, &self.key, self.slice)?.0 {
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
    /// Looks up many keys at once. Replaces the content of `values` by the value of each key, in the order of the keys.
    /// In a map larger than the caches this is several times as fast as single lookups.
    pub fn get_many<'g, K: AsRef<[u8]>>(&'g self, keys: &[K], values: &mut Vec<Option<V::Ref<'g>>>, guard: &'g Guard) {
        values.clear();
        values.resize_with(keys.len(), || None);
        let start = |index: usize| Descent::start(&self.tree, index, keys[index].as_ref());
        let mut next = keys.len().min(DESCENTS);
        let mut descents: Vec<Descent<'_, '_>> = (0..next).map(start).collect();
        while !descents.is_empty() {
            let mut at = 0;
            while at < descents.len() {
                match descents[at].step(guard) {
                    Ok(None) => at += 1,
                    Err(Restart) => {
                        descents[at] = start(descents[at].index);
                        at += 1;
                    }
                    Ok(Some(found)) => {
                        // SAFETY: found in the map under the guard.
                        values[descents[at].index] = found.map(|word| unsafe { V::borrow(word) });
                        if next < keys.len() {
                            descents[at] = start(next);
                            next += 1;
                            at += 1;
                        } else {
                            descents.swap_remove(at);
                        }
                    }
                }
            }
        }
    }
}

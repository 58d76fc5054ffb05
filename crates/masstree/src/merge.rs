//! Changing many keys in ascending order: the border node of one key stays locked while the next ones belong to it too.
//!
//! A key belongs to the node of a lower key of the same layer if its slice is not beyond the highest slice in the node, or
//! if no node follows. So a descent, a lock and the waits for memory are shared by all keys of a batch that go into one node.

use crate::guard::Guard;
use crate::key::Cursor;
use crate::node::{Border, Lookup};
use crate::sync::Relaxed;
use crate::tree::Tree;
use crate::write::{Change, Unlock};

/// Keys changed before others get a chance at the node.
const HOLD_MAX: usize = 64;

/// The place of the key that was changed last.
pub(crate) struct Merge<'g> {
    tree: &'g Tree,
    guard: &'g Guard,
    /// The node of the last key, which is locked, and the key's layer.
    held: Option<(Unlock<'g>, usize)>,
    /// Keys changed since it was locked.
    changed: usize,
    /// The bytes above the layer of the node held.
    prefix: Vec<u8>,
}

impl<'g> Merge<'g> {
    pub fn new(tree: &'g Tree, guard: &'g Guard) -> Self {
        Merge { tree, guard, held: None, changed: 0, prefix: Vec::new() }
    }

    /// As [`Tree::modify`], for a key that is not lower than the one before. `decide` may be called with a node locked that other
    /// keys are in, and must not use the map.
    #[inline]
    pub fn modify(&mut self, key: &[u8], decide: impl FnOnce(Option<u64>) -> Change) -> Option<u64> {
        if let Some((unlock, layer)) = self.held.take() {
            let border = unlock.0;
            if self.changed < HOLD_MAX
                && let Some(cursor) = self.cursor_in(border, layer, key)
            {
                let permutation = border.permutation();
                let found = border.lookup(&cursor, cursor.slice(), permutation);
                if !matches!(found, Lookup::Layer { .. }) {
                    let old = found.value();
                    let change = decide(old);
                    if self.tree.apply(&cursor, border, (permutation, found), change, self.guard) {
                        self.held = Some((unlock, layer));
                        self.changed += 1;
                    } else {
                        std::mem::forget(unlock);
                    }
                    return old;
                }
            }
        }
        self.modify_from_top(key, decide)
    }

    /// The key in the layer of the node held, if it belongs to that node.
    #[inline]
    fn cursor_in<'k>(&self, border: Border<'_>, layer: usize, key: &'k [u8]) -> Option<Cursor<'k>> {
        if !key.starts_with(&self.prefix) || layer > 0 && key.len() == self.prefix.len() {
            return None;
        }
        let cursor = Cursor::at_layer(key, layer);
        let permutation = border.permutation();
        let last = permutation.count().checked_sub(1)?;
        let highest = border.slice(permutation.slot(last)).load(Relaxed);
        (cursor.slice() <= highest || border.next() == 0).then_some(cursor)
    }

    fn modify_from_top(&mut self, key: &[u8], decide: impl FnOnce(Option<u64>) -> Change) -> Option<u64> {
        let (place, permutation, found) = self.tree.lock_place(key, self.guard);
        let unlock = Unlock(place.border);
        let old = found.value();
        let change = decide(old);
        if self.tree.apply(&place.key, place.border, (permutation, found), change, self.guard) {
            self.prefix.clear();
            self.prefix.extend_from_slice(&key[..8 * place.key.layer()]);
            self.held = Some((unlock, place.key.layer()));
            self.changed = 1;
        } else {
            std::mem::forget(unlock);
        }
        old
    }
}

//! Changing many keys in ascending order: the border node of one key stays locked for the following keys that belong to
//! it.
//!
//! All keys with the same slice in a layer are in one border node. A key therefore belongs to a node if its slice is
//! between the lowest and the highest slice in the node, or above the lowest one if the node is the last of its layer. All
//! keys of a batch that go into one node share one descent, one lock and the waits for memory. Any order of keys is
//! correct; descending keys only need a descent each.

use crate::guard::Guard;
use crate::key::{Cursor, KEY_BYTES_MAX};
use crate::node::{Border, Lookup, UnlockOnDrop};
use crate::tree::Tree;
use crate::write::Change;

/// Keys changed before the node is unlocked for other writers.
const HOLD_KEYS_MAX: usize = 64;

/// Changes the words of keys.
pub(crate) struct AscendingWriter<'g> {
    tree: &'g Tree,
    guard: &'g Guard,
    /// The node of the last key, which is locked, and its layer.
    held: Option<(UnlockOnDrop<'g>, usize)>,
    /// Keys changed since the node was locked.
    changed: usize,
    /// The bytes of the last key above the layer of the held node.
    prefix: Vec<u8>,
}

impl<'g> AscendingWriter<'g> {
    pub fn new(tree: &'g Tree, guard: &'g Guard) -> Self {
        AscendingWriter { tree, guard, held: None, changed: 0, prefix: Vec::new() }
    }

    /// As [`Tree::modify`]. `decide` must not use the map.
    #[inline]
    pub fn modify(&mut self, key: &[u8], decide: impl FnOnce(Option<u64>) -> Change) -> Option<u64> {
        if let Some((border, layer)) = self.held.take()
            && self.changed < HOLD_KEYS_MAX
            && let Some(cursor) = self.cursor_in(*border, layer, key)
        {
            let found = border.lookup(&cursor, cursor.slice(), border.permutation());
            if !matches!(found, Lookup::Layer { .. }) {
                return self.modify_held(&cursor, border, found, decide);
            }
        }
        assert!(key.len() <= KEY_BYTES_MAX, "key of {} bytes exceeds the maximum of {KEY_BYTES_MAX}", key.len());
        // The node held before is unlocked here: a thread that holds a lock does not lock nodes further right.
        let (location, border, found) = self.tree.lock_location(key, self.guard);
        self.changed = 0;
        self.prefix.clear();
        self.prefix.extend_from_slice(&key[..8 * location.key.layer()]);
        self.modify_held(&location.key, UnlockOnDrop::new(border), found, decide)
    }

    /// The key in the layer of the held node, if it belongs to that node.
    #[inline]
    fn cursor_in<'k>(&self, border: Border<'_>, layer: usize, key: &'k [u8]) -> Option<Cursor<'k>> {
        if !key.starts_with(&self.prefix) || layer > 0 && key.len() == self.prefix.len() {
            return None;
        }
        let cursor = Cursor::at_layer(key, layer);
        let permutation = border.permutation();
        let last = permutation.count().checked_sub(1)?;
        let (lowest, highest) = (border.slice(permutation.slot(0)), border.slice(permutation.slot(last)));
        let belongs = lowest <= cursor.slice() && (cursor.slice() <= highest || border.next().is_none());
        belongs.then_some(cursor)
    }

    /// Changes a key in its locked node, and keeps the node locked if possible.
    #[inline]
    fn modify_held(
        &mut self,
        key: &Cursor<'_>,
        border: UnlockOnDrop<'g>,
        found: Lookup,
        decide: impl FnOnce(Option<u64>) -> Change,
    ) -> Option<u64> {
        let old = found.value();
        let change = decide(old);
        let border = self.tree.apply(key, border.into_locked(), found, change, self.guard);
        self.held = border.map(|border| (UnlockOnDrop::new(border), key.layer()));
        self.changed += 1;
        old
    }
}

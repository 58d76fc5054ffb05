//! Writers: [`Tree::modify`], the primitive under everything that changes a key.
//!
//! The writer locates the key without locks, and then locks its border node. Unless the node has been split since, the
//! change is made there: a value is exchanged, an entry is put into a free slot, an entry is removed. Only full and
//! emptied nodes need more locks, see `split` and `unlink`.
//!
//! Lock order: from lower levels of a layer to higher ones, within a level from right to left, and the nodes of a layer
//! before those of the layer above. Every function that takes a second lock has the node that is already locked as an
//! [`Exclusive`] argument. A thread that holds locks may read nodes above without locks: a thread that has marked one
//! of them waits only for nodes still higher, so that the wait ends.

use crate::descend::KeyLocation;
use crate::guard::Guard;
use crate::key::{Cursor, KEY_BYTES_MAX, shared_layers};
use crate::node::{
    BAG, Bag, Border, BorderLayout, Continuation, Exclusive, INSERTING, Lookup, Node, Permutation, ROOT,
    TAIL_BYTES_MAX, UnlockOnDrop, WIDTH,
};
use crate::tree::Tree;

/// A change to one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// None.
    Keep,
    /// Insert the key, or replace its value, with a value of this word.
    Set(u64),
    /// Remove the key if it is there.
    Remove,
}

/// An entry to be inserted, which holds a value.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'s> {
    pub slice: u64,
    pub continuation: Continuation<'s>,
    pub word: u64,
}

impl KeyLocation<'_, '_> {
    /// Looks the key up again in the node, which is locked now.
    #[inline]
    fn lookup_again(&self, border: &Exclusive<Border<'_>>) -> Lookup {
        let permutation = border.permutation();
        // A slot is not reused without a mark: with the same version and permutation, the entries are the same. Their
        // values may have been exchanged.
        if permutation != self.permutation || border.locked_version().unlocked() != self.observed.unlocked() {
            return border.lookup(&self.key, self.slice, permutation);
        }
        match self.found {
            Lookup::Value { slot, .. } => Lookup::Value { slot, word: border.value(slot) },
            other => other,
        }
    }
}

impl Tree {
    /// Calls `decide` once, with the key's border node locked, with the word of the key's value. Makes the change that
    /// it returns, retires a value that was replaced or removed, and returns the old word.
    ///
    /// # Panics
    /// If the key is longer than [`KEY_BYTES_MAX`].
    #[inline]
    pub fn modify(&self, key: &[u8], guard: &Guard, decide: impl FnOnce(Option<u64>) -> Change) -> Option<u64> {
        assert!(key.len() <= KEY_BYTES_MAX, "key of {} bytes exceeds the maximum of {KEY_BYTES_MAX}", key.len());
        let (location, border, found) = self.lock_location(key, guard);
        let border = UnlockOnDrop::new(border);
        let old = found.value();
        let change = decide(old);
        if let Some(border) = self.apply(&location.key, border.into_locked(), found, change, guard) {
            border.unlock();
        }
        old
    }

    /// Locates a key and locks its border node. The lookup's result is not `Layer`.
    #[inline]
    pub fn lock_location<'g, 'k>(
        &self,
        key: &'k [u8],
        guard: &'g Guard,
    ) -> (KeyLocation<'g, 'k>, Exclusive<Border<'g>>, Lookup) {
        loop {
            let location = self.locate(key, guard);
            let border = Exclusive::lock(location.border);
            if !location.observed.keys_left(border.locked_version()) {
                let found = location.lookup_again(&border);
                if !matches!(found, Lookup::Layer { .. }) {
                    return (location, border, found);
                }
            }
            border.unlock();
        }
    }

    /// Makes a change to a key in its locked node, where looking it up gave `found` (not `Layer`). Returns the node if
    /// it is still locked, and still the key's.
    #[inline]
    pub fn apply<'g>(
        &self,
        key: &Cursor<'_>,
        mut border: Exclusive<Border<'g>>,
        found: Lookup,
        change: Change,
        guard: &'g Guard,
    ) -> Option<Exclusive<Border<'g>>> {
        match (change, found) {
            (Change::Set(word), Lookup::Value { slot, word: old }) => {
                border.set_value(slot, word);
                // SAFETY: the old word has just been removed from its only place.
                unsafe { self.retire_value(old, guard) };
                Some(border)
            }
            (Change::Set(word), Lookup::Conflict { slot }) => {
                self.make_layer(key, border, slot, word, guard);
                self.count(1);
                None
            }
            (Change::Set(word), _) => {
                let entry = Entry { slice: key.slice(), continuation: Continuation::of(key), word };
                let border = self.insert(key, border, entry, guard);
                self.count(1);
                border
            }
            (Change::Remove, Lookup::Value { slot, word }) => {
                self.remove(key, border, slot, guard);
                self.count(-1);
                // SAFETY: the entry has just been removed.
                unsafe { self.retire_value(word, guard) };
                None
            }
            (Change::Keep | Change::Remove, _) => Some(border),
        }
    }

    /// Inserts an entry into a locked node. Returns the node, still locked, unless it was full.
    #[inline]
    fn insert<'g>(
        &self,
        key: &Cursor<'_>,
        mut border: Exclusive<Border<'g>>,
        entry: Entry<'_>,
        guard: &'g Guard,
    ) -> Option<Exclusive<Border<'g>>> {
        if border.permutation().count() == border.width() {
            if border.width() < WIDTH {
                self.widen(key, border, entry, guard);
            } else {
                self.split(key, border, entry, guard);
            }
            return None;
        }
        let position = border.position(entry.slice, entry.continuation.rank());
        self.insert_at(&mut border, position, entry, guard);
        Some(border)
    }

    /// Inserts an entry at a position of a node that is not full.
    #[inline]
    pub fn insert_at(&self, border: &mut Exclusive<Border<'_>>, position: usize, entry: Entry<'_>, guard: &Guard) {
        let (permutation, slot) = border.permutation().insert(position);
        if border.is_stale(slot) {
            border.mark(INSERTING);
            border.clear_stale();
        }
        if border.needs_bag(entry.continuation.suffix()) {
            self.reserve(border, entry.continuation.suffix().len(), guard);
        }
        // SAFETY: the entry holds a value.
        unsafe { border.fill(slot, entry.slice, entry.continuation, entry.word) };
        border.set_permutation(permutation);
    }

    /// Gives an unpublished node a bag for the suffixes of `count` entries that do not fit into its tails, with room
    /// for similar suffixes of the entries that the node can still take.
    pub fn presize_bag(&self, border: &mut Exclusive<Border<'_>>, suffixes: impl Iterator<Item = usize>, count: usize) {
        assert!(0 < count && count <= border.width(), "{count} entries in a node of width {}", border.width());
        let tail = border.layout().tail_bytes();
        let bytes: usize = suffixes.filter(|&bytes| bytes > tail).map(Bag::cost).sum();
        if bytes > 0 {
            let spare = bytes / count * (border.width() - count);
            border.set_bag(self.new_bag(bytes + spare.min(bytes)));
        }
    }

    /// Makes sure that the bag of a node has room for one more suffix of so many bytes.
    pub fn reserve(&self, border: &mut Exclusive<Border<'_>>, suffix: usize, guard: &Guard) {
        let cost = Bag::cost(suffix);
        let old = border.bag();
        if old.is_some_and(|bag| bag.free() >= cost) {
            return;
        }
        let permutation = border.permutation();
        let node = border.node();
        let in_bag = |slot: &usize| node.code(*slot) == BAG;
        let suffixes = || permutation.slots().filter(in_bag).filter_map(|slot| Some((slot, old?.suffix(slot)?)));
        let live: usize = suffixes().map(|(_, suffix)| Bag::cost(suffix.len())).sum();
        // Spare room for similar suffixes of the entries that the node can still take, at most as much as is in use.
        let spare = (live / permutation.count().max(1) * (border.width() - permutation.count())).min(live);
        let bag = self.new_bag(live + cost + spare);
        for (slot, suffix) in suffixes() {
            // SAFETY: the bag is in no node yet.
            unsafe { bag.append(slot, suffix) };
        }
        border.set_bag(bag);
        if let Some(old) = old {
            // SAFETY: the old bag has just been replaced.
            unsafe { self.retire_bag(old, guard) };
        }
    }

    /// Appends entries of a node to an unpublished one, in the order of their slots given.
    pub fn copy_entries(
        &self,
        from: &Exclusive<Border<'_>>,
        slots: impl Iterator<Item = usize>,
        to: &mut Exclusive<Border<'_>>,
        guard: &Guard,
    ) {
        for (to_slot, slot) in slots.enumerate() {
            let mut tail = [0; TAIL_BYTES_MAX];
            let continuation = from.continuation(slot, &mut tail);
            if to.needs_bag(continuation.suffix()) {
                self.reserve(to, continuation.suffix().len(), guard);
            }
            // SAFETY: a layer stays in the tree as long as its entry, which moves from one node to the other.
            unsafe { to.fill(to_slot, from.slice(slot), continuation, from.value(slot)) };
            to.set_permutation(Permutation::sorted(to_slot + 1));
        }
    }

    /// Resolves a conflict of two keys with the same slice: both go into a new layer, below as many further layers as
    /// they share slices. Unlocks the node.
    #[cold]
    fn make_layer(&self, key: &Cursor<'_>, mut border: Exclusive<Border<'_>>, slot: usize, word: u64, guard: &Guard) {
        let mut tail = [0; TAIL_BYTES_MAX];
        let old = border.continuation(slot, &mut tail).suffix();
        let layer = self.layer_of_two((old, border.value(slot)), (key.suffix(), word), guard);
        border.mark(INSERTING);
        border.set_layer(slot, layer);
        border.unlock();
    }

    /// Makes a layer, and layers below it where needed, with two different keys. Returns its root, which is not
    /// published.
    fn layer_of_two<'t>(&'t self, one: (&[u8], u64), other: (&[u8], u64), guard: &Guard) -> Node<'t> {
        let (first, second) = if one.0 < other.0 { (one, other) } else { (other, one) };
        let layers = shared_layers(first.0, second.0);
        let entries = [first, second].map(|(key, word)| (Cursor::at_layer(key, layers), word));
        let suffix_bytes = entries.map(|(key, _)| Continuation::of(&key).suffix().len());
        let longest = suffix_bytes[0].max(suffix_bytes[1]);
        let mut border = self.new_border(ROOT, BorderLayout::for_layer(2, longest));
        for (position, (key, word)) in entries.into_iter().enumerate() {
            let entry = Entry { slice: key.slice(), continuation: Continuation::of(&key), word };
            self.insert_at(&mut border, position, entry, guard);
        }
        self.wrap(first.0, layers, Node::Border(border.node()))
    }
}

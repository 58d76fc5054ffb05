//! Writers: one primitive, [`Tree::modify`], under everything that changes a key.
//!
//! The key's place is found without locks. Then its border node alone is locked, and if it is still the one (no split
//! since), the change is made there: a value exchanged, an entry put into a free slot, an entry taken out. Only full and
//! emptied nodes go further, see `split` and `unlink`.
//!
//! Locks are taken from lower levels to higher ones, within a level from right to left, and a layer's nodes before those of
//! the layer above: nobody can wait in a circle. Holding locks, one may look at nodes above without locks: who has marked
//! them waits only for nodes still higher.

use crate::descend::Place;
use crate::guard::Guard;
use crate::key::{Cursor, KEY_BYTES_MAX};
use crate::node::{Bag, Border, INSERTING, Lookup, Permutation, ROOT, Rest, Shape, WIDTH};
use crate::tree::Tree;

/// What is to become of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Keep,
    Set(u64),
    Remove,
}

/// An entry to be inserted.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'s> {
    pub slice: u64,
    pub rest: Rest<'s>,
    pub word: u64,
}

/// Unlocks a node, should the caller's closure panic.
pub(crate) struct Unlock<'g>(pub Border<'g>);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        self.0.version().unlock();
    }
}

impl Place<'_, '_> {
    /// What the node, which is locked and has this permutation now, says about the key.
    #[inline]
    fn again(&self, permutation: Permutation) -> Lookup {
        // A slot is not filled again without a mark: with the same version and permutation, entries are those that were seen,
        // but their values may be others.
        if permutation != self.permutation || self.border.version().own().unlocked() != self.seen.unlocked() {
            return self.border.lookup(&self.key, self.slice, permutation);
        }
        match self.found {
            Lookup::Value { slot, .. } => {
                Lookup::Value { slot, word: self.border.value(slot).load(crate::sync::Acquire) }
            }
            other => other,
        }
    }
}

impl Tree {
    /// Asks `decide`, under the lock of the key's node, what is to become of the key, given its value's word; does that, and
    /// returns the word as it was. A replaced or removed value is retired. `decide` is asked once.
    #[inline]
    pub fn modify(&self, key: &[u8], guard: &Guard, decide: impl FnOnce(Option<u64>) -> Change) -> Option<u64> {
        assert!(key.len() <= KEY_BYTES_MAX, "a key of {} bytes is too long", key.len());
        let (place, permutation, found) = self.lock_place(key, guard);
        let unlock = Unlock(place.border);
        let old = found.value();
        let change = decide(old);
        std::mem::forget(unlock);
        if self.apply(&place.key, place.border, (permutation, found), change, guard) {
            place.border.version().unlock();
        }
        old
    }

    /// Finds the place of a key and locks its node; with the node's permutation and what it says about the key (no layer).
    #[inline]
    pub fn lock_place<'g, 'k>(&self, key: &'k [u8], guard: &'g Guard) -> (Place<'g, 'k>, Permutation, Lookup) {
        loop {
            let place = self.find(key, guard);
            let border = place.border;
            border.version().lock();
            if !place.seen.moved_on(border.version().own()) {
                let permutation = border.permutation();
                let found = place.again(permutation);
                if !matches!(found, Lookup::Layer { .. }) {
                    return (place, permutation, found);
                }
            }
            border.version().unlock();
        }
    }

    /// Makes a change to a key in its locked node, which has this permutation and says this about the key (no layer). True
    /// if the node is still locked, and still the key's.
    #[inline]
    pub fn apply(
        &self,
        key: &Cursor<'_>,
        border: Border<'_>,
        (permutation, found): (Permutation, Lookup),
        change: Change,
        guard: &Guard,
    ) -> bool {
        match (change, found) {
            (Change::Set(word), Lookup::Value { slot, word: old }) => {
                border.value(slot).store(word, crate::sync::Release);
                // SAFETY: the word has just been taken out of its only place.
                unsafe { self.retire_value(old, guard) };
                true
            }
            (Change::Set(word), Lookup::Conflict { slot }) => {
                self.make_layer(key, border, slot, word, guard);
                self.count(1);
                false
            }
            (Change::Set(word), _) => {
                let entry = Entry { slice: key.slice(), rest: Rest::of(key), word };
                let is_locked = self.insert(key, border, permutation, entry, guard);
                self.count(1);
                is_locked
            }
            (Change::Remove, Lookup::Value { slot, word }) => {
                self.remove(key, border, permutation, slot, guard);
                self.count(-1);
                // SAFETY: the entry has just been taken out.
                unsafe { self.retire_value(word, guard) };
                false
            }
            (Change::Keep | Change::Remove, _) => true,
        }
    }

    /// Inserts an entry into a locked node. True if it was not full: then it is still locked.
    #[inline]
    fn insert(
        &self,
        key: &Cursor<'_>,
        border: Border<'_>,
        permutation: Permutation,
        entry: Entry<'_>,
        guard: &Guard,
    ) -> bool {
        if permutation.count() == border.width() {
            if border.width() < WIDTH {
                self.widen(key, border, entry, guard);
            } else {
                self.split(key, border, entry, guard);
            }
            return false;
        }
        let position = border.position(entry.slice, entry.rest.rank(), permutation);
        self.insert_at(border, permutation, position, entry, guard);
        true
    }

    /// Inserts an entry into a locked node that has room.
    #[inline]
    pub fn insert_at(
        &self,
        border: Border<'_>,
        permutation: Permutation,
        position: usize,
        entry: Entry<'_>,
        guard: &Guard,
    ) {
        let (permutation, slot) = permutation.insert(position);
        if border.is_stale(slot) {
            border.version().mark(INSERTING);
            border.clear_stale();
        }
        if border.needs_bag(entry.rest.suffix()) {
            self.reserve(border, entry.rest.suffix().len(), guard);
        }
        border.fill(slot, entry.slice, entry.rest, entry.word);
        border.set_permutation(permutation);
    }

    /// Gives a node that nobody sees a bag for the suffixes of `count` entries (of those its tail does not take), and for as
    /// many more as it can hold.
    pub fn presize_bag(&self, border: Border<'_>, suffixes: impl Iterator<Item = usize>, count: usize) {
        let tail = border.shape().tail_bytes();
        let bytes: usize = suffixes.filter(|&bytes| bytes > tail).map(Bag::cost).sum();
        if bytes > 0 {
            let spare = bytes / count * (border.width() - count);
            border.set_bag(self.new_bag(bytes + spare.min(bytes)));
        }
    }

    /// Makes sure that the bag of a locked node has room for one more suffix.
    pub fn reserve(&self, border: Border<'_>, suffix: usize, guard: &Guard) {
        let cost = Bag::cost(suffix);
        let old = border.bag();
        if old.is_some_and(|bag| bag.free() >= cost) {
            return;
        }
        let permutation = border.permutation();
        let kept = |slot: &usize| border.code(*slot) == crate::node::BAG;
        let suffixes = || permutation.slots().filter(kept).filter_map(|slot| Some((slot, old?.suffix(slot)?)));
        let live: usize = suffixes().map(|(_, suffix)| Bag::cost(suffix.len())).sum();
        // Room for as many more as the node can still take, if they are like those it has: at most doubling.
        let spare = (live / permutation.count().max(1) * (border.width() - permutation.count())).min(live);
        let bag = self.new_bag(live + cost + spare);
        for (slot, suffix) in suffixes() {
            bag.append(slot, suffix);
        }
        border.set_bag(bag);
        if let Some(old) = old {
            self.retire_bag(old, guard);
        }
    }

    /// Copies an entry of a node that nobody changes (locked, or not shared) into a free slot of a node that nobody sees.
    pub fn copy_entry(&self, from: Border<'_>, slot: usize, to: Border<'_>, to_slot: usize, guard: &Guard) {
        let mut tail = [0; 4 * Shape::TAIL_MAX as usize];
        let rest = from.rest(slot, &mut tail);
        if to.needs_bag(rest.suffix()) {
            self.reserve(to, rest.suffix().len(), guard);
        }
        to.fill(
            to_slot,
            from.slice(slot).load(crate::sync::Relaxed),
            rest,
            from.value(slot).load(crate::sync::Acquire),
        );
    }

    /// Another key with the same slice goes on differently: both go into a layer of their own, below as many layers as
    /// their common slices ask for. The node is locked, and is unlocked.
    #[cold]
    fn make_layer(&self, key: &Cursor<'_>, border: Border<'_>, slot: usize, word: u64, guard: &Guard) {
        let mut tail = [0; 4 * Shape::TAIL_MAX as usize];
        let old = border.rest(slot, &mut tail).suffix();
        let new = key.suffix();
        let old_word = border.value(slot).load(crate::sync::Acquire);
        let layer = self.layer_of_two((old, old_word), (new, word), guard);
        border.version().mark(INSERTING);
        border.set_layer(slot, layer);
        border.version().unlock();
    }

    /// A layer (and those below it) with two different keys; returns its root's word.
    fn layer_of_two(&self, one: (&[u8], u64), other: (&[u8], u64), guard: &Guard) -> u64 {
        let (mut one, mut other) = if one.0 < other.0 { (one, other) } else { (other, one) };
        // The node above, whose only entry waits for its layer.
        let mut above: Option<Border<'_>> = None;
        let mut top = 0;
        loop {
            let (first, second) = (Cursor::new(one.0), Cursor::new(other.0));
            let together = first.slice() == second.slice() && first.rank() == 9 && second.rank() == 9;
            let suffix = |key: &Cursor<'_>| if key.rank() == 9 && !together { key.suffix().len() } else { 0 };
            let shape = Shape::for_layer(2, suffix(&first).max(suffix(&second)));
            let border = self.new_border(ROOT, shape);
            match above {
                Some(above) => above.value(0).store(border.word(), crate::sync::Release),
                None => top = border.word(),
            }
            if together {
                border.fill(0, first.slice(), Rest::Layer, 0);
                border.set_permutation(Permutation::sorted(1));
                above = Some(border);
                (one, other) = ((first.suffix(), one.1), (second.suffix(), other.1));
                continue;
            }
            for (slot, (key, word)) in [(first, one.1), (second, other.1)].into_iter().enumerate() {
                let rest = Rest::of(&key);
                if border.needs_bag(rest.suffix()) {
                    self.reserve(border, rest.suffix().len(), guard);
                }
                border.fill(slot, key.slice(), rest, word);
                border.set_permutation(Permutation::sorted(slot + 1));
            }
            return top;
        }
    }
}

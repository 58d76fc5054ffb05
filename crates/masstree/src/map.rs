//! The map as users see it: words become values.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use crate::guard::{Guard, pin};
use crate::key::AsKey;
use crate::range::{Range, RangeRev};
use crate::tree::Tree;
use crate::value::Value;
use crate::write::Change;

/// A concurrent ordered map from byte strings to values. See the crate's documentation.
pub struct Masstree<V: Value> {
    pub(crate) tree: Tree,
    values: PhantomData<V>,
}

impl<V: Value> Default for Masstree<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V: Value> fmt::Debug for Masstree<V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Masstree").field("len", &self.len()).field("arena", &self.tree.arena).finish()
    }
}

unsafe fn drop_word<V: Value>(word: u64) {
    // SAFETY: the caller gives up a word that came from a value of this type.
    drop(unsafe { V::from_word(word) });
}

impl<V: Value> Masstree<V> {
    /// An empty map.
    pub fn new() -> Self {
        Self::build(None)
    }

    /// An empty map that tells `charge` of every change of the bytes it has from the system, for instance to keep them within a
    /// budget that several maps share. (Bytes change by chunks, and values behind pointers are not among them.)
    pub fn with_charge(charge: impl Fn(isize) + Send + Sync + 'static) -> Self {
        Self::build(Some(Arc::new(charge)))
    }

    pub(crate) fn build(charge: Option<crate::arena::Charge>) -> Self {
        let drop_word: Option<unsafe fn(u64)> = if V::OWNED { Some(drop_word::<V>) } else { None };
        Masstree { tree: Tree::new(drop_word, charge), values: PhantomData }
    }

    /// # Safety
    /// The word was in the map (or is) during `'g`, while a guard was held that lasts as long.
    unsafe fn reference<'g>(word: u64) -> V::Ref<'g> {
        // SAFETY: the word came from a value; it is dropped only when no guard of its time is left.
        unsafe { V::borrow(word) }
    }

    /// The value of a key.
    #[inline]
    pub fn get<'g, K: AsKey + ?Sized>(&'g self, key: &K, guard: &'g Guard) -> Option<V::Ref<'g>> {
        let word = key.with_key(|key| self.tree.get(key, guard));
        // SAFETY: it was found in the map under the guard.
        word.map(|word| unsafe { Self::reference(word) })
    }

    /// Whether the map has a key.
    pub fn contains<K: AsKey + ?Sized>(&self, key: &K) -> bool {
        let guard = pin();
        key.with_key(|key| self.tree.get(key, &guard)).is_some()
    }

    fn modify<'g>(
        &'g self,
        key: &[u8],
        guard: &'g Guard,
        decide: impl FnOnce(Option<u64>) -> Change,
    ) -> Option<V::Ref<'g>> {
        let old = self.tree.modify(key, guard, decide);
        // SAFETY: it was found in the map under the guard.
        old.map(|word| unsafe { Self::reference(word) })
    }

    /// Sets the value of a key; returns the one it had.
    #[inline]
    pub fn insert<'g, K: AsKey + ?Sized>(&'g self, key: &K, value: V, guard: &'g Guard) -> Option<V::Ref<'g>> {
        let word = value.into_word();
        key.with_key(|key| self.modify(key, guard, |_| Change::Set(word)))
    }

    /// Sets the value of a key that has none.
    ///
    /// # Errors
    /// The key has a value: it is kept, and returned with the one given.
    pub fn try_insert<'g, K: AsKey + ?Sized>(
        &'g self,
        key: &K,
        value: V,
        guard: &'g Guard,
    ) -> Result<(), Occupied<'g, V>> {
        let word = value.into_word();
        let decide = |old: Option<u64>| old.map_or(Change::Set(word), |_| Change::Keep);
        match key.with_key(|key| self.modify(key, guard, decide)) {
            None => Ok(()),
            Some(current) => {
                // SAFETY: the word was made above and not put into the map.
                Err(Occupied { current, rejected: unsafe { V::from_word(word) } })
            }
        }
    }

    /// The value of a key, which is made if there is none. `make` runs without locks held; what it made is dropped if another
    /// thread was quicker.
    pub fn get_or_insert_with<'g, K: AsKey + ?Sized>(
        &'g self,
        key: &K,
        make: impl FnOnce() -> V,
        guard: &'g Guard,
    ) -> V::Ref<'g> {
        if let Some(value) = self.get(key, guard) {
            return value;
        }
        let word = make().into_word();
        let decide = |old: Option<u64>| old.map_or(Change::Set(word), |_| Change::Keep);
        match key.with_key(|key| self.modify(key, guard, decide)) {
            None => {
                // SAFETY: the word is in the map since the guard was made.
                unsafe { Self::reference(word) }
            }
            Some(current) => {
                // SAFETY: the word was not put into the map.
                drop(unsafe { V::from_word(word) });
                current
            }
        }
    }

    /// Removes a key; returns its value.
    pub fn remove<'g, K: AsKey + ?Sized>(&'g self, key: &K, guard: &'g Guard) -> Option<V::Ref<'g>> {
        key.with_key(|key| self.modify(key, guard, |_| Change::Remove))
    }

    /// Sets the value of a key to what `make` makes of the present one, unless that is nothing; returns what the key had before.
    /// One descent, and `make` runs once, but with the key's node locked: it must be quick, and must not use the map.
    pub fn insert_with<'g, K: AsKey + ?Sized>(
        &'g self,
        key: &K,
        make: impl FnOnce(Option<V::Ref<'g>>) -> Option<V>,
        guard: &'g Guard,
    ) -> Option<V::Ref<'g>> {
        let decide = |old: Option<u64>| {
            // SAFETY: found in the map under the guard.
            let new = make(old.map(|word| unsafe { Self::reference(word) }));
            new.map_or(Change::Keep, |value| Change::Set(value.into_word()))
        };
        key.with_key(|key| self.modify(key, guard, decide))
    }

    /// Replaces the value of a key by what `update` makes of it: `None` removes the key (or leaves it out). Returns what the key
    /// had before. `update` runs without locks held, and again if another thread changed the key meanwhile.
    pub fn update_with<'g, K: AsKey + ?Sized>(
        &'g self,
        key: &K,
        mut update: impl FnMut(Option<V::Ref<'g>>) -> Option<V>,
        guard: &'g Guard,
    ) -> Option<V::Ref<'g>> {
        key.with_key(|key| {
            let mut seen = self.tree.get(key, guard);
            loop {
                // SAFETY: found in the map under the guard.
                let new = update(seen.map(|word| unsafe { Self::reference(word) })).map(V::into_word);
                match self.exchange(key, seen, new, guard) {
                    // SAFETY: found in the map under the guard.
                    Ok(()) => return seen.map(|word| unsafe { Self::reference(word) }),
                    Err(current) => {
                        // SAFETY: the word was not put into the map.
                        drop(new.map(|word| unsafe { V::from_word(word) }));
                        seen = current;
                    }
                }
            }
        })
    }

    /// Sets the value of a key (removes it, for `None`) if `accept` says so of the present one. Returns what the key had.
    ///
    /// # Errors
    /// `accept` refused the value that the key has, which is returned with the new one.
    pub fn compare_exchange<'g, K: AsKey + ?Sized>(
        &'g self,
        key: &K,
        accept: impl Fn(Option<&V::Ref<'g>>) -> bool,
        new: Option<V>,
        guard: &'g Guard,
    ) -> Result<Option<V::Ref<'g>>, Refused<'g, V>> {
        let new = new.map(V::into_word);
        key.with_key(|key| {
            let mut seen = self.tree.get(key, guard);
            loop {
                // SAFETY: found in the map under the guard.
                let current = seen.map(|word| unsafe { Self::reference(word) });
                if !accept(current.as_ref()) {
                    // SAFETY: the word was not put into the map.
                    return Err(Refused { current, rejected: new.map(|word| unsafe { V::from_word(word) }) });
                }
                match self.exchange(key, seen, new, guard) {
                    Ok(()) => return Ok(current),
                    Err(other) => seen = other,
                }
            }
        })
    }

    /// Exchanges the word of a key if it is still the expected one. (While the guard is held, an owned value's word is not used
    /// for another value.)
    fn exchange(&self, key: &[u8], expected: Option<u64>, new: Option<u64>, guard: &Guard) -> Result<(), Option<u64>> {
        let change = new.map_or(Change::Remove, Change::Set);
        let decide = |old: Option<u64>| if old == expected { change } else { Change::Keep };
        let current = self.tree.modify(key, guard, decide);
        if current == expected { Ok(()) } else { Err(current) }
    }

    /// Keys in the map: exact if nobody is writing; otherwise off by no more than what is being written.
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    /// Counts the keys by visiting them all.
    pub fn count(&self) -> usize {
        let guard = pin();
        let mut entries = self.iter(&guard);
        let mut count = 0;
        while entries.next_entry().is_some() {
            count += 1;
        }
        count
    }

    /// Whether the map has no keys. Unlike [`len`](Self::len), this searches the tree for a first entry.
    pub fn is_empty(&self) -> bool {
        self.first(&pin()).is_none()
    }

    /// The lowest key and its value.
    pub fn first<'g>(&'g self, guard: &'g Guard) -> Option<(Vec<u8>, V::Ref<'g>)> {
        self.iter(guard).next()
    }

    /// The highest key and its value.
    pub fn last<'g>(&'g self, guard: &'g Guard) -> Option<(Vec<u8>, V::Ref<'g>)> {
        self.iter_rev(guard).next()
    }

    /// All entries, in order.
    pub fn iter<'g>(&'g self, guard: &'g Guard) -> Range<'g, V> {
        self.range::<&[u8]>(.., guard)
    }

    /// All entries, from the highest key down.
    pub fn iter_rev<'g>(&'g self, guard: &'g Guard) -> RangeRev<'g, V> {
        self.range_rev::<&[u8]>(.., guard)
    }

    /// The entries within bounds, in order. See [`Range`] for what holds while others write.
    pub fn range<'g, K: AsKey>(&'g self, bounds: impl RangeBounds<K>, guard: &'g Guard) -> Range<'g, V> {
        Range::new(&self.tree, bounds.start_bound(), bounds.end_bound(), guard)
    }

    /// The entries within bounds, from the highest key down.
    pub fn range_rev<'g, K: AsKey>(&'g self, bounds: impl RangeBounds<K>, guard: &'g Guard) -> RangeRev<'g, V> {
        RangeRev::new(&self.tree, bounds.start_bound(), bounds.end_bound(), guard)
    }

    /// Hands memory that waits for readers to the collector, and collects a little. Needed only to see memory go down at
    /// once.
    pub fn flush(&self) {
        self.tree.flush(&pin());
    }
}

/// Error of [`Masstree::try_insert`]: the key already has a value.
pub struct Occupied<'g, V: Value> {
    /// The key's value, which was kept.
    pub current: V::Ref<'g>,
    /// The value that was not inserted.
    pub rejected: V,
}

/// Error of [`Masstree::compare_exchange`]: the condition rejected the key's current value.
pub struct Refused<'g, V: Value> {
    /// The key's value when the condition was evaluated; `None` if the key was absent.
    pub current: Option<V::Ref<'g>>,
    /// The value that was not inserted; `None` if the exchange was to remove the key.
    pub rejected: Option<V>,
}

impl<V: Value> fmt::Debug for Occupied<'_, V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Occupied").finish_non_exhaustive()
    }
}

impl<V: Value> fmt::Debug for Refused<'_, V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Refused").finish_non_exhaustive()
    }
}

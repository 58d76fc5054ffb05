//! The public map: converts between values and the words of the tree.
//!
//! Invariant: every word in the tree comes from `V::into_word`, and is dropped once, after the guards of readers that
//! may have seen it are gone.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

use crate::ascending::AscendingWriter;
use crate::guard::{Guard, pin};
use crate::key::AsKey;
use crate::range::{Range, RangeRev};
use crate::tree::Tree;
use crate::value::Value;
use crate::write::Change;

/// A concurrent ordered map from byte strings to values. See the [crate documentation](crate).
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

/// # Safety
/// The word comes from a value of this type and is not used afterwards.
unsafe fn drop_word<V: Value>(word: u64) {
    // SAFETY: the caller's promise.
    drop(unsafe { V::from_word(word) });
}

impl<V: Value> Masstree<V> {
    /// Makes an empty map.
    pub fn new() -> Self {
        Self::build(None)
    }

    /// Makes an empty map that calls `charge` with every change of the bytes it has from the system, positive or
    /// negative. A budget that several maps share can be kept this way. The bytes change by whole chunks and do not
    /// include values behind pointers.
    pub fn with_charge(charge: impl Fn(isize) + Send + Sync + 'static) -> Self {
        Self::build(Some(Arc::new(charge)))
    }

    pub(crate) fn build(charge: Option<crate::arena::Charge>) -> Self {
        let drop_word: Option<unsafe fn(u64)> = if V::OWNED { Some(drop_word::<V>) } else { None };
        Masstree { tree: Tree::new(drop_word, charge), values: PhantomData }
    }

    /// # Safety
    /// The word was in the map at some moment of `'g`, while a guard existed that lasts for `'g`.
    unsafe fn reference<'g>(word: u64) -> V::Ref<'g> {
        // SAFETY: the word comes from a value, which is dropped only after all guards of that moment.
        unsafe { V::borrow(word) }
    }

    /// Returns the value of a key.
    #[inline]
    pub fn get<'g, K: AsKey + ?Sized>(&'g self, key: &K, guard: &'g Guard) -> Option<V::Ref<'g>> {
        let word = key.with_key(|key| self.tree.get(key, guard));
        // SAFETY: found in the map under the guard.
        word.map(|word| unsafe { Self::reference(word) })
    }

    /// Returns whether the map contains a key.
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
        // SAFETY: found in the map under the guard.
        old.map(|word| unsafe { Self::reference(word) })
    }

    /// Sets the value of a key. Returns its previous value.
    #[inline]
    pub fn insert<'g, K: AsKey + ?Sized>(&'g self, key: &K, value: V, guard: &'g Guard) -> Option<V::Ref<'g>> {
        let word = value.into_word();
        key.with_key(|key| self.modify(key, guard, |_| Change::Set(word)))
    }

    /// Inserts a key that is not in the map.
    ///
    /// # Errors
    /// If the key is in the map: its value stays, and is returned together with the rejected one.
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
                // SAFETY: the word was made above and has not been put into the map.
                Err(Occupied { current, rejected: unsafe { V::from_word(word) } })
            }
        }
    }

    /// Returns the value of a key, and inserts one made by `make` if there is none. `make` runs without locks held. Its
    /// result is dropped if another thread has inserted the key meanwhile.
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
                // SAFETY: the word has just been put into the map, under the guard.
                unsafe { Self::reference(word) }
            }
            Some(current) => {
                // SAFETY: the word has not been put into the map.
                drop(unsafe { V::from_word(word) });
                current
            }
        }
    }

    /// Removes a key. Returns its value.
    pub fn remove<'g, K: AsKey + ?Sized>(&'g self, key: &K, guard: &'g Guard) -> Option<V::Ref<'g>> {
        key.with_key(|key| self.modify(key, guard, |_| Change::Remove))
    }

    /// Sets the value of a key to the one that `make` computes from its current value. If `make` returns `None`,
    /// nothing changes. Returns the previous value.
    ///
    /// This takes one descent, and `make` runs once. It runs with the key's node locked: it must be short and must not
    /// use the map.
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

    /// A writer of many keys, fastest if their order is ascending: neighbouring keys share a descent and a lock.
    pub fn ascending<'g>(&'g self, guard: &'g Guard) -> Ascending<'g, V> {
        Ascending::new(&self.tree, guard)
    }

    /// Replaces the value of a key by the result of `update`; `None` removes the key. Returns the previous value.
    /// `update` runs without locks held, and runs again if another thread has changed the key meanwhile.
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
                        // SAFETY: the word has not been put into the map.
                        drop(new.map(|word| unsafe { V::from_word(word) }));
                        seen = current;
                    }
                }
            }
        })
    }

    /// Sets the value of a key to `new`, or removes the key for `None`, if `accept` returns true for its current value.
    /// Returns the previous value.
    ///
    /// # Errors
    /// If `accept` returns false: the current value stays, and is returned together with the rejected one.
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
                    // SAFETY: the word has not been put into the map.
                    return Err(Refused { current, rejected: new.map(|word| unsafe { V::from_word(word) }) });
                }
                match self.exchange(key, seen, new, guard) {
                    Ok(()) => return Ok(current),
                    Err(other) => seen = other,
                }
            }
        })
    }

    /// Exchanges the word of a key if it is still the expected one; otherwise returns the current word. While the guard
    /// is held, the word of an owned value is not reused for another value.
    fn exchange(&self, key: &[u8], expected: Option<u64>, new: Option<u64>, guard: &Guard) -> Result<(), Option<u64>> {
        let change = new.map_or(Change::Remove, Change::Set);
        let decide = |old: Option<u64>| if old == expected { change } else { Change::Keep };
        let current = self.tree.modify(key, guard, decide);
        if current == expected { Ok(()) } else { Err(current) }
    }

    /// The number of keys. It is exact if no other thread is writing, and otherwise off by the changes in progress at
    /// most.
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    /// Counts the keys by a scan of the map.
    pub fn count(&self) -> usize {
        let guard = pin();
        let mut entries = self.iter(&guard);
        let mut count = 0;
        while entries.next_entry().is_some() {
            count += 1;
        }
        count
    }

    /// Returns whether the map has no keys. Unlike [`len`](Self::len), this searches the tree for an entry.
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

    /// All entries, in ascending order.
    pub fn iter<'g>(&'g self, guard: &'g Guard) -> Range<'g, V> {
        self.range::<&[u8]>(.., guard)
    }

    /// All entries, in descending order.
    pub fn iter_rev<'g>(&'g self, guard: &'g Guard) -> RangeRev<'g, V> {
        self.range_rev::<&[u8]>(.., guard)
    }

    /// The entries within bounds, in ascending order. See [`Range`] about concurrent writers.
    pub fn range<'g, K: AsKey>(&'g self, bounds: impl RangeBounds<K>, guard: &'g Guard) -> Range<'g, V> {
        Range::new(&self.tree, bounds.start_bound(), bounds.end_bound(), guard)
    }

    /// The entries within bounds, in descending order.
    pub fn range_rev<'g, K: AsKey>(&'g self, bounds: impl RangeBounds<K>, guard: &'g Guard) -> RangeRev<'g, V> {
        RangeRev::new(&self.tree, bounds.start_bound(), bounds.end_bound(), guard)
    }

    /// Passes retired memory to the collector and lets it free memory that no guard protects. Call this to reduce
    /// memory at once; otherwise it happens in batches.
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

/// Changes many keys of a map; made by [`Masstree::ascending`].
///
/// One border node may stay locked between two calls and until this is dropped. Other threads that use keys of that node
/// wait. This thread must use the map only through this writer meanwhile: any other use may wait forever.
pub struct Ascending<'g, V: Value> {
    writer: AscendingWriter<'g>,
    values: PhantomData<V>,
}

impl<V: Value> fmt::Debug for Ascending<'_, V> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Ascending").finish_non_exhaustive()
    }
}

impl<'g, V: Value> Ascending<'g, V> {
    pub(crate) fn new(tree: &'g Tree, guard: &'g Guard) -> Self {
        Ascending { writer: AscendingWriter::new(tree, guard), values: PhantomData }
    }

    /// As [`Masstree::insert_with`]. Fastest if the key is not lower than the one before.
    ///
    /// # Panics
    /// If the key is longer than [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX).
    #[inline]
    pub fn insert_with(
        &mut self,
        key: &[u8],
        make: impl FnOnce(Option<V::Ref<'g>>) -> Option<V>,
    ) -> Option<V::Ref<'g>> {
        // SAFETY: found in the map under the guard.
        let reference = |word: u64| unsafe { Masstree::<V>::reference(word) };
        let old = self
            .writer
            .modify(key, |old| make(old.map(reference)).map_or(Change::Keep, |value| Change::Set(value.into_word())));
        old.map(reference)
    }
}

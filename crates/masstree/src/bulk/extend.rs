//! Adding many keys to an existing map.
//!
//! The batch is sorted and cut into ranges, one for each thread. Each thread inserts its keys in ascending order, so
//! that all keys that go into one border node share a descent and a lock (see `ascending`). Other threads may read and
//! write the map meanwhile.

use super::build::{ByRun, Reader, Source};
use super::parallel::{Workers, part};
use super::sort::{Sorted, sort};
use super::{Bulk, BulkError, Policy};
use crate::ascending::AscendingWriter;
use crate::guard::pin;
use crate::map::Masstree;
use crate::value::Value;
use crate::write::Change;

/// Keys inserted under one guard.
const PER_GUARD: usize = 256;

impl<V: Value> Bulk<V> {
    /// Adds keys, in any order, and their values to a map. The policy for duplicates also applies between a value in
    /// the map, the earlier one, and an added value.
    ///
    /// # Errors
    /// If the numbers of keys and values differ, or a key is too long: nothing is added. If a key occurs twice or is in
    /// the map and duplicates are refused: all other keys are added.
    pub fn extend<K: AsRef<[u8]> + Sync>(
        &self,
        map: &Masstree<V>,
        keys: &[K],
        values: Vec<V>,
    ) -> Result<(), BulkError> {
        let words = self.words(keys, values)?;
        let workers = Workers::new(self.threads);
        let duplicate = match sort(workers, keys.len(), |i| keys[i].as_ref(), Some(&words)) {
            Sorted::Short(run) => self.insert_all(map, &ByRun { keys, run: &run, words: &words }),
            Sorted::Long(run) => self.insert_all(map, &ByRun { keys, run: &run, words: &words }),
        };
        duplicate.map_or(Ok(()), |position| Err(BulkError::Duplicate { position }))
    }

    /// Returns the lowest position of a refused duplicate.
    fn insert_all(&self, map: &Masstree<V>, source: &impl Source) -> Option<usize> {
        let workers = Workers::new(self.threads);
        // Values of one key stay in one range, because their order matters.
        let cuts: Vec<usize> = (0..=workers.count())
            .map(|worker| first_of_key(source, part(source.len(), worker, workers.count()).start))
            .collect();
        assert!(cuts.is_sorted() && cuts[0] == 0 && cuts[workers.count()] == source.len(), "ranges cover the batch");
        let refused = workers.run(|worker| {
            let mut range = cuts[worker]..cuts[worker + 1];
            let mut reader = source.reader(range.start.min(source.len()));
            let mut key = Vec::new();
            let mut refused = None;
            while !range.is_empty() {
                let guard = pin();
                let mut writer = AscendingWriter::new(&map.tree, &guard);
                for _ in range.by_ref().take(PER_GUARD) {
                    let (position, word) = reader.next(&mut key);
                    if !self.insert_one(&mut writer, &key, word) {
                        refused = Some(refused.map_or(position, |refused: usize| refused.min(position)));
                    }
                }
            }
            refused
        });
        refused.into_iter().flatten().min()
    }

    /// Inserts a key, or merges its value. Returns false if it was refused.
    fn insert_one(&self, writer: &mut AscendingWriter<'_>, key: &[u8], word: u64) -> bool {
        // SAFETY: the word is that of a value in the batch, and is used once.
        let value = || unsafe { V::from_word(word) };
        match &self.policy {
            Policy::Last => {
                writer.modify(key, |_| Change::Set(word));
                true
            }
            Policy::Refuse | Policy::First => {
                let old = writer.modify(key, |old| old.map_or(Change::Set(word), |_| Change::Keep));
                if old.is_some() {
                    drop(value());
                }
                old.is_none() || matches!(self.policy, Policy::First)
            }
            Policy::Merge(merge) => {
                writer.modify(key, |old| {
                    // SAFETY: the old value is in the map, in a node that is locked.
                    let merged = old.map(|old| merge(unsafe { V::borrow(old) }, value()));
                    Change::Set(merged.map_or(word, V::into_word))
                });
                true
            }
        }
    }
}

/// The first index from `at` on whose key differs from its predecessor.
fn first_of_key(source: &impl Source, at: usize) -> usize {
    if at == 0 || at >= source.len() {
        return at.min(source.len());
    }
    let mut reader = source.reader(at - 1);
    let (mut before, mut key) = (Vec::new(), Vec::new());
    reader.next(&mut before);
    (at..source.len())
        .find(|_| {
            reader.next(&mut key);
            key != before
        })
        .unwrap_or(source.len())
}

//! A common interface to the compared maps.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::RwLock;

use keyaki_masstree::{Bulk, Masstree, pin};

/// Operations per guard.
const PER_GUARD: usize = 64;

/// A key and its number.
pub type Lookup<const N: usize> = ([u8; N], u32);

/// A map from keys of `N` bytes to their numbers.
pub trait Map<const N: usize>: Sync {
    /// Number of threads that may insert concurrently.
    const WRITERS: usize = usize::MAX;

    fn new() -> Self;

    /// Inserts keys with these numbers.
    fn insert(&self, keys: &[[u8; N]], numbers: &[u32]);

    /// Sets the numbers of existing keys.
    fn update(&self, entries: &[Lookup<N>]);

    /// Looks up keys. Returns how many were found with the right numbers.
    fn get(&self, lookups: &[Lookup<N>]) -> usize;

    /// Reads `length` entries from each key on. Returns how many were read.
    fn scan(&self, starts: &[Lookup<N>], length: usize) -> usize;

    /// As [`get`](Self::get) with batched lookups; `None` if the map has none.
    fn get_many(&self, _: &[Lookup<N>]) -> Option<usize> {
        None
    }

    /// Adds many keys at once. Returns false if the map has no such operation.
    fn extend(&self, _: &[[u8; N]], _: &[u32], _: usize) -> bool {
        false
    }

    /// Loads keys in the fastest way other than insertion; `None` if the map has none.
    fn load(_: &[[u8; N]], _: usize) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}

impl<const N: usize> Map<N> for Masstree<u64> {
    fn new() -> Self {
        Masstree::new()
    }

    fn insert(&self, keys: &[[u8; N]], numbers: &[u32]) {
        for part in numbers.chunks(PER_GUARD) {
            let guard = pin();
            for &number in part {
                self.insert(&keys[number as usize], u64::from(number), &guard);
            }
        }
    }

    fn update(&self, entries: &[Lookup<N>]) {
        let guard = pin();
        for (key, number) in entries {
            self.insert(key, u64::from(*number), &guard);
        }
    }

    fn get(&self, lookups: &[Lookup<N>]) -> usize {
        let mut found = 0;
        for part in lookups.chunks(PER_GUARD) {
            let guard = pin();
            for (key, number) in part {
                found += usize::from(self.get(key, &guard) == Some(u64::from(*number)));
            }
        }
        found
    }

    fn scan(&self, starts: &[Lookup<N>], length: usize) -> usize {
        let (mut read, mut sum) = (0, 0);
        for (key, _) in starts {
            let guard = pin();
            let mut left = length;
            self.range::<[u8; N]>(*key.., &guard).visit(|key, value| {
                sum += key.len() as u64 + value;
                read += 1;
                left -= 1;
                if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        }
        std::hint::black_box(sum);
        read
    }

    fn get_many(&self, lookups: &[Lookup<N>]) -> Option<usize> {
        let mut found = 0;
        let mut batch: Vec<&[u8; N]> = Vec::with_capacity(256);
        let mut values: Vec<Option<u64>> = Vec::with_capacity(256);
        for part in lookups.chunks(256) {
            let guard = pin();
            batch.clear();
            batch.extend(part.iter().map(|(key, _)| key));
            self.get_many(&batch, &mut values, &guard);
            found +=
                part.iter().zip(&values).filter(|((_, number), value)| **value == Some(u64::from(*number))).count();
        }
        Some(found)
    }

    fn extend(&self, keys: &[[u8; N]], numbers: &[u32], threads: usize) -> bool {
        let batch: Vec<&[u8; N]> = numbers.iter().map(|&number| &keys[number as usize]).collect();
        let values = numbers.iter().map(|&number| u64::from(number)).collect();
        Bulk::new().threads(threads).extend(self, &batch, values).is_ok()
    }

    fn load(keys: &[[u8; N]], threads: usize) -> Option<Self> {
        let values = (0..keys.len() as u64).collect();
        Bulk::new().threads(threads).from_unsorted(keys, values).ok()
    }
}

/// The standard library's map behind a lock.
pub struct Standard<const N: usize>(RwLock<BTreeMap<[u8; N], u64>>);

impl<const N: usize> Map<N> for Standard<N> {
    const WRITERS: usize = 1;

    fn new() -> Self {
        Standard(RwLock::new(BTreeMap::new()))
    }

    fn insert(&self, keys: &[[u8; N]], numbers: &[u32]) {
        let mut map = self.0.write().expect("no thread panics");
        for &number in numbers {
            map.insert(keys[number as usize], u64::from(number));
        }
    }

    fn update(&self, entries: &[Lookup<N>]) {
        let mut map = self.0.write().expect("no thread panics");
        for (key, number) in entries {
            map.insert(*key, u64::from(*number));
        }
    }

    fn get(&self, lookups: &[Lookup<N>]) -> usize {
        let map = self.0.read().expect("no thread panics");
        lookups.iter().filter(|(key, number)| map.get(key) == Some(&u64::from(*number))).count()
    }

    fn scan(&self, starts: &[Lookup<N>], length: usize) -> usize {
        let map = self.0.read().expect("no thread panics");
        let (mut read, mut sum) = (0, 0);
        for (key, _) in starts {
            for (key, value) in map.range(*key..).take(length) {
                sum += key.len() as u64 + value;
                read += 1;
            }
        }
        std::hint::black_box(sum);
        read
    }

    fn extend(&self, keys: &[[u8; N]], numbers: &[u32], threads: usize) -> bool {
        use rayon::prelude::ParallelSliceMut;
        let mut entries: Vec<([u8; N], u64)> =
            numbers.iter().map(|&number| (keys[number as usize], u64::from(number))).collect();
        let Ok(pool) = rayon::ThreadPoolBuilder::new().num_threads(threads).build() else { return false };
        pool.install(|| entries.par_sort_unstable());
        self.0.write().expect("no thread panics").extend(entries);
        true
    }

    /// Sorts the entries and builds the map from a sorted iterator.
    fn load(keys: &[[u8; N]], threads: usize) -> Option<Self> {
        use rayon::prelude::ParallelSliceMut;
        let mut entries: Vec<([u8; N], u64)> = keys.iter().copied().zip(0..).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().ok()?;
        pool.install(|| entries.par_sort_unstable());
        Some(Standard(RwLock::new(entries.into_iter().collect())))
    }
}

impl<const N: usize> Map<N> for crossbeam_skiplist::SkipMap<[u8; N], u64> {
    fn new() -> Self {
        Self::new()
    }

    fn insert(&self, keys: &[[u8; N]], numbers: &[u32]) {
        for &number in numbers {
            self.insert(keys[number as usize], u64::from(number));
        }
    }

    fn update(&self, entries: &[Lookup<N>]) {
        for (key, number) in entries {
            self.insert(*key, u64::from(*number));
        }
    }

    fn get(&self, lookups: &[Lookup<N>]) -> usize {
        let hit = |(key, number): &&Lookup<N>| self.get(key).is_some_and(|entry| *entry.value() == u64::from(*number));
        lookups.iter().filter(hit).count()
    }

    fn scan(&self, starts: &[Lookup<N>], length: usize) -> usize {
        let (mut read, mut sum) = (0, 0);
        for (key, _) in starts {
            for entry in self.range(*key..).take(length) {
                sum += entry.key().len() as u64 + entry.value();
                read += 1;
            }
        }
        std::hint::black_box(sum);
        read
    }
}

pub type PeerMasstree = masstree::MassTree<u64>;

impl<const N: usize> Map<N> for PeerMasstree {
    fn new() -> Self {
        PeerMasstree::new()
    }

    fn insert(&self, keys: &[[u8; N]], numbers: &[u32]) {
        for part in numbers.chunks(PER_GUARD) {
            let guard = self.guard();
            for &number in part {
                self.insert_with_guard(&keys[number as usize], u64::from(number), &guard);
            }
        }
    }

    fn update(&self, entries: &[Lookup<N>]) {
        let guard = self.guard();
        for (key, number) in entries {
            self.insert_with_guard(key, u64::from(*number), &guard);
        }
    }

    fn get(&self, lookups: &[Lookup<N>]) -> usize {
        let mut found = 0;
        for part in lookups.chunks(PER_GUARD) {
            let guard = self.guard();
            for (key, number) in part {
                let value = self.get_with_guard(key, &guard);
                found += usize::from(value == Some(u64::from(*number)));
            }
        }
        found
    }

    fn scan(&self, starts: &[Lookup<N>], length: usize) -> usize {
        let (mut read, mut sum) = (0, 0);
        for (key, _) in starts {
            let guard = self.guard();
            let mut left = length;
            self.scan_intra_leaf_batch(
                masstree::RangeBound::Included(key),
                masstree::RangeBound::Unbounded,
                |key, value| {
                    sum += key.len() as u64 + value;
                    read += 1;
                    left -= 1;
                    left > 0
                },
                &guard,
            );
        }
        std::hint::black_box(sum);
        read
    }
}

/// A concurrent adaptive radix tree, for keys of eight bytes only.
pub struct Congee(congee::Congee<usize, usize>);

fn number_of<const N: usize>(key: &[u8; N]) -> usize {
    key.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes) as usize)
}

impl<const N: usize> Map<N> for Congee {
    fn new() -> Self {
        Congee(congee::Congee::default())
    }

    fn insert(&self, keys: &[[u8; N]], numbers: &[u32]) {
        for part in numbers.chunks(PER_GUARD) {
            let guard = self.0.pin();
            for &number in part {
                self.0.insert(number_of(&keys[number as usize]), number as usize, &guard).expect("memory is available");
            }
        }
    }

    fn update(&self, entries: &[Lookup<N>]) {
        let guard = self.0.pin();
        for (key, number) in entries {
            self.0.insert(number_of(key), *number as usize, &guard).expect("memory is available");
        }
    }

    fn get(&self, lookups: &[Lookup<N>]) -> usize {
        let mut found = 0;
        for part in lookups.chunks(PER_GUARD) {
            let guard = self.0.pin();
            for (key, number) in part {
                found += usize::from(self.0.get(&number_of(key), &guard) == Some(*number as usize));
            }
        }
        found
    }

    fn scan(&self, starts: &[Lookup<N>], length: usize) -> usize {
        let mut buffer = vec![(0, 0); length];
        let mut read = 0;
        for (key, _) in starts {
            let guard = self.0.pin();
            read += self.0.range(&number_of(key), &usize::MAX, &mut buffer, &guard);
        }
        read
    }
}

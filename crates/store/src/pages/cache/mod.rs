//! The page cache: verified pages by their offset in the data file, within a budget in bytes.
//!
//! A hash of the offset assigns each page to a shard. Each shard has its own part of the budget, its own mutex (held
//! for table lookups, never during I/O) and its own replacement order, see [`shard`].
//!
//! Columns of pages are decompressed on first use. The bytes of the decompressed heaps of all pages in memory are counted
//! together, and reduce the budget: the next accesses to each shard evict pages.

mod shard;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use keyaki_device::BLOCK;
use keyaki_primitives::sync::Mutex;

use self::shard::{Shard, hash};
use crate::codec::{Page, Projection};

const SHARDS_MAX: usize = 64;
/// Minimum budget of a shard in bytes. Smaller shards would lose pages to an uneven distribution.
const SHARD_BYTES_MIN: usize = 1 << 20;
/// Overhead of a cached page in bytes beyond its own memory: table entry, slot, reference counts.
const OVERHEAD_BYTES: usize = 96;

/// Sharded, scan-resistant second-chance (CLOCK) cache.
#[derive(Debug)]
pub struct Cache {
    pages: Shards<Arc<Page>>,
}

/// Expected reuse of a page, which determines its eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Index pages: evicted last.
    Index,
    /// Pages found by key.
    Lookup,
    /// Pages of a scan: evicted first, unless they are used again.
    Scan,
}

impl Cache {
    /// An empty cache with a budget in bytes.
    pub fn new(budget_bytes: usize) -> Self {
        Cache { pages: Shards::new(budget_bytes) }
    }

    /// The bytes of decompressed heaps of pages in memory, which count against the budget.
    pub(crate) fn heap_counter(&self) -> &Arc<AtomicUsize> {
        &self.pages.heap_bytes
    }

    /// The page at `offset` of the data file, if it is cached with all its columns; counts as a use.
    pub fn get(&self, offset: u64) -> Option<Arc<Page>> {
        self.get_columns(offset, None)
    }

    /// As [`Cache::get`], if the page is cached with the columns of `projection`.
    pub fn get_columns(&self, offset: u64, projection: Option<&Projection>) -> Option<Arc<Page>> {
        self.pages.get_if(offset, |page| page.has(projection))
    }

    /// As [`Cache::get`], but does not change the replacement order or the counters.
    pub fn peek(&self, offset: u64) -> Option<Arc<Page>> {
        self.pages.line(offset).shard.lock().peek(offset).filter(|page| page.is_whole())
    }

    /// True if the page at `offset` is cached, with all or some of its columns.
    pub fn holds(&self, offset: u64) -> bool {
        self.peek_any(offset).is_some()
    }

    /// The page at `offset`, with all or some of its columns. Does not change the replacement order or the counters.
    pub(crate) fn peek_any(&self, offset: u64) -> Option<Arc<Page>> {
        self.pages.line(offset).shard.lock().peek(offset)
    }

    /// Inserts a page and replaces the page at its offset, unless the new one has fewer columns. A page that exceeds the
    /// unpinned budget of its shard is not cached.
    pub fn insert(&self, offset: u64, page: Arc<Page>, priority: Priority) {
        let (bytes, projection) = (page.memory_bytes(), page.projection().cloned());
        let replaces = |before: &Arc<Page>| projection.is_none() || !before.has(projection.as_deref());
        self.pages.insert_if(offset, page, bytes, priority, replaces);
    }

    /// Removes the pages in a range of offsets whose extent was freed. No stale page can be inserted afterwards,
    /// because readers hold a reference to the extent until they have inserted its pages.
    pub fn remove(&self, offsets: Range<u64>) {
        self.pages.remove(offsets);
    }

    /// Pins a page: it is not evicted until it is unpinned or its extent is freed. Returns false if the page is not
    /// cached with all its columns, or if the pinned pages of its shard would exceed three quarters of the budget.
    pub fn pin(&self, offset: u64) -> bool {
        let mut shard = self.pages.line(offset).shard.lock();
        shard.peek(offset).is_some_and(|page| page.is_whole()) && shard.pin(offset)
    }

    /// Unpins a page. Returns false if it was not pinned.
    pub fn unpin(&self, offset: u64) -> bool {
        self.pages.line(offset).shard.lock().unpin(offset)
    }

    /// Returns true if the page at `offset` is cached and pinned.
    pub fn is_pinned(&self, offset: u64) -> bool {
        self.pages.line(offset).shard.lock().is_pinned(offset)
    }

    /// Removes all pages, including pinned ones.
    pub fn clear(&self) {
        self.pages.clear();
    }

    /// Sets the budget in bytes and evicts the pages that exceed it.
    pub fn set_budget(&self, budget_bytes: usize) {
        self.pages.set_budget(budget_bytes);
    }

    /// The budget in bytes.
    pub(crate) fn budget(&self) -> usize {
        self.pages.budget_bytes.load(Ordering::Relaxed)
    }

    /// Bytes held, with decompressed heaps, and the budget in bytes.
    pub fn usage(&self) -> (usize, usize) {
        self.pages.usage()
    }

    /// Hits and misses of [`Cache::get`] since creation.
    pub fn counters(&self) -> (u64, u64) {
        self.pages.counters()
    }
}

/// The cache, generic over its values so that tests need no pages.
#[derive(Debug)]
struct Shards<V> {
    shards: Box<[Line<V>]>,
    budget_bytes: AtomicUsize,
    /// Bytes of decompressed heaps, which count against the budget.
    heap_bytes: Arc<AtomicUsize>,
}

/// A shard on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Line<V> {
    shard: Mutex<Shard<V>>,
    /// The number of values, for readers without the mutex: closing a large database removes the pages of a million
    /// extents, few of which have any.
    len: AtomicUsize,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl<V: Clone> Line<V> {
    /// Changes the shard. What is evicted must be returned, so that it is dropped after the mutex is released.
    fn change<R>(&self, change: impl FnOnce(&mut Shard<V>) -> R) -> R {
        let mut shard = self.shard.lock();
        let result = change(&mut shard);
        self.len.store(shard.len(), Ordering::Relaxed);
        result
    }
}

impl<V: Clone> Shards<V> {
    fn new(budget_bytes: usize) -> Self {
        let wanted = (budget_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        // Round down to a power of two.
        let count = 1 << wanted.ilog2();
        let line = || Line {
            shard: Mutex::new(Shard::new(budget_bytes / count)),
            len: AtomicUsize::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        };
        Shards {
            shards: std::iter::repeat_with(line).take(count).collect(),
            budget_bytes: AtomicUsize::new(budget_bytes),
            heap_bytes: Arc::default(),
        }
    }

    /// The share of a shard in the bytes of heaps.
    fn heap_bytes_of_shard(&self) -> usize {
        self.heap_bytes.load(Ordering::Relaxed) / self.shards.len()
    }

    fn line(&self, offset: u64) -> &Line<V> {
        // The table inside a shard uses the hash's low and highest bits.
        &self.shards[(hash(offset) >> 40) as usize & (self.shards.len() - 1)]
    }

    /// The value at `offset`, if it is there and `is_usable`.
    fn get_if(&self, offset: u64, is_usable: impl FnOnce(&V) -> bool) -> Option<V> {
        let (line, heap_bytes) = (self.line(offset), self.heap_bytes_of_shard());
        let (found, _evicted) = line.change(|shard| (shard.get(offset), shard.make_room(0, heap_bytes)));
        let found = found.filter(is_usable);
        let counter = if found.is_some() { &line.hits } else { &line.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Inserts a value, if `replaces` the one at its offset.
    fn insert_if(&self, offset: u64, value: V, bytes: usize, priority: Priority, replaces: impl FnOnce(&V) -> bool) {
        let (bytes, heap_bytes) = (bytes + OVERHEAD_BYTES, self.heap_bytes_of_shard());
        let _evicted = self.line(offset).change(|shard| {
            let is_kept = shard.peek(offset).is_some_and(|before| !replaces(&before));
            (!is_kept).then(|| shard.insert(offset, value, bytes, priority, heap_bytes))
        });
    }

    fn remove(&self, offsets: Range<u64>) {
        let first = offsets.start.div_ceil(BLOCK as u64).saturating_mul(BLOCK as u64);
        let probes = offsets.end.saturating_sub(first).div_ceil(BLOCK as u64);
        // Probes every possible offset in the range, or scans all cached pages, whichever takes fewer steps.
        // Who inserted pages of the extent has released it since: their numbers are visible.
        let held: usize = self.shards.iter().map(|line| line.len.load(Ordering::Relaxed)).sum();
        if probes <= held as u64 {
            for offset in (first..offsets.end).step_by(BLOCK) {
                let _removed = self.line(offset).change(|shard| shard.remove(offset));
            }
        } else {
            for line in self.shards.iter().filter(|line| line.len.load(Ordering::Relaxed) > 0) {
                let _removed = line.change(|shard| shard.remove_range(&offsets));
            }
        }
    }

    fn clear(&self) {
        self.remove(0..u64::MAX);
    }

    fn set_budget(&self, budget_bytes: usize) {
        self.budget_bytes.store(budget_bytes, Ordering::Relaxed);
        for line in &self.shards {
            let heap_bytes = self.heap_bytes_of_shard();
            let _evicted = line.change(|shard| shard.set_budget(budget_bytes / self.shards.len(), heap_bytes));
        }
    }

    fn usage(&self) -> (usize, usize) {
        let held: usize = self.shards.iter().map(|line| line.shard.lock().bytes()).sum();
        (held + self.heap_bytes.load(Ordering::Relaxed), self.budget_bytes.load(Ordering::Relaxed))
    }

    fn counters(&self) -> (u64, u64) {
        self.shards.iter().fold((0, 0), |(hits, misses), line| {
            (hits + line.hits.load(Ordering::Relaxed), misses + line.misses.load(Ordering::Relaxed))
        })
    }
}

#[cfg(test)]
mod tests;

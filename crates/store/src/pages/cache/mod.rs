//! The page cache: verified pages by their offset, within a budget of bytes.
//!
//! Pages are spread over shards by a hash of their offset; each shard has its own part of the budget, its own mutex (held
//! for a table lookup, never for I/O) and its own replacement order, see [`shard`].

mod shard;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use keyaki_device::BLOCK;
use parking_lot::Mutex;

use self::shard::{Shard, hash};
use crate::codec::Page;

const SHARDS_MAX: usize = 64;
/// A shard has at least this budget, so that small caches do not lose pages to an uneven spread.
const SHARD_BYTES_MIN: usize = 1 << 20;
/// What a page costs besides its own memory: table entry, slot, reference counts.
const OVERHEAD_BYTES: usize = 96;

/// Sharded, scan-resistant second-chance (CLOCK) cache.
#[derive(Debug)]
pub struct Cache {
    pages: Shards<Arc<Page>>,
}

/// How long a page is expected to be of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Index pages: evicted last.
    Index,
    /// Pages found by key.
    Lookup,
    /// Pages of a scan that passes by: evicted first unless asked for again.
    Scan,
}

impl Cache {
    /// An empty cache with a budget in bytes.
    pub fn new(budget_bytes: usize) -> Self {
        Cache { pages: Shards::new(budget_bytes) }
    }

    /// The page at `offset` of the data file, if it is cached; counts as a use.
    pub fn get(&self, offset: u64) -> Option<Arc<Page>> {
        self.pages.get(offset)
    }

    /// As [`Cache::get`], without a trace in the replacement order or the counters.
    pub fn peek(&self, offset: u64) -> Option<Arc<Page>> {
        self.pages.line(offset).shard.lock().peek(offset)
    }

    /// Puts a page into the cache, replacing the one at its offset. A page larger than a shard's part of the budget is
    /// not kept.
    pub fn insert(&self, offset: u64, page: Arc<Page>, priority: Priority) {
        let bytes = page.memory_bytes();
        self.pages.insert(offset, page, bytes, priority);
    }

    /// Forgets the pages in a range of offsets (their extent was freed and may be written anew). Nobody may be about to
    /// insert a page read from there before: readers keep their snapshot, and so the extent, until they have inserted.
    pub fn remove(&self, offsets: Range<u64>) {
        self.pages.remove(offsets);
    }

    /// Keeps a page from being evicted until it is unpinned (or its extent is freed). False if it is not in the cache, or pinned pages
    /// take most of the budget already.
    pub fn pin(&self, offset: u64) -> bool {
        self.pages.line(offset).shard.lock().pin(offset)
    }

    /// False if the page is not pinned (any more).
    pub fn unpin(&self, offset: u64) -> bool {
        self.pages.line(offset).shard.lock().unpin(offset)
    }

    /// Whether the page at `offset` is cached and pinned.
    pub fn is_pinned(&self, offset: u64) -> bool {
        self.pages.line(offset).shard.lock().is_pinned(offset)
    }

    /// Drops every page, pinned ones too.
    pub fn clear(&self) {
        self.pages.clear();
    }

    /// Gives the cache another budget; evicts what is beyond it.
    pub fn set_budget(&self, budget_bytes: usize) {
        self.pages.set_budget(budget_bytes);
    }

    /// (bytes held, budget)
    pub fn usage(&self) -> (usize, usize) {
        self.pages.usage()
    }

    /// (hits, misses) of `get` since creation.
    pub fn counters(&self) -> (u64, u64) {
        self.pages.counters()
    }
}

/// The cache for values of any kind.
#[derive(Debug)]
struct Shards<V> {
    shards: Box<[Line<V>]>,
    budget_bytes: AtomicUsize,
}

/// A shard on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Line<V> {
    shard: Mutex<Shard<V>>,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl<V: Clone> Shards<V> {
    fn new(budget_bytes: usize) -> Self {
        let wanted = (budget_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        // Round down to a power of two.
        let count = 1 << wanted.ilog2();
        let line = || Line {
            shard: Mutex::new(Shard::new(budget_bytes / count)),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        };
        Shards {
            shards: std::iter::repeat_with(line).take(count).collect(),
            budget_bytes: AtomicUsize::new(budget_bytes),
        }
    }

    fn line(&self, offset: u64) -> &Line<V> {
        // The table inside a shard uses the hash's low and highest bits.
        &self.shards[(hash(offset) >> 40) as usize & (self.shards.len() - 1)]
    }

    fn get(&self, offset: u64) -> Option<V> {
        let line = self.line(offset);
        let found = line.shard.lock().get(offset);
        let counter = if found.is_some() { &line.hits } else { &line.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    fn insert(&self, offset: u64, value: V, bytes: usize, priority: Priority) {
        // What is evicted is dropped here, after the mutex is free again.
        let _evicted = self.line(offset).shard.lock().insert(offset, value, bytes + OVERHEAD_BYTES, priority);
    }

    fn remove(&self, offsets: Range<u64>) {
        let first = offsets.start.div_ceil(BLOCK as u64).saturating_mul(BLOCK as u64);
        let probes = offsets.end.saturating_sub(first).div_ceil(BLOCK as u64);
        // Looking at every place a page can start at, or at every page: whichever is less.
        let held: usize = self.shards.iter().map(|line| line.shard.lock().len()).sum();
        if probes <= held as u64 {
            for offset in (first..offsets.end).step_by(BLOCK) {
                let _removed = self.line(offset).shard.lock().remove(offset);
            }
        } else {
            for line in &self.shards {
                let _removed = line.shard.lock().remove_range(&offsets);
            }
        }
    }

    fn clear(&self) {
        self.remove(0..u64::MAX);
    }

    fn set_budget(&self, budget_bytes: usize) {
        self.budget_bytes.store(budget_bytes, Ordering::Relaxed);
        for line in &self.shards {
            let _evicted = line.shard.lock().set_budget(budget_bytes / self.shards.len());
        }
    }

    fn usage(&self) -> (usize, usize) {
        (self.shards.iter().map(|line| line.shard.lock().bytes()).sum(), self.budget_bytes.load(Ordering::Relaxed))
    }

    fn counters(&self) -> (u64, u64) {
        self.shards.iter().fold((0, 0), |(hits, misses), line| {
            (hits + line.hits.load(Ordering::Relaxed), misses + line.misses.load(Ordering::Relaxed))
        })
    }
}

#[cfg(test)]
mod tests;

//! The page cache: verified pages by their offset, within a budget of bytes.

use std::ops::Range;
use std::sync::Arc;

use crate::codec::Page;

/// Sharded, scan-resistant second-chance (CLOCK) cache.
#[derive(Debug)]
pub struct Cache {
    _todo: (),
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
    pub fn new(_budget_bytes: usize) -> Self {
        todo!()
    }
    pub fn get(&self, _offset: u64) -> Option<Arc<Page>> {
        todo!()
    }
    pub fn insert(&self, _offset: u64, _page: Arc<Page>, _priority: Priority) {
        todo!()
    }
    /// Forgets the pages in a range of offsets (their extent was freed and may be written anew).
    pub fn remove(&self, _offsets: Range<u64>) {
        todo!()
    }
    pub fn clear(&self) {
        todo!()
    }
    /// (bytes held, budget)
    pub fn usage(&self) -> (usize, usize) {
        todo!()
    }
    /// (hits, misses) of `get` since creation.
    pub fn counters(&self) -> (u64, u64) {
        todo!()
    }
}

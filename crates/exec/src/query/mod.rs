//! What all parts of one running query share, whatever kind of query it is.

pub(crate) mod cache_use;
pub(crate) mod flow;
pub(crate) mod in_order;
pub(crate) mod output;
pub(crate) mod stats;
pub(crate) mod trace;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyaki_store::{Chunk, Page, TreeView};

use crate::{CacheUse, MemoryTrace, Stats};

/// Every page read in flight holds the query that asked for it first, and so its views: what they see is not freed, let
/// alone written anew, before the read has come back and its page is in the cache. (Otherwise a later reader of a reused
/// offset could join a read of the old contents.)
#[derive(Debug)]
pub(crate) struct Query {
    pub stats: Stats,
    /// What it is to the CPU's caches, if anybody cares.
    pub cache: Option<CacheUse>,
    /// Where its accesses to memory are recorded, if they are.
    pub trace: Option<Arc<MemoryTrace>>,
    stopped: AtomicBool,
    _views: Vec<TreeView>,
}

impl Query {
    pub fn new(stats: Stats, views: Vec<TreeView>, cache: Option<CacheUse>) -> Self {
        Query { stats, cache, trace: None, stopped: AtomicBool::new(false), _views: views }
    }

    pub fn traced(self, trace: Option<Arc<MemoryTrace>>) -> Self {
        Query { trace, ..self }
    }

    /// A page was given to a task.
    #[inline]
    pub fn page_given(&self, page: &Page) {
        if let Some(trace) = &self.trace {
            trace.given(self, page);
        }
    }

    /// Columns of rows were decoded, or will be.
    #[inline]
    pub fn decoded(&self, chunk: &Chunk, columns: &[usize]) {
        if let Some(trace) = &self.trace {
            trace.decoded(self, chunk, columns);
        }
    }

    /// Cancelled, failed or satisfied: nothing further is of use.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// True for the first caller.
    pub fn stop(&self) -> bool {
        let first = !self.stopped.swap(true, Ordering::SeqCst);
        self.stats.end();
        first
    }
}

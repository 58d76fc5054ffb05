//! One running query: the state that all its parts share, whichever operator it runs.
//!
//! - [`Stats`] counts pages, reads, tasks and rows.
//! - [`Flow`] bounds the bytes that each level of the query holds; [`Output`] passes batches to the consumer.
//! - [`InOrderQuery`] is a query on a thread of its own, for in-order execution.
//! - [`CacheUse`] is the class of the query for the governor of the CPU caches; [`MemoryTrace`] records its accesses.

mod cache_use;
mod flow;
mod in_order;
mod output;
mod pushed;
mod stats;
mod trace;

use std::sync::Arc;

use keyaki_llc::WorkClass;
use keyaki_primitives::sync::atomic::{AtomicBool, Ordering};
use keyaki_store::{Chunk, Page, TreeView};

pub use cache_use::CacheUse;
pub(crate) use cache_use::{evict_behind, prefetch_next};
pub(crate) use flow::{Charge, Flow};
pub(crate) use in_order::InOrderQuery;
pub(crate) use output::Output;
pub use stats::{Sample, Stats, StatsSnapshot};
pub use trace::MemoryTrace;

/// The state shared by all tasks of one query.
///
/// Every page read in flight holds the query that requested it first, and so the query's views: the store does not reuse
/// the extents that these snapshots see before the read has completed and its page is cached. Otherwise a later reader of
/// a reused offset could join a read of the old contents.
#[derive(Debug)]
pub(crate) struct Query {
    pub stats: Stats,
    /// The query's class for the governor of the CPU caches; `None` if it is not governed.
    pub cache: Option<CacheUse>,
    /// Receives the query's memory accesses, if they are traced.
    pub trace: Option<Arc<MemoryTrace>>,
    stopped: AtomicBool,
    _views: Vec<TreeView>,
}

impl Query {
    pub fn new(stats: Stats, views: Vec<TreeView>, cache: Option<CacheUse>) -> Self {
        Query { stats, cache, trace: None, stopped: AtomicBool::new(false), _views: views }
    }

    /// The same query, traced.
    pub fn traced(self, trace: Option<Arc<MemoryTrace>>) -> Self {
        Query { trace, ..self }
    }

    fn class(&self) -> Option<WorkClass> {
        self.cache.as_ref().map(|cache| cache.class)
    }

    /// Records that a task has received a page.
    #[inline]
    pub fn record_page(&self, page: &Page) {
        if let Some(trace) = &self.trace {
            trace.record_page(self.class(), page);
        }
    }

    /// Records that columns of a chunk are decoded.
    #[inline]
    pub fn record_columns(&self, chunk: &Chunk, columns: &[usize]) {
        if let Some(trace) = &self.trace {
            trace.record_columns(self.class(), chunk, columns);
        }
    }

    /// The query was cancelled, has failed or has returned all rows: further work for it is useless.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Stops the query. True for the first caller.
    pub fn stop(&self) -> bool {
        let first = !self.stopped.swap(true, Ordering::SeqCst);
        self.stats.end();
        first
    }
}

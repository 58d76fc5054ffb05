//! What all parts of one running query share, whatever kind of query it is.

use std::sync::atomic::{AtomicBool, Ordering};

use keyaki_store::TreeView;

use crate::Stats;

/// Every page read in flight holds the query that asked for it first, and so its views: what they see is not freed, let
/// alone written anew, before the read has come back and its page is in the cache. (Otherwise a later reader of a reused
/// offset could join a read of the old contents.)
#[derive(Debug)]
pub(crate) struct Query {
    pub stats: Stats,
    stopped: AtomicBool,
    _views: Vec<TreeView>,
}

impl Query {
    pub fn new(stats: Stats, views: Vec<TreeView>) -> Self {
        Query { stats, stopped: AtomicBool::new(false), _views: views }
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

//! Pages for one task of an out-of-order query, which is suspended while a page is read.
//!
//! Pages advised by `prefetch` are read ahead in the order of the advice, within a budget of bytes. They are held until
//! they are requested, so that a small or busy cache cannot evict them before. A page counts against the budget from the
//! registration of its read until its request.
//!
//! A source with a projection uses pages of leaves that have these columns. It reads pages of scans with these columns
//! only, unless they are cached with other columns, and others, which further lookups are likely to use, with all.
//!
//! While requests find their pages in the cache, advice is only kept, because a lookup in the cache takes as long as
//! decoding a few columns of the page. The first request of a page that is not cached starts the read-ahead again.
//!
//! Invariant: `bytes` is the sum of the lengths of `reads`. It exceeds the budget only by a single page.

use std::collections::VecDeque;
use std::sync::Arc;

use keyaki_primitives::sync::Mutex;
use keyaki_store::{Page, PageRef, PageSource, Priority, Projection, Result, Schema};

use super::check;
use crate::base::Error;
use crate::query::Query;
use crate::runtime::{OffsetMap, PageRead, ReadOutcome, Runtime};

/// After this many requests in a row that the cache answers, advice is only kept. The number doubles each time that a page
/// is missing after that: where a few pages are missing, waiting for each of them takes longer than the lookups.
const HITS_MIN: usize = 64;
/// Maximum number of times that [`HITS_MIN`] doubles.
const DOUBLED_MAX: u32 = 20;

#[derive(Debug)]
pub(crate) struct TaskPages {
    runtime: Arc<Runtime>,
    query: Arc<Query>,
    /// Budget of the read-ahead.
    read_ahead_bytes: usize,
    /// Cache priority of pages read ahead.
    priority: Priority,
    /// The columns of leaf pages that the task uses; `None` if these are all.
    projection: Option<Arc<Projection>>,
    ahead: Mutex<ReadAhead>,
}

#[derive(Debug, Default)]
struct ReadAhead {
    /// Reads in flight or done, not yet requested.
    reads: OffsetMap<u64, Arc<PageRead>>,
    /// Sum of the page lengths of `reads`.
    bytes: usize,
    /// Pages advised beyond the budget. Those without an entry in `waiting` have been requested since.
    advised: VecDeque<Advice>,
    waiting: OffsetMap<u64, ()>,
    /// Requests since the last one of a page that had to be read.
    hits: usize,
    /// Number of times that [`HITS_MIN`] has doubled.
    doubled: u32,
}

/// A page that will be requested.
#[derive(Debug)]
struct Advice {
    page: PageRef,
    schema: Arc<Schema>,
    /// Of the request of a leaf page; `None` for other pages.
    priority: Option<Priority>,
}

impl ReadAhead {
    fn insert(&mut self, read: Arc<PageRead>) {
        let bytes = read.page.len as usize;
        match self.reads.insert(read.page.offset, read) {
            None => self.bytes += bytes,
            Some(replaced) => self.bytes = self.bytes + bytes - replaced.page.len as usize,
        }
    }

    fn remove(&mut self, offset: u64) -> Option<Arc<PageRead>> {
        let read = self.reads.remove(&offset)?;
        let bytes = read.page.len as usize;
        assert!(self.bytes >= bytes, "read-ahead holds {} bytes, {bytes} are returned", self.bytes);
        self.bytes -= bytes;
        Some(read)
    }

    /// True if all of the last requests were answered from the cache.
    fn is_idle(&self) -> bool {
        self.hits >= HITS_MIN << self.doubled
    }
}

impl TaskPages {
    /// Pages for a task of `query`, reading ahead at most `read_ahead_bytes` bytes or one page; 0 disables read-ahead.
    pub fn new(runtime: Arc<Runtime>, query: Arc<Query>, read_ahead_bytes: usize) -> Self {
        let (priority, ahead) = (Priority::Scan, Mutex::default());
        TaskPages { runtime, query, read_ahead_bytes, priority, projection: None, ahead }
    }

    /// The same source, which caches pages read ahead with this priority instead of that of a scan.
    pub fn with_priority(self, priority: Priority) -> Self {
        TaskPages { priority, ..self }
    }

    /// The same source for a task that uses only these columns of leaf pages.
    pub fn with_projection(self, projection: Option<Arc<Projection>>) -> Self {
        TaskPages { projection, ..self }
    }

    /// The columns that a request needs: those of the projection for a leaf page, otherwise all (`None`).
    fn needed(&self, is_leaf: bool) -> Option<&Projection> {
        self.projection.as_deref().filter(|_| is_leaf)
    }

    /// The columns with which a page is read; `priority` is that of a leaf page. All (`None`) for a page that is cached with
    /// other columns: queries that use different columns would replace each other's pages.
    fn kept(&self, page: PageRef, priority: Option<Priority>) -> Option<&Arc<Projection>> {
        let projection = self.projection.as_ref().filter(|_| priority == Some(Priority::Scan))?;
        (!self.runtime.store.cache().holds(page.offset)).then_some(projection)
    }

    /// Takes the read ahead of a requested page, if there is one, and starts further reads within the budget.
    fn take_ahead(&self, page: PageRef) -> Option<Arc<PageRead>> {
        let mut ahead = self.ahead.lock();
        let read = ahead.remove(page.offset);
        match &read {
            Some(_) => ahead.hits = 0,
            None => {
                // This page's advice came too late. Other advice stays: pages of a leaf and of its messages alternate.
                ahead.waiting.remove(&page.offset);
                ahead.hits += 1;
            }
        }
        if ahead.is_idle() {
            while let Some(advice) = ahead.advised.front()
                && !ahead.waiting.contains_key(&advice.page.offset)
            {
                ahead.advised.pop_front();
            }
        } else if ahead.bytes <= self.read_ahead_bytes / 2 {
            // Refills by half of the budget, so that neighbouring pages are requested together and become one read.
            self.fill(&mut ahead);
        }
        read.filter(|read| read.page == page)
    }

    /// Starts the read-ahead, because a requested page is not cached.
    fn missed(&self) {
        let mut ahead = self.ahead.lock();
        let was_idle = ahead.is_idle();
        ahead.hits = 0;
        if was_idle {
            ahead.doubled = (ahead.doubled + 1).min(DOUBLED_MAX);
            self.fill(&mut ahead);
        }
    }

    /// Starts reads of advised pages within the budget.
    fn fill(&self, ahead: &mut ReadAhead) {
        let store = &self.runtime.store;
        let mut requests = Vec::new();
        while let Some(&Advice { page, ref schema, priority }) = ahead.advised.front() {
            let is_wanted = ahead.waiting.contains_key(&page.offset);
            let is_cached = || store.cache().get_columns(page.offset, self.needed(priority.is_some())).is_some();
            if is_wanted && !is_cached() && check(store, page).is_ok() {
                // A single page may exceed the budget.
                if ahead.bytes > 0 && ahead.bytes + page.len as usize > self.read_ahead_bytes {
                    break;
                }
                // Errors are left to the request of the page.
                let reads = &self.runtime.in_flight;
                if let Ok((read, is_new)) =
                    reads.join(store, page, schema, self.priority, self.kept(page, priority), &self.query)
                {
                    if is_new {
                        requests.push(read.clone());
                    }
                    ahead.insert(read);
                }
            }
            ahead.waiting.remove(&page.offset);
            ahead.advised.pop_front();
        }
        self.runtime.request(requests);
    }

    async fn find(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority, is_leaf: bool) -> Result<Arc<Page>> {
        let needed = self.needed(is_leaf);
        let stats = &self.query.stats;
        if let Some(read) = self.take_ahead(page) {
            if read.is_done() {
                stats.page_cached();
            } else {
                stats.page_shared();
            }
            // A failed read-ahead is not final: the page is requested again below.
            if let ReadOutcome::Page(Ok(found)) = read.wait().await
                && found.has(needed)
            {
                let cache = self.runtime.store.cache();
                if priority == Priority::Index && !cache.is_pinned(page.offset) {
                    // Pages read ahead have the priority of a scan.
                    cache.insert(page.offset, found.clone(), priority);
                }
                return Ok(found);
            }
        }
        let store = &self.runtime.store;
        check(store, page)?;
        loop {
            if self.query.is_stopped() {
                return Err(Error::Cancelled.into_store_error());
            }
            if let Some(page) = store.cache().get_columns(page.offset, needed) {
                stats.page_cached();
                return Ok(page);
            }
            let (reads, kept) = (&self.runtime.in_flight, self.kept(page, is_leaf.then_some(priority)));
            let (read, is_new) = reads.join(store, page, schema, priority, kept, &self.query)?;
            if is_new {
                self.runtime.request([read.clone()]);
                stats.page_missed();
            } else {
                stats.page_shared();
            }
            self.missed();
            match read.wait().await {
                // A read of other columns had begun before.
                ReadOutcome::Page(Ok(page)) if !page.has(needed) => {}
                ReadOutcome::Page(result) => return result,
                ReadOutcome::Retry => {}
            }
        }
    }
}

impl PageSource for TaskPages {
    async fn page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        let found = self.find(page, schema, priority, false).await?;
        self.query.record_page(&found);
        Ok(found)
    }

    async fn leaf_page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        let found = self.find(page, schema, priority, true).await?;
        self.query.record_page(&found);
        Ok(found)
    }

    fn prefetch(&self, pages: &[PageRef], schema: &Arc<Schema>) {
        self.advise(pages, schema, None);
    }

    fn prefetch_leaf_pages(&self, pages: &[PageRef], schema: &Arc<Schema>, priority: Priority) {
        self.advise(pages, schema, Some(priority));
    }

    fn read_ahead_bytes(&self) -> usize {
        self.read_ahead_bytes
    }
}

impl TaskPages {
    /// Reads pages ahead; `priority` is that of leaf pages.
    fn advise(&self, pages: &[PageRef], schema: &Arc<Schema>, priority: Option<Priority>) {
        if self.read_ahead_bytes == 0 || self.query.is_stopped() {
            return;
        }
        let mut ahead = self.ahead.lock();
        for &page in pages {
            // The same page may be advised twice: for a leaf ahead, and when that leaf is entered.
            if !ahead.reads.contains_key(&page.offset) && ahead.waiting.insert(page.offset, ()).is_none() {
                ahead.advised.push_back(Advice { page, schema: schema.clone(), priority });
            }
        }
        if !ahead.is_idle() {
            self.fill(&mut ahead);
        }
    }
}

//! Where the tasks of a query get their pages from: out of order, through the runtime, or in order, by blocking reads.

pub(crate) mod touch;

use std::collections::VecDeque;
use std::sync::Arc;

use keyaki_device::{BLOCK, Buffer};
use keyaki_store::{Error, Page, PageRef, PageSource, Priority, Result, Schema, Store};
use parking_lot::Mutex;

use crate::query::Query;
use crate::runtime::{OffsetMap, Outcome, PageRead, Runtime, corrupt_reference};

/// Longest page that is believed, in bytes; what claims to be longer is a damaged reference.
const PAGE_BYTES_MAX: u32 = 256 << 20;

/// Refuses references that cannot be right, before any buffer is made for them.
fn check(store: &Store, page: PageRef) -> Result<()> {
    let aligned = page.offset.is_multiple_of(BLOCK as u64) && (page.len as usize).is_multiple_of(BLOCK);
    if aligned && page.len > 0 && page.len <= PAGE_BYTES_MAX && page.offset <= i64::MAX as u64 {
        Ok(())
    } else {
        let detail = format!("{page:?} is not a whole number of blocks of at most {PAGE_BYTES_MAX} bytes");
        Err(corrupt_reference(store.data_file().path(), page, detail))
    }
}

fn stopped() -> Error {
    crate::Error::Cancelled.of_page_source()
}

/// Pages for one task, which steps aside while a page is being read.
///
/// Pages advised by `prefetch` are read in that order, as many at a time as the budget allows, and held until they are
/// asked for, so that a small or busy cache cannot lose them meanwhile.
#[derive(Debug)]
pub(crate) struct TaskPages {
    runtime: Arc<Runtime>,
    query: Arc<Query>,
    read_ahead_bytes: usize,
    /// Of pages read ahead.
    priority: Priority,
    ahead: Mutex<Ahead>,
}

#[derive(Debug, Default)]
struct Ahead {
    /// Under way or done.
    reads: OffsetMap<u64, Arc<PageRead>>,
    /// Bytes of `reads`.
    bytes: usize,
    /// Advised, but beyond the budget so far. Those that are not in `waiting` any more have been asked for meanwhile.
    advised: VecDeque<(PageRef, Arc<Schema>)>,
    waiting: OffsetMap<u64, ()>,
}

impl TaskPages {
    pub fn new(runtime: Arc<Runtime>, query: Arc<Query>, read_ahead_bytes: usize) -> Self {
        TaskPages { runtime, query, read_ahead_bytes, priority: Priority::Scan, ahead: Mutex::default() }
    }

    /// Pages read ahead are put into the cache with this priority, not as those of a scan that passes by.
    pub fn with_priority(self, priority: Priority) -> Self {
        TaskPages { priority, ..self }
    }

    /// The read ahead of a page that is now asked for, if there is one; makes place for the next ones.
    fn take_ahead(&self, page: PageRef) -> Option<Arc<PageRead>> {
        let mut ahead = self.ahead.lock();
        let read = match ahead.reads.remove(&page.offset) {
            Some(read) => {
                ahead.bytes -= read.page.len as usize;
                Some(read)
            }
            None => {
                // Its advice comes too late; that for others does not: pages of a leaf and of messages take turns.
                ahead.waiting.remove(&page.offset);
                None
            }
        };
        // Not page by page, so that neighbours are asked for together and become one read.
        if ahead.bytes <= self.read_ahead_bytes / 2 {
            self.fill(&mut ahead);
        }
        read.filter(|read| read.page == page)
    }

    /// Starts reads of advised pages within the budget.
    fn fill(&self, ahead: &mut Ahead) {
        let mut requests = Vec::new();
        while let Some((page, schema)) = ahead.advised.front() {
            let page = *page;
            let wanted = ahead.waiting.contains_key(&page.offset);
            if wanted
                && self.runtime.store.cache().get(page.offset).is_none()
                && check(&self.runtime.store, page).is_ok()
            {
                // One page is always within the budget.
                if ahead.bytes > 0 && ahead.bytes + page.len as usize > self.read_ahead_bytes {
                    break;
                }
                if let Ok((read, new)) = self.runtime.table.join(page, schema, self.priority, &self.query) {
                    if new {
                        requests.push(read.clone());
                    }
                    if ahead.reads.insert(page.offset, read).is_none() {
                        ahead.bytes += page.len as usize;
                    }
                }
            }
            ahead.waiting.remove(&page.offset);
            ahead.advised.pop_front();
        }
        self.runtime.request(requests);
    }
}

impl PageSource for TaskPages {
    async fn page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        let found = self.find(page, schema, priority).await?;
        self.query.page_given(&found);
        Ok(found)
    }

    fn prefetch(&self, pages: &[PageRef], schema: &Arc<Schema>) {
        if self.read_ahead_bytes == 0 || self.query.is_stopped() {
            return;
        }
        let mut ahead = self.ahead.lock();
        for &page in pages {
            // What is advised again (for a leaf ahead, then when it is entered) must not be read again.
            if !ahead.reads.contains_key(&page.offset) && ahead.waiting.insert(page.offset, ()).is_none() {
                ahead.advised.push_back((page, schema.clone()));
            }
        }
        self.fill(&mut ahead);
    }

    fn read_ahead_bytes(&self) -> usize {
        self.read_ahead_bytes
    }
}

impl TaskPages {
    async fn find(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        let stats = &self.query.stats;
        if let Some(read) = self.take_ahead(page) {
            if read.is_done() {
                stats.page_cached();
            } else {
                stats.page_shared();
            }
            // A failed read-ahead is no verdict yet: the page is asked for again below.
            if let Outcome::Page(Ok(page)) = read.wait().await {
                return Ok(page);
            }
        }
        check(&self.runtime.store, page)?;
        loop {
            if self.query.is_stopped() {
                return Err(stopped());
            }
            if let Some(page) = self.runtime.store.cache().get(page.offset) {
                stats.page_cached();
                return Ok(page);
            }
            let (read, new) = self.runtime.table.join(page, schema, priority, &self.query)?;
            if new {
                self.runtime.request([read.clone()]);
                stats.page_missed();
            } else {
                stats.page_shared();
            }
            if let Outcome::Page(result) = read.wait().await {
                return result;
            }
        }
    }
}

/// Pages by blocking reads, one at a time: the in-order baseline.
#[derive(Debug)]
pub(crate) struct SequentialPages {
    store: Store,
    query: Arc<Query>,
}

impl SequentialPages {
    pub fn new(store: Store, query: Arc<Query>) -> Self {
        SequentialPages { store, query }
    }
}

impl PageSource for SequentialPages {
    async fn page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        check(&self.store, page)?;
        if self.query.is_stopped() {
            return Err(stopped());
        }
        let stats = &self.query.stats;
        if let Some(page) = self.store.cache().get(page.offset) {
            stats.page_cached();
            self.query.page_given(&page);
            return Ok(page);
        }
        stats.page_missed();
        stats.read_started(u64::from(page.len));
        stats.pages_read(1);
        let mut buffer = Buffer::zeroed(page.len as usize);
        let outcome = self.store.data_file().read_at(page.offset, &mut buffer);
        stats.read_completed(self.store.device().now_ns());
        outcome?;
        let page = self.store.admit(&buffer, page, schema, priority)?;
        self.query.page_given(&page);
        Ok(page)
    }

    fn prefetch(&self, _pages: &[PageRef], _schema: &Arc<Schema>) {}
}

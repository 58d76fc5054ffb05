//! Where the tasks of a query get their pages from: out of order, through the runtime, or in order, by blocking reads.

use std::sync::Arc;

use keyaki_device::{BLOCK, Buffer};
use keyaki_store::{Error, Page, PageRef, PageSource, Priority, Result, Schema, Store};
use parking_lot::Mutex;

use crate::query::Query;
use crate::runtime::{Outcome, PageRead, Runtime};

/// Longest page that is believed, in bytes; what claims to be longer is a damaged reference.
const PAGE_BYTES_MAX: u32 = 256 << 20;

/// Refuses references that cannot be right, before any buffer is made for them.
fn check(page: PageRef) -> Result<()> {
    let aligned = page.offset.is_multiple_of(BLOCK as u64) && (page.len as usize).is_multiple_of(BLOCK);
    if aligned && page.len > 0 && page.len <= PAGE_BYTES_MAX && page.offset <= i64::MAX as u64 {
        Ok(())
    } else {
        Err(Error::Invalid(format!("damaged page reference: {page:?}")))
    }
}

fn stopped() -> Error {
    Error::Invalid(crate::Error::Cancelled.to_string())
}

/// Pages for tasks that step aside while a page is being read.
///
/// Pages read ahead are held until they are asked for, so that a small or busy cache cannot lose them meanwhile.
#[derive(Debug)]
pub(crate) struct TaskPages {
    runtime: Arc<Runtime>,
    query: Arc<Query>,
    read_ahead_bytes: usize,
    ahead: Mutex<Ahead>,
}

#[derive(Debug, Default)]
struct Ahead {
    reads: crate::runtime::OffsetMap<u64, Arc<PageRead>>,
    bytes: usize,
}

impl TaskPages {
    pub fn new(runtime: Arc<Runtime>, query: Arc<Query>, read_ahead_bytes: usize) -> Self {
        TaskPages { runtime, query, read_ahead_bytes, ahead: Mutex::default() }
    }

    fn take_ahead(&self, page: PageRef) -> Option<Arc<PageRead>> {
        if self.read_ahead_bytes == 0 {
            return None;
        }
        let mut ahead = self.ahead.lock();
        let read = ahead.reads.remove(&page.offset)?;
        ahead.bytes -= read.page.len as usize;
        (read.page == page).then_some(read)
    }

    /// The read of a page that is not in the cache.
    fn read(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<(Arc<PageRead>, bool)> {
        let (read, new) = self.runtime.table.join(page, schema, priority, &self.query)?;
        if new {
            self.runtime.request(read.clone());
        }
        Ok((read, new))
    }
}

impl PageSource for TaskPages {
    async fn page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
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
        check(page)?;
        loop {
            if self.query.is_stopped() {
                return Err(stopped());
            }
            if let Some(page) = self.runtime.store.cache().get(page.offset) {
                stats.page_cached();
                return Ok(page);
            }
            let (read, new) = self.read(page, schema, priority)?;
            if new {
                stats.page_missed();
            } else {
                stats.page_shared();
            }
            if let Outcome::Page(result) = read.wait().await {
                return result;
            }
        }
    }

    fn prefetch(&self, pages: &[PageRef], schema: &Arc<Schema>) {
        if self.query.is_stopped() {
            return;
        }
        let mut ahead = self.ahead.lock();
        for &page in pages {
            let full = ahead.bytes + page.len as usize > self.read_ahead_bytes;
            if full || ahead.reads.contains_key(&page.offset) {
                continue;
            }
            if check(page).is_err() || self.runtime.store.cache().get(page.offset).is_some() {
                continue;
            }
            if let Ok((read, _)) = self.read(page, schema, Priority::Scan) {
                ahead.bytes += page.len as usize;
                ahead.reads.insert(page.offset, read);
            }
        }
    }

    fn read_ahead_bytes(&self) -> usize {
        self.read_ahead_bytes
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
        check(page)?;
        if self.query.is_stopped() {
            return Err(stopped());
        }
        let stats = &self.query.stats;
        if let Some(page) = self.store.cache().get(page.offset) {
            stats.page_cached();
            return Ok(page);
        }
        stats.page_missed();
        stats.read_started(u64::from(page.len));
        stats.pages_read(1);
        let mut buffer = Buffer::zeroed(page.len as usize);
        let outcome = self.store.data_file().read_at(page.offset, &mut buffer);
        stats.read_completed(self.store.device().now_ns());
        outcome?;
        self.store.admit(&buffer, page, schema, priority)
    }

    fn prefetch(&self, _pages: &[PageRef], _schema: &Arc<Schema>) {}
}

//! Pages by blocking reads, one at a time: the in-order baseline.

use std::sync::Arc;

use keyaki_device::Buffer;
use keyaki_store::{Page, PageRef, PageSource, Priority, Result, Schema, Store};

use super::check;
use crate::base::Error;
use crate::query::Query;

/// Pages for the tasks of an in-order query, on its thread.
#[derive(Debug)]
pub(crate) struct BlockingTaskPages {
    store: Store,
    query: Arc<Query>,
}

impl BlockingTaskPages {
    pub fn new(store: Store, query: Arc<Query>) -> Self {
        BlockingTaskPages { store, query }
    }
}

impl PageSource for BlockingTaskPages {
    async fn page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        check(&self.store, page)?;
        if self.query.is_stopped() {
            return Err(Error::Cancelled.into_store_error());
        }
        let stats = &self.query.stats;
        if let Some(page) = self.store.cache().get(page.offset) {
            stats.page_cached();
            self.query.record_page(&page);
            return Ok(page);
        }
        stats.page_missed();
        stats.read_started(u64::from(page.len));
        stats.pages_read(1);
        let mut buffer = Buffer::zeroed(page.len as usize);
        let outcome = self.store.data_file().read_at(page.offset, &mut buffer);
        stats.read_completed(self.store.device().now_ns());
        outcome?;
        let page = self.store.admit(&buffer, page, schema, priority, None)?;
        self.query.record_page(&page);
        Ok(page)
    }

    fn prefetch(&self, _pages: &[PageRef], _schema: &Arc<Schema>) {}
}

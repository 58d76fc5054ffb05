//! Page sources: the interface through which reads get verified pages.
//!
//! Reads are generic over their source. The same code blocks on one page at a time ([`BlockingPages`]), or keeps many
//! pages in flight (a source of the executor, which suspends the future).

use std::future::Future;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::base::{Result, Schema};
use crate::codec::{Page, PageRef};
use crate::pages::{Files, Priority};

/// A source of verified pages. On a cache miss an implementation blocks or suspends the future.
pub trait PageSource: Send + Sync {
    /// Returns the page from the cache, or reads it. `schema` is the schema of the page's tree.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] if the page fails verification, [`crate::Error::Closed`], device errors, and for
    /// sources outside this crate [`crate::Error::PageSource`].
    fn page(
        &self,
        page: PageRef,
        schema: &Arc<Schema>,
        priority: Priority,
    ) -> impl Future<Output = Result<Arc<Page>>> + Send;

    /// As [`PageSource::page`], for a page of a leaf. A source for readers that use some columns only may return it without
    /// the others, see [`Page::has`], and keep only these columns of a page with [`Priority::Scan`].
    fn leaf_page(
        &self,
        page: PageRef,
        schema: &Arc<Schema>,
        priority: Priority,
    ) -> impl Future<Output = Result<Arc<Page>>> + Send {
        self.page(page, schema, priority)
    }

    /// A hint that these pages will be read soon, in this order. Adjacent pages may be read together.
    fn prefetch(&self, pages: &[PageRef], schema: &Arc<Schema>);

    /// As [`PageSource::prefetch`], for pages that will be requested by [`PageSource::leaf_page`] with this priority.
    fn prefetch_leaf_pages(&self, pages: &[PageRef], schema: &Arc<Schema>, _priority: Priority) {
        self.prefetch(pages, schema);
    }

    /// A hint that these pages will be requested in any case, at the latest after the first of the prefetched ones.
    fn prefetch_first(&self, pages: &[PageRef], schema: &Arc<Schema>) {
        self.prefetch(pages, schema);
    }

    /// Number of bytes that a long scan prefetches ahead; 0 disables prefetching.
    fn read_ahead_bytes(&self) -> usize {
        0
    }
}

/// A reference to a source, of any kind, is a source.
impl<R> PageSource for R
where
    R: Deref<Target: PageSource> + Send + Sync,
{
    fn page(
        &self,
        page: PageRef,
        schema: &Arc<Schema>,
        priority: Priority,
    ) -> impl Future<Output = Result<Arc<Page>>> + Send {
        (**self).page(page, schema, priority)
    }

    fn leaf_page(
        &self,
        page: PageRef,
        schema: &Arc<Schema>,
        priority: Priority,
    ) -> impl Future<Output = Result<Arc<Page>>> + Send {
        (**self).leaf_page(page, schema, priority)
    }

    fn prefetch(&self, pages: &[PageRef], schema: &Arc<Schema>) {
        (**self).prefetch(pages, schema);
    }

    fn prefetch_leaf_pages(&self, pages: &[PageRef], schema: &Arc<Schema>, priority: Priority) {
        (**self).prefetch_leaf_pages(pages, schema, priority);
    }

    fn prefetch_first(&self, pages: &[PageRef], schema: &Arc<Schema>) {
        (**self).prefetch_first(pages, schema);
    }

    fn read_ahead_bytes(&self) -> usize {
        (**self).read_ahead_bytes()
    }
}

/// Blocking reads through the cache of the store, one page at a time.
#[derive(Debug, Clone)]
pub struct BlockingPages {
    pub(crate) files: Arc<Files>,
}

impl PageSource for BlockingPages {
    async fn page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        self.files.read_page(page, schema, priority)
    }

    fn prefetch(&self, _pages: &[PageRef], _schema: &Arc<Schema>) {}
}

/// Runs a future whose page source never suspends.
///
/// # Panics
/// If the future suspends.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("blocking pages never suspend"),
    }
}

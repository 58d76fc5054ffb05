//! Where reads get their pages from.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::base::{Result, Schema};
use crate::codec::{Page, PageRef};
use crate::pages::{Files, Priority};

/// Gives out verified pages. Implementations differ in what happens on a cache miss: block, or step aside.
pub trait PageSource: Send + Sync {
    /// The page, from the cache or read now. `schema` is that of the page's tree.
    fn page(
        &self,
        page: PageRef,
        schema: &Arc<Schema>,
        priority: Priority,
    ) -> impl Future<Output = Result<Arc<Page>>> + Send;

    /// Advice: these pages will be asked for soon, in this order. Neighbours may be read together.
    fn prefetch(&self, pages: &[PageRef], schema: &Arc<Schema>);

    /// How many bytes ahead a long scan should prefetch; 0: not at all.
    fn read_ahead_bytes(&self) -> usize {
        0
    }
}

/// Blocking reads through the store's cache, one page at a time.
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

//! Reads of cached pages on the calling thread.

use std::sync::Arc;

use keyaki_store::{
    ColumnBuilder, Direction, Error as StoreError, KeyRange, Page, PageRef, PageSource, Priority, Schema, Store,
    TreeView, block_on,
};

/// A source of cached pages, which fails on a cache miss.
pub(super) struct CachedPages<'a> {
    pub store: &'a Store,
}

/// The error of a cache miss.
#[derive(Debug, thiserror::Error)]
#[error("page is not cached")]
struct NotCached;

/// True for the error of a cache miss.
pub(super) fn is_not_cached(error: &StoreError) -> bool {
    matches!(error, StoreError::PageSource(cause) if cause.is::<NotCached>())
}

impl PageSource for CachedPages<'_> {
    async fn page(&self, page: PageRef, _: &Arc<Schema>, _: Priority) -> Result<Arc<Page>, StoreError> {
        self.store.cache().get(page.offset).ok_or_else(|| StoreError::PageSource(Arc::new(NotCached)))
    }

    fn prefetch(&self, _: &[PageRef], _: &Arc<Schema>) {}
}

/// Appends the columns at `places` of the first `rows_max` rows in `ranges`, which are in ascending order. Returns the
/// number of rows.
///
/// # Errors
/// The error of a cache miss, errors of the store.
pub(super) fn collect(
    view: &TreeView,
    pages: &CachedPages<'_>,
    ranges: &[KeyRange],
    direction: Direction,
    places: &[usize],
    builders: &mut [ColumnBuilder],
    rows_max: usize,
) -> Result<usize, StoreError> {
    let mut rows = 0;
    for at in 0..ranges.len() {
        let range = match direction {
            Direction::Ascending => &ranges[at],
            Direction::Descending => &ranges[ranges.len() - 1 - at],
        };
        let mut cursor = view.cursor(pages, range.clone(), direction);
        while rows < rows_max
            && let Some(chunk) = block_on(cursor.next())?
        {
            let left = rows_max - rows;
            if chunk.rows() > left {
                let first: Vec<u32> = (0..left as u32).collect();
                chunk.append_selected(places, &first, builders)?;
                return Ok(rows_max);
            }
            chunk.append_to(places, builders)?;
            rows += chunk.rows();
        }
        if rows >= rows_max {
            break;
        }
    }
    Ok(rows)
}

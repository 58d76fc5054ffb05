//! Counting the rows of a range.
//!
//! The row counts of leaves and pages are stored, so a counter reads only the pages at the two ends of the range and
//! the pages that messages affect.

use crate::base::Result;
use crate::pages::PageSource;
use crate::tree::Cursor;

/// Counts the rows of a range incrementally. Created by [`TreeView::counter`](crate::TreeView::counter).
#[derive(Debug)]
pub struct Counter<'s, P> {
    pub(crate) cursor: Cursor<'s, P>,
}

impl<P: PageSource> Counter<'_, P> {
    /// The number of rows of the next part of the range, possibly 0; `None` at the end. A call whose future is dropped
    /// changes nothing.
    ///
    /// # Errors
    /// As [`Cursor::next`].
    pub async fn next(&mut self) -> Result<Option<u64>> {
        self.cursor.next_count().await
    }
}

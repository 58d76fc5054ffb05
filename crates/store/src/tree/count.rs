//! Counting rows without looking at them.
//!
//! Leaves and pages know how many rows they have. So only those pages are read that the ends of the range fall on, and those
//! that messages fall on.

use crate::base::Result;
use crate::pages::PageSource;
use crate::tree::Cursor;

/// Counts the rows of a range, a part at a time. Made by [`TreeView::counter`](crate::TreeView::counter).
#[derive(Debug)]
pub struct Counter<'s, P> {
    pub(crate) cursor: Cursor<'s, P>,
}

impl<P: PageSource> Counter<'_, P> {
    /// How many rows come next (maybe none); `None` at the end. A call that is given up changes nothing.
    ///
    /// # Errors
    /// As [`Cursor::next`].
    pub async fn next(&mut self) -> Result<Option<u64>> {
        self.cursor.next_count().await
    }
}

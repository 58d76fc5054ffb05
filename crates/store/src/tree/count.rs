//! Counting the rows of a range.
//!
//! The rows of a leaf's part of the range are
//!
//! ```text
//! rows of the leaf   from the index page; the pages at the two ends of the range are read
//! + known changes    of messages whose writers knew the rows of their keys: no page of the leaf is read
//! + other changes    the page of the leaf that may have the key is read
//! ```
//!
//! *Invariant.* A call whose future is dropped, or that fails to read a page, changes nothing that a repetition would not
//! find: each step is complete before the next page is read.

use std::sync::Arc;

use crate::base::{Direction, Error, Key, Result};
use crate::codec::Page;
use crate::message::Change;
use crate::pages::{Extent, PageSource, Priority};
use crate::tree::Cursor;

/// Number of messages after which a call returns, so that other tasks can run.
const MESSAGES_PER_CALL: usize = 16 << 10;

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

/// The state of a counter within one leaf.
#[derive(Debug, Default)]
pub(crate) struct LeafCount {
    /// The leaf; `None` if it has no row in the range, or if its rows are counted.
    pub extent: Option<Arc<Extent>>,
    /// Number of rows so far.
    rows: i64,
    /// True once the rows of the leaf itself are part of `rows`.
    has_leaf_rows: bool,
    /// A change whose effect depends on the row of its key in the leaf.
    open: Option<(Key, Change)>,
    /// The index page of the leaf and the page last read, once a change has needed them.
    index: Option<Arc<Page>>,
    page: Option<(usize, Arc<Page>)>,
}

impl<P: PageSource> Cursor<'_, P> {
    /// Counts the rows of the current leaf, or a part of them.
    pub(super) async fn count_leaf(&mut self) -> Result<u64> {
        if self.leaf.as_ref().is_some_and(|walk| !walk.count.has_leaf_rows) {
            self.add_leaf_rows().await?;
        }
        for _ in 0..MESSAGES_PER_CALL {
            self.settle_open_change().await?;
            let Some(walk) = &mut self.leaf else { return Ok(0) };
            let next = walk.messages.next_key(&walk.range, self.view.schema(), &self.source).await?;
            let taken = if next.is_some() { walk.messages.take(self.view.upserts())? } else { None };
            let Some((key, change, prior)) = taken else {
                // No await below: the state changes completely or not at all.
                let rows = walk.count.rows;
                self.leaf = None;
                return u64::try_from(rows).map_err(|_| self.negative(rows));
            };
            match change.delta(prior) {
                Some(delta) => walk.count.rows += delta,
                None => walk.count.open = Some((key, change)),
            }
        }
        Ok(0)
    }

    /// Adds the rows of the leaf that lie in the range.
    async fn add_leaf_rows(&mut self) -> Result<()> {
        let Some(walk) = &self.leaf else { return Ok(()) };
        if let Some(extent) = &walk.count.extent
            && walk.inside != (true, true)
            && walk.index.is_none()
        {
            let (index, pages) = self.leaf_index(extent, walk).await?;
            if let Some(walk) = &mut self.leaf {
                walk.set_pages(index, pages);
            }
        }
        let Some(walk) = &mut self.leaf else { return Ok(()) };
        while let Some(number) = walk.next_page(Direction::Ascending)
            && let Some(index) = &walk.index
        {
            let rows = if walk.is_inside(number) {
                index.entry(number).1 as usize
            } else {
                index.page(number, &self.view, Priority::Lookup, &self.source, false).await?.rows_in(&walk.range).len()
            };
            walk.pages.next();
            walk.count.rows += rows as i64;
        }
        if let Some(extent) = walk.count.extent.as_ref().filter(|_| walk.inside == (true, true)) {
            walk.count.rows += extent.meta.rows as i64;
        }
        walk.count.has_leaf_rows = true;
        Ok(())
    }

    /// Adds the effect of the open change, after reading the page that may have its key.
    async fn settle_open_change(&mut self) -> Result<()> {
        let Some(count) = self.leaf.as_mut().map(|walk| &mut walk.count) else { return Ok(()) };
        let Some((key, change)) = &count.open else { return Ok(()) };
        let mut old = None;
        let may_have_key = |leaf: &&Arc<Extent>| leaf.meta.first <= *key && *key <= leaf.meta.last;
        if let Some(extent) = count.extent.as_ref().filter(may_have_key) {
            let schema = self.view.schema();
            let index = match &count.index {
                Some(index) => index,
                None => {
                    let index = self.source.page(extent.index(), schema, Priority::Index).await?;
                    extent.check_index(&index)?;
                    count.index.insert(index)
                }
            };
            let number = index.find(key);
            let page = match &count.page {
                Some((last, page)) if *last == number => page,
                _ => {
                    let page = self.source.page(index.entry(number).0, schema, Priority::Lookup).await?;
                    index.check_data_page(number, &page, true)?;
                    &count.page.insert((number, page)).1
                }
            };
            let row = page.lower_bound(key, false);
            if row < page.lower_bound_above(key) {
                let mut value = Vec::new();
                if matches!(change, Change::Upserts(_)) {
                    page.check_all_columns()?;
                    page.value(row, self.view.upserts().rows(), &mut value);
                }
                old = Some(value);
            }
        }
        // No await below: the state changes completely or not at all.
        let new = change.apply(old.as_deref(), self.view.upserts())?;
        count.rows += i64::from(new.is_some()) - i64::from(old.is_some());
        count.open = None;
        Ok(())
    }

    /// The error for messages that delete more rows than there are.
    fn negative(&mut self, rows: i64) -> Error {
        let detail = format!("the messages of a part of tree {} leave {rows} rows", self.view.tree);
        let error = Error::Corrupt { path: self.view.files.data_path.to_path_buf(), what: "run", offset: None, detail };
        self.failed = Some(error.clone());
        error
    }
}

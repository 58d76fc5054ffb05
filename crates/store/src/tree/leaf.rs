//! The state of a cursor within one leaf: the remaining pages, and the messages that change their rows.
//!
//! Messages are taken from the merge in chunks and applied to one page at a time. With an index page, the fence keys
//! decide which page a message belongs to. A locator has no complete fence keys; it is used if there are no messages or
//! if the range covers at most one page.
//!
//! *Invariant.* At most one page, and changes of about [`CHANGE_BYTES_PER_CHUNK`] bytes, are in memory for each leaf.

use std::ops::{Bound, Range};
use std::sync::Arc;

use crate::base::{Direction, Key, KeyRange, Result};
use crate::buffer::BufferCursor;
use crate::codec::{Page, PageRef};
use crate::locator::Located;
use crate::message::{Change, PageRow};
use crate::pages::{Extent, PageSource, Priority};
use crate::tree::merge::MergedRows;
use crate::tree::{LaterPages, LeafCount, Merge, TreeView};

/// Maximum number of changes applied to a page at a time.
const CHANGES_PER_CHUNK: usize = 1024;
/// Maximum bytes of changes applied to a page at a time, with the pages that they keep; the last change may exceed it.
const CHANGE_BYTES_PER_CHUNK: usize = 1 << 20;
/// Number of the last changes whose pages are known to be counted. More runs let pages count twice.
const PAGES_REMEMBERED: usize = 16;

/// The index of a leaf's pages.
#[derive(Debug)]
pub(crate) enum LeafIndex {
    /// The index page of the leaf.
    Page(Arc<Page>),
    /// The locator's entries. They have no complete fence keys, so they cannot assign messages to pages.
    Located(Located),
}

impl LeafIndex {
    /// Reference to a page, and its number of rows.
    pub fn entry(&self, page: usize) -> (PageRef, u32) {
        match self {
            LeafIndex::Page(index) => index.entry(page),
            LeafIndex::Located(located) => located.entry(page),
        }
    }

    /// The pages that may hold keys of a range; `None` if a locator's words do not decide.
    pub fn pages_of(&self, range: &KeyRange) -> Option<Range<usize>> {
        match self {
            LeafIndex::Page(index) => Some(index.pages_in(range)),
            LeafIndex::Located(located) => located.pages_of(range),
        }
    }

    /// References to the data pages `pages` that are not kept in memory, in reading order.
    pub fn references(&self, pages: Range<usize>, direction: Direction) -> Vec<PageRef> {
        let is_held = |page: &usize| match self {
            LeafIndex::Page(_) => false,
            LeafIndex::Located(located) => located.held(*page).is_some(),
        };
        let wanted = pages.filter(|page| !is_held(page));
        match direction {
            Direction::Ascending => wanted.map(|page| self.entry(page).0).collect(),
            Direction::Descending => wanted.rev().map(|page| self.entry(page).0).collect(),
        }
    }

    /// Data page `number`, from memory or from `source`, checked against the index. Columns that no reader of the source
    /// uses may be missing, unless it must be `whole`.
    ///
    /// # Errors
    /// Errors of the source; [`crate::Error::Corrupt`].
    pub async fn page<P: PageSource>(
        &self,
        number: usize,
        view: &TreeView,
        priority: Priority,
        source: &P,
        whole: bool,
    ) -> Result<Arc<Page>> {
        let read = async |place| match whole {
            true => source.page(place, view.schema(), priority).await,
            false => source.leaf_page(place, view.schema(), priority).await,
        };
        match self {
            LeafIndex::Page(index) => {
                let page = read(index.entry(number).0).await?;
                index.check_data_page(number, &page, true)?;
                Ok(page)
            }
            LeafIndex::Located(located) => {
                if let Some(page) = located.held(number) {
                    return Ok(page.clone());
                }
                let (place, rows) = located.entry(number);
                let page = read(place).await?;
                page.check_rows(rows, true)?;
                if page.is_whole() {
                    located.hold(number, &page);
                }
                Ok(page)
            }
        }
    }
}

/// The state of a cursor within one leaf.
#[derive(Debug)]
pub(crate) struct LeafWalk {
    /// Intersection of the leaf's key range and the cursor's range.
    pub range: KeyRange,
    /// `None` if no page of the leaf is needed.
    pub index: Option<LeafIndex>,
    /// Numbers of the data pages still to be read.
    pub pages: Range<usize>,
    /// The first page of the range.
    first_page: usize,
    /// The last page of the range.
    last_page: usize,
    /// True for each end of the leaf whose outermost row is in the range. Otherwise the page at that end of `pages` may
    /// hold rows outside the range.
    pub inside: (bool, bool),
    /// The current page.
    pub page: Option<PageWalk>,
    /// Replaces pages and messages if a single buffer holds all rows of the range.
    pub rows: Option<BufferCursor>,
    /// Used by counters.
    pub count: LeafCount,
    /// Messages not yet taken.
    pub messages: Merge,
    /// The rows of the next chunk, if `messages` has the rows of the leaf, too; `pages`, `page` and `changes` are not used
    /// then.
    pub merged: Option<MergedRows>,
    /// Pages that the source is advised of later.
    pub later: Option<LaterPages>,
    /// Changes taken from `messages` for the current page, in the cursor's direction.
    pub changes: Vec<(Key, Change)>,
    /// Bytes of `changes`.
    pub change_bytes: usize,
}

/// The state of a cursor within one page.
#[derive(Debug)]
pub(crate) struct PageWalk {
    page: Arc<Page>,
    number: usize,
    /// Rows not yet returned.
    rows: Range<usize>,
}

impl LeafWalk {
    pub fn new(range: KeyRange, messages: Merge) -> Self {
        LeafWalk {
            range,
            index: None,
            pages: 0..0,
            first_page: 0,
            last_page: 0,
            inside: (false, false),
            page: None,
            rows: None,
            count: LeafCount::default(),
            messages,
            merged: None,
            later: None,
            changes: Vec::new(),
            change_bytes: 0,
        }
    }

    pub fn set_pages(&mut self, index: LeafIndex, pages: Range<usize>) {
        (self.first_page, self.last_page) = (pages.start, pages.end.saturating_sub(1));
        self.pages = pages;
        self.index = Some(index);
    }

    /// Sets `inside` for a leaf.
    pub fn set_inside(&mut self, extent: &Extent) {
        let first = match &self.range.start {
            Bound::Included(key) => key.as_slice() <= &*extent.meta.first,
            Bound::Excluded(key) => key.as_slice() < &*extent.meta.first,
            Bound::Unbounded => true,
        };
        self.inside = (first, !self.range.ends_before(&extent.meta.last));
    }

    /// The number of the next page; `None` at the end.
    pub fn next_page(&self, direction: Direction) -> Option<usize> {
        match direction {
            _ if self.pages.is_empty() => None,
            Direction::Ascending => Some(self.pages.start),
            Direction::Descending => Some(self.pages.end - 1),
        }
    }

    /// True if all rows of a page are in the range.
    pub fn is_inside(&self, page: usize) -> bool {
        (self.inside.0 || page != self.first_page) && (self.inside.1 || page != self.last_page)
    }

    /// Makes `page`, whose number is that of `next_page`, the current page.
    pub fn enter_page(&mut self, page: Arc<Page>, number: usize, direction: Direction) {
        match direction {
            Direction::Ascending => self.pages.next(),
            Direction::Descending => self.pages.next_back(),
        };
        let rows = if self.is_inside(number) { 0..page.rows() } else { page.rows_in(&self.range) };
        self.page = Some(PageWalk { page, number, rows });
    }

    /// The number of the current page, if upserts among the changes may need columns of its rows that are not in memory.
    pub fn lacks_columns(&self) -> Option<usize> {
        let at = self.page.as_ref().filter(|at| !at.page.is_whole())?;
        self.changes.iter().any(|(_, change)| matches!(change, Change::Upserts(_))).then_some(at.number)
    }

    /// Replaces the current page by the same one with all columns.
    pub fn complete_page(&mut self, whole: Arc<Page>) {
        if let Some(at) = &mut self.page {
            assert!(whole.is_whole() && whole.rows() == at.page.rows(), "another page than number {}", at.number);
            at.page = whole;
        }
    }

    /// Memory of the page that a change keeps, unless a change before it keeps this page, too.
    fn page_bytes(&self, change: &Change) -> usize {
        let Change::Row(PageRow { page, .. }) = change else { return 0 };
        let keeps = |(_, other): &(Key, Change)| matches!(other, Change::Row(row) if Arc::ptr_eq(&row.page, page));
        // The pages of a run follow one another, and a leaf has few runs.
        if self.changes.iter().rev().take(PAGES_REMEMBERED).any(keeps) { 0 } else { page.memory_bytes_max() }
    }

    /// Takes the messages of the current page (of the leaf, if there is none), up to the limits of a chunk. Returns
    /// false if a limit was reached, so that messages may remain.
    pub async fn take_changes<P: PageSource>(
        &mut self,
        view: &TreeView,
        direction: Direction,
        source: &P,
    ) -> Result<bool> {
        while self.changes.len() < CHANGES_PER_CHUNK && self.change_bytes < CHANGE_BYTES_PER_CHUNK {
            let Some(key) = self.messages.next_key(&self.range, view.schema(), source).await? else { return Ok(true) };
            if let (Some(at), Some(LeafIndex::Page(index))) = (&self.page, &self.index) {
                // The key belongs to a later page in the cursor's direction.
                let is_later = match direction {
                    Direction::Ascending => at.number < self.last_page && key >= index.fence(at.number + 1),
                    Direction::Descending => at.number > self.first_page && key < index.fence(at.number),
                };
                if is_later {
                    return Ok(true);
                }
            }
            let Some((key, change, _)) = self.messages.take(view.upserts())? else { return Ok(true) };
            self.change_bytes += key.len() + change.bytes() + self.page_bytes(&change);
            self.changes.push((key, change));
        }
        Ok(false)
    }

    /// Returns the current page with the rows to which `changes` apply: all remaining rows if `all`, which also leaves
    /// the page, otherwise the rows up to the last change.
    pub fn leave_page(&mut self, all: bool, direction: Direction) -> Option<(Arc<Page>, Range<usize>)> {
        let at = self.page.as_mut()?;
        let (page, rows) = (at.page.clone(), at.rows.clone());
        let Some((last, _)) = self.changes.last().filter(|_| !all) else {
            self.page = None;
            return Some((page, rows));
        };
        let done = match direction {
            Direction::Ascending => {
                let end = page.lower_bound_above(last).clamp(rows.start, rows.end);
                at.rows = end..rows.end;
                rows.start..end
            }
            Direction::Descending => {
                let start = page.lower_bound(last, false).clamp(rows.start, rows.end);
                at.rows = rows.start..start;
                start..rows.end
            }
        };
        Some((page, done))
    }
}

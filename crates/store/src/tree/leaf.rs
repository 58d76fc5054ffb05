//! A leaf in progress: which of its pages are left, and the messages that fall on them.

use std::ops::{Bound, Range};
use std::sync::Arc;

use crate::base::{Direction, Key, KeyRange, Result};
use crate::buffer::BufferCursor;
use crate::codec::{Page, PageRef};
use crate::locator::Located;
use crate::message::Change;
use crate::pages::{Extent, PageSource, Priority};
use crate::tree::{Merge, TreeView};

/// Changes that are laid over a page at a time.
const CHANGES_PER_CHUNK: usize = 1024;
/// Their bytes (the last one may exceed them).
const CHANGE_BYTES_PER_CHUNK: usize = 1 << 20;

/// What tells where the pages of a leaf are.
#[derive(Debug)]
pub(crate) enum LeafIndex {
    Page(Arc<Page>),
    /// Does not know whole fences: only where no messages have to be told apart by them.
    Located(Located),
}

impl LeafIndex {
    pub fn pages(&self) -> usize {
        match self {
            LeafIndex::Page(index) => index.rows(),
            LeafIndex::Located(located) => located.pages(),
        }
    }

    /// Where a page is, and how many rows it has.
    pub fn entry(&self, page: usize) -> (PageRef, u32) {
        match self {
            LeafIndex::Page(index) => index.entry(page),
            LeafIndex::Located(located) => located.entry(page),
        }
    }

    /// The pages that may hold keys of a range; none if that cannot be told.
    pub fn pages_of(&self, range: &KeyRange) -> Option<Range<usize>> {
        match self {
            LeafIndex::Page(index) => Some(index.pages_in(range)),
            LeafIndex::Located(located) => located.pages_of(range),
        }
    }

    /// The page that holds the first key `>= key`, or the last one before it; about, if that cannot be told.
    pub fn find(&self, key: &[u8]) -> usize {
        match self {
            LeafIndex::Page(index) => index.find(key),
            LeafIndex::Located(located) => located.find(key).0,
        }
    }

    /// Some data pages, in the order in which they will be read.
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

    /// A data page, from memory or from `source`, checked.
    pub async fn page<P: PageSource>(
        &self,
        number: usize,
        view: &TreeView,
        priority: Priority,
        source: &P,
    ) -> Result<Arc<Page>> {
        match self {
            LeafIndex::Page(index) => {
                let page = source.page(index.entry(number).0, view.schema(), priority).await?;
                index.check_data_page(number, &page, true)?;
                Ok(page)
            }
            LeafIndex::Located(located) => {
                if let Some(page) = located.held(number) {
                    return Ok(page.clone());
                }
                let (place, rows) = located.entry(number);
                let page = source.page(place, view.schema(), priority).await?;
                page.check_rows(rows, true)?;
                located.hold(number, &page);
                Ok(page)
            }
        }
    }
}

/// A leaf in progress.
#[derive(Debug)]
pub(crate) struct LeafWalk {
    /// The leaf's key range, cut to the cursor's.
    pub range: KeyRange,
    pub index: Option<LeafIndex>,
    /// Data pages left to read (numbers in the index).
    pub pages: Range<usize>,
    /// The first and the last of all of them.
    first_page: usize,
    last_page: usize,
    /// Whether the leaf's first and its last row are in the range; else pages at the ends hold rows outside it.
    pub inside: (bool, bool),
    /// The page at hand.
    pub page: Option<PageWalk>,
    /// Rows of a buffer that is all there is, instead of the rest.
    pub rows: Option<BufferCursor>,
    /// Rows of the whole leaf, where no more than their number is asked for.
    pub counted: Option<u64>,
    /// The messages left.
    pub messages: Merge,
    /// Changes taken from `messages` that fall on the page at hand, in the cursor's direction.
    pub changes: Vec<(Key, Change)>,
    /// Bytes of `changes`.
    pub change_bytes: usize,
}

/// A page in progress.
#[derive(Debug)]
pub(crate) struct PageWalk {
    page: Arc<Page>,
    number: usize,
    /// Rows left.
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
            counted: None,
            messages,
            changes: Vec::new(),
            change_bytes: 0,
        }
    }

    pub fn set_pages(&mut self, index: LeafIndex, pages: Range<usize>) {
        (self.first_page, self.last_page) = (pages.start, pages.end.saturating_sub(1));
        self.pages = pages;
        self.index = Some(index);
    }

    /// Notes which of the leaf's ends are in the range.
    pub fn set_inside(&mut self, extent: &Extent) {
        let first = match &self.range.start {
            Bound::Included(key) => key.as_slice() <= &*extent.meta.first,
            Bound::Excluded(key) => key.as_slice() < &*extent.meta.first,
            Bound::Unbounded => true,
        };
        self.inside = (first, !self.range.ends_before(&extent.meta.last));
    }

    /// The number of the next page.
    pub fn next_page(&self, direction: Direction) -> Option<usize> {
        match direction {
            _ if self.pages.is_empty() => None,
            Direction::Ascending => Some(self.pages.start),
            Direction::Descending => Some(self.pages.end - 1),
        }
    }

    /// Whether all rows of a page are in the range.
    fn is_inside(&self, page: usize) -> bool {
        (self.inside.0 || page != self.first_page) && (self.inside.1 || page != self.last_page)
    }

    /// Steps over pages, ascending, that are in the range as a whole and that no message falls on; tells how many rows they have.
    /// `message`: the key of the next message.
    pub fn count_pages(&mut self, message: Option<&[u8]>) -> u64 {
        let mut rows = 0;
        while let Some(page) = self.next_page(Direction::Ascending)
            && self.is_inside(page)
            && let Some(index) = &self.index
        {
            let untouched = match (message, index) {
                (None, _) => true,
                (Some(key), LeafIndex::Page(index)) => page < self.last_page && key >= index.fence(page + 1),
                (Some(_), LeafIndex::Located(_)) => false,
            };
            if !untouched {
                break;
            }
            rows += u64::from(index.entry(page).1);
            self.pages.next();
        }
        rows
    }

    /// Makes the page that `next_page` tells the one at hand.
    pub fn enter_page(&mut self, page: Arc<Page>, number: usize, direction: Direction) {
        match direction {
            Direction::Ascending => self.pages.next(),
            Direction::Descending => self.pages.next_back(),
        };
        let rows = if self.is_inside(number) { 0..page.rows() } else { page.rows_in(&self.range) };
        self.page = Some(PageWalk { page, number, rows });
    }

    /// Takes messages that fall on the page at hand (on the leaf, if there is none) until they are many. False if there
    /// may be more.
    pub async fn take_changes<P: PageSource>(
        &mut self,
        view: &TreeView,
        direction: Direction,
        source: &P,
    ) -> Result<bool> {
        let functions = &view.files.upserts;
        while self.changes.len() < CHANGES_PER_CHUNK && self.change_bytes < CHANGE_BYTES_PER_CHUNK {
            let Some(key) = self.messages.next_key(&self.range, view.schema(), source).await? else { return Ok(true) };
            if let (Some(at), Some(LeafIndex::Page(index))) = (&self.page, &self.index) {
                // Where the next page begins, seen in the direction of the walk.
                let behind = match direction {
                    Direction::Ascending => at.number < self.last_page && **key >= *index.fence(at.number + 1),
                    Direction::Descending => at.number > self.first_page && **key < *index.fence(at.number),
                };
                if behind {
                    return Ok(true);
                }
            }
            let Some((key, change)) = self.messages.take(functions)? else { return Ok(true) };
            self.change_bytes += key.len() + change.bytes();
            self.changes.push((key, change));
        }
        Ok(false)
    }

    /// Leaves the page at hand with the rows that its changes reach, all of them if these are `all`.
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

//! Merging the messages of many sources (root buffers, parts of runs) in key order, ascending or descending, one key at
//! a time.
//!
//! ```text
//!   buffer   ─ batch of messages ───┐
//!   run part ─ index page, page ────┤ heap of heads ──> all messages of the next key, newest first ──> one change
//!   run part ─ not opened ──────────┘
//! ```
//!
//! The *head* of a source is its next key. While that key is in a page that has not been read, the head is a bound for
//! it; the page is read when the bound reaches the top of the heap. Pages are therefore read in key order and only when
//! they are needed, and consecutive parts of a run are open one at a time. Memory is bounded by one page and one index
//! page for each run and one batch for each buffer.
//!
//! *Invariants.* Sources are added newest first; heads with equal keys are taken in that order. A call whose future is
//! dropped, or that fails to read a page, changes nothing.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Range;
use std::sync::Arc;

use crate::base::{Direction, Error, Key, KeyRange, Prior, Result, Schema};
use crate::buffer::{BufferCursor, RootBuffer};
use crate::codec::{Page, PageRef, RowCodec};
use crate::message::{Change, Resolver, Upserts};
use crate::pages::{Extent, PageSource, Priority};
use crate::tree::Part;

#[derive(Debug)]
pub(crate) struct Merge {
    direction: Direction,
    priority: Priority,
    /// Newest first.
    sources: Vec<Source>,
    heads: BinaryHeap<Head>,
    resolver: Resolver,
    /// A permanent error; all further calls return it.
    failed: Option<Error>,
}

#[derive(Debug)]
enum Source {
    Buffer(BufferCursor),
    Part(PartCursor),
}

/// The remaining rows of a part.
#[derive(Debug)]
struct PartCursor {
    part: Part,
    open: Option<OpenPart>,
}

#[derive(Debug)]
struct OpenPart {
    index: Arc<Page>,
    /// Intersection of the part's range and the merge's range.
    range: KeyRange,
    /// All pages of the range.
    all: Range<usize>,
    /// Pages still to be read.
    pages: Range<usize>,
    /// The current page and its remaining rows; `None` before the first page is read.
    page: Option<(Arc<Page>, Range<usize>)>,
    /// Reused for keys.
    key: Vec<u8>,
}

/// The position of a source. The greatest head in the heap is the next one to process.
#[derive(Debug)]
struct Head {
    key: Key,
    state: HeadState,
    source: usize,
    direction: Direction,
}

/// Kinds of heads, in the order in which heads with the same key are processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HeadState {
    /// The next key is in a page not yet read. It is equal to the head's key or comes after it in the merge's
    /// direction.
    Bound,
    /// The next key is equal to the head's key.
    Key,
    /// The next key is in a page not yet read and comes after the head's key in the merge's direction.
    Behind,
}

impl Ord for Head {
    fn cmp(&self, other: &Head) -> Ordering {
        let keys = match self.direction {
            Direction::Ascending => other.key.cmp(&self.key),
            Direction::Descending => self.key.cmp(&other.key),
        };
        keys.then(other.state.cmp(&self.state)).then(other.source.cmp(&self.source))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Head) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Head) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

impl Merge {
    /// A merge without sources.
    pub fn new(direction: Direction, priority: Priority) -> Merge {
        Merge {
            direction,
            priority,
            sources: Vec::new(),
            heads: BinaryHeap::new(),
            resolver: Resolver::default(),
            failed: None,
        }
    }

    /// The merge for a counter: values of inserts may be empty.
    pub fn counting(self) -> Merge {
        Merge { resolver: Resolver::counting(), ..self }
    }

    /// True if no messages remain; sources whose pages are not read yet count as messages.
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// Adds the messages of a buffer in `range` up to a sequence number. They must be older than all messages added
    /// before.
    pub fn add_buffer(&mut self, buffer: &Arc<RootBuffer>, range: &KeyRange, sequence: u64) {
        if buffer.is_empty() {
            return;
        }
        let mut cursor = BufferCursor::new(buffer.clone(), range.clone(), sequence, self.direction);
        if let Some(key) = cursor.key() {
            self.push(key, HeadState::Key, Source::Buffer(cursor));
        }
    }

    /// Adds the messages of a part. They must be older than all messages added before.
    pub fn add_part(&mut self, part: Part) {
        let bound = match self.direction {
            Direction::Ascending => match &part.low {
                Some(low) if *low > part.extent.meta.first => low.clone(),
                _ => part.extent.meta.first.clone(),
            },
            Direction::Descending => part.high.as_ref().unwrap_or(&part.extent.meta.last).clone(),
        };
        self.push(bound, HeadState::Bound, Source::Part(PartCursor { part, open: None }));
    }

    /// The pages of parts that [`Merge::next_key`] reads first: the first page of `range`, or the index page where
    /// `cached` does not know it.
    pub fn first_pages(&self, range: &KeyRange, cached: impl Fn(&Extent) -> Option<Arc<Page>>) -> Vec<PageRef> {
        let first = |source: &Source| {
            let Source::Part(PartCursor { part, open: None }) = source else { return None };
            let Some(index) = cached(&part.extent) else { return Some(part.extent.index()) };
            let pages = index.pages_in(&range.intersect(part.low.as_deref(), part.high.as_deref()));
            Some(index.entry(end_of(&pages, self.direction)?).0)
        };
        self.sources.iter().filter_map(first).collect()
    }

    fn push(&mut self, key: Key, state: HeadState, source: Source) {
        self.heads.push(Head { key, state, source: self.sources.len(), direction: self.direction });
        self.sources.push(source);
    }

    /// The next key of `range`, which must be the same in all calls; `None` at the end. Reads pages as needed.
    ///
    /// # Errors
    /// Errors of the page source, after which the call may be repeated; the error of a failed [`Merge::take`].
    pub async fn next_key<P: PageSource>(
        &mut self,
        range: &KeyRange,
        schema: &Arc<Schema>,
        pages: &P,
    ) -> Result<Option<&Key>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        while let Some(head) = self.heads.peek() {
            let (source, state) = (head.source, head.state);
            if state == HeadState::Key {
                break;
            }
            let next = match &mut self.sources[source] {
                Source::Part(part) => part.load(range, schema, self.direction, self.priority, pages).await?,
                // Buffers have no unread pages; this arm only refreshes the head.
                Source::Buffer(cursor) => cursor.key().map(|key| (key, HeadState::Key)),
            };
            // The head is still at the top: the heap has not changed since `peek`.
            if let Some(head) = self.heads.peek_mut() {
                replace(head, next);
            }
        }
        Ok(self.heads.peek().map(|head| &head.key))
    }

    /// Takes the key returned by [`Merge::next_key`], with the change that its messages resolve to and the knowledge of
    /// the row below them; `None` at the end.
    ///
    /// # Errors
    /// Errors of upsert functions, [`Error::Corrupt`]. They are permanent: all further calls return the same error.
    pub fn take(&mut self, functions: Upserts<'_>) -> Result<Option<(Key, Change, Prior)>> {
        let taken = self.take_next(functions);
        if let Err(error) = &taken {
            self.failed = Some(error.clone());
        }
        taken
    }

    fn take_next(&mut self, functions: Upserts<'_>) -> Result<Option<(Key, Change, Prior)>> {
        let Some(key) = self.heads.peek().filter(|head| head.state == HeadState::Key).map(|head| head.key.clone())
        else {
            return Ok(None);
        };
        while let Some(head) = self.heads.peek_mut()
            && head.state == HeadState::Key
            && head.key == key
        {
            let next = match &mut self.sources[head.source] {
                Source::Part(part) => part.take(&mut self.resolver, functions.rows(), self.direction)?,
                Source::Buffer(cursor) => cursor.take(&key, &mut self.resolver).map(|key| (key, HeadState::Key)),
            };
            replace(head, next);
        }
        let change = self.resolver.finish(functions)?;
        Ok(change.map(|(change, prior)| (key, change, prior)))
    }
}

/// Replaces the head of a source by its next one, or removes it at the end of the source.
fn replace(mut head: PeekMut<'_, Head>, next: Option<(Key, HeadState)>) {
    match next {
        Some((key, state)) => (head.key, head.state) = (key, state),
        None => drop(PeekMut::pop(head)),
    }
}

impl PartCursor {
    /// Reads the next page; returns the next head.
    async fn load<P: PageSource>(
        &mut self,
        range: &KeyRange,
        schema: &Arc<Schema>,
        direction: Direction,
        priority: Priority,
        source: &P,
    ) -> Result<Option<(Key, HeadState)>> {
        let open = match &mut self.open {
            Some(open) => open,
            None => {
                let range = range.intersect(self.part.low.as_deref(), self.part.high.as_deref());
                if range.is_empty() {
                    return Ok(None);
                }
                let index = source.page(self.part.extent.index(), schema, Priority::Index).await?;
                self.part.extent.check_index(&index)?;
                let pages = index.pages_in(&range);
                if pages.len() > 1 && source.read_ahead_bytes() > 0 {
                    source.prefetch(&references(&index, pages.clone(), direction), schema);
                }
                self.open.insert(OpenPart { index, range, all: pages.clone(), pages, page: None, key: Vec::new() })
            }
        };
        let Some(number) = end_of(&open.pages, direction) else { return Ok(None) };
        let page = source.page(open.index.entry(number).0, schema, priority).await?;
        open.index.check_data_page(number, &page, false)?;
        page.check_all_columns()?;
        let at_end = number == open.all.start || number + 1 == open.all.end;
        let rows = if at_end { page.rows_in(&open.range) } else { 0..page.rows() };
        // No await and no error below: the state changes completely or not at all.
        step(&mut open.pages, direction);
        open.page = Some((page, rows));
        Ok(open.head(direction))
    }

    /// Consumes the current row; returns the next head.
    fn take(
        &mut self,
        resolver: &mut Resolver,
        codec: &RowCodec,
        direction: Direction,
    ) -> Result<Option<(Key, HeadState)>> {
        let Some(open) = &mut self.open else { return Ok(None) };
        if let Some((page, rows)) = &mut open.page
            && let Some(row) = end_of(rows, direction)
        {
            resolver.add_row(page, row, codec)?;
            step(rows, direction);
        }
        let head = open.head(direction);
        if head.is_none() {
            self.open = None;
        }
        Ok(head)
    }
}

impl OpenPart {
    /// The key of the next row, or a bound for the keys of the next page; `None` at the end.
    fn head(&mut self, direction: Direction) -> Option<(Key, HeadState)> {
        if let Some((page, rows)) = &self.page
            && let Some(row) = end_of(rows, direction)
        {
            self.key.clear();
            page.key(row, &mut self.key);
            return Some((self.key.as_slice().into(), HeadState::Key));
        }
        let number = end_of(&self.pages, direction)?;
        Some(match direction {
            Direction::Ascending => (self.index.fence(number).into(), HeadState::Bound),
            Direction::Descending => (self.index.fence(number + 1).into(), HeadState::Behind),
        })
    }
}

/// The next number of a range in the given direction.
fn end_of(left: &Range<usize>, direction: Direction) -> Option<usize> {
    match direction {
        _ if left.is_empty() => None,
        Direction::Ascending => Some(left.start),
        Direction::Descending => Some(left.end - 1),
    }
}

/// Removes the number returned by [`end_of`].
fn step(left: &mut Range<usize>, direction: Direction) {
    match direction {
        Direction::Ascending => left.next(),
        Direction::Descending => left.next_back(),
    };
}

/// References to data pages of an extent, in reading order.
pub(crate) fn references(index: &Page, pages: Range<usize>, direction: Direction) -> Vec<PageRef> {
    match direction {
        Direction::Ascending => pages.map(|page| index.entry(page).0).collect(),
        Direction::Descending => pages.rev().map(|page| index.entry(page).0).collect(),
    }
}

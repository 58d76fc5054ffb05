//! Merging the messages of many sources (root buffers, parts of runs) in key order, ascending or descending, one key at
//! a time.
//!
//! ```text
//!   buffer   ─ batch of messages ───┐
//!   run part ─ index page, page ────┤ order of heads ──> all messages of the next key, newest first ──> one change
//!   run part ─ not opened ──────────┘
//! ```
//!
//! The *head* of a source is its next key. While that key is in a page that has not been read, the head is a bound for
//! it; the page is read when the bound is the first in the order. Pages are therefore read in key order and only when
//! they are needed, and consecutive parts of a run are open one at a time. Memory is bounded by one page and one index
//! page for each run and one batch for each buffer.
//!
//! *Invariants.* Sources are added newest first; heads with equal keys are taken in that order. A call whose future is
//! dropped, or that fails to read a page, changes nothing.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use crate::base::{Direction, Error, Key, KeyRange, Prior, Result, Schema};
use crate::buffer::{BufferCursor, RootBuffer};
use crate::codec::{Page, PageRef, RowCodec};
use crate::message::{Change, Resolver, Upserts, prefix_of};
use crate::pages::{Extent, PageSource, Priority};
use crate::tree::Part;

#[derive(Debug)]
pub(crate) struct Merge {
    direction: Direction,
    priority: Priority,
    /// Newest first.
    sources: Vec<Source>,
    /// The heads in the order of processing: the last one is the next.
    order: Vec<Head>,
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
    /// The key of the head.
    key: Vec<u8>,
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
}

/// The position of a source, which has its key.
#[derive(Debug, Clone, Copy)]
struct Head {
    /// The first 16 bytes of the key as a number, padded by zeros: a difference between two of these is one between the
    /// keys.
    prefix: u128,
    state: HeadState,
    source: usize,
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

impl Source {
    /// The key of the head.
    fn key(&self) -> &[u8] {
        match self {
            Source::Buffer(cursor) => cursor.next_key(),
            Source::Part(part) => &part.key,
        }
    }
}

impl Merge {
    /// A merge without sources.
    pub fn new(direction: Direction, priority: Priority) -> Merge {
        Merge {
            direction,
            priority,
            sources: Vec::new(),
            order: Vec::new(),
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
        self.order.is_empty()
    }

    /// Adds the messages of a buffer in `range` up to a sequence number. They must be older than all messages added
    /// before.
    pub fn add_buffer(&mut self, buffer: &Arc<RootBuffer>, range: &KeyRange, sequence: u64) {
        if buffer.is_empty() {
            return;
        }
        let mut cursor = BufferCursor::new(buffer.clone(), range.clone(), sequence, self.direction);
        if cursor.has_key() {
            self.push(HeadState::Key, Source::Buffer(cursor));
        }
    }

    /// Adds the messages of a part. They must be older than all messages added before.
    pub fn add_part(&mut self, part: Part) {
        let bound = match self.direction {
            Direction::Ascending => part.first(),
            Direction::Descending => part.high.as_ref().unwrap_or(&part.extent.meta.last),
        };
        let key = bound.to_vec();
        self.push(HeadState::Bound, Source::Part(PartCursor { part, open: None, key }));
    }

    /// The pages of parts that [`Merge::next_key`] reads first: the first page of `range`, or the index page where
    /// `cached` does not know it.
    pub fn first_pages(&self, range: &KeyRange, cached: impl Fn(&Extent) -> Option<Arc<Page>>) -> Vec<PageRef> {
        let first = |source: &Source| {
            let Source::Part(PartCursor { part, open: None, .. }) = source else { return None };
            let Some(index) = cached(&part.extent) else { return Some(part.extent.index()) };
            let pages = index.pages_in(&range.intersect(part.low.as_deref(), part.high.as_deref()));
            Some(index.entry(end_of(&pages, self.direction)?).0)
        };
        self.sources.iter().filter_map(first).collect()
    }

    fn push(&mut self, state: HeadState, source: Source) {
        self.sources.push(source);
        self.put(self.sources.len() - 1, state);
    }

    /// Puts the head of a source into the order.
    fn put(&mut self, source: usize, state: HeadState) {
        let head = Head { prefix: prefix_of(self.sources[source].key()), state, source };
        let mut at = self.order.len();
        while at > 0 && self.is_before(self.order[at - 1], head) {
            at -= 1;
        }
        self.order.insert(at, head);
    }

    fn is_before(&self, a: Head, b: Head) -> bool {
        let key = |head: Head| self.sources[head.source].key();
        let keys = a.prefix.cmp(&b.prefix).then_with(|| key(a).cmp(key(b)));
        let keys = match self.direction {
            Direction::Ascending => keys,
            Direction::Descending => keys.reverse(),
        };
        keys.then(a.state.cmp(&b.state)).then(a.source.cmp(&b.source)) == Ordering::Less
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
    ) -> Result<Option<&[u8]>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        while let Some(Head { source, state, .. }) = self.order.last().copied() {
            let Source::Part(part) = &mut self.sources[source] else { break };
            if state == HeadState::Key {
                break;
            }
            let next = part.load(range, schema, self.direction, self.priority, pages).await?;
            // No await and no error below: the state changes completely or not at all.
            self.order.pop();
            if let Some(state) = next {
                self.put(source, state);
            }
        }
        Ok(self.order.last().map(|head| self.sources[head.source].key()))
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
        let Some(first) = self.order.last().copied().filter(|head| head.state == HeadState::Key) else {
            return Ok(None);
        };
        let key: Key = self.sources[first.source].key().into();
        while let Some(head) = self.order.last().copied()
            && head.state == HeadState::Key
            && head.prefix == first.prefix
            && self.sources[head.source].key() == &*key
        {
            let next = match &mut self.sources[head.source] {
                Source::Part(part) => part.take(&mut self.resolver, functions.rows(), self.direction)?,
                Source::Buffer(cursor) => cursor.take(&mut self.resolver).then_some(HeadState::Key),
            };
            self.order.pop();
            if let Some(state) = next {
                self.put(head.source, state);
            }
        }
        let change = self.resolver.finish(functions)?;
        Ok(change.map(|(change, prior)| (key, change, prior)))
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
    ) -> Result<Option<HeadState>> {
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
                self.open.insert(OpenPart { index, range, all: pages.clone(), pages, page: None })
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
        Ok(open.head(direction, &mut self.key))
    }

    /// Consumes the current row; returns the next head.
    fn take(&mut self, resolver: &mut Resolver, codec: &RowCodec, direction: Direction) -> Result<Option<HeadState>> {
        let Some(open) = &mut self.open else { return Ok(None) };
        if let Some((page, rows)) = &mut open.page
            && let Some(row) = end_of(rows, direction)
        {
            resolver.add_row(page, row, codec)?;
            step(rows, direction);
        }
        let head = open.head(direction, &mut self.key);
        if head.is_none() {
            self.open = None;
        }
        Ok(head)
    }
}

impl OpenPart {
    /// Sets `key` to the key of the next row, or to a bound for the keys of the next page; `None` at the end.
    fn head(&self, direction: Direction, key: &mut Vec<u8>) -> Option<HeadState> {
        if let Some((page, rows)) = &self.page
            && let Some(row) = end_of(rows, direction)
        {
            key.clear();
            page.key(row, key);
            return Some(HeadState::Key);
        }
        let number = end_of(&self.pages, direction)?;
        let (fence, state) = match direction {
            Direction::Ascending => (number, HeadState::Bound),
            Direction::Descending => (number + 1, HeadState::Behind),
        };
        key.clear();
        key.extend_from_slice(self.index.fence(fence));
        Some(state)
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

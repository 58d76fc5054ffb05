//! Merging the messages of many sources (root buffers, parts of runs) and the rows of a leaf in key order, ascending or
//! descending.
//!
//! ```text
//!   buffer   ─ batch of messages ───┐                   one change for each key (counters)
//!   run part ─ index page, page ────┤ order of heads ──>
//!   leaf     ─ index page, page ────┘                   rows (`rows`: scans)
//! ```
//!
//! The *head* of a source is its next key. While that key is in a page that has not been read, the head is a bound for
//! it; the page is read when the bound is the first in the order. Pages are therefore read in key order and only when
//! they are needed, and consecutive parts of a run are open one at a time. Memory is bounded by one page and one index
//! page for each run and one batch for each buffer.
//!
//! *Invariants.* Sources are added newest first; heads with equal keys are taken in that order. A call whose future is
//! dropped, or that fails to read a page, changes nothing.

mod part;
mod rows;

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use self::part::PartCursor;
pub(crate) use self::rows::MergedRows;
use crate::base::{Direction, Error, Key, KeyRange, Prior, Result, Schema};
use crate::buffer::{BufferCursor, RootBuffer};
use crate::codec::{Page, PageRef};
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
    pages_read: usize,
    /// The key that [`Merge::take_rows`] compares with others.
    compared: Vec<u8>,
    /// A permanent error; all further calls return it.
    failed: Option<Error>,
}

#[derive(Debug)]
enum Source {
    Buffer(BufferCursor),
    Part(PartCursor),
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
            Source::Part(part) => part.key(),
        }
    }

    /// The first 16 bytes of the head's key, as a number.
    fn prefix(&self) -> u128 {
        match self {
            Source::Buffer(cursor) => prefix_of(cursor.next_key()),
            Source::Part(part) => part.prefix(),
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
            pages_read: 0,
            compared: Vec::new(),
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

    /// Adds the messages of a part in `range`, which is that of the merge. They must be older than all messages added before.
    /// `index` is the index page of the part's extent, if it is known; the source is then not advised of the pages.
    pub fn add_part(&mut self, part: Part, range: &KeyRange, index: Option<Arc<Page>>) {
        self.push(HeadState::Bound, Source::Part(PartCursor::of_run(part, range, index, self.direction)));
    }

    /// Adds the rows in the pages `pages` of a leaf, for [`Merge::take_rows`]: the range of the merge lies within the leaf.
    /// Must follow all messages. Pages are read with `priority`, and with all columns if `whole` is set.
    pub fn add_leaf(
        &mut self,
        extent: &Arc<Extent>,
        index: Arc<Page>,
        pages: Range<usize>,
        range: KeyRange,
        priority: Priority,
        whole: bool,
    ) {
        let leaf = PartCursor::of_leaf(extent.clone(), index, pages, range, (priority, whole), self.direction);
        self.push(HeadState::Bound, Source::Part(leaf));
    }

    /// The pages of runs that [`Merge::next_key`] reads first.
    pub fn first_pages(&self) -> Vec<PageRef> {
        let first = |source: &Source| match source {
            Source::Part(part) => part.first_page(),
            Source::Buffer(_) => None,
        };
        self.sources.iter().filter_map(first).collect()
    }

    /// The pages of the runs whose index pages are known.
    pub fn known_pages(&self) -> Vec<(Arc<Page>, Range<usize>)> {
        let known = |source: &Source| match source {
            Source::Part(part) => part.known_pages(),
            Source::Buffer(_) => None,
        };
        self.sources.iter().filter_map(known).collect()
    }

    /// Number of pages that [`Merge::next_key`] has read.
    pub fn pages_read(&self) -> usize {
        self.pages_read
    }

    fn push(&mut self, state: HeadState, source: Source) {
        self.sources.push(source);
        self.put(self.sources.len() - 1, state);
    }

    /// Puts the head of a source into the order.
    fn put(&mut self, source: usize, state: HeadState) {
        let head = Head { prefix: self.sources[source].prefix(), state, source };
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
            let next = part.load(range, schema, self.priority, pages).await?;
            // No await and no error below: the state changes completely or not at all.
            self.pages_read += 1;
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
                Source::Part(part) => part.take(&mut self.resolver, functions.rows())?,
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

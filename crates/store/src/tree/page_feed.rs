//! The pages of the parts of a run, or of leaves, for a [rewrite](super::rewrite): read in groups, past the cache, one
//! group ahead.
//!
//! ```text
//!   part ── index page ── group │ group │ group          the device reads the second group while
//!                         ^^^^^   ^^^^^                  the pages of the first one are decoded
//! ```
//!
//! The first group of a part is read while the last pages of the part before are decoded, and the first groups of all
//! feeds of a rewrite are read together.
//!
//! *Invariant.* Memory is bounded by two groups of pages for each feed.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use keyaki_device::{Buffer, Completion, Op, Queue, Request, Wait};

use crate::base::{Error, KeyRange, Result, Schema};
use crate::codec::{Codecs, Page, PageRef};
use crate::pages::{Extent, Files};
use crate::tree::Part;

/// Maximum bytes that are read together, unless a page is larger.
const READ_BYTES: usize = 128 << 10;

/// The pages of the parts of a run, or of leaves.
#[derive(Debug)]
pub(super) struct PageFeed {
    parts: VecDeque<Part>,
    is_leaf: bool,
    open: Option<OpenPart>,
    /// The part after `open`, whose first pages are being read.
    next: Option<OpenPart>,
}

#[derive(Debug)]
struct OpenPart {
    /// Keeps the pages.
    _extent: Arc<Extent>,
    index: Arc<Page>,
    range: KeyRange,
    /// All pages of the range.
    all: Range<usize>,
    /// Pages still to be returned.
    pages: Range<usize>,
    /// The first ones of `pages`, which have been read.
    read: VecDeque<Arc<Page>>,
    /// The pages behind them, which are being read.
    ahead: Option<Group>,
}

/// Consecutive pages that are read together.
#[derive(Debug)]
struct Group {
    places: Vec<PageRef>,
    tag: u64,
}

/// The reads of the feeds of a rewrite.
pub(super) struct GroupReads<'a> {
    files: &'a Files,
    queue: Option<Box<dyn Queue>>,
    next_tag: u64,
    /// By tag.
    completed: HashMap<u64, Result<Option<Buffer>>>,
    completions: Vec<Completion>,
}

impl PageFeed {
    pub fn new(parts: VecDeque<Part>, is_leaf: bool) -> PageFeed {
        PageFeed { parts, is_leaf, open: None, next: None }
    }

    /// Begins to read the first pages.
    ///
    /// # Errors
    /// Those of [`PageFeed::next`].
    pub fn start(&mut self, reads: &mut GroupReads<'_>, codecs: &Codecs) -> Result<()> {
        if self.next.is_none()
            && let Some(part) = self.parts.pop_front()
        {
            self.next = Some(OpenPart::new(part, reads, codecs)?);
        }
        Ok(())
    }

    /// The next page with its rows in the part; `None` at the end.
    ///
    /// # Errors
    /// Device errors, [`Error::Corrupt`], [`Error::Closed`].
    pub fn next(&mut self, reads: &mut GroupReads<'_>, codecs: &Codecs) -> Result<Option<(Arc<Page>, Range<usize>)>> {
        loop {
            let Some(open) = self.open.as_mut().filter(|open| !open.pages.is_empty()) else {
                self.start(reads, codecs)?;
                self.open = self.next.take();
                match self.open {
                    Some(_) => continue,
                    None => return Ok(None),
                }
            };
            let (page, rows) = open.next(reads, codecs, self.is_leaf)?;
            if open.is_begun() {
                self.start(reads, codecs)?;
            }
            if !rows.is_empty() {
                return Ok(Some((page, rows)));
            }
        }
    }
}

impl OpenPart {
    fn new(part: Part, reads: &mut GroupReads<'_>, codecs: &Codecs) -> Result<OpenPart> {
        let index = reads.files.read_index(&part.extent, &codecs.schema)?;
        let range = KeyRange::all().intersect(part.low.as_deref(), part.high.as_deref());
        let all = if range.is_empty() { 0..0 } else { index.pages_in(&range) };
        let (pages, read) = (all.clone(), VecDeque::new());
        let mut open = OpenPart { _extent: part.extent, index, range, all, pages, read, ahead: None };
        open.begin_group(reads)?;
        Ok(open)
    }

    /// True if all pages have been read or are being read.
    fn is_begun(&self) -> bool {
        self.pages.len() == self.read.len() + self.ahead.as_ref().map_or(0, |group| group.places.len())
    }

    /// The next page; there must be one.
    fn next(
        &mut self,
        reads: &mut GroupReads<'_>,
        codecs: &Codecs,
        is_leaf: bool,
    ) -> Result<(Arc<Page>, Range<usize>)> {
        let number = self.pages.start;
        if self.read.is_empty() {
            self.read_group(reads, codecs)?;
        }
        let page = self.read.pop_front().unwrap_or_else(|| panic!("page {number} is read"));
        self.pages.start += 1;
        self.index.check_data_page(number, &page, is_leaf)?;
        let at_end = number == self.all.start || number + 1 == self.all.end;
        let rows = if at_end { page.rows_in(&self.range) } else { 0..page.rows() };
        Ok((page, rows))
    }

    /// Adds the next pages to `read`, which is empty: one from the cache, or those of a read. Begins the read after it.
    fn read_group(&mut self, reads: &mut GroupReads<'_>, codecs: &Codecs) -> Result<()> {
        if self.ahead.is_none() {
            let place = self.index.entry(self.pages.start).0;
            match reads.files.cache.peek(place.offset) {
                Some(page) => self.read.push_back(page),
                None => self.begin_group(reads)?,
            }
        }
        if let Some(group) = self.ahead.take() {
            self.read = reads.finish(group, &codecs.schema)?;
        }
        self.begin_group(reads)
    }

    /// Begins to read the pages behind `read`, up to the next cached one.
    fn begin_group(&mut self, reads: &mut GroupReads<'_>) -> Result<()> {
        let (mut places, mut bytes) = (Vec::new(), 0);
        for number in self.pages.clone().skip(self.read.len()) {
            let place: PageRef = self.index.entry(number).0;
            bytes += place.len as usize;
            if reads.files.cache.peek(place.offset).is_some() || (bytes > READ_BYTES && !places.is_empty()) {
                break;
            }
            places.push(place);
        }
        self.ahead = reads.begin(places)?;
        Ok(())
    }
}

impl<'a> GroupReads<'a> {
    pub fn new(files: &'a Files) -> GroupReads<'a> {
        GroupReads { files, queue: None, next_tag: 0, completed: HashMap::new(), completions: Vec::new() }
    }

    /// Begins to read consecutive pages; `None` if there are none.
    ///
    /// # Panics
    /// If the pages are not consecutive.
    fn begin(&mut self, places: Vec<PageRef>) -> Result<Option<Group>> {
        let (Some(first), Some(last)) = (places.first(), places.last()) else { return Ok(None) };
        let is_next = |pair: &[PageRef]| pair[0].offset + u64::from(pair[0].len) == pair[1].offset;
        assert!(places.windows(2).all(is_next), "the pages from {} on are consecutive", first.offset);
        self.files.check_open()?;
        let queue = match &mut self.queue {
            Some(queue) => queue,
            None => self.queue.insert(self.files.queues.take(self.files)?),
        };
        let (offset, tag) = (first.offset, self.next_tag);
        let op = Op::Read(queue.buffer((last.offset - offset) as usize + last.len as usize));
        queue.push(Request { file: self.files.data.clone(), offset, op, tag });
        self.next_tag += 1;
        queue.submit()?;
        Ok(Some(Group { places, tag }))
    }

    /// Waits for the pages of a group, and verifies them. They do not enter the cache.
    fn finish(&mut self, group: Group, schema: &Arc<Schema>) -> Result<VecDeque<Arc<Page>>> {
        let buffer = loop {
            if let Some(result) = self.completed.remove(&group.tag) {
                break result?;
            }
            let Some(queue) = &mut self.queue else { unreachable!("a read that was begun has a queue") };
            queue.complete(Wait::Until(None), &mut self.completions)?;
            let completions = self.completions.drain(..);
            self.completed.extend(
                completions
                    .map(|Completion { tag, buffer, result }| (tag, result.map(|()| buffer).map_err(Error::from))),
            );
        };
        self.files.check_open()?;
        let Some(buffer) = buffer else { unreachable!("a completed read has a buffer") };
        let start = group.places[0].offset;
        let open = |place: &PageRef| {
            let at = (place.offset - start) as usize;
            self.files.open_page(&buffer[at..at + place.len as usize], *place, schema)
        };
        group.places.iter().map(open).collect()
    }
}

impl Drop for GroupReads<'_> {
    /// Waits for the reads in flight. Their pages are not used.
    fn drop(&mut self) {
        let Some(mut queue) = self.queue.take() else { return };
        while queue.in_flight() > 0 {
            if queue.complete(Wait::Until(None), &mut self.completions).is_err() {
                return;
            }
        }
        self.files.queues.give_back(queue, self.files);
    }
}

impl std::fmt::Debug for GroupReads<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GroupReads").field("completed", &self.completed.len()).finish_non_exhaustive()
    }
}

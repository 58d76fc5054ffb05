//! Cursors: the rows of a range in key order, leaf by leaf and page by page, with newer messages applied.
//!
//! For each leaf, the cursor merges the messages for its part of the range (those of the transaction, root buffers, then
//! the runs of every node on the path, newest first) with the rows of the leaf. Chunks refer to rows of pages: only
//! upserts, and messages in buffers, have values of their own. Without messages, each page of the leaf is a chunk, and no row
//! of it is decoded. If a single buffer holds all rows of a leaf's range, as in memory trees, its rows are returned in
//! batches without a merge.
//!
//! *Invariants.* A cursor holds one page of the leaf, one page and one index page of each run on the path, and the
//! pages of one chunk. A call whose future is dropped changes nothing that is returned.

use std::borrow::Cow;
use std::ops::{Bound, Range};
use std::sync::Arc;

use crate::base::{Direction, Error, Key, KeyRange, Result};
use crate::buffer::{BufferCursor, resolve};
use crate::codec::{Chunk, ChunkPart, Page, PageRef, key_hash};
use crate::message::{Change, MessageBytes, PageRow};
use crate::pages::{Extent, PageSource, Priority};
use crate::tree::merge::MergedRows;
use crate::tree::view::bound_key;
use crate::tree::{Advice, InnerNode, LaterPages, LeafIndex, LeafWalk, Merge, Node, Part, Run, TreeView};

/// Rows of the first chunk with messages, which is small for short ranges; each chunk has twice the rows of the one before.
const MERGED_ROWS_FIRST: usize = 64;
/// Maximum number of rows of a chunk with messages.
const MERGED_ROWS_MAX: usize = 1024;
/// Chunks double up to this number of rows, and grow by a quarter from then on, so that a reader that stops has merged few
/// rows in vain.
const MERGED_ROWS_DOUBLED: usize = 256;
/// Number of pages of the first leaf that a cursor with messages advises its source of, together with the pages of runs for
/// their keys. The other pages follow once the cursor has read as many, or has returned many rows.
const LEAF_PAGES_FIRST: usize = 32;
/// Pages are read ahead of chunks of at least this many rows.
const READ_AHEAD_ROWS: usize = 500;

/// Returns the rows of a range in chunks of about a page.
#[derive(Debug)]
pub struct Cursor<'s, P> {
    pub(super) view: Cow<'s, TreeView>,
    pub(super) source: P,
    /// The range after the current leaf; `None` if the current leaf is the last.
    range: Option<KeyRange>,
    direction: Direction,
    /// The range is a single key, of which this is the hash: page filters apply, and there is at most one row.
    point: Option<u64>,
    /// The cursor belongs to a counter.
    counts: bool,
    pub(crate) leaf: Option<LeafWalk>,
    /// Maximum number of rows of the next chunk with messages.
    merged_rows_max: usize,
    read_ahead: ReadAhead,
    /// A permanent error; all further calls return it.
    pub(super) failed: Option<Error>,
}

/// The read-ahead of an ascending scan.
#[derive(Debug, Default)]
struct ReadAhead {
    /// Number of leaves entered. From the second leaf on, pages are read with scan priority.
    leaves: usize,
    /// All pages of leaves below this key have been requested.
    through: Option<Key>,
    /// All pages of all leaves have been requested.
    is_complete: bool,
    /// Upserts have changed rows of a page that lacked columns: pages are read with all columns from now on.
    whole: bool,
}

impl ReadAhead {
    /// True if the pages of leaves up to the one that ends below `high` have been requested.
    fn covers(&self, high: Option<&Key>) -> bool {
        self.is_complete || self.through.as_ref().zip(high).is_some_and(|(through, high)| through >= high)
    }
}

/// A leaf, its bounds, and the parts of runs on its path that may have messages for the range.
struct Path<'a> {
    extent: Option<&'a Arc<Extent>>,
    low: Option<&'a Key>,
    high: Option<&'a Key>,
    /// Newest first. For a lookup, parts that may also end before its key.
    parts: Vec<&'a Part>,
}

impl<'s, P: PageSource> Cursor<'s, P> {
    pub(crate) fn new(view: Cow<'s, TreeView>, source: P, range: KeyRange, direction: Direction) -> Self {
        let point = range.as_point().map(key_hash);
        let range = (!range.is_empty()).then_some(range);
        let (read_ahead, merged_rows_max) = (ReadAhead::default(), MERGED_ROWS_FIRST);
        Cursor {
            view,
            source,
            range,
            direction,
            point,
            counts: false,
            leaf: None,
            merged_rows_max,
            read_ahead,
            failed: None,
        }
    }

    /// A cursor for [`Counter`](crate::Counter).
    pub(crate) fn counting(self) -> Self {
        Cursor { counts: true, ..self }
    }

    /// The next rows; `None` at the end. Chunks, and the rows within a chunk, are in the cursor's direction.
    ///
    /// A call whose future is dropped, or that fails to read a page, changes nothing and may be repeated. Other errors
    /// are permanent: further calls return them again.
    ///
    /// # Errors
    /// Errors of the page source, [`Error::Corrupt`], errors of upsert functions, [`Error::Closed`].
    pub async fn next(&mut self) -> Result<Option<Chunk>> {
        self.check()?;
        if self.point.is_some() && self.view.tree.is_memory() && self.view.own.is_none() {
            return self.point_in_memory();
        }
        loop {
            if self.leaf.is_none() && !self.enter_leaf().await? {
                return Ok(None);
            }
            if let Some(rows) = self.leaf.as_mut().and_then(|leaf| leaf.rows.as_mut()) {
                match rows.next_rows(self.view.upserts())? {
                    Some(rows) => {
                        let parts = vec![ChunkPart::Rows(Arc::new(rows))];
                        return Ok(Some(Chunk { codecs: self.view.version.codecs.clone(), parts }));
                    }
                    None => self.leaf = None,
                }
                continue;
            }
            if self.leaf.as_ref().is_some_and(|leaf| leaf.merged.is_some()) {
                match self.next_merged().await? {
                    Some(chunk) => return Ok(Some(chunk)),
                    None => self.leaf = None,
                }
                continue;
            }
            match self.next_in_leaf().await? {
                Some(chunk) if chunk.parts.is_empty() => {}
                Some(mut chunk) => {
                    if self.direction == Direction::Descending {
                        chunk.reverse();
                    }
                    return Ok(Some(chunk));
                }
                None => self.leaf = None,
            }
        }
    }

    /// # Errors
    /// [`Error::Closed`]; the permanent error of an earlier call.
    fn check(&self) -> Result<()> {
        self.view.files.check_open()?;
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Like [`Cursor::next`], but returns the number of the next rows, and reads a page only if its row count is not
    /// enough.
    pub(crate) async fn next_count(&mut self) -> Result<Option<u64>> {
        self.check()?;
        if self.point.is_some() && self.view.tree.is_memory() && self.view.own.is_none() {
            return Ok(self.point_in_memory()?.map(|chunk| chunk.rows() as u64));
        }
        loop {
            if self.leaf.is_none() && !self.enter_leaf().await? {
                return Ok(None);
            }
            if let Some(rows) = self.leaf.as_mut().and_then(|leaf| leaf.rows.as_mut()) {
                match rows.count_rows(self.view.upserts())? {
                    Some(rows) => return Ok(Some(rows)),
                    None => self.leaf = None,
                }
                continue;
            }
            if self.point.is_none() {
                return self.count_leaf().await.map(Some);
            }
            match self.next_in_leaf().await? {
                Some(chunk) if chunk.parts.is_empty() => {}
                Some(chunk) => return Ok(Some(chunk.rows() as u64)),
                None => self.leaf = None,
            }
        }
    }

    /// The row with the cursor's key in a memory tree.
    fn point_in_memory(&mut self) -> Result<Option<Chunk>> {
        let Some(KeyRange { start: Bound::Included(key), .. }) = self.range.as_ref() else { return Ok(None) };
        let mut value = None;
        let mut upserts = None;
        let version = &self.view.version;
        version.active.visit_newest(key, self.view.sequence, |newest| match newest.message() {
            MessageBytes::Insert(found) => value = Some(Arc::from(found)),
            MessageBytes::Delete => {}
            MessageBytes::Upsert { .. } => upserts = Some(resolve(newest, self.view.upserts())),
        });
        if let Some(resolved) = upserts {
            value = resolved?;
        }
        let parts = value.map(|value| vec![ChunkPart::Row { key: key.as_slice().into(), value }]);
        let chunk = parts.map(|parts| Chunk { codecs: version.codecs.clone(), parts });
        self.range = None;
        Ok(chunk)
    }

    /// Enters the next leaf of the range; false at the end.
    async fn enter_leaf(&mut self) -> Result<bool> {
        let Some(range) = &self.range else { return Ok(false) };
        let path = find_path(&self.view.version.root, range, self.direction, self.point.is_some());
        let is_counted = self.counts && self.point.is_none();
        let messages = Merge::new(self.direction, Priority::Lookup);
        let messages = if is_counted { messages.counting() } else { messages };
        let mut walk =
            LeafWalk::new(range.intersect(path.low.map(|low| &**low), path.high.map(|high| &**high)), messages);
        let mut settled = false;
        if let Some(hash) = self.point {
            if let Bound::Included(key) = &range.start
                && let Some(change) = self.point_change(key, hash, &path.parts, path.extent).await?
            {
                // An insert or delete decides the result without the leaf.
                settled = !matches!(change, Change::Upserts(_));
                walk.changes.push((key.as_slice().into(), change));
            }
        } else if let Some((buffer, sequence)) =
            self.view.only_buffer().filter(|_| path.extent.is_none() && path.parts.is_empty())
        {
            walk.rows = Some(BufferCursor::new(buffer.clone(), walk.range.clone(), sequence, self.direction));
        } else {
            let reads_ahead = self.source.read_ahead_bytes() > 0 && !is_counted;
            let indexes = if reads_ahead { self.run_indexes(&path, &walk.range).await? } else { Vec::new() };
            let mut indexes = indexes.into_iter();
            let parts = path.parts.into_iter().map(|part| (part.clone(), indexes.next()));
            add_sources(&mut walk.messages, &self.view, &walk.range, parts);
            if self.source.read_ahead_bytes() > 0 {
                self.source.prefetch_first(&walk.messages.first_pages(), self.view.schema());
            }
        }
        if let Some(extent) = path.extent
            && !settled
            && walk.range.may_overlap(&extent.meta.first, &extent.meta.last)
        {
            walk.set_inside(extent);
            if is_counted {
                walk.count.extent = Some(extent.clone());
            } else {
                let (index, pages) = self.leaf_index(extent, &walk).await?;
                let is_first = self.read_ahead.leaves == 0;
                let priority = if is_first { Priority::Lookup } else { Priority::Scan };
                let is_advised = self.read_ahead.covers(path.high);
                if !is_advised {
                    let (leaf, runs) = ((&index, pages.clone()), walk.messages.known_pages());
                    walk.later = self.advise(Some(leaf), priority, runs, is_first.then_some(LEAF_PAGES_FIRST));
                }
                match index {
                    LeafIndex::Page(index) if self.point.is_none() && !walk.messages.is_empty() => {
                        let (range, whole) = (walk.range.clone(), self.read_ahead.whole);
                        walk.messages.add_leaf(extent, index, pages, range, priority, whole);
                        walk.merged = Some(MergedRows::default());
                    }
                    index => walk.set_pages(index, pages),
                }
            }
        } else if !is_counted && self.point.is_none() {
            self.advise(None, Priority::Scan, walk.messages.known_pages(), None);
        }
        // No await and no error below: the state changes completely or not at all.
        self.leaf = Some(walk);
        self.read_ahead.leaves += 1;
        self.range = self.range.take().and_then(|range| match self.direction {
            Direction::Ascending => path.high.map(|high| KeyRange { start: Bound::Included(high.to_vec()), ..range }),
            Direction::Descending => path.low.map(|low| KeyRange { end: Bound::Excluded(low.to_vec()), ..range }),
        });
        self.range = self.range.take().filter(|rest| !rest.is_empty());
        Ok(true)
    }

    /// The index pages of the runs that have messages for a leaf. Missing index pages, including that of the leaf, are read
    /// together.
    async fn run_indexes(&self, path: &Path<'_>, range: &KeyRange) -> Result<Vec<Arc<Page>>> {
        let schema = self.view.schema();
        let of_leaf = path.extent.into_iter().filter(|extent| range.may_overlap(&extent.meta.first, &extent.meta.last));
        let of_leaf = of_leaf.filter(|extent| self.known_index(extent, range).is_none());
        let of_runs = path.parts.iter().map(|part| &part.extent);
        let wanted = of_runs.filter(|extent| self.cached_index(extent).is_none()).chain(of_leaf);
        let missing: Vec<PageRef> = wanted.map(|extent| extent.index()).collect();
        if !missing.is_empty() {
            self.source.prefetch_first(&missing, schema);
        }
        let mut indexes = Vec::with_capacity(path.parts.len());
        for part in &path.parts {
            indexes.push(self.index_of(&part.extent).await?);
        }
        Ok(indexes)
    }

    /// The index of a leaf, and the pages that may hold rows of the range. A locator is used if its words decide and no
    /// message has to be assigned to one of several pages.
    pub(super) async fn leaf_index(&self, extent: &Arc<Extent>, walk: &LeafWalk) -> Result<(LeafIndex, Range<usize>)> {
        let located = self.view.locator.as_ref().and_then(|locator| locator.locate(extent)).map(LeafIndex::Located);
        if let Some(index) = located
            && let Some(pages) = index.pages_of(&walk.range)
            && (pages.len() <= 1 || walk.messages.is_empty())
        {
            return Ok((index, pages));
        }
        let index = self.index_of(extent).await?;
        let is_absent = self.point.is_some_and(|hash| !index.may_contain_hash(hash));
        let index = LeafIndex::Page(index);
        // Always `Some` for an index page.
        let pages = index.pages_of(&walk.range).unwrap_or_default();
        Ok((index, if is_absent { pages.start..pages.start } else { pages }))
    }

    /// The index page of an extent. A range gets it from the source, which counts the pages that it has read ahead.
    async fn index_of(&self, extent: &Extent) -> Result<Arc<Page>> {
        match self.point.and_then(|_| extent.held_index()) {
            Some(index) => Ok(index),
            None => self.read_index(extent).await,
        }
    }

    /// As [`Cursor::index_of`], always from the source: the cache counts a use of the page.
    pub(super) async fn read_index(&self, extent: &Extent) -> Result<Arc<Page>> {
        let index = self.source.page(extent.index(), self.view.schema(), Priority::Index).await?;
        extent.check_index(&index)?;
        if self.point.is_some() {
            extent.hold_index(&index);
        }
        Ok(index)
    }

    /// The next rows of the leaf, merged with the messages; `None` at the end of the leaf.
    async fn next_merged(&mut self) -> Result<Option<Chunk>> {
        let mut reads_ahead = self.merged_rows_max >= READ_AHEAD_ROWS;
        loop {
            self.advise_later();
            if std::mem::take(&mut reads_ahead) {
                self.read_ahead();
            }
            let (schema, codecs) = (self.view.schema(), &self.view.version.codecs);
            let Some(walk) = &mut self.leaf else { return Ok(None) };
            walk.messages.next_key(&walk.range, schema, &self.source).await?;
            // Rows that an interrupted call has merged are kept for the next one.
            let Some(merged) = &mut walk.merged else { return Ok(None) };
            if walk.messages.is_chunk(merged, self.merged_rows_max) {
                let parts = std::mem::take(merged).parts;
                if !parts.is_empty() {
                    self.merged_rows_max = after_chunk_of(self.merged_rows_max);
                    return Ok(Some(Chunk { codecs: codecs.clone(), parts }));
                }
                if walk.messages.is_empty() {
                    return Ok(None);
                }
                // Messages without rows were taken.
                continue;
            }
            match walk.messages.take_rows(merged, self.merged_rows_max, codecs, self.view.upserts()) {
                Ok(true) => {}
                Ok(false) => {
                    walk.messages.complete_leaf(schema, &self.source).await?;
                    self.read_ahead.whole = true;
                }
                Err(error) => {
                    self.failed = Some(error.clone());
                    return Err(error);
                }
            }
        }
    }

    /// The next rows of the leaf with changes applied; `None` at the end of the leaf.
    async fn next_in_leaf(&mut self) -> Result<Option<Chunk>> {
        let priority = if self.read_ahead.leaves > 1 { Priority::Scan } else { Priority::Lookup };
        let Some(walk) = &mut self.leaf else { return Ok(None) };
        if walk.page.is_none()
            && let Some(number) = walk.next_page(self.direction)
            && let Some(index) = &walk.index
        {
            let whole = self.read_ahead.whole;
            let page = index.page(number, &self.view, priority, &self.source, whole).await?;
            walk.enter_page(page, number, self.direction);
            if number.is_multiple_of(16) {
                self.read_ahead();
            }
        }
        let Some(walk) = &mut self.leaf else { return Ok(None) };
        let all = walk.take_changes(&self.view, self.direction, &self.source).await?;
        if let Some(number) = walk.lacks_columns()
            && let Some(index) = &walk.index
        {
            let page = index.page(number, &self.view, priority, &self.source, true).await?;
            walk.complete_page(page);
            self.read_ahead.whole = true;
        }
        // No await below: the state changes completely or not at all.
        let page = walk.leave_page(all, self.direction);
        let mut changes = std::mem::take(&mut walk.changes);
        walk.change_bytes = 0;
        if page.is_none() && changes.is_empty() {
            return Ok(None);
        }
        if self.direction == Direction::Descending {
            changes.reverse();
        }
        let (page, rows) = page.map_or((None, 0..0), |(page, rows)| (Some(page), rows));
        let merged = self.merge(page, rows, changes);
        if let Err(error) = &merged {
            self.failed = Some(error.clone());
        }
        merged.map(Some)
    }

    /// Rows `rows` of a page with `changes`, in ascending key order, applied.
    ///
    /// # Errors
    /// Errors of upsert functions, [`Error::Corrupt`].
    fn merge(&self, page: Option<Arc<Page>>, rows: Range<usize>, changes: Vec<(Key, Change)>) -> Result<Chunk> {
        let mut parts = Vec::with_capacity(1 + 2 * changes.len());
        let mut next = rows.start;
        let mut scratch = Vec::new();
        let functions = self.view.upserts();
        for (key, change) in changes {
            let mut old = None;
            if let Some(page) = &page
                && next < rows.end
            {
                let at = page.lower_bound_from(next, &key).clamp(next, rows.end);
                push_rows(&mut parts, page, next..at);
                next = at;
                if at < rows.end {
                    scratch.clear();
                    page.key(at, &mut scratch);
                    if *scratch == *key {
                        next = at + 1;
                        if matches!(change, Change::Upserts(_)) {
                            page.check_all_columns()?;
                            let mut value = Vec::new();
                            page.value(at, functions.rows(), &mut value);
                            old = Some(value);
                        }
                    }
                }
            }
            match change {
                Change::Row(PageRow { page, row }) => push_rows(&mut parts, &page, row as usize..row as usize + 1),
                change => {
                    if let Some(value) = change.apply(old.as_deref(), functions)? {
                        parts.push(ChunkPart::Row { key, value });
                    }
                }
            }
        }
        if let Some(page) = &page {
            push_rows(&mut parts, page, next..rows.end);
        }
        Ok(Chunk { codecs: self.view.version.codecs.clone(), parts })
    }

    fn cached_index(&self, extent: &Extent) -> Option<Arc<Page>> {
        let index = self.view.files.cache.get(extent.index().offset)?;
        // The read that follows reports a damaged index page.
        extent.check_index(&index).ok()?;
        Some(index)
    }

    /// Advises the source of the pages of a leaf and of runs. With `leaf_pages_max`, of this many pages of the leaf, and of the
    /// pages of runs for their keys: returns the others.
    fn advise(
        &self,
        leaf: Option<(&LeafIndex, Range<usize>)>,
        priority: Priority,
        runs: Vec<(Arc<Page>, Range<usize>)>,
        leaf_pages_max: Option<usize>,
    ) -> Option<LaterPages> {
        let pages: usize =
            leaf.iter().map(|(_, pages)| pages.len()).chain(runs.iter().map(|(_, pages)| pages.len())).sum();
        if self.source.read_ahead_bytes() == 0 || self.counts || pages <= 1 {
            return None;
        }
        let (schema, direction, whole) = (self.view.schema(), self.direction, self.read_ahead.whole);
        let mut advice = Advice { schema, direction, leaf, priority, whole, runs };
        let later = leaf_pages_max.and_then(|count| advice.split_off(count));
        advice.give(&self.source);
        later
    }

    /// Advises the source of the other pages of the first leaf, once the cursor gets near to them.
    fn advise_later(&mut self) {
        let Some(walk) = &mut self.leaf else { return };
        let is_near = walk.messages.pages_read() >= LEAF_PAGES_FIRST || self.merged_rows_max >= READ_AHEAD_ROWS;
        if let Some(LaterPages { leaf: (index, pages), priority, runs }) = walk.later.take_if(|_| is_near) {
            self.advise(Some((&index, pages)), priority, runs, None);
        }
    }

    /// Prefetches the pages of the following leaves, and of the runs that have messages for them, index pages first, up to
    /// the read-ahead limit of the source.
    fn read_ahead(&mut self) {
        let mut budget = self.source.read_ahead_bytes() as u64;
        if budget == 0 || self.direction == Direction::Descending || self.counts || self.read_ahead.is_complete {
            return;
        }
        let Some(mut range) = self.range.clone() else { return };
        while budget > 0 {
            let path = find_path(&self.view.version.root, &range, self.direction, false);
            let through = self.read_ahead.through.as_ref();
            if path.low.is_none_or(|low| through.is_none_or(|through| low >= through)) {
                let leaf_range = range.intersect(path.low.map(|low| &**low), path.high.map(|high| &**high));
                if !self.advise_ahead(&path, &leaf_range) {
                    return;
                }
                self.read_ahead.through = path.high.cloned();
                self.read_ahead.is_complete = path.high.is_none();
            }
            let of_runs: u64 = path.parts.iter().map(|part| part.bytes).sum();
            budget = budget.saturating_sub(of_runs + path.extent.as_ref().map_or(0, |extent| extent.meta.len));
            match path.high {
                Some(high) => range.start = Bound::Included(high.to_vec()),
                None => return,
            }
            if range.is_empty() {
                return;
            }
        }
    }

    /// Advises the source of the pages of a following leaf and its runs, or of their index pages, if these are not known:
    /// returns false.
    fn advise_ahead(&self, path: &Path, range: &KeyRange) -> bool {
        let mut unknown = Vec::new();
        let mut runs = Vec::with_capacity(path.parts.len());
        for part in &path.parts {
            match self.cached_index(&part.extent) {
                Some(index) => {
                    let pages = index.pages_in(&range.intersect(part.low.as_deref(), part.high.as_deref()));
                    runs.push((index, pages));
                }
                None => unknown.push(part.extent.index()),
            }
        }
        let leaf = path.extent.as_ref().map(|extent| (extent, self.known_index(extent, range)));
        if let Some((extent, None)) = leaf {
            unknown.push(extent.index());
        }
        if !unknown.is_empty() {
            self.source.prefetch(&unknown, self.view.schema());
            return false;
        }
        let leaf = leaf.and_then(|(_, leaf)| leaf);
        self.advise(leaf.as_ref().map(|(index, pages)| (index, pages.clone())), Priority::Scan, runs, None);
        true
    }

    /// Like [`Cursor::leaf_index`], but without I/O; `None` if neither a locator nor a cached index page is usable.
    fn known_index(&self, extent: &Arc<Extent>, range: &KeyRange) -> Option<(LeafIndex, Range<usize>)> {
        let located = self.view.locator.as_ref().and_then(|locator| locator.locate(extent)).map(LeafIndex::Located);
        let by_locator = located.and_then(|index| index.pages_of(range).map(|pages| (index, pages)));
        by_locator.or_else(|| {
            let index = LeafIndex::Page(self.cached_index(extent)?);
            let pages = index.pages_of(range)?;
            Some((index, pages))
        })
    }
}

/// Adds all messages of a range within one leaf to a merge: those of a transaction, of the buffers, then of the parts
/// of runs on the path to the leaf, with the index pages of their extents that are known.
fn add_sources(
    messages: &mut Merge,
    view: &TreeView,
    range: &KeyRange,
    parts: impl Iterator<Item = (Part, Option<Arc<Page>>)>,
) {
    if let Some((buffer, sequence)) = view.own_buffer() {
        messages.add_buffer(buffer, range, sequence);
    }
    for part in parts_in(view.own_runs(), range) {
        messages.add_part(part.clone(), range, None);
    }
    for (buffer, sequence) in view.committed_buffers() {
        messages.add_buffer(buffer, range, sequence);
    }
    parts.for_each(|(part, index)| messages.add_part(part, range, index));
}

impl TreeView {
    /// The messages of a range that lies within one leaf, in ascending order, without the rows of the leaf.
    pub(crate) fn messages(&self, range: &KeyRange) -> Merge {
        let path = find_path(&self.version.root, range, Direction::Ascending, false);
        let mut messages = Merge::new(Direction::Ascending, Priority::Scan);
        add_sources(&mut messages, self, range, path.parts.into_iter().map(|part| (part.clone(), None)));
        messages
    }
}

pub(crate) fn push_rows(parts: &mut Vec<ChunkPart>, page: &Arc<Page>, rows: Range<usize>) {
    if rows.is_empty() {
        return;
    }
    match parts.last_mut() {
        Some(ChunkPart::Page { page: last, rows: before, .. })
            if Arc::ptr_eq(last, page) && before.end as usize == rows.start =>
        {
            before.end = rows.end as u32;
        }
        _ => parts.push(ChunkPart::Page {
            page: page.clone(),
            rows: rows.start as u32..rows.end as u32,
            reversed: false,
        }),
    }
}

/// The first leaf of a range in the given direction, with the run parts on its path that overlap the leaf's part of the
/// range. For the point of a lookup, which bounds of parts need not decide, with all candidates.
fn find_path<'a>(root: &'a InnerNode, range: &KeyRange, direction: Direction, is_lookup: bool) -> Path<'a> {
    let mut path = Path { extent: None, low: None, high: None, parts: Vec::new() };
    let mut node = root;
    let mut levels: Vec<&InnerNode> = Vec::with_capacity(6);
    loop {
        let child = match (direction, &range.start, &range.end) {
            (Direction::Ascending, Bound::Included(key) | Bound::Excluded(key), _) => node.child_of(key),
            (Direction::Ascending, Bound::Unbounded, _) => 0,
            (Direction::Descending, _, Bound::Included(key)) => node.child_of(key),
            // Keys below `key`: the child that ends at `key` if it is a pivot.
            (Direction::Descending, _, Bound::Excluded(key)) => node.pivots.partition_point(|pivot| **pivot < **key),
            (Direction::Descending, _, Bound::Unbounded) => node.children.len() - 1,
        };
        levels.push(node);
        let (low, high) = node.bounds(child);
        path.low = low.or(path.low);
        path.high = high.or(path.high);
        match &*node.children[child] {
            Node::Inner(inner) => node = inner,
            Node::Leaf(extent) => {
                path.extent = extent.as_ref();
                break;
            }
        }
    }
    if let (true, Some(key)) = (is_lookup, range.as_point()) {
        path.parts = levels.iter().flat_map(|level| &level.runs).filter_map(|run| run.candidate(key)).collect();
    } else if levels.iter().any(|level| !level.runs.is_empty()) {
        let cut = range.intersect(path.low.map(|low| &**low), path.high.map(|high| &**high));
        for level in levels {
            path.parts.extend(parts_in(&level.runs, &cut));
        }
    }
    path
}

/// The parts of runs that may have keys in a range, in the order of the runs.
fn parts_in<'a, 'r>(runs: &'a [Run], range: &'r KeyRange) -> impl Iterator<Item = &'a Part> + use<'a, 'r> {
    let low = bound_key(&range.start);
    let parts = move |run: &'a Run| run.overlapping(low, None).take_while(|part| !range.ends_before(part.first()));
    runs.iter().flat_map(parts)
}

/// Maximum number of rows of the chunk after one of at most `rows` rows.
fn after_chunk_of(rows: usize) -> usize {
    let growth = if rows < MERGED_ROWS_DOUBLED { rows } else { rows / 4 };
    (rows + growth).min(MERGED_ROWS_MAX)
}

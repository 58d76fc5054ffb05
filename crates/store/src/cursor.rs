//! Cursors: walking a range leaf by leaf, page by page, with the messages of the path laid over.
//!
//! For each leaf the cursor collects the messages for its part of the range (root buffers, then the runs of every node
//! on the path, newest first), resolves them to one change a key, and then yields each page of the leaf merged with the
//! changes that fall on it. A page without changes costs nothing but itself.

use std::collections::VecDeque;
use std::ops::{Bound, Range};
use std::sync::Arc;

use crate::chunk::{Chunk, Segment};
use crate::codec::{Page, PageRef};
use crate::extent::Extent;
use crate::overlay::{Change, OverlayBuilder};
use crate::read::TreeView;
use crate::source::PageSource;
use crate::tree::{Inner, Key, Node, Part};
use crate::{Direction, KeyRange, Priority, Result};

/// Rows in a chunk that come from messages alone.
const CHANGES_PER_CHUNK: usize = 1024;

/// Walks over a range, a chunk (about a page) at a time.
#[derive(Debug)]
pub struct Cursor<'s, P> {
    view: TreeView,
    source: &'s P,
    /// What is left of the range; `None`: nothing.
    range: Option<KeyRange>,
    direction: Direction,
    /// The range is one whole key: filters apply, and there is at most one row.
    point: bool,
    leaf: Option<LeafWalk>,
    read_ahead: ReadAhead,
}

/// How far a long ascending scan has asked for pages ahead of itself.
#[derive(Debug, Default)]
struct ReadAhead {
    /// Leaves entered so far; read-ahead beyond a leaf starts with the second.
    leaves: usize,
    /// Everything below this key has been asked for.
    through: Option<Key>,
}

/// A leaf in progress.
#[derive(Debug)]
struct LeafWalk {
    /// The leaf's key range, cut to the cursor's.
    range: KeyRange,
    index: Option<Arc<Page>>,
    /// Data pages left (numbers in the index).
    pages: Range<usize>,
    /// Changes left, ascending.
    changes: VecDeque<(Key, Change)>,
    /// Pages at the ends of the leaf's part of the range hold rows outside it.
    first_page: usize,
    last_page: usize,
}

impl LeafWalk {
    /// The next page: where it is, and its number.
    fn next_page(&self, direction: Direction) -> Option<(PageRef, usize)> {
        let number = match direction {
            _ if self.pages.is_empty() => return None,
            Direction::Ascending => self.pages.start,
            Direction::Descending => self.pages.end - 1,
        };
        Some((self.index.as_ref()?.entry(number).0, number))
    }

    /// Steps over the page that `next_page` tells.
    fn step(&mut self, direction: Direction) {
        match direction {
            Direction::Ascending => self.pages.next(),
            Direction::Descending => self.pages.next_back(),
        };
    }

    /// Takes the changes that fall on page `number` and were not taken with its predecessors.
    fn changes_of(&mut self, number: usize, direction: Direction) -> Vec<(Key, Change)> {
        let Some(index) = self.index.as_ref().filter(|_| !self.changes.is_empty()) else { return Vec::new() };
        match direction {
            Direction::Ascending => {
                let at = match number == self.last_page {
                    true => self.changes.len(),
                    false => self.changes.partition_point(|(key, _)| **key < *index.fence(number + 1)),
                };
                self.changes.drain(..at).collect()
            }
            Direction::Descending => {
                let at = match number == self.first_page {
                    true => 0,
                    false => self.changes.partition_point(|(key, _)| **key < *index.fence(number)),
                };
                self.changes.split_off(at).into()
            }
        }
    }

    /// Takes the next `count` changes, whatever page they fall on; ascending.
    fn take_changes(&mut self, direction: Direction, count: usize) -> Vec<(Key, Change)> {
        let count = count.min(self.changes.len());
        match direction {
            Direction::Ascending => self.changes.drain(..count).collect(),
            Direction::Descending => self.changes.split_off(self.changes.len() - count).into(),
        }
    }
}

/// A leaf, the bounds of its keys, and the parts of runs above it that may have messages for the range.
struct Path {
    extent: Option<Arc<Extent>>,
    low: Option<Key>,
    high: Option<Key>,
    /// Newest first.
    parts: Vec<Part>,
}

impl<'s, P: PageSource> Cursor<'s, P> {
    pub(crate) fn new(view: TreeView, source: &'s P, range: KeyRange, direction: Direction) -> Self {
        let point = matches!((&range.start, &range.end), (Bound::Included(a), Bound::Included(b)) if a == b);
        let range = (!is_empty(&range)).then_some(range);
        Cursor { view, source, range, direction, point, leaf: None, read_ahead: ReadAhead::default() }
    }

    /// A cursor over all pages of one leaf, with changes instead of the messages of the tree.
    pub(crate) fn over_leaf(
        view: TreeView,
        source: &'s P,
        index: Option<Arc<Page>>,
        changes: VecDeque<(Key, Change)>,
    ) -> Self {
        let pages = 0..index.as_ref().map_or(0, |index| index.rows());
        let (first_page, last_page) = (0, pages.end.saturating_sub(1));
        let leaf = Some(LeafWalk { range: KeyRange::all(), index, pages, changes, first_page, last_page });
        let read_ahead = ReadAhead { leaves: 2, through: None };
        Cursor { view, source, range: None, direction: Direction::Ascending, point: false, leaf, read_ahead }
    }

    /// The next rows; `None` at the end. Chunks are in the cursor's direction, and so are the rows in a chunk.
    ///
    /// A call that is given up (its future dropped) or fails changes nothing: the next one begins where it began.
    ///
    /// # Errors
    /// What reading and checking pages gives, and errors of upsert functions.
    pub async fn next(&mut self) -> Result<Option<Chunk>> {
        self.view.files.check_open()?;
        loop {
            if self.leaf.is_none() && !self.enter_leaf().await? {
                return Ok(None);
            }
            match self.next_in_leaf().await? {
                Some(chunk) if chunk.segments.is_empty() => {}
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

    /// Goes to the next leaf of what is left of the range; false if nothing is left.
    async fn enter_leaf(&mut self) -> Result<bool> {
        let Some(range) = &self.range else { return Ok(false) };
        let path = find_path(&self.view.version.root, range, self.direction);
        let leaf_range = intersect(range, path.low.as_deref(), path.high.as_deref());
        let changes = self.changes(&leaf_range, &path.parts).await?;
        let mut walk = LeafWalk {
            range: leaf_range,
            index: None,
            pages: 0..0,
            changes: changes.into(),
            first_page: 0,
            last_page: 0,
        };
        // The messages may tell all there is to know of a single key.
        let settled = self.point && walk.changes.iter().any(|(_, change)| !matches!(change, Change::Upserts(_)));
        if let Some(extent) = &path.extent
            && !settled
            && may_overlap(&extent.meta.first, &extent.meta.last, &walk.range)
        {
            let index = self.source.page(extent.index(), self.view.schema(), Priority::Index).await?;
            extent.check_index(&index)?;
            walk.pages = pages_of(&index, &walk.range);
            (walk.first_page, walk.last_page) = (walk.pages.start, walk.pages.end.saturating_sub(1));
            if walk.pages.len() > 1 {
                self.prefetch_pages(&index, walk.pages.clone());
            }
            walk.index = Some(index);
        }
        // From here on nothing waits or fails.
        self.leaf = Some(walk);
        self.read_ahead.leaves += 1;
        self.range = self.range.take().and_then(|range| match self.direction {
            Direction::Ascending => path.high.map(|high| KeyRange { start: Bound::Included(high.to_vec()), ..range }),
            Direction::Descending => path.low.map(|low| KeyRange { end: Bound::Excluded(low.to_vec()), ..range }),
        });
        self.range = self.range.take().filter(|rest| !is_empty(rest));
        Ok(true)
    }

    /// The messages for `range` from buffers and run parts, as one change a key.
    async fn changes(&self, range: &KeyRange, parts: &[Part]) -> Result<Vec<(Key, Change)>> {
        let version = &self.view.version;
        let mut builder = OverlayBuilder::default();
        for buffer in std::iter::once(&version.active).chain(&version.frozen) {
            builder.add_buffer(buffer, range, self.view.sequence);
        }
        for part in parts {
            self.add_part(part, range, &mut builder).await?;
        }
        if builder.is_empty() { Ok(Vec::new()) } else { builder.build(&self.view.files.upserts) }
    }

    async fn add_part(&self, part: &Part, range: &KeyRange, builder: &mut OverlayBuilder) -> Result<()> {
        let range = intersect(range, part.low.as_deref(), part.high.as_deref());
        if is_empty(&range) || !may_overlap(&part.extent.meta.first, &part.extent.meta.last, &range) {
            return Ok(());
        }
        let schema = self.view.schema();
        let index = self.source.page(part.extent.index(), schema, Priority::Index).await?;
        part.extent.check_index(&index)?;
        if self.point
            && let Bound::Included(key) = &range.start
            && !index.may_contain(key)
        {
            return Ok(());
        }
        let pages = pages_of(&index, &range);
        if pages.len() > 1 {
            self.prefetch_pages(&index, pages.clone());
        }
        for number in pages {
            let page = self.source.page(index.entry(number).0, schema, Priority::Lookup).await?;
            index.check_data_page(number, &page, false)?;
            let rows = rows_of(&page, &range);
            builder.add_page(&page, rows)?;
        }
        Ok(())
    }

    /// The next page of the leaf with its changes; `None` when the leaf is done.
    async fn next_in_leaf(&mut self) -> Result<Option<Chunk>> {
        let priority = if self.read_ahead.leaves > 1 { Priority::Scan } else { Priority::Lookup };
        let Some(walk) = &mut self.leaf else { return Ok(None) };
        let Some((reference, number)) = walk.next_page(self.direction) else {
            // No pages (left): what changes are left are all there is.
            let changes = walk.take_changes(self.direction, CHANGES_PER_CHUNK);
            return if changes.is_empty() { Ok(None) } else { self.merge(None, 0..0, changes).map(Some) };
        };
        let page = self.source.page(reference, self.view.schema(), priority).await?;
        if let Some(index) = &walk.index {
            index.check_data_page(number, &page, true)?;
        }
        walk.step(self.direction);
        let rows = if number == walk.first_page || number == walk.last_page {
            rows_of(&page, &walk.range)
        } else {
            0..page.rows()
        };
        let changes = walk.changes_of(number, self.direction);
        if number.is_multiple_of(16) {
            self.read_ahead();
        }
        self.merge(Some(page), rows, changes).map(Some)
    }

    /// Rows `rows` of a page with `changes` (ascending) laid over.
    fn merge(&self, page: Option<Arc<Page>>, rows: Range<usize>, changes: Vec<(Key, Change)>) -> Result<Chunk> {
        let mut segments = Vec::with_capacity(1 + 2 * changes.len());
        let mut next = rows.start;
        let mut scratch = Vec::new();
        let functions = &self.view.files.upserts;
        for (key, change) in changes {
            let mut old = None;
            if let Some(page) = &page
                && next < rows.end
            {
                let at = page.lower_bound(&key, false).clamp(next, rows.end);
                push_rows(&mut segments, page, next..at);
                next = at;
                if at < rows.end {
                    scratch.clear();
                    page.key(at, &mut scratch);
                    if *scratch == *key {
                        next = at + 1;
                        if matches!(change, Change::Upserts(_)) {
                            page.check_all_columns()?;
                            let mut value = Vec::new();
                            page.value(at, &mut value);
                            old = Some(value);
                        }
                    }
                }
            }
            if let Some(value) = change.apply(old.as_deref(), functions)? {
                segments.push(Segment::Row { key, value });
            }
        }
        if let Some(page) = &page {
            push_rows(&mut segments, page, next..rows.end);
        }
        Ok(Chunk { codecs: self.view.version.codecs.clone(), segments })
    }

    fn prefetch_pages(&self, index: &Page, pages: Range<usize>) {
        if self.source.read_ahead_bytes() == 0 {
            return;
        }
        let pages: Vec<PageRef> = match self.direction {
            Direction::Ascending => pages.map(|page| index.entry(page).0).collect(),
            Direction::Descending => pages.rev().map(|page| index.entry(page).0).collect(),
        };
        self.source.prefetch(&pages, self.view.schema());
    }

    /// Asks for the pages of the following leaves (index pages first), as far ahead as the source wants.
    fn read_ahead(&mut self) {
        let mut budget = self.source.read_ahead_bytes() as u64;
        if budget == 0 || self.direction == Direction::Descending {
            return;
        }
        let Some(mut range) = self.range.clone() else { return };
        while budget > 0 {
            let path = find_path(&self.view.version.root, &range, self.direction);
            if let Some(extent) = &path.extent
                && path
                    .low
                    .as_ref()
                    .is_none_or(|low| self.read_ahead.through.as_ref().is_none_or(|through| low >= through))
            {
                let Some(index) = self.view.files.cache.get(extent.index().offset) else {
                    self.source.prefetch(&[extent.index()], self.view.schema());
                    return;
                };
                if extent.check_index(&index).is_err() {
                    // Whoever gets there will see.
                    return;
                }
                let pages = pages_of(&index, &intersect(&range, path.low.as_deref(), path.high.as_deref()));
                self.prefetch_pages(&index, pages);
                self.read_ahead.through = path.high.clone();
            }
            budget = budget.saturating_sub(path.extent.as_ref().map_or(0, |extent| extent.meta.len));
            match path.high {
                Some(high) => range.start = Bound::Included(high.to_vec()),
                None => return,
            }
            if is_empty(&range) {
                return;
            }
        }
    }
}

fn push_rows(segments: &mut Vec<Segment>, page: &Arc<Page>, rows: Range<usize>) {
    if !rows.is_empty() {
        segments.push(Segment::Page { page: page.clone(), rows: rows.start as u32..rows.end as u32, reversed: false });
    }
}

/// The first leaf of a range (the last, descending), with the run parts on the way that overlap its part of the range.
fn find_path(root: &Inner, range: &KeyRange, direction: Direction) -> Path {
    let mut path = Path { extent: None, low: None, high: None, parts: Vec::new() };
    let mut node = root;
    let mut levels: Vec<&Inner> = Vec::with_capacity(6);
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
        path.low = low.cloned().or(path.low);
        path.high = high.cloned().or(path.high);
        match &*node.children[child] {
            Node::Inner(inner) => node = inner,
            Node::Leaf(extent) => {
                path.extent = extent.clone();
                break;
            }
        }
    }
    if levels.iter().any(|level| !level.runs.is_empty()) {
        let cut = intersect(range, path.low.as_deref(), path.high.as_deref());
        let low = match &cut.start {
            Bound::Included(key) | Bound::Excluded(key) => Some(key.as_slice()),
            Bound::Unbounded => None,
        };
        for run in levels.iter().flat_map(|level| &level.runs) {
            let overlapping = run.overlapping(low, None).take_while(|part| !starts_after(part.first(), &cut));
            path.parts.extend(overlapping.cloned());
        }
    }
    path
}

fn starts_after(first: &[u8], range: &KeyRange) -> bool {
    match &range.end {
        Bound::Included(end) => first > end.as_slice(),
        Bound::Excluded(end) => first >= end.as_slice(),
        Bound::Unbounded => false,
    }
}

/// Whether keys from `first` to `last` may lie in `range`.
fn may_overlap(first: &[u8], last: &[u8], range: &KeyRange) -> bool {
    let ends_before = match &range.start {
        Bound::Included(start) => last < start.as_slice(),
        Bound::Excluded(start) => last <= start.as_slice(),
        Bound::Unbounded => false,
    };
    !ends_before && !starts_after(first, range)
}

/// The pages of an extent that may hold keys of `range`.
fn pages_of(index: &Page, range: &KeyRange) -> Range<usize> {
    let first = match &range.start {
        Bound::Included(key) | Bound::Excluded(key) => index.find(key),
        Bound::Unbounded => 0,
    };
    let last = match &range.end {
        Bound::Included(key) => index.find(key),
        Bound::Excluded(key) => {
            // A page that starts at the excluded key has nothing to give.
            let page = index.find(key);
            if page > first && index.fence(page) >= key.as_slice() { page - 1 } else { page }
        }
        Bound::Unbounded => index.rows().saturating_sub(1),
    };
    first..(last + 1).min(index.rows())
}

/// The rows of a page that lie in `range`.
fn rows_of(page: &Page, range: &KeyRange) -> Range<usize> {
    let start = match &range.start {
        Bound::Included(key) => page.lower_bound(key, false),
        Bound::Excluded(key) => lower_bound_above(page, key),
        Bound::Unbounded => 0,
    };
    let end = match &range.end {
        Bound::Included(key) => lower_bound_above(page, key),
        Bound::Excluded(key) => page.lower_bound(key, false),
        Bound::Unbounded => page.rows(),
    };
    start..end.max(start)
}

/// The first row whose key is greater than `key`. (Keys that extend `key` are greater.)
fn lower_bound_above(page: &Page, key: &[u8]) -> usize {
    let at = page.lower_bound(key, false);
    if at < page.rows() {
        let mut found = Vec::with_capacity(key.len());
        page.key(at, &mut found);
        if found == key {
            return at + 1;
        }
    }
    at
}

fn is_empty(range: &KeyRange) -> bool {
    match (&range.start, &range.end) {
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => start >= end,
        _ => false,
    }
}

/// `range` cut to `[low, high)`.
fn intersect(range: &KeyRange, low: Option<&[u8]>, high: Option<&[u8]>) -> KeyRange {
    let start = match (&range.start, low) {
        (Bound::Included(key) | Bound::Excluded(key), Some(low)) if key.as_slice() < low => {
            Bound::Included(low.to_vec())
        }
        (Bound::Unbounded, Some(low)) => Bound::Included(low.to_vec()),
        (start, _) => start.clone(),
    };
    let end = match (&range.end, high) {
        (Bound::Included(key) | Bound::Excluded(key), Some(high)) if key.as_slice() >= high => {
            Bound::Excluded(high.to_vec())
        }
        (Bound::Unbounded, Some(high)) => Bound::Excluded(high.to_vec()),
        (end, _) => end.clone(),
    };
    KeyRange { start, end }
}

//! Cursors: walking a range leaf by leaf, page by page, with the messages of the path laid over.
//!
//! For each leaf the cursor merges the messages for its part of the range (root buffers, then the runs of every node on
//! the path, newest first) to one change a key, and yields each page of the leaf with the changes that fall on it laid
//! over; if these are many, in several pieces. A page without changes costs nothing but itself. What a cursor holds is
//! bounded: a page of the leaf and one of each run on the path, and the changes of one piece.
//!
//! Where one buffer is all there is, as in trees that are held in memory only, its rows are given as they are, many at a time.

use std::ops::{Bound, Range};
use std::sync::Arc;

use crate::base::{Direction, Error, Key, KeyRange, Result, is_memory};
use crate::buffer::{BufferCursor, resolve};
use crate::codec::{Chunk, Page, Segment};
use crate::message::{Change, MessageBytes, Resolver};
use crate::pages::{Extent, PageSource, Priority};
use crate::tree::{Inner, LeafIndex, LeafWalk, Merge, Node, Part, TreeView};

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
    /// Only how many rows there are is asked for.
    counts: bool,
    pub(crate) leaf: Option<LeafWalk>,
    read_ahead: ReadAhead,
    /// Why it cannot go on.
    failed: Option<Error>,
}

/// How far a long ascending scan has asked for pages ahead of itself.
#[derive(Debug, Default)]
struct ReadAhead {
    /// Leaves entered so far; read-ahead beyond a leaf starts with the second.
    leaves: usize,
    /// Everything below this key has been asked for.
    through: Option<Key>,
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
        let range = (!range.is_empty()).then_some(range);
        let read_ahead = ReadAhead::default();
        Cursor { view, source, range, direction, point, counts: false, leaf: None, read_ahead, failed: None }
    }

    /// A cursor for [`Counter`](crate::Counter).
    pub(crate) fn counting(self) -> Self {
        Cursor { counts: true, ..self }
    }

    /// A cursor over all rows of one leaf, with these messages instead of those of the tree.
    pub(crate) fn over_leaf(view: TreeView, source: &'s P, index: Option<Arc<Page>>, messages: Merge) -> Self {
        let mut leaf = LeafWalk::new(KeyRange::all(), messages);
        if let Some(index) = index {
            let pages = 0..index.rows();
            leaf.set_pages(LeafIndex::Page(index), pages);
        }
        let read_ahead = ReadAhead { leaves: 2, through: None };
        let direction = Direction::Ascending;
        let (leaf, failed) = (Some(leaf), None);
        Cursor { view, source, range: None, direction, point: false, counts: false, leaf, read_ahead, failed }
    }

    /// The next rows; `None` at the end. Chunks are in the cursor's direction, and so are the rows in a chunk.
    ///
    /// A call that is given up (its future dropped), or fails in reading a page, changes nothing: the next one begins
    /// where it began. Other errors come again.
    ///
    /// # Errors
    /// What reading and checking pages gives, errors of upsert functions, [`Error::Closed`].
    pub async fn next(&mut self) -> Result<Option<Chunk>> {
        self.check()?;
        if self.point && is_memory(self.view.tree) {
            return self.point_in_memory();
        }
        loop {
            if self.leaf.is_none() && !self.enter_leaf().await? {
                return Ok(None);
            }
            if let Some(rows) = self.leaf.as_mut().and_then(|leaf| leaf.rows.as_mut()) {
                match rows.next_rows(&self.view.files.upserts)? {
                    Some(rows) => {
                        let segments = vec![Segment::Rows(Arc::new(rows))];
                        return Ok(Some(Chunk { codecs: self.view.version.codecs.clone(), segments }));
                    }
                    None => self.leaf = None,
                }
                continue;
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

    /// Whether it can go on.
    fn check(&self) -> Result<()> {
        self.view.files.check_open()?;
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// As [`Cursor::next`], but only how many rows come next; what need not be looked at is not read.
    pub(crate) async fn next_count(&mut self) -> Result<Option<u64>> {
        self.check()?;
        if self.point && is_memory(self.view.tree) {
            return Ok(self.point_in_memory()?.map(|chunk| chunk.rows() as u64));
        }
        loop {
            if self.leaf.is_none() && !self.enter_leaf().await? {
                return Ok(None);
            }
            let Some(walk) = &mut self.leaf else { return Ok(None) };
            if let Some(rows) = walk.counted {
                self.leaf = None;
                return Ok(Some(rows));
            }
            if let Some(rows) = &mut walk.rows {
                match rows.next_rows(&self.view.files.upserts)? {
                    Some(rows) => return Ok(Some(rows.len() as u64)),
                    None => self.leaf = None,
                }
                continue;
            }
            if walk.page.is_none() && walk.changes.is_empty() {
                let message = walk.messages.next_key(&walk.range, self.view.schema(), self.source).await?.cloned();
                // From here on nothing waits.
                let rows = walk.count_pages(message.as_deref());
                if rows > 0 {
                    return Ok(Some(rows));
                }
            }
            match self.next_in_leaf().await? {
                Some(chunk) if chunk.segments.is_empty() => {}
                Some(chunk) => return Ok(Some(chunk.rows() as u64)),
                None => self.leaf = None,
            }
        }
    }

    /// The row with the cursor's key, of a tree that is a buffer and nothing else.
    fn point_in_memory(&mut self) -> Result<Option<Chunk>> {
        let Some(KeyRange { start: Bound::Included(key), .. }) = self.range.as_ref() else { return Ok(None) };
        let mut value = None;
        let mut upserts = None;
        let version = &self.view.version;
        version.active.visit_newest(key, self.view.sequence, |newest| match newest.message() {
            MessageBytes::Insert(found) => value = Some(Arc::from(found)),
            MessageBytes::Delete => {}
            MessageBytes::Upsert { .. } => upserts = Some(resolve(newest, &self.view.files.upserts)),
        });
        if let Some(resolved) = upserts {
            value = resolved?;
        }
        let segments = value.map(|value| vec![Segment::Row { key: key.as_slice().into(), value }]);
        let chunk = segments.map(|segments| Chunk { codecs: version.codecs.clone(), segments });
        self.range = None;
        Ok(chunk)
    }

    /// Goes to the next leaf of what is left of the range; false if nothing is left.
    async fn enter_leaf(&mut self) -> Result<bool> {
        let Some(range) = &self.range else { return Ok(false) };
        let path = find_path(&self.view.version.root, range, self.direction);
        let mut walk = LeafWalk::new(
            range.intersect(path.low.as_deref(), path.high.as_deref()),
            Merge::new(self.direction, Priority::Lookup),
        );
        let mut settled = false;
        if self.point {
            if let Bound::Included(key) = &range.start
                && let Some(change) = self.point_change(key, &path.parts).await?
            {
                // The messages may tell all there is to know of a single key.
                settled = !matches!(change, Change::Upserts(_));
                walk.changes.push((key.as_slice().into(), change));
            }
        } else if let Some(buffer) =
            self.view.version.only_buffer().filter(|_| path.extent.is_none() && path.parts.is_empty())
        {
            let range = walk.range.clone();
            walk.rows = Some(BufferCursor::new(buffer.clone(), range, self.view.sequence, self.direction));
        } else {
            let version = &self.view.version;
            for buffer in std::iter::once(&version.active).chain(&version.frozen) {
                walk.messages.add_buffer(buffer, &walk.range, self.view.sequence);
            }
            path.parts.into_iter().for_each(|part| walk.messages.add_part(part));
        }
        if let Some(extent) = &path.extent
            && !settled
            && walk.range.may_overlap(&extent.meta.first, &extent.meta.last)
        {
            walk.set_inside(extent);
            if self.counts && walk.inside == (true, true) && walk.messages.is_empty() && walk.changes.is_empty() {
                walk.counted = Some(extent.meta.rows);
            } else {
                let (index, pages) = self.leaf_index(extent, &walk).await?;
                if pages.len() > 1 {
                    self.prefetch_pages(&index, pages.clone());
                }
                walk.set_pages(index, pages);
            }
        }
        // From here on nothing waits or fails.
        self.leaf = Some(walk);
        self.read_ahead.leaves += 1;
        self.range = self.range.take().and_then(|range| match self.direction {
            Direction::Ascending => path.high.map(|high| KeyRange { start: Bound::Included(high.to_vec()), ..range }),
            Direction::Descending => path.low.map(|low| KeyRange { end: Bound::Excluded(low.to_vec()), ..range }),
        });
        self.range = self.range.take().filter(|rest| !rest.is_empty());
        Ok(true)
    }

    /// What tells where the pages of a leaf are, and those that may hold rows of the range.
    async fn leaf_index(&self, extent: &Arc<Extent>, walk: &LeafWalk) -> Result<(LeafIndex, Range<usize>)> {
        let located = self.view.locator.as_ref().and_then(|locator| locator.locate(extent)).map(LeafIndex::Located);
        if let Some(index) = located
            && let Some(pages) = index.pages_of(&walk.range)
            && (pages.len() <= 1 || walk.messages.is_empty())
        {
            return Ok((index, pages));
        }
        let index = self.source.page(extent.index(), self.view.schema(), Priority::Index).await?;
        extent.check_index(&index)?;
        let index = LeafIndex::Page(index);
        // An index page always tells.
        let pages = index.pages_of(&walk.range).unwrap_or_default();
        Ok((index, pages))
    }

    /// What the messages say of one key. Stops at the newest one that says all.
    async fn point_change(&self, key: &[u8], parts: &[Part]) -> Result<Option<Change>> {
        let version = &self.view.version;
        let mut resolver = Resolver::default();
        for buffer in std::iter::once(&version.active).chain(&version.frozen) {
            buffer.visit(key, self.view.sequence, |message| {
                resolver.add_message(message);
                !resolver.is_settled()
            });
        }
        let schema = self.view.schema();
        for part in parts {
            let meta = &part.extent.meta;
            let outside = *key < *meta.first
                || *key > *meta.last
                || part.low.as_ref().is_some_and(|low| *key < **low)
                || part.high.as_ref().is_some_and(|high| *key >= **high);
            if outside || resolver.is_settled() {
                continue;
            }
            let index = self.source.page(part.extent.index(), schema, Priority::Index).await?;
            part.extent.check_index(&index)?;
            if !index.may_contain(key) {
                continue;
            }
            let number = index.find(key);
            let page = self.source.page(index.entry(number).0, schema, Priority::Lookup).await?;
            index.check_data_page(number, &page, false)?;
            page.check_all_columns()?;
            let row = page.lower_bound(key, false);
            if row < page.lower_bound_above(key) {
                resolver.add_row(&page, row)?;
            }
        }
        resolver.finish(&self.view.files.upserts)
    }

    /// The next rows of the leaf with their changes; `None` when the leaf is done.
    async fn next_in_leaf(&mut self) -> Result<Option<Chunk>> {
        let priority = if self.read_ahead.leaves > 1 { Priority::Scan } else { Priority::Lookup };
        let Some(walk) = &mut self.leaf else { return Ok(None) };
        if walk.page.is_none()
            && let Some(number) = walk.next_page(self.direction)
            && let Some(index) = &walk.index
        {
            let page = index.page(number, &self.view, priority, self.source).await?;
            walk.enter_page(page, number, self.direction);
            if number.is_multiple_of(16) {
                self.read_ahead();
            }
        }
        let Some(walk) = &mut self.leaf else { return Ok(None) };
        let all = walk.take_changes(&self.view, self.direction, self.source).await?;
        // From here on nothing waits.
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

    fn prefetch_pages(&self, index: &LeafIndex, pages: Range<usize>) {
        if self.source.read_ahead_bytes() > 0 && !self.counts {
            self.source.prefetch(&index.references(pages, self.direction), self.view.schema());
        }
    }

    /// Asks for the pages of the following leaves (index pages first), as far ahead as the source wants.
    fn read_ahead(&mut self) {
        let mut budget = self.source.read_ahead_bytes() as u64;
        if budget == 0 || self.direction == Direction::Descending || self.counts {
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
                let leaf_range = range.intersect(path.low.as_deref(), path.high.as_deref());
                let Some((index, pages)) = self.known_index(extent, &leaf_range) else {
                    self.source.prefetch(&[extent.index()], self.view.schema());
                    return;
                };
                self.prefetch_pages(&index, pages);
                self.read_ahead.through = path.high.clone();
            }
            budget = budget.saturating_sub(path.extent.as_ref().map_or(0, |extent| extent.meta.len));
            match path.high {
                Some(high) => range.start = Bound::Included(high.to_vec()),
                None => return,
            }
            if range.is_empty() {
                return;
            }
        }
    }

    /// As [`Cursor::leaf_index`], from memory.
    fn known_index(&self, extent: &Arc<Extent>, range: &KeyRange) -> Option<(LeafIndex, Range<usize>)> {
        let located = self.view.locator.as_ref().and_then(|locator| locator.locate(extent)).map(LeafIndex::Located);
        let told = located.and_then(|index| index.pages_of(range).map(|pages| (index, pages)));
        told.or_else(|| {
            let index = self.view.files.cache.get(extent.index().offset)?;
            // If it is not sound, whoever gets there will see.
            extent.check_index(&index).ok()?;
            let index = LeafIndex::Page(index);
            let pages = index.pages_of(range)?;
            Some((index, pages))
        })
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
        let cut = range.intersect(path.low.as_deref(), path.high.as_deref());
        let low = match &cut.start {
            Bound::Included(key) | Bound::Excluded(key) => Some(key.as_slice()),
            Bound::Unbounded => None,
        };
        for run in levels.iter().flat_map(|level| &level.runs) {
            let overlapping = run.overlapping(low, None).take_while(|part| !cut.ends_before(part.first()));
            path.parts.extend(overlapping.cloned());
        }
    }
    path
}

//! A part of a run, or a leaf, as a source of a merge: its rows in key order, page by page.
//!
//! The first rows of a page give their keys one by one, because short ranges need few of them. The keys of further rows
//! are encoded together.

use std::ops::Range;
use std::sync::Arc;

use super::HeadState;
use crate::base::{Direction, KeyRange, Result, Schema};
use crate::codec::{ColumnBuilder, KeyCodec, MessageKind, Page, PageRef, RowCodec};
use crate::message::{Resolver, prefix_of};
use crate::pages::{Extent, PageSource, Priority};
use crate::tree::Part;

/// Number of rows of a page whose keys are encoded one by one, or of searches in the page of a leaf.
const ROWS_ALONE: usize = 4;
/// Maximum number of rows whose keys are encoded together.
const KEYS_MAX: usize = 512;

/// The remaining rows of a part.
#[derive(Debug)]
pub(super) struct PartCursor {
    part: Part,
    direction: Direction,
    /// The priority of the pages of a leaf, and whether they are read with all columns; `None` for a run.
    leaf: Option<(Priority, bool)>,
    open: Option<OpenPart>,
    /// The key of the head, unless [`OpenPage::keys`] has it.
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
    /// The current page; `None` before the first one is read.
    page: Option<OpenPage>,
}

/// The current page of a part.
#[derive(Debug)]
struct OpenPage {
    page: Arc<Page>,
    number: usize,
    /// Rows not yet taken.
    rows: Range<usize>,
    /// Number of rows taken one by one, or of searches.
    taken: usize,
    /// The keys of the next rows; `None` unless they include the first of `rows` in the cursor's direction.
    keys: Option<PageKeys>,
    /// [`MergedRows`](super::MergedRows) has counted the memory of the page.
    is_counted: bool,
}

/// The encoded keys of consecutive rows.
#[derive(Debug)]
struct PageKeys {
    /// The row of the first key.
    first: usize,
    bytes: Vec<u8>,
    /// The start of each key, then the end of the last one.
    starts: Vec<usize>,
    prefixes: Vec<u128>,
    /// All rows are rows of a leaf, or complete inserts.
    are_rows: bool,
}

/// The outcome that the newest message of a key determines without the older ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settled {
    /// The row of the message is the row.
    Row,
    /// There is no row.
    Deleted,
}

impl PageKeys {
    fn new(page: &Page, rows: Range<usize>, schema: &Schema, codec: &KeyCodec) -> PageKeys {
        let column = |i: usize| {
            let mut builder = ColumnBuilder::new(schema.columns()[i].ty, rows.len());
            page.append_to(i, rows.clone(), schema, &mut builder);
            builder.finish()
        };
        let (bytes, starts) = page.bytes_keys(rows.clone()).unwrap_or_else(|| {
            let columns: Vec<_> = (0..schema.key_columns()).map(column).collect();
            codec.encode_batch(&columns, 0..rows.len())
        });
        let prefixes = starts.windows(2).map(|key| prefix_of(&bytes[key[0]..key[1]])).collect();
        let is_row = |row| matches!(page.message(row), Some((MessageKind::Insert, _))) && page.is_complete(row);
        let are_rows = !page.is_run() || rows.clone().all(is_row);
        PageKeys { first: rows.start, bytes, starts, prefixes, are_rows }
    }

    fn has(&self, row: usize) -> bool {
        row >= self.first && row - self.first < self.prefixes.len()
    }

    #[inline]
    fn key(&self, row: usize) -> &[u8] {
        let at = row - self.first;
        &self.bytes[self.starts[at]..self.starts[at + 1]]
    }

    #[inline]
    fn prefix(&self, row: usize) -> u128 {
        self.prefixes[row - self.first]
    }

    /// True if the key of `row` comes before the key `bound` with the prefix `prefix`, in the given direction.
    #[inline]
    fn is_before(&self, row: usize, (prefix, bound): (u128, &[u8]), direction: Direction) -> bool {
        let order = self.prefix(row).cmp(&prefix).then_with(|| self.key(row).cmp(bound));
        match direction {
            Direction::Ascending => order.is_lt(),
            Direction::Descending => order.is_gt(),
        }
    }
}

impl OpenPart {
    /// The pages of a part in `range`.
    fn new(part: &Part, range: &KeyRange, index: Arc<Page>) -> OpenPart {
        let range = range.intersect(part.low.as_deref(), part.high.as_deref());
        let pages = if range.is_empty() { 0..0 } else { index.pages_in(&range) };
        OpenPart { index, range, all: pages.clone(), pages, page: None }
    }
}

impl PartCursor {
    /// The messages of a part of a run in `range`. The head is a bound.
    pub fn of_run(part: Part, range: &KeyRange, index: Option<Arc<Page>>, direction: Direction) -> PartCursor {
        let bound = match direction {
            Direction::Ascending => part.first(),
            Direction::Descending => part.high.as_ref().unwrap_or(&part.extent.meta.last),
        };
        let key = bound.to_vec();
        let open = index.map(|index| OpenPart::new(&part, range, index));
        PartCursor { part, direction, leaf: None, open, key }
    }

    /// The rows in the pages `pages` of a leaf. The head is a bound.
    pub fn of_leaf(
        extent: Arc<Extent>,
        index: Arc<Page>,
        pages: Range<usize>,
        range: KeyRange,
        reads: (Priority, bool),
        direction: Direction,
    ) -> PartCursor {
        let key = match direction {
            Direction::Ascending => extent.meta.first.to_vec(),
            Direction::Descending => extent.meta.last.to_vec(),
        };
        let open = OpenPart { index, range, all: pages.clone(), pages, page: None };
        PartCursor { part: Part::whole(extent), direction, leaf: Some(reads), open: Some(open), key }
    }

    pub fn is_leaf(&self) -> bool {
        self.leaf.is_some()
    }

    /// The key of the head.
    pub fn key(&self) -> &[u8] {
        self.keyed_row().map_or(&self.key, |(keys, row)| keys.key(row))
    }

    /// The first 16 bytes of the key of the head, as a number.
    pub fn prefix(&self) -> u128 {
        self.keyed_row().map_or_else(|| prefix_of(&self.key), |(keys, row)| keys.prefix(row))
    }

    /// The next row with the encoded keys of its page, if there are any.
    #[inline]
    fn keyed_row(&self) -> Option<(&PageKeys, usize)> {
        let at = self.open_page()?;
        Some((at.keys.as_ref()?, end_of(&at.rows, self.direction)?))
    }

    fn open_page(&self) -> Option<&OpenPage> {
        self.open.as_ref()?.page.as_ref()
    }

    /// The page of the head, if it has been read, and the row of the head.
    pub fn current(&self) -> Option<(&Arc<Page>, usize)> {
        let at = self.open_page()?;
        Some((&at.page, end_of(&at.rows, self.direction)?))
    }

    /// Memory of the page of the head in bytes; 0 if an earlier call has returned it.
    pub fn take_page_bytes(&mut self) -> usize {
        let Some(at) = self.open.as_mut().and_then(|open| open.page.as_mut()) else { return 0 };
        match std::mem::replace(&mut at.is_counted, true) {
            true => 0,
            false => at.page.memory_bytes_max(),
        }
    }

    /// The page of the run that is read first; `None` once it has been read.
    pub fn first_page(&self) -> Option<PageRef> {
        match &self.open {
            None => Some(self.part.extent.index()),
            Some(open) if open.page.is_none() && !self.is_leaf() => {
                end_of(&open.pages, self.direction).map(|number| open.index.entry(number).0)
            }
            Some(_) => None,
        }
    }

    /// The pages of the run still to be read, if its index page is known.
    pub fn known_pages(&self) -> Option<(Arc<Page>, Range<usize>)> {
        let open = self.open.as_ref().filter(|_| !self.is_leaf())?;
        Some((open.index.clone(), open.pages.clone()))
    }

    /// Reads the next page; returns the next head.
    pub async fn load<P: PageSource>(
        &mut self,
        range: &KeyRange,
        schema: &Arc<Schema>,
        priority: Priority,
        source: &P,
    ) -> Result<Option<HeadState>> {
        let direction = self.direction;
        let open = match &mut self.open {
            Some(open) => open,
            None => {
                let index = source.page(self.part.extent.index(), schema, Priority::Index).await?;
                self.part.extent.check_index(&index)?;
                let open = OpenPart::new(&self.part, range, index);
                if open.pages.len() > 1 && source.read_ahead_bytes() > 0 {
                    source.prefetch(&references(&open.index, open.pages.clone(), direction), schema);
                }
                self.open.insert(open)
            }
        };
        let Some(number) = end_of(&open.pages, direction) else { return Ok(None) };
        let place = open.index.entry(number).0;
        let page = match self.leaf {
            None => source.page(place, schema, priority).await?,
            Some((priority, true)) => source.page(place, schema, priority).await?,
            Some((priority, false)) => source.leaf_page(place, schema, priority).await?,
        };
        open.index.check_data_page(number, &page, self.leaf.is_some())?;
        match self.leaf {
            None => page.check_all_columns()?,
            Some(_) => (0..schema.key_columns()).try_for_each(|column| page.check_columns(&[column]))?,
        }
        let at_end = number == open.all.start || number + 1 == open.all.end;
        let rows = if at_end { page.rows_in(&open.range) } else { 0..page.rows() };
        // No await and no error below: the state changes completely or not at all.
        step(&mut open.pages, direction, 1);
        open.page = Some(OpenPage { page, number, rows, taken: 0, keys: None, is_counted: false });
        Ok(self.head())
    }

    /// Reads the current page of a leaf again, with all columns, and the later pages, too.
    pub async fn complete_page<P: PageSource>(&mut self, schema: &Arc<Schema>, source: &P) -> Result<()> {
        let (Some(open), Some((priority, _))) = (&mut self.open, self.leaf) else { return Ok(()) };
        let Some(at) = &mut open.page else { return Ok(()) };
        let page = source.page(open.index.entry(at.number).0, schema, priority).await?;
        open.index.check_data_page(at.number, &page, true)?;
        page.check_all_columns()?;
        assert!(page.is_whole() && page.rows() == at.page.rows(), "another page than number {}", at.number);
        at.page = page;
        self.leaf = Some((priority, true));
        Ok(())
    }

    /// The outcome that the message in the row of the head determines; `None` if older messages matter, or if it is invalid.
    pub fn settled(&self) -> Option<Settled> {
        let (page, row) = self.current()?;
        if self.is_leaf() || self.keyed_row().is_some_and(|(keys, _)| keys.are_rows) {
            return Some(Settled::Row);
        }
        match page.message(row)?.0 {
            MessageKind::Insert => page.is_complete(row).then_some(Settled::Row),
            MessageKind::Delete => Some(Settled::Deleted),
            MessageKind::Upsert => None,
        }
    }

    /// The rows from that of the head on whose keys come before the key `bound` with its prefix, or all rows of the page; at
    /// least the row of the head. In a run, all of these messages are rows.
    ///
    /// # Panics
    /// If the row of the head is not [settled](Self::settled) as a row.
    pub fn rows_before(&mut self, bound: Option<(u128, &[u8])>, schema: &Schema, codec: &KeyCodec) -> Range<usize> {
        let (is_leaf, direction) = (self.is_leaf(), self.direction);
        let Some(open) = &mut self.open else { panic!("no page is open") };
        let Some(at) = &mut open.page else { panic!("no page is open") };
        let rows = at.rows.clone();
        // Rows from the head on, in the cursor's direction.
        let first_rows = |count: usize| match direction {
            Direction::Ascending => rows.start..rows.start + count,
            Direction::Descending => rows.end - count..rows.end,
        };
        let is_whole_before = match bound {
            None => true,
            // The fences bound the keys of the page.
            Some((_, bound)) => match direction {
                Direction::Ascending => at.number + 1 < open.index.rows() && open.index.fence(at.number + 1) <= bound,
                Direction::Descending => at.number > 0 && open.index.fence(at.number) > bound,
            },
        };
        if is_leaf && is_whole_before {
            return rows;
        }
        if at.keys.is_none() {
            if let (true, false, Some((_, bound))) = (is_leaf, at.taken >= ROWS_ALONE, bound) {
                at.taken += 1;
                let count = match direction {
                    Direction::Ascending => at.page.lower_bound_from(rows.start, bound).saturating_sub(rows.start),
                    Direction::Descending => rows.end.saturating_sub(at.page.lower_bound_above(bound)),
                };
                return first_rows(count.clamp(1, rows.len()));
            }
            if at.taken >= ROWS_ALONE || is_whole_before {
                at.keys = Some(PageKeys::new(&at.page, first_rows(rows.len().min(KEYS_MAX)), schema, codec));
            }
        }
        let mut count = 1;
        if let Some(keys) = at.keys.as_ref().filter(|keys| keys.are_rows) {
            let known = keys.prefixes.len();
            // The keys begin at the head, or before it.
            let count_max = match direction {
                Direction::Ascending => (keys.first + known).min(rows.end) - rows.start,
                Direction::Descending => rows.end - keys.first.max(rows.start),
            };
            let row_at = |count: usize| match direction {
                Direction::Ascending => rows.start + count,
                Direction::Descending => rows.end - 1 - count,
            };
            match bound {
                Some(bound) if !is_whole_before => {
                    while count < count_max && keys.is_before(row_at(count), bound, direction) {
                        count += 1;
                    }
                }
                _ => count = count_max,
            }
        }
        first_rows(count)
    }

    /// Consumes the next `count` rows of the current page; returns the next head.
    pub fn advance(&mut self, count: usize) -> Option<HeadState> {
        let direction = self.direction;
        if let Some(at) = self.open.as_mut().and_then(|open| open.page.as_mut()) {
            step(&mut at.rows, direction, count);
            at.taken += usize::from(count == 1);
            let next = end_of(&at.rows, direction);
            at.keys = at.keys.take().filter(|keys| next.is_some_and(|row| keys.has(row)));
        }
        let head = self.head();
        if head.is_none() {
            self.open = None;
        }
        head
    }

    /// Consumes the current row, whose message is added to `resolver`; returns the next head.
    pub fn take(&mut self, resolver: &mut Resolver, codec: &RowCodec) -> Result<Option<HeadState>> {
        if let Some((page, row)) = self.current() {
            if self.is_leaf() && !resolver.is_settled() {
                // An upsert is applied to all columns.
                page.check_all_columns()?;
            }
            resolver.add_row(page, row, codec)?;
        }
        Ok(self.advance(1))
    }

    /// Sets `key` to the key of the next row, or to a bound for the keys of the next page; `None` at the end.
    fn head(&mut self) -> Option<HeadState> {
        let open = self.open.as_ref()?;
        if let Some(at) = &open.page
            && let Some(row) = end_of(&at.rows, self.direction)
        {
            if at.keys.is_none() {
                self.key.clear();
                at.page.key(row, &mut self.key);
            }
            return Some(HeadState::Key);
        }
        let number = end_of(&open.pages, self.direction)?;
        let (fence, state) = match self.direction {
            Direction::Ascending => (number, HeadState::Bound),
            Direction::Descending => (number + 1, HeadState::Behind),
        };
        self.key.clear();
        self.key.extend_from_slice(open.index.fence(fence));
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

/// Removes the next `count` numbers, beginning with the one that [`end_of`] returns.
fn step(left: &mut Range<usize>, direction: Direction, count: usize) {
    assert!(count <= left.len(), "{count} of {} rows are taken", left.len());
    match direction {
        Direction::Ascending => left.start += count,
        Direction::Descending => left.end -= count,
    }
}

/// References to data pages of an extent, in reading order.
fn references(index: &Page, pages: Range<usize>, direction: Direction) -> Vec<PageRef> {
    match direction {
        Direction::Ascending => pages.map(|page| index.entry(page).0).collect(),
        Direction::Descending => pages.rev().map(|page| index.entry(page).0).collect(),
    }
}

//! The rows of a tree that has lost pages, in key order.
//!
//! Outside of the lost ranges, an ordinary cursor reads the rows. In a lost range, only messages remain: an insert has the
//! whole row, a delete has none, and an upsert changes a lost row, unless its prior states that there was no row. Upserts
//! of lost rows are counted and left out.

use std::collections::{HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use arrow_array::RecordBatch;

use super::prune::Pruned;
use crate::base::{Direction, Error, KeyRange, Prior, Result, Schema};
use crate::codec::{Chunk, ChunkPart, ColumnBuilder, Page, PageRef};
use crate::engine::DamagedKeys;
use crate::message::{Change, PageRow};
use crate::pages::{Files, PageSource, Priority, QueuedPages};
use crate::tree::{Cursor, Merge, TreeView, push_rows};

/// Bytes that are read ahead.
const READ_AHEAD_BYTES: usize = 4 << 20;
/// Maximum number of rows of a batch; the last chunk may exceed it.
const BATCH_ROWS: usize = 8192;
/// Maximum bytes of a batch; the last chunk may exceed it.
const BATCH_BYTES: usize = 4 << 20;
/// Maximum number of keys of a chunk of messages.
const CHUNK_KEYS: usize = 256;
/// Maximum bytes of the pages and rows of a chunk of messages; the last one may exceed it.
const CHUNK_BYTES: usize = 1 << 20;

/// The pages of the data file, and the index pages of salvaged extents.
#[derive(Debug)]
pub(super) struct SalvagedPages {
    indexes: HashMap<u64, Arc<Page>>,
    pages: QueuedPages,
}

impl SalvagedPages {
    fn new(files: &Arc<Files>, indexes: HashMap<u64, Arc<Page>>) -> SalvagedPages {
        SalvagedPages { indexes, pages: QueuedPages::new(files.clone(), READ_AHEAD_BYTES) }
    }

    /// The salvaged index page of a reference.
    fn index(&self, page: PageRef) -> Option<&Arc<Page>> {
        // The data file has other bytes there.
        self.indexes.get(&page.offset)
    }

    fn in_file(&self, pages: &[PageRef]) -> Vec<PageRef> {
        pages.iter().filter(|page| self.index(**page).is_none()).copied().collect()
    }
}

impl PageSource for SalvagedPages {
    async fn page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        match self.index(page) {
            Some(index) => Ok(index.clone()),
            None => self.pages.page(page, schema, priority).await,
        }
    }

    fn prefetch(&self, pages: &[PageRef], schema: &Arc<Schema>) {
        self.pages.prefetch(&self.in_file(pages), schema);
    }

    fn prefetch_first(&self, pages: &[PageRef], schema: &Arc<Schema>) {
        self.pages.prefetch_first(&self.in_file(pages), schema);
    }

    fn read_ahead_bytes(&self) -> usize {
        self.pages.read_ahead_bytes()
    }
}

/// A part of the keys.
enum Segment {
    /// The leaves have all rows.
    Intact(Box<Cursor<'static, Arc<SalvagedPages>>>),
    /// The rows of the leaves are lost.
    Lost(KeyRange, Box<Merge>),
}

/// Reads the rows of a salvaged tree.
pub struct SalvagedRows {
    view: TreeView,
    source: Arc<SalvagedPages>,
    /// The ranges that were not entered, and whether their rows are lost.
    ranges: VecDeque<(KeyRange, bool)>,
    segment: Option<Segment>,
    lost_upserts: u64,
}

impl std::fmt::Debug for SalvagedRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SalvagedRows { view, ranges, lost_upserts, .. } = self;
        let mut debug = f.debug_struct("SalvagedRows");
        debug.field("tree", &view.tree()).field("ranges", ranges).field("lost_upserts", lost_upserts);
        debug.finish_non_exhaustive()
    }
}

impl SalvagedRows {
    /// `view` is one of the pruned tree.
    pub(super) fn new(view: TreeView, pruned: &Pruned) -> SalvagedRows {
        let source = Arc::new(SalvagedPages::new(&view.files, pruned.indexes.clone()));
        let ranges = ranges(&pruned.lost);
        SalvagedRows { view, source, ranges, segment: None, lost_upserts: 0 }
    }

    /// The columns of the rows.
    pub fn schema(&self) -> &Arc<Schema> {
        self.view.schema()
    }

    /// Number of rows so far that are left out because only upserts of them remain.
    pub fn lost_upserts(&self) -> u64 {
        self.lost_upserts
    }

    /// The next rows, with all columns, in key order; `None` at the end. Blocks.
    ///
    /// # Errors
    /// [`Error::Corrupt`] and device errors if pages have become unreadable since the tree was surveyed; errors of
    /// upsert functions.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let schema = self.schema().clone();
        let columns: Vec<usize> = (0..schema.columns().len()).collect();
        let mut builders: Vec<ColumnBuilder> =
            schema.columns().iter().map(|column| ColumnBuilder::new(column.ty, 0)).collect();
        let (mut rows, mut bytes) = (0, 0);
        while rows < BATCH_ROWS && bytes < BATCH_BYTES {
            let Some(chunk) = self.next_chunk()? else { break };
            chunk.append_to(&columns, &mut builders)?;
            rows += chunk.rows();
            bytes += bytes_of(&chunk);
        }
        if rows == 0 {
            return Ok(None);
        }
        let arrays = builders.iter_mut().map(ColumnBuilder::finish).collect();
        let batch = RecordBatch::try_new(schema.arrow().clone(), arrays);
        batch.map(Some).map_err(|error| Error::Arrow(Arc::new(error)))
    }

    /// The next rows; `None` at the end.
    fn next_chunk(&mut self) -> Result<Option<Chunk>> {
        loop {
            let chunk = match &mut self.segment {
                None => match self.ranges.pop_front() {
                    None => return Ok(None),
                    Some((range, is_lost)) => {
                        self.segment = Some(self.enter(range, is_lost));
                        continue;
                    }
                },
                Some(Segment::Intact(cursor)) => self.source.pages.block_on(cursor.next())?,
                Some(Segment::Lost(range, messages)) => {
                    let taken = take(messages, range, &self.view, &self.source);
                    let (chunk, lost) = self.source.pages.block_on(taken)?;
                    self.lost_upserts += lost;
                    chunk
                }
            };
            match chunk {
                Some(chunk) if chunk.rows() > 0 => return Ok(Some(chunk)),
                Some(_) => {}
                None => self.segment = None,
            }
        }
    }

    fn enter(&self, range: KeyRange, is_lost: bool) -> Segment {
        match is_lost {
            true => {
                let messages = self.view.messages(&range);
                Segment::Lost(range, Box::new(messages))
            }
            false => {
                let cursor = self.view.clone().into_cursor(self.source.clone(), range, Direction::Ascending);
                Segment::Intact(Box::new(cursor))
            }
        }
    }
}

/// Takes messages of a lost range. Returns their rows, and the number of rows that are left out; `None` at the end.
async fn take(
    messages: &mut Merge,
    range: &KeyRange,
    view: &TreeView,
    source: &Arc<SalvagedPages>,
) -> Result<(Option<Chunk>, u64)> {
    let (mut parts, mut lost, mut bytes) = (Vec::new(), 0, 0);
    for taken in 0..CHUNK_KEYS {
        if bytes >= CHUNK_BYTES {
            break;
        }
        if messages.next_key(range, view.schema(), source).await?.is_none() {
            if taken == 0 {
                return Ok((None, lost));
            }
            break;
        }
        let Some((key, change, prior)) = messages.take(view.upserts())? else { continue };
        match change {
            Change::Row(PageRow { page, row }) => {
                // The chunk keeps the page. Neighbouring rows of one count it each time.
                bytes += page.memory_bytes_max() / page.rows().max(1);
                push_rows(&mut parts, &page, row as usize..row as usize + 1);
            }
            Change::Upserts(_) if prior != Prior::Absent => lost += 1,
            change => {
                let value = change.apply(None, view.upserts())?;
                bytes += key.len() + value.as_ref().map_or(0, |value| value.len());
                parts.extend(value.map(|value| ChunkPart::Row { key, value }));
            }
        }
    }
    Ok((Some(Chunk { codecs: view.version.codecs.clone(), parts }), lost))
}

/// All keys, divided at the lost ones.
fn ranges(lost: &[DamagedKeys]) -> VecDeque<(KeyRange, bool)> {
    let (mut ranges, mut start) = (VecDeque::new(), Bound::Unbounded);
    for keys in lost {
        ranges.push_back((KeyRange { start, end: Bound::Excluded(keys.low.clone()) }, false));
        ranges.push_back((keys.range(), true));
        let high = keys.high.clone();
        start = if keys.includes_high { Bound::Excluded(high) } else { Bound::Included(high) };
    }
    ranges.push_back((KeyRange { start, end: Bound::Unbounded }, false));
    ranges.retain(|(range, _)| !range.is_empty());
    ranges
}

/// Estimated bytes of the rows of a chunk when they are decoded.
fn bytes_of(chunk: &Chunk) -> usize {
    let part = |part: &ChunkPart| match part {
        ChunkPart::Page { page, rows, .. } => page.memory_bytes_max() / page.rows().max(1) * rows.len(),
        ChunkPart::Row { key, value } => key.len() + value.len(),
        ChunkPart::Rows(rows) => rows.bytes(),
    };
    chunk.parts().iter().map(part).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_all_keys() {
        let keys =
            |low: &str, high: &str, includes_high| DamagedKeys { low: low.into(), high: high.into(), includes_high };
        let ranges = ranges(&[keys("", "b", false), keys("d", "e", true), keys("g", "h", false)]);
        let lost = |key: &str| {
            let found: Vec<bool> =
                ranges.iter().filter(|(range, _)| range.contains(key.as_bytes())).map(|(_, lost)| *lost).collect();
            assert_eq!(found.len(), 1, "{key} is in one range");
            found[0]
        };
        let found: String = ["", "a", "b", "c", "d", "e", "f", "g", "gg", "h", "z"]
            .map(|key| if lost(key) { 'x' } else { '.' })
            .iter()
            .collect();
        assert_eq!(found, "xx..xx.xx..");
    }
}

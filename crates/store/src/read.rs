//! Snapshots and cursors.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::ArrayRef;

use crate::codec::{ColumnBuilder, Page};
use crate::source::PageSource;
use crate::write::TreeId;
use crate::{Direction, KeyRange, Result, Schema};

/// The whole store as of one sequence number. Cheap to take and to clone; blocks nobody; keeps what it sees from being
/// freed while it lives.
#[derive(Debug, Clone)]
pub struct Snapshot {
    _todo: (),
}

impl Snapshot {
    pub fn sequence(&self) -> u64 {
        todo!()
    }
    pub fn tree(&self, _tree: TreeId) -> Result<TreeView> {
        todo!()
    }
}

/// One tree as of a snapshot. `Clone` is cheap.
#[derive(Debug, Clone)]
pub struct TreeView {
    _todo: (),
}

/// What the nodes in memory tell about a range, without I/O.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RangeEstimate {
    pub rows: f64,
    pub pages: f64,
    pub bytes: f64,
}

impl TreeView {
    pub fn schema(&self) -> &Arc<Schema> {
        todo!()
    }
    pub fn tree(&self) -> TreeId {
        todo!()
    }
    /// Estimated rows, data pages and bytes in a range, from node and leaf counts (no I/O).
    pub fn estimate(&self, _range: &KeyRange) -> RangeEstimate {
        todo!()
    }
    /// Splits a range into at most `parts` consecutive ranges with about as many leaves each.
    pub fn split(&self, _range: &KeyRange, _parts: usize) -> Vec<KeyRange> {
        todo!()
    }
    /// A cursor over the rows of a range, in key order.
    pub fn cursor<'s, P: PageSource>(&self, _source: &'s P, _range: KeyRange, _direction: Direction) -> Cursor<'s, P> {
        todo!()
    }
}

/// Walks over a range, a chunk (about a page) at a time.
#[derive(Debug)]
pub struct Cursor<'s, P> {
    _source: &'s P,
}

impl<P: PageSource> Cursor<'_, P> {
    /// The next rows; `None` at the end. Chunks are in the cursor's direction, and so are the rows in a chunk.
    pub async fn next(&mut self) -> Result<Option<Chunk>> {
        todo!()
    }
}

/// Some rows of a tree, not yet decoded.
#[derive(Debug, Clone)]
pub struct Chunk {
    pub(crate) schema: Arc<Schema>,
    pub(crate) segments: Vec<Segment>,
}

/// Rows from one place.
#[derive(Debug, Clone)]
pub enum Segment {
    /// Consecutive rows of a page; `reversed`: last one first.
    Page { page: Arc<Page>, rows: Range<u32>, reversed: bool },
    /// A row that is not (only) in a leaf: encoded key and value.
    Row { key: Arc<[u8]>, value: Arc<[u8]> },
}

impl Chunk {
    pub fn rows(&self) -> usize {
        todo!()
    }
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
    /// Appends all rows of `columns` (indices into the schema), one builder a column.
    pub fn append_to(&self, _columns: &[usize], _builders: &mut [ColumnBuilder]) -> Result<()> {
        todo!()
    }
    /// Appends the given rows (indices into the chunk, ascending).
    pub fn append_selected(&self, _columns: &[usize], _rows: &[u32], _builders: &mut [ColumnBuilder]) -> Result<()> {
        todo!()
    }
    /// Decodes all rows of `columns`.
    pub fn to_arrays(&self, _columns: &[usize]) -> Result<Vec<ArrayRef>> {
        todo!()
    }
}

//! Pages: the unit of reading and checking. Column by column, lightly encoded, each value reachable on its own.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_array::ArrayRef;

use super::ColumnBuilder;
use crate::{Result, Schema};

/// Where a page is: enough to read it and to check that the right one came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRef {
    /// In the data file, a multiple of 4096.
    pub offset: u64,
    /// Length in bytes, a multiple of 4096.
    pub len: u32,
    pub tree: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// Rows of a leaf (or a run of inserts only).
    Leaf,
    /// Messages of a run: rows with a kind, and operands of upserts.
    Run,
    /// The index of an extent: where each page starts and the first key of each, and a filter over the keys.
    Index,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// The row replaces what older messages say of its key.
    Insert,
    /// There is no such row (tombstone).
    Delete,
    /// Functions to apply, oldest first, to what older messages say.
    Upsert,
}

/// Messages to write into a run page, beside the columns of their rows (null where there is none).
#[derive(Debug, Clone)]
pub struct RunColumns {
    /// One [`MessageKind`] a row.
    pub kinds: Vec<MessageKind>,
    /// For upserts: repeated (function id: u32 LE, length: u32 LE, operand); empty otherwise.
    pub operands: Vec<Vec<u8>>,
}

/// A verified page in memory.
#[derive(Debug)]
pub struct Page {
    _todo: (),
}

impl Page {
    /// Checks and opens a page that was read for `page`.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`] if checksum, address, tree or structure is not right. After this, no method panics or
    /// reads out of bounds, whatever the bytes were.
    pub fn open(_bytes: &[u8], _page: PageRef, _schema: &Arc<Schema>, _path: &Path) -> Result<Page> {
        todo!()
    }
    pub fn kind(&self) -> PageKind {
        todo!()
    }
    /// Rows (entries for an index page).
    pub fn rows(&self) -> usize {
        todo!()
    }
    pub fn memory_bytes(&self) -> usize {
        todo!()
    }

    // Leaf and run pages.

    /// The first row whose encoded key is `>= key` (`> key` and not an extension of it, if `after`).
    pub fn lower_bound(&self, _key: &[u8], _after: bool) -> usize {
        todo!()
    }
    /// Appends the encoded key of `row` to `out`.
    pub fn key(&self, _row: usize, _out: &mut Vec<u8>) {
        todo!()
    }
    /// Appends rows `rows` of `column` (index into the schema).
    pub fn append_to(&self, _column: usize, _rows: Range<usize>, _builder: &mut ColumnBuilder) {
        todo!()
    }
    /// Appends the given rows (ascending) of `column`.
    pub fn append_selected(&self, _column: usize, _rows: &[u32], _builder: &mut ColumnBuilder) {
        todo!()
    }
    /// `Insert` for every row of a leaf page.
    pub fn message_kind(&self, _row: usize) -> MessageKind {
        todo!()
    }
    /// Operands of an upsert row, as in [`RunColumns::operands`].
    pub fn operands(&self, _row: usize) -> &[u8] {
        todo!()
    }
    /// The value bytes of `row`, as [`super::RowCodec::encode`] makes them.
    pub fn value(&self, _row: usize, _out: &mut Vec<u8>) {
        todo!()
    }

    // Index pages.

    /// Entry `i`: where that data page is and how many rows it has.
    pub fn entry(&self, _i: usize) -> (PageRef, u32) {
        todo!()
    }
    /// The data page that holds the first key `>= key`, or the last page before it: the last entry whose first key is
    /// `<= key` (0 if there is none).
    pub fn find(&self, _key: &[u8]) -> usize {
        todo!()
    }
    /// A key that is above every key of entry `i - 1` and not above any key of entry `i` (empty for entry 0).
    pub fn fence(&self, _i: usize) -> &[u8] {
        todo!()
    }
    /// False if certainly no row has exactly this key. True if the page has no filter.
    pub fn may_contain(&self, _key: &[u8]) -> bool {
        todo!()
    }
}

/// Encodes rows into pages.
#[derive(Debug)]
pub struct PageWriter {
    _todo: (),
}

/// An encoded page, to be placed and [`seal`]ed.
#[derive(Debug)]
pub struct WrittenPage {
    /// `page_bytes` long, or a larger multiple of 4096 if a single row does not fit.
    pub bytes: Vec<u8>,
    pub rows: usize,
}

impl PageWriter {
    /// `page_bytes`: a multiple of 4096.
    pub fn new(_schema: Arc<Schema>, _page_bytes: usize) -> Self {
        todo!()
    }
    /// Encodes as many of the rows from `from` on as fit into one page (at least one). `columns` are all columns of the
    /// schema; `messages` makes it a run page.
    pub fn encode(
        &mut self,
        _columns: &[ArrayRef],
        _messages: Option<&RunColumns>,
        _from: usize,
    ) -> Result<WrittenPage> {
        todo!()
    }
}

/// One data page of an extent, for its index.
#[derive(Debug, Clone)]
pub struct IndexEntry {
    pub page: PageRef,
    pub rows: u32,
    /// A separator: above every key of the page before, not above any key of this one (empty for the first page).
    pub fence: Vec<u8>,
}

/// The index page of an extent (length a multiple of 4096, not yet sealed). `key_hashes`: xxh3 of every encoded key, for
/// the filter; empty for none.
pub fn encode_index(_entries: &[IndexEntry], _key_hashes: &[u64]) -> Vec<u8> {
    todo!()
}

/// Writes address, tree and checksum into an encoded page, once its place is known.
pub fn seal(_bytes: &mut [u8], _page: PageRef) {
    todo!()
}

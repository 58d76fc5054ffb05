//! Pages: the unit of reading and checking. Column by column, lightly encoded, each value reachable on its own.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef};

use super::builder::plain;
use super::{ColumnBuilder, KeyCodec, RowCodec};
use crate::bytes::Reader;
use crate::{Error, Result, Schema};

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
    kind: PageKind,
    rows: Vec<Row>,
    entries: Vec<IndexEntry>,
    bytes: usize,
    key: KeyCodec,
    row: RowCodec,
    keys: usize,
}

#[derive(Debug)]
struct Row {
    kind: MessageKind,
    key: Vec<u8>,
    value: Vec<u8>,
    operands: Vec<u8>,
}

impl Page {
    /// Checks and opens a page that was read for `page`.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`] if checksum, address, tree or structure is not right. After this, no method panics or
    /// reads out of bounds, whatever the bytes were.
    pub fn open(bytes: &[u8], page: PageRef, schema: &Arc<Schema>, path: &Path) -> Result<Page> {
        let damaged = |detail: &str| Error::Damaged {
            path: path.to_path_buf(),
            what: "page",
            offset: page.offset,
            detail: detail.into(),
        };
        if bytes.len() < 32 || crc32c::crc32c(&bytes[4..]).to_le_bytes() != bytes[..4] {
            return Err(damaged("wrong checksum"));
        }
        let mut r = Reader::new(&bytes[4..]);
        if r.u64()? != page.offset || r.u32()? != page.tree {
            return Err(damaged("another page"));
        }
        let kind = [PageKind::Leaf, PageKind::Run, PageKind::Index][r.u32()? as usize];
        let count = r.u32()?;
        let (mut rows, mut entries) = (Vec::new(), Vec::new());
        for _ in 0..count {
            if kind == PageKind::Index {
                let p = PageRef { offset: r.u64()?, len: r.u32()?, tree: page.tree };
                entries.push(IndexEntry { page: p, rows: r.u32()?, fence: r.string()?.to_vec() });
            } else {
                let kind = [MessageKind::Insert, MessageKind::Delete, MessageKind::Upsert][r.u32()? as usize];
                rows.push(Row {
                    kind,
                    key: r.string()?.to_vec(),
                    value: r.string()?.to_vec(),
                    operands: r.string()?.to_vec(),
                });
            }
        }
        Ok(Page {
            kind,
            rows,
            entries,
            bytes: bytes.len(),
            key: KeyCodec::new(schema),
            row: RowCodec::new(schema),
            keys: schema.key_columns(),
        })
    }
    pub fn kind(&self) -> PageKind {
        self.kind
    }
    /// Rows (entries for an index page).
    pub fn rows(&self) -> usize {
        self.rows.len() + self.entries.len()
    }
    pub fn memory_bytes(&self) -> usize {
        self.bytes
    }
    /// The first row whose encoded key is `>= key` (`> key` and not an extension of it, if `after`).
    pub fn lower_bound(&self, key: &[u8], after: bool) -> usize {
        self.rows.partition_point(|row| *row.key < *key || (after && row.key.starts_with(key)))
    }
    /// Appends the encoded key of `row` to `out`.
    pub fn key(&self, row: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.rows[row].key);
    }
    /// Appends rows `rows` of `column` (index into the schema).
    pub fn append_to(&self, column: usize, rows: Range<usize>, builder: &mut ColumnBuilder) {
        for row in rows {
            let row = &self.rows[row];
            let done = if column < self.keys {
                self.key.append_to(&row.key, column, builder)
            } else {
                self.row.append_to(&row.value, column, builder)
            };
            if done.is_err() {
                builder.append_nulls(1);
            }
        }
    }
    /// Appends the given rows (ascending) of `column`.
    pub fn append_selected(&self, column: usize, rows: &[u32], builder: &mut ColumnBuilder) {
        for &row in rows {
            self.append_to(column, row as usize..row as usize + 1, builder);
        }
    }
    /// `Insert` for every row of a leaf page.
    pub fn message_kind(&self, row: usize) -> MessageKind {
        self.rows[row].kind
    }
    /// Operands of an upsert row, as in [`RunColumns::operands`].
    pub fn operands(&self, row: usize) -> &[u8] {
        &self.rows[row].operands
    }
    /// The value bytes of `row`, as [`super::RowCodec::encode`] makes them.
    pub fn value(&self, row: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.rows[row].value);
    }
    /// Entry `i`: where that data page is and how many rows it has.
    pub fn entry(&self, i: usize) -> (PageRef, u32) {
        (self.entries[i].page, self.entries[i].rows)
    }
    /// The data page that holds the first key `>= key`, or the last page before it: the last entry whose first key is
    /// `<= key` (0 if there is none).
    pub fn find(&self, key: &[u8]) -> usize {
        self.entries.partition_point(|entry| *entry.fence <= *key).saturating_sub(1)
    }
    /// A key that is above every key of entry `i - 1` and not above any key of entry `i` (empty for entry 0).
    pub fn fence(&self, i: usize) -> &[u8] {
        &self.entries[i].fence
    }
    /// False if certainly no row has exactly this key. True if the page has no filter.
    pub fn may_contain(&self, _key: &[u8]) -> bool {
        true
    }
}

/// Encodes rows into pages.
#[derive(Debug)]
pub struct PageWriter {
    key: KeyCodec,
    row: RowCodec,
    keys: usize,
    page_bytes: usize,
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
    pub fn new(schema: Arc<Schema>, page_bytes: usize) -> Self {
        let (key, row) = (KeyCodec::new(&schema), RowCodec::new(&schema));
        PageWriter { key, row, keys: schema.key_columns(), page_bytes }
    }
    /// Encodes as many of the rows from `from` on as fit into one page (at least one). `columns` are all columns of the
    /// schema; `messages` makes it a run page.
    pub fn encode(&mut self, columns: &[ArrayRef], messages: Option<&RunColumns>, from: usize) -> Result<WrittenPage> {
        let mut bytes = vec![0; 24];
        bytes[16] = u8::from(messages.is_some());
        let mut rows = 0;
        let count = columns[0].len();
        while from + rows < count {
            let row = from + rows;
            let kind = messages.map_or(MessageKind::Insert, |m| m.kinds[row]);
            let (mut key, mut value) = (Vec::new(), Vec::new());
            self.key.encode(&columns[..self.keys], row, &mut key);
            if kind == MessageKind::Insert {
                self.row.encode(columns, row, &mut value);
            }
            let operands = messages.map_or(&[][..], |m| &m.operands[row]);
            let need = 16 + key.len() + value.len() + operands.len();
            if rows > 0 && bytes.len() + need > self.page_bytes {
                break;
            }
            bytes.extend_from_slice(&(kind as u32).to_le_bytes());
            for part in [&key[..], &value[..], operands] {
                bytes.extend_from_slice(&(part.len() as u32).to_le_bytes());
                bytes.extend_from_slice(part);
            }
            rows += 1;
        }
        bytes[20..24].copy_from_slice(&(rows as u32).to_le_bytes());
        let len = if bytes.len() <= self.page_bytes { self.page_bytes } else { bytes.len().next_multiple_of(4096) };
        bytes.resize(len, 0);
        let _ = plain;
        Ok(WrittenPage { bytes, rows })
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
pub fn encode_index(entries: &[IndexEntry], _key_hashes: &[u64]) -> Vec<u8> {
    let mut bytes = vec![0; 24];
    bytes[16] = 2;
    bytes[20..24].copy_from_slice(&(entries.len() as u32).to_le_bytes());
    for entry in entries {
        bytes.extend_from_slice(&entry.page.offset.to_le_bytes());
        bytes.extend_from_slice(&entry.page.len.to_le_bytes());
        bytes.extend_from_slice(&entry.rows.to_le_bytes());
        bytes.extend_from_slice(&(entry.fence.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&entry.fence);
    }
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    bytes
}

/// Writes address, tree and checksum into an encoded page, once its place is known.
pub fn seal(bytes: &mut [u8], page: PageRef) {
    bytes[4..12].copy_from_slice(&page.offset.to_le_bytes());
    bytes[12..16].copy_from_slice(&page.tree.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
}

//! Pages: the unit of reading and checking. Column by column, lightly encoded, each value reachable on its own.
//!
//! ```text
//! header   crc32c of the rest: u32, kind: u8, format: u8, columns: u16, tree: u32, rows: u32, offset: u64   24 bytes
//! data     directory (8 bytes a column), columns (see `column`); run pages have two more: kinds, operands
//! index    entries: offset below this page / 4096: u32, length / 4096: u32, rows: u32, end of fence: u32; fences; filter
//! ```
//! A page carries its own address and tree: a misdirected read or write is found out like any other damage.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use arrow_array::{Array, ArrayRef, BinaryViewArray, Int8Array};

use super::column::{self, Column, ENTRY_LEN, HeapCell, Hints, Scratch};
use super::key::{decode_word, encode_scalar};
use super::scalar::Scalar;
use super::{ColumnBuilder, RowCodec, bits, filter};
use crate::{ColumnType, Error, Result, Schema};

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

const HEADER_LEN: usize = 24;
const FORMAT: u8 = 1;
const INDEX_ENTRY_LEN: usize = 16;
const BLOCK: usize = 4096;

/// A verified page in memory.
#[derive(Debug)]
pub struct Page {
    kind: PageKind,
    rows: usize,
    address: PageRef,
    schema: Arc<Schema>,
    /// The page's bytes and slack for the bit unpacker.
    bytes: Box<[u8]>,
    /// Decompressed heaps, by column; empty if no column is compressed.
    heaps: Box<[HeapCell]>,
}

impl Page {
    /// Checks and opens a page that was read for `page`.
    ///
    /// # Errors
    /// [`Error::Damaged`] if checksum, address, tree or structure is not right. After this, no method panics or
    /// reads out of bounds, whatever the bytes were.
    pub fn open(bytes: &[u8], page: PageRef, schema: &Arc<Schema>, path: &Path) -> Result<Page> {
        let damaged = |detail: String| {
            let (path, offset) = (path.to_path_buf(), page.offset);
            Error::Damaged { path, what: "page", offset, detail }
        };
        if bytes.len() != page.len as usize || bytes.len() < BLOCK {
            return Err(damaged(format!("{} bytes instead of {}", bytes.len(), page.len)));
        }
        let checksum = crc32c::crc32c(&bytes[4..]);
        if bytes[..4] != checksum.to_le_bytes() {
            return Err(damaged("wrong checksum".into()));
        }
        let number = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let offset = u64::from(number(16)) | u64::from(number(20)) << 32;
        if (offset, number(8)) != (page.offset, page.tree) {
            return Err(damaged(format!("it is the page of tree {} for offset {offset}", number(8))));
        }
        let kind = match bytes[4] {
            1 => PageKind::Leaf,
            2 => PageKind::Run,
            3 => PageKind::Index,
            other => return Err(damaged(format!("unknown kind {other}"))),
        };
        if bytes[5] != FORMAT {
            return Err(damaged(format!("unknown format {}", bytes[5])));
        }
        let mut owned = Vec::with_capacity(bytes.len() + bits::SLACK);
        owned.extend_from_slice(bytes);
        owned.resize(bytes.len() + bits::SLACK, 0);
        let mut opened = Page {
            kind,
            rows: number(12) as usize,
            address: page,
            schema: schema.clone(),
            bytes: owned.into(),
            heaps: Box::default(),
        };
        let sound = match kind {
            PageKind::Index => opened.check_index(),
            PageKind::Leaf | PageKind::Run => {
                let columns = opened.columns();
                usize::from(u16::from_le_bytes([bytes[6], bytes[7]])) == columns
                    && opened.rows <= bytes.len() * 64
                    && (0..columns).all(|column| opened.try_column(column).is_some())
            }
        };
        if !sound {
            return Err(damaged("its structure is not sound".into()));
        }
        if kind != PageKind::Index && (0..opened.columns()).any(|column| opened.column(column).is_compressed()) {
            opened.heaps = (0..opened.columns()).map(|_| OnceLock::new()).collect();
        }
        Ok(opened)
    }

    pub fn kind(&self) -> PageKind {
        self.kind
    }

    /// Rows (entries for an index page).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes in memory. Heaps that get decompressed later are counted as if they were four times their stored length.
    pub fn memory_bytes(&self) -> usize {
        let heaps = if self.heaps.is_empty() { 0 } else { self.bytes.len() };
        self.bytes.len() + heaps + size_of::<Page>() + self.heaps.len() * size_of::<HeapCell>()
    }

    // Leaf and run pages.

    fn columns(&self) -> usize {
        self.schema.columns().len() + if self.kind == PageKind::Run { 2 } else { 0 }
    }

    fn column_type(&self, column: usize) -> ColumnType {
        match column.checked_sub(self.schema.columns().len()) {
            None => self.schema.columns()[column].ty,
            Some(0) => ColumnType::Int8,
            Some(_) => ColumnType::Bytes,
        }
    }

    fn try_column(&self, column: usize) -> Option<Column<'_>> {
        let entry = self.bytes.get(HEADER_LEN + column * ENTRY_LEN..)?.first_chunk()?;
        Column::open(&self.bytes, *entry, self.column_type(column), self.rows)
    }

    fn column(&self, column: usize) -> Column<'_> {
        // `open` has opened every column of the page with success, from the same bytes.
        self.try_column(column).unwrap_or_else(|| unreachable!("column {column} of a page that was checked"))
    }

    fn heap(&self, column: usize, opened: &Column<'_>) -> Option<&HeapCell> {
        if opened.is_compressed() { self.heaps.get(column) } else { None }
    }

    /// The first row whose encoded key is `>= key` (`> key` and not an extension of it, if `after`).
    pub fn lower_bound(&self, key: &[u8], after: bool) -> usize {
        let (mut low, mut high) = (0, self.rows);
        let first = &self.schema.columns()[0];
        if !first.nullable
            && let Some(target) = decode_word(first.ty, key)
        {
            // Integers: narrow down to the rows with the target's first column, without encoding any key.
            let column = self.column(0);
            let integer = !matches!(first.ty, ColumnType::Float32 | ColumnType::Float64 | ColumnType::Boolean);
            if integer && column.is_plain_words() {
                low = partition(low, high, |row| column.word(row) < target);
                high = partition(low, high, |row| column.word(row) <= target);
            }
        }
        let mut found = Vec::with_capacity(key.len() + 16);
        partition(low, high, |row| {
            found.clear();
            self.key(row, &mut found);
            found.as_slice() < key || (after && found.starts_with(key))
        })
    }

    /// Appends the encoded key of `row` to `out`.
    pub fn key(&self, row: usize, out: &mut Vec<u8>) {
        for (number, definition) in self.schema.columns()[..self.schema.key_columns()].iter().enumerate() {
            let column = self.column(number);
            encode_scalar(definition, column.scalar(row, self.heap(number, &column)), out);
        }
    }

    /// Appends rows `rows` of `column` (index into the schema).
    pub fn append_to(&self, column: usize, rows: Range<usize>, builder: &mut ColumnBuilder) {
        let opened = self.column(column);
        let rows = rows.start..rows.end.min(self.rows);
        opened.append(rows, self.heap(column, &opened), builder);
    }

    /// Appends the given rows (ascending) of `column`.
    pub fn append_selected(&self, column: usize, rows: &[u32], builder: &mut ColumnBuilder) {
        let opened = self.column(column);
        let heap = self.heap(column, &opened);
        for &row in rows.iter().filter(|row| (**row as usize) < self.rows) {
            opened.append_row(row as usize, heap, builder);
        }
    }

    /// `Insert` for every row of a leaf page.
    pub fn message_kind(&self, row: usize) -> MessageKind {
        if self.kind != PageKind::Run {
            return MessageKind::Insert;
        }
        match self.column(self.schema.columns().len()).word(row) {
            0 => MessageKind::Insert,
            1 => MessageKind::Delete,
            _ => MessageKind::Upsert,
        }
    }

    /// Operands of an upsert row, as in [`RunColumns::operands`].
    pub fn operands(&self, row: usize) -> Vec<u8> {
        if self.kind != PageKind::Run {
            return Vec::new();
        }
        let number = self.schema.columns().len() + 1;
        let column = self.column(number);
        match column.scalar(row, self.heap(number, &column)) {
            Scalar::Bytes(operands) => operands.to_vec(),
            _ => Vec::new(),
        }
    }

    /// The value bytes of `row`, as [`super::RowCodec::encode`] makes them.
    pub fn value(&self, row: usize, out: &mut Vec<u8>) {
        let keys = self.schema.key_columns();
        let columns: Vec<_> = (keys..self.schema.columns().len()).map(|number| self.column(number)).collect();
        RowCodec::new(&self.schema).encode_scalars(|i| columns[i].scalar(row, self.heap(keys + i, &columns[i])), out);
    }

    // Index pages.

    /// Entries, fences and filter lie within the page; pages lie below it.
    fn check_index(&self) -> bool {
        let Some(fences) = self.rows.checked_mul(INDEX_ENTRY_LEN).map(|len| HEADER_LEN + 8 + len) else { return false };
        let len = self.bytes.len() - bits::SLACK;
        if self.rows == 0 || fences > len {
            return false;
        }
        let mut end = 0;
        let fences_ascend = (0..self.rows).all(|i| {
            let [below, pages, rows, fence_end] = self.index_entry(i);
            let ascends = fence_end >= end && fences + fence_end as usize <= len;
            end = fence_end;
            let below = u64::from(below) * BLOCK as u64;
            ascends
                && rows > 0
                && pages > 0
                && pages <= 1 << 18
                && below <= self.address.offset
                && below >= u64::from(pages)
        });
        fences_ascend && self.filter_range().end <= len
    }

    fn index_number(&self, at: usize) -> u32 {
        self.bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    fn index_entry(&self, i: usize) -> [u32; 4] {
        let at = HEADER_LEN + 8 + i * INDEX_ENTRY_LEN;
        [0, 4, 8, 12].map(|field| self.index_number(at + field))
    }

    fn filter_range(&self) -> Range<usize> {
        let start = self.index_number(HEADER_LEN) as usize;
        start..start.saturating_add(self.index_number(HEADER_LEN + 4) as usize)
    }

    /// Entry `i`: where that data page is and how many rows it has.
    pub fn entry(&self, i: usize) -> (PageRef, u32) {
        let [below, pages, rows, _] = self.index_entry(i);
        let offset = self.address.offset.saturating_sub(u64::from(below) * BLOCK as u64);
        (PageRef { offset, len: pages.saturating_mul(BLOCK as u32), tree: self.address.tree }, rows)
    }

    /// The data page that holds the first key `>= key`, or the last page before it: the last entry whose first key is
    /// `<= key` (0 if there is none).
    pub fn find(&self, key: &[u8]) -> usize {
        partition(0, self.rows, |i| self.fence(i) <= key).saturating_sub(1)
    }

    /// A key that is above every key of entry `i - 1` and not above any key of entry `i` (empty for entry 0).
    pub fn fence(&self, i: usize) -> &[u8] {
        let fences = HEADER_LEN + 8 + self.rows * INDEX_ENTRY_LEN;
        let start = i.checked_sub(1).map_or(0, |before| self.index_entry(before)[3] as usize);
        let end = self.index_entry(i)[3] as usize;
        self.bytes.get(fences + start..fences + end).unwrap_or_default()
    }

    /// False if certainly no row has exactly this key. True if the page has no filter.
    pub fn may_contain(&self, key: &[u8]) -> bool {
        match self.bytes.get(self.filter_range()) {
            Some([]) | None => true,
            Some(filter) => filter::contains(filter, xxhash_rust::xxh3::xxh3_64(key)),
        }
    }
}

/// The first of `low..high` for which `below` is false.
fn partition(mut low: usize, mut high: usize, mut below: impl FnMut(usize) -> bool) -> usize {
    while low < high {
        let middle = low.midpoint(high);
        if below(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// Encodes rows into pages.
#[derive(Debug)]
pub struct PageWriter {
    schema: Arc<Schema>,
    page_bytes: usize,
    /// Rows of the last page: about as many will fit into the next.
    expected_rows: usize,
    hints: Vec<Hints>,
    scratch: Scratch,
}

/// An encoded page, to be placed and [`seal`]ed.
#[derive(Debug)]
pub struct WrittenPage {
    /// `page_bytes` long, or a larger multiple of 4096 if a single row does not fit.
    pub bytes: Vec<u8>,
    pub rows: usize,
}

/// Attempts at filling a page well.
const ATTEMPTS: usize = 5;

impl PageWriter {
    /// `page_bytes`: a multiple of 4096.
    pub fn new(schema: Arc<Schema>, page_bytes: usize) -> Self {
        let hints = (0..schema.columns().len() + 2).map(|_| Hints::default()).collect();
        PageWriter { schema, page_bytes, expected_rows: 64, hints, scratch: Scratch::default() }
    }

    /// Encodes as many of the rows from `from` on as fit into one page (at least one). `columns` are all columns of the
    /// schema; `messages` makes it a run page.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no row, or the columns are not those of the schema.
    pub fn encode(&mut self, columns: &[ArrayRef], messages: Option<&RunColumns>, from: usize) -> Result<WrittenPage> {
        let available = columns.first().map_or(0, |column| column.len()).saturating_sub(from);
        if available == 0 || columns.len() != self.schema.columns().len() {
            return Err(Error::Invalid("no rows, or not the columns of the tree".into()));
        }
        for (column, array) in self.schema.columns().iter().zip(columns) {
            if *array.data_type() != column.ty.arrow() {
                return Err(Error::Invalid(format!("column \"{}\" is given as {}", column.name, array.data_type())));
            }
        }
        let mut best: Option<WrittenPage> = None;
        let mut too_many = available + 1;
        let mut rows = self.expected_rows.clamp(1, available);
        for _ in 0..ATTEMPTS {
            let bytes = self.encode_rows(columns, messages, from, rows);
            let len = bytes.len();
            if len <= self.page_bytes {
                best = Some(WrittenPage { bytes, rows });
                if rows == available || len > self.page_bytes / 100 * 94 || rows + 1 >= too_many {
                    break;
                }
                rows = (rows * self.page_bytes * 98 / 100 / len).clamp(rows + 1, too_many - 1);
            } else {
                if rows == 1 {
                    best = Some(WrittenPage { bytes, rows });
                    break;
                }
                too_many = rows;
                let floor = best.as_ref().map_or(1, |best| best.rows);
                rows = (rows * self.page_bytes * 97 / 100 / len).clamp(1, too_many - 1).max(floor);
                if best.as_ref().is_some_and(|best| best.rows == rows) {
                    break;
                }
            }
        }
        // Rows of very uneven length may defeat the attempts: halve until they fit.
        let mut page = loop {
            match best.take() {
                Some(page) => break page,
                None => {
                    rows = (rows / 2).max(1);
                    let bytes = self.encode_rows(columns, messages, from, rows);
                    if bytes.len() <= self.page_bytes || rows == 1 {
                        best = Some(WrittenPage { bytes, rows });
                    }
                }
            }
        };
        self.expected_rows = page.rows;
        page.bytes.resize(page.bytes.len().next_multiple_of(BLOCK).max(self.page_bytes), 0);
        Ok(page)
    }

    fn encode_rows(
        &mut self,
        columns: &[ArrayRef],
        messages: Option<&RunColumns>,
        from: usize,
        rows: usize,
    ) -> Vec<u8> {
        let mut page = Vec::with_capacity(self.page_bytes * 2);
        let count = columns.len() + if messages.is_some() { 2 } else { 0 };
        page.resize(HEADER_LEN + count * ENTRY_LEN, 0);
        page[4] = if messages.is_some() { 2 } else { 1 };
        page[5] = FORMAT;
        page[6..8].copy_from_slice(&(count as u16).to_le_bytes());
        page[12..16].copy_from_slice(&(rows as u32).to_le_bytes());
        let range = from..from + rows;
        let mut place = |number: usize, page: &mut Vec<u8>, array: &ArrayRef, ty, range| {
            let entry = column::encode(array, ty, range, &mut self.hints[number], &mut self.scratch, page);
            let at = HEADER_LEN + number * ENTRY_LEN;
            page[at..at + ENTRY_LEN].copy_from_slice(&entry);
        };
        for (number, (array, definition)) in columns.iter().zip(self.schema.columns()).enumerate() {
            place(number, &mut page, array, definition.ty, range.clone());
        }
        if let Some(messages) = messages {
            let kinds: ArrayRef =
                Arc::new(Int8Array::from_iter_values(messages.kinds[range.clone()].iter().map(|kind| *kind as i8)));
            let operands = messages.operands[range].iter().map(|bytes| (!bytes.is_empty()).then_some(bytes.as_slice()));
            let operands: ArrayRef = Arc::new(BinaryViewArray::from_iter(operands));
            place(columns.len(), &mut page, &kinds, ColumnType::Int8, 0..rows);
            place(columns.len() + 1, &mut page, &operands, ColumnType::Bytes, 0..rows);
        }
        page
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

/// The index page (not yet sealed) of an extent, which will lie right behind the last of the data pages. `key_hashes`:
/// xxh3 of every encoded key, for the filter; empty for none. Its length is a multiple of 4096.
pub fn encode_index(entries: &[IndexEntry], key_hashes: &[u64]) -> Vec<u8> {
    let mut page = vec![0; HEADER_LEN + 8];
    page[4] = 3;
    page[5] = FORMAT;
    page[12..16].copy_from_slice(&(entries.len() as u32).to_le_bytes());
    let own_offset = entries.last().map_or(0, |last| last.page.offset + u64::from(last.page.len));
    let mut fence_end = 0u32;
    for entry in entries {
        fence_end += entry.fence.len() as u32;
        let below = ((own_offset - entry.page.offset) / BLOCK as u64) as u32;
        for number in [below, entry.page.len / BLOCK as u32, entry.rows, fence_end] {
            page.extend_from_slice(&number.to_le_bytes());
        }
    }
    entries.iter().for_each(|entry| page.extend_from_slice(&entry.fence));
    if !key_hashes.is_empty() {
        let start = page.len().next_multiple_of(32);
        let len = filter::filter_len(key_hashes.len());
        page.resize(start + len, 0);
        key_hashes.iter().for_each(|&hash| filter::insert(&mut page[start..], hash));
        page[HEADER_LEN..HEADER_LEN + 4].copy_from_slice(&(start as u32).to_le_bytes());
        page[HEADER_LEN + 4..HEADER_LEN + 8].copy_from_slice(&(len as u32).to_le_bytes());
    }
    page.resize(page.len().next_multiple_of(BLOCK), 0);
    page
}

/// Writes address, tree and checksum into an encoded page, once its place is known.
pub fn seal(bytes: &mut [u8], page: PageRef) {
    bytes[8..12].copy_from_slice(&page.tree.to_le_bytes());
    bytes[16..24].copy_from_slice(&page.offset.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
}

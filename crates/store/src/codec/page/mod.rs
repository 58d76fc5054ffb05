//! Pages: the unit of reads and of verification. A page stores rows column by column, lightly encoded, with random
//! access to each value.
//!
//! ```text
//! 0   magic "KYPG"
//! 4   CRC-32C of the bytes from 8 to the end
//! 8   own offset in the data file (8 bytes), which detects misdirected reads and writes
//! 16  tree (4 bytes)
//! 20  length of the page in bytes (4 bytes)
//! 24  kind: 0 leaf, 1 run, 2 index
//! 25  version of the page format: 1
//! 26  number of columns in the directory (2 bytes)
//! 28  rows; entries of an index page (4 bytes)
//! 32  directory: the start of each column, then the end of the last one (4 bytes each, from the start of the page)
//! ..  the columns that the tree had when the page was written, in schema order
//! ..  in a run page: the kinds of the messages, and their operands
//! ..  zeros to the end
//! ```
//!
//! All numbers are little endian. [`seal`] sets offset, tree, length and checksum once the page is placed. An index
//! page has no directory; see [`index`].

mod encode;
mod filter;
mod index;
mod memory;
mod open;
mod projection;
mod range;
mod search;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

pub use encode::{PageWriter, WrittenPage};
pub(crate) use filter::key_hash;
pub(crate) use index::filter_bytes;
pub use index::{IndexEntry, encode_index, set_checksum};
pub(crate) use open::{ENTRIES_MAX, ROWS_MAX};
pub use projection::Projection;
pub(crate) use search::head_of;

use keyaki_primitives::{CACHE_LINE_BYTES, prefetch};

use self::memory::PageMemory;
use self::projection::Columns;
use super::ColumnBuilder;
use super::RowCodec;
use super::column::{BytesColumn, Column, Ints};
use super::key::{put_bytes_key, put_key};
use super::row::put_row;
use super::scalar::Scalar;
use crate::base::{ColumnType, Error, Prior, Result, Schema, TreeId};

const MAGIC: [u8; 4] = *b"KYPG";
const PAGE_FORMAT: u8 = 1;
const HEADER_LEN: usize = 32;
/// Lengths and offsets of pages are multiples of this.
const BLOCK: usize = 4096;
/// Number of kinds of messages. A run page stores the number of the kind plus this many times the number of the prior.
const KINDS: u64 = 3;
/// Number of bytes of a column that are prefetched.
const PREFETCHED_BYTES: usize = 4 * CACHE_LINE_BYTES;
/// Maximum length of a page in bytes.
pub(crate) const PAGE_BYTES_MAX: usize = 1 << 30;

const _: () = {
    assert!(BLOCK == keyaki_device::BLOCK, "pages are made of device blocks");
    assert!(HEADER_LEN == MAGIC.len() + 4 + 8 + 4 + 4 + 1 + 1 + 2 + 4);
    // Lengths and directory offsets are stored in four bytes.
    assert!(PAGE_BYTES_MAX.is_multiple_of(BLOCK) && PAGE_BYTES_MAX <= u32::MAX as usize);
    assert!(BLOCK.is_multiple_of(filter::BLOCK_BYTES), "filters start at aligned addresses of the page");
};

/// A reference to a page: its position, and the values that verify that a read returned this page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageRef {
    /// Offset in the data file in bytes, a multiple of 4096.
    pub offset: u64,
    /// Length in bytes, a multiple of 4096.
    pub len: u32,
    /// The tree that the page belongs to.
    pub tree: TreeId,
    /// The checksum in the header of the page. It detects lost writes: an older page at the same position has another
    /// checksum.
    pub checksum: u32,
}

/// The kind of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// Rows of a leaf, or of a run that consists of inserts.
    Leaf,
    /// Messages of a run: rows with a kind, and operands of upserts.
    Run,
    /// The index of an extent: position and fence key of each data page, and a filter over the keys.
    Index,
}

/// The kind of a message in a run page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// A row that replaces all older messages and rows of its key.
    Insert,
    /// A tombstone: the row of the key is deleted.
    Delete,
    /// Functions to apply, oldest first, to the result of the older messages.
    Upsert,
}

impl MessageKind {
    /// Estimated change of the number of rows by the message. Where nothing is known, an insert or upsert is assumed to
    /// add a row and a delete to remove one.
    pub(crate) fn net_rows(self, prior: Prior) -> i64 {
        let after = i64::from(self != MessageKind::Delete);
        after - prior.rows().unwrap_or(1 - after)
    }
}

/// The message columns of a run page. The columns of the schema are null for messages without a row.
#[derive(Debug, Clone)]
pub struct RunColumns {
    /// One [`MessageKind`] per row.
    pub kinds: Vec<MessageKind>,
    /// For upserts, repeated (function id: u32 LE, length: u32 LE, operand); empty otherwise.
    pub operands: Vec<Vec<u8>>,
    /// What is known about the row below each message.
    pub priors: Vec<Prior>,
}

/// A verified page in memory. A page of a leaf may have some of its columns only, see [`Projection`].
///
/// The methods for rows return nulls and empty keys for an index page. The methods for index entries return empty
/// entries for a page of rows. Neither panic because of the kind of the page; callers check its [`kind`](Page::kind).
#[derive(Debug)]
pub struct Page {
    /// The page, or its header with a directory of the columns in memory, and these columns. At least
    /// [`SLACK`](super::bits::SLACK) bytes follow the last column, behind the page if needed.
    bytes: PageMemory,
    rows: usize,
    place: PageRef,
    path: Arc<Path>,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Rows { schema: Arc<Schema>, columns: Columns, messages: Option<Box<Messages>> },
    Index(index::Index),
}

/// The message columns of a run page.
#[derive(Debug)]
struct Messages {
    kinds: Ints,
    operands: BytesColumn,
}

impl Page {
    /// The kind of the page.
    pub fn kind(&self) -> PageKind {
        match &self.body {
            Body::Rows { messages: None, .. } => PageKind::Leaf,
            Body::Rows { .. } => PageKind::Run,
            Body::Index(_) => PageKind::Index,
        }
    }

    /// Number of rows, or of entries of an index page.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// An [`Error::Corrupt`] for this page.
    pub(crate) fn damaged(&self, detail: String) -> Error {
        Error::Corrupt { path: self.path.to_path_buf(), what: "page", offset: Some(self.place.offset), detail }
    }

    /// Bytes of memory that the page takes, without decompressed heaps: see [`Page::count_heaps`].
    pub fn memory_bytes(&self) -> usize {
        let body = match &self.body {
            Body::Rows { columns, messages, .. } => {
                let columns: usize = columns.layouts().iter().map(Column::memory_bytes).sum();
                columns + messages.as_ref().map_or(0, |m| size_of::<Messages>() + m.operands.memory_bytes())
            }
            Body::Index(_) => 0,
        };
        size_of::<Page>() + self.bytes.capacity() + body
    }

    /// Bytes of memory that the page takes once all its columns are decompressed.
    pub(crate) fn memory_bytes_max(&self) -> usize {
        let Body::Rows { columns, messages, .. } = &self.body else { return self.memory_bytes() };
        let heaps: usize = columns.layouts().iter().filter_map(Column::bytes).map(BytesColumn::decompressed_len).sum();
        self.memory_bytes() + heaps + messages.as_ref().map_or(0, |messages| messages.operands.decompressed_len())
    }

    /// Counts the bytes of decompressed heaps in `counter`, from now on and until the page is dropped.
    ///
    /// # Panics
    /// If a column has been read, or is counted already.
    pub(crate) fn count_heaps(&mut self, counter: &Arc<AtomicUsize>) {
        let Body::Rows { columns, messages, .. } = &mut self.body else { return };
        columns.layouts_mut().iter_mut().for_each(|column| column.count_heap(counter));
        if let Some(messages) = messages {
            messages.operands.count_heap(counter);
        }
    }

    /// The bytes of the page in memory, for prefetching and eviction from the CPU's caches.
    pub fn memory(&self) -> &[u8] {
        &self.bytes
    }

    /// The tree that the page belongs to.
    pub fn tree(&self) -> TreeId {
        self.place.tree
    }

    /// Number of columns of the schema when the page was written; 0 for an index page.
    pub fn columns(&self) -> usize {
        if let Body::Rows { columns, .. } = &self.body { columns.written() } else { 0 }
    }

    /// True if all columns are in memory.
    pub fn is_whole(&self) -> bool {
        self.projection().is_none()
    }

    /// True if the columns of `projection`, or all columns if there is none, are in memory.
    pub fn has(&self, projection: Option<&Projection>) -> bool {
        let Body::Rows { columns, .. } = &self.body else { return true };
        columns.projection().is_none_or(|kept| projection.is_some_and(|wanted| kept.covers(wanted, columns.written())))
    }

    /// The columns in memory; `None` if these are all.
    pub(crate) fn projection(&self) -> Option<&Arc<Projection>> {
        let Body::Rows { columns, .. } = &self.body else { return None };
        columns.projection()
    }

    /// The memory of a column: its bytes in the page, and its decompressed heap. Both are empty if the column does not
    /// exist, or is not in memory.
    pub fn column_memory(&self, column: usize) -> [&[u8]; 2] {
        let Body::Rows { columns, .. } = &self.body else { return [&[], &[]] };
        let Some(place) = columns.place(column) else { return [&[], &[]] };
        let entry = |number: usize| {
            let at = HEADER_LEN + number * 4;
            let bytes = self.bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, |bytes| u32::from_le_bytes(bytes) as usize)
        };
        let plain = columns.layouts().get(place).map_or(&[][..], Column::plain);
        [self.bytes.get(entry(place)..entry(place + 1)).unwrap_or_default(), plain]
    }

    /// Prefetches the layout of columns, which [`Page::prefetch_columns`] reads.
    pub fn prefetch_layout(&self, columns: &[usize]) {
        let Body::Rows { columns: all, .. } = &self.body else { return };
        let directory = self.bytes.as_ptr().wrapping_add(HEADER_LEN);
        for place in columns.iter().filter_map(|&column| all.place(column)) {
            prefetch(all.layouts().as_ptr().wrapping_add(place));
            prefetch(directory.wrapping_add(place * 4));
        }
    }

    /// Prefetches the first lines of columns. The processor itself fetches the lines behind them.
    pub fn prefetch_columns(&self, columns: &[usize]) {
        for &column in columns {
            for memory in self.column_memory(column) {
                for at in (0..memory.len().min(PREFETCHED_BYTES)).step_by(CACHE_LINE_BYTES) {
                    prefetch(memory.as_ptr().wrapping_add(at));
                }
            }
        }
    }

    // Leaf and run pages.

    /// The value of a column of type `ty`, which the page has.
    fn scalar(&self, column: usize, ty: ColumnType, row: usize) -> Scalar<'_> {
        let Body::Rows { columns, .. } = &self.body else { return Scalar::Null };
        columns.get(column).map_or(Scalar::Null, |column| column.scalar(&self.bytes, ty, row, self.rows))
    }

    /// The value of a column of bytes that is not null, as the concatenation of two parts. Requires a successful
    /// [`Page::check_columns`]; empty if the column has another type.
    pub(crate) fn bytes_at(&self, column: usize, row: usize) -> (&[u8], &[u8]) {
        match self.scalar(column, ColumnType::Bytes, row) {
            Scalar::Bytes(prefix, suffix) => (prefix, suffix),
            _ => (&[], &[]),
        }
    }

    /// Appends the encoded key of `row` to `out`.
    ///
    /// # Panics
    /// If `row` is out of bounds.
    pub fn key(&self, row: usize, out: &mut Vec<u8>) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        if let Body::Rows { schema, .. } = &self.body {
            for (i, column) in schema.columns()[..schema.key_columns()].iter().enumerate() {
                put_key(column, self.scalar(i, column.ty, row), out);
            }
        }
    }

    /// The encoded keys of the rows `rows` if the key is one column of text or bytes that has no nulls: their concatenation,
    /// the start of each, and the end of the last one.
    pub(crate) fn bytes_keys(&self, rows: Range<usize>) -> Option<(Vec<u8>, Vec<usize>)> {
        let Body::Rows { schema, columns, .. } = &self.body else { return None };
        let [column] = &schema.columns()[..schema.key_columns()] else { return None };
        let values = columns.get(0)?.bytes().filter(|values| !column.nullable && values.codes().is_none())?;
        let (prefix, heap) = (values.prefix(&self.bytes), values.heap(&self.bytes, self.rows));
        let mut keys = Vec::with_capacity(heap.len() / self.rows.max(1) * rows.len() + (prefix.len() + 8) * rows.len());
        let mut starts = Vec::with_capacity(rows.len() + 1);
        starts.push(0);
        values.for_ends(&self.bytes, heap, rows, |start, end| {
            put_bytes_key([prefix, &heap[start..end]], &mut keys);
            starts.push(keys.len());
        });
        Some((keys, starts))
    }

    /// Decompresses the columns `columns` (indices into the schema) unless that was done before. Opening a page does
    /// not verify compressed heaps. If a heap is damaged, its values read as empty.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a compressed heap is damaged; [`Error::InvalidArgument`] if a column is not in memory.
    pub fn check_columns(&self, columns: &[usize]) -> Result<()> {
        let Body::Rows { schema, columns: all, .. } = &self.body else { return Ok(()) };
        for &column in columns {
            if !all.is_known(column) {
                return Err(self.lacks(column));
            }
            if !all.get(column).is_none_or(|column| column.decompress(&self.bytes, self.rows)) {
                return Err(self.damaged(format!("column {:?} cannot be decompressed", schema.columns()[column].name)));
            }
        }
        Ok(())
    }

    /// [`check_columns`](Self::check_columns) of all columns.
    ///
    /// # Errors
    /// As [`check_columns`](Self::check_columns).
    pub fn check_all_columns(&self) -> Result<()> {
        let Body::Rows { columns, .. } = &self.body else { return Ok(()) };
        let first_bad = columns.layouts().iter().position(|column| !column.decompress(&self.bytes, self.rows));
        match (self.is_whole(), first_bad) {
            (true, None) => Ok(()),
            (true, Some(column)) => self.check_columns(&[column]),
            (false, _) => (0..columns.written()).try_for_each(|column| self.check_columns(&[column])),
        }
    }

    /// The error for an access to a column that is not in memory.
    fn lacks(&self, column: usize) -> Error {
        let detail = format!("column {column} of the page at offset {} was not read", self.place.offset);
        Error::InvalidArgument { argument: "columns", detail }
    }

    /// Appends the rows `rows` of `column` (index into the schema). `schema` is that of the reader's version of the tree,
    /// whose missing values stand for the columns that the page lacks: the page may have been opened for an older version.
    /// Requires a successful [`check_columns`](Self::check_columns): the values of a damaged heap read as empty.
    ///
    /// # Panics
    /// If a row is out of bounds, the column is not in memory, or the builder does not have its type.
    pub fn append_to(&self, column: usize, rows: Range<usize>, schema: &Schema, builder: &mut ColumnBuilder) {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        match self.column(column, builder) {
            // SAFETY: the page was opened with these bytes, rows and schema, and the builder has the type of the column.
            Some(column) => unsafe { column.append(&self.bytes, self.rows, rows, builder) },
            None => builder.append_scalar(schema.missing_value(column), rows.len()),
        }
    }

    /// Appends the rows `rows` (ascending) of `column`. Requires a successful [`check_columns`](Self::check_columns),
    /// as [`append_to`](Self::append_to).
    ///
    /// # Panics
    /// If a row is out of bounds, the column is not in memory, or the builder does not have its type.
    pub fn append_selected(&self, column: usize, rows: &[u32], schema: &Schema, builder: &mut ColumnBuilder) {
        let all = self.rows;
        assert!(rows.iter().all(|&row| (row as usize) < all), "rows {rows:?} of {all}");
        match self.column(column, builder) {
            // SAFETY: the page was opened with these bytes, rows and schema, and the builder has the type of the column.
            Some(column) => unsafe { column.append_selected(&self.bytes, all, rows, builder) },
            None => builder.append_scalar(schema.missing_value(column), rows.len()),
        }
    }

    /// A column; `None` if the page was written before the tree got it, and for index pages.
    ///
    /// # Panics
    /// If the column is not in memory, or the builder does not have its type.
    fn column(&self, column: usize, builder: &ColumnBuilder) -> Option<&Column> {
        let Body::Rows { schema, columns, .. } = &self.body else { return None };
        let values = columns.get(column)?;
        // The tree may have got another schema after the page was opened.
        let (expected, found) = (schema.columns()[column].ty, builder.column_type());
        assert!(found.is_encoded_as(expected), "builder of {found:?} for a column of {expected:?}");
        Some(values)
    }

    /// True if the page has messages.
    pub(crate) fn is_run(&self) -> bool {
        self.kind() == PageKind::Run
    }

    /// The kind of the message in `row`, and the knowledge of the row below it: an `Insert` about which nothing is known for
    /// every row of a leaf page. `None` if a run page holds an unknown kind.
    pub fn message(&self, row: usize) -> Option<(MessageKind, Prior)> {
        let Body::Rows { messages: Some(messages), .. } = &self.body else {
            return Some((MessageKind::Insert, Prior::Unknown));
        };
        let number = u64::try_from(messages.kinds.get(&self.bytes, row)).ok()?;
        let kind = match number % KINDS {
            0 => MessageKind::Insert,
            1 => MessageKind::Delete,
            _ => MessageKind::Upsert,
        };
        Some((kind, Prior::from_number(number / KINDS)?))
    }

    /// Returns true if `row` has a value in every column that is not nullable. Rows and inserts must be complete;
    /// deletes and upserts are not.
    pub(crate) fn is_complete(&self, row: usize) -> bool {
        let Body::Rows { schema, columns, .. } = &self.body else { return false };
        let mut columns = schema.columns().iter().zip(columns.layouts());
        self.is_whole() && columns.all(|(column, values)| column.nullable || !values.is_null(&self.bytes, row))
    }

    /// The operands of an upsert: repeated (function id: u32 LE, length: u32 LE, operand). Empty for other messages.
    pub fn operands(&self, row: usize) -> &[u8] {
        let Body::Rows { messages: Some(messages), .. } = &self.body else { return &[] };
        messages.operands.suffix(&self.bytes, row, self.rows)
    }

    /// Appends the value bytes of `row`, encoded as by [`super::RowCodec::encode`] of `codec`: the codec of the tree, also if
    /// the page was written before the tree got all its columns. Requires a successful [`Page::check_columns`].
    ///
    /// # Panics
    /// If `row` is out of bounds, or a column is not in memory.
    pub fn value(&self, row: usize, codec: &RowCodec, out: &mut Vec<u8>) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        if matches!(self.body, Body::Rows { .. }) {
            let (schema, written) = (codec.schema(), self.columns());
            let columns = schema.columns();
            let scalar = |i: usize| match i < written {
                true => self.scalar(i, columns[i].ty, row),
                false => schema.missing_value(i),
            };
            put_row(columns, schema.key_columns(), scalar, out);
        }
    }

    // Index pages.

    /// The reference of data page `i` and its number of rows.
    pub fn entry(&self, i: usize) -> (PageRef, u32) {
        match &self.body {
            Body::Index(index) => index.entry(&self.bytes, self.place, i),
            Body::Rows { .. } => (PageRef { offset: 0, len: 0, checksum: 0, ..self.place }, 0),
        }
    }

    /// The offset of the first data page of the extent, and the number of rows of all data pages.
    pub(crate) fn extent(&self) -> (u64, u64) {
        match &self.body {
            Body::Index(index) => (index.entry(&self.bytes, self.place, 0).0.offset, index.row_count),
            Body::Rows { .. } => (0, 0),
        }
    }

    /// Checks that `page` matches entry `i`. If `leaf` is set, checks also that it holds rows, not messages.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the page does not match.
    pub(crate) fn check_data_page(&self, i: usize, page: &Page, leaf: bool) -> Result<()> {
        page.check_rows(self.entry(i).1, leaf)
    }

    /// Checks that this page has `rows` rows. If `leaf` is set, checks also that they are rows, not messages.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the page does not match.
    pub(crate) fn check_rows(&self, rows: u32, leaf: bool) -> Result<()> {
        let wanted = if leaf { "a leaf" } else { "a leaf or a run" };
        if self.kind() == PageKind::Index || (leaf && self.kind() != PageKind::Leaf) {
            return Err(self.damaged(format!("found a page of kind {:?}, expected {wanted}", self.kind())));
        }
        if self.rows != rows as usize {
            return Err(self.damaged(format!("found {} rows, expected {rows}", self.rows)));
        }
        Ok(())
    }

    /// The last entry whose fence is `<= key`, or 0 if there is none. If any data page contains `key`, it is this one.
    pub fn find(&self, key: &[u8]) -> usize {
        match &self.body {
            Body::Index(index) => index.find(&self.bytes, self.rows, key),
            Body::Rows { .. } => 0,
        }
    }

    /// The fence key of entry `i`: greater than every key of page `i - 1`, not greater than any key of page `i`, empty
    /// for entry 0.
    pub fn fence(&self, i: usize) -> &[u8] {
        match &self.body {
            Body::Index(index) => index.fence(&self.bytes, i),
            Body::Rows { .. } => &[],
        }
    }

    /// Returns false only if no row has exactly this key. Without a filter returns true.
    pub fn may_contain(&self, key: &[u8]) -> bool {
        self.may_contain_hash(key_hash(key))
    }

    /// Loads the memory of a page, without its bytes, into the caches of the processor. There need not be a page.
    #[inline]
    pub(crate) fn prefetch(page: *const Page) {
        // The reference counts of its `Arc` are before it.
        let start = page.cast::<u8>().wrapping_sub(2 * size_of::<usize>());
        (0..size_of::<Page>() + 2 * size_of::<usize>())
            .step_by(CACHE_LINE_BYTES)
            .for_each(|at| prefetch(start.wrapping_add(at)));
    }

    /// Loads the memory that [`Page::may_contain_hash`] needs into the caches of the processor.
    #[inline]
    pub(crate) fn prefetch_filter(&self, hash: u64) {
        if let Body::Index(index) = &self.body {
            prefetch(index.filter_block(&self.bytes, hash));
        }
    }

    /// As [`Page::may_contain`], for the hash of the key.
    pub(crate) fn may_contain_hash(&self, hash: u64) -> bool {
        match &self.body {
            Body::Index(index) => index.may_contain(&self.bytes, hash),
            Body::Rows { .. } => true,
        }
    }
}

/// Writes offset, tree, length and checksum into an encoded page that was placed. Returns the reference with the
/// checksum.
///
/// # Panics
/// If the length of `bytes` is not `page.len`, or is less than 4096.
pub fn seal(bytes: &mut [u8], page: PageRef) -> PageRef {
    assert!(bytes.len() == page.len as usize && bytes.len() >= BLOCK, "{} bytes for {page:?}", bytes.len());
    bytes[8..16].copy_from_slice(&page.offset.to_le_bytes());
    bytes[16..20].copy_from_slice(&page.tree.get().to_le_bytes());
    bytes[20..24].copy_from_slice(&page.len.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes[8..]);
    bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
    PageRef { checksum, ..page }
}

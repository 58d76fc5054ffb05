//! Opening of pages: checks everything that later accesses rely on, once.
//!
//! The header must have the magic, the checksum (computed, and that of the reference), the offset, the tree, the length
//! and the format version of the page. The parts of every column must lie within the column and have valid lengths and
//! widths. Uncompressed text must be valid UTF-8, and the ends of values must ascend. Codes are not checked one by one,
//! because accessors clamp them.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::memory::PageMemory;
use super::{
    BLOCK, Body, BytesColumn, Column as ColumnLayout, Columns, HEADER_LEN, Ints, MAGIC, Messages, PAGE_BYTES_MAX,
    PAGE_FORMAT, Page, PageRef, Projection, index,
};
use crate::base::{Column, ColumnType, Error, Result, Schema, TreeId};
use crate::codec::bits::SLACK;
use crate::codec::dictionary::{Dictionaries, DictionaryPlace};
use crate::codec::varint::Reader;

/// A page whose columns in use take more than this many quarters of it is kept as a whole: it is of more use then.
const KEPT_QUARTERS: usize = 3;
/// Maximum number of rows of a data page.
pub(crate) const ROWS_MAX: usize = 1 << 14;
/// Maximum number of entries of an index page.
pub(crate) const ENTRIES_MAX: usize = 1 << 20;

impl Page {
    /// Checks and opens a page that was read for the reference `page`. The bytes of an opened page make no method panic
    /// or read out of bounds. The page must not need a dictionary.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if checksum, offset, tree or structure is invalid.
    pub fn open(bytes: &[u8], page: PageRef, schema: &Arc<Schema>, path: &Arc<Path>) -> Result<Page> {
        Page::open_columns(bytes, page, schema, path, None)
    }

    /// As [`Page::open`]. If the page is one of a leaf, keeps the columns of `projection` only, unless they take more
    /// than three quarters of the page. The other columns are not checked.
    ///
    /// # Errors
    /// As [`Page::open`].
    pub fn open_columns(
        bytes: &[u8],
        page: PageRef,
        schema: &Arc<Schema>,
        path: &Arc<Path>,
        projection: Option<&Arc<Projection>>,
    ) -> Result<Page> {
        Page::open_with(bytes, page, schema, path, projection, &Dictionaries::default())
    }

    /// As [`Page::open_columns`], for a page that may need one of `dictionaries`.
    ///
    /// # Errors
    /// As [`Page::open`].
    pub(crate) fn open_with(
        bytes: &[u8],
        page: PageRef,
        schema: &Arc<Schema>,
        path: &Arc<Path>,
        projection: Option<&Arc<Projection>>,
        dictionaries: &Dictionaries,
    ) -> Result<Page> {
        let opened =
            check_header(bytes, page).and_then(|()| parse(bytes, page, schema, path, projection, dictionaries));
        opened.map_err(|detail| Error::Corrupt {
            path: path.to_path_buf(),
            what: "page",
            offset: Some(page.offset),
            detail,
        })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

impl PageRef {
    /// True if `bytes`, at least one block, begin with the header of the page.
    pub(crate) fn has_header(&self, bytes: &[u8]) -> bool {
        let tree = TreeId::new(u32_at(bytes, 16));
        bytes.starts_with(&MAGIC)
            && (u32_at(bytes, 4), u64_at(bytes, 8), tree, u32_at(bytes, 20))
                == (self.checksum, self.offset, self.tree, self.len)
    }

    /// The reference of a page of rows or messages that begins with `bytes`, at least one block, according to its own
    /// header, which may be damaged; `None` if it has no such header, or one for another place.
    pub(crate) fn of_header(bytes: &[u8], offset: u64) -> Option<PageRef> {
        let is_data = bytes.starts_with(&MAGIC) && matches!(bytes.get(24), Some(0 | 1)) && u64_at(bytes, 8) == offset;
        let (len, tree) = (u32_at(bytes, 20), TreeId::new(u32_at(bytes, 16)));
        let is_page = len > 0 && (len as usize).is_multiple_of(BLOCK) && len as usize <= PAGE_BYTES_MAX;
        (is_data && is_page).then(|| PageRef { offset, len, tree, checksum: u32_at(bytes, 4) })
    }
}

/// Checks that `bytes` are the page that `page` refers to.
fn check_header(bytes: &[u8], page: PageRef) -> std::result::Result<(), String> {
    let len = bytes.len();
    if len != page.len as usize || len == 0 || !len.is_multiple_of(BLOCK) || len > PAGE_BYTES_MAX {
        return Err(format!("read {len} bytes for a page of {} bytes", page.len));
    }
    if !bytes.starts_with(&MAGIC) {
        return Err(format!("found magic {:02x?}, expected \"KYPG\"", &bytes[..4]));
    }
    let (stored, computed) = (u32_at(bytes, 4), crc32c::crc32c(&bytes[8..]));
    if stored != computed {
        return Err(format!("checksum mismatch: computed {computed:08x}, stored {stored:08x}"));
    }
    if stored != page.checksum {
        return Err(format!("found a page with checksum {stored:08x}, expected {:08x}", page.checksum));
    }
    if bytes[25] != PAGE_FORMAT {
        return Err(format!("page format {}, expected {PAGE_FORMAT}", bytes[25]));
    }
    let (offset, tree, stored_len) = (u64_at(bytes, 8), TreeId::new(u32_at(bytes, 16)), u32_at(bytes, 20));
    if (offset, tree, stored_len) != (page.offset, page.tree, page.len) {
        return Err(format!("found a page of {stored_len} bytes of tree {tree} for offset {offset}"));
    }
    Ok(())
}

/// `projection` selects columns of leaf pages.
fn parse(
    bytes: &[u8],
    place: PageRef,
    schema: &Arc<Schema>,
    path: &Arc<Path>,
    projection: Option<&Arc<Projection>>,
    dictionaries: &Dictionaries,
) -> std::result::Result<Page, String> {
    let rows = u32_at(bytes, 28) as usize;
    let (buffer, body) = match bytes[24] {
        kind @ (0 | 1) => {
            let place = DictionaryPlace { all: dictionaries, tree: place.tree, column: 0 };
            parse_rows(bytes, schema, rows, kind == 1, projection, place)?
        }
        2 if rows == 0 || rows > ENTRIES_MAX => return Err(format!("{rows} entries, expected 1 to {ENTRIES_MAX}")),
        2 => {
            let buffer = copy(bytes, SLACK);
            let reader = Reader { bytes: &buffer, at: HEADER_LEN, end: bytes.len() };
            let index = index::Index::parse(reader, rows, place.offset).ok_or("invalid entries")?;
            (buffer, Body::Index(index))
        }
        kind => return Err(format!("unknown page kind {kind}")),
    };
    Ok(Page { bytes: buffer, rows, place, path: path.clone(), body })
}

/// A copy of a page, with `slack` zeros behind it.
fn copy(bytes: &[u8], slack: usize) -> PageMemory {
    let mut buffer = PageMemory::with_capacity(bytes.len() + slack);
    buffer.extend_from_slice(bytes);
    buffer.extend_from_slice(&[0; SLACK][..slack]);
    buffer
}

/// A copy of a page of `columns` columns. Most pages end with enough unused bytes: a buffer of their length wastes no
/// memory of the allocator.
fn copy_rows(page: &[u8], columns: usize) -> PageMemory {
    let used = (0..=columns).map(|i| u32_at(page, HEADER_LEN + i * 4)).max().unwrap_or(u32::MAX);
    let has_slack = used as usize + SLACK <= page.len();
    copy(page, if has_slack { 0 } else { SLACK })
}

/// The header of a page of `columns` columns, a directory of the columns `kept`, and these columns. `None` if they take
/// more than [`KEPT_QUARTERS`] of the page.
///
/// # Errors
/// The number of a column outside of the page.
fn project(
    page: &[u8],
    columns: usize,
    kept: impl Iterator<Item = usize>,
) -> std::result::Result<Option<PageMemory>, usize> {
    let range = |column| column_range(page, column, page.len()).ok_or(column);
    let kept = kept.map(range).collect::<std::result::Result<Vec<_>, _>>()?;
    let used = (u32_at(page, HEADER_LEN + columns * 4) as usize).min(page.len());
    let (directory, len) = ((kept.len() + 1) * 4, kept.iter().map(Range::len).sum::<usize>());
    // Columns of a damaged page may overlap.
    if len > used / 4 * KEPT_QUARTERS {
        return Ok(None);
    }
    let mut buffer = PageMemory::with_capacity(HEADER_LEN + directory + len + SLACK);
    buffer.extend_from_slice(&page[..HEADER_LEN]);
    let mut at = (HEADER_LEN + directory) as u32;
    for column in &kept {
        buffer.extend_from_slice(&at.to_le_bytes());
        at += column.len() as u32;
    }
    buffer.extend_from_slice(&at.to_le_bytes());
    kept.into_iter().for_each(|column| buffer.extend_from_slice(&page[column]));
    buffer.extend_from_slice(&[0; SLACK]);
    Ok(Some(buffer))
}

/// The range of column `number` according to the directory of a page; `None` if it exceeds `len` bytes.
fn column_range(bytes: &[u8], number: usize, len: usize) -> Option<Range<usize>> {
    let at = HEADER_LEN + number * 4;
    let (start, end) = (u32_at(bytes, at) as usize, u32_at(bytes, at + 4) as usize);
    (start <= end && end <= len).then_some(start..end)
}

fn parse_rows(
    page: &[u8],
    schema: &Arc<Schema>,
    rows: usize,
    run: bool,
    projection: Option<&Arc<Projection>>,
    dictionaries: DictionaryPlace<'_>,
) -> std::result::Result<(PageMemory, Body), String> {
    let columns = usize::from(u16::from_le_bytes([page[26], page[27]]));
    let messages = if run { 2 } else { 0 };
    let all = schema.columns().len();
    let written = columns.saturating_sub(messages);
    // The tree may have got columns after the page was written.
    let may_lack_rest = || (written..all).all(|column| schema.may_lack(column));
    if written < schema.key_columns() || written > all || !may_lack_rest() {
        return Err(format!("{columns} columns, expected {}", all + messages));
    }
    if rows == 0 || rows > ROWS_MAX || HEADER_LEN + (columns + 1) * 4 > page.len() {
        return Err(format!("{rows} rows of {columns} columns in {} bytes", page.len()));
    }
    let name = |column: usize| format!("invalid column {:?}", schema.columns()[column].name);
    let projected = match projection.filter(|_| !run) {
        Some(projection) => project(page, columns, projection.below(written)).map_err(name)?,
        None => None,
    };
    let projection = projection.filter(|_| projected.is_some()).cloned();
    let (buffer, len) = match projected {
        Some(buffer) => {
            let len = buffer.len() - SLACK;
            (buffer, len)
        }
        None => (copy_rows(page, columns), page.len()),
    };
    let reader = |number: usize| {
        let range = column_range(&buffer, number, len)?;
        Some(Reader { bytes: &buffer, at: range.start, end: range.end })
    };
    let parse_column = |number: usize, column: usize| {
        let Column { ty, nullable, .. } = &schema.columns()[column];
        // Deletes and upserts have nulls in the value columns.
        let nullable = *nullable || (run && column >= schema.key_columns());
        let dictionary = DictionaryPlace { column, ..dictionaries };
        let found =
            reader(number).and_then(|mut reader| ColumnLayout::parse(&mut reader, *ty, nullable, rows, dictionary));
        found.ok_or_else(|| name(column))
    };
    // The length of a collected `Result` is not known in advance.
    let mut layouts = Vec::with_capacity(written);
    let mut add = |(number, column)| parse_column(number, column).map(|layout| layouts.push(layout));
    match &projection {
        None => (0..written).map(|column| (column, column)).try_for_each(&mut add)?,
        Some(kept) => kept.below(written).enumerate().try_for_each(&mut add)?,
    }
    let messages = || {
        let kinds = Ints::parse(&mut reader(written)?, rows)?;
        let operands = BytesColumn::parse(&mut reader(written + 1)?, rows, ColumnType::Bytes, None)?;
        Some(Box::new(Messages { kinds, operands }))
    };
    let messages = if run { Some(messages().ok_or("invalid messages")?) } else { None };
    let columns = Columns::new(layouts, written, projection);
    Ok((buffer, Body::Rows { schema: schema.clone(), columns, messages }))
}

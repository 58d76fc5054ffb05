//! Opening of pages: checks everything that later accesses rely on, once.
//!
//! The header must have the magic, the checksum (computed, and that of the reference), the offset, the tree, the length
//! and the format version of the page. The parts of every column must lie within the column and have valid lengths and
//! widths. Uncompressed text must be valid UTF-8, and the ends of values must ascend. Codes are not checked one by one,
//! because accessors clamp them.

use std::path::Path;
use std::sync::Arc;

use arrow_buffer::MutableBuffer;

use super::{
    BLOCK, Body, BytesColumn, Column, HEADER_LEN, Ints, MAGIC, Messages, PAGE_BYTES_MAX, PAGE_FORMAT, Page, PageRef,
    index,
};
use crate::base::{ColumnType, Error, Result, Schema, TreeId};
use crate::codec::bits::SLACK;
use crate::codec::varint::Reader;

/// Maximum number of rows of a data page.
pub(crate) const ROWS_MAX: usize = 1 << 14;
/// Maximum number of entries of an index page.
pub(crate) const ENTRIES_MAX: usize = 1 << 20;

impl Page {
    /// Checks and opens a page that was read for the reference `page`. The bytes of an opened page make no method panic
    /// or read out of bounds.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if checksum, offset, tree or structure is invalid.
    pub fn open(bytes: &[u8], page: PageRef, schema: &Arc<Schema>, path: &Arc<Path>) -> Result<Page> {
        check_header(bytes, page).and_then(|()| parse(bytes, page, schema, path)).map_err(|detail| Error::Corrupt {
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

fn parse(bytes: &[u8], place: PageRef, schema: &Arc<Schema>, path: &Arc<Path>) -> std::result::Result<Page, String> {
    let rows = u32_at(bytes, 28) as usize;
    let (kind, columns) = (bytes[24], usize::from(u16::from_le_bytes([bytes[26], bytes[27]])));
    // Most pages end with enough unused bytes. A buffer of their length wastes no memory of the allocator.
    let used = if kind == 2 { None } else { (0..=columns).map(|i| u32_at(bytes, HEADER_LEN + i * 4)).max() };
    let has_slack = used.is_some_and(|used| used as usize + SLACK <= bytes.len());
    let slack = if has_slack { 0 } else { SLACK };
    let mut buffer = MutableBuffer::with_capacity(bytes.len() + slack);
    buffer.extend_from_slice(bytes);
    buffer.extend_from_slice(&[0; SLACK][..slack]);
    let body = match kind {
        0 | 1 => parse_rows(&buffer, bytes.len(), schema, rows, kind == 1, columns)?,
        2 if rows == 0 || rows > ENTRIES_MAX => return Err(format!("{rows} entries, expected 1 to {ENTRIES_MAX}")),
        2 => {
            let reader = Reader { bytes: &buffer, at: HEADER_LEN, end: bytes.len() };
            Body::Index(index::Index::parse(reader, rows, place.offset).ok_or("invalid entries")?)
        }
        _ => return Err(format!("unknown page kind {kind}")),
    };
    Ok(Page { bytes: buffer, rows, place, path: path.clone(), body })
}

fn parse_rows(
    bytes: &[u8],
    len: usize,
    schema: &Arc<Schema>,
    rows: usize,
    run: bool,
    columns: usize,
) -> std::result::Result<Body, String> {
    let messages = if run { 2 } else { 0 };
    let all = schema.columns().len();
    let written = columns.saturating_sub(messages);
    // The tree may have got columns after the page was written.
    let may_lack_rest = || (written..all).all(|column| schema.may_lack(column));
    if written < schema.key_columns() || written > all || !may_lack_rest() {
        return Err(format!("{columns} columns, expected {}", all + messages));
    }
    if rows == 0 || rows > ROWS_MAX || HEADER_LEN + (columns + 1) * 4 > len {
        return Err(format!("{rows} rows of {columns} columns in {len} bytes"));
    }
    let reader = |column: usize| {
        let at = u32_at(bytes, HEADER_LEN + column * 4) as usize;
        let end = u32_at(bytes, HEADER_LEN + column * 4 + 4) as usize;
        (at <= end && end <= len).then_some(Reader { bytes, at, end })
    };
    let mut parsed = Vec::with_capacity(schema.columns().len());
    for (i, column) in schema.columns()[..written].iter().enumerate() {
        // Deletes and upserts have nulls in the value columns.
        let nullable = column.nullable || (run && i >= schema.key_columns());
        let found = reader(i).and_then(|mut reader| Column::parse(&mut reader, column.ty, nullable, rows));
        parsed.push(found.ok_or_else(|| format!("invalid column {:?}", column.name))?);
    }
    let messages = || {
        let kinds = Ints::parse(&mut reader(written)?, rows)?;
        let operands = BytesColumn::parse(&mut reader(written + 1)?, rows, ColumnType::Bytes)?;
        Some(Box::new(Messages { kinds, operands }))
    };
    let messages = if run { Some(messages().ok_or("invalid messages")?) } else { None };
    Ok(Body::Rows { schema: schema.clone(), columns: parsed.into(), messages })
}

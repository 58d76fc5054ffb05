//! Search for a key in a page without encoding the keys of its rows.
//!
//! Rows are sorted by their key columns. The rows that agree with the target key in the leading columns are therefore a
//! range, which each further column narrows. Integers, floats and decimals are compared as typed values, text and bytes
//! as encodings. The target may end within a column, or not be the encoding of a key at all.

use std::cmp::Ordering;
use std::ops::Range;

use super::{Body, BytesColumn, Column, Page};
use crate::base::ColumnType;
use crate::codec::column::{equal_range, partition_point};
use crate::codec::key::{ordered_wide, ordered_word, take_escaped, word_of_ordered};
use crate::codec::scalar::fixed_len;

/// Rows of the first window of a search that starts at a row.
const WINDOW_ROWS: usize = 8;

impl Page {
    /// The first row whose encoded key is `>= key`, or, if `after` is set, `> key` and not an extension of it. The
    /// number of rows if there is none; 0 for an index page.
    pub fn lower_bound(&self, key: &[u8], after: bool) -> usize {
        self.lower_bound_in(0..self.rows, key, after)
    }

    /// As `lower_bound(key, false)`, for a key above those of the rows before `start`. Fastest if the result is near `start`.
    pub(crate) fn lower_bound_from(&self, mut start: usize, key: &[u8]) -> usize {
        let mut window = WINDOW_ROWS;
        loop {
            let end = start.saturating_add(window).min(self.rows);
            let at = self.lower_bound_in(start.min(end)..end, key, false);
            if at < end || end == self.rows {
                return at;
            }
            (start, window) = (end, 4 * window);
        }
    }

    /// As [`lower_bound`](Self::lower_bound), among the rows `rows`.
    fn lower_bound_in(&self, rows: Range<usize>, key: &[u8], after: bool) -> usize {
        let Body::Rows { schema, columns, .. } = &self.body else { return 0 };
        let mut narrowed =
            Narrowed { bytes: &self.bytes, count: self.rows, first: rows.start, end: rows.end, rest: key };
        let key_columns = schema.columns()[..schema.key_columns()].iter();
        for (column, values) in key_columns.zip(columns.layouts()) {
            if narrowed.rest.is_empty() || narrowed.first == narrowed.end {
                break;
            }
            if column.nullable && !narrowed.by_marker(values) {
                break;
            }
            match (fixed_len(column.ty), column.ty) {
                // A null consists of its marker only.
                _ if column.nullable && values.is_null(narrowed.bytes, narrowed.first) => (),
                (None, _) => values.bytes().into_iter().for_each(|values| narrowed.by_bytes(values)),
                (Some(_), ty) if ty.is_wide() => narrowed.by_wide(values),
                (Some(len), ty) => narrowed.by_word(values, ty, len),
            }
        }
        // If `key` is used up, the keys of the remaining rows start with it. Otherwise `key` is longer than these keys,
        // and therefore greater.
        if after || !narrowed.rest.is_empty() { narrowed.end } else { narrowed.first }
    }
}

/// The rows that agree with the consumed part of the target key; `rest` is the part not yet consumed. If no rows
/// remain, `first` and `end` are the insertion point of the target.
struct Narrowed<'a> {
    bytes: &'a [u8],
    /// Number of rows of the page.
    count: usize,
    first: usize,
    end: usize,
    rest: &'a [u8],
}

impl Narrowed<'_> {
    /// Narrows by the null marker of a nullable column. Returns false if the search is complete.
    fn by_marker(&mut self, column: &Column) -> bool {
        let Some(&marker) = self.rest.split_off_first() else { return false };
        let valid = partition_point(self.first..self.end, |row| column.is_null(self.bytes, row));
        match marker {
            0 => self.end = valid,
            1 => self.first = valid,
            _ => self.first = self.end,
        }
        self.first < self.end && (marker == 0 || !self.rest.is_empty())
    }

    /// Consumes up to `len` bytes of the target. Returns the smallest and the largest big-endian number of `len` bytes
    /// that start with them.
    fn take_bounds(&mut self, len: usize) -> (u128, u128) {
        let taken = len.min(self.rest.len());
        let (bytes, rest) = self.rest.split_at(taken);
        self.rest = rest;
        let missing = 8 * (len - taken) as u32;
        let low = bytes.iter().fold(0, |number, &byte| number << 8 | u128::from(byte));
        // All 16 bytes are missing only in a damaged page, whose nulls contradict the search.
        let open = u128::MAX.checked_shr(128 - missing).unwrap_or(0);
        let low = low.checked_shl(missing).unwrap_or(0);
        (low, low | open)
    }

    fn rows(&self) -> Range<usize> {
        self.first..self.end
    }

    fn narrow(&mut self, rows: Range<usize>) {
        (self.first, self.end) = (rows.start, rows.end);
    }

    fn by_word(&mut self, column: &Column, ty: ColumnType, len: usize) {
        let (low, high) = self.take_bounds(len);
        let (low, high) = (low as u64, high as u64);
        let rows = if matches!(ty, ColumnType::Float32 | ColumnType::Float64 | ColumnType::Boolean) {
            let (below, above) = (|word| ordered_word(ty, word) < low, |word| ordered_word(ty, word) > high);
            column.equal_words(self.bytes, ty, self.rows(), below, above)
        } else {
            let (low, high) = (word_of_ordered(ty, low), word_of_ordered(ty, high));
            column.equal_words(self.bytes, ty, self.rows(), |word| word < low, |word| word > high)
        };
        self.narrow(rows);
    }

    fn by_wide(&mut self, column: &Column) {
        let (low, high) = self.take_bounds(16);
        let (below, above) = (|wide| ordered_wide(wide) < low, |wide| ordered_wide(wide) > high);
        self.narrow(column.equal_wide(self.bytes, self.rows(), below, above));
    }

    fn by_bytes(&mut self, column: &BytesColumn) {
        let mut rest = self.rest;
        match take_escaped(&mut rest) {
            Some(wanted) => {
                self.by_value(column, &wanted);
                self.rest = rest;
            }
            None => self.by_encoding(column),
        }
    }

    /// Narrows by a complete value. The encodings of values sort as the values do.
    fn by_value(&mut self, column: &BytesColumn, wanted: &[u8]) {
        let (bytes, count) = (self.bytes, self.count);
        let prefix = column.prefix(bytes);
        let rows = match wanted.strip_prefix(prefix) {
            Some(wanted) => {
                // The first eight bytes decide most comparisons without a call.
                let wanted = (head_of(wanted), wanted);
                let suffix = |row| {
                    let suffix = column.suffix(bytes, row, count);
                    (head_of(suffix), suffix)
                };
                equal_range(self.rows(), suffix, |suffix| suffix < wanted, |suffix| suffix > wanted)
            }
            None if prefix < wanted => self.end..self.end,
            None => self.first..self.first,
        };
        self.narrow(rows);
    }

    /// Narrows by a rest that is not, or not completely, the encoding of a value.
    fn by_encoding(&mut self, column: &BytesColumn) {
        let (bytes, count, wanted) = (self.bytes, self.count, self.rest);
        let compare = |row| compare_escaped(column.prefix(bytes), column.suffix(bytes, row, count), wanted);
        self.narrow(equal_range(self.rows(), compare, |(order, _)| order.is_lt(), |(order, _)| order.is_gt()));
        if self.first < self.end {
            let taken = compare(self.first).1;
            self.rest = &wanted[taken.min(wanted.len())..];
        }
    }
}

/// The first eight bytes as a big-endian number, padded with zeros. Values with different heads sort as their heads.
#[inline]
pub(crate) fn head_of(value: &[u8]) -> u64 {
    match value.first_chunk() {
        Some(head) => u64::from_be_bytes(*head),
        None => value.iter().rev().fold(0, |head, &byte| head >> 8 | u64::from(byte) << 56),
    }
}

/// Compares the encoding of the value `head` followed by `tail` with `wanted`. They are equal if one is a prefix of the
/// other. Also returns the number of bytes of `wanted` that were compared.
fn compare_escaped(head: &[u8], tail: &[u8], wanted: &[u8]) -> (Ordering, usize) {
    let mut at = 0;
    for part in [head, tail] {
        let mut rest = part;
        while !rest.is_empty() {
            let plain = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
            let ordering = compare_within(&rest[..plain], wanted, &mut at);
            if ordering != Ordering::Equal || at == wanted.len() {
                return (ordering, at);
            }
            if plain == rest.len() {
                break;
            }
            let ordering = compare_within(&[0, 0xff], wanted, &mut at);
            if ordering != Ordering::Equal || at == wanted.len() {
                return (ordering, at);
            }
            rest = &rest[plain + 1..];
        }
    }
    (compare_within(&[0, 0], wanted, &mut at), at)
}

/// Compares `bytes` with `wanted[*at..]` up to the end of the shorter one, and advances `at` by that length.
fn compare_within(bytes: &[u8], wanted: &[u8], at: &mut usize) -> Ordering {
    let rest = &wanted[*at..];
    let len = bytes.len().min(rest.len());
    *at += len;
    bytes[..len].cmp(&rest[..len])
}

//! Columns of a page: lightly encoded so that every value can be reached on its own.
//!
//! Every value that fits a 64-bit *word* (integers, dates, timestamps, booleans, floats by their bits or as scaled integers,
//! decimals that fit) is encoded by words; wider decimals are stored as they are; text and bytes by dictionary or by offsets
//! into a heap.
//!
//! ```text
//! directory entry   encoding: u8, flags: u8 (1: null bitmap), width: u8, extra: u8, offset: u32
//! column            [null bitmap: a bit a row, set for null] then by encoding
//!  0 constant       value: i64
//!  1 frame          base: i64, packed (value - base), `width` bits each
//!  2 line           base: i64, slope: i64 (32.32 fixed point), packed (value - base - (slope * i >> 32))
//!  3 wide           16 bytes a value
//!  4 dictionary     entries: u16, packed codes, ends of entries (u32 each), entries
//!  5 heap           heap length: u32, stored length: u32 (less if LZ4), packed ends of values, heap
//!  6 all null       nothing
//! ```
//! `extra` is the decimal exponent plus one of floats stored as scaled integers, and 1 for a heap that is compressed.

use std::sync::OnceLock;

use arrow_array::{Array, ArrayRef};

use super::bits;
use super::builder::ColumnBuilder;
use super::scalar::{Scalar, scalar_at};
use crate::ColumnType;

pub(super) const ENTRY_LEN: usize = 8;

const CONSTANT: u8 = 0;
const FRAME: u8 = 1;
const LINE: u8 = 2;
const WIDE: u8 = 3;
const DICTIONARY: u8 = 4;
const HEAP: u8 = 5;
const ALL_NULL: u8 = 6;

const HAS_NULLS: u8 = 1;
/// Largest power of ten by which floats are scaled.
const EXPONENT_MAX: u32 = 6;

// Writing.

/// What the writer remembers of a column from page to page.
#[derive(Debug, Default)]
pub(super) struct Hints {
    /// Pages until a dictionary (a compressed heap) that did not pay is tried again.
    skip_dictionary: u8,
    skip_compression: u8,
}

/// Reusable memory of the writer.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    words: Vec<i64>,
    heap: Vec<u8>,
    ends: Vec<u64>,
}

/// Appends the rows `rows` of `array` to `page` and returns the directory entry.
pub(super) fn encode(
    array: &ArrayRef,
    ty: ColumnType,
    rows: std::ops::Range<usize>,
    hints: &mut Hints,
    scratch: &mut Scratch,
    page: &mut Vec<u8>,
) -> [u8; ENTRY_LEN] {
    let offset = page.len() as u32;
    let nulls = rows.clone().filter(|&row| array.is_null(row)).count();
    let (encoding, width, extra) = if nulls == rows.len() {
        (ALL_NULL, 0, 0)
    } else {
        if nulls > 0 {
            let start = page.len();
            page.resize(start + rows.len().div_ceil(8), 0);
            for (i, row) in rows.clone().enumerate() {
                page[start + i / 8] |= u8::from(array.is_null(row)) << (i % 8);
            }
        }
        match ty {
            ColumnType::Text | ColumnType::Bytes => encode_bytes(array, ty, rows, hints, scratch, page),
            _ => match gather_words(array, ty, rows.clone(), &mut scratch.words) {
                Some(extra) => {
                    let (encoding, width) = encode_words(&scratch.words, page);
                    (encoding, width, extra)
                }
                None => {
                    for row in rows {
                        let wide = match scalar_at(array, ty, row) {
                            Scalar::Wide(wide) => wide,
                            _ => 0,
                        };
                        page.extend_from_slice(&wide.to_le_bytes());
                    }
                    (WIDE, 128, 0)
                }
            },
        }
    };
    let flags = if nulls > 0 && encoding != ALL_NULL { HAS_NULLS } else { 0 };
    let at = offset.to_le_bytes();
    [encoding, flags, width, extra, at[0], at[1], at[2], at[3]]
}

/// The values as words, nulls as their predecessor (which packs well); none if some decimal does not fit. Returns the
/// directory's `extra`.
fn gather_words(array: &ArrayRef, ty: ColumnType, rows: std::ops::Range<usize>, words: &mut Vec<i64>) -> Option<u8> {
    words.clear();
    let mut last = None;
    let mut leading_nulls = 0;
    for row in rows {
        match scalar_at(array, ty, row) {
            Scalar::Word(word) => last = Some(word),
            Scalar::Wide(wide) => last = Some(i64::try_from(wide).ok()?),
            _ => {}
        }
        match last {
            Some(word) => words.push(word),
            None => leading_nulls += 1,
        }
    }
    if leading_nulls > 0 {
        let first = words.first().copied().unwrap_or(0);
        words.splice(0..0, std::iter::repeat_n(first, leading_nulls));
    }
    Some(if ty == ColumnType::Float64 { scale_floats(words) } else { 0 })
}

/// Turns floats (bits) into integers if all of them are, exactly, integers over one power of ten.
fn scale_floats(words: &mut [i64]) -> u8 {
    'exponents: for exponent in 0..=EXPONENT_MAX {
        let power = 10f64.powi(exponent as i32);
        for &mut word in words.iter_mut() {
            let float = f64::from_bits(word as u64);
            let scaled = (float * power).round();
            // (Not in range either: what is not finite.)
            let in_range = scaled.abs() < 9e15;
            if !in_range || (scaled as i64 as f64 / power).to_bits() != float.to_bits() {
                continue 'exponents;
            }
        }
        for word in words.iter_mut() {
            *word = (f64::from_bits(*word as u64) * power).round() as i64;
        }
        return exponent as u8 + 1;
    }
    0
}

fn encode_words(words: &[i64], page: &mut Vec<u8>) -> (u8, u8) {
    let (mut min, mut max) = (words[0], words[0]);
    for &word in words {
        min = min.min(word);
        max = max.max(word);
    }
    page.extend_from_slice(&min.to_le_bytes());
    if min == max {
        return (CONSTANT, 0);
    }
    let width = bits::width_of(max.wrapping_sub(min) as u64);
    if let Some((slope, base, line_width)) = fit_line(words)
        && bits::packed_len(words.len(), line_width) + 8 < bits::packed_len(words.len(), width)
    {
        let at = page.len() - 8;
        page[at..].copy_from_slice(&base.to_le_bytes());
        page.extend_from_slice(&slope.to_le_bytes());
        let residual = |(i, word): (usize, &i64)| word.wrapping_sub(line(base, slope, i)) as u64;
        bits::pack(words.iter().enumerate().map(residual), line_width, page);
        return (LINE, line_width as u8);
    }
    bits::pack(words.iter().map(|word| word.wrapping_sub(min) as u64), width, page);
    (FRAME, width as u8)
}

fn line(base: i64, slope: i64, i: usize) -> i64 {
    base.wrapping_add(((i128::from(slope) * i as i128) >> 32) as i64)
}

/// A line through the first and the last value: slope, base below all residuals, bits a residual.
fn fit_line(words: &[i64]) -> Option<(i64, i64, u32)> {
    let (first, last) = (*words.first()?, *words.last()?);
    let rise = i128::from(last) - i128::from(first);
    if words.len() < 8 || rise == 0 {
        return None;
    }
    let slope = i64::try_from((rise << 32) / (words.len() as i128 - 1)).ok()?;
    let (mut low, mut high) = (i64::MAX, i64::MIN);
    for (i, &word) in words.iter().enumerate() {
        let residual = word.checked_sub(line(0, slope, i))?;
        low = low.min(residual);
        high = high.max(residual);
    }
    Some((slope, low, bits::width_of(high.checked_sub(low)? as u64)))
}

fn encode_bytes(
    array: &ArrayRef,
    ty: ColumnType,
    rows: std::ops::Range<usize>,
    hints: &mut Hints,
    scratch: &mut Scratch,
    page: &mut Vec<u8>,
) -> (u8, u8, u8) {
    let value = |row| match scalar_at(array, ty, row) {
        Scalar::Bytes(bytes) => bytes,
        _ => &[],
    };
    if hints.skip_dictionary > 0 {
        hints.skip_dictionary -= 1;
    } else if let Some(width) = encode_dictionary(rows.clone().map(value), page) {
        return (DICTIONARY, width, 0);
    } else {
        hints.skip_dictionary = 15;
    }
    scratch.heap.clear();
    scratch.ends.clear();
    for row in rows {
        scratch.heap.extend_from_slice(value(row));
        scratch.ends.push(scratch.heap.len() as u64);
    }
    let compressed = if hints.skip_compression > 0 || scratch.heap.len() < 128 {
        hints.skip_compression = hints.skip_compression.saturating_sub(1);
        None
    } else {
        let compressed = lz4_flex::block::compress(&scratch.heap);
        let pays = compressed.len() < scratch.heap.len() / 20 * 17;
        hints.skip_compression = if pays { 0 } else { 15 };
        pays.then_some(compressed)
    };
    let stored = compressed.as_deref().unwrap_or(&scratch.heap);
    page.extend_from_slice(&(scratch.heap.len() as u32).to_le_bytes());
    page.extend_from_slice(&(stored.len() as u32).to_le_bytes());
    let width = bits::width_of(scratch.heap.len() as u64);
    bits::pack(scratch.ends.iter().copied(), width, page);
    page.extend_from_slice(stored);
    (HEAP, width as u8, u8::from(compressed.is_some()))
}

/// Few distinct values: codes into a dictionary. None, and `page` as it was, if that does not pay.
fn encode_dictionary<'v>(values: impl ExactSizeIterator<Item = &'v [u8]>, page: &mut Vec<u8>) -> Option<u8> {
    let rows = values.len();
    let limit = (rows / 2).clamp(1, 4096);
    let mut entries: Vec<&[u8]> = Vec::new();
    let mut known = std::collections::HashMap::with_hasher(xxhash_rust::xxh3::Xxh3DefaultBuilder::new());
    let mut codes = Vec::with_capacity(rows);
    let mut plain_bytes = 0;
    for value in values {
        plain_bytes += value.len();
        let code = *known.entry(value).or_insert_with(|| {
            entries.push(value);
            entries.len() as u64 - 1
        });
        if entries.len() > limit {
            return None;
        }
        codes.push(code);
    }
    let width = bits::width_of(entries.len() as u64 - 1);
    let entry_bytes: usize = entries.iter().map(|entry| entry.len() + 4).sum();
    if entry_bytes + bits::packed_len(rows, width) > plain_bytes + rows && entries.len() > 1 {
        return None;
    }
    page.extend_from_slice(&(entries.len() as u16).to_le_bytes());
    bits::pack(codes.into_iter(), width, page);
    let mut end = 0u32;
    for entry in &entries {
        end += entry.len() as u32;
        page.extend_from_slice(&end.to_le_bytes());
    }
    entries.iter().for_each(|entry| page.extend_from_slice(entry));
    Some(width as u8)
}

// Reading.

/// A column of a page in memory. `bytes` is the whole page with slack behind it; whatever it holds, nothing here reads
/// out of bounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column<'p> {
    pub bytes: &'p [u8],
    pub ty: ColumnType,
    pub rows: usize,
    encoding: u8,
    width: u32,
    extra: u8,
    nulls: Option<usize>,
    /// Where the encoding's own data starts.
    start: usize,
}

/// The decompressed heap of a column, made on first use.
pub(super) type HeapCell = OnceLock<Box<[u8]>>;

impl<'p> Column<'p> {
    /// None if the entry makes no sense.
    pub fn open(bytes: &'p [u8], entry: [u8; ENTRY_LEN], ty: ColumnType, rows: usize) -> Option<Column<'p>> {
        let offset = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]) as usize;
        let has_nulls = entry[1] & HAS_NULLS != 0;
        let start = offset + if has_nulls { rows.div_ceil(8) } else { 0 };
        let nulls = has_nulls.then_some(offset);
        let (encoding, width, extra) = (entry[0], u32::from(entry[2]), entry[3]);
        let column = Column { bytes, ty, rows, encoding, width, extra, nulls, start };
        let bytes_type = matches!(ty, ColumnType::Text | ColumnType::Bytes);
        let sound = match encoding {
            CONSTANT | FRAME | LINE => !bytes_type && width <= 64,
            WIDE => matches!(ty, ColumnType::Decimal { .. }),
            DICTIONARY | HEAP => bytes_type && width <= 32,
            ALL_NULL => true,
            _ => false,
        };
        (sound && column.end()? + bits::SLACK <= bytes.len()).then_some(column)
    }

    /// Where the column's data ends, not counting heaps, which are checked at each access.
    fn end(&self) -> Option<usize> {
        let packed = bits::packed_len(self.rows, self.width.min(64));
        self.start.checked_add(match self.encoding {
            CONSTANT => 8,
            FRAME => 8 + packed,
            LINE => 16 + packed,
            WIDE => 16 * self.rows,
            DICTIONARY => 2 + packed,
            HEAP => 8 + packed,
            _ => 0,
        })
    }

    /// Whether the heap is compressed, so that a cell is needed.
    pub fn is_compressed(&self) -> bool {
        self.encoding == HEAP && self.extra == 1
    }

    /// Integers without nulls: binary search by words is possible.
    pub fn is_plain_words(&self) -> bool {
        matches!(self.encoding, CONSTANT | FRAME | LINE) && self.nulls.is_none() && self.extra == 0
    }

    fn number<const N: usize>(&self, at: usize) -> [u8; N] {
        self.bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    fn is_null(&self, row: usize) -> bool {
        self.encoding == ALL_NULL
            || self.nulls.is_some_and(|at| self.bytes.get(at + row / 8).is_some_and(|byte| byte >> (row % 8) & 1 == 1))
    }

    /// The value of a word column, as stored.
    #[inline]
    pub fn word(&self, row: usize) -> i64 {
        let base = i64::from_le_bytes(self.number(self.start));
        match self.encoding {
            FRAME => base.wrapping_add(bits::get(self.bytes, self.start + 8, self.width, row) as i64),
            LINE => {
                let slope = i64::from_le_bytes(self.number(self.start + 8));
                let residual = bits::get(self.bytes, self.start + 16, self.width, row) as i64;
                line(base, slope, row).wrapping_add(residual)
            }
            _ => base,
        }
    }

    fn unscale(&self, word: i64) -> i64 {
        match self.extra {
            0 => word,
            exponent => (word as f64 / 10f64.powi(i32::from(exponent) - 1)).to_bits() as i64,
        }
    }

    /// Row `row`; `heap` is the column's cell if it [`is_compressed`](Column::is_compressed).
    pub fn scalar<'a>(&'a self, row: usize, heap: Option<&'a HeapCell>) -> Scalar<'a> {
        if self.is_null(row) {
            return Scalar::Null;
        }
        match self.encoding {
            WIDE => Scalar::Wide(i128::from_le_bytes(self.number(self.start + 16 * row))),
            DICTIONARY | HEAP => Scalar::Bytes(self.value(row, heap)),
            _ => {
                let word = self.unscale(self.word(row));
                if matches!(self.ty, ColumnType::Decimal { .. }) {
                    Scalar::Wide(word.into())
                } else {
                    Scalar::Word(word)
                }
            }
        }
    }

    fn value<'a>(&'a self, row: usize, heap: Option<&'a HeapCell>) -> &'a [u8] {
        if self.encoding == DICTIONARY {
            return self.entry(bits::get(self.bytes, self.start + 2, self.width, row) as usize);
        }
        let ends = self.start + 8;
        let start = row.checked_sub(1).map_or(0, |before| bits::get(self.bytes, ends, self.width, before) as usize);
        let end = bits::get(self.bytes, ends, self.width, row) as usize;
        self.heap(heap).get(start..end).unwrap_or_default()
    }

    fn entry(&self, code: usize) -> &'p [u8] {
        let count = usize::from(u16::from_le_bytes(self.number(self.start)));
        let ends = self.start + 2 + bits::packed_len(self.rows, self.width);
        let end_of = |code: usize| u32::from_le_bytes(self.number(ends + 4 * code)) as usize;
        let start = code.checked_sub(1).map_or(0, end_of);
        let entries = ends + 4 * count;
        let bytes: &'p [u8] = self.bytes;
        if code >= count {
            return &[];
        }
        bytes.get(entries + start..entries + end_of(code)).unwrap_or_default()
    }

    fn heap<'a>(&self, cell: Option<&'a HeapCell>) -> &'a [u8]
    where
        'p: 'a,
    {
        let len = u32::from_le_bytes(self.number(self.start)) as usize;
        let stored_len = u32::from_le_bytes(self.number(self.start + 4)) as usize;
        let at = self.start + 8 + bits::packed_len(self.rows, self.width);
        let bytes: &'p [u8] = self.bytes;
        let stored = bytes.get(at..at + stored_len).unwrap_or_default();
        match cell {
            None => stored,
            Some(cell) => cell.get_or_init(|| {
                // LZ4 expands at most 255-fold: a damaged length cannot ask for more.
                let limit = stored.len().saturating_mul(255);
                lz4_flex::block::decompress(stored, len.min(limit)).unwrap_or_default().into()
            }),
        }
    }

    /// Appends rows to a builder of the column's type.
    pub fn append(&self, rows: std::ops::Range<usize>, heap: Option<&HeapCell>, builder: &mut ColumnBuilder) {
        if matches!(self.encoding, CONSTANT | FRAME | LINE) {
            return self.append_words(rows, builder);
        }
        for row in rows {
            self.append_row(row, heap, builder);
        }
    }

    /// Appends one row.
    pub fn append_row(&self, row: usize, heap: Option<&HeapCell>, builder: &mut ColumnBuilder) {
        if builder.append_scalar(self.scalar(row, heap)).is_err() {
            // Only a forged page (its checksum was right) gets here: text that is not UTF-8.
            builder.append_nulls(1);
        }
    }

    fn append_words(&self, rows: std::ops::Range<usize>, builder: &mut ColumnBuilder) {
        let mut packed = [0u64; 256];
        let mut words = [0i64; 256];
        let base = i64::from_le_bytes(self.number(self.start));
        let slope = i64::from_le_bytes(self.number(self.start + 8));
        let mut row = rows.start;
        while row < rows.end {
            let count = (rows.end - row).min(256);
            match self.encoding {
                CONSTANT => words[..count].fill(base),
                FRAME => {
                    bits::unpack(self.bytes, self.start + 8, self.width, row, &mut packed[..count]);
                    for (word, residual) in words.iter_mut().zip(&packed[..count]) {
                        *word = base.wrapping_add(*residual as i64);
                    }
                }
                _ => {
                    bits::unpack(self.bytes, self.start + 16, self.width, row, &mut packed[..count]);
                    for (i, (word, residual)) in words.iter_mut().zip(&packed[..count]).enumerate() {
                        *word = line(base, slope, row + i).wrapping_add(*residual as i64);
                    }
                }
            }
            if self.extra != 0 {
                words[..count].iter_mut().for_each(|word| *word = self.unscale(*word));
            }
            let first = row;
            let valid = |i: usize| !self.is_null(first + i);
            builder.append_words(&words[..count], self.nulls.is_some().then_some(&valid as &dyn Fn(usize) -> bool));
            row += count;
        }
    }
}

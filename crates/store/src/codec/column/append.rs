//! Decoding of columns into Arrow builders.

use std::ops::Range;

use super::{BytesColumn, Column, Data, Ints, Nulls, wide_of};
use crate::codec::builder::{ColumnBuilder, Values};
use crate::codec::scalar::Scalar;
use crate::codec::views::{INLINE_LEN, ViewBuilder};

impl Column {
    /// Appends the rows `rows` to `builder`. `count` is the number of rows of the column.
    ///
    /// # Panics
    /// If the builder cannot hold the column's values.
    ///
    /// # Safety
    /// The column must have been parsed from `bytes`, with `count` rows and as the builder's type. (A builder of text
    /// relies on the UTF-8 check of the parser.)
    pub(crate) unsafe fn append(&self, bytes: &[u8], count: usize, rows: Range<usize>, builder: &mut ColumnBuilder) {
        let appended = rows.len();
        let nulls = match self.nulls {
            Nulls::All => return builder.append_nulls(appended),
            Nulls::None => None,
            Nulls::Bitmap(at) => Some(at as usize),
        };
        self.append_values(bytes, count, rows.clone(), builder);
        match nulls.and_then(|at| bytes.get(at..at + count.div_ceil(8))) {
            Some(bitmap) => builder.appended_with_nulls(rows, bitmap),
            None => builder.appended(appended),
        }
    }

    fn append_values(&self, bytes: &[u8], count: usize, rows: Range<usize>, builder: &mut ColumnBuilder) {
        let ty = builder.column_type();
        match (&self.data, &mut builder.values) {
            (Data::Ints(ints), Values::Boolean(out)) => {
                if let Some(bits) = ints.as_bitmap().and_then(|at| bytes.get(at..)) {
                    return out.append_packed_range(rows, bits);
                }
                ints.blocks(bytes, rows, |block| block.iter().for_each(|&word| out.append(word != 0)));
            }
            (Data::Ints(ints), Values::Int8(out)) => extend(ints, bytes, rows, out, |word| word as i8),
            (Data::Ints(ints), Values::Int16(out)) => extend(ints, bytes, rows, out, |word| word as i16),
            (Data::Ints(ints), Values::Int32(out)) => extend(ints, bytes, rows, out, |word| word as i32),
            (Data::Ints(ints), Values::Int64(out)) => extend(ints, bytes, rows, out, |word| word),
            (Data::Ints(ints), Values::Float32(out)) => {
                extend(ints, bytes, rows, out, |word| f32::from_bits(word as u32));
            }
            (Data::Ints(ints), Values::Float64(out)) => {
                extend(ints, bytes, rows, out, |word| f64::from_bits(word as u64));
            }
            (Data::Ints(ints), Values::Wide(out)) => extend(ints, bytes, rows, out, i128::from),
            (Data::Scaled(scaled), Values::Float32(out)) => {
                extend(&scaled.0, bytes, rows, out, |word| (word as f64 / scaled.1) as f32);
            }
            (Data::Scaled(scaled), Values::Float64(out)) => {
                extend(&scaled.0, bytes, rows, out, |word| word as f64 / scaled.1);
            }
            (Data::Wide(wide), Values::Wide(out)) => {
                let first = out.len();
                extend(&wide.0, bytes, rows.clone(), out, i128::from);
                let mut highs = out[first..].iter_mut();
                wide.1.blocks(bytes, rows, |lows| {
                    for (&low, high) in lows.iter().zip(&mut highs) {
                        *high = wide_of(*high as i64, low);
                    }
                });
            }
            (Data::Bytes(column), Values::Views(out)) => append_views(column, bytes, count, rows, out),
            _ => panic!("builder of {ty:?} for a column of another type"),
        }
    }

    /// As [`append`](Self::append), for the rows `rows` (ascending).
    ///
    /// # Safety
    /// As [`append`](Self::append).
    pub(crate) unsafe fn append_selected(&self, bytes: &[u8], count: usize, rows: &[u32], builder: &mut ColumnBuilder) {
        let (Some(&first), Some(&last)) = (rows.first(), rows.last()) else { return };
        let all = first as usize..last as usize + 1;
        if rows.len() * self.values_per_access() >= all.len() {
            let start = builder.len();
            // SAFETY: the caller guarantees it.
            unsafe { self.append(bytes, count, all, builder) };
            return builder.keep(start, rows.iter().map(|&row| (row - first) as usize));
        }
        let ty = builder.column_type();
        if self.nulls == Nulls::None {
            let rows = rows.iter().map(|&row| row as usize);
            let done = match (&self.data, &mut builder.values) {
                (Data::Ints(ints), Values::Int32(out)) => {
                    out.extend(rows.clone().map(|row| ints.get(bytes, row) as i32));
                    true
                }
                (Data::Ints(ints), Values::Int64(out)) => {
                    out.extend(rows.clone().map(|row| ints.get(bytes, row)));
                    true
                }
                (Data::Ints(ints), Values::Wide(out)) => {
                    out.extend(rows.clone().map(|row| i128::from(ints.get(bytes, row))));
                    true
                }
                (Data::Bytes(column), Values::Views(out)) => {
                    let prefix = column.prefix(bytes);
                    for row in rows.clone() {
                        out.push(prefix, column.suffix(bytes, row, count));
                    }
                    true
                }
                _ => false,
            };
            if done {
                return builder.appended(rows.len());
            }
        }
        for &row in rows {
            let value: Scalar<'_> = self.scalar(bytes, ty, row as usize, count);
            // SAFETY: a column parsed as text returns only valid UTF-8 (see `BytesColumn`), and the caller guarantees
            // that the builder has the type that the column was parsed as.
            unsafe { builder.push(value) };
        }
    }

    /// Number of values that are decoded in a block in about the time of one access by row.
    fn values_per_access(&self) -> usize {
        match &self.data {
            // Copies the bytes of the other values, too.
            Data::Bytes(column) if column.codes().is_none() => 2,
            Data::Ints(_) if self.nulls == Nulls::None => 4,
            _ => 8,
        }
    }
}

fn extend<T>(ints: &Ints, bytes: &[u8], rows: Range<usize>, out: &mut Vec<T>, convert: impl Fn(i64) -> T) {
    out.reserve(rows.len());
    ints.blocks(bytes, rows, |block| out.extend(block.iter().map(|&word| convert(word))));
}

fn append_views(column: &BytesColumn, bytes: &[u8], count: usize, rows: Range<usize>, out: &mut ViewBuilder) {
    out.reserve(rows.len());
    let prefix = column.prefix(bytes);
    let Some(codes) = column.codes() else {
        return append_plain(column, bytes, count, rows, out);
    };
    let entries = codes.entries as usize;
    let heap = column.heap(bytes, entries);
    if rows.len() < entries {
        // Fewer rows than entries: stores only the entries of these rows.
        for row in rows {
            let (start, end) = column.entry_range(bytes, heap, codes.get(bytes, row));
            out.push(prefix, &heap[start..end]);
        }
        return;
    }
    let mut views = Vec::with_capacity(entries);
    column.for_ends(bytes, heap, 0..entries, |start, end| views.push(out.store(prefix, &heap[start..end])));
    let mut block = [0; 128];
    let mut first = rows.start;
    while first < rows.end {
        let block = &mut block[..(rows.end - first).min(128)];
        codes.unpack(bytes, first, block);
        out.extend_views(block.iter().map(|&code| views[codes.clamp(code)]));
        first += block.len();
    }
}

/// Appends rows of a column without a dictionary.
fn append_plain(column: &BytesColumn, bytes: &[u8], count: usize, rows: Range<usize>, out: &mut ViewBuilder) {
    let prefix = column.prefix(bytes);
    let heap = column.heap(bytes, count);
    let (Some(last), appended) = (rows.clone().last(), rows.len()) else { return };
    let first = column.entry_range(bytes, heap, rows.start).0;
    let stop = column.entry_range(bytes, heap, last).1.max(first);
    if prefix.is_empty() && stop - first > appended * INLINE_LEN {
        // The values are on average too long for views: copies all of them at once.
        let place = out.store_data(&heap[first..stop]);
        let len = stop - first;
        column.for_ends(bytes, heap, rows, |start, end| {
            let (start, end) = (start.saturating_sub(first).min(len), end.saturating_sub(first).min(len));
            out.push_stored(place, start, end);
        });
    } else {
        column.for_ends(bytes, heap, rows, |start, end| out.push(prefix, &heap[start..end]));
    }
}

//! Messages of many rows, encoded column by column.
//!
//! The lengths of the values of all rows are added up first. Each column then writes its values at the positions of the
//! rows, so that its type and its NULLs are looked at once for all of them, and no buffer grows.

use std::ops::Range;

use arrow::array::GenericByteViewArray;
use arrow::buffer::NullBuffer;
use arrow::datatypes::ByteViewType;

use super::columns::{Column, Values};
use super::{EPOCH_DAYS, EPOCH_MICROS};
use crate::failure::Failure;

/// Bytes of a message before its values: the type, the length of the rest, and the number of values.
const HEADER: usize = 7;
/// Bytes of the length of a value, and that of NULL.
const LENGTH: usize = 4;
const NULL: [u8; LENGTH] = (-1_i32).to_be_bytes();
/// Maximum number of rows that are encoded together.
const ROWS_MAX: usize = 1024;
/// Fewer rows are encoded one after another.
pub const ROWS_MIN: usize = 16;

/// Buffers for the messages of some rows.
#[derive(Debug, Default)]
pub struct Messages {
    /// The length of each message, then the position of its next value.
    places: Vec<usize>,
    /// The values of columns whose lengths are known when they are encoded, in the order of the columns.
    short: Vec<ShortValues>,
    /// Mean length of the last messages; 0 before the first ones.
    mean: usize,
}

/// Encoded values of a column with their lengths.
#[derive(Debug, Default)]
struct ShortValues {
    bytes: Vec<u8>,
    /// The end of each value.
    ends: Vec<usize>,
}

impl Messages {
    /// Appends the messages of the first of `rows`, of at least one: no more than fit into about `bytes`. Returns their number.
    ///
    /// # Errors
    /// As [`Failure::message_len`].
    pub fn put(
        &mut self,
        columns: &[Column],
        rows: Range<usize>,
        bytes: usize,
        out: &mut Vec<u8>,
    ) -> Result<usize, Failure> {
        let expected = bytes.checked_div(self.mean).map_or(ROWS_MIN, |rows| rows.clamp(1, ROWS_MAX));
        let rows = rows.start..rows.end.min(rows.start + expected);
        self.places.clear();
        self.places.resize(rows.len(), HEADER);
        self.short.resize_with(columns.len(), ShortValues::default);
        for (column, short) in columns.iter().zip(&mut self.short) {
            column.add_lengths(rows.clone(), &mut self.places, short);
        }
        // The others fit into `bytes`.
        Failure::message_len(self.places[0])?;
        let start = out.len();
        let (mut end, mut count) = (start, 0);
        while count < rows.len() && (count == 0 || end - start + self.places[count] <= bytes) {
            end += self.places[count];
            count += 1;
        }
        self.mean = ((end - start) / count).max(1);
        self.places.truncate(count);
        let rows = rows.start..rows.start + count;
        out.resize(end, 0);
        let mut message = start;
        for place in &mut self.places {
            let len = *place;
            let header = &mut out[message..message + HEADER];
            header[0] = b'D';
            // The length counts itself, but not the type.
            header[1..1 + LENGTH].copy_from_slice(&(len as i32 - 1).to_be_bytes());
            header[1 + LENGTH..].copy_from_slice(&(columns.len() as u16).to_be_bytes());
            *place = message + HEADER;
            message += len;
        }
        for (column, short) in columns.iter().zip(&self.short) {
            column.write(rows.clone(), short, &mut Output { bytes: out, places: &mut self.places });
        }
        assert!(self.places.last() == Some(&end), "the values of a row have other lengths than were added up");
        Ok(count)
    }
}

/// Messages with places for the next values of some rows.
struct Output<'a> {
    bytes: &'a mut [u8],
    places: &'a mut [usize],
}

impl Output<'_> {
    /// Writes a value of `N` bytes for each row.
    #[inline]
    fn fixed<const N: usize>(
        &mut self,
        rows: Range<usize>,
        nulls: Option<&NullBuffer>,
        value: impl Fn(usize) -> [u8; N],
    ) {
        for (place, row) in self.places.iter_mut().zip(rows) {
            if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                put(self.bytes, place, &NULL);
                continue;
            }
            let sized = &mut self.bytes[*place..*place + LENGTH + N];
            sized[..LENGTH].copy_from_slice(&(N as i32).to_be_bytes());
            sized[LENGTH..].copy_from_slice(&value(row));
            *place += LENGTH + N;
        }
    }

    /// Writes bytes behind a prefix for each row.
    #[inline]
    fn slices<'v>(
        &mut self,
        rows: Range<usize>,
        nulls: Option<&NullBuffer>,
        prefix: &[u8],
        value: impl Fn(usize) -> &'v [u8],
    ) {
        for (place, row) in self.places.iter_mut().zip(rows) {
            if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                put(self.bytes, place, &NULL);
                continue;
            }
            let value = value(row);
            let len = prefix.len() + value.len();
            let sized = &mut self.bytes[*place..*place + LENGTH + len];
            sized[..LENGTH].copy_from_slice(&(len as i32).to_be_bytes());
            sized[LENGTH..LENGTH + prefix.len()].copy_from_slice(prefix);
            sized[LENGTH + prefix.len()..].copy_from_slice(value);
            *place += LENGTH + len;
        }
    }
}

/// Writes `value` to `place`, and moves it.
#[inline]
fn put(bytes: &mut [u8], place: &mut usize, value: &[u8]) {
    bytes[*place..*place + value.len()].copy_from_slice(value);
    *place += value.len();
}

impl Column {
    /// True if rows with the column can be encoded together: the lengths of its values are known, or its values are short.
    pub fn has_lengths(&self) -> bool {
        !matches!(self.values, Values::Arrays(_) | Values::LongNumeric(..))
    }

    /// Adds the lengths of the values of `rows` to `lens`.
    fn add_lengths(&self, rows: Range<usize>, lens: &mut [usize], short: &mut ShortValues) {
        let nulls = self.nulls.as_ref();
        match &self.values {
            Values::Null => lens.iter_mut().for_each(|len| *len += LENGTH),
            Values::BooleanTexts(_) | Values::Booleans(_) => add_fixed(1, rows, nulls, lens),
            Values::Int2(_) => add_fixed(2, rows, nulls, lens),
            Values::Int4(_) | Values::Float4(_) | Values::Dates(_) => add_fixed(4, rows, nulls, lens),
            Values::Int8(_) | Values::Float8(_) | Values::Times(_) | Values::Timestamps(_) => {
                add_fixed(8, rows, nulls, lens);
            }
            Values::Uuids(_) | Values::Intervals(_) => add_fixed(16, rows, nulls, lens),
            Values::Texts(texts) => add_views(0, texts, rows, nulls, lens),
            Values::Jsonb(documents) => add_views(1, documents, rows, nulls, lens),
            Values::Bytes(values) => add_views(0, values, rows, nulls, lens),
            Values::IntegerTexts(_)
            | Values::Unsigned(_)
            | Values::Numeric(..)
            | Values::LongNumeric(..)
            | Values::Arrays(_) => {
                short.bytes.clear();
                short.ends.clear();
                for (row, len) in rows.zip(lens) {
                    let start = short.bytes.len();
                    self.put(row, &mut short.bytes);
                    short.ends.push(short.bytes.len());
                    *len += short.bytes.len() - start;
                }
            }
        }
    }

    /// Writes the values of `rows`.
    fn write(&self, rows: Range<usize>, short: &ShortValues, out: &mut Output<'_>) {
        let nulls = self.nulls.as_ref();
        match &self.values {
            Values::Null => out.places.iter_mut().for_each(|place| put(out.bytes, place, &NULL)),
            Values::BooleanTexts(values) => out.fixed(rows, nulls, |row| [if values.value(row) { b't' } else { b'f' }]),
            Values::Booleans(values) => out.fixed(rows, nulls, |row| [u8::from(values.value(row))]),
            Values::Int2(values) => out.fixed(rows, nulls, |row| values.value(row).to_be_bytes()),
            Values::Int4(values) => out.fixed(rows, nulls, |row| values.value(row).to_be_bytes()),
            Values::Int8(values) => out.fixed(rows, nulls, |row| values.value(row).to_be_bytes()),
            Values::Float4(values) => out.fixed(rows, nulls, |row| values.value(row).to_be_bytes()),
            Values::Float8(values) => out.fixed(rows, nulls, |row| values.value(row).to_be_bytes()),
            Values::Dates(values) => {
                out.fixed(rows, nulls, |row| values.value(row).saturating_sub(EPOCH_DAYS).to_be_bytes());
            }
            Values::Times(values) => out.fixed(rows, nulls, |row| values.value(row).to_be_bytes()),
            Values::Timestamps(values) => {
                out.fixed(rows, nulls, |row| values.value(row).saturating_sub(EPOCH_MICROS).to_be_bytes());
            }
            Values::Intervals(values) => out.fixed(rows, nulls, |row| super::columns::interval(values.value(row))),
            Values::Uuids(values) => out.slices(rows, nulls, &[], |row| values.value(row)),
            Values::Texts(texts) => out.slices(rows, nulls, &[], |row| texts.value(row).as_bytes()),
            Values::Jsonb(documents) => {
                out.slices(rows, nulls, &[super::JSONB_VERSION], |row| documents.value(row).as_bytes());
            }
            Values::Bytes(values) => out.slices(rows, nulls, &[], |row| values.value(row)),
            Values::IntegerTexts(_)
            | Values::Unsigned(_)
            | Values::Numeric(..)
            | Values::LongNumeric(..)
            | Values::Arrays(_) => {
                let mut start = 0;
                for (place, end) in out.places.iter_mut().zip(&short.ends) {
                    put(out.bytes, place, &short.bytes[start..*end]);
                    start = *end;
                }
            }
        }
    }
}

/// Adds the lengths of values of `width` bytes.
fn add_fixed(width: usize, rows: Range<usize>, nulls: Option<&NullBuffer>, lens: &mut [usize]) {
    match nulls {
        None => lens.iter_mut().for_each(|len| *len += LENGTH + width),
        Some(nulls) => {
            let width = |row| if nulls.is_null(row) { 0 } else { width };
            lens.iter_mut().zip(rows).for_each(|(len, row)| *len += LENGTH + width(row));
        }
    }
}

/// Adds the lengths of strings behind a prefix.
fn add_views<T: ByteViewType>(
    prefix: usize,
    array: &GenericByteViewArray<T>,
    rows: Range<usize>,
    nulls: Option<&NullBuffer>,
    lens: &mut [usize],
) {
    // The first four bytes of a view are the length.
    let len = |row: usize| prefix + array.views()[row] as u32 as usize;
    match nulls {
        None => lens.iter_mut().zip(rows).for_each(|(sum, row)| *sum += LENGTH + len(row)),
        Some(nulls) => lens.iter_mut().zip(rows).for_each(|(sum, row)| {
            *sum += LENGTH + if nulls.is_null(row) { 0 } else { len(row) };
        }),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        BinaryViewArray, BooleanArray, Date32Array, Decimal128Array, FixedSizeBinaryArray, Float32Array, Float64Array,
        Int16Array, Int32Array, Int64Array, IntervalMonthDayNanoArray, StringViewArray, Time64MicrosecondArray,
        TimestampMicrosecondArray, UInt64Array,
    };
    use arrow::datatypes::IntervalMonthDayNano;
    use bytes::BufMut;
    use keyaki_primitives::Random;

    use super::*;

    /// A column of each kind of values, every third of which is NULL if it `has_nulls`.
    fn columns(rows: usize, has_nulls: bool, random: &mut Random) -> Vec<Column> {
        let numbers: Vec<i64> =
            (0..rows).map(|_| random.next_u64() as i64 >> random.below(64)).map(|n| n % 1_000_000_000_000).collect();
        let texts: Vec<String> = numbers.iter().map(|n| "x".repeat(n.unsigned_abs() as usize % 40)).collect();
        let nulls = has_nulls.then(|| NullBuffer::from_iter((0..rows).map(|row| row % 3 != 0)));
        let ints = |width: u32| numbers.iter().map(move |n| n >> (64 - width));
        let values = vec![
            Values::Null,
            Values::Texts(StringViewArray::from_iter_values(&texts)),
            Values::Jsonb(StringViewArray::from_iter_values(&texts)),
            Values::Bytes(BinaryViewArray::from_iter_values(&texts)),
            Values::BooleanTexts(numbers.iter().map(|n| Some(n % 2 == 0)).collect::<BooleanArray>()),
            Values::Booleans(numbers.iter().map(|n| Some(n % 2 == 0)).collect::<BooleanArray>()),
            Values::IntegerTexts(Int64Array::from(numbers.clone())),
            Values::Int2(Int16Array::from_iter_values(ints(16).map(|n| n as i16))),
            Values::Int4(Int32Array::from_iter_values(ints(32).map(|n| n as i32))),
            Values::Int8(Int64Array::from(numbers.clone())),
            Values::Float4(Float32Array::from_iter_values(numbers.iter().map(|n| *n as f32))),
            Values::Float8(Float64Array::from_iter_values(numbers.iter().map(|n| *n as f64))),
            Values::Uuids(FixedSizeBinaryArray::try_from_iter(numbers.iter().map(|_| [7_u8; 16])).unwrap()),
            Values::Dates(Date32Array::from_iter_values(ints(32).map(|n| n as i32))),
            Values::Times(Time64MicrosecondArray::from(numbers.clone())),
            Values::Timestamps(TimestampMicrosecondArray::from(numbers.clone())),
            Values::Intervals(IntervalMonthDayNanoArray::from_iter_values(
                numbers.iter().map(|n| IntervalMonthDayNano::new(*n as i32, 3, 7000 * *n)),
            )),
            Values::Unsigned(UInt64Array::from_iter_values(numbers.iter().map(|n| n.unsigned_abs()))),
            Values::Numeric(Decimal128Array::from_iter_values(numbers.iter().map(|n| i128::from(*n))), 2),
        ];
        values.into_iter().map(|values| Column { nulls: nulls.clone(), values }).collect()
    }

    #[test]
    fn messages_are_those_of_single_rows() {
        let mut random = Random::new(1);
        for (rows, bytes, has_nulls) in [(1, 1, false), (500, 1 << 20, true), (3000, 10_000, false), (100, 1, true)] {
            let columns = columns(rows, has_nulls, &mut random);
            assert!(columns.iter().all(Column::has_lengths));
            let mut expected = vec![b'x'];
            for row in 0..rows {
                let mut body = Vec::new();
                body.put_u16(columns.len() as u16);
                columns.iter().for_each(|column| column.put(row, &mut body));
                expected.put_u8(b'D');
                expected.put_u32(4 + body.len() as u32);
                expected.put_slice(&body);
            }
            let (mut messages, mut found, mut next) = (Messages::default(), vec![b'x'], 0);
            while next < rows {
                let before = found.len();
                let count = messages.put(&columns, next..rows, bytes, &mut found).unwrap();
                assert!(count == 1 || count > 1 && found.len() - before <= bytes);
                next += count;
            }
            assert_eq!(next, rows);
            assert!(found == expected, "{rows} rows in pieces of {bytes} bytes");
        }
    }
}

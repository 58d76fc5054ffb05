//! Columns of a page: their layout, access by row, and decoding into Arrow builders.
//!
//! A column begins with a byte for its nulls: 0 means that there are none, 1 that a bitmap of valid rows follows (bit
//! set: valid), 2 that all rows are null and nothing follows. The rest depends on the type of the column:
//!
//! | type | bytes |
//! |---|---|
//! | boolean, integers, date, time, timestamp | integers ([`ints`]) |
//! | float | exponent (1 byte), integers: the values times 10^exponent ([`floats`]), or their bits if the exponent is 255 |
//! | decimal, UUID | 0, integers: the values; or 1, integers: the high, integers: the low 64 bits |
//! | text, bytes, list | [`bytes`] |
//!
//! The value of a UUID is a signed 128-bit number in the order of the bytes. Null rows have a value too, which is ignored.

mod append;
mod bytes;
mod encode;
mod floats;
mod ints;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

pub(crate) use bytes::{BytesColumn, BytesEncoder, BytesOptions};
pub(crate) use encode::ColumnEncoder;
pub(crate) use ints::{Ints, IntsEncoder, equal_range, partition_point};

use super::dictionary::DictionaryPlace;
use super::scalar::Scalar;
use super::varint::Reader;
use crate::base::ColumnType;

const NULLS_NONE: u8 = 0;
const NULLS_BITMAP: u8 = 1;
const NULLS_ALL: u8 = 2;
/// Exponent that marks floats stored as bits.
const FLOAT_BITS: u8 = 255;
const NARROW: u8 = 0;
const WIDE: u8 = 1;

/// The offsets of the parts of a column in its page. Methods also take the bytes of the page.
#[derive(Debug)]
pub(crate) struct Column {
    nulls: Nulls,
    data: Data,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nulls {
    None,
    /// Offset of the bitmap.
    Bitmap(u32),
    All,
}

#[derive(Debug)]
enum Data {
    Ints(Ints),
    /// Floats stored as integers, and the power of ten by which they were multiplied.
    Scaled(Box<(Ints, f64)>),
    /// Values that exceed 64 bits: high and low halves.
    Wide(Box<(Ints, Ints)>),
    Bytes(Box<BytesColumn>),
}

impl Column {
    /// Parses and checks the layout of a column of `count` values; `None` if it is invalid.
    pub(crate) fn parse(
        reader: &mut Reader<'_>,
        ty: ColumnType,
        nullable: bool,
        count: usize,
        dictionary: DictionaryPlace<'_>,
    ) -> Option<Column> {
        let nulls = match reader.u8()? {
            NULLS_NONE => Nulls::None,
            NULLS_BITMAP if nullable => Nulls::Bitmap(reader.skip(count.div_ceil(8))? as u32),
            NULLS_ALL if nullable => return Some(Column { nulls: Nulls::All, data: Data::Ints(Ints::ZERO) }),
            _ => return None,
        };
        let data = match ty {
            ColumnType::Text | ColumnType::Bytes | ColumnType::List(_) => {
                Data::Bytes(Box::new(BytesColumn::parse(reader, count, ty, Some(dictionary))?))
            }
            ColumnType::Float32 | ColumnType::Float64 => {
                let exponent = reader.u8()?;
                let ints = Ints::parse(reader, count)?;
                match exponent {
                    FLOAT_BITS => Data::Ints(ints),
                    0..floats::EXPONENTS => Data::Scaled(Box::new((ints, floats::power(exponent)))),
                    _ => return None,
                }
            }
            ty if ty.is_wide() => match reader.u8()? {
                NARROW => Data::Ints(Ints::parse(reader, count)?),
                WIDE => Data::Wide(Box::new((Ints::parse(reader, count)?, Ints::parse(reader, count)?))),
                _ => return None,
            },
            _ => Data::Ints(Ints::parse(reader, count)?),
        };
        Some(Column { nulls, data })
    }

    /// Bytes of memory that the column takes beside the page, without a decompressed heap.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Column>()
            + match &self.data {
                Data::Ints(_) => 0,
                Data::Scaled(scaled) => size_of_val(&**scaled),
                Data::Wide(wide) => size_of_val(&**wide),
                Data::Bytes(bytes) => bytes.memory_bytes(),
            }
    }

    /// Counts the bytes of the decompressed heap in `counter`, as long as it exists.
    pub(crate) fn count_heap(&mut self, counter: &Arc<AtomicUsize>) {
        if let Data::Bytes(bytes) = &mut self.data {
            bytes.count_heap(counter);
        }
    }

    /// The decompressed heap, empty if there is none.
    pub(crate) fn plain(&self) -> &[u8] {
        self.bytes().map_or(&[], BytesColumn::plain)
    }

    /// Decompresses the column unless it is stored uncompressed or was decompressed before. Returns false if it is
    /// damaged. `rows` is the number of rows of the page.
    pub(crate) fn decompress(&self, bytes: &[u8], rows: usize) -> bool {
        self.bytes().is_none_or(|column| column.decompress(bytes, rows))
    }

    #[inline]
    pub(crate) fn is_null(&self, bytes: &[u8], row: usize) -> bool {
        match self.nulls {
            Nulls::None => false,
            Nulls::All => true,
            Nulls::Bitmap(at) => bytes.get(at as usize + row / 8).is_none_or(|byte| byte >> (row % 8) & 1 == 0),
        }
    }

    /// The value of `row`. `rows` is the number of rows of the page, `ty` the type that the column was parsed as.
    pub(crate) fn scalar<'a>(&'a self, bytes: &'a [u8], ty: ColumnType, row: usize, rows: usize) -> Scalar<'a> {
        if self.is_null(bytes, row) {
            return Scalar::Null;
        }
        match &self.data {
            Data::Bytes(column) => Scalar::Bytes(column.prefix(bytes), column.suffix(bytes, row, rows)),
            _ if ty.is_wide() => Scalar::Wide(self.wide(bytes, row)),
            // Damaged pages may contain other words than 0 and 1.
            _ if ty == ColumnType::Boolean => Scalar::Word((self.word(bytes, ty, row) != 0).into()),
            _ => Scalar::Word(self.word(bytes, ty, row)),
        }
    }

    /// The value of `row` of a column whose values are words.
    fn word(&self, bytes: &[u8], ty: ColumnType, row: usize) -> i64 {
        match &self.data {
            Data::Ints(ints) => ints.get(bytes, row),
            Data::Scaled(scaled) => {
                floats::bits_of_scaled(scaled.0.get(bytes, row), scaled.1, ty == ColumnType::Float32)
            }
            Data::Wide(_) | Data::Bytes(_) => 0,
        }
    }

    /// The value of `row` of a column of decimals or UUIDs.
    fn wide(&self, bytes: &[u8], row: usize) -> i128 {
        match &self.data {
            Data::Ints(ints) => ints.get(bytes, row).into(),
            Data::Wide(wide) => wide_of(wide.0.get(bytes, row), wide.1.get(bytes, row)),
            Data::Scaled(_) | Data::Bytes(_) => 0,
        }
    }

    /// The column if it is of text or bytes. `None` for other types, and if all rows are null.
    pub(crate) fn bytes(&self) -> Option<&BytesColumn> {
        match &self.data {
            Data::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The part of `rows` whose words are neither below nor above the target; see [`equal_range`].
    #[inline]
    pub(crate) fn equal_words(
        &self,
        bytes: &[u8],
        ty: ColumnType,
        rows: Range<usize>,
        below: impl Fn(i64) -> bool,
        above: impl Fn(i64) -> bool,
    ) -> Range<usize> {
        match &self.data {
            Data::Ints(ints) => ints.equal_range(bytes, rows, below, above),
            _ => equal_range(rows, |row| self.word(bytes, ty, row), below, above),
        }
    }

    /// The part of `rows` whose 128-bit values are neither below nor above the target; see [`equal_range`].
    pub(crate) fn equal_wide(
        &self,
        bytes: &[u8],
        rows: Range<usize>,
        below: impl Fn(i128) -> bool,
        above: impl Fn(i128) -> bool,
    ) -> Range<usize> {
        equal_range(rows, |row| self.wide(bytes, row), below, above)
    }
}

fn wide_of(high: i64, low: i64) -> i128 {
    i128::from(high) << 64 | i128::from(low as u64)
}

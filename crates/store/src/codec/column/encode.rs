//! Encoding of Arrow arrays as columns of pages.
//!
//! Encoding takes two steps. [`ColumnEncoder::plan`] chooses an encoding and computes its exact length, so that the
//! page writer can find the number of rows that fill a page. [`ColumnEncoder::write`] writes the last plan.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ByteViewType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNanoType, Time64MicrosecondType, TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, BinaryViewArray, GenericByteViewArray};
use arrow_buffer::NullBuffer;

use super::bytes::{BytesEncoder, BytesOptions};
use super::ints::IntsEncoder;
use super::{FLOAT_BITS, NARROW, NULLS_ALL, NULLS_BITMAP, NULLS_NONE, WIDE, floats};
use crate::base::{ColumnType, Compression, ListType, uuids, wide_of_interval, wide_of_uuid};
use crate::codec::dictionary::Dictionary;
use crate::codec::lists;

/// Encodes one column of successive pages. Buffers and properties of the values, such as the exponent of floats, carry
/// over from page to page.
#[derive(Debug)]
pub(crate) struct ColumnEncoder {
    ty: ColumnType,
    /// Of heaps. None for key columns, because a search would have to decompress them.
    compression: Compression,
    /// For the compression with Zstandard.
    dictionary: Option<Arc<Dictionary>>,
    nulls: Nulls,
    /// The integers; high halves of wide values.
    ints: IntsEncoder,
    /// Low halves of wide values.
    low: IntsEncoder,
    bytes: BytesEncoder,
    /// The exponent of floats, also the hint for the next page.
    exponent: u8,
    wide: bool,
    scratch: Vec<i64>,
    /// The last array of lists, and its encoding.
    lists: Option<(ArrayRef, BinaryViewArray)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Nulls {
    None,
    Bitmap(Vec<u8>),
    All,
}

impl ColumnEncoder {
    pub(crate) fn new(ty: ColumnType, compression: Compression) -> Self {
        ColumnEncoder {
            ty,
            compression,
            dictionary: None,
            nulls: Nulls::None,
            ints: IntsEncoder::default(),
            low: IntsEncoder::default(),
            bytes: BytesEncoder::default(),
            exponent: 0,
            wide: false,
            scratch: Vec::new(),
            lists: None,
        }
    }

    /// Uses a dictionary from now on.
    pub(crate) fn set_dictionary(&mut self, dictionary: Arc<Dictionary>) {
        self.dictionary = Some(dictionary);
    }

    /// Chooses the encoding of the rows `rows` of `array` and returns its length in bytes. The array must have the
    /// Arrow type of the column.
    pub(crate) fn plan(&mut self, array: &ArrayRef, rows: Range<usize>) -> usize {
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
        self.nulls = nulls.map_or(Nulls::None, |nulls| bitmap(nulls, &rows));
        let nulls_len = match &self.nulls {
            Nulls::All => return 1,
            Nulls::None => 1,
            Nulls::Bitmap(bitmap) => 1 + bitmap.len(),
        };
        nulls_len
            + match self.ty {
                ColumnType::Text => self.plan_bytes(array.as_string_view(), rows),
                ColumnType::Bytes => self.plan_bytes(array.as_binary_view(), rows),
                ColumnType::List(ty) => self.plan_lists(array, ty, rows),
                ColumnType::Decimal { .. } => {
                    self.plan_wide(array.as_primitive::<Decimal128Type>().values()[rows].iter().copied())
                }
                ColumnType::Uuid => self.plan_wide(uuids(array)[rows].iter().map(wide_of_uuid)),
                ColumnType::Interval => {
                    let intervals = array.as_primitive::<IntervalMonthDayNanoType>().values();
                    self.plan_wide(intervals[rows].iter().map(wide_of_interval))
                }
                ColumnType::Float32 => {
                    self.load::<Float32Type>(array, rows, |value| (value.to_bits() as i32).into());
                    self.plan_floats(true)
                }
                ColumnType::Float64 => {
                    self.load::<Float64Type>(array, rows, |value| value.to_bits() as i64);
                    self.plan_floats(false)
                }
                _ => {
                    self.load_words(array, rows);
                    self.ints.plan()
                }
            }
    }

    fn load_words(&mut self, array: &ArrayRef, rows: Range<usize>) {
        match self.ty {
            ColumnType::Boolean => {
                let bits = array.as_boolean().values().slice(rows.start, rows.len());
                self.ints.values.clear();
                self.ints.values.extend(bits.iter().map(i64::from));
                self.fill_nulls();
            }
            ColumnType::Int8 => self.load::<Int8Type>(array, rows, i64::from),
            ColumnType::Int16 => self.load::<Int16Type>(array, rows, i64::from),
            ColumnType::Int32 => self.load::<Int32Type>(array, rows, i64::from),
            ColumnType::Date => self.load::<Date32Type>(array, rows, i64::from),
            ColumnType::Timestamp { .. } => self.load::<TimestampMicrosecondType>(array, rows, |value| value),
            ColumnType::Time => self.load::<Time64MicrosecondType>(array, rows, |value| value),
            _ => self.load::<Int64Type>(array, rows, |value| value),
        }
    }

    fn load<T: ArrowPrimitiveType>(&mut self, array: &ArrayRef, rows: Range<usize>, word: impl Fn(T::Native) -> i64) {
        self.ints.values.clear();
        self.ints.values.extend(array.as_primitive::<T>().values()[rows].iter().map(|&value| word(value)));
        self.fill_nulls();
    }

    /// Sets null rows to the value before them, so that they do not widen the encoding.
    fn fill_nulls(&mut self) {
        if let Nulls::Bitmap(bitmap) = &self.nulls {
            fill_nulls(bitmap, &mut self.ints.values);
        }
    }

    fn plan_floats(&mut self, single: bool) -> usize {
        let exponent = floats::scale(&mut self.ints.values, single, self.exponent, &mut self.scratch);
        self.exponent = exponent.unwrap_or(FLOAT_BITS);
        1 + self.ints.plan()
    }

    fn plan_wide(&mut self, values: impl ExactSizeIterator<Item = i128> + Clone) -> usize {
        self.ints.values.clear();
        self.ints.values.extend(values.clone().map(|value| value as i64));
        let bitmap = match &self.nulls {
            Nulls::Bitmap(bitmap) => &bitmap[..],
            _ => &[],
        };
        let is_null = |i: usize| bitmap.get(i / 8).is_some_and(|byte| byte >> (i % 8) & 1 == 0);
        let narrow = |(i, value): (usize, i128)| value == i128::from(value as i64) || is_null(i);
        self.wide = !values.clone().enumerate().all(narrow);
        if !self.wide {
            self.fill_nulls();
            return 1 + self.ints.plan();
        }
        std::mem::swap(&mut self.ints.values, &mut self.low.values);
        self.ints.values.clear();
        self.ints.values.extend(values.map(|value| (value >> 64) as i64));
        fill_nulls(bitmap, &mut self.low.values);
        fill_nulls(bitmap, &mut self.ints.values);
        1 + self.ints.plan() + self.low.plan()
    }

    /// Plans are made for several ranges of an array, one after another.
    fn plan_lists(&mut self, array: &ArrayRef, ty: ListType, rows: Range<usize>) -> usize {
        let encoded = match self.lists.take() {
            Some((known, encoded)) if Arc::ptr_eq(&known, array) => encoded,
            _ => lists::encode(array.as_list(), ty),
        };
        let len = self.plan_bytes(&encoded, rows);
        self.lists = Some((array.clone(), encoded));
        len
    }

    fn plan_bytes<T: ByteViewType>(&mut self, array: &GenericByteViewArray<T>, rows: Range<usize>) -> usize {
        let options = BytesOptions { text: T::IS_UTF8, compression: self.compression, share: !self.ty.is_list() };
        let nulls = array.nulls().filter(|_| self.nulls != Nulls::None);
        let value = |i: usize| {
            let row = rows.start + i;
            let valid = nulls.is_none_or(|nulls| nulls.is_valid(row));
            valid.then(|| AsRef::<[u8]>::as_ref(array.value(row)))
        };
        self.bytes.plan(rows.len(), options, self.dictionary.as_ref(), value)
    }

    /// Appends the planned encoding.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match &self.nulls {
            Nulls::All => return out.push(NULLS_ALL),
            Nulls::None => out.push(NULLS_NONE),
            Nulls::Bitmap(bitmap) => {
                out.push(NULLS_BITMAP);
                out.extend_from_slice(bitmap);
            }
        }
        match self.ty {
            ColumnType::Text | ColumnType::Bytes | ColumnType::List(_) => return self.bytes.write(out),
            ColumnType::Float32 | ColumnType::Float64 => out.push(self.exponent),
            ty if ty.is_wide() => out.push(if self.wide { WIDE } else { NARROW }),
            _ => (),
        }
        self.ints.write(out);
        if self.wide {
            self.low.write(out);
        }
    }
}

/// The validity bits of `rows`, starting with bit 0.
fn bitmap(nulls: &NullBuffer, rows: &Range<usize>) -> Nulls {
    let valid = nulls.inner().slice(rows.start, rows.len());
    match valid.count_set_bits() {
        0 => Nulls::All,
        count if count == rows.len() => Nulls::None,
        _ => {
            let mut bitmap = vec![0; rows.len().div_ceil(8)];
            for i in valid.set_indices() {
                bitmap[i / 8] |= 1 << (i % 8);
            }
            Nulls::Bitmap(bitmap)
        }
    }
}

/// Sets the rows that are null in `bitmap` to the valid value before them, or to the first valid value if there is none
/// before.
fn fill_nulls(bitmap: &[u8], values: &mut [i64]) {
    let is_valid = |i: usize| bitmap.get(i / 8).is_none_or(|byte| byte >> (i % 8) & 1 == 1);
    let Some(mut last) = (0..values.len()).find(|&i| is_valid(i)).map(|i| values[i]) else { return };
    for (i, value) in values.iter_mut().enumerate() {
        if is_valid(i) {
            last = *value;
        } else {
            *value = last;
        }
    }
}

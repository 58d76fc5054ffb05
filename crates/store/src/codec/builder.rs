//! Builders of Arrow columns, filled from pages, keys, message rows and other arrays.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    IntervalMonthDayNanoType, Time64MicrosecondType, TimestampMicrosecondType,
};
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BinaryViewArray, BooleanArray, FixedSizeBinaryArray, GenericByteViewArray,
    PrimitiveArray, StringViewArray, types::ByteViewType,
};
use arrow_buffer::{BooleanBufferBuilder, NullBuffer, ScalarBuffer};

use super::lists;
use super::scalar::Scalar;
use super::views::ViewBuilder;
use crate::base::{
    ColumnType, Error, Result, UUID_LEN, interval_of_wide, uuid_of_wide, uuids, wide_of_interval, wide_of_uuid,
};

/// A builder of arrays of one column type; see [`ColumnType::arrow`].
#[derive(Debug)]
pub struct ColumnBuilder {
    ty: ColumnType,
    len: usize,
    /// `None` until the first null.
    validity: Option<BooleanBufferBuilder>,
    pub(super) values: Values,
}

/// The values so far, with a default value for every null. The views of a text column are valid UTF-8, those of a list
/// column encoded lists.
#[derive(Debug)]
pub(super) enum Values {
    Boolean(BooleanBufferBuilder),
    Int8(Vec<i8>),
    Int16(Vec<i16>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float32(Vec<f32>),
    Float64(Vec<f64>),
    /// Decimals, or the numbers of UUIDs or intervals.
    Wide(Vec<i128>),
    Views(ViewBuilder),
}

impl ColumnBuilder {
    /// An empty builder with capacity for `capacity` values.
    pub fn new(ty: ColumnType, capacity: usize) -> Self {
        let values = match ty {
            ColumnType::Boolean => Values::Boolean(BooleanBufferBuilder::new(capacity)),
            ColumnType::Int8 => Values::Int8(Vec::with_capacity(capacity)),
            ColumnType::Int16 => Values::Int16(Vec::with_capacity(capacity)),
            ColumnType::Int32 | ColumnType::Date => Values::Int32(Vec::with_capacity(capacity)),
            ColumnType::Int64 | ColumnType::Timestamp { .. } | ColumnType::Time => {
                Values::Int64(Vec::with_capacity(capacity))
            }
            ColumnType::Float32 => Values::Float32(Vec::with_capacity(capacity)),
            ColumnType::Float64 => Values::Float64(Vec::with_capacity(capacity)),
            ColumnType::Decimal { .. } | ColumnType::Uuid | ColumnType::Interval => {
                Values::Wide(Vec::with_capacity(capacity))
            }
            ColumnType::Text | ColumnType::Bytes | ColumnType::List(_) => {
                Values::Views(ViewBuilder::with_capacity(capacity))
            }
        };
        ColumnBuilder { ty, len: 0, validity: None, values }
    }

    /// The type of the column.
    pub fn column_type(&self) -> ColumnType {
        self.ty
    }

    /// Number of values so far, including nulls.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the builder has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Approximate memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        let values = match &self.values {
            Values::Boolean(values) => values.capacity() / 8,
            Values::Int8(values) => values.capacity(),
            Values::Int16(values) => values.capacity() * 2,
            Values::Int32(values) => values.capacity() * 4,
            Values::Int64(values) => values.capacity() * 8,
            Values::Float32(values) => values.capacity() * 4,
            Values::Float64(values) => values.capacity() * 8,
            Values::Wide(values) => values.capacity() * 16,
            Values::Views(values) => values.memory_bytes(),
        };
        values + self.validity.as_ref().map_or(0, |v| v.capacity() / 8)
    }

    /// Checks that the elements of all lists fit into one array: each takes at least a byte of the encoded lists.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub(super) fn check_lists(&self) -> Result<()> {
        let (bytes, limit) = (self.memory_bytes() as u64, i32::MAX as u64);
        match self.ty {
            ColumnType::List(_) if bytes > limit => Err(Error::TooLarge { what: "lists of one batch", bytes, limit }),
            _ => Ok(()),
        }
    }

    /// Appends `count` nulls.
    pub fn append_nulls(&mut self, count: usize) {
        match &mut self.values {
            Values::Boolean(values) => values.append_n(count, false),
            Values::Int8(values) => values.resize(self.len + count, 0),
            Values::Int16(values) => values.resize(self.len + count, 0),
            Values::Int32(values) => values.resize(self.len + count, 0),
            Values::Int64(values) => values.resize(self.len + count, 0),
            Values::Float32(values) => values.resize(self.len + count, 0.0),
            Values::Float64(values) => values.resize(self.len + count, 0.0),
            Values::Wide(values) => values.resize(self.len + count, 0),
            Values::Views(values) => values.push_empty(count),
        }
        self.validity().append_n(count, false);
        self.len += count;
    }

    /// Appends `count` copies of a value. Text must be valid UTF-8.
    ///
    /// # Panics
    /// If the value does not have the type of the builder, or is text that is not valid UTF-8.
    pub(crate) fn append_scalar(&mut self, value: Scalar<'_>, count: usize) {
        if let (Scalar::Bytes(head, tail), ColumnType::Text) = (value, self.ty) {
            assert!(tail.is_empty() && std::str::from_utf8(head).is_ok(), "text is not valid UTF-8");
        }
        match (&mut self.values, value) {
            (_, Scalar::Null) => return self.append_nulls(count),
            (Values::Boolean(values), Scalar::Word(word)) => values.append_n(count, word != 0),
            (Values::Int8(values), Scalar::Word(word)) => values.resize(self.len + count, word as i8),
            (Values::Int16(values), Scalar::Word(word)) => values.resize(self.len + count, word as i16),
            (Values::Int32(values), Scalar::Word(word)) => values.resize(self.len + count, word as i32),
            (Values::Int64(values), Scalar::Word(word)) => values.resize(self.len + count, word),
            (Values::Float32(values), Scalar::Word(word)) => {
                values.resize(self.len + count, f32::from_bits(word as u32));
            }
            (Values::Float64(values), Scalar::Word(word)) => {
                values.resize(self.len + count, f64::from_bits(word as u64));
            }
            (Values::Wide(values), Scalar::Wide(wide)) => values.resize(self.len + count, wide),
            // The check of the number of elements relies on one copy of each list.
            (Values::Views(values), Scalar::Bytes(head, tail)) if self.ty.is_list() => {
                (0..count).for_each(|_| values.push(head, tail));
            }
            (Values::Views(values), Scalar::Bytes(head, tail)) if count > 0 => {
                let view = values.store(head, tail);
                values.extend_views(std::iter::repeat_n(view, count));
            }
            (Values::Views(_), Scalar::Bytes(..)) => {}
            (_, value) => panic!("{value:?} for a column of {:?}", self.ty),
        }
        self.appended(count);
    }

    /// Appends the rows `rows` of `array`.
    ///
    /// # Panics
    /// If `array` does not have the Arrow type of the builder, or `rows` is out of bounds.
    pub fn append_array(&mut self, array: &ArrayRef, rows: Range<usize>) {
        match (&mut self.values, self.ty) {
            (Values::Boolean(values), _) => {
                let bits = array.as_boolean().values().slice(rows.start, rows.len());
                values.append_buffer(&bits);
            }
            (Values::Int8(values), _) => extend::<Int8Type>(values, array, &rows),
            (Values::Int16(values), _) => extend::<Int16Type>(values, array, &rows),
            (Values::Int32(values), ColumnType::Date) => extend::<Date32Type>(values, array, &rows),
            (Values::Int32(values), _) => extend::<Int32Type>(values, array, &rows),
            (Values::Int64(values), ColumnType::Timestamp { .. }) => {
                extend::<TimestampMicrosecondType>(values, array, &rows);
            }
            (Values::Int64(values), ColumnType::Time) => extend::<Time64MicrosecondType>(values, array, &rows),
            (Values::Int64(values), _) => extend::<Int64Type>(values, array, &rows),
            (Values::Float32(values), _) => extend::<Float32Type>(values, array, &rows),
            (Values::Float64(values), _) => extend::<Float64Type>(values, array, &rows),
            (Values::Wide(values), ColumnType::Uuid) => {
                values.extend(uuids(array)[rows.clone()].iter().map(wide_of_uuid));
            }
            (Values::Wide(values), ColumnType::Interval) => {
                let intervals = array.as_primitive::<IntervalMonthDayNanoType>().values();
                values.extend(intervals[rows.clone()].iter().map(wide_of_interval));
            }
            (Values::Wide(values), _) => extend::<Decimal128Type>(values, array, &rows),
            (Values::Views(values), ColumnType::Text) => extend_views(values, array.as_string_view(), &rows),
            (Values::Views(values), ColumnType::List(ty)) => {
                let encoded = lists::encode(&array.as_list().slice(rows.start, rows.len()), ty);
                extend_views(values, &encoded, &(0..rows.len()));
            }
            (Values::Views(values), _) => extend_views(values, array.as_binary_view(), &rows),
        }
        match array.nulls() {
            None => self.appended(rows.len()),
            Some(nulls) => {
                let valid = nulls.inner().slice(rows.start, rows.len());
                self.validity().append_buffer(&valid);
                self.len += rows.len();
            }
        }
    }

    /// Removes the values from `start` on, except those at the positions `kept` (ascending), counted from `start`.
    ///
    /// # Panics
    /// If a position is out of bounds.
    pub(super) fn keep(&mut self, start: usize, kept: impl ExactSizeIterator<Item = usize> + Clone) {
        let len = start + kept.len();
        if len == self.len {
            return;
        }
        match &mut self.values {
            Values::Boolean(values) => keep_bits(values, start, kept.clone()),
            Values::Int8(values) => keep_values(values, start, kept.clone()),
            Values::Int16(values) => keep_values(values, start, kept.clone()),
            Values::Int32(values) => keep_values(values, start, kept.clone()),
            Values::Int64(values) => keep_values(values, start, kept.clone()),
            Values::Float32(values) => keep_values(values, start, kept.clone()),
            Values::Float64(values) => keep_values(values, start, kept.clone()),
            Values::Wide(values) => keep_values(values, start, kept.clone()),
            Values::Views(values) => keep_values(values.views_mut(), start, kept.clone()),
        }
        if let Some(validity) = &mut self.validity {
            keep_bits(validity, start, kept);
        }
        self.len = len;
    }

    /// Returns the values as an array and leaves the builder empty.
    pub fn finish(&mut self) -> ArrayRef {
        self.len = 0;
        let nulls = self.validity.take().map(|mut validity| NullBuffer::new(validity.finish()));
        match (&mut self.values, self.ty) {
            (Values::Boolean(values), _) => Arc::new(BooleanArray::new(values.finish(), nulls)),
            (Values::Int8(values), _) => primitive::<Int8Type>(values, nulls),
            (Values::Int16(values), _) => primitive::<Int16Type>(values, nulls),
            (Values::Int32(values), ColumnType::Date) => primitive::<Date32Type>(values, nulls),
            (Values::Int32(values), _) => primitive::<Int32Type>(values, nulls),
            (Values::Int64(values), ColumnType::Timestamp { .. }) => {
                let values = std::mem::take(values).into();
                let array = PrimitiveArray::<TimestampMicrosecondType>::new(values, nulls);
                Arc::new(array.with_data_type(self.ty.arrow()))
            }
            (Values::Int64(values), ColumnType::Time) => primitive::<Time64MicrosecondType>(values, nulls),
            (Values::Int64(values), _) => primitive::<Int64Type>(values, nulls),
            (Values::Float32(values), _) => primitive::<Float32Type>(values, nulls),
            (Values::Float64(values), _) => primitive::<Float64Type>(values, nulls),
            (Values::Wide(values), ColumnType::Uuid) => {
                let bytes: Vec<u8> = std::mem::take(values).into_iter().flat_map(uuid_of_wide).collect();
                Arc::new(FixedSizeBinaryArray::new(UUID_LEN as i32, bytes.into(), nulls))
            }
            (Values::Wide(values), ColumnType::Interval) => {
                let mut intervals = std::mem::take(values).into_iter().map(interval_of_wide).collect();
                primitive::<IntervalMonthDayNanoType>(&mut intervals, nulls)
            }
            (Values::Wide(values), _) => {
                let array = PrimitiveArray::<Decimal128Type>::new(std::mem::take(values).into(), nulls);
                Arc::new(array.with_data_type(self.ty.arrow()))
            }
            (Values::Views(values), ty) => {
                let (views, buffers) = values.finish();
                if ty == ColumnType::Text {
                    // SAFETY: every view lies within its buffer (`ViewBuilder` made them) and, by the invariant of
                    // `Values`, is valid UTF-8.
                    return Arc::new(unsafe { StringViewArray::new_unchecked(views, buffers, nulls) });
                }
                // SAFETY: every view lies within its buffer (`ViewBuilder` made them).
                let bytes = unsafe { BinaryViewArray::new_unchecked(views, buffers, nulls) };
                match ty {
                    ColumnType::List(ty) => Arc::new(lists::decode(&bytes, ty)),
                    _ => Arc::new(bytes),
                }
            }
        }
    }

    fn validity(&mut self) -> &mut BooleanBufferBuilder {
        let len = self.len;
        self.validity.get_or_insert_with(|| {
            let mut validity = BooleanBufferBuilder::new(len + 64);
            validity.append_n(len, true);
            validity
        })
    }

    /// Accounts for `count` values, none of them null, that were appended to `values`.
    pub(super) fn appended(&mut self, count: usize) {
        if let Some(validity) = &mut self.validity {
            validity.append_n(count, true);
        }
        self.len += count;
    }

    /// Accounts for values that were appended to `values`, with the bits `bits` of `bitmap` as their validity.
    pub(super) fn appended_with_nulls(&mut self, bits: Range<usize>, bitmap: &[u8]) {
        let count = bits.len();
        self.validity().append_packed_range(bits, bitmap);
        self.len += count;
    }

    /// Appends a value.
    ///
    /// # Panics
    /// If the value does not have the type of the builder.
    ///
    /// # Safety
    /// If the builder is of text, the bytes of the value must be valid UTF-8.
    #[inline]
    pub(super) unsafe fn push(&mut self, value: Scalar<'_>) {
        match (&mut self.values, value) {
            (_, Scalar::Null) => return self.append_nulls(1),
            (Values::Boolean(values), Scalar::Word(word)) => values.append(word != 0),
            (Values::Int8(values), Scalar::Word(word)) => values.push(word as i8),
            (Values::Int16(values), Scalar::Word(word)) => values.push(word as i16),
            (Values::Int32(values), Scalar::Word(word)) => values.push(word as i32),
            (Values::Int64(values), Scalar::Word(word)) => values.push(word),
            (Values::Float32(values), Scalar::Word(word)) => values.push(f32::from_bits(word as u32)),
            (Values::Float64(values), Scalar::Word(word)) => values.push(f64::from_bits(word as u64)),
            (Values::Wide(values), Scalar::Wide(value)) => values.push(value),
            (Values::Views(values), Scalar::Bytes(head, tail)) => values.push(head, tail),
            (_, value) => panic!("{value:?} for a column of {:?}", self.ty),
        }
        self.appended(1);
    }
}

fn keep_values<T: Copy>(values: &mut Vec<T>, start: usize, kept: impl ExactSizeIterator<Item = usize>) {
    let len = start + kept.len();
    let added = &mut values[start..];
    for (to, from) in kept.enumerate() {
        added[to] = added[from];
    }
    values.truncate(len);
}

fn keep_bits(bits: &mut BooleanBufferBuilder, start: usize, kept: impl ExactSizeIterator<Item = usize>) {
    let len = start + kept.len();
    for (to, from) in kept.enumerate() {
        bits.set_bit(start + to, bits.get_bit(start + from));
    }
    bits.truncate(len);
}

fn extend<T: ArrowPrimitiveType>(values: &mut Vec<T::Native>, array: &ArrayRef, rows: &Range<usize>) {
    values.extend_from_slice(&array.as_primitive::<T>().values()[rows.clone()]);
}

fn extend_views<T: ByteViewType>(values: &mut ViewBuilder, array: &GenericByteViewArray<T>, rows: &Range<usize>) {
    values.reserve(rows.len());
    for row in rows.clone() {
        let value: &[u8] = if array.is_null(row) { &[] } else { array.value(row).as_ref() };
        values.push(value, &[]);
    }
}

fn primitive<T: ArrowPrimitiveType>(values: &mut Vec<T::Native>, nulls: Option<NullBuffer>) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::from(std::mem::take(values)), nulls))
}

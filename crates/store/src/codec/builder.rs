//! Growing Arrow columns, fed from pages, keys and message rows.
//!
//! Numbers grow in a plain vector of their Arrow type; text and bytes as views: values of up to 12 bytes lie in the view
//! itself, longer ones in data buffers.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::types::{
    BinaryViewType, ByteViewType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, StringViewType, TimestampMicrosecondType,
};
use arrow_array::{ArrayRef, ArrowPrimitiveType, BooleanArray, GenericByteViewArray, PrimitiveArray};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, NullBufferBuilder, ScalarBuffer};
use arrow_data::ByteView;

use super::scalar::{Scalar, scalar_at};
use crate::{ColumnType, Error, Result};

/// A growing column of one type; see [`ColumnType::arrow`] for what it becomes.
#[derive(Debug)]
pub struct ColumnBuilder {
    ty: ColumnType,
    values: Values,
    nulls: NullBufferBuilder,
}

#[derive(Debug)]
enum Values {
    Boolean(Vec<bool>),
    Int8(Vec<i8>),
    Int16(Vec<i16>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float32(Vec<f32>),
    Float64(Vec<f64>),
    Wide(Vec<i128>),
    Views(Views),
}

/// Views of text or bytes, and the buffers of those longer than 12 bytes.
#[derive(Debug, Default)]
struct Views {
    views: Vec<u128>,
    full: Vec<Buffer>,
    /// The buffer being filled.
    open: Vec<u8>,
}

/// A data buffer is closed at this length; offsets in views are 32 bits.
const BUFFER_BYTES: usize = 1 << 20;

impl Views {
    fn push(&mut self, value: &[u8]) {
        if value.len() > 12 && self.open.len() + value.len() > BUFFER_BYTES && !self.open.is_empty() {
            self.full.push(Buffer::from_vec(std::mem::take(&mut self.open)));
        }
        let mut view = [0; 16];
        view[..4].copy_from_slice(&(value.len() as u32).to_le_bytes());
        if let Some(inline) = view[4..].get_mut(..value.len()) {
            inline.copy_from_slice(value);
        } else {
            let view_of_buffer = ByteView::new(value.len() as u32, &value[..4])
                .with_buffer_index(self.full.len() as u32)
                .with_offset(self.open.len() as u32);
            self.open.extend_from_slice(value);
            self.views.push(view_of_buffer.as_u128());
            return;
        }
        self.views.push(u128::from_le_bytes(view));
    }

    fn finish<T: ByteViewType + ?Sized>(&mut self, nulls: Option<NullBuffer>) -> ArrayRef {
        if !self.open.is_empty() {
            self.full.push(Buffer::from_vec(std::mem::take(&mut self.open)));
        }
        let views = ScalarBuffer::from(std::mem::take(&mut self.views));
        let buffers: Arc<[Buffer]> = std::mem::take(&mut self.full).into();
        // SAFETY: every view was made by `push`: short ones are inline with zero padding, long ones name a buffer that
        // was then the open one at its index, with the value at that offset and the right prefix; text was checked to
        // be UTF-8 by `push_scalar`.
        Arc::new(unsafe { GenericByteViewArray::<T>::new_unchecked(views, buffers, nulls) })
    }
}

impl ColumnBuilder {
    pub fn new(ty: ColumnType, capacity: usize) -> Self {
        let values = match ty {
            ColumnType::Boolean => Values::Boolean(Vec::with_capacity(capacity)),
            ColumnType::Int8 => Values::Int8(Vec::with_capacity(capacity)),
            ColumnType::Int16 => Values::Int16(Vec::with_capacity(capacity)),
            ColumnType::Int32 | ColumnType::Date => Values::Int32(Vec::with_capacity(capacity)),
            ColumnType::Int64 | ColumnType::Timestamp { .. } => Values::Int64(Vec::with_capacity(capacity)),
            ColumnType::Float32 => Values::Float32(Vec::with_capacity(capacity)),
            ColumnType::Float64 => Values::Float64(Vec::with_capacity(capacity)),
            ColumnType::Decimal { .. } => Values::Wide(Vec::with_capacity(capacity)),
            ColumnType::Text | ColumnType::Bytes => {
                Values::Views(Views { views: Vec::with_capacity(capacity), ..Views::default() })
            }
        };
        ColumnBuilder { ty, values, nulls: NullBufferBuilder::new(capacity) }
    }

    pub fn len(&self) -> usize {
        self.nulls.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held, approximately.
    pub fn memory_bytes(&self) -> usize {
        self.len() / 8
            + match &self.values {
                Values::Boolean(values) => values.len(),
                Values::Int8(values) => values.len(),
                Values::Int16(values) => values.len() * 2,
                Values::Int32(values) => values.len() * 4,
                Values::Int64(values) => values.len() * 8,
                Values::Float32(values) => values.len() * 4,
                Values::Float64(values) => values.len() * 8,
                Values::Wide(values) => values.len() * 16,
                Values::Views(views) => {
                    views.views.len() * 16 + views.open.len() + views.full.iter().map(Buffer::len).sum::<usize>()
                }
            }
    }

    pub fn append_nulls(&mut self, count: usize) {
        self.append_defaults(count);
        self.nulls.append_n_nulls(count);
    }

    fn append_defaults(&mut self, count: usize) {
        let len = self.len() + count;
        match &mut self.values {
            Values::Boolean(values) => values.resize(len, false),
            Values::Int8(values) => values.resize(len, 0),
            Values::Int16(values) => values.resize(len, 0),
            Values::Int32(values) => values.resize(len, 0),
            Values::Int64(values) => values.resize(len, 0),
            Values::Float32(values) => values.resize(len, 0.0),
            Values::Float64(values) => values.resize(len, 0.0),
            Values::Wide(values) => values.resize(len, 0),
            Values::Views(views) => views.views.resize(len, 0),
        }
    }

    /// Appends one value of this builder's type.
    ///
    /// # Errors
    /// [`Error::Invalid`] for text that is not UTF-8, and a value of another kind.
    pub(crate) fn append_scalar(&mut self, value: Scalar<'_>) -> Result<()> {
        match (value, &mut self.values) {
            (Scalar::Null, _) => {
                self.append_nulls(1);
                return Ok(());
            }
            (Scalar::Word(word), Values::Boolean(values)) => values.push(word != 0),
            (Scalar::Word(word), Values::Int8(values)) => values.push(word as i8),
            (Scalar::Word(word), Values::Int16(values)) => values.push(word as i16),
            (Scalar::Word(word), Values::Int32(values)) => values.push(word as i32),
            (Scalar::Word(word), Values::Int64(values)) => values.push(word),
            (Scalar::Word(word), Values::Float32(values)) => values.push(f32::from_bits(word as u32)),
            (Scalar::Word(word), Values::Float64(values)) => values.push(f64::from_bits(word as u64)),
            (Scalar::Wide(wide), Values::Wide(values)) => values.push(wide),
            (Scalar::Bytes(bytes), Values::Views(views)) => {
                if self.ty == ColumnType::Text && std::str::from_utf8(bytes).is_err() {
                    return Err(Error::Invalid("text that is not UTF-8".into()));
                }
                views.push(bytes);
            }
            _ => return Err(Error::Invalid("a value of another type".into())),
        }
        self.nulls.append_non_null();
        Ok(())
    }

    /// Appends integers, dates, timestamps, booleans, floats (by their bits) or decimals that fit 64 bits. None of them
    /// is null unless `valid` says so.
    pub(crate) fn append_words(&mut self, words: &[i64], valid: Option<&dyn Fn(usize) -> bool>) {
        match &mut self.values {
            Values::Boolean(values) => values.extend(words.iter().map(|&word| word != 0)),
            Values::Int8(values) => values.extend(words.iter().map(|&word| word as i8)),
            Values::Int16(values) => values.extend(words.iter().map(|&word| word as i16)),
            Values::Int32(values) => values.extend(words.iter().map(|&word| word as i32)),
            Values::Int64(values) => values.extend_from_slice(words),
            Values::Float32(values) => values.extend(words.iter().map(|&word| f32::from_bits(word as u32))),
            Values::Float64(values) => values.extend(words.iter().map(|&word| f64::from_bits(word as u64))),
            Values::Wide(values) => values.extend(words.iter().map(|&word| i128::from(word))),
            Values::Views(views) => views.views.resize(views.views.len() + words.len(), 0),
        }
        match valid {
            None => self.nulls.append_n_non_nulls(words.len()),
            Some(valid) => (0..words.len()).for_each(|i| self.nulls.append(valid(i))),
        }
    }

    /// Appends the rows `rows` of `array`.
    ///
    /// # Panics
    /// If the array has not this builder's Arrow type.
    pub fn append_array(&mut self, array: &ArrayRef, rows: Range<usize>) {
        for row in rows {
            let appended = self.append_scalar(scalar_at(array, self.ty, row));
            assert!(appended.is_ok(), "an array's text is UTF-8");
        }
    }

    /// The column so far; the builder is empty afterwards and may be used again.
    pub fn finish(&mut self) -> ArrayRef {
        let nulls = self.nulls.finish();
        match &mut self.values {
            Values::Boolean(values) => {
                let bits = BooleanBuffer::from(std::mem::take(values));
                Arc::new(BooleanArray::new(bits, nulls))
            }
            Values::Int8(values) => primitive::<Int8Type>(values, nulls, self.ty),
            Values::Int16(values) => primitive::<Int16Type>(values, nulls, self.ty),
            Values::Int32(values) if self.ty == ColumnType::Date => primitive::<Date32Type>(values, nulls, self.ty),
            Values::Int32(values) => primitive::<Int32Type>(values, nulls, self.ty),
            Values::Int64(values) if self.ty == ColumnType::Int64 => primitive::<Int64Type>(values, nulls, self.ty),
            Values::Int64(values) => primitive::<TimestampMicrosecondType>(values, nulls, self.ty),
            Values::Float32(values) => primitive::<Float32Type>(values, nulls, self.ty),
            Values::Float64(values) => primitive::<Float64Type>(values, nulls, self.ty),
            Values::Wide(values) => primitive::<Decimal128Type>(values, nulls, self.ty),
            Values::Views(views) if self.ty == ColumnType::Text => views.finish::<StringViewType>(nulls),
            Values::Views(views) => views.finish::<BinaryViewType>(nulls),
        }
    }
}

fn primitive<T: ArrowPrimitiveType>(
    values: &mut Vec<T::Native>,
    nulls: Option<NullBuffer>,
    ty: ColumnType,
) -> ArrayRef {
    let values = ScalarBuffer::from(std::mem::take(values));
    Arc::new(PrimitiveArray::<T>::new(values, nulls).with_data_type(ty.arrow()))
}

//! Columns of results, encoded row by row.
//!
//! A column of a batch is converted as a whole, to one of a few Arrow types, before its values are encoded.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, BooleanArray, Date32Array, Decimal128Array, Decimal256Array,
    FixedSizeBinaryArray, Float32Array, Float64Array, Int16Array, Int32Array, Int64Array, IntervalMonthDayNanoArray,
    ListArray, StringViewArray, Time64MicrosecondArray, TimestampMicrosecondArray, UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{
    DataType, Decimal128Type, Decimal256Type, Field, Int64Type, IntervalMonthDayNano, IntervalUnit, TimeUnit,
    UInt32Type,
};
use bytes::BufMut;
use keyaki::Session;

use super::{EPOCH_DAYS, EPOCH_MICROS, Format, JSONB_VERSION, numeric};
use crate::failure::{Failure, Result};
use crate::types::{self, Oid};

/// The length of NULL.
const NULL: i32 = -1;

/// A column of a batch.
pub struct Column {
    pub(super) nulls: Option<NullBuffer>,
    pub(super) values: Values,
}

/// The values of a column, in the type from which they are encoded.
pub(super) enum Values {
    /// All values are NULL.
    Null,
    // As text.
    Texts(StringViewArray),
    BooleanTexts(BooleanArray),
    IntegerTexts(Int64Array),
    // Binary.
    Booleans(BooleanArray),
    Int2(Int16Array),
    Int4(Int32Array),
    Int8(Int64Array),
    Float4(Float32Array),
    Float8(Float64Array),
    Bytes(BinaryViewArray),
    Uuids(FixedSizeBinaryArray),
    Jsonb(StringViewArray),
    Dates(Date32Array),
    Times(Time64MicrosecondArray),
    Timestamps(TimestampMicrosecondArray),
    Intervals(IntervalMonthDayNanoArray),
    Unsigned(UInt64Array),
    Numeric(Decimal128Array, i32),
    LongNumeric(Decimal256Array, i32),
    Arrays(Lists),
}

/// Arrays of any number of dimensions.
pub(super) struct Lists {
    /// The positions of the parts of each dimension in the next one, the outermost dimension first.
    offsets: Vec<OffsetBuffer<i32>>,
    elements: Box<Column>,
    element: Oid,
}

impl Column {
    /// A column with values of the type `oid`.
    ///
    /// # Errors
    /// Errors of conversions; 0A000 if the array is not of the type; 2202E for arrays of different lengths in one dimension.
    pub fn new(session: &Session, array: &ArrayRef, oid: Oid, format: Format) -> Result<Column> {
        let array = plain(array)?;
        if *array.data_type() == DataType::Null {
            return Ok(Column { nulls: None, values: Values::Null });
        }
        let own = types::oid(array.data_type());
        // A column whose type depends on the values of parameters was described as text.
        let is_text = format == Format::Text || matches!(oid, Oid::TEXT | Oid::JSON);
        if own != oid.representation() && oid != Oid::TEXT {
            return Err(Failure::sql("0A000", "cached plan must not change result type"));
        }
        let values = if is_text { texts(session, &array)? } else { binary(session, &array, oid)? };
        Ok(Column { nulls: array.logical_nulls(), values })
    }

    fn is_null(&self, row: usize) -> bool {
        matches!(self.values, Values::Null) || self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))
    }

    /// Appends a value and its length in bytes.
    #[inline]
    pub fn put(&self, row: usize, out: &mut Vec<u8>) {
        if self.is_null(row) {
            return out.put_i32(NULL);
        }
        match &self.values {
            Values::Null => out.put_i32(NULL),
            Values::Texts(texts) => put_bytes(texts.value(row).as_bytes(), out),
            Values::BooleanTexts(values) => put_bytes(if values.value(row) { b"t" } else { b"f" }, out),
            Values::IntegerTexts(values) => {
                put_bytes(itoa::Buffer::new().format(values.value(row)).as_bytes(), out);
            }
            Values::Booleans(values) => put_bytes(&[u8::from(values.value(row))], out),
            Values::Int2(values) => put_bytes(&values.value(row).to_be_bytes(), out),
            Values::Int4(values) => put_bytes(&values.value(row).to_be_bytes(), out),
            Values::Int8(values) => put_bytes(&values.value(row).to_be_bytes(), out),
            Values::Float4(values) => put_bytes(&values.value(row).to_be_bytes(), out),
            Values::Float8(values) => put_bytes(&values.value(row).to_be_bytes(), out),
            Values::Bytes(values) => put_bytes(values.value(row), out),
            Values::Uuids(values) => put_bytes(values.value(row), out),
            Values::Jsonb(documents) => put_sized(out, |out| {
                out.put_u8(JSONB_VERSION);
                out.put_slice(documents.value(row).as_bytes());
            }),
            Values::Dates(values) => put_bytes(&values.value(row).saturating_sub(EPOCH_DAYS).to_be_bytes(), out),
            Values::Times(values) => put_bytes(&values.value(row).to_be_bytes(), out),
            Values::Timestamps(values) => put_bytes(&values.value(row).saturating_sub(EPOCH_MICROS).to_be_bytes(), out),
            Values::Intervals(values) => put_bytes(&interval(values.value(row)), out),
            Values::Unsigned(values) => {
                put_sized(out, |out| numeric::put_integer(values.value(row).into(), 0, out));
            }
            Values::Numeric(values, scale) => {
                put_sized(out, |out| numeric::put_integer(values.value(row), *scale, out));
            }
            Values::LongNumeric(values, scale) => {
                put_sized(out, |out| numeric::put(&values.value(row).to_string(), *scale, out));
            }
            Values::Arrays(lists) => put_sized(out, |out| lists.put(row, out)),
        }
    }
}

/// Microseconds, days and months.
pub(super) fn interval(value: IntervalMonthDayNano) -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut out = bytes.as_mut_slice();
    out.put_i64(value.nanoseconds / 1000);
    out.put_i32(value.days);
    out.put_i32(value.months);
    bytes
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.put_i32(bytes.len() as i32);
    out.put_slice(bytes);
}

/// Appends what `put` appends, after its length.
fn put_sized(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.put_i32(0);
    put(out);
    let len = (out.len() - start - 4) as i32;
    out[start..start + 4].copy_from_slice(&len.to_be_bytes());
}

/// Converts strictly.
fn cast(array: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(array, to, &strict).map_err(|error| Failure::Sql(keyaki::Error::Evaluation(error.to_string())))
}

/// The values of dictionaries and runs.
fn plain(array: &ArrayRef) -> Result<ArrayRef> {
    match array.data_type() {
        DataType::Dictionary(_, values) => plain(&cast(array, values)?),
        DataType::RunEndEncoded(_, values) => plain(&cast(array, values.data_type())?),
        _ => Ok(array.clone()),
    }
}

fn texts(session: &Session, array: &ArrayRef) -> Result<Values> {
    Ok(match array.data_type() {
        DataType::Boolean => Values::BooleanTexts(array.as_boolean().clone()),
        DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::UInt8
        | DataType::UInt16
        | DataType::UInt32 => Values::IntegerTexts(cast(array, &DataType::Int64)?.as_primitive().clone()),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            Values::Texts(cast(array, &DataType::Utf8View)?.as_string_view().clone())
        }
        // PostgreSQL has microseconds.
        DataType::Timestamp(_, zone) => {
            let micros = cast(array, &DataType::Timestamp(TimeUnit::Microsecond, zone.clone()))?;
            Values::Texts(session.texts(&micros)?)
        }
        DataType::Time32(_) | DataType::Time64(_) => {
            Values::Texts(session.texts(&cast(array, &DataType::Time64(TimeUnit::Microsecond))?)?)
        }
        ty if [Oid::INT2VECTOR, Oid::OIDVECTOR].contains(&types::oid(ty)) => vector_texts(array)?,
        ty if types::oid(ty).element() == Some(Oid::BOOL) => Values::Texts(session.texts(&boolean_letters(array)?)?),
        _ => Values::Texts(session.texts(array)?),
    })
}

/// Vectors, whose elements are separated by spaces.
fn vector_texts(array: &ArrayRef) -> Result<Values> {
    let numbers = cast(array, &DataType::LargeList(Arc::new(Field::new_list_field(DataType::Int64, true))))?;
    let text = |list: ArrayRef| {
        let numbers = list.as_primitive::<Int64Type>().iter().flatten();
        numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(" ")
    };
    let texts = numbers.as_list::<i64>().iter().map(|list| list.map(text));
    Ok(Values::Texts(texts.collect()))
}

/// Arrays of booleans with the letters t and f in place of their elements.
fn boolean_letters(array: &ArrayRef) -> Result<ArrayRef> {
    if let Some(element) = types::element(array.data_type()) {
        let lists = cast(array, &DataType::List(Arc::new(Field::new_list_field(element.clone(), true))))?;
        let lists = lists.as_list::<i32>();
        let letters = boolean_letters(lists.values())?;
        let field = Arc::new(Field::new_list_field(letters.data_type().clone(), true));
        return Ok(Arc::new(ListArray::new(field, lists.offsets().clone(), letters, lists.nulls().cloned())));
    }
    let letters = array.as_boolean().iter().map(|value| value.map(|value| if value { "t" } else { "f" }));
    Ok(Arc::new(letters.collect::<StringViewArray>()))
}

/// The values in the binary format of the type `oid`.
fn binary(session: &Session, array: &ArrayRef, oid: Oid) -> Result<Values> {
    const MICROS: TimeUnit = TimeUnit::Microsecond;
    let to = |ty: DataType| cast(array, &ty);
    Ok(match array.data_type() {
        DataType::Boolean => Values::Booleans(array.as_boolean().clone()),
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => Values::Int2(to(DataType::Int16)?.as_primitive().clone()),
        DataType::Int32 | DataType::UInt16 => Values::Int4(to(DataType::Int32)?.as_primitive().clone()),
        DataType::Int64 => Values::Int8(to(DataType::Int64)?.as_primitive().clone()),
        // An OID has the bits of an integer.
        DataType::UInt32 => Values::Int4(array.as_primitive::<UInt32Type>().unary(|oid| oid as i32)),
        DataType::UInt64 => Values::Unsigned(array.as_primitive().clone()),
        DataType::Float16 | DataType::Float32 => Values::Float4(to(DataType::Float32)?.as_primitive().clone()),
        DataType::Float64 => Values::Float8(array.as_primitive().clone()),
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => {
            let values = to(DataType::Decimal128(*precision, *scale))?;
            Values::Numeric(values.as_primitive::<Decimal128Type>().clone(), i32::from(*scale))
        }
        DataType::Decimal128(_, scale) => {
            Values::Numeric(array.as_primitive::<Decimal128Type>().clone(), i32::from(*scale))
        }
        DataType::Decimal256(_, scale) => {
            Values::LongNumeric(array.as_primitive::<Decimal256Type>().clone(), i32::from(*scale))
        }
        ty if types::oid(ty) == Oid::UUID => Values::Uuids(array.as_fixed_size_binary().clone()),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            Values::Bytes(to(DataType::BinaryView)?.as_binary_view().clone())
        }
        DataType::Date32 | DataType::Date64 => Values::Dates(to(DataType::Date32)?.as_primitive().clone()),
        DataType::Time32(_) | DataType::Time64(_) => {
            Values::Times(to(DataType::Time64(MICROS))?.as_primitive().clone())
        }
        DataType::Timestamp(_, zone) => {
            Values::Timestamps(to(DataType::Timestamp(MICROS, zone.clone()))?.as_primitive().clone())
        }
        DataType::Interval(_) | DataType::Duration(_) => {
            Values::Intervals(to(DataType::Interval(IntervalUnit::MonthDayNano))?.as_primitive().clone())
        }
        ty if types::element(ty).is_some() && types::oid(ty) != Oid::TEXT => {
            Values::Arrays(Lists::new(session, array, oid.element())?)
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View if oid == Oid::JSONB => {
            Values::Jsonb(to(DataType::Utf8View)?.as_string_view().clone())
        }
        _ => return texts(session, array),
    })
}

impl Lists {
    /// `element`: the type of the elements, if it is known.
    fn new(session: &Session, array: &ArrayRef, element: Option<Oid>) -> Result<Lists> {
        let (mut offsets, mut array) = (Vec::new(), array.clone());
        while let Some(element) = types::element(array.data_type()) {
            let list = DataType::List(Arc::new(Field::new_list_field(element.clone(), true)));
            let lists = cast(&array, &list)?;
            let lists = lists.as_list::<i32>();
            if !offsets.is_empty() && lists.null_count() > 0 {
                return Err(Failure::sql("2202E", "multidimensional arrays cannot contain NULL in place of arrays"));
            }
            offsets.push(lists.offsets().clone());
            array = lists.values().clone();
        }
        let array = plain(&array)?;
        let element = element.unwrap_or_else(|| types::oid(array.data_type()));
        let elements = Column { nulls: array.logical_nulls(), values: binary(session, &array, element)? };
        let lists = Lists { offsets, elements: Box::new(elements), element };
        lists.check_rectangular()?;
        Ok(lists)
    }

    /// Checks that the arrays within an array have the same number of elements.
    fn check_rectangular(&self) -> Result<()> {
        for pair in self.offsets.windows(2) {
            let (outer, inner) = (&pair[0], &pair[1]);
            let len = |at: i32| inner[at as usize + 1] - inner[at as usize];
            for range in outer.windows(2) {
                if (range[0]..range[1]).any(|at| len(at) != len(range[0])) {
                    let problem = "multidimensional arrays must have sub-arrays with matching dimensions";
                    return Err(Failure::sql("2202E", problem));
                }
            }
        }
        Ok(())
    }

    fn put(&self, row: usize, out: &mut Vec<u8>) {
        let (mut start, mut end) = (row as i32, row as i32 + 1);
        let mut lens = Vec::with_capacity(self.offsets.len());
        for offsets in &self.offsets {
            // All parts have the length of the first one.
            let len = if start < end { offsets[start as usize + 1] - offsets[start as usize] } else { 0 };
            lens.push(len);
            (start, end) = (offsets[start as usize], offsets[end as usize]);
        }
        let elements = start as usize..end as usize;
        // An empty array has no dimensions.
        let dimensions = if elements.is_empty() { 0 } else { lens.len() };
        out.put_i32(dimensions as i32);
        out.put_i32(i32::from(elements.clone().any(|element| self.elements.is_null(element))));
        out.put_u32(self.element.0);
        for len in &lens[..dimensions] {
            out.put_i32(*len);
            // The index of the first element.
            out.put_i32(1);
        }
        elements.for_each(|element| self.elements.put(element, out));
    }
}

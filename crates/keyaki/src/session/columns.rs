//! Conversion of result columns whose Arrow type has no [`Value`](crate::Value) variant.
//!
//! A column is converted as a whole when its batch arrives: to a wider type if that is exact for all its values, and
//! otherwise to text. No value is lost.
//!
//! | Arrow type | result |
//! |---|---|
//! | unsigned integers | `Integer`; `Decimal` with scale 0 if a value exceeds BIGINT |
//! | 16-bit floats | `Float` |
//! | other decimals | `Decimal`; text if a value has more than 38 digits |
//! | timestamps in other units, 64-bit dates | `Timestamp` or `TimestampTz`; text if a value has fractions of a microsecond |
//! | dictionaries, run-end encoding | as their values |
//! | fixed-size binary | `Bytes` |
//! | durations, other intervals | `Interval` |
//! | arrays | `Array` of converted elements |
//! | times, structs, maps … | text |

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringBuilder};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, TimeUnit, TimestampNanosecondType, UInt64Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use crate::base::arrays;
use crate::base::intervals::intervals;
use crate::base::value::{DECIMAL_DIGITS_MAX, has_values, value_at};
use crate::{Error, Result, Value, ValueRef};

/// Decimal digits of the greatest 64-bit integer.
const U64_DIGITS: u8 = 20;

/// Converts the columns that [`crate::base::value::value_at`] cannot read.
///
/// # Errors
/// `Evaluation` for a time whose year has no calendar date.
pub(super) fn convert(columns: &mut [ArrayRef]) -> Result<()> {
    for column in columns {
        if !has_values(column.data_type()) {
            *column = converted(column)?;
        }
    }
    Ok(())
}

impl Value {
    /// The rows of an Arrow batch, as the values of parameters. Values of types that no variant has become numbers or times if
    /// these are exact, otherwise texts.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use keyaki::{RecordBatch, Value};
    /// # use arrow::array::{ArrayRef, UInt8Array};
    ///
    /// let ids: ArrayRef = Arc::new(UInt8Array::from(vec![Some(1), None]));
    /// let batch = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    /// assert_eq!(Value::rows_of(&batch).unwrap(), [[Value::Integer(1)], [Value::Null]]);
    /// ```
    ///
    /// # Errors
    /// `Evaluation` for a time whose year has no calendar date.
    pub fn rows_of(batch: &RecordBatch) -> Result<Vec<Vec<Value>>> {
        let mut columns = batch.columns().to_vec();
        convert(&mut columns)?;
        let value = |column: &ArrayRef, row| {
            let value = value_at(column, row);
            value.map(ValueRef::to_owned).ok_or_else(|| Error::Internal("a column was not converted".into()))
        };
        (0..batch.num_rows()).map(|row| columns.iter().map(|column| value(column, row)).collect()).collect()
    }
}

fn converted(column: &ArrayRef) -> Result<ArrayRef> {
    if let Some(intervals) = intervals(column) {
        return Ok(Arc::new(intervals));
    }
    if let Some(lists) = arrays::lists(column)? {
        let mut elements = [lists.values().clone()];
        convert(&mut elements)?;
        let [elements] = elements;
        return Ok(Arc::new(arrays::with_elements(&lists, elements)));
    }
    let exact = exact_type(column).and_then(|ty| {
        // The cast fails if a value does not fit.
        let strict = CastOptions { safe: false, ..CastOptions::default() };
        cast_with_options(column, &ty, &strict).ok()
    });
    match exact {
        Some(values) if has_values(values.data_type()) => Ok(values),
        Some(values) => converted(&values),
        None => texts(column),
    }
}

/// The type that holds all values of the column exactly if the cast to it succeeds; `None` for text.
fn exact_type(column: &ArrayRef) -> Option<DataType> {
    Some(match column.data_type() {
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 => DataType::Int64,
        DataType::UInt64 => {
            let values = column.as_primitive::<UInt64Type>();
            match values.iter().flatten().all(|value| i64::try_from(value).is_ok()) {
                true => DataType::Int64,
                false => DataType::Decimal128(U64_DIGITS, 0),
            }
        }
        DataType::Float16 => DataType::Float32,
        DataType::Decimal32(precision, scale @ 0..) | DataType::Decimal64(precision, scale @ 0..) => {
            DataType::Decimal128(*precision, *scale)
        }
        DataType::Decimal256(_, scale) if (0..=DECIMAL_DIGITS_MAX as i8).contains(scale) => {
            DataType::Decimal128(DECIMAL_DIGITS_MAX, *scale)
        }
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..) => {
            // A negative scale.
            DataType::Decimal128(DECIMAL_DIGITS_MAX, 0)
        }
        DataType::Timestamp(TimeUnit::Nanosecond, zone) => {
            let values = column.as_primitive::<TimestampNanosecondType>();
            if !values.iter().flatten().all(|nanos| nanos % 1000 == 0) {
                return None;
            }
            DataType::Timestamp(TimeUnit::Microsecond, zone.clone())
        }
        DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Microsecond, zone.clone()),
        DataType::Date64 => DataType::Timestamp(TimeUnit::Microsecond, None),
        DataType::Time32(_) | DataType::Time64(TimeUnit::Nanosecond) => DataType::Time64(TimeUnit::Microsecond),
        DataType::FixedSizeBinary(_) => DataType::Binary,
        DataType::Dictionary(_, values) => (**values).clone(),
        DataType::RunEndEncoded(_, values) => values.data_type().clone(),
        _ => return None,
    })
}

fn texts(column: &ArrayRef) -> Result<ArrayRef> {
    let options = FormatOptions::new();
    let formatter = ArrayFormatter::try_new(column, &options)?;
    let nulls = column.logical_nulls();
    let mut texts = StringBuilder::with_capacity(column.len(), 16 * column.len());
    for row in 0..column.len() {
        match nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            true => texts.append_null(),
            false => texts.append_value(formatter.value(row).try_to_string()?),
        }
    }
    Ok(Arc::new(texts.finish()))
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        Date64Array, Decimal128Array, Decimal256Array, DictionaryArray, FixedSizeBinaryArray, Int32Array, ListArray,
        Time64NanosecondArray, TimestampNanosecondArray, TimestampSecondArray, UInt8Array, UInt64Array,
    };
    use arrow::datatypes::{Int8Type, Int64Type, i256};

    use super::*;
    use crate::base::value::{Value, value_at};

    fn values(array: impl Array + 'static) -> Vec<Value> {
        let mut columns = [Arc::new(array) as ArrayRef];
        convert(&mut columns).unwrap();
        (0..columns[0].len()).map(|row| value_at(&columns[0], row).unwrap().to_owned()).collect()
    }

    #[test]
    fn exact_values_are_widened() {
        use Value as V;
        assert_eq!(values(UInt8Array::from(vec![Some(255), None])), [V::Integer(255), V::Null]);
        assert_eq!(values(UInt64Array::from(vec![7])), [V::Integer(7)]);
        let max = V::Decimal { unscaled: u64::MAX.into(), scale: 0 };
        assert_eq!(values(UInt64Array::from(vec![Some(u64::MAX), None])), [max, V::Null]);
        assert_eq!(values(TimestampSecondArray::from(vec![-1])), [V::Timestamp(-1_000_000)]);
        let zoned = TimestampNanosecondArray::from(vec![1000]).with_timezone("UTC");
        assert_eq!(values(zoned), [V::TimestampTz(1)]);
        assert_eq!(values(Date64Array::from(vec![86_400_000])), [V::Timestamp(86_400_000_000)]);
        let wide = Decimal256Array::from(vec![i256::from(125)]).with_precision_and_scale(70, 2).unwrap();
        assert_eq!(values(wide), [V::Decimal { unscaled: 125, scale: 2 }]);
        let negative = Decimal128Array::from(vec![5]).with_precision_and_scale(5, -2).unwrap();
        assert_eq!(values(negative), [V::Decimal { unscaled: 500, scale: 0 }]);
        let words: DictionaryArray<Int8Type> = vec![Some("a"), None].into_iter().collect();
        assert_eq!(values(words), [V::Text("a".into()), V::Null]);
        assert_eq!(values(Time64NanosecondArray::from(vec![Some(1000), None])), [V::Time(1), V::Null]);
        let fixed = FixedSizeBinaryArray::try_from_iter([[1_u8, 2]].into_iter()).unwrap();
        assert_eq!(values(fixed), [V::Bytes(vec![1, 2])]);
    }

    #[test]
    fn other_values_become_text() {
        // No calendar has this year.
        assert!(convert(&mut [Arc::new(TimestampSecondArray::from(vec![10_000_000_000_000]))]).is_err());
        let precise = values(TimestampNanosecondArray::from(vec![1]));
        assert_eq!(precise, [Value::Text("1970-01-01T00:00:00.000000001".into())]);
        let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None]), None]);
        assert_eq!(values(lists), [Value::Array(vec![Value::Integer(1), Value::Null]), Value::Null]);
        assert_eq!(values(Int32Array::from(vec![1])), [Value::Integer(1)]);
    }
}

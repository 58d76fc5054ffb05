//! Images: order-preserving numbers for values of every type, so that one kind of histogram serves all columns.
//!
//! Invariant: if a value is less than another one, its image is not greater. Different values may have the same image.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    Time64MicrosecondType, TimeUnit, TimestampMicrosecondType,
};
use datafusion::common::ScalarValue;

/// Returns the image of a value: numbers as such (decimals scaled), booleans as 0 and 1, dates in days, timestamps in
/// microseconds, times of day in microseconds, text, bytes and UUIDs as the integer of their first 8 bytes. Returns `None` for null, for floats that are
/// not finite (statistics are stored as JSON, which has no such numbers), and for types that no column has.
///
/// The value must have its column's Arrow type; text and bytes may have any representation.
pub fn image(value: &ScalarValue) -> Option<f64> {
    match value {
        ScalarValue::Boolean(value) => value.map(|value| f64::from(u8::from(value))),
        ScalarValue::Int8(value) => value.map(f64::from),
        ScalarValue::Int16(value) => value.map(f64::from),
        ScalarValue::Int32(value) | ScalarValue::Date32(value) => value.map(f64::from),
        ScalarValue::Int64(value) => value.map(|value| value as f64),
        ScalarValue::Float32(value) => value.map(f64::from).filter(|value| value.is_finite()),
        ScalarValue::Float64(value) => value.filter(|value| value.is_finite()),
        ScalarValue::Decimal128(value, _, scale) => value.map(|value| scaled(value, *scale)),
        ScalarValue::Utf8(value) | ScalarValue::LargeUtf8(value) | ScalarValue::Utf8View(value) => {
            value.as_ref().map(|value| leading(value.as_bytes()))
        }
        ScalarValue::Binary(value) | ScalarValue::LargeBinary(value) | ScalarValue::BinaryView(value) => {
            value.as_ref().map(|value| leading(value))
        }
        ScalarValue::FixedSizeBinary(_, value) => value.as_ref().map(|value| leading(value)),
        ScalarValue::TimestampMicrosecond(value, _) | ScalarValue::Time64Microsecond(value) => {
            value.map(|value| value as f64)
        }
        _ => None,
    }
}

/// Images of the values of a column, as of [`image`].
pub(crate) fn images(array: &ArrayRef) -> Vec<Option<f64>> {
    macro_rules! numbers {
        ($ty:ty, $image:expr) => {
            array.as_primitive::<$ty>().iter().map(|value| value.map($image)).collect()
        };
    }
    match array.data_type() {
        DataType::Boolean => array.as_boolean().iter().map(|v| v.map(|v| f64::from(u8::from(v)))).collect(),
        DataType::Int8 => numbers!(Int8Type, f64::from),
        DataType::Int16 => numbers!(Int16Type, f64::from),
        DataType::Int32 => numbers!(Int32Type, f64::from),
        DataType::Date32 => numbers!(Date32Type, f64::from),
        DataType::Int64 => numbers!(Int64Type, |value| value as f64),
        DataType::Float32 => {
            array.as_primitive::<Float32Type>().iter().map(|v| v.map(f64::from).filter(|v| v.is_finite())).collect()
        }
        DataType::Float64 => array.as_primitive::<Float64Type>().iter().map(|v| v.filter(|v| v.is_finite())).collect(),
        DataType::Decimal128(_, scale) => numbers!(Decimal128Type, |value| scaled(value, *scale)),
        DataType::Timestamp(TimeUnit::Microsecond, _) => numbers!(TimestampMicrosecondType, |value| value as f64),
        DataType::Utf8View => array.as_string_view().iter().map(|v| v.map(|v| leading(v.as_bytes()))).collect(),
        DataType::BinaryView => array.as_binary_view().iter().map(|v| v.map(leading)).collect(),
        DataType::Time64(TimeUnit::Microsecond) => numbers!(Time64MicrosecondType, |value| value as f64),
        DataType::FixedSizeBinary(_) => array.as_fixed_size_binary().iter().map(|v| v.map(leading)).collect(),
        _ => vec![None; array.len()],
    }
}

fn scaled(value: i128, scale: i8) -> f64 {
    value as f64 / 10f64.powi(i32::from(scale))
}

/// The first 8 bytes as a big-endian integer, padded with zeros.
fn leading(bytes: &[u8]) -> f64 {
    let mut first = [0; 8];
    let len = bytes.len().min(8);
    first[..len].copy_from_slice(&bytes[..len]);
    u64::from_be_bytes(first) as f64
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::DataType;

    use super::*;

    #[test]
    fn arrays_and_scalars_have_the_same_images() {
        let texts = ["", "a", "ab", "abcdefgh", "b", "é"];
        let scalars = [
            ScalarValue::iter_to_array(texts.iter().map(|t| ScalarValue::Utf8View(Some((*t).into())))),
            ScalarValue::iter_to_array([-7i64, 0, 9].map(ScalarValue::from)),
            ScalarValue::iter_to_array([-700, 0, 901].map(|v| ScalarValue::Decimal128(Some(v), 12, 2))),
            ScalarValue::iter_to_array([Some(false), Some(true), None].map(ScalarValue::Boolean)),
            ScalarValue::iter_to_array([Some(-1), Some(20_000), None].map(ScalarValue::Date32)),
            ScalarValue::iter_to_array([Some(0), Some(20_000), None].map(ScalarValue::Time64Microsecond)),
            ScalarValue::iter_to_array([1, 2, 255].map(|v| ScalarValue::FixedSizeBinary(16, Some(vec![v; 16])))),
        ];
        for array in scalars.map(|array| array.expect("one type")) {
            let images = images(&array);
            for (row, expected) in images.iter().enumerate() {
                let scalar = ScalarValue::try_from_array(&array, row).expect("a scalar");
                assert_eq!(image(&scalar), *expected);
            }
            let known: Vec<f64> = images.into_iter().flatten().collect();
            assert!(known.is_sorted(), "{:?}: {known:?}", array.data_type());
        }
        assert_eq!(image(&ScalarValue::try_from(&DataType::Int64).expect("null")), None);
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let array = ScalarValue::Float64(Some(value)).to_array().expect("a float");
            assert_eq!((image(&ScalarValue::Float64(Some(value))), images(&array)), (None, vec![None]));
            let array = ScalarValue::Float32(Some(value as f32)).to_array().expect("a float");
            assert_eq!((image(&ScalarValue::Float32(Some(value as f32))), images(&array)), (None, vec![None]));
        }
    }
}

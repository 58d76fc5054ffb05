//! `width_bucket(operand, low, high, count)`: the bucket, of `count` with equal widths, that contains the operand.
//!
//! Integers and decimals are computed exactly, as in PostgreSQL; all other numbers as DOUBLE PRECISION.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array};
use arrow::datatypes::{DataType, Decimal128Type, FieldRef, Float64Type, Int32Type};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::functions::{arrays, result, strict_field, undefined};
use crate::{Error, Result};

/// Largest scale of decimals that are computed exactly: all integers fit beside it.
const SCALE_MAX: i8 = 18;

/// The function.
pub(crate) fn width_bucket() -> ScalarUDF {
    ScalarUDF::new_from_impl(WidthBucket { signature: Signature::user_defined(Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct WidthBucket {
    signature: Signature,
}

impl ScalarUDFImpl for WidthBucket {
    fn name(&self) -> &str {
        "width_bucket"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        let is_number = |ty: &DataType| ty.is_numeric() || ty.is_null();
        let [operand @ .., count] = types else { return Err(undefined("width_bucket", types)) };
        if operand.len() != 3 || !operand.iter().all(is_number) || !(count.is_integer() || count.is_null()) {
            return Err(undefined("width_bucket", types));
        }
        let scale = |ty: &DataType| match ty {
            DataType::Decimal128(_, scale) if (0..=SCALE_MAX).contains(scale) => Some(*scale),
            ty if ty.is_integer() || ty.is_null() => Some(0),
            _ => None,
        };
        let scales = operand.iter().map(scale).collect::<Option<Vec<_>>>();
        let scale = scales.and_then(|scales| scales.into_iter().max());
        let ty = scale.map_or(DataType::Float64, |scale| DataType::Decimal128(38, scale));
        Ok(vec![ty.clone(), ty.clone(), ty, DataType::Int32])
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Int32)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        Ok(strict_field(self.name(), DataType::Int32, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let (arrays, is_single) = arrays(&args)?;
        let counts = arrays[3].as_primitive::<Int32Type>();
        let buckets = (0..arrays[0].len()).map(|row| {
            if arrays.iter().any(|array| array.is_null(row)) {
                return Ok(None);
            }
            let count = counts.value(row);
            if count <= 0 {
                return Err(Error::Evaluation("count must be greater than zero".into()));
            }
            match arrays[0].data_type() {
                DataType::Float64 => {
                    let value = |place: usize| arrays[place].as_primitive::<Float64Type>().value(row);
                    of_floats(value(0), value(1), value(2), count)
                }
                _ => {
                    let value = |place: usize| arrays[place].as_primitive::<Decimal128Type>().value(row);
                    of_decimals(value(0), value(1), value(2), count)
                }
            }
            .map(Some)
        });
        let buckets: Int32Array = buckets.collect::<Result<_>>()?;
        result(Arc::new(buckets) as ArrayRef, is_single)
    }
}

/// The last bucket has the values from the upper bound.
fn last(count: i32) -> Result<i32> {
    count.checked_add(1).ok_or_else(|| Error::OutOfRange { ty: "integer".into(), value: None, column: None })
}

fn equal_bounds() -> Error {
    Error::Evaluation("lower bound cannot equal upper bound".into())
}

fn of_decimals(operand: i128, low: i128, high: i128, count: i32) -> Result<i32> {
    // From a lower bound that is greater than the upper one, buckets descend.
    let (operand, low, high) = if low > high { (-operand, -low, -high) } else { (operand, low, high) };
    if low == high {
        return Err(equal_bounds());
    }
    if operand < low {
        return Ok(0);
    }
    if operand >= high {
        return last(count);
    }
    let (distance, width) = (operand - low, high - low);
    Ok(match distance.checked_mul(i128::from(count)) {
        Some(product) => (product / width) as i32 + 1,
        None => (distance as f64 / width as f64 * f64::from(count)) as i32 + 1,
    })
}

fn of_floats(operand: f64, low: f64, high: f64, count: i32) -> Result<i32> {
    if operand.is_nan() || low.is_nan() || high.is_nan() {
        return Err(Error::Evaluation("operand, lower bound, and upper bound cannot be NaN".into()));
    }
    if low.is_infinite() || high.is_infinite() {
        return Err(Error::Evaluation("lower and upper bounds must be finite".into()));
    }
    let (operand, low, high) = if low > high { (-operand, -low, -high) } else { (operand, low, high) };
    if low >= high {
        return Err(equal_bounds());
    }
    if operand < low {
        return Ok(0);
    }
    if operand >= high {
        return last(count);
    }
    // Halves, so that the width is finite.
    let fraction = (operand / 2.0 - low / 2.0) / (high / 2.0 - low / 2.0);
    Ok((f64::from(count) * fraction).min(f64::from(count - 1)) as i32 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_equal_widths() {
        for (operand, low, high, count, expected) in [
            (535, 2, 1006, 5, 3),
            (-1, 0, 10, 5, 0),
            (10, 0, 10, 5, 6),
            (0, 0, 10, 5, 1),
            (9, 10, 0, 5, 1),
            (0, 10, 0, 5, 6),
        ] {
            assert_eq!(of_decimals(operand, low, high, count).unwrap(), expected);
            assert_eq!(of_floats(operand as f64, low as f64, high as f64, count).unwrap(), expected);
        }
        assert!(of_decimals(1, 2, 2, 5).is_err() && of_floats(f64::NAN, 0.0, 1.0, 5).is_err());
        assert_eq!(of_floats(0.0, -f64::MAX, f64::MAX, 2).unwrap(), 2);
    }
}

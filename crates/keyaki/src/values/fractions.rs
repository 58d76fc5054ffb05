//! The place of the value that `percentile_disc` returns.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::{DataType, FieldRef, Float64Type, Int64Type};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::functions::{arrays, result, strict_field};
use crate::{Error, Result};

/// The name of the function of a fraction and the number of values.
pub(crate) const PLACE: &str = "percentile_place";

/// The function [`PLACE`]: the first place, from 1, that is at least this fraction of the number of values.
pub(crate) fn place() -> ScalarUDF {
    let signature = Signature::exact(vec![DataType::Float64, DataType::Int64], Volatility::Immutable);
    ScalarUDF::new_from_impl(Place { signature })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Place {
    signature: Signature,
}

impl ScalarUDFImpl for Place {
    fn name(&self) -> &str {
        PLACE
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Int64)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        Ok(strict_field(PLACE, DataType::Int64, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let (arrays, is_single) = arrays(&args)?;
        let (fractions, counts) = (arrays[0].as_primitive::<Float64Type>(), arrays[1].as_primitive::<Int64Type>());
        let places = fractions.iter().zip(counts).map(|both| match both {
            (Some(fraction), Some(count)) => place_of(fraction, count).map(Some),
            _ => Ok(None),
        });
        let places: Int64Array = places.collect::<Result<_>>()?;
        result(Arc::new(places) as ArrayRef, is_single)
    }
}

/// # Errors
/// `Evaluation` for a fraction that is not between 0 and 1.
fn place_of(fraction: f64, count: i64) -> Result<i64> {
    match (0.0..=1.0).contains(&fraction) {
        true => Ok(((fraction * count as f64).ceil() as i64).max(1)),
        false => Err(Error::Evaluation(format!("percentile value {fraction} is not between 0 and 1"))),
    }
}

#[cfg(test)]
mod tests {
    use super::place_of;

    #[test]
    fn places_begin_with_one() {
        assert_eq!([0.0, 0.1, 0.25, 0.5, 1.0].map(|fraction| place_of(fraction, 4).unwrap()), [1, 1, 1, 2, 4]);
        for fraction in [-0.1, 1.1, f64::NAN] {
            assert!(place_of(fraction, 4).is_err());
        }
    }
}

//! `div`: the whole part of a quotient, as in PostgreSQL.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array};
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, FieldRef, i256};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::functions::{arrays, result, strict_field, undefined};
use crate::{Error, Result};

/// The type of the quotient.
const QUOTIENT: DataType = DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0);

/// The function.
pub(crate) fn div() -> ScalarUDF {
    ScalarUDF::new_from_impl(Div { signature: Signature::user_defined(Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Div {
    signature: Signature,
}

impl ScalarUDFImpl for Div {
    fn name(&self) -> &str {
        "div"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        let exact = |ty: &DataType| match ty {
            DataType::Decimal128(_, scale) => Some(DataType::Decimal128(DECIMAL128_MAX_PRECISION, *scale)),
            ty if ty.is_integer() || ty.is_null() => Some(QUOTIENT),
            _ => None,
        };
        let exact: Option<Vec<DataType>> = types.iter().map(exact).collect();
        exact.filter(|types| types.len() == 2).ok_or_else(|| undefined("div", types))
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(QUOTIENT)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        Ok(strict_field("div", QUOTIENT, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let (arrays, is_single) = arrays(&args)?;
        let scale = |array: &ArrayRef| match array.data_type() {
            DataType::Decimal128(_, scale) => i32::from(*scale),
            _ => 0,
        };
        let digits = scale(&arrays[1]) - scale(&arrays[0]);
        let (a, b) = (arrays[0].as_primitive::<Decimal128Type>(), arrays[1].as_primitive::<Decimal128Type>());
        let quotients = a.iter().zip(b).map(|both| match both {
            (Some(a), Some(b)) => quotient(a, b, digits).map(Some),
            _ => Ok(None),
        });
        let quotients: Decimal128Array = quotients.collect::<Result<_>>()?;
        result(Arc::new(quotients.with_precision_and_scale(DECIMAL128_MAX_PRECISION, 0)?) as ArrayRef, is_single)
    }
}

/// The whole part of `a / b * 10^digits`.
///
/// # Errors
/// `DivisionByZero`; `OutOfRange` for more than 38 digits.
fn quotient(a: i128, b: i128, digits: i32) -> Result<i128> {
    if b == 0 {
        return Err(Error::DivisionByZero);
    }
    // At most 10^38: the products fit into 256 bits.
    let power = i256::from_i128(10_i128.pow(digits.unsigned_abs()));
    let (mut a, mut b) = (i256::from_i128(a), i256::from_i128(b));
    if digits > 0 {
        a = a.wrapping_mul(power)
    } else {
        b = b.wrapping_mul(power)
    }
    let quotient = a.checked_div(b).and_then(i256::to_i128);
    quotient.ok_or_else(|| Error::OutOfRange { ty: "numeric".into(), value: None, column: None })
}

#[cfg(test)]
mod tests {
    use super::quotient;

    #[test]
    fn quotients_are_truncated() {
        assert_eq!(quotient(95, 2, -1).unwrap(), 4);
        assert_eq!(quotient(-9, 2, 0).unwrap(), -4);
        assert_eq!(quotient(955, 21, -1).unwrap(), 4);
        assert_eq!(quotient(7, 25, 1).unwrap(), 2);
        assert_eq!(quotient(10_i128.pow(38) - 1, 1, 0).unwrap(), 10_i128.pow(38) - 1);
        assert!(quotient(1, 0, 0).is_err() && quotient(10_i128.pow(37), 1, 20).is_err());
    }
}

//! `lcm` of decimals. The type of DataFusion's result has too few digits for it.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Decimal128Array};
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, DecimalType, FieldRef};
use datafusion::error::Result as DfResult;
use datafusion::functions::math;
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl};

use super::functions::{arrays, of_inner, result, strict_field};
use crate::{Error, Result};

/// The function.
pub(crate) fn lcm() -> ScalarUDF {
    ScalarUDF::new_from_impl(LeastMultiple { inner: math::lcm() })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct LeastMultiple {
    /// The function of integers.
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for LeastMultiple {
    of_inner!(name, aliases, signature, coerce_types, documentation);

    /// A multiple has more digits than the numbers.
    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        match &types[0] {
            DataType::Decimal128(_, scale) => Ok(DataType::Decimal128(DECIMAL128_MAX_PRECISION, *scale)),
            _ => self.inner.return_type(types),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        Ok(strict_field(self.name(), self.return_type(&types)?, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let DataType::Decimal128(_, scale) = args.args[0].data_type() else {
            return self.inner.invoke_with_args(args);
        };
        let (arrays, is_single) = arrays(&args)?;
        let [a, b] = [&arrays[0], &arrays[1]].map(|array| array.as_primitive::<Decimal128Type>());
        let multiple = |(a, b): (Option<i128>, Option<i128>)| match (a, b) {
            (Some(a), Some(b)) => multiple(a, b).map(Some),
            _ => Ok(None),
        };
        let multiples: Decimal128Array = a.iter().zip(b).map(multiple).collect::<Result<_>>()?;
        let multiples = multiples.with_precision_and_scale(DECIMAL128_MAX_PRECISION, scale)?;
        result(Arc::new(multiples) as ArrayRef, is_single)
    }
}

/// The least common multiple of the digits of two decimals with the same unit.
///
/// # Errors
/// `OutOfRange` for more than 38 digits.
fn multiple(a: i128, b: i128) -> Result<i128> {
    let (a, b) = (a.unsigned_abs(), b.unsigned_abs());
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    if divisor == 0 {
        return Ok(0);
    }
    let multiple = (a / divisor).checked_mul(b).and_then(|multiple| i128::try_from(multiple).ok());
    let is_valid =
        |multiple: &i128| Decimal128Type::validate_decimal_precision(*multiple, DECIMAL128_MAX_PRECISION, 0).is_ok();
    multiple.filter(is_valid).ok_or_else(|| Error::OutOfRange { ty: "numeric".into(), value: None, column: None })
}

#[cfg(test)]
mod tests {
    use super::multiple;

    #[test]
    fn multiples_have_the_unit_of_the_numbers() {
        assert_eq!(multiple(3_276_700, -255).unwrap(), 167_111_700);
        assert_eq!(multiple(0, 55).unwrap(), 0);
        assert_eq!(multiple(0, 0).unwrap(), 0);
        assert_eq!(multiple(i128::from(i64::MAX), 2).unwrap(), i128::from(i64::MAX) * 2);
        assert!(multiple(10_i128.pow(37), 10_i128.pow(37) + 1).is_err());
    }
}

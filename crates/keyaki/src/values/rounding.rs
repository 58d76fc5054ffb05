//! `ceil` and `floor` of decimals, whose results can have one digit more than their arguments.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Decimal128Array};
use arrow::compute::cast;
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, FieldRef, Float32Type, Float64Type};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::functions::{result, strict_field, undefined};

/// The functions of this module.
pub(crate) fn functions() -> [ScalarUDF; 2] {
    [false, true].map(|is_floor| {
        let aliases = if is_floor { Vec::new() } else { vec!["ceiling".to_string()] };
        ScalarUDF::new_from_impl(Rounding {
            is_floor,
            aliases,
            signature: Signature::user_defined(Volatility::Immutable),
        })
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Rounding {
    is_floor: bool,
    aliases: Vec<String>,
    signature: Signature,
}

impl ScalarUDFImpl for Rounding {
    fn name(&self) -> &str {
        if self.is_floor { "floor" } else { "ceil" }
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        match types {
            [ty @ (DataType::Float32 | DataType::Float64 | DataType::Decimal128(..))] => Ok(vec![ty.clone()]),
            [ty] if ty.is_integer() || *ty == DataType::Null => Ok(vec![DataType::Float64]),
            types => Err(undefined(self.name(), types)),
        }
    }

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        Ok(match &types[0] {
            DataType::Decimal128(precision, scale @ 1..) => {
                let whole = precision.saturating_sub(*scale as u8) + 1;
                DataType::Decimal128(whole.min(DECIMAL128_MAX_PRECISION), 0)
            }
            other => other.clone(),
        })
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        let ty = self.return_type(&[args.arg_fields[0].data_type().clone()])?;
        Ok(strict_field(self.name(), ty, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let is_single = matches!(args.args[0], ColumnarValue::Scalar(_));
        let values = args.args[0].to_array(if is_single { 1 } else { args.number_rows })?;
        let rounded: ArrayRef = match values.data_type() {
            DataType::Float32 => {
                let round = if self.is_floor { f32::floor } else { f32::ceil };
                Arc::new(values.as_primitive::<Float32Type>().unary::<_, Float32Type>(round))
            }
            DataType::Float64 => {
                let round = if self.is_floor { f64::floor } else { f64::ceil };
                Arc::new(values.as_primitive::<Float64Type>().unary::<_, Float64Type>(round))
            }
            DataType::Decimal128(_, scale @ 1..) => {
                // 10^38 fits into 128 bits.
                let unit = 10_i128.pow(u32::from(*scale as u8));
                let round = |value: i128| {
                    let whole = value.div_euclid(unit);
                    if self.is_floor || value.rem_euclid(unit) == 0 { whole } else { whole + 1 }
                };
                let whole: Decimal128Array = values.as_primitive::<Decimal128Type>().unary(round);
                Arc::new(whole.with_data_type(self.return_type(&[values.data_type().clone()])?))
            }
            DataType::Decimal128(..) => values,
            other => cast(&values, other)?,
        };
        result(rounded, is_single)
    }
}

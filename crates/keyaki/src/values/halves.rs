//! `round` of floats, which rounds halves to even as in PostgreSQL. Decimals, and floats with a number of digits, are
//! rounded by DataFusion: away from zero.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use datafusion::error::Result;
use datafusion::functions::math;
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl};

use super::functions::{arrays, of_inner, result};

/// The function.
pub(crate) fn round() -> ScalarUDF {
    ScalarUDF::new_from_impl(Round { inner: math::round() })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Round {
    /// DataFusion's function.
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for Round {
    of_inner!(name, aliases, signature, return_type, return_field_from_args, output_ordering, documentation);

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [number] = &args.args[..] else { return self.inner.invoke_with_args(args) };
        if !number.data_type().is_floating() {
            return self.inner.invoke_with_args(args);
        }
        let (arrays, is_single) = arrays(&args)?;
        let rounded: ArrayRef = match arrays[0].data_type() {
            DataType::Float32 => {
                Arc::new(arrays[0].as_primitive::<Float32Type>().unary::<_, Float32Type>(f32::round_ties_even))
            }
            DataType::Float64 => {
                Arc::new(arrays[0].as_primitive::<Float64Type>().unary::<_, Float64Type>(f64::round_ties_even))
            }
            _ => return self.inner.invoke_with_args(args),
        };
        result(rounded, is_single)
    }
}

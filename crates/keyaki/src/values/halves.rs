//! `round` of floats, which rounds halves to even as in PostgreSQL. Decimals, and floats with a number of digits, are
//! rounded by DataFusion: away from zero.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, FieldRef, Float32Type, Float64Type};
use datafusion::error::Result;
use datafusion::functions::math;
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

use super::functions::{arrays, result};

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
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        self.inner.output_ordering(inputs)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
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

//! The function that marks literals whose type depends on the values beside them. Its type is that of NULL, so that
//! DataFusion finds the type of the other values; a rule of the planner replaces the calls.

use arrow::datatypes::DataType;
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature};

use super::functions::any;
use crate::Error;

/// The name of the function.
pub(crate) const UNTYPED: &str = "keyaki_untyped";

/// The function.
pub(crate) fn untyped() -> ScalarUDF {
    ScalarUDF::new_from_impl(Untyped { signature: any(1) })
}

/// The literal of a text that is marked.
pub(crate) fn marked(expr: &Expr) -> Option<&Expr> {
    match expr {
        Expr::ScalarFunction(call) if call.func.inner().is::<Untyped>() => match &call.args[..] {
            [literal @ Expr::Literal(..)] => Some(literal),
            _ => None,
        },
        _ => None,
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Untyped {
    signature: Signature,
}

impl ScalarUDFImpl for Untyped {
    fn name(&self) -> &str {
        UNTYPED
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Null)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        Err(Error::Internal("a literal without a type".into()).into())
    }
}

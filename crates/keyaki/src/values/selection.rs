//! `coalesce`, for values of all types. DataFusion finds no common type of UUIDs or bytes and NULL.

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::type_coercion::binary::type_union_resolution;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, when,
};

use super::functions::undefined;
use crate::Error;

/// The function, with the names of other systems.
pub(crate) fn coalesce() -> ScalarUDF {
    let signature = Signature::user_defined(Volatility::Immutable);
    ScalarUDF::new_from_impl(Coalesce { signature, aliases: vec!["nvl".into(), "ifnull".into()] })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Coalesce {
    signature: Signature,
    aliases: Vec<String>,
}

impl ScalarUDFImpl for Coalesce {
    fn name(&self) -> &str {
        "coalesce"
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        let values: Vec<DataType> = types.iter().filter(|ty| !ty.is_null()).cloned().collect();
        let common = match &values[..] {
            [] => types.first().cloned(),
            [first, others @ ..] if others.iter().all(|other| other == first) => Some(first.clone()),
            values => type_union_resolution(values),
        };
        match common {
            Some(common) => Ok(vec![common; types.len()]),
            None => Err(undefined("coalesce", types)),
        }
    }

    fn return_type(&self, types: &[DataType]) -> DfResult<DataType> {
        let first = types.iter().find(|ty| !ty.is_null()).or(types.first());
        first.cloned().ok_or_else(|| undefined("coalesce", types))
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let is_nullable = args.arg_fields.iter().all(|field| field.is_nullable());
        Ok(Field::new("coalesce", self.return_type(&types)?, is_nullable).into())
    }

    fn short_circuits(&self) -> bool {
        true
    }

    fn conditional_arguments<'a>(&self, args: &'a [Expr]) -> Option<(Vec<&'a Expr>, Vec<&'a Expr>)> {
        let (first, others) = args.split_first()?;
        Some((vec![first], others.iter().collect()))
    }

    fn simplify(&self, mut args: Vec<Expr>, _: &SimplifyContext) -> DfResult<ExprSimplifyResult> {
        let Some(last) = args.pop() else { return Ok(ExprSimplifyResult::Original(args)) };
        let mut args = args.into_iter();
        let Some(first) = args.next() else { return Ok(ExprSimplifyResult::Simplified(last)) };
        let mut cases = when(first.clone().is_not_null(), first);
        for arg in args {
            cases = cases.when(arg.clone().is_not_null(), arg);
        }
        Ok(ExprSimplifyResult::Simplified(cases.otherwise(last)?))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        Err(Error::Internal("coalesce is evaluated as CASE".into()).into())
    }
}

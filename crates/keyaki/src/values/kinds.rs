//! `pg_typeof`, the name of the type of a value, and `isfinite`.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef, Float64Type};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::scalar::ScalarValue;

use super::functions::{any, arrays, result, strict_field, undefined};
use crate::base::type_name;

/// The functions of this module.
pub(crate) fn functions() -> [ScalarUDF; 2] {
    let is_finite = IsFinite { signature: Signature::user_defined(Volatility::Immutable) };
    [
        ScalarUDF::new_from_impl(TypeOf { signature: any(1), aliases: vec!["typeof".into()] }),
        ScalarUDF::new_from_impl(is_finite),
    ]
}

/// PostgreSQL's name of a type.
fn name_of(ty: &DataType) -> String {
    match ty {
        DataType::Decimal128(..) | DataType::Decimal256(..) => "numeric".into(),
        DataType::Timestamp(_, None) => "timestamp without time zone".into(),
        DataType::Time64(_) | DataType::Time32(_) => "time without time zone".into(),
        DataType::List(field) => format!("{}[]", name_of(field.data_type())),
        ty => type_name(ty),
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TypeOf {
    signature: Signature,
    aliases: Vec<String>,
}

impl ScalarUDFImpl for TypeOf {
    fn name(&self) -> &str {
        "pg_typeof"
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Utf8View)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let name = name_of(args.arg_fields[0].data_type());
        Ok(ColumnarValue::Scalar(ScalarValue::Utf8View(Some(name))))
    }
}

/// False for floats that are infinite or NaN. All dates, times and intervals are finite.
#[derive(Debug, PartialEq, Eq, Hash)]
struct IsFinite {
    signature: Signature,
}

impl ScalarUDFImpl for IsFinite {
    fn name(&self) -> &str {
        "isfinite"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        match types {
            [ty] if ty.is_numeric() || ty.is_temporal() || ty.is_null() => Ok(types.to_vec()),
            types => Err(undefined(self.name(), types)),
        }
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Boolean)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        Ok(strict_field(self.name(), DataType::Boolean, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let (arrays, is_single) = arrays(&args)?;
        let values = &arrays[0];
        let finite: BooleanArray = match values.data_type().is_floating() {
            true => {
                let floats = cast(values, &DataType::Float64)?;
                BooleanArray::from_unary(floats.as_primitive::<Float64Type>(), f64::is_finite)
            }
            false => (0..values.len()).map(|row| values.is_valid(row).then_some(true)).collect(),
        };
        result(Arc::new(finite) as ArrayRef, is_single)
    }
}

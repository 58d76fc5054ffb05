//! Kernels of this folder as functions of DataFusion, which the analyzer puts in the place of operators and casts.
//!
//! They are immutable and strict, and their types follow from the types of their arguments. The optimizer evaluates them
//! for constants like operators; the short path and index pipelines evaluate them like any other function.
//!
//! `of_inner` defines the methods of a function that calls one of DataFusion.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use arrow::array::{ArrayRef, Datum};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::type_coercion::binary::BinaryTypeCoercer;
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::{
    ColumnarValue, Expr, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::arithmetic::{Operation, compute, is_checked};
use super::floats;
use crate::Error;
use crate::base::tree::Tree;
use crate::base::type_name;

/// `left operator right` with checks; `None` if the operator needs none for these types, or is not arithmetic.
pub(crate) fn arithmetic(left: &Expr, operator: Operator, right: &Expr, types: (&DataType, &DataType)) -> Option<Expr> {
    let operation = match operator {
        Operator::Plus => Operation::Add,
        Operator::Minus => Operation::Subtract,
        Operator::Multiply => Operation::Multiply,
        Operator::Divide => Operation::Divide,
        Operator::Modulo => Operation::Remainder,
        _ => return None,
    };
    is_checked(operation, types.0, types.1)
        .then(|| call(Arithmetic { operator, operation, signature: any(2) }, vec![left.clone(), right.clone()]))
}

/// The floats of `expr` in canonical form.
pub(crate) fn canonical(expr: Expr) -> Expr {
    call(Canonical { signature: any(1) }, vec![expr])
}

/// True for a function of this folder.
pub(crate) fn is_own(function: &ScalarUDF) -> bool {
    let function = function.inner();
    function.is::<Arithmetic>() || function.is::<Canonical>()
}

/// Methods of a function that its field `inner`, a function of DataFusion, has as well.
macro_rules! of_inner {
    ($($method:ident),+) => { $($crate::values::functions::of_inner! { @$method })+ };
    (@name) => {
        fn name(&self) -> &str {
            self.inner.name()
        }
    };
    (@aliases) => {
        fn aliases(&self) -> &[String] {
            self.inner.aliases()
        }
    };
    (@signature) => {
        fn signature(&self) -> &datafusion::logical_expr::Signature {
            self.inner.signature()
        }
    };
    (@coerce_types) => {
        fn coerce_types(
            &self,
            types: &[arrow::datatypes::DataType],
        ) -> datafusion::error::Result<Vec<arrow::datatypes::DataType>> {
            self.inner.coerce_types(types)
        }
    };
    (@return_type) => {
        fn return_type(
            &self,
            types: &[arrow::datatypes::DataType],
        ) -> datafusion::error::Result<arrow::datatypes::DataType> {
            self.inner.return_type(types)
        }
    };
    (@documentation) => {
        fn documentation(&self) -> Option<&datafusion::logical_expr::Documentation> {
            self.inner.documentation()
        }
    };
    (@return_field_from_args) => {
        fn return_field_from_args(
            &self,
            args: datafusion::logical_expr::ReturnFieldArgs,
        ) -> datafusion::error::Result<arrow::datatypes::FieldRef> {
            self.inner.return_field_from_args(args)
        }
    };
    (@output_ordering) => {
        fn output_ordering(
            &self,
            inputs: &[datafusion::logical_expr::sort_properties::ExprProperties],
        ) -> datafusion::error::Result<datafusion::logical_expr::sort_properties::SortProperties> {
            self.inner.output_ordering(inputs)
        }
    };
    (@simplify) => {
        fn simplify(
            &self,
            args: Vec<datafusion::logical_expr::Expr>,
            info: &datafusion::logical_expr::simplify::SimplifyContext,
        ) -> datafusion::error::Result<datafusion::logical_expr::simplify::ExprSimplifyResult> {
            self.inner.simplify(args, info)
        }
    };
    // Aggregates.
    (@accumulator) => {
        fn accumulator(
            &self,
            args: datafusion::logical_expr::function::AccumulatorArgs,
        ) -> datafusion::error::Result<Box<dyn datafusion::logical_expr::Accumulator>> {
            self.inner.accumulator(args)
        }
    };
    (@create_sliding_accumulator) => {
        fn create_sliding_accumulator(
            &self,
            args: datafusion::logical_expr::function::AccumulatorArgs,
        ) -> datafusion::error::Result<Box<dyn datafusion::logical_expr::Accumulator>> {
            self.inner.create_sliding_accumulator(args)
        }
    };
    (@state_fields) => {
        fn state_fields(
            &self,
            args: datafusion::logical_expr::function::StateFieldsArgs,
        ) -> datafusion::error::Result<Vec<arrow::datatypes::FieldRef>> {
            self.inner.state_fields(args)
        }
    };
    (@groups_accumulator_supported) => {
        fn groups_accumulator_supported(&self, args: datafusion::logical_expr::function::AccumulatorArgs) -> bool {
            self.inner.groups_accumulator_supported(args)
        }
    };
    (@create_groups_accumulator) => {
        fn create_groups_accumulator(
            &self,
            args: datafusion::logical_expr::function::AccumulatorArgs,
        ) -> datafusion::error::Result<Box<dyn datafusion::logical_expr::GroupsAccumulator>> {
            self.inner.create_groups_accumulator(args)
        }
    };
    (@default_value) => {
        fn default_value(
            &self,
            ty: &arrow::datatypes::DataType,
        ) -> datafusion::error::Result<datafusion::common::ScalarValue> {
            self.inner.default_value(ty)
        }
    };
    (@is_nullable) => {
        fn is_nullable(&self) -> bool {
            self.inner.is_nullable()
        }
    };
    (@is_descending) => {
        fn is_descending(&self) -> Option<bool> {
            self.inner.is_descending()
        }
    };
    (@set_monotonicity) => {
        fn set_monotonicity(
            &self,
            ty: &arrow::datatypes::DataType,
        ) -> datafusion::logical_expr::SetMonotonicity {
            self.inner.inner().set_monotonicity(ty)
        }
    };
}
pub(in crate::values) use of_inner;

pub(super) fn call(function: impl ScalarUDFImpl + 'static, args: Vec<Expr>) -> Expr {
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(ScalarUDF::new_from_impl(function)), args))
}

pub(super) fn any(count: usize) -> Signature {
    Signature::any(count, Volatility::Immutable)
}

/// A field that is nullable if an argument is.
pub(super) fn strict_field(name: &str, ty: DataType, args: &ReturnFieldArgs<'_>) -> FieldRef {
    Arc::new(Field::new(name, ty, args.arg_fields.iter().any(|field| field.is_nullable())))
}

/// The error for arguments that a function does not have.
pub(super) fn undefined(name: &str, types: &[DataType]) -> DataFusionError {
    let types: Vec<String> = types.iter().map(type_name).collect();
    Error::UndefinedFunction { signature: format!("function {name}({})", types.join(", ")) }.into()
}

/// The types to which a function converts arguments.
///
/// # Errors
/// `UndefinedFunction` if it does not have such arguments.
pub(super) fn coerced(function: &ScalarUDF, types: &[DataType]) -> Result<Vec<DataType>> {
    let field = |ty: &DataType| -> FieldRef { Arc::new(Field::new("", ty.clone(), true)) };
    let fields: Vec<FieldRef> = types.iter().map(field).collect();
    let coerced = fields_with_udf(&fields, function).map_err(|_| undefined(function.name(), types))?;
    Ok(coerced.iter().map(|field| field.data_type().clone()).collect())
}

/// The arguments as arrays, and true if all are single values. The arrays have one row then.
pub(super) fn arrays(args: &ScalarFunctionArgs) -> Result<(Vec<ArrayRef>, bool)> {
    let is_single = args.args.iter().all(|value| matches!(value, ColumnarValue::Scalar(_)));
    let rows = if is_single { 1 } else { args.number_rows };
    Ok((args.args.iter().map(|value| value.to_array(rows)).collect::<Result<_>>()?, is_single))
}

/// An array of one value is a single value if all arguments are.
pub(super) fn result(array: ArrayRef, is_single: bool) -> Result<ColumnarValue> {
    Ok(if is_single {
        ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?)
    } else {
        ColumnarValue::Array(array)
    })
}

/// True for expressions of more parts than a readable name has.
fn is_large(args: &[Expr]) -> bool {
    const PARTS_MAX: usize = 64;
    let mut parts = 0;
    args.iter().any(|arg| {
        let mut is_last = |_: &Expr| {
            parts += 1;
            Ok(parts > PARTS_MAX)
        };
        arg.exists_dyn(&mut is_last).unwrap_or(false)
    })
}

/// A checked arithmetic operator.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Arithmetic {
    operator: Operator,
    operation: Operation,
    signature: Signature,
}

impl ScalarUDFImpl for Arithmetic {
    fn name(&self) -> &str {
        match self.operation {
            Operation::Add => "add",
            Operation::Subtract => "subtract",
            Operation::Multiply => "multiply",
            Operation::Divide => "divide",
            Operation::Remainder => "remainder",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    /// DataFusion makes the names of all parts of an expression, again for each part around them: the name of a long chain
    /// of operators has a hash in place of the operands.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        if is_large(args) {
            let mut hasher = DefaultHasher::new();
            args.hash(&mut hasher);
            return Ok(format!("{}({:016x})", self.name(), hasher.finish()));
        }
        let names: Vec<String> = args.iter().map(|arg| arg.schema_name().to_string()).collect();
        Ok(format!("{}({})", self.name(), names.join(",")))
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        BinaryTypeCoercer::new(&types[0], &self.operator, &types[1]).get_result_type()
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let types = [args.arg_fields[0].data_type().clone(), args.arg_fields[1].data_type().clone()];
        Ok(strict_field(self.name(), self.return_type(&types)?, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let operand = |value: &ColumnarValue| -> Result<Box<dyn Datum>> {
            Ok(match value {
                ColumnarValue::Array(array) => Box::new(array.clone()),
                ColumnarValue::Scalar(scalar) => Box::new(scalar.to_scalar()?),
            })
        };
        let values = compute(self.operation, operand(&args.args[0])?.as_ref(), operand(&args.args[1])?.as_ref())?;
        let is_single = args.args.iter().all(|value| matches!(value, ColumnarValue::Scalar(_)));
        result(values, is_single)
    }
}

/// Canonical floats.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Canonical {
    signature: Signature,
}

impl ScalarUDFImpl for Canonical {
    fn name(&self) -> &str {
        "canonical"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types[0].clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(strict_field(self.name(), args.arg_fields[0].data_type().clone(), &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match &args.args[0] {
            ColumnarValue::Array(array) => Ok(ColumnarValue::Array(floats::canonical(array))),
            ColumnarValue::Scalar(scalar) => result(floats::canonical(&scalar.to_array()?), true),
        }
    }
}

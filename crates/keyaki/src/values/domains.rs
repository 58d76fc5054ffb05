//! Functions of numbers that fail outside of their domain, and where the result is too large, as in PostgreSQL.
//!
//! DataFusion's functions return NaN, infinity or zero there. A batch is computed first. Only if a result is not an
//! ordinary number, the arguments of its row are examined: NaN and infinity are results of NaN and infinity.
//!
//! As in PostgreSQL, REAL becomes DOUBLE PRECISION.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array};
use arrow::compute::{binary, cast};
use arrow::datatypes::{DataType, Float64Type};
use datafusion::error::Result as DfResult;
use datafusion::functions::math;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature};

use super::functions::{arrays, coerced, of_inner, result};
use crate::base::type_name;
use crate::{Error, Result};

/// The names of the functions.
pub(crate) const NAMES: [&str; 16] = [
    "acos", "acosh", "asin", "atanh", "cos", "cot", "degrees", "exp", "ln", "log", "log10", "log2", "power", "sin",
    "sqrt", "tan",
];

/// The functions of this module.
pub(crate) fn functions() -> impl Iterator<Item = ScalarUDF> {
    [
        (math::acos(), Kind::Inverse),
        (math::acosh(), Kind::Inverse),
        (math::asin(), Kind::Inverse),
        (math::atanh(), Kind::Inverse),
        (math::cos(), Kind::Periodic),
        (math::cot(), Kind::Periodic),
        (math::degrees(), Kind::Degrees),
        (math::exp(), Kind::Exponential),
        (math::ln(), Kind::Logarithm),
        (math::log(), Kind::Logarithm),
        (math::log10(), Kind::Logarithm),
        (math::log2(), Kind::Logarithm),
        (math::power(), Kind::Power),
        (math::sin(), Kind::Periodic),
        (math::sqrt(), Kind::Root),
        (math::tan(), Kind::Periodic),
    ]
    .into_iter()
    .map(|(inner, kind)| {
        let signature = Signature::user_defined(inner.signature().volatility);
        ScalarUDF::new_from_impl(Checked { inner, kind, signature })
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// Of numbers in an interval.
    Inverse,
    /// Of finite numbers.
    Periodic,
    Degrees,
    Exponential,
    /// `(number)` or `(base, number)`.
    Logarithm,
    Power,
    Root,
}

impl Kind {
    /// True for a result that an argument may not have. Faster than [`Kind::check`].
    fn is_suspect(self, result: f64) -> bool {
        match self {
            Kind::Exponential | Kind::Logarithm | Kind::Power => !result.is_normal(),
            _ => !result.is_finite(),
        }
    }

    /// Checks the arguments and the result of a row.
    ///
    /// # Errors
    /// `InvalidLogarithm`, `InvalidPower`, `DivisionByZero`, `OutOfRange`.
    fn check(self, args: &[f64], result: f64, name: &str, ty: &DataType) -> Result<()> {
        let out_of_domain = || Err(Error::OutOfRange { ty: format!("argument of {name}"), value: None, column: None });
        let out_of_range = || Err(Error::OutOfRange { ty: type_name(ty), value: None, column: None });
        let is_finite = args.iter().all(|arg| arg.is_finite());
        match (self, args) {
            (Kind::Inverse | Kind::Periodic, [arg]) if result.is_nan() && !arg.is_nan() => out_of_domain(),
            (Kind::Degrees, _) if result.is_infinite() && is_finite => out_of_range(),
            (Kind::Exponential, _) if (result.is_infinite() || result == 0.0) && is_finite => out_of_range(),
            (Kind::Logarithm, args) => {
                for arg in args {
                    if *arg == 0.0 {
                        return Err(Error::InvalidLogarithm("cannot take logarithm of zero"));
                    }
                    if *arg < 0.0 {
                        return Err(Error::InvalidLogarithm("cannot take logarithm of a negative number"));
                    }
                }
                match args {
                    [base, _] if *base == 1.0 => Err(Error::DivisionByZero),
                    _ => Ok(()),
                }
            }
            (Kind::Root, [arg]) if *arg < 0.0 => {
                Err(Error::InvalidPower("cannot take square root of a negative number"))
            }
            (Kind::Power, [base, exponent]) => {
                if *base == 0.0 && *exponent < 0.0 {
                    return Err(Error::InvalidPower("zero raised to a negative power is undefined"));
                }
                if *base < 0.0 && exponent.floor() != *exponent && !exponent.is_nan() {
                    let problem = "a negative number raised to a non-integer power yields a complex result";
                    return Err(Error::InvalidPower(problem));
                }
                let is_lost = result.is_infinite() || result == 0.0 && *base != 0.0;
                if is_lost && is_finite { out_of_range() } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }
}

/// A function of DataFusion with checks.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Checked {
    inner: Arc<ScalarUDF>,
    kind: Kind,
    signature: Signature,
}

impl Checked {
    fn compute(&self, args: &ScalarFunctionArgs) -> DfResult<ArrayRef> {
        // DataFusion's function checks some of the numbers itself.
        let array: ArrayRef = match self.kind {
            Kind::Root => {
                let (arrays, _) = arrays(args)?;
                let numbers = cast(&arrays[0], &DataType::Float64)?;
                Arc::new(numbers.as_primitive::<Float64Type>().unary::<_, Float64Type>(f64::sqrt))
            }
            Kind::Power => {
                let (arrays, _) = arrays(args)?;
                let floats = |i: usize| arrays[i].as_primitive_opt::<Float64Type>();
                let (Some(bases), Some(exponents)) = (floats(0), floats(1)) else {
                    return self.inner.invoke_with_args(args.clone())?.to_array(args.number_rows);
                };
                let powers: Float64Array = binary(bases, exponents, f64::powf)?;
                Arc::new(powers)
            }
            _ => {
                let is_single = args.args.iter().all(|value| matches!(value, ColumnarValue::Scalar(_)));
                self.inner.invoke_with_args(args.clone())?.to_array(if is_single { 1 } else { args.number_rows })?
            }
        };
        Ok(array)
    }

    fn check_all(&self, results: &Float64Array, args: &ScalarFunctionArgs) -> DfResult<()> {
        let is_suspect = |result: f64| self.kind.is_suspect(result);
        // Without a branch for each value.
        if !results.values().iter().fold(false, |any, result| any | is_suspect(*result)) {
            return Ok(());
        }
        let (arrays, _) = arrays(args)?;
        let arrays: Vec<ArrayRef> =
            arrays.iter().map(|array| cast(array, &DataType::Float64)).collect::<std::result::Result<_, _>>()?;
        let mut row_args = vec![0.0; arrays.len()];
        for row in (0..results.len()).filter(|row| results.is_valid(*row) && is_suspect(results.value(*row))) {
            for (arg, array) in row_args.iter_mut().zip(&arrays) {
                *arg = array.as_primitive::<Float64Type>().value(row);
            }
            self.kind.check(&row_args, results.value(row), self.name(), &DataType::Float64)?;
        }
        Ok(())
    }
}

impl ScalarUDFImpl for Checked {
    of_inner!(name, aliases, return_type, return_field_from_args, output_ordering, documentation);

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DfResult<Vec<DataType>> {
        let wide = |ty: &DataType| if *ty == DataType::Float32 { DataType::Float64 } else { ty.clone() };
        coerced(&self.inner, &types.iter().map(wide).collect::<Vec<_>>())
    }

    fn is_strict(&self) -> bool {
        true
    }

    /// Not that of the logarithm, which does not check its arguments.
    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> DfResult<ExprSimplifyResult> {
        match self.kind {
            Kind::Power => self.inner.simplify(args, info),
            _ => Ok(ExprSimplifyResult::Original(args)),
        }
    }

    fn evaluate_bounds(&self, inputs: &[&Interval]) -> DfResult<Interval> {
        self.inner.evaluate_bounds(inputs)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let is_single = args.args.iter().all(|value| matches!(value, ColumnarValue::Scalar(_)));
        let results = self.compute(&args)?;
        if let Some(results) = results.as_primitive_opt::<Float64Type>() {
            self.check_all(results, &args)?;
        }
        result(results, is_single)
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::DataType;

    use super::Kind;

    fn state(kind: Kind, args: &[f64], result: f64) -> Option<&'static str> {
        let checked = match kind.is_suspect(result) {
            true => kind.check(args, result, "f", &DataType::Float64),
            false => Ok(()),
        };
        checked.err().map(|error| error.sqlstate().code())
    }

    #[test]
    fn arguments_outside_of_the_domain_are_errors() {
        for (kind, args, result, expected) in [
            (Kind::Inverse, &[2.0][..], f64::NAN, Some("22003")),
            (Kind::Inverse, &[f64::NAN], f64::NAN, None),
            (Kind::Periodic, &[f64::INFINITY], f64::NAN, Some("22003")),
            (Kind::Exponential, &[1000.0], f64::INFINITY, Some("22003")),
            (Kind::Exponential, &[-1000.0], 0.0, Some("22003")),
            (Kind::Exponential, &[f64::NEG_INFINITY], 0.0, None),
            (Kind::Logarithm, &[0.0], f64::NEG_INFINITY, Some("2201E")),
            (Kind::Logarithm, &[-1.0], f64::NAN, Some("2201E")),
            (Kind::Logarithm, &[0.0, 1.0], -0.0, Some("2201E")),
            (Kind::Logarithm, &[1.0, 10.0], f64::INFINITY, Some("22012")),
            (Kind::Logarithm, &[2.0, 1.0], 0.0, None),
            (Kind::Root, &[-1.0], f64::NAN, Some("2201F")),
            (Kind::Root, &[f64::INFINITY], f64::INFINITY, None),
            (Kind::Power, &[0.0, -1.0], f64::INFINITY, Some("2201F")),
            (Kind::Power, &[-8.0, 0.5], f64::NAN, Some("2201F")),
            (Kind::Power, &[f64::NEG_INFINITY, 3.0], f64::NEG_INFINITY, None),
            (Kind::Power, &[10.0, 400.0], f64::INFINITY, Some("22003")),
            (Kind::Power, &[10.0, -400.0], 0.0, Some("22003")),
            (Kind::Power, &[0.0, 2.0], 0.0, None),
        ] {
            assert_eq!(state(kind, args, result), expected, "{kind:?} {args:?}");
        }
    }
}

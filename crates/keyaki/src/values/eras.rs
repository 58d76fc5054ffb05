//! The decade, century and millennium of a year, as in PostgreSQL: the first century begins with the year 1, and no
//! century has the number 0.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int32Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef, Int32Type};
use datafusion::error::Result as DfResult;
use datafusion::logical_expr::{ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature};

use super::functions::{any, arrays, call, result, strict_field};

/// The number of a part of a time, of which `year` is the year; `None` for other parts.
pub(crate) fn of_year(part: &str, year: Expr) -> Option<Expr> {
    let years = years(part)?;
    Some(call(Era { years, signature: any(1) }, vec![year]))
}

/// The years of a part.
pub(crate) fn years(part: &str) -> Option<i32> {
    Some(match part.to_ascii_lowercase().as_str() {
        "decade" | "decades" => 10,
        "century" | "centuries" => 100,
        "millennium" | "millennia" => 1000,
        _ => return None,
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Era {
    years: i32,
    signature: Signature,
}

impl ScalarUDFImpl for Era {
    fn name(&self) -> &str {
        match self.years {
            10 => "decade",
            100 => "century",
            _ => "millennium",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DfResult<DataType> {
        Ok(DataType::Int32)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DfResult<FieldRef> {
        Ok(strict_field(self.name(), DataType::Int32, &args))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DfResult<ColumnarValue> {
        let (arrays, is_single) = arrays(&args)?;
        let years = cast(&arrays[0], &DataType::Int32)?;
        let numbers: Int32Array = years.as_primitive::<Int32Type>().unary(|year| number(year, self.years));
        result(Arc::new(numbers) as ArrayRef, is_single)
    }
}

/// The number of the era of a year. The year 0 is 1 BC.
fn number(year: i32, years: i32) -> i32 {
    match years {
        10 => year.div_euclid(10),
        years if year > 0 => (year - 1) / years + 1,
        years => year / years - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn eras_have_no_number_zero() {
        for (year, years, expected) in [
            (2024, 100, 21),
            (2000, 100, 20),
            (1, 100, 1),
            (0, 100, -1),
            (-99, 100, -1),
            (-100, 100, -2),
            (2001, 1000, 3),
            (2000, 1000, 2),
            (1999, 10, 199),
            (-1, 10, -1),
        ] {
            assert_eq!(number(year, years), expected, "{year} {years}");
        }
    }
}

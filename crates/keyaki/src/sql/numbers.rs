//! Numbers with an exponent that are not decimals.
//!
//! DataFusion reads every number with a point or an exponent as a decimal and refuses those outside of its range.
//! [`as_floats`] makes them values of type DOUBLE PRECISION.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{CastKind, DataType, ExactNumberInfo, Expr, Value, VisitMut, VisitorMut};

/// Maximum number of digits of a decimal.
const DIGITS_MAX: i64 = 38;

/// Replaces numbers with an exponent that have too many digits for a decimal.
pub(crate) fn as_floats(node: &mut impl VisitMut) {
    let _ = node.visit(&mut AsFloats);
}

struct AsFloats;

impl VisitorMut for AsFloats {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Value(value) = expr
            && let Value::Number(number, _) = &value.value
            && !is_decimal(number)
        {
            let text = Expr::Value(Value::SingleQuotedString(number.clone()).into());
            let data_type = DataType::Double(ExactNumberInfo::None);
            *expr = Expr::Cast { kind: CastKind::Cast, expr: Box::new(text), data_type, array: false, format: None };
        }
        ControlFlow::Continue(())
    }
}

/// False for a number with an exponent whose digits, with all zeros, exceed those of a decimal.
fn is_decimal(number: &str) -> bool {
    let Some((mantissa, exponent)) = number.split_once(['e', 'E']) else { return true };
    let Ok(exponent) = exponent.parse::<i64>() else { return false };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let (whole, fraction) = (whole.len() as i64, fraction.len() as i64);
    let after_point = fraction.saturating_sub(exponent).max(0);
    whole.saturating_add(exponent).max(0).saturating_add(after_point) <= DIGITS_MAX && after_point <= DIGITS_MAX
}

#[cfg(test)]
mod tests {
    use super::is_decimal;

    #[test]
    fn numbers_with_too_many_digits_are_floats() {
        for decimal in ["1", "1.5", "1e3", "1.5E+10", "1e-38", "12.5e30", "123456789012345678901234567890"] {
            assert!(is_decimal(decimal), "{decimal}");
        }
        for float in ["1e300", "1e-300", "1e38", "0.5e-38", "1e99999999999999999999"] {
            assert!(!is_decimal(float), "{float}");
        }
    }
}

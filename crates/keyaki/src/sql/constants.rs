//! Constants that DataFusion reads with another type.
//!
//! - It reads every number with a point or an exponent as a decimal and refuses those outside of its range. [`typed`] makes
//!   them values of type DOUBLE PRECISION. So are the numbers beside them in a column of VALUES, which DataFusion would
//!   convert to decimals. It gives `1e3` a negative scale, with which its arithmetic fails: other numbers with an exponent
//!   are written without it.
//! - DataFusion has no types JSON and JSONB. A cast to them is the function `json` or `jsonb`.
//! - `X'00'` is not of the type of BYTEA columns, and some functions do not accept both.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    CastKind, DataType, ExactNumberInfo, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
    FunctionArguments, Ident, ObjectName, ObjectNamePart, Query, SetExpr, UnaryOperator, Value, VisitMut, VisitorMut,
};

use crate::sql::visit::walk_mut;
use crate::values::cast::plain_decimal;
use crate::values::json::JSONB;

/// Maximum number of digits of a decimal.
const DIGITS_MAX: i64 = 38;

/// Replaces constants by constants with a cast to their type.
pub(crate) fn typed(node: &mut impl VisitMut) {
    let _ = walk_mut(node, &mut Typed);
}

struct Typed;

impl VisitorMut for Typed {
    type Break = ();

    /// A column of VALUES with a float has floats only, and texts have the type of the values beside them.
    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if let SetExpr::Values(values) = query.body.as_mut() {
            let width = values.rows.iter().map(|row| row.len()).max().unwrap_or(0);
            for column in 0..width {
                if values.rows.iter().any(|row| row.get(column).is_some_and(is_float)) {
                    let cells = values.rows.iter_mut().filter_map(|row| row.get_mut(column));
                    cells.for_each(convert_number);
                }
                let ty = values.rows.iter().find_map(|row| row.get(column).and_then(type_of));
                if let Some(ty) = ty {
                    let cells = values.rows.iter_mut().filter_map(|row| row.get_mut(column));
                    cells.filter(|cell| is_text(cell)).for_each(|cell| *cell = cast(cell.clone(), ty.clone()));
                }
                if values.rows.iter().any(|row| row.get(column).is_some_and(is_exact_number)) {
                    let cells = values.rows.iter_mut().filter_map(|row| row.get_mut(column));
                    cells.for_each(|cell| number_of(cell).into_iter().for_each(|number| *cell = number));
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Value(value) = expr
            && let Value::Number(number, _) = &value.value
        {
            match is_decimal(number) {
                false => convert_number(expr),
                true => without_exponent(number).into_iter().for_each(|plain| *expr = plain),
            }
        }
        if let Expr::Value(value) = expr
            && let Value::HexStringLiteral(_) = &value.value
        {
            *expr = cast(expr.clone(), DataType::Bytea);
        }
        if let Some((name, document)) = cast_to_json(expr) {
            *expr = function(name, document);
        }
        ControlFlow::Continue(())
    }
}

/// The type of a value of VALUES that texts beside it get; `None` for texts, decimals, which can have more digits, and
/// values whose type is not known here.
fn type_of(value: &Expr) -> Option<DataType> {
    let is_exact =
        |ty: &&DataType| !is_json(ty) && !matches!(ty, DataType::Decimal(_) | DataType::Numeric(_) | DataType::Dec(_));
    match value {
        Expr::Nested(inner) => type_of(inner),
        Expr::TypedString(typed) => Some(&typed.data_type).filter(is_exact).cloned(),
        Expr::Cast { data_type, array: false, .. } => Some(data_type).filter(is_exact).cloned(),
        Expr::Value(value) => match value.value {
            Value::Boolean(_) => Some(DataType::Boolean),
            _ => None,
        },
        _ => None,
    }
}

/// True for a decimal, also below signs.
fn is_exact_number(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(expr) | Expr::UnaryOp { expr, .. } => is_exact_number(expr),
        Expr::Cast { data_type: DataType::Decimal(_) | DataType::Numeric(_) | DataType::Dec(_), .. } => true,
        Expr::Value(value) => matches!(&value.value, Value::Number(number, _) if number.contains('.')),
        _ => false,
    }
}

/// The number that a text is, with all its digits; `None` for other texts and expressions.
fn number_of(expr: &Expr) -> Option<Expr> {
    let Expr::Value(value) = expr else { return None };
    let Value::SingleQuotedString(text) = &value.value else { return None };
    let text = text.trim();
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit()) || !digits.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let number = Expr::Value(Value::Number(digits.into(), false).into());
    Some(match digits.len() == text.len() {
        true => number,
        false => Expr::UnaryOp { op: UnaryOperator::Minus, expr: Box::new(number) },
    })
}

/// True for the literal of a text.
pub(crate) fn is_text(expr: &Expr) -> bool {
    matches!(expr, Expr::Value(value) if matches!(value.value, Value::SingleQuotedString(_)))
}

/// The function of a cast to JSON or JSONB, and the operand.
fn cast_to_json(expr: &Expr) -> Option<(&'static str, Expr)> {
    let function = |ty: &DataType| if *ty == DataType::JSONB { JSONB } else { "json" };
    match expr {
        Expr::Cast { kind: CastKind::Cast | CastKind::DoubleColon, expr, data_type, array: false, format: None }
            if is_json(data_type) =>
        {
            Some((function(data_type), expr.as_ref().clone()))
        }
        Expr::TypedString(typed) if is_json(&typed.data_type) => {
            Some((function(&typed.data_type), Expr::Value(typed.value.clone())))
        }
        _ => None,
    }
}

fn is_json(ty: &DataType) -> bool {
    matches!(ty, DataType::JSON | DataType::JSONB)
}

fn function(name: &str, argument: Expr) -> Expr {
    let argument = FunctionArg::Unnamed(FunctionArgExpr::Expr(argument));
    Expr::Function(Function {
        name: ObjectName(vec![ObjectNamePart::Identifier(Ident::new(name))]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: vec![argument],
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

/// True for a number converted by this module, also below a sign.
fn is_float(expr: &Expr) -> bool {
    match expr {
        Expr::Cast { data_type: DataType::Double(ExactNumberInfo::None), .. } => true,
        Expr::UnaryOp { expr, .. } | Expr::Nested(expr) => is_float(expr),
        _ => false,
    }
}

/// Replaces a number, also below a sign, by a value of type DOUBLE PRECISION.
fn convert_number(expr: &mut Expr) {
    match expr {
        Expr::UnaryOp { expr, .. } | Expr::Nested(expr) => convert_number(expr),
        // A number without its exponent.
        Expr::Cast { data_type: data_type @ DataType::Decimal(_), .. } => {
            *data_type = DataType::Double(ExactNumberInfo::None);
        }
        Expr::Value(value) => {
            if let Value::Number(number, _) = &value.value {
                let text = Expr::Value(Value::SingleQuotedString(number.clone()).into());
                *expr = cast(text, DataType::Double(ExactNumberInfo::None));
            }
        }
        _ => {}
    }
}

fn cast(expr: Expr, data_type: DataType) -> Expr {
    Expr::Cast { kind: CastKind::Cast, expr: Box::new(expr), data_type, array: false, format: None }
}

/// A decimal without the exponent of its literal: a whole number is a decimal, too, not an integer.
fn without_exponent(number: &str) -> Option<Expr> {
    let text = plain_decimal(number)?;
    if text.contains('.') {
        return Some(Expr::Value(Value::Number(text, false).into()));
    }
    let precision = text.trim_start_matches('0').len().max(1) as u64;
    let ty = DataType::Decimal(ExactNumberInfo::PrecisionAndScale(precision, 0));
    Some(cast(Expr::Value(Value::SingleQuotedString(text).into()), ty))
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
    use super::{is_decimal, without_exponent};

    #[test]
    fn decimals_are_written_without_exponents() {
        for (number, expected) in [
            ("1e3", "CAST('1000' AS DECIMAL(4,0))"),
            ("1.5E+3", "CAST('1500' AS DECIMAL(4,0))"),
            ("0e5", "CAST('000000' AS DECIMAL(1,0))"),
            ("12.345e1", "123.45"),
            ("5e-3", "0.005"),
            ("1.5e-1", "0.15"),
            (".5e1", "CAST('5' AS DECIMAL(1,0))"),
        ] {
            assert_eq!(without_exponent(number).unwrap().to_string(), expected, "{number}");
        }
    }

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

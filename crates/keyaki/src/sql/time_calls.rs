//! Parts of times, and functions of times in DuckDB and SQLite, as expressions of other functions.
//!
//! | form | becomes |
//! |---|---|
//! | `extract(second FROM t)`, `extract(millisecond FROM t)` | numbers with the fraction, of microseconds |
//! | `year(t)`, `month(t)` … `isodow(t)` | `extract(part FROM t)` |
//! | `dayname(t)`, `monthname(t)` | `to_char` |
//! | `last_day(t)` | the day before the first day of the next month |
//! | `date_diff('day', a, b)`, `datediff` | the difference of two truncated times |
//! | `(a, b) OVERLAPS (c, d)` | comparisons of the earlier and later ends |

use datafusion::sql::sqlparser::ast::{BinaryOperator, DateTimeField, Expr, Value};

use super::parameters::call;
use crate::{Error, Result};

/// The expression in place of a part of a time or of OVERLAPS; `None` for other expressions.
///
/// # Errors
/// `Syntax` for operands of OVERLAPS that are not pairs.
pub(super) fn part(expr: &Expr) -> Result<Option<Expr>> {
    match expr {
        Expr::Extract { field, expr, .. } => {
            let name = match field {
                DateTimeField::Custom(name) => name.value.clone(),
                field => field.to_string(),
            };
            extracted(&name, expr)
        }
        Expr::BinaryOp { left, op: BinaryOperator::Overlaps, right } => overlaps(left, right).map(Some),
        _ => Ok(None),
    }
}

/// A part that is not an integer, or that DataFusion does not have.
fn extracted(name: &str, time: &Expr) -> Result<Option<Expr>> {
    let name = name.to_ascii_lowercase();
    let units = match name.as_str() {
        "second" | "seconds" => 1_000_000,
        "millisecond" | "milliseconds" => 1000,
        _ => return Ok(None),
    };
    // The quotient has all digits of the microseconds.
    let (factor, digits) = if units == 1000 { ("0.001", 3) } else { ("0.000001", 6) };
    let template = format!(
        "CAST(CAST(date_part('microsecond', NULL) AS DECIMAL(14, 0)) * {factor} AS DECIMAL({}, {digits}))",
        8 + digits
    );
    call(&template, [time.clone()]).map(Some)
}

/// The expression in place of a function of times; `None` for other functions.
///
/// # Errors
/// `Unsupported` for an unknown unit.
pub(super) fn replaced(name: &str, args: &[Expr]) -> Result<Option<Expr>> {
    const PARTS: [(&str, &str); 14] = [
        ("year", "year"),
        ("quarter", "quarter"),
        ("month", "month"),
        ("week", "week"),
        ("weekofyear", "week"),
        ("day", "day"),
        ("dayofmonth", "day"),
        ("dayofyear", "doy"),
        ("dayofweek", "dow"),
        ("weekday", "dow"),
        ("isodow", "isodow"),
        ("isoyear", "isoyear"),
        ("hour", "hour"),
        ("minute", "minute"),
    ];
    Ok(Some(match (name, args) {
        // Truncated, as in DuckDB and MySQL.
        ("second", [time]) => call("CAST(date_part('second', NULL) AS BIGINT)", [time.clone()])?,
        ("date_part" | "datepart", [unit, time]) => {
            let Some(unit) = text(unit) else { return Ok(None) };
            match extracted(unit, time)? {
                Some(part) => call("CAST(NULL AS DOUBLE PRECISION)", [part])?,
                None => return Ok(None),
            }
        }
        ("dayname", [time]) => call("to_char(NULL, 'FMDay')", [time.clone()])?,
        ("monthname", [time]) => call("to_char(NULL, 'FMMonth')", [time.clone()])?,
        ("last_day", [time]) => {
            let last = "CAST(date_trunc('month', NULL) + INTERVAL '1 month' - INTERVAL '1 day' AS DATE)";
            call(last, [time.clone()])?
        }
        ("date_diff" | "datediff", [unit, from, to]) => {
            let Some(unit) = text(unit) else { return Ok(None) };
            difference(unit, from, to)?
        }
        (name, [time]) => match PARTS.iter().find(|(known, _)| *known == name) {
            Some((_, part)) => call(&format!("date_part('{part}', NULL)"), [time.clone()])?,
            None => return Ok(None),
        },
        _ => return Ok(None),
    }))
}

/// The number of boundaries of a unit between two times.
fn difference(unit: &str, from: &Expr, to: &Expr) -> Result<Expr> {
    let unit = unit.to_ascii_lowercase();
    let unit = unit.strip_suffix('s').filter(|unit| !unit.is_empty()).unwrap_or(&unit);
    let (from, to) = (from.clone(), to.clone());
    let of_year = |per_year: u32, part: &str| {
        let template = format!(
            "CAST((date_part('year', NULL) - date_part('year', NULL)) * {per_year} \
             + {part} AS BIGINT)"
        );
        let args = [to.clone(), from.clone(), to.clone(), from.clone()];
        call(&template, args)
    };
    let epoch = |divisor: &str| {
        let template = format!(
            "CAST((extract(epoch FROM date_trunc('{unit}', CAST(NULL AS TIMESTAMP))) \
             - extract(epoch FROM date_trunc('{unit}', CAST(NULL AS TIMESTAMP)))) {divisor} AS BIGINT)"
        );
        call(&template, [to.clone(), from.clone()])
    };
    match unit {
        "year" => call("CAST(date_part('year', NULL) - date_part('year', NULL) AS BIGINT)", [to, from]),
        "quarter" => of_year(4, "date_part('quarter', NULL) - date_part('quarter', NULL)"),
        "month" => of_year(12, "date_part('month', NULL) - date_part('month', NULL)"),
        "week" => epoch("/ 604800"),
        "day" => epoch("/ 86400"),
        "hour" => epoch("/ 3600"),
        "minute" => epoch("/ 60"),
        "second" => epoch("/ 1"),
        "millisecond" => epoch("* 1000"),
        "microsecond" => epoch("* 1000000"),
        other => Err(Error::Unsupported(format!("unit \"{other}\" of date_diff"))),
    }
}

/// `(a, b) OVERLAPS (c, d)`, where `b` and `d` may be intervals. NULL if an end is.
fn overlaps(left: &Expr, right: &Expr) -> Result<Expr> {
    let period = |expr: &Expr| match expr {
        Expr::Tuple(ends) if ends.len() == 2 => {
            let (start, end) = (ends[0].clone(), ends[1].clone());
            let end = match end {
                Expr::Interval(_) => call("(NULL + NULL)", [start.clone(), end])?,
                end => end,
            };
            let least = call("least(NULL, NULL)", [start.clone(), end.clone()])?;
            Ok((least, call("greatest(NULL, NULL)", [start, end])?))
        }
        _ => Err(Error::syntax("OVERLAPS needs two periods of two times each")),
    };
    let ((from, to), (other_from, other_to)) = (period(left)?, period(right)?);
    let template = "CASE WHEN (NULL) AND (NULL) THEN (NULL = NULL) OR (NULL < NULL AND NULL < NULL) END";
    let exists = |expr: &Expr| match expr {
        Expr::Tuple(ends) if ends.len() == 2 => {
            call("NULL IS NOT NULL AND NULL IS NOT NULL", [ends[0].clone(), ends[1].clone()])
        }
        other => Ok(other.clone()),
    };
    let args = [exists(left)?, exists(right)?, from.clone(), other_from.clone(), from, other_to, other_from, to];
    call(template, args)
}

/// The text of a literal.
fn text(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => Some(text),
            _ => None,
        },
        _ => None,
    }
}

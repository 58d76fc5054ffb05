//! Patterns of PostgreSQL in the forms that DataFusion evaluates ([`crate::values::patterns`]).
//!
//! | form | becomes |
//! |---|---|
//! | `s LIKE 'a!_%' ESCAPE '!'` | `s LIKE 'a\_%'` |
//! | `s LIKE p ESCAPE '!'` | `s LIKE like_pattern(p, '!')` |
//! | `s LIKE 'a\'` | `s LIKE like_pattern('a\', '\')`, which is an error |
//! | `s LIKE p ESCAPE NULL` | NULL |
//! | `s SIMILAR TO 'a%'` | `s LIKE 'a%'` |
//! | `s SIMILAR TO '(a\|b)%'` | `s ~ '(?s)^(?:(?:a\|b).*)$'` |
//! | `s SIMILAR TO p` | `s ~ similar_pattern(p, '\')` |
//! | `s ~ '\mfoo'` | `s ~ '\b{start}foo'` |
//! | `s ~ p` | `s ~ posix_pattern(p, 's')` |
//!
//! Functions of regular expressions translate their patterns themselves ([`crate::values::regexps`]).

use datafusion::sql::sqlparser::ast::{BinaryOperator, CastKind, DataType, Expr, UnaryOperator, Value, ValueWithSpan};

use super::parameters::call;
use crate::values::patterns::{self, DOTS, ESCAPE};
use crate::{Error, Result};

/// The expression in place of one with a pattern; `None` if it stays. Patterns may be changed in place.
///
/// # Errors
/// Those of the translations; `Unsupported` for forms without one.
pub(super) fn replaced(expr: &mut Expr) -> Result<Option<Expr>> {
    match expr {
        Expr::Like { any: false, pattern, escape_char, .. } | Expr::ILike { any: false, pattern, escape_char, .. } => {
            if is_null(escape_char.as_ref()) {
                return crate::sql::parse_expr("CAST(NULL AS BOOLEAN)").map(Some);
            }
            let given = escape(escape_char.as_ref())?;
            let escape = given.clone().unwrap_or_else(|| ESCAPE.to_string());
            let character = patterns::escape_of(&escape)?;
            // An incomplete pattern is an error for the rows that it is compared with.
            let plain = text(pattern).and_then(|text| patterns::like(text, character).ok());
            match plain {
                Some(plain) if given.is_some() => **pattern = literal(plain),
                None if given.is_some() || text(pattern).is_some() => {
                    **pattern = translated("like_pattern", pattern, &escape)?;
                }
                _ => {}
            }
            *escape_char = None;
            Ok(None)
        }
        Expr::SimilarTo { negated, expr, pattern, escape_char } => {
            if is_null(escape_char.as_ref()) {
                return crate::sql::parse_expr("CAST(NULL AS BOOLEAN)").map(Some);
            }
            let escape = escape(escape_char.as_ref())?.unwrap_or_else(|| ESCAPE.to_string());
            let pattern = match text(pattern) {
                Some(text) => {
                    let escape = patterns::escape_of(&escape)?;
                    if patterns::is_like(text, escape) {
                        return Ok(Some(Expr::Like {
                            negated: *negated,
                            any: false,
                            expr: expr.clone(),
                            pattern: Box::new(literal(patterns::like(text, escape)?)),
                            escape_char: None,
                        }));
                    }
                    literal(patterns::similar(text, escape)?)
                }
                None => translated("similar_pattern", pattern, &escape)?,
            };
            let matches = call("(NULL ~ NULL)", [nested(expr), pattern])?;
            Ok(Some(match negated {
                false => matches,
                true => Expr::Nested(Box::new(Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(matches) })),
            }))
        }
        Expr::BinaryOp {
            op:
                BinaryOperator::PGRegexMatch
                | BinaryOperator::PGRegexIMatch
                | BinaryOperator::PGRegexNotMatch
                | BinaryOperator::PGRegexNotIMatch,
            right,
            ..
        } => {
            translate(right, DOTS)?;
            Ok(None)
        }
        _ => Ok(None),
    }
}

/// Translates a regular expression. `options`: see [`patterns::posix_with`].
///
/// # Errors
/// As [`patterns::posix`].
pub(super) fn translate(pattern: &mut Expr, options: &str) -> Result<()> {
    match text(pattern) {
        Some(text) => {
            let translated = patterns::posix_with(text, options)?;
            if translated != *text {
                *pattern = literal(translated);
            }
        }
        None => *pattern = translated("posix_pattern", pattern, options)?,
    }
    Ok(())
}

/// The text of a literal.
fn text(expr: &Expr) -> Option<&String> {
    match expr {
        Expr::Nested(inner) => text(inner),
        Expr::Value(ValueWithSpan {
            value: Value::SingleQuotedString(text) | Value::EscapedStringLiteral(text),
            ..
        }) => Some(text),
        Expr::Value(ValueWithSpan { value: Value::DollarQuotedString(text), .. }) => Some(&text.value),
        _ => None,
    }
}

/// True for ESCAPE NULL, with which no text matches or does not match.
fn is_null(clause: Option<&ValueWithSpan>) -> bool {
    clause.is_some_and(|clause| clause.value == Value::Null)
}

/// The text of a clause ESCAPE.
fn escape(clause: Option<&ValueWithSpan>) -> Result<Option<String>> {
    match clause.map(|clause| &clause.value) {
        None => Ok(None),
        Some(Value::SingleQuotedString(text) | Value::EscapedStringLiteral(text)) => Ok(Some(text.clone())),
        Some(other) => Err(Error::Unsupported(format!("ESCAPE {other} (use a text of at most one character)"))),
    }
}

fn literal(text: String) -> Expr {
    Expr::value(Value::SingleQuotedString(text))
}

fn nested(expr: &Expr) -> Expr {
    Expr::Nested(Box::new(expr.clone()))
}

/// A call of the function that translates a pattern.
fn translated(function: &str, pattern: &Expr, escape: &str) -> Result<Expr> {
    let cast = Expr::Cast {
        kind: CastKind::Cast,
        expr: Box::new(pattern.clone()),
        data_type: DataType::Text,
        array: false,
        format: None,
    };
    call(&format!("{function}(NULL, NULL)"), [cast, literal(escape.into())])
}

#[cfg(test)]
mod tests {
    use crate::sql::{parse_expr, synonyms};

    #[test]
    fn patterns_are_translated() {
        for (given, expected) in [
            ("s LIKE 'a!_%' ESCAPE '!'", r"s LIKE 'a\_%'"),
            ("s NOT ILIKE p ESCAPE '!'", "s NOT ILIKE like_pattern(CAST(p AS TEXT), '!')"),
            (r"s LIKE 'a\_'", r"s LIKE 'a\_'"),
            (r"s LIKE 'a\'", r"s LIKE like_pattern(CAST('a\' AS TEXT), '\')"),
            ("s LIKE 'a#' ESCAPE '#'", "s LIKE like_pattern(CAST('a#' AS TEXT), '#')"),
            (r"s LIKE 'a\_' ESCAPE ''", r"s LIKE 'a\\_'"),
            ("s SIMILAR TO '(a|x)b%'", "((s) ~ '(?s)^(?:(?:a|x)b.*)$')"),
            ("s NOT SIMILAR TO p ESCAPE '#'", "(NOT ((s) ~ similar_pattern(CAST(p AS TEXT), '#')))"),
            (r"s !~* '\mfoo'", r"s !~* '\b{start}foo'"),
            ("s ~ p", "s ~ posix_pattern(CAST(p AS TEXT), 's')"),
            ("s NOT SIMILAR TO 'a%'", "s NOT LIKE 'a%'"),
            ("s NOT LIKE p ESCAPE NULL", "CAST(NULL AS BOOLEAN)"),
            ("substring(s FROM 2)", "SUBSTRING(s FROM 2)"),
        ] {
            let mut expr = parse_expr(given).unwrap();
            synonyms::replace(&mut expr).unwrap();
            assert_eq!(expr.to_string(), expected);
        }
        for refused in [r"s ~ '(a)\1'", r"s SIMILAR TO 'a\'", "s LIKE 'a' ESCAPE '##'"] {
            let mut expr = parse_expr(refused).unwrap();
            assert!(synonyms::replace(&mut expr).is_err(), "{refused}");
        }
    }
}

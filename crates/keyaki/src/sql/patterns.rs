//! Patterns of PostgreSQL in the forms that DataFusion evaluates ([`crate::values::patterns`]).
//!
//! | form | becomes |
//! |---|---|
//! | `s LIKE 'a!_%' ESCAPE '!'` | `s LIKE 'a\_%'` |
//! | `s LIKE p ESCAPE '!'` | `s LIKE like_pattern(p, '!')` |
//! | `s SIMILAR TO 'a%'` | `s LIKE 'a%'` |
//! | `s SIMILAR TO '(a\|b)%'` | `s ~ '(?s)^(?:(?:a\|b).*)$'` |
//! | `s SIMILAR TO p` | `s ~ similar_pattern(p, '\')` |
//! | `s ~ '\mfoo'`, also in functions | `s ~ '\b{start}foo'` |
//! | `s ~ p`, also in functions | `s ~ posix_pattern(p, 's')` |
//! | `substring(s FROM 'b(.)')`, also with a comma | `(regexp_match(s, '(?s)b(.)'))[1]` |
//!
//! `regexp_replace` is Keyaki's own function, and translates its pattern itself.

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CastKind, DataType, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, UnaryOperator,
    Value, ValueWithSpan,
};

use super::names::plain_ident;
use super::parameters::call;
use crate::values::patterns::{self, DOTS, ESCAPE, FIRST_GROUP};
use crate::{Error, Result};

/// The expression in place of one with a pattern; `None` if it stays. Patterns may be changed in place.
///
/// # Errors
/// Those of the translations; `Unsupported` for forms without one.
pub(super) fn replaced(expr: &mut Expr) -> Result<Option<Expr>> {
    match expr {
        Expr::Like { any: false, pattern, escape_char, .. } | Expr::ILike { any: false, pattern, escape_char, .. } => {
            let Some(escape) = escape(escape_char.as_ref())? else { return Ok(None) };
            **pattern = match text(pattern) {
                Some(text) => literal(patterns::like(text, patterns::escape_of(&escape)?)?),
                None => translated("like_pattern", pattern, &escape)?,
            };
            *escape_char = None;
            Ok(None)
        }
        Expr::SimilarTo { negated, expr, pattern, escape_char } => {
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
        Expr::Function(function) => {
            if let Some((pattern, options)) = regexp_pattern(function) {
                translate(pattern, options)?;
            }
            Ok(None)
        }
        Expr::Substring { expr, substring_from: Some(pattern), substring_for, .. } if is_text(pattern) => {
            if substring_for.is_some() {
                return Err(Error::Unsupported("substring(text FROM pattern FOR escape)".into()));
            }
            let mut pattern = pattern.as_ref().clone();
            translate(&mut pattern, FIRST_GROUP)?;
            call("(regexp_match(NULL, NULL))[1]", [expr.as_ref().clone(), pattern]).map(Some)
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

/// The pattern of a call and the options of its translation. Flags can have a meaning for dots.
fn regexp_pattern(function: &mut Function) -> Option<(&mut Expr, &'static str)> {
    const FUNCTIONS: [&str; 4] = ["regexp_match", "regexp_like", "regexp_count", "regexp_instr"];
    let [name] = &function.name.0[..] else { return None };
    let is_known = name.as_ident().is_some_and(|name| FUNCTIONS.contains(&plain_ident(name).as_str()));
    let FunctionArguments::List(list) = &mut function.args else { return None };
    let count = list.args.len();
    match list.args.get_mut(1) {
        Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(pattern))) if is_known => {
            Some((pattern, if count == 2 { DOTS } else { "" }))
        }
        _ => None,
    }
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

/// True for an expression that is a text in any query.
fn is_text(expr: &Expr) -> bool {
    match expr {
        Expr::Nested(inner) => is_text(inner),
        Expr::BinaryOp { op: BinaryOperator::StringConcat, .. } => true,
        Expr::Cast { data_type, .. } => {
            matches!(data_type, DataType::Text | DataType::Varchar(_) | DataType::CharacterVarying(_))
        }
        expr => text(expr).is_some(),
    }
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
            (r"s LIKE 'a\_' ESCAPE ''", r"s LIKE 'a\\_'"),
            ("s SIMILAR TO '(a|x)b%'", "((s) ~ '(?s)^(?:(?:a|x)b.*)$')"),
            ("s NOT SIMILAR TO p ESCAPE '#'", "(NOT ((s) ~ similar_pattern(CAST(p AS TEXT), '#')))"),
            (r"s !~* '\mfoo'", r"s !~* '\b{start}foo'"),
            ("s ~ p", "s ~ posix_pattern(CAST(p AS TEXT), 's')"),
            ("s NOT SIMILAR TO 'a%'", "s NOT LIKE 'a%'"),
            (r"regexp_like(s, '\y')", r"regexp_like(s, '\b')"),
            ("regexp_match(s, 'a.', 'n')", "regexp_match(s, 'a.', 'n')"),
            ("substring(s FROM 'b(c)(d)')", "(regexp_match(s, 'b(c)(?:d)'))[1]"),
            ("substring(s, '\\d')", "(regexp_match(s, '\\d'))[1]"),
            ("substring(s FROM 2)", "SUBSTRING(s FROM 2)"),
        ] {
            let mut expr = parse_expr(given).unwrap();
            synonyms::replace(&mut expr).unwrap();
            assert_eq!(expr.to_string(), expected);
        }
        let mut expr = parse_expr(r"s ~ '(a)\1'").unwrap();
        assert!(synonyms::replace(&mut expr).is_err());
    }
}

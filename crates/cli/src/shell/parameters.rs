//! Parameters of statements: `:name` and `$name` stand for the literal that `.parameter set` or `--param` has given the name.
//!
//! The shell replaces them before a statement is executed, so that they work in every statement and on servers. A value is one
//! literal, whatever it contains. Names without a value remain: `a[1:n]` and `$1` have other meanings.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::lexer::{Kind, Token, tokens};
use crate::failure::{Failure, Result};
use crate::output::statements::text_literal;
use crate::run::Runner;

/// The statement with literals in place of parameters.
pub fn apply<'a>(statement: &'a str, parameters: &BTreeMap<String, String>) -> Cow<'a, str> {
    if parameters.is_empty() || !statement.contains([':', '$']) {
        return statement.into();
    }
    let tokens = tokens(statement);
    let mut text = String::with_capacity(statement.len());
    let mut at = 0;
    while at < tokens.len() {
        match parameter(&tokens, at).and_then(|name| parameters.get(name)) {
            Some(literal) => {
                text.push_str(literal);
                at += 2;
            }
            None => {
                text.push_str(tokens[at].text);
                at += 1;
            }
        }
    }
    text.into()
}

/// The name of the parameter at a token.
fn parameter<'a>(tokens: &[Token<'a>], at: usize) -> Option<&'a str> {
    let [marker, name] = tokens.get(at..at + 2)? else { return None };
    let is_marker = marker.kind == Kind::Symbol && matches!(marker.text, ":" | "$");
    let is_name = matches!(name.kind, Kind::Identifier | Kind::Keyword);
    // A cast.
    let follows_colon = at > 0 && tokens[at - 1].text == ":";
    (is_marker && is_name && !follows_colon).then_some(name.text)
}

/// The literal of a value: NULL, true, false and numbers as they are, other values as texts. Quotes make a text of a number.
pub fn literal(value: &str) -> String {
    let (given, value) = (value, value.trim());
    let is_quoted = value.len() > 1 && value.starts_with('\'') && value.ends_with('\'');
    if is_quoted {
        return text_literal(&value[1..value.len() - 1].replace("''", "'"));
    }
    if ["null", "true", "false"].iter().any(|word| value.eq_ignore_ascii_case(word)) {
        return value.to_ascii_lowercase();
    }
    let digits = value.strip_prefix('-').unwrap_or(value);
    let is_number = digits.starts_with(|c: char| c.is_ascii_digit())
        // Postcodes and the like.
        && !(digits.len() > 1 && digits.starts_with('0') && !digits.starts_with("0."))
        && value.parse::<f64>().is_ok();
    match is_number {
        true if value.starts_with('-') => format!("({value})"),
        true => value.into(),
        false => text_literal(given),
    }
}

/// Checks the name of a parameter, with or without its marker. Returns the name.
///
/// # Errors
/// If it is no identifier.
pub fn name(given: &str) -> Result<&str> {
    let name = given.trim_start_matches([':', '$']);
    match tokens(name).as_slice() {
        [token] if matches!(token.kind, Kind::Identifier | Kind::Keyword) => Ok(name),
        _ => Err(Failure::message(format!(
            "invalid name \"{given}\" of a parameter (letters, digits and underscores, not beginning with a digit)"
        ))),
    }
}

/// `.parameter set NAME VALUE`, `unset NAME`, `list`, `clear`.
///
/// # Errors
/// For other arguments and invalid names.
pub fn command(runner: &mut Runner, arguments: &[String]) -> Result<()> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["set", given, value] => {
            runner.parameters.insert(name(given)?.into(), literal(value));
            Ok(())
        }
        ["unset", given] => match runner.parameters.remove(name(given)?) {
            Some(_) => Ok(()),
            None => Err(Failure::message(format!("parameter \"{given}\" is not set"))),
        },
        [] | ["list"] => {
            let lines = runner.parameters.iter().map(|(name, literal)| format!(":{name} = {literal}\n"));
            let text: String = lines.collect();
            runner.show(&text)
        }
        ["clear"] => {
            runner.parameters.clear();
            Ok(())
        }
        _ => Err(Failure::message("usage: .parameter set NAME VALUE | unset NAME | list | clear")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_become_literals() {
        let set = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(name, value)| ((*name).into(), literal(value))).collect()
        };
        let values = set(&[("a", "5"), ("b", "it's; --"), ("text", "x"), ("n", "-1")]);
        let applied = |sql| apply(sql, &values).into_owned();
        assert_eq!(applied("SELECT :a, $b, :missing"), "SELECT 5, 'it''s; --', :missing");
        assert_eq!(applied("SELECT 1::text, '1:a', \":a\" -- :a"), "SELECT 1::text, '1:a', \":a\" -- :a");
        assert_eq!(applied("SELECT $q$ :a $q$, $1, 2-:n"), "SELECT $q$ :a $q$, $1, 2-(-1)");
        assert_eq!(applied("SELECT :a::text"), "SELECT 5::text");
    }

    #[test]
    fn literals() {
        for (value, expected) in [
            ("1.5", "1.5"),
            ("1e3", "1e3"),
            ("-7", "(-7)"),
            ("00501", "'00501'"),
            ("0.5", "0.5"),
            ("'42'", "'42'"),
            ("it's", "'it''s'"),
            ("NULL", "null"),
            ("True", "true"),
            ("", "''"),
            ("inf", "'inf'"),
            ("1; DROP TABLE t", "'1; DROP TABLE t'"),
        ] {
            assert_eq!(literal(value), expected, "{value}");
        }
    }

    #[test]
    fn names() {
        assert!(name("a_1").is_ok() && name(":select").is_ok() && name("$x").is_ok());
        assert!(name("1").is_err() && name("a b").is_err() && name("").is_err() && name("a-b").is_err());
    }
}

//! Errors of the SQL parser and tokenizer: `syntax error at or near "x"`, with line and column.

use ::datafusion::sql::sqlparser::parser::ParserError;
use ::datafusion::sql::sqlparser::tokenizer::TokenizerError;

use super::{Error, Position};

/// An error of the parser. Its text has the form `Expected: X, found: Y at Line: L, Column: C`.
pub(crate) fn syntax(error: ParserError) -> Error {
    match error {
        ParserError::ParserError(message) | ParserError::TokenizerError(message) => parse(&message),
        ParserError::RecursionLimitExceeded => Error::TooComplex("statement is nested too deeply".into()),
    }
}

/// An error of the tokenizer, for example an open quote.
pub(crate) fn tokenizer(error: &TokenizerError) -> Error {
    let position = Position { line: error.location.line, column: error.location.column };
    let message = error.message.trim_end().trim_end_matches(" at");
    let message = match message.starts_with("Expected close delimiter") {
        true => "unterminated quoted identifier".into(),
        false => decapitalized(message),
    };
    Error::Syntax { message, position: located(position) }
}

fn parse(message: &str) -> Error {
    let message = message.trim_start_matches("sql parser error: ");
    let (message, position) = split_position(message);
    let expectation = message.strip_prefix("Expected: ").or_else(|| message.strip_prefix("Expected "));
    let message = match expectation.and_then(|rest| rest.rsplit_once(", found: ")) {
        Some((expected, "EOF")) => format!("syntax error at end of input, expected {expected}"),
        Some((expected, found)) => format!("syntax error at or near \"{found}\", expected {expected}"),
        None => match message.strip_prefix("No infix parser for token ") {
            Some(token) => format!("syntax error at or near \"{}\"", word(token)),
            None => decapitalized(message),
        },
    };
    Error::Syntax { message, position }
}

/// The text of a token in the form `Word(Word { value: "DIV", … })`.
fn word(token: &str) -> &str {
    let value = token.split_once("value: \"").and_then(|(_, rest)| rest.split_once('"'));
    value.map_or(token, |(value, _)| value)
}

/// Splits ` at Line: L, Column: C` off the end.
fn split_position(message: &str) -> (&str, Option<Position>) {
    let split = || {
        let (text, place) = message.rsplit_once("Line: ")?;
        let (line, column) = place.trim_end().split_once(", Column: ")?;
        let position = Position { line: line.parse().ok()?, column: column.trim_end_matches('.').parse().ok()? };
        Some((text.trim_end().trim_end_matches(" at"), located(position)))
    };
    split().unwrap_or((message, None))
}

/// sqlparser uses line 0 for tokens without a position.
fn located(position: Position) -> Option<Position> {
    (position.line > 0 && position.column > 0).then_some(position)
}

/// A message of a library in Keyaki's style: the first letter in lower case unless the first word is an acronym, no
/// full stop.
pub(super) fn decapitalized(message: &str) -> String {
    let message = message.trim().trim_end_matches('.');
    let mut chars = message.chars();
    match (chars.next(), chars.next()) {
        (Some(first), Some(second)) if !second.is_ascii_uppercase() => {
            first.to_lowercase().chain(message.chars().skip(1)).collect()
        }
        _ => message.to_string(),
    }
}

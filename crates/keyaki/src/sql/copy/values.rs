//! Values of options: texts, lists and maps, as the options of COPY and the arguments of `read_csv` have them.

use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;

use super::statement::unexpected;
use crate::sql::split;
use crate::{Error, Result};

/// Nesting of lists and maps.
const DEPTH_MAX: usize = 4;

/// The value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OptionValue {
    /// A text, word or number.
    Text(String),
    /// `['a', 'b']`, in COPY also `('a', 'b')`.
    List(Vec<OptionValue>),
    /// `{'a': 'b'}`.
    Map(Vec<(String, OptionValue)>),
}

impl OptionValue {
    /// The text of a value that is no list.
    ///
    /// # Errors
    /// `Syntax`.
    pub fn text(self, name: &str) -> Result<String> {
        match self {
            OptionValue::Text(text) => Ok(text),
            _ => Err(Error::syntax(format!("option {name} has one value, not a list"))),
        }
    }

    /// The texts of a list, or the only text.
    ///
    /// # Errors
    /// `Syntax` for other values.
    pub fn texts(self, name: &str) -> Result<Vec<String>> {
        match self {
            OptionValue::Text(text) => Ok(vec![text]),
            OptionValue::List(values) => values.into_iter().map(|value| value.text(name)).collect(),
            OptionValue::Map(_) => Err(Error::syntax(format!("option {name} has a text or a list of texts"))),
        }
    }

    /// Parses a text that begins with a bracket or brace.
    ///
    /// # Errors
    /// `Syntax`.
    pub fn parse(text: &str) -> Result<OptionValue> {
        let mut parser = split::single(text)?.parser();
        let value = nested(&mut parser, DEPTH_MAX)?;
        match parser.peek_token_ref().token {
            Token::EOF => Ok(value),
            _ => Err(unexpected(&parser, "the end of the value")),
        }
    }
}

/// The list or map that begins at the next token; `None` if none does.
///
/// # Errors
/// `Syntax`.
pub(super) fn list(parser: &mut Parser<'_>) -> Result<Option<OptionValue>> {
    match parser.peek_token_ref().token {
        Token::LParen | Token::LBracket | Token::LBrace => nested(parser, DEPTH_MAX).map(Some),
        _ => Ok(None),
    }
}

fn nested(parser: &mut Parser<'_>, depth: usize) -> Result<OptionValue> {
    if depth == 0 {
        return Err(Error::TooComplex("lists in the value of an option are nested too deeply".into()));
    }
    match parser.next_token().token {
        Token::LBrace => {
            let mut entries = Vec::new();
            while !parser.consume_token(&Token::RBrace) {
                let OptionValue::Text(name) = nested(parser, 1)? else {
                    return Err(unexpected(parser, "a name"));
                };
                if !parser.consume_token(&Token::Colon) {
                    return Err(unexpected(parser, "a colon"));
                }
                entries.push((name, nested(parser, depth - 1)?));
                separator(parser, &Token::RBrace)?;
            }
            Ok(OptionValue::Map(entries))
        }
        open @ (Token::LBracket | Token::LParen) => {
            let close = if open == Token::LParen { Token::RParen } else { Token::RBracket };
            let mut values = Vec::new();
            while !parser.consume_token(&close) {
                values.push(nested(parser, depth - 1)?);
                separator(parser, &close)?;
            }
            Ok(OptionValue::List(values))
        }
        Token::SingleQuotedString(text) | Token::EscapedStringLiteral(text) => Ok(OptionValue::Text(text)),
        Token::Word(word) => Ok(OptionValue::Text(word.value)),
        Token::Number(digits, _) => Ok(OptionValue::Text(digits)),
        _ => {
            parser.prev_token();
            Err(unexpected(parser, "a text, a list or a map"))
        }
    }
}

/// Consumes a comma, unless `close` follows.
fn separator(parser: &mut Parser<'_>, close: &Token) -> Result<()> {
    match parser.consume_token(&Token::Comma) || parser.peek_token_ref().token == *close {
        true => Ok(()),
        false => Err(unexpected(parser, &format!("a comma or \"{close}\""))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> OptionValue {
        OptionValue::Text(text.into())
    }

    #[test]
    fn lists_and_maps() {
        let parse = |sql: &str| OptionValue::parse(sql).expect(sql);
        assert_eq!(parse("['a', 'it''s', 7]"), OptionValue::List(vec![text("a"), text("it's"), text("7")]));
        assert_eq!(parse("[]"), OptionValue::List(Vec::new()));
        let map = OptionValue::Map(vec![("a".into(), text("BIGINT")), ("b c".into(), text("DECIMAL(5,2)"))]);
        assert_eq!(parse("{'a': BIGINT, \"b c\": 'DECIMAL(5,2)'}"), map);
        assert_eq!(parse("{\"a\":\"BIGINT\",\"b c\":\"DECIMAL(5,2)\"}"), map);
        for wrong in ["{", "{a}", "{a: }", "[1 2]", "[,]", "['a'] x", "[[[[[[1]]]]]]", "{['a']: 1}"] {
            assert!(OptionValue::parse(wrong).is_err(), "{wrong}");
        }
    }
}

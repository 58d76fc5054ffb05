//! FETCH, MOVE and CLOSE: parsing.

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;

use crate::base::syntax;
use crate::sql::names::plain_ident;
use crate::sql::split;
use crate::{Error, Result};

/// A statement about a cursor.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::sql) enum CursorStatement {
    Fetch(Direction, String),
    Move(Direction, String),
    /// `None` for ALL.
    Close(Option<String>),
}

/// The rows that FETCH returns, and where the cursor is afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sql) enum Direction {
    /// The next rows, at most this many.
    Forward(u64),
    /// The rows before the current one, in reverse order.
    Backward(u64),
    /// The row with this number, from 1; negative numbers count from the end.
    Absolute(i64),
    /// The row at this distance from the current one.
    Relative(i64),
}

impl Direction {
    /// The direction of a signed number of rows.
    fn forward(count: i64) -> Direction {
        match count {
            0 => Direction::Relative(0),
            1.. => Direction::Forward(count.unsigned_abs()),
            _ => Direction::Backward(count.unsigned_abs()),
        }
    }

    fn backward(count: i64) -> Direction {
        match count {
            0 => Direction::Relative(0),
            1.. => Direction::Backward(count.unsigned_abs()),
            _ => Direction::Forward(count.unsigned_abs()),
        }
    }
}

/// Parses a statement that begins with FETCH, MOVE or CLOSE.
///
/// # Errors
/// `Syntax`.
pub(in crate::sql) fn parse(parser: &mut Parser<'_>) -> Result<CursorStatement> {
    let first = parser.next_token().to_string().to_ascii_uppercase();
    if first == "CLOSE" {
        return Ok(CursorStatement::Close(match parser.parse_keyword(Keyword::ALL) {
            true => None,
            false => Some(name(parser)?),
        }));
    }
    let direction = direction(parser)?;
    let _ = parser.parse_one_of_keywords(&[Keyword::FROM, Keyword::IN]);
    let name = name(parser)?;
    Ok(match first.as_str() {
        "FETCH" => CursorStatement::Fetch(direction, name),
        _ => CursorStatement::Move(direction, name),
    })
}

fn name(parser: &mut Parser<'_>) -> Result<String> {
    parser.parse_identifier().map(|name| plain_ident(&name)).map_err(syntax)
}

fn direction(parser: &mut Parser<'_>) -> Result<Direction> {
    const WORDS: [Keyword; 9] = [
        Keyword::NEXT,
        Keyword::PRIOR,
        Keyword::FIRST,
        Keyword::LAST,
        Keyword::ALL,
        Keyword::ABSOLUTE,
        Keyword::RELATIVE,
        Keyword::FORWARD,
        Keyword::BACKWARD,
    ];
    // Cursors may have these names.
    let is_name = matches!(parser.peek_nth_token(1).token, Token::EOF);
    let word = if is_name { None } else { parser.parse_one_of_keywords(&WORDS) };
    Ok(match word {
        None => count(parser)?.map_or(Direction::Forward(1), Direction::forward),
        Some(Keyword::PRIOR) => Direction::Backward(1),
        Some(Keyword::FIRST) => Direction::Absolute(1),
        Some(Keyword::LAST) => Direction::Absolute(-1),
        Some(Keyword::ALL) => Direction::Forward(u64::MAX),
        Some(word @ (Keyword::ABSOLUTE | Keyword::RELATIVE)) => {
            let number = count(parser)?.ok_or_else(|| Error::syntax("ABSOLUTE and RELATIVE need a number"))?;
            if word == Keyword::ABSOLUTE { Direction::Absolute(number) } else { Direction::Relative(number) }
        }
        Some(word @ (Keyword::FORWARD | Keyword::BACKWARD)) => {
            let is_forward = word == Keyword::FORWARD;
            match (parser.parse_keyword(Keyword::ALL), is_forward) {
                (true, true) => Direction::Forward(u64::MAX),
                (true, false) => Direction::Backward(u64::MAX),
                (false, _) => {
                    let count = count(parser)?.unwrap_or(1);
                    if is_forward { Direction::forward(count) } else { Direction::backward(count) }
                }
            }
        }
        Some(_) => Direction::Forward(1),
    })
}

/// A signed number, if one follows.
fn count(parser: &mut Parser<'_>) -> Result<Option<i64>> {
    let is_negative = parser.consume_token(&Token::Minus);
    let has_sign = is_negative || parser.consume_token(&Token::Plus);
    let next = parser.peek_token();
    match &next.token {
        Token::Number(digits, _) => {
            let number =
                digits.parse::<i64>().map_err(|_| Error::syntax(format!("invalid number of rows {digits}")))?;
            parser.next_token();
            Ok(Some(if is_negative { -number } else { number }))
        }
        _ if has_sign => parser.expected("a number", next).map_err(syntax),
        _ => Ok(None),
    }
}

/// The cursor of a text that is a FETCH statement; `None` for others.
pub(in crate::sql) fn fetched_cursor(text: &str) -> Option<String> {
    let statement = split::single(text).ok()?;
    if statement.words().first().map(String::as_str) != Some("FETCH") {
        return None;
    }
    match parse(&mut statement.parser()) {
        Ok(CursorStatement::Fetch(_, name)) => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<CursorStatement> {
        let mut parser = split::single(text)?.parser();
        let statement = parse(&mut parser)?;
        crate::sql::expect_end(&mut parser)?;
        Ok(statement)
    }

    #[test]
    fn directions() {
        use Direction::{Absolute, Backward, Forward, Relative};
        for (text, direction) in [
            ("c", Forward(1)),
            ("next", Forward(1)),
            ("FROM c", Forward(1)),
            ("NEXT FROM c", Forward(1)),
            ("PRIOR IN c", Backward(1)),
            ("FIRST c", Absolute(1)),
            ("LAST FROM c", Absolute(-1)),
            ("ABSOLUTE -5 FROM c", Absolute(-5)),
            ("RELATIVE 0 FROM c", Relative(0)),
            ("7 FROM c", Forward(7)),
            ("-7 FROM c", Backward(7)),
            ("0 IN c", Relative(0)),
            ("ALL FROM c", Forward(u64::MAX)),
            ("FORWARD c", Forward(1)),
            ("FORWARD +3 FROM c", Forward(3)),
            ("FORWARD ALL IN c", Forward(u64::MAX)),
            ("BACKWARD FROM c", Backward(1)),
            ("BACKWARD -2 FROM c", Forward(2)),
            ("BACKWARD ALL FROM c", Backward(u64::MAX)),
        ] {
            let name = if text == "next" { "next" } else { "c" };
            let fetch = parsed(&format!("FETCH {text}"));
            assert!(
                matches!(&fetch, Ok(CursorStatement::Fetch(of, to)) if *of == direction && to == name),
                "{fetch:?}"
            );
            assert_eq!(fetched_cursor(&format!("fetch {text}")), Some(name.into()));
            let moved = parsed(&format!("move {text}")).unwrap();
            assert_eq!(moved, CursorStatement::Move(direction, name.into()), "{text}");
        }
        assert_eq!(parsed("CLOSE \"Odd Name\"").unwrap(), CursorStatement::Close(Some("Odd Name".into())));
        assert_eq!(parsed("CLOSE ALL").unwrap(), CursorStatement::Close(None));
        for text in ["FETCH", "FETCH - FROM c", "FETCH ABSOLUTE FROM c", "FETCH 1 FROM", "FETCH 1 2 FROM c", "CLOSE"] {
            assert!(matches!(parsed(text), Err(Error::Syntax { .. })), "{text}");
        }
        assert_eq!(fetched_cursor("SELECT 1"), None);
    }
}

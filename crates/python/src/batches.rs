//! An INSERT of one row of parameters as an INSERT of several rows, for `executemany`.
//!
//! The statement has the form `INSERT INTO table [(columns)] VALUES (values)`, where values are parameters, literals and
//! DEFAULT. One statement for many rows has the same effect as one for each, except that a row can refer to a later one by a
//! foreign key, and that defaults such as `now()` have one value for all rows.
//! Statements with other expressions or clauses (ON CONFLICT, RETURNING) are not of this form.

use std::fmt::Write;

use crate::parameters::{comment_end, line_end, quoted_end, text_end};

/// A token of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    /// A name in quotes.
    Name,
    Text,
    Number,
    /// `?`, or `$1` with its number.
    Parameter(Option<usize>),
    Sign(u8),
}

/// The tokens of a statement with their positions, without comments.
struct Tokens<'a> {
    sql: &'a str,
    at: usize,
}

impl<'a> Iterator for Tokens<'a> {
    /// A token, its start and its end.
    type Item = (Token<'a>, usize, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.sql.as_bytes();
        loop {
            let rest = &bytes[self.at..];
            match rest.first()? {
                byte if byte.is_ascii_whitespace() => self.at += 1,
                b'-' if rest.starts_with(b"--") => self.at = line_end(bytes, self.at),
                b'/' if rest.starts_with(b"/*") => self.at = comment_end(bytes, self.at),
                _ => break,
            }
        }
        let start = self.at;
        let end_of = |belongs: fn(&u8) -> bool| {
            bytes[start + 1..].iter().position(|byte| !belongs(byte)).map_or(bytes.len(), |length| start + 1 + length)
        };
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || !byte.is_ascii();
        let (token, end) = match bytes[start] {
            b'"' => (Token::Name, quoted_end(bytes, start).min(bytes.len())),
            b'\'' => (Token::Text, text_end(bytes, start, false)),
            b'?' => (Token::Parameter(None), start + 1),
            b'$' => {
                let end = end_of(u8::is_ascii_digit);
                (
                    self.sql[start + 1..end].parse().map_or(Token::Sign(b'$'), |number| Token::Parameter(Some(number))),
                    end,
                )
            }
            byte if byte.is_ascii_digit() || byte == b'.' && bytes.get(start + 1).is_some_and(u8::is_ascii_digit) => {
                (Token::Number, end_of(|byte| byte.is_ascii_alphanumeric() || *byte == b'.'))
            }
            byte if is_word(&byte) => {
                let end = end_of(|byte| byte.is_ascii_alphanumeric() || *byte == b'_' || !byte.is_ascii());
                (Token::Word(&self.sql[start..end]), end)
            }
            sign => (Token::Sign(sign), start + 1),
        };
        self.at = end;
        Some((token, start, end))
    }
}

/// An INSERT of one row of parameters.
#[derive(Debug, PartialEq, Eq)]
pub struct Insert<'a> {
    /// The text before the row.
    head: &'a str,
    /// The text before each parameter of the row, and the number of the parameter, from 1.
    parameters: Vec<(&'a str, usize)>,
    /// The text after the last parameter.
    tail: &'a str,
}

impl<'a> Insert<'a> {
    /// The statement, if it has this form.
    pub fn of(sql: &'a str) -> Option<Insert<'a>> {
        let mut tokens = Tokens { sql, at: 0 }.peekable();
        let word = |expected: &str, tokens: &mut std::iter::Peekable<Tokens<'a>>| {
            matches!(tokens.next()?.0, Token::Word(word) if word.eq_ignore_ascii_case(expected)).then_some(())
        };
        word("insert", &mut tokens)?;
        word("into", &mut tokens)?;
        loop {
            matches!(tokens.next()?.0, Token::Word(_) | Token::Name).then_some(())?;
            if tokens.next_if(|token| token.0 == Token::Sign(b'.')).is_none() {
                break;
            }
        }
        if tokens.next_if(|token| token.0 == Token::Sign(b'(')).is_some() {
            loop {
                matches!(tokens.next()?.0, Token::Word(_) | Token::Name).then_some(())?;
                match tokens.next()?.0 {
                    Token::Sign(b',') => {}
                    Token::Sign(b')') => break,
                    _ => return None,
                }
            }
        }
        word("values", &mut tokens)?;
        let (Token::Sign(b'('), open, mut copied) = tokens.next()? else { return None };
        let mut parameters = Vec::new();
        let close = loop {
            let (mut token, mut start, mut end) = tokens.next()?;
            if matches!(token, Token::Sign(b'-' | b'+')) {
                (token, start, end) = tokens.next()?;
                (token == Token::Number).then_some(())?;
            }
            match token {
                Token::Parameter(number) => {
                    parameters.push((&sql[copied..start], number.unwrap_or(parameters.len() + 1)));
                    copied = end;
                }
                Token::Text | Token::Number => {}
                Token::Word(word) => {
                    let is_literal =
                        ["null", "true", "false", "default"].iter().any(|name| word.eq_ignore_ascii_case(name));
                    is_literal.then_some(())?;
                }
                _ => return None,
            }
            match tokens.next()? {
                (Token::Sign(b','), ..) => {}
                (Token::Sign(b')'), start, _) => break start,
                _ => return None,
            }
        };
        tokens.next_if(|token| token.0 == Token::Sign(b';'));
        let is_whole =
            tokens.next().is_none() && !parameters.is_empty() && parameters.iter().all(|(_, number)| *number > 0);
        is_whole.then(|| Insert { head: &sql[..open], parameters, tail: &sql[copied..close] })
    }

    /// The statement for `rows` rows. `count`: the parameters of one row.
    pub fn repeated(&self, count: usize, rows: usize) -> String {
        let mut sql = self.head.to_string();
        for row in 0..rows {
            sql.push_str(if row == 0 { "(" } else { ",(" });
            for (text, number) in &self.parameters {
                // Writing to a text cannot fail.
                let _ = write!(sql, "{text}${}", row * count + number);
            }
            sql.push_str(self.tail);
            sql.push(')');
        }
        sql
    }
}

/// An error of a statement for several rows, with the number that its parameter has in one row of `count` parameters.
pub fn of_one_row(error: keyaki::Error, count: usize) -> keyaki::Error {
    let keyaki::Error::Context { context, source } = error else { return error };
    let number = context.strip_prefix("parameter $").and_then(|number| number.parse::<usize>().ok()).filter(|n| *n > 0);
    let context = number.map_or(context, |number| format!("parameter ${}", (number - 1) % count + 1));
    keyaki::Error::Context { context, source }
}

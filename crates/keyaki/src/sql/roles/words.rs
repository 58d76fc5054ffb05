//! Keywords in statements about roles and privileges.

use datafusion::sql::sqlparser::ast::Ident;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;

use super::RoleName;
use crate::base::syntax;
use crate::sql::split::Statement;
use crate::{Error, Result};

/// Skips words if the next tokens are these. They are in capital letters.
pub fn accept(parser: &mut Parser<'_>, words: &[&str]) -> bool {
    let is_next = |(place, word): (usize, &&str)| upper(&parser.peek_nth_token(place).token).as_deref() == Some(*word);
    let found = words.iter().enumerate().all(is_next);
    if found {
        words.iter().for_each(|_| drop(parser.next_token()));
    }
    found
}

/// The next word in capital letters.
pub fn peek(parser: &Parser<'_>) -> Option<String> {
    upper(&parser.peek_token().token)
}

/// The next word in capital letters, which is skipped.
pub fn next(parser: &mut Parser<'_>) -> Option<String> {
    let word = upper(&parser.peek_token().token)?;
    parser.next_token();
    Some(word)
}

/// # Errors
/// `Syntax` unless the words follow.
pub fn expect(parser: &mut Parser<'_>, words: &[&str]) -> Result<()> {
    match accept(parser, words) {
        true => Ok(()),
        false => Err(unexpected(parser, &words.join(" "))),
    }
}

/// The error for a token in place of `wanted`.
pub fn unexpected(parser: &Parser<'_>, wanted: &str) -> Error {
    let next = parser.peek_token();
    parser.expected::<()>(wanted, next).map_or_else(syntax, |()| Error::syntax("syntax error"))
}

fn upper(token: &Token) -> Option<String> {
    match token {
        Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_ascii_uppercase()),
        _ => None,
    }
}

/// # Errors
/// `Syntax`.
pub fn identifier(parser: &mut Parser<'_>) -> Result<Ident> {
    parser.parse_identifier().map_err(syntax)
}

/// # Errors
/// `Syntax`.
pub fn role_name(parser: &mut Parser<'_>) -> Result<RoleName> {
    Ok(if accept(parser, &["CURRENT_USER"]) || accept(parser, &["CURRENT_ROLE"]) {
        RoleName::CurrentUser
    } else if accept(parser, &["SESSION_USER"]) {
        RoleName::SessionUser
    } else {
        RoleName::Named(identifier(parser)?)
    })
}

/// A list of items that are separated by commas.
///
/// # Errors
/// Errors of an item.
pub fn list<T>(parser: &mut Parser<'_>, mut item: impl FnMut(&mut Parser<'_>) -> Result<T>) -> Result<Vec<T>> {
    let mut items = vec![item(parser)?];
    while parser.consume_token(&Token::Comma) {
        items.push(item(parser)?);
    }
    Ok(items)
}

/// True for a statement that may contain a password: its text must not be recorded, nor be part of an error.
pub fn has_secret(statement: &Statement<'_>) -> bool {
    let has = |words: &[&str]| {
        let is_one = |word: &str| words.iter().any(|known| word.eq_ignore_ascii_case(known));
        statement.tokens.iter().any(|token| match &token.token {
            Token::Word(word) => word.quote_style.is_none() && is_one(&word.value),
            _ => false,
        })
    };
    has(&["PASSWORD"]) && has(&["CREATE", "ALTER"]) && has(&["ROLE", "USER", "GROUP"])
}

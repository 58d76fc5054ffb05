//! Scripts taken apart into statements.
//!
//! A script is tokenised once; a statement is the tokens up to a semicolon (inside strings, comments and dollar quotes it
//! is no token of its own) and keeps its text, for messages and for shells.

use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer, TokenizerError};

use crate::{Error, Result};

pub(crate) static DIALECT: PostgreSqlDialect = PostgreSqlDialect {};

/// One statement, tokenised.
#[derive(Debug, Clone)]
pub(crate) struct Statement<'a> {
    /// Without semicolon, white space and comments around it.
    pub text: &'a str,
    pub tokens: Vec<TokenWithSpan>,
}

impl Statement<'_> {
    /// A parser at the first token.
    pub fn parser(&self) -> Parser<'static> {
        Parser::new(&DIALECT).with_tokens_with_locations(self.tokens.clone())
    }

    /// The words at the beginning, in capitals.
    pub fn words(&self) -> Vec<String> {
        let significant = self.tokens.iter().filter(|t| !matches!(t.token, Token::Whitespace(_)));
        let words = significant.map_while(|t| match &t.token {
            Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_ascii_uppercase()),
            _ => None,
        });
        words.collect()
    }

    /// Whether the statement has exactly so many tokens (without white space and comments).
    pub fn has_tokens(&self, count: usize) -> bool {
        self.tokens.iter().filter(|t| !matches!(t.token, Token::Whitespace(_))).count() == count
    }
}

/// All statements of a script; empty ones are left out.
pub(crate) fn split(sql: &str) -> Result<Vec<Statement<'_>>> {
    let tokens = tokenize(sql).map_err(|error| crate::base::tokenizer(&error))?;
    let mut offsets = Offsets::new(sql);
    let mut statements = Vec::new();
    let mut current: Vec<TokenWithSpan> = Vec::new();
    for token in tokens.into_iter().chain([TokenWithSpan::wrap(Token::SemiColon)]) {
        if token.token != Token::SemiColon {
            current.push(token);
            continue;
        }
        let tokens = std::mem::take(&mut current);
        let significant = |t: &&TokenWithSpan| !matches!(t.token, Token::Whitespace(_));
        let (first, last) = (tokens.iter().find(significant), tokens.iter().rev().find(significant));
        if let (Some(first), Some(last)) = (first, last) {
            let start = offsets.at(first.span.start);
            let text = &sql[start..offsets.at(last.span.end)];
            statements.push(Statement { text, tokens });
        }
    }
    Ok(statements)
}

/// The only statement of `sql`.
pub(crate) fn single(sql: &str) -> Result<Statement<'_>> {
    let mut statements = split(sql)?;
    match (statements.pop(), statements.len()) {
        (Some(statement), 0) => Ok(statement),
        (None, _) => Err(Error::syntax("the text has no statement")),
        (Some(_), more) => Err(Error::syntax(format!("expected one statement, found {}", more + 1))),
    }
}

/// Whether nothing is missing at the end: a semicolon is there (or nothing at all), no string or comment is open.
pub(crate) fn is_complete(sql: &str) -> bool {
    match tokenize(sql) {
        Ok(tokens) => {
            let last = tokens.iter().rev().find(|t| !matches!(t.token, Token::Whitespace(_)));
            last.is_none_or(|t| t.token == Token::SemiColon)
        }
        // Anything but an open end is an error that more lines would not heal.
        Err(error) => !is_unterminated(&error),
    }
}

fn is_unterminated(error: &TokenizerError) -> bool {
    let message = error.message.to_ascii_lowercase();
    message.contains("untermin") || message.contains("unexpected eof") || message.contains("before eof")
}

fn tokenize(sql: &str) -> std::result::Result<Vec<TokenWithSpan>, TokenizerError> {
    Tokenizer::new(&DIALECT, sql).tokenize_with_location()
}

/// Turns lines and columns (both from 1, columns in characters) into byte offsets; asked in ascending order.
struct Offsets<'a> {
    sql: &'a str,
    /// Of the next character.
    offset: usize,
    line: u64,
    column: u64,
}

impl<'a> Offsets<'a> {
    fn new(sql: &'a str) -> Self {
        Offsets { sql, offset: 0, line: 1, column: 1 }
    }

    fn at(&mut self, location: Location) -> usize {
        while (self.line, self.column) < (location.line, location.column) {
            let Some(c) = self.sql[self.offset..].chars().next() else { break };
            self.offset += c.len_utf8();
            if c == '\n' {
                self.line += 1;
                self.column = 1;
            } else {
                self.column += 1;
            }
        }
        self.offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(sql: &str) -> Vec<&str> {
        split(sql).unwrap().into_iter().map(|s| s.text).collect()
    }

    #[test]
    fn semicolons_end_statements_unless_quoted() {
        assert_eq!(texts(""), Vec::<&str>::new());
        assert_eq!(texts(" ;; -- nothing\n ;"), Vec::<&str>::new());
        assert_eq!(texts("SELECT 1; SELECT 2"), ["SELECT 1", "SELECT 2"]);
        assert_eq!(
            texts("SELECT ';', \"a;b\" /* ; */ ;\n-- c;\n SELECT $$;$$;"),
            ["SELECT ';', \"a;b\"", "SELECT $$;$$"]
        );
        assert_eq!(texts("SELECT 'größe\n;é';\r\nSELECT 'ü' -- x"), ["SELECT 'größe\n;é'", "SELECT 'ü'"]);
    }

    #[test]
    fn completeness() {
        for complete in ["", "  ", "SELECT 1;", "SELECT 1; -- done", "SELECT ';' ;", "/* a */"] {
            assert!(is_complete(complete), "{complete:?}");
        }
        for open in ["SELECT 1", "SELECT ';", "SELECT 1; SELECT", "SELECT 1 /* ;", "SELECT \"a;", "SELECT $$ ;"] {
            assert!(!is_complete(open), "{open:?}");
        }
    }

    #[test]
    fn exactly_one() {
        assert_eq!(single("SELECT 1;").unwrap().text, "SELECT 1");
        assert!(matches!(single(" "), Err(Error::Syntax { .. })));
        assert!(matches!(single("SELECT 1; SELECT 2"), Err(Error::Syntax { .. })));
        assert!(single("SELECT 'x").unwrap_err().to_string().contains("unterminated string literal"));
    }
}

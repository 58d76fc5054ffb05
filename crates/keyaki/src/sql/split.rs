//! Splits scripts into statements.
//!
//! A script is tokenised once. A statement is the sequence of tokens before a semicolon token; semicolons inside
//! strings, comments and dollar quotes are not tokens. Each statement keeps its source text for messages and shells.

use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer, TokenizerError};

use super::{parameters, symmetric, tokens};
use crate::{Error, Result};

pub(crate) static DIALECT: PostgreSqlDialect = PostgreSqlDialect {};

/// A parser of Keyaki's dialect.
pub(crate) fn parser(tokens: Vec<TokenWithSpan>) -> Parser<'static> {
    Parser::new(&DIALECT).with_tokens_with_locations(tokens)
}

/// One statement as text and tokens.
#[derive(Debug, Clone)]
pub(crate) struct Statement<'a> {
    /// The text without the semicolon and without surrounding white space and comments.
    pub text: &'a str,
    /// Parameters are numbered: `$1` instead of `?`.
    pub tokens: Vec<TokenWithSpan>,
}

impl Statement<'_> {
    /// A parser positioned at the first token.
    pub fn parser(&self) -> Parser<'static> {
        parser(self.tokens.clone())
    }

    /// The leading unquoted words, in upper case, up to the first other token.
    pub fn words(&self) -> Vec<String> {
        let significant = self.tokens.iter().filter(|t| !matches!(t.token, Token::Whitespace(_)));
        let words = significant.map_while(|t| match &t.token {
            Token::Word(word) if word.quote_style.is_none() => Some(word.value.to_ascii_uppercase()),
            _ => None,
        });
        words.collect()
    }

    /// True if the statement has exactly `count` tokens other than white space and comments.
    pub fn has_tokens(&self, count: usize) -> bool {
        self.tokens.iter().filter(|t| !matches!(t.token, Token::Whitespace(_))).count() == count
    }
}

/// Splits a script into statements, without empty ones.
///
/// # Errors
/// `Syntax` if the script cannot be tokenised, or if a statement uses both forms of parameters; `TooComplex` for very long
/// chains of operators.
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
            let mut tokens = tokens;
            tokens::correct(&mut tokens);
            parameters::number(&mut tokens)?;
            symmetric::mark(&mut tokens);
            check_chains(&tokens)?;
            statements.push(Statement { text, tokens });
        }
    }
    Ok(statements)
}

/// Maximum number of operators in a chain such as `a OR b OR c`, and of set operations in a query. The tree of a chain is as
/// deep as the chain is long.
const CHAIN_MAX: usize = 1000;

/// # Errors
/// `TooComplex` for a longer chain.
fn check_chains(tokens: &[TokenWithSpan]) -> Result<()> {
    /// Operators and set operations within a pair of parentheses.
    #[derive(Default)]
    struct Chains {
        operators: usize,
        queries: usize,
    }
    let mut open = vec![Chains::default()];
    for token in tokens {
        let depth = open.len();
        let Some(chains) = open.last_mut() else { return Ok(()) };
        match &token.token {
            Token::LParen | Token::LBracket => open.push(Chains::default()),
            Token::RParen | Token::RBracket if depth > 1 => _ = open.pop(),
            Token::Comma => chains.operators = 0,
            Token::Word(word) => match word.keyword {
                Keyword::AND | Keyword::OR => chains.operators += 1,
                Keyword::UNION | Keyword::EXCEPT | Keyword::INTERSECT => chains.queries += 1,
                Keyword::SELECT | Keyword::FROM | Keyword::WHERE | Keyword::JOIN | Keyword::ON | Keyword::WHEN => {
                    chains.operators = 0;
                }
                _ => {}
            },
            Token::Plus | Token::Minus | Token::Mul | Token::Div | Token::Mod | Token::StringConcat => {
                chains.operators += 1;
            }
            _ => {}
        }
        if open.last().is_some_and(|chains| chains.operators > CHAIN_MAX || chains.queries > CHAIN_MAX) {
            let what = format!("a chain of more than {CHAIN_MAX} operators (use parentheses, IN (…) or VALUES)");
            return Err(Error::TooComplex(format!("statement is nested too deeply: {what}")));
        }
    }
    Ok(())
}

/// The only statement of `sql`.
///
/// # Errors
/// `Syntax` if there is none or more than one.
pub(crate) fn single(sql: &str) -> Result<Statement<'_>> {
    let mut statements = split(sql)?;
    match (statements.pop(), statements.len()) {
        (Some(statement), 0) => Ok(statement),
        (None, _) => Err(Error::syntax("the text has no statement")),
        (Some(_), more) => Err(Error::syntax(format!("expected one statement, found {}", more + 1))),
    }
}

/// True unless the text ends inside a statement, string, quoted identifier or comment. Text without tokens is complete.
pub(crate) fn is_complete(sql: &str) -> bool {
    match tokenize(sql) {
        Ok(tokens) => {
            let last = tokens.iter().rev().find(|t| !matches!(t.token, Token::Whitespace(_)));
            last.is_none_or(|t| t.token == Token::SemiColon)
        }
        // Further lines can only complete an unterminated token; other errors are final.
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

/// Converts positions in lines and columns (both counted from 1, columns in characters) to byte offsets. Positions must
/// be passed in ascending order.
struct Offsets<'a> {
    sql: &'a str,
    /// Byte offset of the next character; `line` and `column` are its position.
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

    #[test]
    fn long_chains_are_refused() {
        let chain = |operator: &str, count: usize| format!("SELECT 1{}", format!(" {operator} 1").repeat(count));
        for operator in ["+", "OR", "UNION ALL SELECT"] {
            assert!(split(&chain(operator, CHAIN_MAX)).is_ok());
            let error = split(&chain(operator, CHAIN_MAX + 1)).unwrap_err();
            assert!(matches!(error, Error::TooComplex(_)), "{operator}");
        }
        let rows = format!("VALUES {}", "(1 + 1, 2 - 1), ".repeat(2000) + "(1, 1)");
        assert!(split(&rows).is_ok());
    }

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
    fn text_is_complete_unless_a_statement_or_token_is_open() {
        for complete in ["", "  ", "SELECT 1;", "SELECT 1; -- done", "SELECT ';' ;", "/* a */"] {
            assert!(is_complete(complete), "{complete:?}");
        }
        for open in ["SELECT 1", "SELECT ';", "SELECT 1; SELECT", "SELECT 1 /* ;", "SELECT \"a;", "SELECT $$ ;"] {
            assert!(!is_complete(open), "{open:?}");
        }
    }

    #[test]
    fn single_requires_exactly_one_statement() {
        assert_eq!(single("SELECT 1;").unwrap().text, "SELECT 1");
        assert!(matches!(single(" "), Err(Error::Syntax { .. })));
        assert!(matches!(single("SELECT 1; SELECT 2"), Err(Error::Syntax { .. })));
        assert!(single("SELECT 'x").unwrap_err().to_string().contains("unterminated string literal"));
    }
}

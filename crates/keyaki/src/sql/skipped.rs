//! Words of column definitions that sqlparser 0.62 skips.
//!
//! The parser tests for these words before it tests whether the dialect has them. In PostgreSQL's dialect it therefore
//! drops them without a trace in the syntax tree. [`check`] finds them among the tokens.

use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use crate::{Error, Result};

/// Words that request values from the database.
const GENERATED: [&str; 3] = ["AUTO_INCREMENT", "AUTOINCREMENT", "IDENTITY"];
/// Other words that the parser skips.
const OTHER: [&str; 3] = ["ASC", "DESC", "SRID"];

/// Checks the column definitions of a CREATE TABLE statement.
///
/// # Errors
/// `Unsupported` for a word that the parser would skip.
pub(super) fn check(tokens: &[TokenWithSpan]) -> Result<()> {
    let mut depth = 0_usize;
    let mut before = &Token::Comma;
    for token in tokens.iter().map(|token| &token.token).filter(|token| !matches!(token, Token::Whitespace(_))) {
        match token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            // A query follows.
            Token::Word(word) if depth == 0 && is(word.value.as_str(), "AS") => return Ok(()),
            Token::Word(word) if depth == 1 && word.quote_style.is_none() && !is_name(before) => refuse(&word.value)?,
            _ => {}
        }
        before = token;
    }
    Ok(())
}

/// Checks the column definitions of an ALTER TABLE statement.
///
/// # Errors
/// As [`check`].
pub(super) fn check_alter(tokens: &[TokenWithSpan]) -> Result<()> {
    /// Words and signs that precede names.
    const BEFORE_NAMES: [&str; 11] =
        ["TABLE", "ONLY", "EXISTS", "ADD", "COLUMN", "DROP", "ALTER", "RENAME", "TO", "CONSTRAINT", "AS"];
    let mut depth = 0_usize;
    let mut before = &Token::Comma;
    for token in tokens.iter().map(|token| &token.token).filter(|token| !matches!(token, Token::Whitespace(_))) {
        match token {
            Token::LParen => depth += 1,
            Token::RParen => depth = depth.saturating_sub(1),
            Token::Word(word) if depth == 0 && word.quote_style.is_none() => match before {
                Token::Comma | Token::Period => {}
                Token::Word(name) if BEFORE_NAMES.iter().any(|known| is(&name.value, known)) => {}
                _ => refuse(&word.value)?,
            },
            _ => {}
        }
        before = token;
    }
    Ok(())
}

/// True if a name follows, or a word that the parser reads: a definition starts with a name, and the parser knows
/// GENERATED … AS IDENTITY.
fn is_name(before: &Token) -> bool {
    match before {
        Token::LParen | Token::Comma => true,
        Token::Word(word) => is(&word.value, "AS"),
        _ => false,
    }
}

fn is(word: &str, other: &str) -> bool {
    word.eq_ignore_ascii_case(other)
}

fn refuse(word: &str) -> Result<()> {
    if let Some(word) = GENERATED.iter().find(|known| is(word, known)) {
        return Err(Error::Unsupported(format!(
            "{word} (declare the column INTEGER PRIMARY KEY or BIGINT PRIMARY KEY and insert a value for each row)"
        )));
    }
    match OTHER.iter().find(|known| is(word, known)) {
        Some(word) => Err(Error::Unsupported(format!("{word} in a column definition"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::sql::split::single;

    fn error(sql: &str) -> Option<String> {
        super::check(&single(sql).unwrap().tokens).err().map(|error| error.to_string())
    }

    #[test]
    fn skipped_words_are_refused() {
        for word in ["AUTOINCREMENT", "auto_increment", "IDENTITY"] {
            let error = error(&format!("CREATE TABLE t (id INTEGER PRIMARY KEY {word}, b INT)")).unwrap();
            assert!(error.contains("PRIMARY KEY and insert a value for each row"), "{error}");
        }
        assert_eq!(
            error("CREATE TABLE t (a INT PRIMARY KEY DESC)").unwrap(),
            "not supported: DESC in a column definition"
        );
    }

    #[test]
    fn names_are_not_options() {
        for sql in [
            "CREATE TABLE t (identity INT, autoincrement INT, b TEXT DEFAULT 'auto_increment')",
            "CREATE TABLE t (a INT, \"asc\" INT, PRIMARY KEY (a ASC))",
            "CREATE TABLE t AS SELECT (SELECT a AS identity FROM u) FROM v",
            "CREATE TABLE identity (a INT DEFAULT (1))",
        ] {
            assert_eq!(error(sql), None, "{sql}");
        }
    }
}

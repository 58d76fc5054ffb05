//! Parser of COPY. sqlparser accepts only parts of this grammar, so COPY is parsed here from the same tokens.
//!
//! ```text
//! COPY table [(column, …)] FROM 'path' [options]
//! COPY {table [(column, …)] | (query)} TO {'path' | STDOUT} [options]
//! options: [WITH] (name [value], …)                             PostgreSQL 9.0 and later, DuckDB
//!        | [WITH] [CSV] [HEADER] [DELIMITER [AS] '…']
//!          [NULL [AS] '…'] [QUOTE [AS] '…'] [ESCAPE [AS] '…']      earlier versions of PostgreSQL
//! ```

use datafusion::sql::sqlparser::ast::{Ident, ObjectName, Query};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Token;

use super::options::CopyOptions;
use super::output::STDOUT;
use super::values::{self, OptionValue};
use crate::base::syntax;
use crate::sql::{precedence, symmetric};
use crate::{Error, Result};

/// Options that earlier versions of PostgreSQL have without parentheses.
const OLD_OPTIONS: [&str; 7] = ["CSV", "HEADER", "DELIMITER", "DELIMITERS", "NULL", "QUOTE", "ESCAPE"];

/// A parsed COPY statement.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Copy {
    pub object: CopyObject,
    /// True for COPY TO, false for COPY FROM.
    pub to: bool,
    /// Path of the file; for COPY FROM it may contain wildcards.
    pub path: String,
    pub options: CopyOptions,
}

/// The source of COPY TO, or the target of COPY FROM.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum CopyObject {
    /// A table, with the listed columns; an empty list stands for all.
    Table { name: ObjectName, columns: Vec<Ident> },
    /// A query, for COPY TO only.
    Query(Box<Query>),
}

/// Parses a COPY statement. `parser` must be before the keyword COPY. On return it is after the last token of the
/// statement, before `;` or the end of input.
///
/// # Errors
/// `Syntax`, `Unsupported` for STDIN, STDOUT, PROGRAM and WHERE, `InvalidParameter` for values of options.
pub(crate) fn parse(parser: &mut Parser<'_>) -> Result<Copy> {
    let (object, to) = object(parser)?;
    let path = path(parser, to)?;
    let mut options = CopyOptions::default();
    self::options(parser, &OLD_OPTIONS, |name, value| options.set(name, value))?;
    if parser.parse_keyword(Keyword::WHERE) {
        return Err(Error::Unsupported("COPY FROM … WHERE".into()));
    }
    match &parser.peek_token_ref().token {
        Token::EOF | Token::SemiColon => Ok(Copy { object, to, path, options }),
        _ => Err(unexpected(parser, "end of statement")),
    }
}

/// Parses the beginning of a COPY statement, up to FROM or TO: the object, and whether rows are written.
///
/// # Errors
/// `Syntax`.
pub(super) fn object(parser: &mut Parser<'_>) -> Result<(CopyObject, bool)> {
    parser.expect_keyword(Keyword::COPY).map_err(syntax)?;
    let object = if parser.peek_token_ref().token == Token::LParen {
        parser.expect_token(&Token::LParen).map_err(syntax)?;
        let mut query = parser.parse_query().map_err(syntax)?;
        precedence::correct(&mut query);
        symmetric::expand(&mut query);
        parser.expect_token(&Token::RParen).map_err(syntax)?;
        CopyObject::Query(query)
    } else {
        let name = parser.parse_object_name(false).map_err(syntax)?;
        CopyObject::Table { name, columns: columns(parser)? }
    };
    let to = parser.expect_one_of_keywords(&[Keyword::FROM, Keyword::TO]).map_err(syntax)? == Keyword::TO;
    if !to && matches!(object, CopyObject::Query(_)) {
        return Err(Error::syntax("COPY FROM takes a table, not a query"));
    }
    Ok((object, to))
}

fn columns(parser: &mut Parser<'_>) -> Result<Vec<Ident>> {
    if !parser.consume_token(&Token::LParen) {
        return Ok(Vec::new());
    }
    let columns = parser.parse_comma_separated(Parser::parse_identifier).map_err(syntax)?;
    parser.expect_token(&Token::RParen).map_err(syntax)?;
    Ok(columns)
}

/// The path of the file. STDIN and STDOUT are those of the process, unless a client executes the statement.
fn path(parser: &mut Parser<'_>, to: bool) -> Result<String> {
    if let Some(path) = text(parser) {
        return Ok(path);
    }
    match word(parser, &[if to { "STDOUT" } else { "STDIN" }, "PROGRAM"]).as_deref() {
        Some("STDOUT") => Ok(STDOUT.into()),
        Some("STDIN") => Err(Error::Unsupported("COPY FROM STDIN without a client (use FROM '/dev/stdin')".into())),
        Some(_) => Err(Error::Unsupported("PROGRAM in COPY".into())),
        None => Err(unexpected(parser, "the path of a file in quotes")),
    }
}

/// Parses the options of a statement, and calls `set` with the name of each, in upper case, and its value. `old` has the names
/// that also stand without parentheses, as in earlier versions of PostgreSQL; names of formats among them become FORMAT.
///
/// # Errors
/// `Syntax`; errors of `set`.
pub(super) fn options(
    parser: &mut Parser<'_>,
    old: &[&str],
    mut set: impl FnMut(&str, Option<OptionValue>) -> Result<()>,
) -> Result<()> {
    let with = parser.parse_keyword(Keyword::WITH);
    if parser.consume_token(&Token::LParen) {
        loop {
            let Some(name) = word(parser, &[]) else { return Err(unexpected(parser, "the name of an option")) };
            set(&name, value(parser)?)?;
            if !parser.consume_token(&Token::Comma) {
                break;
            }
        }
        return parser.expect_token(&Token::RParen).map(drop).map_err(syntax);
    }
    let mut any = false;
    while let Some(name) = word(parser, old) {
        any = true;
        match name.as_str() {
            "BINARY" | "CSV" => set("FORMAT", Some(OptionValue::Text(name)))?,
            "HEADER" => set("HEADER", None)?,
            name => {
                let _ = parser.parse_keyword(Keyword::AS);
                let Some(value) = text(parser) else { return Err(unexpected(parser, "a text in quotes")) };
                set(name, Some(OptionValue::Text(value)))?;
            }
        }
    }
    if with && !any { Err(unexpected(parser, "options")) } else { Ok(()) }
}

/// The value of an option: a string, word, number or list; `None` for an option without a value.
fn value(parser: &mut Parser<'_>) -> Result<Option<OptionValue>> {
    // DuckDB also accepts NAME = value.
    let assigned = parser.consume_token(&Token::Eq);
    if let Some(list) = values::list(parser)? {
        return Ok(Some(list));
    }
    if let Some(text) = text(parser) {
        return Ok(Some(OptionValue::Text(text)));
    }
    let value = match &parser.peek_token_ref().token {
        Token::Word(word) => word.value.clone(),
        Token::Number(number, _) => number.clone(),
        Token::Comma | Token::RParen if !assigned => return Ok(None),
        _ => return Err(unexpected(parser, "the value of an option")),
    };
    parser.next_token();
    Ok(Some(OptionValue::Text(value)))
}

/// Consumes an unquoted word and returns it in upper case, if it is one of `words`; an empty list allows every word.
pub(super) fn word(parser: &mut Parser<'_>, words: &[&str]) -> Option<String> {
    let Token::Word(word) = &parser.peek_token_ref().token else { return None };
    let name = word.value.to_ascii_uppercase();
    if word.quote_style.is_some() || !(words.is_empty() || words.contains(&name.as_str())) {
        return None;
    }
    parser.next_token();
    Some(name)
}

pub(super) fn text(parser: &mut Parser<'_>) -> Option<String> {
    let text = match &parser.peek_token_ref().token {
        Token::SingleQuotedString(text) | Token::EscapedStringLiteral(text) => text.clone(),
        Token::DollarQuotedString(text) => text.value.clone(),
        _ => return None,
    };
    parser.next_token();
    Some(text)
}

pub(super) fn unexpected(parser: &Parser<'_>, expected: &str) -> Error {
    match parser.expected::<()>(expected, parser.peek_token()) {
        Err(error) => syntax(error),
        // `Parser::expected` always returns an error.
        Ok(()) => Error::syntax(format!("syntax error, expected {expected}")),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;

    use super::super::options::Format;
    use super::*;

    fn parse_sql(sql: &str) -> Result<Copy> {
        let dialect = PostgreSqlDialect {};
        parse(&mut Parser::new(&dialect).try_with_sql(sql).expect("tokens"))
    }

    fn good(sql: &str) -> Copy {
        parse_sql(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    #[test]
    fn postgres_and_duckdb_spellings() {
        let copy = good("COPY lineitem FROM 'a b.parquet'");
        assert!(!copy.to && copy.path == "a b.parquet" && copy.options == CopyOptions::default());
        let copy = good(
            "copy public.t (a, \"B\") from E'x\\ty.csv' with (format csv, header true, delimiter ';', null 'NULL')",
        );
        let CopyObject::Table { name, columns } = &copy.object else { panic!("a table") };
        assert_eq!((name.to_string().as_str(), columns.len(), copy.path.as_str()), ("public.t", 2, "x\ty.csv"));
        assert_eq!(copy.options.format, Some(Format::Csv));
        assert_eq!(copy.options.header, Some(true));
        assert_eq!(copy.options.delimiter, Some(b';'));
        assert_eq!(copy.options.nulls, Some(vec!["NULL".into()]));
        let duckdb = good("COPY t FROM 'f' (FORMAT 'CSV', HEADER, DELIM '|', NULLSTR 'NULL', QUOTE = '''');");
        assert_eq!(duckdb.options.header, Some(true));
        assert_eq!(duckdb.options.quote, Some(b'\''));
        let old = good("COPY t FROM 'f' WITH CSV HEADER DELIMITER AS ';' NULL ''");
        assert_eq!(old.options.header, Some(true));
        assert_eq!(old.options.nulls, Some(vec![String::new()]));
        let lists = good("COPY t FROM 'f.csv' (NULLSTR ['NA', '-'], SKIP 2)");
        assert_eq!((lists.options.nulls, lists.options.skip), (Some(vec!["NA".into(), "-".into()]), Some(2)));
        assert_eq!(good("COPY t FROM 'f.csv' (NULL ('a', 'b'))").options.nulls.map(|nulls| nulls.len()), Some(2));
        let old = good("COPY t FROM 'f' DELIMITER '|' CSV");
        assert_eq!((old.options.format, old.options.delimiter), (Some(Format::Csv), Some(b'|')));
        assert_eq!(good("COPY t TO STDOUT (FORMAT json)").path, "/dev/stdout");
        let query = good("COPY (SELECT a, 'x)' FROM t WHERE b IN (1, 2)) TO 'out.json' (FORMAT json)");
        assert!(query.to && matches!(query.object, CopyObject::Query(_)));
    }

    #[test]
    fn malformed_and_unsupported_statements_are_errors() {
        for sql in [
            "COPY",
            "COPY t",
            "COPY t FROM",
            "COPY t FROM f",
            "COPY t FROM 'f' WITH",
            "COPY t FROM 'f' (",
            "COPY t FROM 'f' ()",
            "COPY t FROM 'f' (FORMAT)",
            "COPY t FROM 'f' (FORMAT csv",
            "COPY t FROM 'f' (FORMAT xml)",
            "COPY t FROM 'f' (COLOUR red)",
            "COPY t FROM 'f' (HEADER maybe)",
            "COPY t FROM 'f' (DELIMITER '||')",
            "COPY t FROM 'f' (DELIMITER 'é')",
            "COPY t FROM 'f' (DELIMITER '\n')",
            "COPY t FROM 'f' (FORMAT csv, FORMAT json)",
            "COPY t FROM 'f' (ENCODING 'latin1')",
            "COPY t FROM 'f' WHERE a > 1",
            "COPY t FROM 'f' garbage",
            "COPY t FROM STDIN",
            "COPY t FROM STDOUT",
            "COPY t TO STDIN",
            "COPY t FROM PROGRAM 'rm -rf /'",
            "COPY (SELECT 1) FROM 'f'",
            "COPY (SELECT 1 TO 'f'",
        ] {
            assert!(parse_sql(sql).is_err(), "{sql}");
        }
    }
}

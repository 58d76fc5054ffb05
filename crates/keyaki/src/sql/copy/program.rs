//! COPY between a table and the program that executes the statement: COPY FROM STDIN and COPY TO STDOUT of PostgreSQL.
//!
//! The statement is parsed here. A server reads and writes the rows in the format of its protocol.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::Token;

use super::options::{boolean, character, encoding, invalid, null, once, required, unknown};
use super::statement::{self, CopyObject, object, unexpected, word};
use super::values::OptionValue;
use crate::base::json_fields::with_json_type;
use crate::catalog::Privileges;
use crate::sql::names::{full_sql, plain_ident, quoted};
use crate::sql::{SqlSession, access, split};
use crate::{Error, Result};

/// Options that earlier versions of PostgreSQL have without parentheses.
const OLD_OPTIONS: [&str; 8] = ["BINARY", "CSV", "HEADER", "DELIMITER", "DELIMITERS", "NULL", "QUOTE", "ESCAPE"];

/// The names of options, for suggestions.
const NAMES: [&str; 7] = ["FORMAT", "HEADER", "DELIMITER", "NULL", "QUOTE", "ESCAPE", "ENCODING"];

/// The format of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyFormat {
    /// PostgreSQL's text format: a line for each row, with backslashes as escapes.
    Text,
    /// Comma-separated values.
    Csv,
    /// PostgreSQL's binary format.
    Binary,
}

/// COPY FROM STDIN or COPY TO STDOUT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramCopy {
    /// True for COPY TO STDOUT.
    pub to_program: bool,
    /// The table of COPY FROM STDIN, as in SQL.
    pub table: Option<String>,
    /// The query whose rows are written; empty for COPY FROM STDIN.
    pub query: String,
    /// The columns that are read; `None` for COPY TO STDOUT.
    pub columns: Option<SchemaRef>,
    /// The format of the rows.
    pub format: CopyFormat,
    /// The first line has the names of the columns.
    pub header: bool,
    /// Separates the values of a line.
    pub delimiter: u8,
    /// Stands for NULL.
    pub null: String,
    /// Encloses values in [`CopyFormat::Csv`].
    pub quote: u8,
    /// Precedes a quote in a quoted value.
    pub escape: u8,
}

#[derive(Debug, Default)]
struct Options {
    format: Option<CopyFormat>,
    header: Option<bool>,
    delimiter: Option<u8>,
    null: Option<String>,
    quote: Option<u8>,
    escape: Option<u8>,
}

/// Parses a statement; `None` for any but COPY FROM STDIN and COPY TO STDOUT.
///
/// # Errors
/// `Syntax`, `Unsupported`, `InvalidParameter`; `NotFound`.
pub(crate) fn parse(session: &SqlSession, sql: &str) -> Result<Option<ProgramCopy>> {
    let tokens = split::single(sql)?;
    if tokens.words().first().is_none_or(|word| word != "COPY") {
        return Ok(None);
    }
    let mut parser = tokens.parser();
    let (object, to_program) = object(&mut parser)?;
    if word(&mut parser, &[if to_program { "STDOUT" } else { "STDIN" }]).is_none() {
        return Ok(None);
    }
    let mut options = Options::default();
    statement::options(&mut parser, &OLD_OPTIONS, |name, value| options.set(name, value))?;
    if parser.parse_keyword(Keyword::WHERE) {
        return Err(Error::Unsupported("COPY FROM … WHERE".into()));
    }
    if !matches!(parser.peek_token_ref().token, Token::EOF | Token::SemiColon) {
        return Err(unexpected(&parser, "end of statement"));
    }
    let (table, query, columns) = match object {
        CopyObject::Query(_) if !to_program => {
            return Err(Error::syntax("COPY FROM takes a table, not a query"));
        }
        CopyObject::Query(query) => (None, query.to_string(), None),
        CopyObject::Table { name, columns } if !to_program => {
            let (catalog, _) = session.moment()?;
            let table = catalog.table(&session.relation(&catalog, &name)?)?.clone();
            access::relation(&session.authority(&catalog)?, &catalog, &table.def.name, Privileges::INSERT)?;
            let given = columns.iter().map(|column| table.column(&plain_ident(column))).collect::<Result<Vec<_>>>()?;
            // Without generated columns.
            let given = if given.is_empty() { table.given_columns() } else { given };
            let field = |at: usize| with_json_type(&table.arrow.fields()[at], table.def.columns[at].ty.json);
            let columns = Arc::new(Schema::new(given.into_iter().map(field).collect::<Vec<_>>()));
            (Some(full_sql(&table.def.name)), String::new(), Some(columns))
        }
        CopyObject::Table { name, columns } => {
            let (catalog, _) = session.moment()?;
            let name = session.relation(&catalog, &name)?;
            access::relation(&session.authority(&catalog)?, &catalog, &name, Privileges::SELECT)?;
            let mut columns: Vec<String> = columns.iter().map(|column| quoted(&plain_ident(column))).collect();
            match catalog.tables.get(&name) {
                // Without generated columns.
                Some(table) if columns.is_empty() => {
                    columns.extend(table.given_columns().into_iter().map(|at| quoted(&table.def.columns[at].name)));
                }
                _ if columns.is_empty() => columns.push("*".into()),
                _ => {}
            }
            let query = format!("SELECT {} FROM {}", columns.join(", "), full_sql(&name));
            (Some(full_sql(&name)), query, None)
        }
    };
    Ok(Some(ProgramCopy { table, query, columns, ..options.resolve(to_program)? }))
}

impl Options {
    fn set(&mut self, name: &str, value: Option<OptionValue>) -> Result<()> {
        let value = value.map(|value| value.text(name)).transpose()?;
        let needed = || required(name, &value);
        match name {
            "FORMAT" => {
                let format = match needed()?.to_ascii_lowercase().as_str() {
                    "text" => CopyFormat::Text,
                    "csv" => CopyFormat::Csv,
                    "binary" => CopyFormat::Binary,
                    other => return Err(invalid(name, other, "text, csv or binary")),
                };
                once(&mut self.format, name, format)
            }
            "HEADER" => once(&mut self.header, name, value.as_deref().map_or(Ok(true), |text| boolean(name, text))?),
            "DELIMITER" | "DELIMITERS" => once(&mut self.delimiter, name, character(name, &needed()?)?),
            "NULL" => once(&mut self.null, name, null(needed()?)?),
            "QUOTE" => once(&mut self.quote, name, character(name, &needed()?)?),
            "ESCAPE" => once(&mut self.escape, name, character(name, &needed()?)?),
            "ENCODING" => encoding(&needed()?),
            // It changes nothing that transactions can see here.
            "FREEZE" => Ok(()),
            "FORCE_QUOTE" | "FORCE_NULL" | "FORCE_NOT_NULL" => Err(Error::Unsupported(format!("{name} in COPY"))),
            _ => Err(unknown(name, "COPY", &NAMES)),
        }
    }

    fn resolve(self, to_program: bool) -> Result<ProgramCopy> {
        let format = self.format.unwrap_or(CopyFormat::Text);
        let misplaced = |name: &str, of: &str| Err(Error::Unsupported(format!("{name} except for {of}")));
        if format != CopyFormat::Csv && (self.quote.is_some() || self.escape.is_some()) {
            return misplaced("QUOTE and ESCAPE", "csv");
        }
        let has_text_options = self.delimiter.is_some() || self.null.is_some() || self.header.is_some();
        if format == CopyFormat::Binary && has_text_options {
            return misplaced("DELIMITER, NULL and HEADER", "text and csv");
        }
        let is_csv = format == CopyFormat::Csv;
        let quote = self.quote.unwrap_or(b'"');
        let copy = ProgramCopy {
            to_program,
            table: None,
            query: String::new(),
            columns: None,
            format,
            header: self.header.unwrap_or(false),
            delimiter: self.delimiter.unwrap_or(if is_csv { b',' } else { b'\t' }),
            null: self.null.unwrap_or(if is_csv { String::new() } else { "\\N".into() }),
            quote,
            escape: self.escape.unwrap_or(quote),
        };
        let in_null = |byte: u8| copy.null.as_bytes().contains(&byte);
        if in_null(copy.delimiter) || is_csv && (copy.quote == copy.delimiter || in_null(copy.quote)) {
            return Err(Error::syntax("DELIMITER, QUOTE and NULL must not contain one another"));
        }
        if !is_csv && (copy.delimiter.is_ascii_alphanumeric() || matches!(copy.delimiter, b'\\' | b'.')) {
            return Err(invalid(
                "DELIMITER",
                &char::from(copy.delimiter).to_string(),
                "no letter, digit, backslash or point",
            ));
        }
        Ok(copy)
    }
}

//! COPY: tables from files and files from tables.

use datafusion::sql::sqlparser::parser::Parser;

use crate::session::Outcome;
use crate::{Error, Result, Session};

/// A parsed COPY statement.
#[derive(Debug, Clone)]
pub(crate) struct Copy {}

/// Parses a COPY statement; `parser` stands before the keyword COPY, and stands after the statement's last token on
/// return (before `;` or the end).
pub(crate) fn parse(_parser: &mut Parser<'_>) -> Result<Copy> {
    Err(Error::Unsupported("COPY".into()))
}

/// Runs it; takes the writer lock where it writes.
pub(crate) async fn run(_session: &Session, _copy: Copy) -> Result<Outcome> {
    Err(Error::Unsupported("COPY".into()))
}

//! COPY: tables from files and files from tables.
//!
//! Formats: Parquet, CSV, JSON and dbgen's tbl; by `FORMAT` or the file's extension. COPY FROM takes one file or all that a
//! pattern matches, matches columns by name where the file has names and by place where not, and is one transaction: a bad
//! value anywhere leaves the table as it was, and is told with file, row and column.
//!
//! COPY TO writes beside the target and renames at the end, so that the target is either the old file or the whole new one.
//! As in PostgreSQL and DuckDB, an existing file is replaced. Text files have a header unless told otherwise (as in
//! DuckDB); on reading, a header is recognised by the names of the table's columns.

mod files;
mod from;
mod options;
mod read;
mod statement;
mod to;
mod write;

pub(crate) use statement::{Copy, parse};

use crate::Result;
use crate::sql::Outcome;
use crate::sql::SqlSession;

/// Runs it; takes the writer lock where it writes.
pub(crate) async fn run(session: &SqlSession, copy: Copy) -> Result<Outcome> {
    let rows = if copy.to { to::run(session, copy).await? } else { from::run(session, copy).await? };
    Ok(Outcome::rows("COPY", rows))
}

//! COPY: loads files into tables and writes tables or query results to files.
//!
//! The format is Parquet, CSV, JSON or dbgen's tbl, given by `FORMAT` or by the file's extension. COPY FROM reads one
//! file, or all files that match a pattern. Columns are matched by name in formats with names, else by position. COPY
//! FROM is one transaction: an invalid value leaves the table unchanged, and the error names file, row and column.
//!
//! COPY TO writes a temporary file beside the target and renames it at the end: the target is either the old file or
//! the complete new one. Objects in stores appear when they are complete, too. As in PostgreSQL and DuckDB, an existing file is replaced. As in DuckDB, CSV files get a
//! header by default. [`program`] parses COPY FROM STDIN and TO STDOUT, which a server executes. When reading, a first record that consists of column names is recognised as a header.

mod files;
mod folders;
mod from;
mod options;
mod output;
mod partitioned;
pub(crate) mod program;
mod read;
mod source;
mod statement;
mod to;
mod values;
mod write;

pub(super) use files::expand;
pub(super) use folders::folders;
pub(super) use options::{Compression, CopyOptions, Dialect, Format, boolean, invalid, once, unknown};
pub(super) use read::{DelimitedReader, FileRows, JsonReader, JsonText, ObjectPages, bad};
pub(super) use source::Source;
pub(super) use statement::CopyObject;
pub(crate) use statement::{Copy, parse};
pub(super) use to::write_parquet;
pub(super) use values::OptionValue;

use crate::Result;
use crate::base::interrupt::Execution;
use crate::sql::Outcome;
use crate::sql::SqlSession;
use crate::sql::access;

/// Executes a COPY statement. COPY FROM holds the writer lock.
pub(crate) async fn run(session: &SqlSession, execution: &Execution<'_>, copy: Copy) -> Result<Outcome> {
    let what = if copy.to { "COPY to a file" } else { "COPY from a file" };
    access::superuser(session, what)?;
    let rows = match copy.to {
        true => to::run(session, execution, copy).await?,
        false => from::run(session, execution, copy).await?,
    };
    Ok(Outcome::rows("COPY", rows))
}

//! `BACKUP DATABASE TO 'directory' [INCREMENTAL]`: a copy of the database as of now, made beside writers.

use std::io::{Error as IoError, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use keyaki_store::{BackupMode, Store};

use super::check::over_pages;
use super::transaction::check_outside;
use super::{Outcome, SqlSession, syntax};
use crate::base::interrupt::Execution;
use crate::{Error, Result};

/// The directory of the copy, and how it is made.
#[derive(Debug)]
pub(super) struct Backup(PathBuf, BackupMode);

/// Parses a statement whose first word is BACKUP.
pub(super) fn parse(parser: &mut Parser<'_>) -> Result<Backup> {
    parser.next_token();
    parser.expect_keywords(&[Keyword::DATABASE, Keyword::TO]).map_err(syntax)?;
    let directory = parser.parse_literal_string().map_err(syntax)?;
    let mode = match parser.parse_keyword(Keyword::INCREMENTAL) {
        true => BackupMode::Incremental,
        false => BackupMode::Full,
    };
    Ok(Backup(directory.into(), mode))
}

/// Executes the statement. The result is one row: the directory, the bytes that were written, and those of pages that an
/// earlier copy had.
pub(super) async fn run(session: &SqlSession, execution: &Execution<'_>, backup: Backup) -> Result<Outcome> {
    check_outside(session, "BACKUP")?;
    session.engine.check_read_write("BACKUP DATABASE")?;
    let Backup(directory, mode) = backup;
    session.files().check_directory(&directory, "BACKUP DATABASE")?;
    if mode == BackupMode::Full {
        check_unused(&directory)?;
    }
    let (target, decision) = (directory.clone(), execution.decision().clone());
    // The statement takes effect when the copy gets its name.
    let copy = move |store: &Store, progress: &(dyn Fn(u64, u64) -> bool + Sync)| {
        store.backup(&target, mode, progress, &|| decision.commit().is_ok())
    };
    let copied = over_pages(session, execution, "copying", copy).await?.ok_or(Error::Cancelled)?;
    session.progress.lock().finish();
    let path: ArrayRef = Arc::new(StringArray::from_iter_values([directory.display().to_string()]));
    let [bytes, kept_bytes] =
        [copied.bytes, copied.kept_bytes].map(|bytes| Arc::new(Int64Array::from(vec![bytes as i64])) as ArrayRef);
    Outcome::of_columns([("directory", path), ("bytes", bytes), ("kept_bytes", kept_bytes)])
}

/// Checks that the directory does not exist, or is empty.
///
/// # Errors
/// `Io`.
pub(super) fn check_unused(directory: &Path) -> Result<()> {
    let failed = |error| Err(Error::io("create", directory, error));
    match std::fs::read_dir(directory).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => failed(IoError::new(ErrorKind::AlreadyExists, "the directory has files (name a new one)")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => failed(error),
    }
}

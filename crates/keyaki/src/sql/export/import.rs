//! `IMPORT DATABASE 'directory'`: creates the objects of an export, and loads their rows.
//!
//! Roles of the database that have the name of an exported one stay as they are.
//!
//! A session with default settings executes the statements of the scripts, and one COPY FROM for each table: the search
//! path and the time zone of the caller do not change their meaning. Each statement is a transaction. After an error,
//! the objects created so far remain; `keyaki restore` imports into a new database, and removes it then.

use std::io::{Error as IoError, ErrorKind};
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use datafusion::sql::sqlparser::ast::{Ident, ObjectName};
use datafusion::sql::sqlparser::parser::Parser;
use futures::future::BoxFuture;

use super::manifest::{ExportedTable, Manifest};
use super::{FINISH, ROLES, SCHEMA};
use crate::base::interrupt::{Execution, Started};
use crate::sql::copy::{self, Copy, CopyObject, CopyOptions, Format};
use crate::sql::roles::changed_role;
use crate::sql::split::{self, Statement};
use crate::sql::transaction::check_outside;
use crate::sql::{Outcome, SqlSession};
use crate::{Error, Result};

/// The directory of an export.
#[derive(Debug)]
pub(in crate::sql) struct Import(PathBuf);

/// Parses a statement whose first word is IMPORT.
pub(in crate::sql) fn parse(parser: &mut Parser<'_>) -> Result<Import> {
    Ok(Import(super::directory(parser)?))
}

/// Executes the statement. The result has a row for each table with its number of rows.
pub(in crate::sql) async fn run(session: &SqlSession, execution: &Execution<'_>, import: Import) -> Result<Outcome> {
    check_outside(session, "IMPORT")?;
    if session.is_read_only() {
        return Err(Error::ReadOnlyTransaction { statement: "IMPORT DATABASE".into() });
    }
    let Import(directory) = import;
    session.files().check_directory(&directory, "IMPORT DATABASE")?;
    let manifest = Manifest::read(&directory, session.files().access())?;
    // Each statement of the import decides for itself whether an interrupt comes too late.
    execution.decision().commit()?;
    let own = own_session(session);
    let started = execution.started();
    let roles = directory.join(ROLES);
    if roles.symlink_metadata().is_ok() {
        let (catalog, _) = own.moment()?;
        let is_new = |statement: &Statement<'_>| -> Result<bool> {
            Ok(changed_role(statement)?.is_none_or(|role| !catalog.has_role(&role)))
        };
        script(&own, started, &roles, is_new).await?;
    }
    script(&own, started, &directory.join(SCHEMA), |_| Ok(true)).await?;
    for table in &manifest.tables {
        let execution = Execution::new(&own.interrupts, started);
        let loaded = execution.run(load(&own, &execution, table, &directory)).await?;
        table.check_rows(&directory, loaded)?;
    }
    script(&own, started, &directory.join(FINISH), |_| Ok(true)).await?;
    session.progress.lock().finish();
    super::outcome(&manifest.tables, false)
}

/// A session with default settings, which the caller's interrupts reach.
fn own_session(session: &SqlSession) -> SqlSession {
    let mut own = SqlSession::new(session.engine.clone(), session.plans.clone());
    own.interrupts = session.interrupts.clone();
    *own.files.lock() = session.files().access().clone();
    *own.progress.lock() = session.progress.lock().clone();
    own
}

/// Executes the statements of a file that `is_wanted` accepts.
async fn script(
    session: &SqlSession,
    started: Started,
    path: &Path,
    is_wanted: impl Fn(&Statement<'_>) -> Result<bool>,
) -> Result<()> {
    let text = text(session, path)?;
    let name = path.file_name().unwrap_or_default().display();
    for statement in split::split(&text).map_err(|error| error.within(name.to_string()))? {
        if !is_wanted(&statement)? {
            continue;
        }
        execute(session, started, &statement).await.map_err(|error| match error {
            Error::Cancelled => error,
            error => error.within(format!("{name}, line {}", line_of(&text, statement.text))),
        })?;
    }
    Ok(())
}

/// Reads a file that the session may read.
fn text(session: &SqlSession, path: &Path) -> Result<String> {
    let invalid = |_| Error::io("read", path, IoError::new(ErrorKind::InvalidData, "the text is not valid UTF-8"));
    String::from_utf8(session.files().access().read(path)?).map_err(invalid)
}

/// Executes a statement of a script, and returns its rows.
///
/// # Errors
/// Those of the statement.
pub(in crate::sql) async fn execute(
    session: &SqlSession,
    started: Started,
    statement: &Statement<'_>,
) -> Result<Vec<RecordBatch>> {
    let execution = Execution::new(&session.interrupts, started);
    execution.run(async { nested(session, &execution, statement).await?.collect().await }).await
}

/// Executes a statement within another one.
fn nested<'a>(
    session: &'a SqlSession,
    execution: &'a Execution<'a>,
    statement: &'a Statement<'a>,
) -> BoxFuture<'a, Result<Outcome>> {
    Box::pin(crate::sql::run(session, execution, statement))
}

/// The number of the line on which a part of a text begins.
fn line_of(text: &str, part: &str) -> usize {
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    text[..start].matches('\n').count() + 1
}

/// Loads the rows of a table, and returns their number.
async fn load(session: &SqlSession, execution: &Execution<'_>, table: &ExportedTable, directory: &Path) -> Result<u64> {
    let path = table.path(directory);
    let Some(path) = path.to_str() else {
        let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, "the path is not valid UTF-8");
        return Err(Error::io("open", &path, error));
    };
    let quoted = |name: &String| Ident::with_quote('"', name);
    let name = ObjectName::from(vec![quoted(&table.schema), quoted(&table.name)]);
    let object = CopyObject::Table { name, columns: Vec::new() };
    let options = CopyOptions { format: Some(Format::Parquet), ..CopyOptions::default() };
    match copy::run(session, execution, Copy { object, to: false, path: path.into(), options }).await? {
        Outcome::Done { rows, .. } => Ok(rows.unwrap_or(0)),
        Outcome::Rows(_) => Err(Error::Internal("COPY returned rows".into())),
    }
}

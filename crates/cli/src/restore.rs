//! `keyaki restore`: creates a database from a directory of `keyaki dump`.
//!
//! The database has a temporary name beside its final one until it is complete.

use std::fs::{File, Permissions};
use std::io::{Error as IoError, ErrorKind, Write, stdout};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use keyaki::Database;
use tempfile::TempDir;

use crate::arguments::RestoreArguments;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::output::{Mode, table_of};
use crate::run::Runner;
use crate::terminal::{rows, sum};

/// Permission bits of the directory, before the umask is applied.
const PERMISSIONS: u32 = 0o777;

pub async fn run(arguments: &RestoreArguments, interrupts: Arc<Interrupts>) -> Result<()> {
    let target = &arguments.database;
    check_unused(target)?;
    // Ctrl-C cancels statements. Between them, it must not end the program before the temporary database is removed.
    let _active = interrupts.activate();
    let temporary = temporary(target)?;
    let restored = import(arguments, temporary.path(), interrupts.clone()).await?;
    std::fs::rename(temporary.path(), target).map_err(Failure::file(target))?;
    let _renamed = temporary.keep();
    let synced = File::open(parent(target)).and_then(|directory| directory.sync_all());
    synced.map_err(Failure::file(parent(target)))?;
    let count = rows(sum(&restored, "rows"));
    let text = format!("{}restored {count} to {}\n", table_of(&restored)?, target.display());
    stdout().write_all(text.as_bytes()).map_err(Failure::Output)
}

/// Creates the database, and closes it.
async fn import(arguments: &RestoreArguments, path: &Path, interrupts: Arc<Interrupts>) -> Result<Vec<RecordBatch>> {
    let options = keyaki::Options { must_exist: false, ..arguments.open.options()? };
    let database = Database::create(path, options)?;
    let mut runner = Runner::new(&database, Mode::Table, interrupts);
    let directory = arguments.directory.display().to_string();
    let restored = runner.collect(&format!("IMPORT DATABASE '{}'", directory.replace('\'', "''"))).await?;
    // Durable also if commits are not synced.
    runner.collect("CHECKPOINT").await?;
    Ok(restored)
}

/// Checks that the directory does not exist, or is empty.
fn check_unused(directory: &Path) -> Result<()> {
    let failed = |error| Err(Failure::file(directory)(error));
    match std::fs::read_dir(directory).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => failed(IoError::new(ErrorKind::AlreadyExists, "the directory has files (name a new one)")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => failed(error),
    }
}

/// A new directory beside the target. It is removed with its contents on drop.
fn temporary(target: &Path) -> Result<TempDir> {
    let name = target.file_name().ok_or_else(|| {
        Failure::Usage(format!("{}: the path does not end with the name of a database", target.display()))
    })?;
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(".tmp").permissions(Permissions::from_mode(PERMISSIONS));
    builder.tempdir_in(parent(target)).map_err(Failure::file(target))
}

/// The directory that contains a path.
fn parent(path: &Path) -> &Path {
    // The parent of a name without a directory is the empty path.
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

//! `EXPORT DATABASE 'directory'`: writes the database as SQL scripts and Parquet files. `IMPORT DATABASE 'directory'`
//! ([`import`]) creates the objects in another database.
//!
//! | file | contents |
//! |---|---|
//! | `roles.sql` | the roles, if there are any; with their passwords only for WITH PASSWORDS |
//! | `schema.sql` | schemas, sequences, and tables with all constraints other than foreign keys |
//! | `data/N-TABLE.parquet` | the rows of one table in the order of its key, without generated columns |
//! | `finish.sql` | indexes, foreign keys, views, comments, the positions of sequences, owners and privileges |
//! | `manifest.json` | the tables with their files and numbers of rows ([`Manifest`]) |
//!
//! Definitions and rows are those of one snapshot. Sequences do not belong to snapshots: their positions are read after
//! the snapshot is taken, so that they lie behind all values in the rows. Temporary objects are left out.
//!
//! *Invariant.* The directory gets its name when all files are complete and durable. Until then, they are in a hidden
//! directory beside it, which is removed after an error.

mod access;
pub(in crate::sql) mod import;
mod manifest;
mod script;

use std::fs::{File, Permissions};
use std::io::{Error as IoError, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchOptions, StringArray};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::Parser;
use futures::StreamExt;
use keyaki_exec::{ExecutionMode, Scan};
use keyaki_store::{KeyRange, Snapshot};
use manifest::{ExportedTable, Manifest};
use script::Scripts;
use tempfile::TempDir;

use super::backup::check_unused;
use super::roles::words::accept;
use super::transaction::check_outside;
use super::{Outcome, SqlSession, copy, syntax};
use crate::base::interrupt::{Decision, Execution, Stage};
use crate::catalog::Table;
use crate::{Error, Result};

const ROLES: &str = "roles.sql";
const SCHEMA: &str = "schema.sql";
const FINISH: &str = "finish.sql";
/// The folder of the Parquet files.
const DATA: &str = "data";
/// Rows of a batch that is read from a table.
const BATCH_ROWS: usize = 8192;
/// Permission bits of the directory, before the umask is applied.
const PERMISSIONS: u32 = 0o777;
/// Permission bits of files, before the umask is applied.
const FILE_PERMISSIONS: u32 = 0o666;
/// Permission bits of a file with the verifiers of passwords.
const SECRET_PERMISSIONS: u32 = 0o600;

/// A parsed statement.
#[derive(Debug)]
pub(super) struct Export {
    directory: PathBuf,
    /// WITH PASSWORDS: the roles keep the verifiers of their passwords.
    has_passwords: bool,
}

/// Parses a statement whose first word is EXPORT.
pub(super) fn parse(parser: &mut Parser<'_>) -> Result<Export> {
    let directory = directory(parser)?;
    let has_passwords = parser.parse_keyword(Keyword::WITH);
    if has_passwords && !accept(parser, &["PASSWORDS"]) {
        return parser.expected("PASSWORDS", parser.peek_token()).map_err(syntax);
    }
    Ok(Export { directory, has_passwords })
}

/// Parses a word, DATABASE and a path.
fn directory(parser: &mut Parser<'_>) -> Result<PathBuf> {
    parser.next_token();
    parser.expect_keyword(Keyword::DATABASE).map_err(syntax)?;
    Ok(parser.parse_literal_string().map_err(syntax)?.into())
}

/// Executes the statement. The result has a row for each table: its number of rows and the bytes of its file.
pub(super) async fn run(session: &SqlSession, execution: &Execution<'_>, export: Export) -> Result<Outcome> {
    check_outside(session, "EXPORT")?;
    let Export { directory, has_passwords } = export;
    session.files().check_directory(&directory, "EXPORT DATABASE")?;
    check_unused(&directory)?;
    let (catalog, snapshot) = session.moment()?;
    let temporary = temporary(&directory)?;
    let data = temporary.path().join(DATA);
    std::fs::create_dir(&data).map_err(|error| Error::io("create", &directory, error))?;
    let mut manifest = Manifest::new();
    for table in catalog.tables.values().filter(|table| !table.def.name.is_temporary()) {
        let file = manifest.next_file(&table.def.name);
        let (rows, bytes) = self::rows(session, execution, table, &snapshot, &temporary.path().join(&file)).await?;
        let (schema, name) = (table.def.name.schema.to_string(), table.def.name.name.clone());
        manifest.tables.push(ExportedTable { schema, name, file, rows, bytes });
    }
    let scripts = script::scripts(session, &catalog, &snapshot, has_passwords).await?;
    let outcome = outcome(&manifest.tables, true)?;
    let decision = execution.decision().clone();
    let task = tokio::task::spawn_blocking(move || {
        let mode = if has_passwords { SECRET_PERMISSIONS } else { FILE_PERMISSIONS };
        scripts.roles.iter().try_for_each(|roles| write(&temporary.path().join(ROLES), roles.as_bytes(), mode))?;
        publish(temporary, &directory, &scripts, &manifest, &decision)
    });
    task.await.map_err(|error| Error::task(&error))??;
    session.progress.lock().finish();
    Ok(outcome)
}

/// Writes the rows of a table to a file. Returns their number and the bytes of the file.
async fn rows(
    session: &SqlSession,
    execution: &Execution<'_>,
    table: &Arc<Table>,
    snapshot: &Snapshot,
    file: &Path,
) -> Result<(u64, u64)> {
    let given = table.given_columns();
    if given.is_empty() {
        // A file without columns has no rows.
        return Err(Error::Unsupported(format!(
            "EXPORT of table \"{}\", which has generated columns only",
            table.def.name
        )));
    }
    let view = snapshot.tree(table.def.tree)?;
    let total = view.estimate(&KeyRange::all()).rows as u64;
    session.progress.lock().start(&format!("exporting {}", table.def.name), Some(total));
    let columns = given.iter().map(|&column| table.tree_column[column]).collect();
    let scan = Scan::whole(view, columns, BATCH_ROWS);
    let schema = Arc::new(table.arrow.project(&given)?);
    // The names of columns in the tree are not those of the table.
    let named = schema.clone();
    let batches = session.engine.executor.scan(scan, ExecutionMode::OutOfOrder).map(move |batch| {
        let batch = batch?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(named.clone(), batch.columns().to_vec(), &options)?)
    });
    copy::write_parquet(session, execution, file, schema, batches).await
}

/// A new directory beside the target, with a name of its own. It is removed on drop.
fn temporary(directory: &Path) -> Result<TempDir> {
    let Some(name) = directory.file_name() else {
        let error = IoError::new(ErrorKind::InvalidInput, "the path does not end with a name");
        return Err(Error::io("create", directory, error));
    };
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(".tmp").permissions(Permissions::from_mode(PERMISSIONS));
    builder.tempdir_in(parent(directory)).map_err(|error| Error::io("create", directory, error))
}

/// The directory that contains a path.
fn parent(path: &Path) -> &Path {
    // The parent of a name without a directory is the empty path.
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Completes the temporary directory and gives it the name of the target. Blocks.
fn publish(
    temporary: TempDir,
    directory: &Path,
    scripts: &Scripts,
    manifest: &Manifest,
    decision: &Decision,
) -> Result<()> {
    let path = temporary.path();
    write(&path.join(SCHEMA), scripts.schema.as_bytes(), FILE_PERMISSIONS)?;
    write(&path.join(FINISH), scripts.finish.as_bytes(), FILE_PERMISSIONS)?;
    write(&path.join(manifest::FILE), &manifest.encode()?, FILE_PERMISSIONS)?;
    sync_directory(&path.join(DATA))?;
    sync_directory(path)?;
    // The statement takes effect when the directory gets its name.
    decision.commit()?;
    std::fs::rename(path, directory).map_err(|error| Error::io("create", directory, error))?;
    let _renamed = temporary.keep();
    sync_directory(parent(directory))?;
    decision.reach(Stage::Committed);
    Ok(())
}

/// Writes a new file, durably.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let written = File::options().write(true).create_new(true).mode(mode).open(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(|error| Error::io("write", path, error))
}

fn sync_directory(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|error| Error::io("sync", path, error))
}

/// A row for each table.
fn outcome(tables: &[ExportedTable], has_bytes: bool) -> Result<Outcome> {
    let texts =
        |of: fn(&ExportedTable) -> &str| -> ArrayRef { Arc::new(StringArray::from_iter_values(tables.iter().map(of))) };
    let numbers = |of: fn(&ExportedTable) -> u64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(tables.iter().map(|table| of(table) as i64)))
    };
    let mut columns = vec![
        ("schema_name", texts(|table| &table.schema)),
        ("table_name", texts(|table| &table.name)),
        ("rows", numbers(|table| table.rows)),
    ];
    if has_bytes {
        columns.push(("bytes", numbers(|table| table.bytes)));
    }
    Outcome::of_columns(columns)
}

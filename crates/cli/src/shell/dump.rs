//! `.dump`: the database, or a table, as SQL.
//!
//! The statements of the whole database are those of EXPORT DATABASE, which belong to one snapshot and are in an order in which
//! they can be executed. The rows come from its files, which are temporary.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::Deserialize;
use tempfile::TempDir;

use super::catalog::{self, shown};
use super::server::rows;
use crate::failure::{Failure, Result};
use crate::interrupt::Active;
use crate::output::Format;
use crate::output::statements::{Insert, identifier, text_literal};
use crate::run::Runner;

/// Rows of an INSERT statement.
const ROWS_PER_STATEMENT: usize = 100;

/// The list of the files of an export.
#[derive(Deserialize)]
struct Manifest {
    tables: Vec<ExportedTable>,
}

#[derive(Deserialize)]
struct ExportedTable {
    schema: String,
    name: String,
    file: String,
}

/// `.dump [TABLE]`
///
/// # Errors
/// On servers, for a table that does not exist, in a transaction, and errors of the output.
pub async fn run(runner: &mut Runner, table: Option<&str>) -> Result<()> {
    if runner.session().is_err() {
        return Err(Failure::message(".dump needs an embedded database; pg_dump dumps a server"));
    }
    match table {
        Some(table) => one(runner, table).await,
        None => all(runner).await,
    }
}

/// The statements before the rows, files with rows of tables, the statements after the rows.
struct Dump {
    before: String,
    files: Vec<(String, PathBuf)>,
    after: String,
    /// The directory of the files.
    _temporary: TempDir,
}

/// A directory for files with rows.
fn temporary() -> Result<TempDir> {
    let made = tempfile::Builder::new().prefix("keyaki-dump-").tempdir();
    made.map_err(Failure::file(std::env::temp_dir()))
}

async fn all(runner: &mut Runner) -> Result<()> {
    let temporary = temporary()?;
    let directory = temporary.path().join("dump");
    let export = format!("EXPORT DATABASE {}", text_literal(&directory.display().to_string()));
    runner.collect(&export).await?;
    let script = |name: &str| {
        let path = directory.join(name);
        std::fs::read_to_string(&path).map_err(Failure::file(path))
    };
    let roles = if directory.join("roles.sql").exists() { script("roles.sql")? } else { String::new() };
    let (schema, finish) = (script("schema.sql")?, script("finish.sql")?);
    let manifest: Manifest = serde_json::from_str(&script("manifest.json")?)
        .map_err(|error| Failure::message(format!("the list of the dump's files is damaged: {error}")))?;
    let file = |table: ExportedTable| (format!("{}.{}", table.schema, table.name), directory.join(table.file));
    let files = manifest.tables.into_iter().map(file).collect();
    let (before, after) = (format!("{roles}{schema}\n"), format!("\n{finish}"));
    show(runner, &Dump { before, files, after, _temporary: temporary })
}

/// A table or view without the others. Its foreign keys follow the rows, which may refer to each other.
async fn one(runner: &mut Runner, table: &str) -> Result<()> {
    let database = runner.session()?.database().clone();
    let info = database.tables().into_iter().find(|info| shown(&info.schema, info.name.clone()) == table);
    let Some(info) = info else { return Err(catalog::missing(runner, "table", table).await) };
    if info.is_view {
        return catalog::schema(runner, Some(table)).await;
    }
    let (before, after) = catalog::definition(&database, &info);
    let given = format!(
        "SELECT column_name::text FROM information_schema.columns WHERE table_schema = {} AND table_name = {} \
         AND is_generated = 'NEVER' ORDER BY ordinal_position",
        text_literal(&info.schema),
        text_literal(&info.name)
    );
    let columns = rows(runner, &given).await?.into_iter().flatten().flatten();
    let columns: Vec<String> = columns.map(|name| identifier(&name)).collect();
    let name = format!("{}.{}", identifier(&info.schema), identifier(&info.name));
    let temporary = temporary()?;
    let path = temporary.path().join("rows.parquet");
    let file = text_literal(&path.display().to_string());
    runner.collect(&format!("COPY (SELECT {} FROM {name}) TO {file}", columns.join(", "))).await?;
    let files = vec![(format!("{}.{}", info.schema, info.name), path)];
    show(runner, &Dump { before, files, after, _temporary: temporary })
}

/// Writes a dump to the destination of results.
fn show(runner: &mut Runner, dump: &Dump) -> Result<()> {
    let interrupts = runner.interrupts();
    let active = interrupts.activate();
    let written = runner.write_with(|out| {
        out.write_all(dump.before.as_bytes())?;
        for (table, path) in &dump.files {
            rows_of_file(table, path, &active, out)?;
        }
        out.write_all(dump.after.as_bytes())
    });
    match written {
        Err(Failure::Output(error)) if error.kind() == ErrorKind::Interrupted => Err(Failure::Cancelled),
        written => written,
    }
}

/// Writes the rows of a file as INSERT statements.
fn rows_of_file(table: &str, path: &Path, active: &Active<'_>, out: &mut dyn Write) -> io::Result<()> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?).map_err(io::Error::other)?;
    let mut insert = Insert::new(builder.schema(), table, ROWS_PER_STATEMENT, true);
    for batch in builder.build().map_err(io::Error::other)? {
        if active.is_pressed() {
            return Err(ErrorKind::Interrupted.into());
        }
        insert.batch(&keyaki::printable(&batch.map_err(io::Error::other)?), out)?;
    }
    insert.end(out)
}

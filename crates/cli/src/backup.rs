//! `keyaki backup`: a copy of a database.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::AsArray;
use datafusion::arrow::datatypes::Int64Type;

use crate::arguments::BackupArguments;
use crate::database;
use crate::failure::Result;
use crate::interrupt::Interrupts;
use crate::output::Mode;
use crate::run::Runner;
use crate::terminal::bytes;

pub async fn run(arguments: &BackupArguments, interrupts: Arc<Interrupts>) -> Result<()> {
    let options = keyaki::Options { must_exist: true, ..arguments.open.options()? };
    let database = database::open(&arguments.database, options)?;
    let mut runner = Runner::new(&database, Mode::Table, interrupts);
    copy(&mut runner, &arguments.directory, arguments.incremental).await
}

/// Copies the open database to a directory.
///
/// # Errors
/// Errors of BACKUP DATABASE.
pub async fn copy(runner: &mut Runner, directory: &Path, is_incremental: bool) -> Result<()> {
    let directory = directory.display().to_string();
    let incremental = if is_incremental { " INCREMENTAL" } else { "" };
    let statement = format!("BACKUP DATABASE TO '{}'{incremental}", directory.replace('\'', "''"));
    let copied = runner.collect(&statement).await?;
    let sum =
        |column| -> i64 { copied.iter().map(|batch| batch.column(column).as_primitive::<Int64Type>().value(0)).sum() };
    let kept = match sum(2) {
        0 => String::new(),
        kept => format!(", which already had {}", bytes(kept as u64)),
    };
    runner.say(&format!("copied {} to {directory}{kept}", bytes(sum(1) as u64)))
}

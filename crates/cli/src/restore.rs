//! `keyaki restore`: creates a database from a directory of `keyaki dump`.

use std::io::{Write, stdout};
use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use keyaki::Database;

use crate::arguments::RestoreArguments;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::new_database::NewDatabase;
use crate::output::{Mode, table_of};
use crate::run::Runner;
use crate::terminal::{rows, sum};

pub async fn run(arguments: &RestoreArguments, interrupts: Arc<Interrupts>) -> Result<()> {
    let target = &arguments.database;
    // Ctrl-C cancels statements. Between them, it must not end the program before the temporary database is removed.
    let _active = interrupts.activate();
    let new = NewDatabase::create(target)?;
    let restored = import(arguments, new.path(), interrupts.clone()).await?;
    new.publish()?;
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

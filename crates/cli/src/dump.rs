//! `keyaki dump`: writes a database as SQL scripts and Parquet files.

use std::sync::Arc;

use crate::arguments::DumpArguments;
use crate::database;
use crate::failure::Result;
use crate::interrupt::Interrupts;
use crate::output::{Mode, table_of};
use crate::run::Runner;
use crate::terminal::{bytes, rows, sum};

pub async fn run(arguments: &DumpArguments, interrupts: Arc<Interrupts>) -> Result<()> {
    let options = keyaki::Options { must_exist: true, ..arguments.open.options()? };
    let database = database::open(&arguments.database, options)?;
    let mut runner = Runner::new(&database, Mode::Table, interrupts);
    let directory = arguments.directory.display().to_string();
    let passwords = if arguments.passwords { " WITH PASSWORDS" } else { "" };
    let export = format!("EXPORT DATABASE '{}'{passwords}", directory.replace('\'', "''"));
    let dumped = runner.collect(&export).await?;
    let (count, size) = (rows(sum(&dumped, "rows")), bytes(sum(&dumped, "bytes")));
    runner.show(&table_of(&dumped)?)?;
    runner.say(&format!("dumped {count} ({size}) to {directory}"))
}

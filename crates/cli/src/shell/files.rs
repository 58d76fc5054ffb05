//! The commands that load files, copy, check and open databases, and run other programs.

pub mod import;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::connection::Connection;
use crate::failure::{Failure, Result};
use crate::output::statements::text_literal;
use crate::output::table_on;
use crate::remote::{Address, Remote, is_address};
use crate::run::Runner;
use crate::{backup, check, cluster, database};

/// `.open DATABASE`. The old database stays open if the new one cannot be opened.
pub async fn open(runner: &mut Runner, path: &str) -> Result<()> {
    if is_address(path) {
        runner.connection = Connection::Remote(Remote::connect(Address::parse(path)?).await?);
        return Ok(());
    }
    let path: PathBuf = path.into();
    let options = keyaki::Options { must_exist: false, ..runner.open.options()? };
    let mut database = database::open(&path, options)?;
    if let Some(workers) = runner.cluster.as_ref().filter(|_| keyaki::is_url(&path)) {
        database = cluster::attached(database, workers)?;
    }
    runner.switch(&database);
    Ok(())
}

/// `.backup DIRECTORY`
pub async fn backup(runner: &mut Runner, directory: &str) -> Result<()> {
    runner.session()?;
    backup::copy(runner, Path::new(directory), false).await
}

/// `.restore DIRECTORY`: the objects and rows of a dump, into this database.
pub async fn restore(runner: &mut Runner, directory: &str) -> Result<()> {
    runner.session()?;
    if database::is_database(Path::new(directory)) {
        return Err(Failure::message(format!(
            "\"{directory}\" is a database, for example a backup: open it with .open, or copy it with keyaki backup \
             (.restore reads directories of keyaki dump and EXPORT DATABASE)"
        )));
    }
    let restored = runner.collect(&format!("IMPORT DATABASE {}", text_literal(directory))).await?;
    let text = table_on(&restored, runner.screen())?;
    runner.show(&text)
}

/// `.check`
pub async fn check(runner: &mut Runner) -> Result<()> {
    let path = runner.session()?.database().path().to_path_buf();
    check::report(runner, &path).await
}

/// `.shell COMMAND`: runs a command of the operating system's shell.
pub fn shell(runner: &Runner, command: &str) -> Result<()> {
    if command.is_empty() {
        return Err(Failure::message("usage: .shell COMMAND"));
    }
    // Ctrl-C ends the command, not this program.
    let interrupts = runner.interrupts();
    let _active = interrupts.activate();
    let status = Command::new("sh").arg("-c").arg(command).stdin(Stdio::inherit()).status();
    let status = status.map_err(Failure::file("sh"))?;
    if status.success() { Ok(()) } else { Err(Failure::message(format!("the command failed ({status})"))) }
}

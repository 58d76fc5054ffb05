//! `keyaki publish`, `keyaki versions` and `keyaki clone`: databases in object stores.

use std::io::{Write, stderr, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use comfy_table::{CellAlignment, Table, presets};
use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::Int64Type;
use keyaki::{Database, Error, Progress};

use crate::arguments::{CloneArguments, PublishArguments, VersionsArguments};
use crate::bars::Bars;
use crate::database;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::output::Mode;
use crate::run::Runner;
use crate::terminal::bytes;

/// `keyaki publish`
pub async fn publish(arguments: &PublishArguments, interrupts: Arc<Interrupts>) -> Result<()> {
    let database = open(arguments)?;
    let mut runner = Runner::new(&database, Mode::Table, interrupts.clone());
    drop(database);
    let keep = arguments.keep.map(|keep| format!(" KEEP {keep}")).unwrap_or_default();
    let statement = format!("PUBLISH DATABASE TO '{}'{keep}", arguments.url.replace('\'', "''"));
    let mut is_first = true;
    loop {
        let start = Instant::now();
        let published = runner.collect(&statement).await;
        let Some(interval) = arguments.every else {
            return runner.say(&shown(&published?));
        };
        // Ctrl-C ends the program without an error from the line on that says what was published.
        let mut active = interrupts.activate();
        match published {
            Ok(published) => runner.say(&shown(&published))?,
            Err(Failure::Cancelled) => return Err(Failure::Cancelled),
            Err(failure) if is_first => return Err(failure),
            // The store may be reachable again at the next time.
            Err(failure) => tell(&format!("error: {failure}")),
        }
        is_first = false;
        let rest = interval.saturating_sub(start.elapsed());
        if active.unless_pressed(tokio::time::sleep(rest)).await.is_none() {
            return Ok(());
        }
    }
}

/// Opens the database for writing, so that the version has all commits. While another process has it open, its newest
/// checkpoint is published.
fn open(arguments: &PublishArguments) -> Result<Database> {
    // With an interval, other processes must be able to write meanwhile.
    let read_only = arguments.open.readonly || arguments.every.is_some();
    let options = keyaki::Options { must_exist: true, read_only, ..arguments.open.options()? };
    match database::open(&arguments.database, options.clone()) {
        Err(Failure::Database(error)) if !read_only && matches!(error.root(), Error::Locked { .. }) => {
            tell("another process writes to the database: publishing its newest checkpoint");
            database::open(&arguments.database, keyaki::Options { read_only: true, ..options })
        }
        opened => opened,
    }
}

/// Writes a line to standard error, which may be closed.
fn tell(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

/// A sentence about the row of PUBLISH DATABASE.
fn shown(published: &[RecordBatch]) -> String {
    let number = |column: usize| -> u64 {
        published.iter().map(|batch| batch.column(column).as_primitive::<Int64Type>().value(0) as u64).sum()
    };
    let [version, uploaded, kept, removed] = [1, 2, 3, 4].map(number);
    let is_new = published.iter().any(|batch| batch.column(5).as_boolean().value(0));
    let mut text = match is_new {
        false => format!("version {version} already has this state of the database"),
        true => format!("published version {version}: {} uploaded, {} kept", bytes(uploaded), bytes(kept)),
    };
    if removed > 0 {
        let plural = if removed == 1 { "" } else { "s" };
        text.push_str(&format!("; {removed} older version{plural} removed"));
    }
    text
}

/// `keyaki versions`
pub fn versions(arguments: &VersionsArguments) -> Result<()> {
    let versions = keyaki::published_versions(&arguments.url)?;
    let mut listed = Table::new();
    listed.load_preset(presets::NOTHING).set_header(["version", "published"]);
    for version in &versions {
        let time = keyaki::Value::TimestampTz(version.published_us / 1_000_000 * 1_000_000);
        listed.add_row([version.number.to_string(), time.to_string()]);
    }
    if let Some(column) = listed.column_mut(0) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let text = match versions.is_empty() {
        true => "no published versions\n".into(),
        false => format!("{}\n", listed.trim_fmt()),
    };
    stdout().write_all(text.as_bytes()).map_err(Failure::Output)
}

/// `keyaki clone`
pub async fn clone(arguments: &CloneArguments, interrupts: Arc<Interrupts>) -> Result<()> {
    let bars = Bars::new();
    let (progress, stops) = (bars.clone(), Arc::new(AtomicBool::new(false)));
    let (url, directory, stop) = (arguments.url.clone(), arguments.directory.clone(), stops.clone());
    let mut active = interrupts.activate();
    let mut task = tokio::task::spawn_blocking(move || {
        let reported = parking_lot::Mutex::new(0);
        keyaki::clone_published(&url, directory, &|done, total| {
            let mut reported = reported.lock();
            if *reported == 0 {
                progress.start("cloning", Some(total));
            }
            progress.advance(done.saturating_sub(*reported));
            *reported = done.max(*reported);
            !stop.load(Ordering::Relaxed)
        })
    });
    let cloned = match active.unless_pressed(&mut task).await {
        Some(cloned) => cloned,
        None => {
            stops.store(true, Ordering::Relaxed);
            task.await
        }
    };
    bars.clear();
    let (version, copied) = match cloned.map_err(|error| Failure::message(format!("cloning failed: {error}")))? {
        Err(Error::Cancelled) => return Err(Failure::Cancelled),
        cloned => cloned?,
    };
    let text = format!("cloned version {version} to {} ({})\n", arguments.directory.display(), bytes(copied));
    stdout().write_all(text.as_bytes()).map_err(Failure::Output)
}

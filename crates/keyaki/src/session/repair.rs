//! Salvage of a damaged database into a new one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::interrupt::{Execution, InterruptHandle, Interrupts};
use crate::base::progress::{NoProgress, Progress};
use crate::engine;
use crate::sql::repair::{Copied, Repaired, Source, copy, finish};
use crate::{Database, Error, ObjectKind, Options, Result};

/// Files beside the store, which have measurements and not data.
const MEASUREMENTS: [&str; 3] = ["calibration.json", "caches.json", "scan-method.json"];

/// Salvages what is intact in a damaged database into a new one.
///
/// The damaged database is opened for reading only; a lock keeps writers out. The new one has the intact rows of all
/// tables, rebuilt indexes, and all definitions that the rows satisfy. [`Repaired`] lists what is missing.
///
/// ```no_run
/// # async fn example() -> keyaki::Result<()> {
/// let repaired = keyaki::Repair::new("shop.keyaki", "repaired.keyaki", keyaki::Options::default()).run().await?;
/// assert!(repaired.is_complete(), "{repaired:?}");
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Repair {
    source: PathBuf,
    target: PathBuf,
    options: Options,
    interrupts: Arc<Interrupts>,
}

impl Repair {
    /// A repair of the database `source` into the directory `target`, which must not exist or be empty. `options` apply
    /// to the new database; its memory and device also to the damaged one.
    pub fn new(source: impl Into<PathBuf>, target: impl Into<PathBuf>, options: Options) -> Repair {
        Repair { source: source.into(), target: target.into(), options, interrupts: Arc::default() }
    }

    /// A handle that ends the repair from another thread or task.
    pub fn interrupt_handle(&self) -> InterruptHandle {
        InterruptHandle { interrupts: self.interrupts.clone() }
    }

    /// Runs the repair, which verifies the new database at its end.
    ///
    /// # Errors
    /// `NotFound` if the damaged database does not exist, `Locked` if it is open; `Corrupt` and `NotADatabase` if
    /// nothing can be salvaged; `AlreadyExists` if the new database exists; those of [`Database::open`]; `Cancelled`.
    /// The new database is incomplete after an error, also if it can be opened: remove its directory.
    pub async fn run(&self) -> Result<Repaired> {
        Box::pin(self.run_boxed()).await
    }

    async fn run_boxed(&self) -> Result<Repaired> {
        let started = self.interrupts.start();
        let progress = self.options.progress.clone().unwrap_or_else(|| Arc::new(NoProgress));
        let copied = self.copied(&progress).await?;
        let options = Options { must_exist: true, ..self.options.clone() };
        let database = Database::open(&self.target, options)?;
        let mut session = database.session();
        session.set_progress(progress);
        session.sql.interrupts = self.interrupts.clone();
        let repaired = finish(&session.sql, started, copied, &self.target).await?;
        self.copy_measurements()?;
        Ok(repaired)
    }

    /// Copies the rows on a thread of the blocking pool.
    async fn copied(&self, progress: &Arc<dyn Progress>) -> Result<Copied> {
        let device = engine::device(&self.options)?;
        if engine::exists(&device, &self.target)? {
            let name = self.target.display().to_string();
            return Err(Error::AlreadyExists { kind: ObjectKind::Database, name });
        }
        let execution = Execution::new(&self.interrupts, self.interrupts.start());
        let (decision, progress) = (execution.decision().clone(), progress.clone());
        let (directory, target) = (self.source.clone(), self.target.clone());
        let options = engine::store_options(&self.options);
        let task = tokio::task::spawn_blocking(move || {
            let (progress, decision) = (&*progress, &*decision);
            copy(&Source { device, directory: &directory, options, progress, decision }, &target)
        });
        // An interrupt, and the drop of this future with `execution`, end the task, after which nothing is written.
        task.await.map_err(|error| Error::task(&error))?
    }

    /// Copies the files with measurements of the device and the caches.
    fn copy_measurements(&self) -> Result<()> {
        if self.options.device.as_ref().is_some_and(|device| device.name() == "simulated") {
            return Ok(());
        }
        MEASUREMENTS.iter().try_for_each(|name| copy_file(&self.source.join(name), &self.target.join(name)))
    }
}

/// Copies a file if it exists.
fn copy_file(from: &Path, to: &Path) -> Result<()> {
    match std::fs::copy(from, to) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io("copy", from, error)),
        _ => Ok(()),
    }
}

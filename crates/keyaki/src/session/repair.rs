//! Salvage of a damaged database into a new one.

use std::path::PathBuf;
use std::sync::Arc;

use crate::base::interrupt::{Execution, InterruptHandle, Interrupts, Started};
use crate::base::progress::{NoProgress, Progress};
use crate::engine;
use crate::sql::repair::{Copied, Repaired, Source, copy, finish};
use crate::{Database, Error, ObjectKind, Options, Result};

/// Salvages the intact rows of a damaged database into a new one.
///
/// The damaged database is opened for reading only; a lock keeps writers out. The new one has the intact rows of all
/// tables, rebuilt indexes, and all definitions that the rows satisfy. [`Repaired`] lists the losses.
///
/// The new database has its final name from the beginning: a repair that is killed leaves a directory that opens, without
/// a part of the definitions or rows. The command `keyaki repair` renames it at the end; so can a program.
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
        let copied = self.copied(&progress, started).await?;
        let options = Options { must_exist: true, ..self.options.clone() };
        let database = Database::open(&self.target, options)?;
        let mut session = database.session();
        session.set_progress(progress);
        session.sql.interrupts = self.interrupts.clone();
        finish(&session.sql, started, copied, &self.target).await
    }

    /// Copies the rows on a thread of the blocking pool.
    async fn copied(&self, progress: &Arc<dyn Progress>, started: Started) -> Result<Copied> {
        let device = engine::device(&self.options)?;
        if engine::exists(&device, &self.target)? {
            let name = self.target.display().to_string();
            return Err(Error::AlreadyExists { kind: ObjectKind::Database, name });
        }
        let execution = Execution::new(&self.interrupts, started);
        let (decision, progress) = (execution.decision().clone(), progress.clone());
        let (directory, target) = (self.source.clone(), self.target.clone());
        let options = engine::store_options(&self.options);
        let task = tokio::task::spawn_blocking(move || {
            let (progress, decision) = (&*progress, &*decision);
            copy(&Source { device, directory: &directory, options, progress, decision }, &target)
        });
        // An interrupt, and the drop of this future with `execution`, end the task at its next batch.
        task.await.map_err(|error| Error::task(&error))?
    }
}

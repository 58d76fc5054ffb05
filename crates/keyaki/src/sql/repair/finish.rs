//! Executes the statements that create indexes, constraints, views and comments. Reports each statement that fails because
//! of the salvaged rows or definitions, and continues.

use std::path::Path;

use super::Copied;
use super::report::Repaired;
use crate::base::interrupt::{Execution, Started};
use crate::catalog::{IndexDef, TableDef, ViewDef};
use crate::sql::check::problems;
use crate::sql::export::import::execute;
use crate::sql::names::{quoted, shown_sql};
use crate::sql::roles::restore_access;
use crate::sql::{SqlSession, show, split};
use crate::{Error, Result, SqlState};

/// Completes the definitions, positions of sequences included, and checks the database. `session` has default settings.
///
/// # Errors
/// Errors of the device, `Cancelled`. `Corrupt` if the check finds a problem.
pub(crate) async fn finish(session: &SqlSession, started: Started, copied: Copied, target: &Path) -> Result<Repaired> {
    let Copied { report, tables, views, passed } = copied;
    let mut finisher = Finisher { session, started, report };
    for def in &tables {
        for index in &def.indexes {
            finisher.index(def, index).await?;
        }
        for check in &def.checks {
            let (table, name) = (shown_sql(&def.name), quoted(&check.name));
            let sql = format!("ALTER TABLE {table} ADD CONSTRAINT {name} CHECK ({})", check.sql);
            let what = format!("CHECK constraint \"{}\" of table \"{}\"", check.name, def.name);
            finisher.define(&sql, &what).await?;
        }
    }
    for def in &tables {
        for (key, sql) in def.foreign_keys.iter().zip(show::foreign_keys(def)) {
            let what = format!("FOREIGN KEY constraint \"{}\" of table \"{}\"", key.name, def.name);
            finisher.define(&sql, &what).await?;
        }
    }
    finisher.views(views).await?;
    for sql in tables.iter().flat_map(show::table_comments) {
        // The object may have been left out.
        finisher.attempt(&sql).await?;
    }
    for (sequence, value) in passed {
        session.engine.sequences.pass(&session.engine.store, &sequence, value)?;
    }
    let checked = problems(&finisher.rows("CHECK DATABASE").await?);
    if let Some(problem) = checked.into_iter().next() {
        let (path, detail) =
            (target.to_path_buf(), format!("{problem} (check the disk of the new database, then repeat the repair)"));
        return Err(Error::Corrupt { path, what: "repaired database", offset: None, detail });
    }
    finisher.rows("CHECKPOINT").await?;
    session.progress.lock().finish();
    Ok(finisher.report)
}

struct Finisher<'a> {
    session: &'a SqlSession,
    started: Started,
    report: Repaired,
}

impl Finisher<'_> {
    async fn index(&mut self, def: &TableDef, index: &IndexDef) -> Result<()> {
        let kind = if index.constraint { "UNIQUE constraint" } else { "index" };
        let what = format!("{kind} \"{}\" of table \"{}\"", index.name, def.name);
        self.define(&show::create_index(def, index), &what).await
    }

    /// Creates the views in the order of their dependencies. Their owners, with whose privileges they read, follow when all
    /// are created.
    async fn views(&mut self, views: Vec<ViewDef>) -> Result<()> {
        for view in self.created_views(views).await? {
            let execution = Execution::new(&self.session.interrupts, self.started);
            execution.run(restore_access(self.session, &execution, &view.name, &view.access)).await?;
        }
        Ok(())
    }

    /// Creates the views without owners and privileges. Returns the views that need any.
    async fn created_views(&mut self, mut views: Vec<ViewDef>) -> Result<Vec<ViewDef>> {
        let mut created = Vec::new();
        loop {
            let mut failed = Vec::new();
            let before = views.len();
            for view in views {
                match self.attempt(&show::create_view(&view)).await? {
                    None => {
                        if let Some(sql) = show::view_comment(&view) {
                            self.attempt(&sql).await?;
                        }
                        created.extend((!view.access.is_default()).then_some(view));
                    }
                    Some(error) => failed.push((view, error)),
                }
            }
            if failed.is_empty() || failed.len() == before {
                let text = |(view, error): &(ViewDef, Error)| {
                    format!("view \"{}\" is left out: {error} (its query is {})", view.name, view.sql)
                };
                self.report.losses.extend(failed.iter().map(text));
                return Ok(created);
            }
            views = failed.into_iter().map(|(view, _)| view).collect();
        }
    }

    /// Executes the statement of a definition, and reports it if it fails because of the rows or other definitions.
    async fn define(&mut self, sql: &str, what: &str) -> Result<()> {
        if let Some(error) = self.attempt(sql).await? {
            self.report.losses.push(format!("{what} is left out: {error} (its definition is {sql})"));
        }
        Ok(())
    }

    /// Executes a statement. Returns the error if the rows or other definitions have caused it.
    async fn attempt(&self, sql: &str) -> Result<Option<Error>> {
        match self.rows(sql).await {
            Ok(_) => Ok(None),
            Err(error) if is_caused_by_contents(&error) => Ok(Some(error)),
            Err(error) => Err(error),
        }
    }

    async fn rows(&self, sql: &str) -> Result<Vec<crate::RecordBatch>> {
        let mut rows = Vec::new();
        for statement in split::split(sql)? {
            rows = execute(self.session, self.started, &statement).await?;
        }
        Ok(rows)
    }
}

/// True for errors of rows and definitions, and for an index that needs too much memory.
fn is_caused_by_contents(error: &Error) -> bool {
    let state = error.sqlstate();
    // Features (0A), data (22), constraints (23), dependencies (2B), names and types (3F, 42), limits (54).
    let classes = ["0A", "22", "23", "2B", "3F", "42", "54"];
    classes.contains(&state.class()) || state == SqlState::OUT_OF_MEMORY
}

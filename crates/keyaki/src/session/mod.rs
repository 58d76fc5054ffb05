//! Sessions: the crate's face to programs.
//!
//! [`Database`] is a handle on an open engine. [`Session`] runs statements on it with options of its own, and loads rows
//! from a program ([`Session::load`]). Both only pass calls on to the layers below.

mod database;
mod load;
#[cfg(test)]
mod statistics_tests;

use std::sync::Arc;

use keyaki_exec::Stats;

use crate::Result;
use crate::base::options::SessionOptions;
use crate::base::progress::Progress;
use crate::sql::{self, Outcome, SqlSession};

pub use database::Database;

/// A connection to a database with its own options. Statements of one session run one after another.
#[derive(Debug)]
pub struct Session {
    database: Database,
    /// The session as the layers below see it.
    sql: SqlSession,
}

impl Session {
    pub(crate) fn new(database: Database) -> Self {
        let sql = SqlSession::new(database.engine.clone());
        Session { database, sql }
    }

    /// Runs every statement of `sql`; the rows of queries are read to the end and dropped. Stops at the first error; what
    /// came before stays. An outcome of kind `Rows` has no rows left.
    pub async fn execute(&self, sql: &str) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        for statement in sql::split::split(sql)? {
            outcomes.push(sql::drain(sql::run(&self.sql, &statement).await?).await?);
        }
        Ok(outcomes)
    }

    /// Runs exactly one statement.
    pub async fn query(&self, sql: &str) -> Result<Outcome> {
        sql::run(&self.sql, &sql::split::single(sql)?).await
    }

    /// Splits `sql` into statements (text each), without running them. An unfinished last statement is an error of kind
    /// `Syntax` too; see [`Session::is_complete`].
    pub fn statements(&self, sql: &str) -> Result<Vec<String>> {
        Ok(sql::split::split(sql)?.into_iter().map(|statement| statement.text.into()).collect())
    }

    /// Whether `sql` ends with a finished statement (for shells: else ask for more lines).
    pub fn is_complete(sql: &str) -> bool {
        sql::split::is_complete(sql)
    }

    /// The options of this session, as SET has left them.
    pub fn options(&self) -> SessionOptions {
        self.sql.options()
    }

    /// Sets the receiver of progress reports.
    pub fn set_progress(&self, progress: Arc<dyn Progress>) {
        *self.sql.progress.lock() = progress;
    }

    /// The database that the session belongs to.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// What the executor did for the last query: (operator, statistics).
    pub fn last_stats(&self) -> Vec<(String, Stats)> {
        self.sql.last_stats.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Statements may be run on any thread of a runtime.
    #[test]
    fn futures_are_send() {
        fn check(session: &Session) -> impl Send {
            (session.execute(""), session.query(""))
        }
        let _ = check;
    }
}

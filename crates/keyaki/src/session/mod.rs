//! Sessions: statements in, rows out.

mod load;

use std::sync::Arc;

use datafusion::execution::SendableRecordBatchStream;
use keyaki_exec::Stats;
use parking_lot::Mutex;

use crate::base::progress::{NoProgress, Progress};
use crate::{Database, Result, Settings, sql};

/// A connection to a database with its own settings. Statements of one session run one after another.
#[derive(Debug)]
pub struct Session {
    pub(crate) database: Database,
    pub(crate) settings: Mutex<Settings>,
    pub(crate) progress: Mutex<Arc<dyn Progress>>,
    /// Statistics of the index pipelines and scans that the last query started, with a name for each.
    pub(crate) last_stats: Arc<Mutex<Vec<(String, Stats)>>>,
    /// DataFusion's own settings that were changed with SET, in that order.
    pub(crate) overrides: Mutex<Vec<(String, String)>>,
    /// Built for the settings as they are; none after a change.
    pub(crate) planning: Mutex<Option<sql::Planning>>,
}

/// What a statement gave.
pub enum Outcome {
    /// Rows; nothing runs before the stream is polled, dropping it cancels.
    Rows(SendableRecordBatchStream),
    /// Done: what (`"CREATE TABLE"`, `"INSERT"`, `"COPY"` …), and how many rows it concerned.
    Done { tag: String, rows: Option<u64> },
}

impl Outcome {
    pub(crate) fn done(tag: &str) -> Outcome {
        Outcome::Done { tag: tag.into(), rows: None }
    }
    pub(crate) fn rows(tag: &str, rows: u64) -> Outcome {
        Outcome::Done { tag: tag.into(), rows: Some(rows) }
    }

    /// All rows (none for `Done`).
    pub async fn collect(self) -> Result<Vec<arrow::array::RecordBatch>> {
        match self {
            Outcome::Rows(stream) => Ok(datafusion::physical_plan::common::collect(stream).await?),
            Outcome::Done { .. } => Ok(Vec::new()),
        }
    }
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Rows(stream) => f.debug_tuple("Rows").field(&stream.schema()).finish(),
            Outcome::Done { tag, rows } => f.debug_struct("Done").field("tag", tag).field("rows", rows).finish(),
        }
    }
}

impl Session {
    pub(crate) fn new(database: Database) -> Self {
        Session {
            database,
            settings: Mutex::default(),
            progress: Mutex::new(Arc::new(NoProgress)),
            last_stats: Arc::default(),
            overrides: Mutex::default(),
            planning: Mutex::default(),
        }
    }

    /// Runs every statement of `sql`; the rows of queries are read to the end and dropped. Stops at the first error; what
    /// came before stays. An outcome of kind `Rows` has no rows left.
    pub async fn execute(&self, sql: &str) -> Result<Vec<Outcome>> {
        let mut outcomes = Vec::new();
        for statement in sql::split::split(sql)? {
            outcomes.push(sql::drain(sql::run(self, &statement).await?).await?);
        }
        Ok(outcomes)
    }

    /// Runs exactly one statement.
    pub async fn query(&self, sql: &str) -> Result<Outcome> {
        sql::run(self, &sql::split::single(sql)?).await
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

    pub fn settings(&self) -> Settings {
        self.settings.lock().clone()
    }
    pub fn set_progress(&self, progress: Arc<dyn Progress>) {
        *self.progress.lock() = progress;
    }
    pub fn database(&self) -> &Database {
        &self.database
    }
    /// What the executor did for the last query: (operator, statistics).
    pub fn last_stats(&self) -> Vec<(String, Stats)> {
        self.last_stats.lock().clone()
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

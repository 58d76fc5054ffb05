//! Sessions: statements in, rows out.

use std::sync::Arc;

use datafusion::execution::SendableRecordBatchStream;
use keyaki_exec::Stats;
use parking_lot::Mutex;

use crate::progress::Progress;
use crate::{Database, Result, Settings};

/// A connection to a database with its own settings. Statements of one session run one after another.
#[derive(Debug)]
pub struct Session {
    pub(crate) database: Database,
    pub(crate) settings: Mutex<Settings>,
    pub(crate) progress: Mutex<Arc<dyn Progress>>,
    /// Statistics of the index pipelines and scans that the last query started, with a name for each.
    pub(crate) last_stats: Arc<Mutex<Vec<(String, Stats)>>>,
}

/// What a statement gave.
pub enum Outcome {
    /// Rows; nothing runs before the stream is polled, dropping it cancels.
    Rows(SendableRecordBatchStream),
    /// Done: what (`"CREATE TABLE"`, `"INSERT"`, `"COPY"` …), and how many rows it concerned.
    Done { tag: String, rows: Option<u64> },
}

impl Outcome {
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
    /// Runs every statement of `sql`; the rows of queries are dropped. Stops at the first error; what came before stays.
    pub async fn execute(&self, _sql: &str) -> Result<Vec<Outcome>> {
        todo!()
    }
    /// Runs exactly one statement.
    pub async fn query(&self, _sql: &str) -> Result<Outcome> {
        todo!()
    }
    /// Splits `sql` into statements (text each), without running them. An unfinished last statement is an error of kind
    /// `Syntax` too; see [`Session::is_complete`].
    pub fn statements(&self, _sql: &str) -> Result<Vec<String>> {
        todo!()
    }
    /// Whether `sql` ends with a finished statement (for shells: else ask for more lines).
    pub fn is_complete(_sql: &str) -> bool {
        todo!()
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

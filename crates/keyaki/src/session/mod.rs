//! The public API: databases, sessions and connections.
//!
//! [`Database`] is a handle of an open engine. [`Session`] is the async API: it executes statements with its own options,
//! and loads rows from a program ([`Session::load`]). [`Connection`] is the blocking API over a session. All delegate to
//! the layers below.
//!
//! | module | contents |
//! |---|---|
//! | [`database`], [`prepared`], [`load`] | databases, and the async API besides [`Session`] |
//! | [`cluster`] | queries that several machines execute |
//! | [`connection`], [`statement`] | connections and their prepared statements |
//! | [`params`], [`rows`], [`arrow_rows`], [`columns`] | values of parameters; results as rows and as Arrow batches |
//! | [`stats`] | statistics of the running statement |
//! | [`transaction`] | transactions of connections |
//! | [`activity`] | what sessions do, for other sessions |
//! | [`messages`] | notices, notifications and cursors, for the owner of a session |
//! | [`appender`] | rows in bulk |
//! | [`suggestions`] | suggestions of indexes for a query |
//! | [`repair`] | salvage of a damaged database |
//! | [`roles`] | roles for servers, and sessions that act as a role |
//! | [`runtime`], [`wait`] | blocking execution of futures; a hook for the time in which it waits |

mod activity;
mod appender;
mod arrow_rows;
#[cfg(test)]
mod cancel_tests;
mod cluster;
mod columns;
mod connection;
mod database;
mod load;
mod messages;
mod params;
mod prepared;
mod published;
mod repair;
mod roles;
mod rows;
mod runtime;
mod statement;
#[cfg(test)]
mod statistics_tests;
mod stats;
mod suggestions;
mod transaction;
mod wait;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, StringViewArray};
use arrow::datatypes::DataType;
use futures::future::BoxFuture;
use keyaki_exec::Stats;

use crate::base::interrupt::{Execution, InterruptHandle};
use crate::base::options::{Isolation, SessionOptions};
use crate::base::progress::Progress;
use crate::engine::sessions::shown;
use crate::sql::{self, FileAccess, Outcome, ProgramCopy, ProgramTable, ProgramTables, SqlSession};
use crate::values::cast;
use crate::{Error, Result};

pub use appender::Appender;
pub use arrow_rows::ArrowRows;
pub use connection::Connection;
pub use database::Database;
pub use params::{Params, ParamsFromIter, params_from_iter};
pub use prepared::Prepared;
pub use published::{PublishedVersion, clone_published, is_url, published_versions};
pub use repair::Repair;
pub use roles::RoleLogin;
pub use rows::{Completion, MappedRows, Optional, Row, RowIndex, Rows};
pub use statement::{Column, Statement};
pub use stats::StatsHandle;
pub use transaction::Transaction;

/// An async connection to a database with its own options; [`Connection`] is the blocking one.
///
/// A session is one thread of control: run its statements one after another. Use several sessions for concurrent
/// statements.
#[derive(Debug)]
pub struct Session {
    database: Database,
    /// State of the session in the layers below.
    sql: SqlSession,
}

impl Session {
    pub(crate) fn new(database: Database) -> Self {
        let mut sql = SqlSession::new(database.engine.clone(), database.plans.clone());
        sql.cluster = database.cluster.clone();
        database.engine.sessions.add(&sql.activity);
        Session { database, sql }
    }

    /// Executes every statement of `sql` in order and discards the rows of queries. Returns one outcome per statement;
    /// the streams of `Rows` outcomes are empty.
    ///
    /// # Errors
    /// `Syntax` if the script cannot be tokenised; nothing is executed then. Otherwise the error of the first statement
    /// that fails; the statements before it stay in effect.
    pub async fn execute(&self, sql: &str) -> Result<Vec<Outcome>> {
        self.execute_boxed(sql).await
    }

    // The crate of the caller compiles async functions, with all that they call. Boxes stay in this one.
    fn execute_boxed<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, Result<Vec<Outcome>>> {
        Box::pin(async move {
            let _active = self.begin(shown(sql))?;
            // An interrupt during one statement also cancels the statements after it.
            let started = self.sql.interrupts.start();
            let execution = Execution::new(&self.sql.interrupts, started);
            if let Some(executed) = self.run(&execution, pin!(sql::run_cached(&self.sql, &execution, sql))).await? {
                return Ok(vec![self.run_part(&execution, sql::drain(executed.into_outcome()?)).await?]);
            }
            // It may have locked rows.
            drop(execution);
            let mut outcomes = Vec::new();
            for statement in sql::split::split(sql)? {
                let execution = Execution::new(&self.sql.interrupts, started);
                let outcome =
                    self.run(&execution, Box::pin(sql::located::run(&self.sql, &execution, &statement))).await?;
                outcomes.push(self.run_part(&execution, sql::drain(outcome)).await?);
            }
            Ok(outcomes)
        })
    }

    /// Executes exactly one statement. Dropping the returned stream cancels a query. Dropping the future cancels the
    /// statement: it changes nothing, unless its commit has started. [`Session::interrupt_handle`] cancels it with a
    /// definite result.
    ///
    /// # Errors
    /// `Syntax` if `sql` does not contain exactly one statement; the errors of the statement. Errors during the
    /// execution of a query are items of its stream.
    pub async fn query(&self, sql: &str) -> Result<Outcome> {
        self.query_boxed(sql).await
    }

    fn query_boxed<'a>(&'a self, sql: &'a str) -> BoxFuture<'a, Result<Outcome>> {
        Box::pin(async move {
            let _active = self.begin(shown(sql))?;
            let execution = self.execution();
            self.run(&execution, pin!(sql::located::run_text(&self.sql, &execution, sql))).await?.into_outcome()
        })
    }

    /// Parses and describes a statement with parameters (`$1`, `$2` … or `?`), for repeated execution.
    ///
    /// # Errors
    /// `Syntax` if `sql` does not contain exactly one statement; errors of planning, for example `NotFound` and
    /// `UndefinedColumn`.
    pub async fn prepare(&self, sql: &str) -> Result<Prepared> {
        self.prepare_boxed(sql, &[]).await
    }

    /// As [`Session::prepare`], for servers. `declared`: the OIDs in `pg_type` of the types that the client has declared for the
    /// leading parameters, 0 for none. They are those of parameters whose type does not follow from the statement.
    ///
    /// # Errors
    /// As [`Session::prepare`].
    pub async fn prepare_declared(&self, sql: &str, declared: &[u32]) -> Result<Prepared> {
        self.prepare_boxed(sql, declared).await
    }

    fn prepare_boxed<'a>(&'a self, sql: &'a str, declared: &'a [u32]) -> BoxFuture<'a, Result<Prepared>> {
        Box::pin(async move {
            let _active = self.begin(shown(sql))?;
            self.run(&self.execution(), Prepared::new(self, sql, declared)).await
        })
    }

    /// A handle that cancels the running statements of this session from another thread or task: their futures return
    /// [`Error::Cancelled`](crate::Error::Cancelled). To cancel a query whose stream is being read, drop the stream.
    pub fn interrupt_handle(&self) -> InterruptHandle {
        InterruptHandle { interrupts: self.sql.interrupts.clone() }
    }

    /// Runs a statement or a part of it; see [`Execution::run`]. An error makes the open transaction fail.
    async fn run<T>(&self, execution: &Execution<'_>, work: impl Future<Output = Result<T>>) -> Result<T> {
        let work = async {
            self.follow().await?;
            work.await
        };
        self.run_part(execution, pin!(work)).await
    }

    /// As [`Session::run`], for a later part of a statement, which needs no newer state.
    async fn run_part<T>(&self, execution: &Execution<'_>, work: impl Future<Output = Result<T>>) -> Result<T> {
        let result = execution.run(work).await.map_err(|error| self.sql.transaction.cause(error));
        match &result {
            Ok(_) => {
                sql::on_commit::apply(&self.sql).await;
                sql::channels::end_statement(&self.sql, true);
            }
            // The timeout has cancelled COMMIT or ROLLBACK, which end the transaction nevertheless.
            Err(Error::TransactionTimeout) if execution.ends_transaction() => {
                self.sql.transaction.roll_back().await;
                sql::channels::end_statement(&self.sql, false);
            }
            Err(error) => {
                self.sql.transaction.failed(error);
                sql::channels::end_statement(&self.sql, false);
            }
        }
        result
    }

    /// As [`Session::follow`]. Blocks.
    fn refresh(&self) -> Result<()> {
        match self.sql.transaction.sees_changes() {
            true => self.sql.engine.refresh(),
            false => Ok(()),
        }
    }

    /// Brings a database that is open read-only up to date.
    async fn follow(&self) -> Result<()> {
        let engine = &self.sql.engine;
        if !engine.is_read_only() || self.sql.waits_inline() || !self.sql.transaction.sees_changes() {
            return self.refresh();
        }
        let engine = engine.clone();
        tokio::task::spawn_blocking(move || engine.refresh()).await.map_err(|error| Error::task(&error))?
    }

    /// The execution of a statement that starts now.
    fn execution(&self) -> Execution<'_> {
        Execution::new(&self.sql.interrupts, self.sql.interrupts.start())
    }

    /// Splits `sql` into the texts of its statements, without executing them.
    ///
    /// # Errors
    /// `Syntax` if the script cannot be tokenised, for example because its last statement has an open quote; see
    /// [`Session::is_complete`].
    pub fn statements(&self, sql: &str) -> Result<Vec<String>> {
        Session::split(sql)
    }

    /// As [`Session::statements`], without a session.
    ///
    /// # Errors
    /// Text that cannot be tokenised.
    pub fn split(sql: &str) -> Result<Vec<String>> {
        Ok(sql::split::split(sql)?.into_iter().map(|statement| statement.text.into()).collect())
    }

    /// True if `sql` has no tokens or ends with a semicolon outside strings and comments, and for text that cannot be
    /// tokenised for a reason that further lines do not change. Otherwise a shell reads further lines.
    pub fn is_complete(sql: &str) -> bool {
        sql::split::is_complete(sql)
    }

    /// The current options of the session, with the changes made by SET.
    pub fn options(&self) -> SessionOptions {
        self.sql.options()
    }

    /// Sets the receiver of progress reports.
    pub fn set_progress(&self, progress: Arc<dyn Progress>) {
        *self.sql.progress.lock() = progress;
    }

    /// The values of a column as texts: those of a cast to TEXT in the time zone of the session.
    ///
    /// # Errors
    /// `CannotCast` for types without texts.
    pub fn texts(&self, values: &ArrayRef) -> Result<StringViewArray> {
        Ok(cast::cast(values, &DataType::Utf8View, self.sql.zone())?.as_string_view().clone())
    }

    /// Parses COPY FROM STDIN and COPY TO STDOUT, for servers, which execute them; `None` for other statements.
    ///
    /// # Errors
    /// `Syntax`, `Unsupported`, `InvalidParameter`; `NotFound`.
    pub fn program_copy(&self, sql: &str) -> Result<Option<ProgramCopy>> {
        self.sql.transaction.check()?;
        sql::copy::program::parse(&self.sql, sql)
    }

    /// Restricts the files that statements may read and write, for sessions of programs that are trusted less than this one.
    /// Statements cannot change it.
    pub fn restrict_files(&self, access: FileAccess) {
        *self.sql.files.lock() = Arc::new(access);
    }

    /// Sets the source of tables of the program: Arrow batches that statements of the session read under names that no relation
    /// of the schema `public` has. Each statement that contains such a name calls `find`, also when it is described. WITH queries,
    /// relations and system views come first. Stored definitions, such as views, cannot use tables of the program.
    ///
    /// Unsigned integers, dictionaries and other types that columns cannot have are converted to the types that CREATE TABLE AS
    /// chooses.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use keyaki::{Connection, ProgramTable, RecordBatch};
    /// # use arrow::array::{ArrayRef, Int64Array};
    ///
    /// # fn main() -> keyaki::Result<()> {
    /// # let connection = Connection::open_temporary()?;
    /// let id: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    /// let batch = RecordBatch::try_from_iter([("id", id)]).unwrap();
    /// let orders = ProgramTable::new(batch.schema(), vec![batch])?;
    /// connection.session().set_program_tables(move |name| Ok((name == "orders").then(|| orders.clone())));
    /// let sum: i64 = connection.query_row("SELECT sum(id) FROM orders", (), |row| row.get(0))?;
    /// assert_eq!(sum, 6);
    /// # Ok(()) }
    /// ```
    pub fn set_program_tables(&self, find: impl Fn(&str) -> Result<Option<ProgramTable>> + Send + Sync + 'static) {
        *self.sql.program_tables.lock() = Some(ProgramTables::new(find));
    }

    /// Sets the isolation level of transactions and statements that do not specify one, before SET.
    pub fn set_default_isolation(&self, isolation: Isolation) {
        *self.sql.default_isolation.lock() = isolation;
        self.sql.options.lock().isolation = isolation;
    }

    /// Makes the current settings those to which RESET and DISCARD ALL return, for servers, whose clients send settings when
    /// they connect.
    pub fn keep_settings(&self) {
        self.sql.keep_settings();
    }

    /// Permits `statement_timeout`, for servers, which cancel statements after [`Session::statement_timeout`].
    pub fn permit_statement_timeout(&self) {
        self.sql.has_timeouts.store(true, Ordering::Relaxed);
    }

    /// The setting `statement_timeout`; `None` without a limit.
    pub fn statement_timeout(&self) -> Option<Duration> {
        self.sql.options.lock().statement_timeout
    }

    /// The time zone of the session: a name of the IANA time zone database, or an offset such as `+01:00`.
    pub fn time_zone(&self) -> String {
        self.sql.zone().to_string()
    }

    /// Number of statements that this session executed on the short path: by key, without the planner.
    pub fn short_statements(&self) -> u64 {
        self.sql.short_statements.load(Ordering::Relaxed)
    }

    /// The database that the session belongs to.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Statistics of the last statement: one (operator, statistics) pair for each index pipeline and scan that it started.
    pub fn last_stats(&self) -> Vec<(String, Stats)> {
        self.sql.last_stats.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Futures of statements can move between the threads of a runtime.
    #[test]
    fn futures_are_send() {
        fn check(session: &Session) -> impl Send {
            (session.execute(""), session.query(""))
        }
        let _ = check;
    }
}

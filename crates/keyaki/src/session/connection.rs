//! The blocking API: connections.
//!
//! A connection is a [`Session`] and the runtime of the database, which runs its futures without async code. Statements
//! and results share them.

use std::collections::HashMap;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{Mutex, RwLock};

use super::appender::Appender;
use super::arrow_rows::ArrowRows;
use super::params::Params;
use super::rows::{Batches, MappedRows, Row, Rows};
use super::statement::Statement;
use super::wait::WaitHook;
use super::{Database, Prepared, Session};
use crate::base::interrupt::{Execution, InterruptHandle};
use crate::base::value::ValueRef;
use crate::engine::sessions::shown;
use crate::sql::prepared::Executed;
use crate::sql::{self, Outcome};
use crate::{Error, Options, RecordBatch, Result};

/// Maximum number of statements that a connection keeps prepared.
const CACHED_STATEMENTS: usize = 64;

/// A blocking connection to a database: the counterpart of [`Session`] for programs without async code.
///
/// Outside of a [`Transaction`](crate::Transaction), each statement is a transaction of its own. A connection is `Send` and `Sync`, but runs best with one thread; use
/// [`Connection::try_clone`] or [`Database::connect`] for a connection of each further thread.
///
/// The methods block the calling thread. They also work inside the runtime of an async program, where they occupy a
/// thread of that runtime: call them from `spawn_blocking`, or use [`Session`].
///
/// ```
/// use keyaki::Connection;
///
/// # fn main() -> keyaki::Result<()> {
/// # let directory = tempfile::tempdir().unwrap();
/// # let path = directory.path().join("shop");
/// let connection = Connection::open(path)?;
/// connection.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, customer TEXT, total DECIMAL(12,2))", ())?;
/// connection.execute("INSERT INTO orders VALUES ($1, $2, $3)", (1, "Ada", 9.90))?;
/// let total: f64 = connection.query_row("SELECT sum(total) FROM orders", (), |row| row.get(0))?;
/// assert_eq!(total, 9.90);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Connection {
    pub(super) shared: Arc<Shared>,
}

impl Connection {
    /// Opens a database directory with default options, and creates it if it does not exist.
    ///
    /// A database can be open once: for further connections to it, use [`Connection::try_clone`].
    ///
    /// # Errors
    /// As [`Database::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Connection> {
        Connection::open_with(path, Options::default())
    }

    /// Opens a database directory, and creates it if it does not exist.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Connection> {
        Database::open(path, options)?.connect()
    }

    /// Creates a database in a new temporary directory; see [`Database::open_temporary`].
    ///
    /// # Errors
    /// As [`Database::open_temporary`].
    pub fn open_temporary() -> Result<Connection> {
        Database::open_temporary(Options::default())?.connect()
    }

    pub(super) fn new(database: Database) -> Result<Connection> {
        database.start_runtime()?;
        let session = Session::new(database);
        session.sql.is_blocking.store(true, Ordering::Relaxed);
        Ok(Connection { shared: Arc::new(Shared { session, cache: Mutex::default(), hook: RwLock::default() }) })
    }

    /// A new connection to the same database, with default session options.
    ///
    /// # Errors
    /// None at present.
    pub fn try_clone(&self) -> Result<Connection> {
        self.database().connect()
    }

    /// Executes one statement and returns the number of rows that it has inserted, updated, deleted or copied; 0 for
    /// other statements. The rows of a query are discarded.
    ///
    /// A connection keeps the last 64 statements with parameters prepared.
    ///
    /// # Errors
    /// `Syntax` if `sql` does not contain exactly one statement; `ParameterCount`; `Context` with the parameter for a
    /// value that cannot be converted to its type; errors of the statement; `Cancelled`.
    pub fn execute(&self, sql: &str, params: impl Params) -> Result<u64> {
        params.with_values(|values| match values {
            [] => self.shared.change_text(sql),
            _ => self.shared.change_prepared(&self.shared.cached(sql)?, values),
        })
    }

    /// Executes every statement of a script in order and discards the rows of queries.
    ///
    /// # Errors
    /// `Syntax` if the script cannot be tokenised; nothing is executed then. Otherwise the error of the first statement
    /// that fails; the statements before it stay in effect.
    pub fn execute_batch(&self, script: &str) -> Result<()> {
        self.shared.run(self.shared.session.execute(script)).map(drop)
    }

    /// Prepares a statement for repeated execution.
    ///
    /// # Errors
    /// As [`Session::prepare`].
    pub fn prepare(&self, sql: &str) -> Result<Statement> {
        Ok(Statement::new(&self.shared, self.shared.prepare(sql)?))
    }

    /// Executes one statement and returns its rows; no rows for statements other than queries.
    ///
    /// # Errors
    /// As [`Connection::execute`]. Errors during the execution of a query come with its rows.
    pub fn query(&self, sql: &str, params: impl Params) -> Result<Rows> {
        self.batches(sql, params).map(Rows::new)
    }

    /// As [`Connection::query`], with Arrow batches instead of rows.
    ///
    /// # Errors
    /// As [`Connection::query`].
    pub fn query_arrow(&self, sql: &str, params: impl Params) -> Result<ArrowRows> {
        self.batches(sql, params).map(ArrowRows::new)
    }

    /// Executes a query and returns an iterator over its rows, converted by `map`.
    ///
    /// # Errors
    /// As [`Connection::query`].
    pub fn query_map<T, F: FnMut(&Row<'_>) -> Result<T>>(
        &self,
        sql: &str,
        params: impl Params,
        map: F,
    ) -> Result<MappedRows<F>> {
        Ok(self.query(sql, params)?.mapped(map))
    }

    /// Executes a query and converts its first row. Further rows are not read.
    ///
    /// # Errors
    /// `NoRows` if there is no row (see [`Optional`](crate::Optional)); errors of the query and of `map`.
    pub fn query_row<T>(&self, sql: &str, params: impl Params, map: impl FnOnce(&Row<'_>) -> Result<T>) -> Result<T> {
        match self.query(sql, params)?.next()? {
            Some(row) => map(&row),
            None => Err(Error::NoRows),
        }
    }

    /// An appender of rows with values for all columns of a table; see [`Appender`]. `table` is the name in the catalog:
    /// names that were not quoted are in lower case.
    ///
    /// # Errors
    /// `NotFound`, `WrongObjectType`.
    pub fn appender(&self, table: &str) -> Result<Appender> {
        Appender::new(&self.shared, table, None)
    }

    /// As [`Connection::appender`], with values for the columns `columns`, in this order. Other columns get their
    /// defaults.
    ///
    /// # Errors
    /// As [`Connection::appender`]; `UndefinedColumn`, `DuplicateColumn`; `Constraint` if a NOT NULL column without
    /// default is missing.
    pub fn appender_with_columns(&self, table: &str, columns: &[&str]) -> Result<Appender> {
        Appender::new(&self.shared, table, Some(columns))
    }

    /// Loads all rows of `batches` into a table, in one transaction or in the open one, and returns their number; see
    /// [`Session::load`]. The iterator runs on a thread of its own.
    ///
    /// # Errors
    /// As [`Session::load`].
    pub fn load(
        &self,
        table: &str,
        batches: impl Iterator<Item = Result<RecordBatch>> + Send + 'static,
    ) -> Result<u64> {
        self.shared.run(self.shared.session.load_iter(table, batches))
    }

    /// A handle that cancels the running statements of this connection from another thread.
    pub fn interrupt_handle(&self) -> InterruptHandle {
        self.shared.session.interrupt_handle()
    }

    /// The session of the connection, for its options and statistics, and for async code.
    pub fn session(&self) -> &Session {
        &self.shared.session
    }

    /// The database of the connection.
    pub fn database(&self) -> &Database {
        self.shared.session.database()
    }

    fn batches(&self, sql: &str, params: impl Params) -> Result<Batches> {
        params.with_values(|values| match values {
            [] => self.shared.query_text(sql),
            _ => self.shared.query_prepared(&self.shared.cached(sql)?, values),
        })
    }
}

/// The state that a connection shares with its statements, results and appenders.
#[derive(Debug)]
pub(super) struct Shared {
    pub session: Session,
    cache: Mutex<StatementCache>,
    /// Called while a call waits.
    pub hook: RwLock<Option<Arc<WaitHook>>>,
}

impl Shared {
    /// Runs a future to its end. Blocks.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn run<T: Send>(&self, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let runtime = &self.session.database().runtime;
        let hook = self.hook.read().clone();
        match hook {
            None => runtime.run(work),
            Some(hook) => runtime.run(hook.beside(&self.session.sql.interrupts, work)),
        }
    }

    fn prepare(&self, sql: &str) -> Result<Prepared> {
        self.run(self.session.prepare(sql))
    }

    /// The prepared statement with this text, from the cache.
    fn cached(&self, sql: &str) -> Result<Prepared> {
        if let Some(prepared) = self.cache.lock().get(sql) {
            return Ok(prepared);
        }
        let prepared = self.prepare(sql)?;
        self.cache.lock().insert(sql, prepared.clone());
        Ok(prepared)
    }

    pub fn query_prepared(self: &Arc<Self>, prepared: &Prepared, values: &[ValueRef<'_>]) -> Result<Batches> {
        let execution = self.session.execution();
        let executed = self.execute(&execution, prepared, values)?;
        Ok(Batches::new(self, execution.result_started(), executed))
    }

    pub fn change_prepared(&self, prepared: &Prepared, values: &[ValueRef<'_>]) -> Result<u64> {
        let execution = self.session.execution();
        self.changed(&execution, self.execute(&execution, prepared, values)?)
    }

    fn execute(&self, execution: &Execution<'_>, prepared: &Prepared, values: &[ValueRef<'_>]) -> Result<Executed> {
        let _active = self.session.begin(prepared.shown().clone())?;
        let work = prepared.execute(&self.session, execution, values);
        if prepared.columns().is_none() || !prepared.is_query() {
            return self.run(self.session.run(execution, pin!(work)));
        }
        let refreshed = self.session.refresh();
        // The short path answers without waiting. The long path plans a query here and executes it later.
        let executed = refreshed
            .and_then(|()| self.session.database().runtime.poll_then(work, |work| self.run(execution.run(work))));
        let executed = executed.map_err(|error| self.session.sql.transaction.cause(error));
        executed.inspect_err(|error| self.session.sql.transaction.failed(error))
    }

    fn execute_text(&self, execution: &Execution<'_>, sql: &str) -> Result<Executed> {
        let _active = self.session.begin(shown(sql))?;
        self.run(self.session.run(execution, pin!(sql::located::run_text(&self.session.sql, execution, sql))))
    }

    fn query_text(self: &Arc<Self>, sql: &str) -> Result<Batches> {
        let execution = self.session.execution();
        let executed = self.execute_text(&execution, sql)?;
        Ok(Batches::new(self, execution.result_started(), executed))
    }

    fn change_text(&self, sql: &str) -> Result<u64> {
        let execution = self.session.execution();
        self.changed(&execution, self.execute_text(&execution, sql)?)
    }

    /// The number of changed rows; discards the rows of a query.
    fn changed(&self, execution: &Execution<'_>, executed: Executed) -> Result<u64> {
        let outcome = match executed {
            Executed::Rows(_) => return Ok(0),
            Executed::Outcome(outcome @ Outcome::Rows(_)) => {
                self.run(self.session.run_part(execution, sql::drain(outcome)))?
            }
            Executed::Outcome(outcome) => outcome,
        };
        match outcome {
            Outcome::Done { rows, .. } => Ok(rows.unwrap_or(0)),
            Outcome::Rows(_) => Ok(0),
        }
    }
}

/// Prepared statements by their text; the least recently used one is evicted.
#[derive(Debug, Default)]
struct StatementCache {
    statements: HashMap<Box<str>, (Prepared, u64)>,
    /// Number of accesses.
    clock: u64,
}

impl StatementCache {
    fn get(&mut self, sql: &str) -> Option<Prepared> {
        self.clock += 1;
        let (prepared, used) = self.statements.get_mut(sql)?;
        *used = self.clock;
        Some(prepared.clone())
    }

    fn insert(&mut self, sql: &str, prepared: Prepared) {
        if self.statements.len() >= CACHED_STATEMENTS {
            let oldest = self.statements.iter().min_by_key(|(_, (_, used))| *used).map(|(sql, _)| sql.clone());
            oldest.and_then(|oldest| self.statements.remove(&oldest));
        }
        self.statements.insert(sql.into(), (prepared, self.clock));
    }
}

//! Connections.

use std::sync::Arc;

use keyaki::TransactionStatus;
use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyString, PyType};

use super::{Cursor, Transaction};
use crate::handle::Handle;
use crate::progress::Reporter;
use crate::source::Source;
use crate::{classes, encode, failure, process, registry};

/// Rows that `append` converts before it passes them on.
const APPENDED_ROWS: usize = 1024;

/// The reads of a scan or an index pipeline: its name, its start on the device's clock and its time in nanoseconds, the number of
/// reads, and samples: nanoseconds since the start, reads in flight, reads completed.
type Reads = (String, u64, u64, u64, Vec<(u64, u32, u64)>);

/// A connection to a database, made by `keyaki.connect()`.
///
/// >>> import keyaki
/// >>> with keyaki.connect() as con:
/// ...     _ = con.execute("CREATE TABLE city (id INTEGER PRIMARY KEY, name TEXT)")
/// ...     _ = con.execute("INSERT INTO city VALUES (?, ?)", (1, "Sendai"))
/// ...     con.execute("SELECT name FROM city WHERE id = :id", {"id": 1}).fetchone()
/// ('Sendai',)
#[pyclass(module = "keyaki", weakref, frozen)]
#[derive(Debug)]
pub struct Connection {
    handle: Arc<Handle>,
}

impl Connection {
    /// A connection with a handle.
    pub fn new(handle: Arc<Handle>) -> Connection {
        Connection { handle }
    }

    /// Executes a statement that returns no rows.
    ///
    /// # Errors
    /// Errors of the statement.
    pub fn set(&self, py: Python<'_>, statement: &str) -> PyResult<()> {
        self.handle.run(py, |connection| connection.execute(statement, ()).map(drop))
    }
}

#[pymethods]
impl Connection {
    /// Makes a cursor.
    fn cursor(slf: &Bound<'_, Self>) -> PyResult<Cursor> {
        let handle = slf.get().handle.clone();
        if handle.is_closed() {
            return Err(failure::interface(slf.py(), "the connection is closed"));
        }
        Ok(Cursor::new(slf.clone().unbind(), handle))
    }

    /// Executes one statement with a new cursor, and returns the cursor.
    #[pyo3(signature = (sql, parameters=None))]
    fn execute(
        slf: &Bound<'_, Self>,
        sql: &Bound<'_, PyString>,
        parameters: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Cursor> {
        let mut cursor = Connection::cursor(slf)?;
        cursor.run(slf.py(), sql.to_str()?, parameters)?;
        Ok(cursor)
    }

    /// Executes a statement once for each row of parameters, in one transaction. Returns the cursor.
    fn executemany(slf: &Bound<'_, Self>, sql: &Bound<'_, PyString>, rows: &Bound<'_, PyAny>) -> PyResult<Cursor> {
        let mut cursor = Connection::cursor(slf)?;
        cursor.run_many(slf.py(), sql.to_str()?, rows)?;
        Ok(cursor)
    }

    /// Executes all statements of a script. It begins no transaction: statements outside of BEGIN and COMMIT stand alone.
    fn executescript(&self, py: Python<'_>, script: &Bound<'_, PyString>) -> PyResult<()> {
        let script = script.to_str()?;
        self.handle.run(py, |connection| connection.execute_batch(script))
    }

    /// Begins a transaction: "read committed", "repeatable read" or "serializable".
    #[pyo3(signature = (isolation=None))]
    fn begin(&self, py: Python<'_>, isolation: Option<&str>) -> PyResult<()> {
        self.set(py, &begin(py, isolation)?)
    }

    /// A context manager: a transaction that is committed at the end of the block, and rolled back after an exception.
    /// Within another transaction, it is a savepoint.
    #[pyo3(signature = (isolation=None))]
    fn transaction(&self, py: Python<'_>, isolation: Option<&str>) -> PyResult<Transaction> {
        let begin = begin(py, isolation)?;
        Ok(Transaction::new(self.handle.clone(), begin, isolation.is_some()))
    }

    /// Commits the open transaction, if there is one.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.run(py, Handle::commit)
    }

    /// Rolls the open transaction back, if there is one.
    fn rollback(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.run(py, Handle::roll_back)
    }

    /// True while a transaction is open.
    #[getter]
    fn in_transaction(&self, py: Python<'_>) -> PyResult<bool> {
        self.handle.run(py, |connection| Ok(connection.session().transaction_status() != TransactionStatus::Idle))
    }

    /// True if each statement that changes rows is a transaction of its own.
    #[getter]
    fn autocommit(&self) -> bool {
        self.handle.autocommit()
    }

    #[setter]
    fn set_autocommit(&self, py: Python<'_>, autocommit: bool) -> PyResult<()> {
        if autocommit && !self.handle.autocommit() && self.in_transaction(py)? {
            return Err(failure::programming(py, "commit or roll back the open transaction first"));
        }
        self.handle.set_autocommit(autocommit);
        Ok(())
    }

    /// Cancels the running statement, from another thread. It fails with OperationalError (SQLSTATE 57014).
    fn interrupt(&self) {
        self.handle.interrupt();
    }

    /// A new connection to the same database.
    fn duplicate(&self, py: Python<'_>) -> PyResult<Connection> {
        // Fails in a forked child.
        self.handle.run(py, |_| Ok(()))?;
        let (opened, modes) = (self.handle.opened.clone(), self.handle.modes());
        let handle = py.detach(|| {
            // The end of the interpreter closes all handles of the list: it either finds the new one, or comes before.
            let mut handles = registry::lock();
            let database = self.handle.database().filter(|_| !process::is_ending());
            let handle = database.map(|database| Handle::new(database, opened, modes)).transpose()?.map(Arc::new);
            handle.iter().for_each(|handle| handles.add(handle));
            Ok(handle)
        });
        let handle = handle.map_err(|error| failure::raised(py, &error))?;
        let handle = handle.ok_or_else(|| failure::interface(py, "the connection is closed"))?;
        handle.progress().set_reporter(Reporter::of(Some(self.progress(py)?.bind(py)), py)?);
        Ok(Connection { handle })
    }

    /// Appends rows to a table, much faster than INSERT, and returns their number. The rows before a wrong one remain.
    ///
    /// `source`: an iterable of rows, with values for `columns` or for all columns of the table; or a dict of columns, an
    /// Arrow object, a pandas or Polars frame, whose columns are matched by name.
    #[pyo3(signature = (table, source, columns=None))]
    fn append<'py>(
        slf: &Bound<'py, Self>,
        table: &str,
        source: &Bound<'py, PyAny>,
        columns: Option<Vec<String>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let _call = slf.get().handle.progress().call();
        py.import(intern!(py, "keyaki._frames"))?.call_method1(intern!(py, "append"), (slf, table, source, columns))
    }

    /// Appends an iterable of rows.
    #[pyo3(signature = (table, rows, columns=None))]
    fn _append_rows(
        &self,
        py: Python<'_>,
        table: &str,
        rows: &Bound<'_, PyAny>,
        columns: Option<Vec<String>>,
    ) -> PyResult<u64> {
        let total = rows.len().ok().and_then(|total| u64::try_from(total).ok());
        let (mut rows, mut appended) = (rows.try_iter()?, 0);
        let mut appender = Some(self.handle.run(py, |connection| match &columns {
            None => connection.appender(table),
            Some(names) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                connection.appender_with_columns(table, &names)
            }
        })?);
        loop {
            let many = rows.by_ref().take(APPENDED_ROWS).map(|row| encode::values(&row?));
            let many = many.collect::<PyResult<Vec<_>>>();
            let inserted = self.handle.run(py, |_| {
                let Some(appending) = &mut appender else { return Ok(None) };
                let appended = many.iter().flatten().try_for_each(|values| appending.append_row(values));
                match &many {
                    Ok(many) if many.len() == APPENDED_ROWS && appended.is_ok() => Ok(None),
                    // The rows before a wrong one remain.
                    _ => {
                        let finished = appender.take().map(keyaki::Appender::finish).transpose();
                        appended.and(finished)
                    }
                }
            });
            if inserted.is_err() {
                // Its end writes, which may wait for a statement of a thread that waits for the GIL.
                py.detach(|| drop(appender.take()));
            }
            let count = many?.len() as u64;
            if let Some(inserted) = inserted? {
                return Ok(inserted);
            }
            appended += count;
            self.handle.progress().reach("appending", appended, total);
            if let Err(error) = self.handle.progress().report() {
                py.detach(|| drop(appender.take()));
                return Err(error);
            }
        }
    }

    /// Appends the rows of an Arrow object or a frame, in one transaction. None for other objects.
    fn _append_arrow(&self, py: Python<'_>, table: &str, source: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        let Some(mut source) = Source::of(source)? else { return Ok(None) };
        let handle = self.handle.clone();
        let failed = Arc::<Mutex<Option<String>>>::default();
        let of_source = failed.clone();
        let batches = std::iter::from_fn(move || {
            // The rows may be those of a result of this connection, which its statement keeps from being read.
            let batch = handle.help(|| source.next())?;
            Some(batch.map_err(|error| {
                *of_source.lock() = Some(error.to_string());
                keyaki::Error::from(error)
            }))
        });
        let loaded = self.handle.run(py, |connection| connection.load(table, batches));
        let failed = failed.lock().take();
        match (loaded, failed) {
            // A signal handler may have raised another exception.
            (Err(error), Some(message)) if error.is_instance(py, &classes::exception(py, "Error")?) => {
                Err(failure::data(py, &format!("the source of the rows has failed: {message}"), "22000"))
            }
            (loaded, _) => loaded.map(Some),
        }
    }

    /// Makes the rows of an Arrow object or a frame a table with a name, for the statements of this connection. Later changes of
    /// a pandas frame have no effect. Relations of the database with the same name come first.
    fn register(&self, name: &str, source: &Bound<'_, PyAny>) -> PyResult<()> {
        self.handle.frames().register(name, source)
    }

    /// Removes a table that `register` has made.
    fn unregister(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        match self.handle.frames().unregister(py, name) {
            true => Ok(()),
            false => Err(failure::programming(py, &format!("nothing is registered as \"{name}\""))),
        }
    }

    /// True if statements can use variables of the caller as tables, by their names.
    #[getter]
    fn frames(&self) -> bool {
        self.handle.modes().uses_variables
    }

    #[setter]
    fn set_frames(&self, frames: bool) {
        self.handle.set_uses_variables(frames);
    }

    /// The progress of statements: None shows it in notebooks and interactive terminals, True always; a callable is called with
    /// a `keyaki.Progress`; False shows nothing.
    #[getter]
    fn progress(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.handle.progress().option(py)
    }

    #[setter]
    fn set_progress(&self, py: Python<'_>, progress: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.handle.progress().set_reporter(Reporter::of(progress, py)?);
        Ok(())
    }

    /// The messages of the statements since the last call, as "NOTICE: …".
    fn notices(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let notices = self.handle.run(py, |connection| Ok(connection.take_notices()))?;
        Ok(notices.iter().map(|notice| format!("{}: {}", notice.severity.name(), notice.message)).collect())
    }

    /// The reads of each scan and index pipeline of the last statement, for `keyaki._plan`.
    fn _reads(&self, py: Python<'_>) -> PyResult<Vec<Reads>> {
        let stats = self.handle.run(py, |connection| Ok(connection.session().last_stats()))?;
        let reads = stats.into_iter().map(|(name, stats)| {
            let snapshot = stats.snapshot();
            let samples = snapshot.timeline.iter().map(|sample| (sample.at_ns, sample.in_flight, sample.reads));
            (name, snapshot.started_ns, snapshot.elapsed_ns, snapshot.reads, samples.collect())
        });
        Ok(reads.collect())
    }

    /// The directory of the database; None for a temporary database.
    #[getter]
    fn path(&self) -> Option<std::path::PathBuf> {
        self.handle.opened.path.clone()
    }

    /// True after close().
    #[getter]
    fn closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// Closes the connection and rolls its transaction back. The last connection closes the database.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        match self.handle.is_closed() {
            true => Ok(()),
            false => self.handle.close(py),
        }
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
        match slf.handle.is_closed() {
            true => Err(failure::interface(slf.py(), "the connection is closed")),
            false => Ok(slf),
        }
    }

    /// Commits, or rolls back after an exception, and closes the connection.
    fn __exit__(
        &self,
        py: Python<'_>,
        class: Option<&Bound<'_, PyType>>,
        _exception: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if self.handle.is_closed() {
            return Ok(());
        }
        let ended = self.handle.run(py, if class.is_none() { Handle::commit } else { Handle::roll_back });
        self.close(py)?;
        ended
    }

    fn __repr__(&self) -> String {
        let path = self.handle.opened.path.as_ref();
        let path = path.map_or_else(|| ":memory:".into(), |path| path.display().to_string());
        let state = if self.handle.is_closed() { " (closed)" } else { "" };
        format!("<keyaki.Connection to \"{path}\"{state}>")
    }
}

/// The statement that begins a transaction at an isolation level.
fn begin(py: Python<'_>, isolation: Option<&str>) -> PyResult<String> {
    match isolation {
        None => Ok("BEGIN".into()),
        Some(level @ ("read committed" | "repeatable read" | "serializable")) => {
            Ok(format!("BEGIN ISOLATION LEVEL {level}"))
        }
        Some(level) => {
            let message =
                format!("isolation \"{level}\" is not \"read committed\", \"repeatable read\" or \"serializable\"");
            Err(failure::programming(py, &message))
        }
    }
}

//! Cursors: statements and their results.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use keyaki::{Rows, Statement, TransactionStatus, Value, params_from_iter};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyList, PyMapping, PyString, PyTuple};

use super::Connection;
use crate::batches::{self, Insert};
use crate::handle::Handle;
use crate::parameters::{Named, named};
use crate::shelves::Shelf;
use crate::stream::ResultStream;
use crate::{encode, failure, result};

/// Rows that `executemany` converts before it executes them.
const MANY_ROWS: usize = 1024;
/// Rows and parameters of one statement of `executemany`, at most.
const BATCH_ROWS: usize = 256;
/// Rows with longer values are inserted one by one: a batch of them would take much memory.
const LONG_BYTES: usize = 4096;
const BATCH_PARAMETERS: usize = 2048;

/// A cursor of DB-API 2.0: executes statements and fetches the rows of their results.
///
/// >>> import keyaki
/// >>> con = keyaki.connect()
/// >>> cur = con.cursor()
/// >>> cur.execute("SELECT ? + 1 AS n", (41,)).fetchone()
/// (42,)
#[pyclass(module = "keyaki", weakref)]
#[derive(Debug)]
pub struct Cursor {
    connection: Py<Connection>,
    handle: Arc<Handle>,
    /// The rows of the last statement.
    shelf: Arc<Shelf<Rows>>,
    rowcount: i64,
    /// The columns of the last result.
    described: Option<Described>,
    is_closed: bool,
    /// Number of rows that `fetchmany()` fetches by default.
    #[pyo3(get, set)]
    arraysize: usize,
}

/// The columns of a result. Their description is made when it is first used.
struct Described {
    schema: SchemaRef,
    description: PyOnceLock<Py<PyTuple>>,
}

impl fmt::Debug for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Described").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// The rows of a cursor while one of its methods uses them.
struct Taken<'a> {
    cursor: &'a Cursor,
    rows: Option<Rows>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.cursor.handle.put(&self.cursor.shelf, self.rows.take());
    }
}

impl Cursor {
    /// A new cursor of a connection.
    pub fn new(connection: Py<Connection>, handle: Arc<Handle>) -> Cursor {
        let shelf = handle.shelf();
        Cursor { connection, handle, shelf, rowcount: -1, described: None, is_closed: false, arraysize: 1 }
    }

    fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        match (self.is_closed, self.handle.is_closed()) {
            (true, _) => Err(failure::interface(py, "the cursor is closed")),
            (_, true) => Err(failure::interface(py, "the connection is closed")),
            (false, false) => self.handle.check_process(py),
        }
    }

    /// The rows of the last statement, for the duration of a call.
    fn take(&self, py: Python<'_>) -> PyResult<Taken<'_>> {
        self.check_open(py)?;
        match self.shelf.lock().take() {
            Some(rows) => Ok(Taken { cursor: self, rows: Some(rows) }),
            None => Err(failure::programming(py, "there is no result: execute a statement that returns rows first")),
        }
    }

    /// Executes a statement.
    ///
    /// # Errors
    /// Errors of the statement.
    pub fn run(&mut self, py: Python<'_>, sql: &str, parameters: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.check_open(py)?;
        drop(self.shelf.lock().take());
        (self.rowcount, self.described) = (-1, None);
        let (numbered, values) = match parameters {
            None => (None, Vec::new()),
            Some(parameters) => bound(sql, parameters)?,
        };
        let sql = numbered.as_deref().unwrap_or(sql);
        let handle = &self.handle;
        let rows = handle.run(py, |connection| {
            let began = handle.begin_for(connection, sql)?;
            let rows = match values.is_empty() {
                true => connection.query(sql, ()),
                false => connection.query(sql, &values),
            };
            // Errors of the first rows are errors of the statement.
            let rows = rows.and_then(|mut rows| rows.wait().map(|_| rows));
            if began && rows.is_err() {
                Handle::roll_back(connection)?;
            }
            rows
        })?;
        match rows.completion() {
            Some(completion) => {
                let changed = completion.rows.and_then(|rows| i64::try_from(rows).ok());
                self.rowcount = changed.unwrap_or(-1);
            }
            None => {
                self.described = Some(Described { schema: rows.schema().clone(), description: PyOnceLock::new() });
                handle.put(&self.shelf, Some(rows));
            }
        }
        Ok(())
    }

    /// Executes a statement once for each row of parameters, in one transaction.
    ///
    /// # Errors
    /// Errors of the statement; exceptions of the iterator.
    pub fn run_many(&mut self, py: Python<'_>, sql: &str, rows: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check_open(py)?;
        drop(self.shelf.lock().take());
        (self.rowcount, self.described) = (-1, None);
        let handle = self.handle.clone();
        let _call = handle.progress().call();
        let _kept = handle.frames().kept();
        let mut scope = Scope::NotBegun;
        let changed = execute_rows(py, &handle, sql, rows, &mut scope);
        // All executions take effect, or none.
        match (&scope, changed.is_ok()) {
            (Scope::Transaction, true) if handle.autocommit() => handle.run(py, Handle::commit)?,
            (Scope::Transaction, false) => handle.run(py, Handle::roll_back)?,
            (Scope::Savepoint, true) => handle.run(py, |connection| connection.execute(RELEASE, ()).map(drop))?,
            (Scope::Savepoint, false) => handle.run(py, |connection| {
                connection.execute(&format!("ROLLBACK TO {SAVEPOINT}"), ())?;
                connection.execute(RELEASE, ()).map(drop)
            })?,
            (Scope::NotBegun | Scope::Alone | Scope::Transaction, _) => {}
        }
        self.rowcount = changed?.and_then(|rows| i64::try_from(rows).ok()).unwrap_or(-1);
        Ok(())
    }
}

const SAVEPOINT: &str = "keyaki_python_executemany";
const RELEASE: &str = "RELEASE keyaki_python_executemany";

/// The transaction of the executions of `executemany`.
enum Scope {
    NotBegun,
    /// Each stands alone: the statement changes nothing.
    Alone,
    /// A transaction that began with the first one.
    Transaction,
    /// A savepoint of the open transaction.
    Savepoint,
}

impl Scope {
    /// Begins the scope of a statement.
    ///
    /// # Errors
    /// Errors of BEGIN and SAVEPOINT.
    fn begin(handle: &Handle, connection: &keyaki::Connection, sql: &str) -> keyaki::Result<Scope> {
        if connection.session().transaction_status() != TransactionStatus::Idle {
            connection.execute(&format!("SAVEPOINT {SAVEPOINT}"), ())?;
            return Ok(Scope::Savepoint);
        }
        if !handle.autocommit() {
            return Ok(if handle.begin_for(connection, sql)? { Scope::Transaction } else { Scope::Alone });
        }
        connection.execute("BEGIN", ())?;
        Ok(Scope::Transaction)
    }
}

/// The statement of `executemany`.
struct Many {
    statement: Statement,
    /// The same statement for several rows, if it has such a form: a statement, and the number of its rows.
    batch: Option<(Statement, usize)>,
}

impl Many {
    /// Prepares a statement. `rows`: the rows that are known.
    ///
    /// # Errors
    /// Errors of the statement.
    fn prepare(connection: &keyaki::Connection, sql: &str, rows: usize) -> keyaki::Result<Many> {
        let statement = connection.prepare(sql)?;
        let count = statement.parameter_count();
        let batch_rows = BATCH_ROWS.min(BATCH_PARAMETERS / count.max(1));
        // Its preparation takes the time of many rows.
        let insert = if batch_rows > 1 && rows >= batch_rows { Insert::of(sql) } else { None };
        let batch = insert.map(|insert| connection.prepare(&insert.repeated(count, batch_rows)));
        Ok(Many { statement, batch: batch.transpose()?.map(|statement| (statement, batch_rows)) })
    }

    /// Executes the statement for rows of parameters. Returns the number of rows that it has changed.
    ///
    /// # Errors
    /// Errors of the statement.
    fn execute(&self, rows: &[Vec<Value>]) -> keyaki::Result<u64> {
        let one_by_one = |rows: &[Vec<Value>]| rows.iter().map(|row| self.statement.execute(row)).sum();
        let Some((batch, batch_rows)) = &self.batch else { return one_by_one(rows) };
        let count = self.statement.parameter_count();
        let is_long = |value: &Value| match value {
            Value::Text(text) => text.len() > LONG_BYTES,
            Value::Bytes(bytes) => bytes.len() > LONG_BYTES,
            _ => false,
        };
        if rows.iter().any(|row| row.len() != count || row.iter().any(is_long)) {
            return one_by_one(rows);
        }
        let batches = rows.chunks_exact(*batch_rows);
        let rest = batches.remainder();
        let changed = batches.map(|rows| {
            batch.execute(params_from_iter(rows.iter().flatten())).map_err(|error| batches::of_one_row(error, count))
        });
        Ok(changed.sum::<keyaki::Result<u64>>()? + one_by_one(rest)?)
    }
}

/// The number of rows that the executions have changed; `None` for statements that return rows.
fn execute_rows(
    py: Python<'_>,
    handle: &Handle,
    sql: &str,
    rows: &Bound<'_, PyAny>,
    scope: &mut Scope,
) -> PyResult<Option<u64>> {
    let (mut prepared, mut names) = (None::<Many>, None::<Named>);
    let (mut executed, mut changed) = (0, 0);
    let total = rows.len().ok().and_then(|total| u64::try_from(total).ok());
    let mut rows = rows.try_iter()?;
    loop {
        let mut many = Vec::new();
        for row in rows.by_ref().take(MANY_ROWS) {
            let row = row?;
            many.push(match row.cast::<PyMapping>() {
                Ok(_) => encode::named_values(&row, &names.get_or_insert_with(|| named(sql)).names)?,
                Err(_) => encode::values(&row)?,
            });
        }
        if many.is_empty() {
            let returns_rows = prepared.as_ref().is_some_and(|many| !many.statement.columns().is_empty());
            return Ok((!returns_rows).then_some(changed));
        }
        let text = names.as_ref().map_or(sql, |names| names.sql.as_str());
        changed += handle.run(py, |connection| {
            let statement = match &mut prepared {
                Some(statement) => statement,
                None => {
                    *scope = Scope::begin(handle, connection, text)?;
                    prepared.insert(Many::prepare(connection, text, many.len())?)
                }
            };
            statement.execute(&many)
        })?;
        executed += many.len() as u64;
        handle.progress().reach("executing", executed, total);
        handle.progress().report()?;
    }
}

/// The values of parameters, and the text with numbered parameters if they have names.
fn bound(sql: &str, parameters: &Bound<'_, PyAny>) -> PyResult<(Option<String>, Vec<Value>)> {
    // Tuples and lists are the usual case, and no mappings.
    if parameters.is_instance_of::<PyTuple>() || parameters.is_instance_of::<PyList>() {
        return Ok((None, encode::values(parameters)?));
    }
    if parameters.cast::<PyMapping>().is_ok() {
        let Named { sql, names } = named(sql);
        let values = encode::named_values(parameters, &names)?;
        return Ok((Some(sql), values));
    }
    Ok((None, encode::values(parameters)?))
}

#[pymethods]
impl Cursor {
    /// Executes one statement. Returns the cursor.
    ///
    /// `parameters`: a sequence for `?` and `$1`, or a mapping for `:name`.
    #[pyo3(signature = (sql, parameters=None))]
    fn execute<'py>(
        mut slf: PyRefMut<'py, Self>,
        sql: &Bound<'py, PyString>,
        parameters: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<PyRefMut<'py, Self>> {
        let py = slf.py();
        slf.run(py, sql.to_str()?, parameters)?;
        Ok(slf)
    }

    /// Executes a statement once for each row of parameters. Returns the cursor. The executions are one transaction.
    fn executemany<'py>(
        mut slf: PyRefMut<'py, Self>,
        sql: &Bound<'py, PyString>,
        rows: &Bound<'py, PyAny>,
    ) -> PyResult<PyRefMut<'py, Self>> {
        let py = slf.py();
        slf.run_many(py, sql.to_str()?, rows)?;
        Ok(slf)
    }

    /// Executes all statements of a script. Returns the cursor.
    fn executescript<'py>(
        mut slf: PyRefMut<'py, Self>,
        script: &Bound<'py, PyString>,
    ) -> PyResult<PyRefMut<'py, Self>> {
        let py = slf.py();
        slf.check_open(py)?;
        drop(slf.shelf.lock().take());
        (slf.rowcount, slf.described) = (-1, None);
        // The statements outside of BEGIN and COMMIT stand alone.
        let script = script.to_str()?;
        slf.handle.run(py, |connection| connection.execute_batch(script))?;
        Ok(slf)
    }

    /// The next row; None at the end.
    fn fetchone<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let mut taken = self.take(py)?;
        taken.rows.as_mut().map_or(Ok(None), |rows| result::fetch_one(py, &self.handle, rows))
    }

    /// The next rows: `size`, or `arraysize`; an empty list at the end.
    #[pyo3(signature = (size=None))]
    fn fetchmany<'py>(&self, py: Python<'py>, size: Option<usize>) -> PyResult<Bound<'py, PyList>> {
        self.fetch(py, size.unwrap_or(self.arraysize))
    }

    /// All remaining rows.
    fn fetchall<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.fetch(py, usize::MAX)
    }

    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        self.fetchone(py)
    }

    /// The remaining rows as a stream of Arrow's C interface.
    fn _stream(&self, py: Python<'_>) -> PyResult<ResultStream> {
        let mut taken = self.take(py)?;
        let rows = taken.rows.take();
        let rows = rows.ok_or_else(|| failure::programming(py, "there is no result"))?;
        drop(taken);
        Ok(ResultStream::new(self.handle.clone(), rows))
    }

    /// Seven values for each column of the result: name, type, None, None, precision, scale, None. None without a result.
    #[getter]
    fn description<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let Some(described) = &self.described else { return Ok(None) };
        let make = || result::description(py, &described.schema).map(Bound::unbind);
        Ok(Some(described.description.get_or_try_init(py, make)?.bind(py).clone()))
    }

    /// Number of rows that the last statement has changed; -1 for statements that return rows and for others.
    #[getter]
    fn rowcount(&self) -> i64 {
        self.rowcount
    }

    /// None: rows have no number of their own.
    #[getter]
    fn lastrowid(&self) -> Option<i64> {
        None
    }

    /// The connection of the cursor.
    #[getter]
    fn connection(&self, py: Python<'_>) -> Py<Connection> {
        self.connection.clone_ref(py)
    }

    /// Does nothing: DB-API 2.0 has it for databases that need sizes.
    fn setinputsizes(&self, _sizes: &Bound<'_, PyAny>) {}

    /// Does nothing: DB-API 2.0 has it for databases that need sizes.
    #[pyo3(signature = (_size, _column=None))]
    fn setoutputsize(&self, _size: &Bound<'_, PyAny>, _column: Option<&Bound<'_, PyAny>>) {}

    /// Not supported: Keyaki has no stored procedures.
    #[pyo3(signature = (_name, _parameters=None))]
    fn callproc(&self, py: Python<'_>, _name: &str, _parameters: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        Err(failure::exception(py, "NotSupportedError", "Keyaki has no stored procedures", Some("0A000")))
    }

    /// Drops the result, which cancels its query. The cursor cannot be used further.
    fn close(&mut self) {
        let rows = self.shelf.lock().take();
        match self.handle.is_of_this_process() {
            true => drop(rows),
            false => std::mem::forget(rows),
        }
        self.is_closed = true;
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&mut self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }

    /// The remaining rows as a pyarrow.Table.
    fn arrow<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Cursor::frame(slf, intern!(slf.py(), "arrow"))
    }

    /// The remaining rows as a pyarrow.RecordBatchReader, which reads them while they are computed.
    fn arrow_reader<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Cursor::frame(slf, intern!(slf.py(), "arrow_reader"))
    }

    /// The remaining rows as a pandas.DataFrame.
    fn df<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Cursor::frame(slf, intern!(slf.py(), "df"))
    }

    /// The remaining rows as a polars.DataFrame.
    fn pl<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Cursor::frame(slf, intern!(slf.py(), "pl"))
    }

    /// The remaining rows as a dict of numpy arrays, one for each column.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Cursor::frame(slf, intern!(slf.py(), "numpy_columns"))
    }

    /// The remaining rows as a stream of Arrow's C interface (the PyCapsule protocol).
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        self._stream(py)?.capsule(py, requested_schema)
    }

    /// The result as an HTML table with the types of its columns, for notebooks. Reads up to 20 rows, which `fetchone()` then
    /// does not return.
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        py.import("keyaki._display")?.call_method1(intern!(py, "html_of_cursor"), (slf,))
    }
}

impl Cursor {
    /// The result of a function of `keyaki._frames`.
    fn frame<'py>(slf: &Bound<'py, Self>, function: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
        let handle = slf.try_borrow()?.handle.clone();
        let _call = handle.progress().reading();
        slf.py().import(intern!(slf.py(), "keyaki._frames"))?.call_method1(function, (slf,))
    }

    fn fetch<'py>(&self, py: Python<'py>, limit: usize) -> PyResult<Bound<'py, PyList>> {
        let mut taken = self.take(py)?;
        match &mut taken.rows {
            Some(rows) => result::fetch(py, &self.handle, rows, limit),
            None => Ok(PyList::empty(py)),
        }
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        // In a forked child, the threads that compute the result do not exist.
        if !self.handle.is_of_this_process() {
            std::mem::forget(self.shelf.lock().take());
        }
    }
}

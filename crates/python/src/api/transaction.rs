//! Transactions as context managers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyaki::TransactionStatus;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::failure;
use crate::handle::Handle;

/// Makes the names of savepoints different.
static SAVEPOINTS: AtomicU64 = AtomicU64::new(1);

/// A context manager for a transaction, made by `Connection.transaction()`.
#[pyclass(module = "keyaki")]
#[derive(Debug)]
pub struct Transaction {
    handle: Arc<Handle>,
    begin: String,
    /// An isolation level was given, which a savepoint cannot have.
    has_isolation: bool,
    level: Level,
}

#[derive(Debug)]
enum Level {
    NotBegun,
    Transaction,
    /// A savepoint in another transaction, with its name.
    Savepoint(String),
}

impl Transaction {
    /// A transaction that the statement `begin` will begin.
    pub fn new(handle: Arc<Handle>, begin: String, has_isolation: bool) -> Transaction {
        Transaction { handle, begin, has_isolation, level: Level::NotBegun }
    }

    /// Ends a savepoint; undoes its changes if its block `has_failed`.
    fn end_savepoint(&self, py: Python<'_>, name: &str, has_failed: bool) -> PyResult<()> {
        self.handle.run(py, |connection| {
            if has_failed {
                connection.execute(&format!("ROLLBACK TO SAVEPOINT \"{name}\""), ())?;
            }
            connection.execute(&format!("RELEASE SAVEPOINT \"{name}\""), ()).map(drop)
        })
    }
}

#[pymethods]
impl Transaction {
    fn __enter__(mut slf: PyRefMut<'_, Self>) -> PyResult<PyRefMut<'_, Self>> {
        let py = slf.py();
        if !matches!(slf.level, Level::NotBegun) {
            return Err(failure::programming(py, "the transaction has begun already"));
        }
        let name = format!("keyaki_python_{}", SAVEPOINTS.fetch_add(1, Ordering::Relaxed));
        let (begin, has_isolation) = (slf.begin.clone(), slf.has_isolation);
        let mut begun = None;
        let entered = slf.handle.run(py, |connection| {
            let is_nested = connection.session().transaction_status() != TransactionStatus::Idle;
            if is_nested && has_isolation {
                let problem = "a transaction is open already: its isolation level cannot be changed";
                return Err(keyaki::Error::ActiveTransaction(problem.into()));
            }
            let statement = if is_nested { format!("SAVEPOINT \"{name}\"") } else { begin };
            connection.execute(&statement, ())?;
            begun = Some(is_nested);
            Ok(())
        });
        if let Err(error) = entered {
            // A signal handler has raised an exception after the statement.
            match begun {
                Some(true) => slf.end_savepoint(py, &name, true)?,
                Some(false) => slf.handle.run(py, Handle::roll_back)?,
                None => {}
            }
            return Err(error);
        }
        slf.level = if begun == Some(true) { Level::Savepoint(name) } else { Level::Transaction };
        Ok(slf)
    }

    fn __exit__(
        &mut self,
        py: Python<'_>,
        class: Option<&Bound<'_, PyType>>,
        _exception: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let has_failed = class.is_some();
        match std::mem::replace(&mut self.level, Level::NotBegun) {
            Level::NotBegun => Ok(()),
            Level::Transaction => self.handle.run(py, if has_failed { Handle::roll_back } else { Handle::commit }),
            Level::Savepoint(name) => self.end_savepoint(py, &name, has_failed),
        }
    }
}

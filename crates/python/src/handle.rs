//! An open connection, shared with its cursors.
//!
//! One statement of a connection runs at a time: [`Handle::run`] waits for the others. Threads may therefore share a connection.
//!
//! *Signals.* Python's signal handlers run in its main thread, between two bytecodes. While that thread waits here, it looks for
//! signals every 50 ms, runs their handlers and, if one raises an exception, as for Ctrl-C, interrupts its statement and raises
//! that exception. Every thread reports its progress there ([`crate::progress`]).
//!
//! *The end.* Results of cursors keep a database open. A handle drops them when it is closed ([`crate::shelves`]). Nothing is
//! closed in a forked child ([`crate::process`]).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use keyaki::{Connection, Database, InterruptHandle, TransactionStatus};
use parking_lot::{Mutex, MutexGuard};
use pyo3::prelude::*;

use crate::frames::Frames;
use crate::process::{self, Process, thread_mark};
use crate::progress::Monitor;
use crate::registry::{Open, Opened};
use crate::shelves::{Shelf, Shelves};
use crate::{failure, statements};

/// Time between two looks for signals.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);
/// Properties of a connection that its owner can change.
#[derive(Debug, Clone, Copy)]
pub struct Modes {
    /// Statements that change rows are transactions of their own.
    pub autocommit: bool,
    /// Statements can use variables of the caller as tables.
    pub uses_variables: bool,
}

/// See the [module documentation](self).
pub struct Handle {
    connection: Mutex<Option<Connection>>,
    database: Mutex<Option<Database>>,
    /// Mark of the thread that has locked `connection`; 0 without one.
    owner: AtomicUsize,
    /// Mark of the thread that reads rows for the statement of the owner; 0 without one.
    helper: AtomicUsize,
    frames: Arc<Frames>,
    /// Statements can use variables of the caller as tables.
    uses_variables: Arc<AtomicBool>,
    interrupt: InterruptHandle,
    /// The exception that a signal handler or a callback has raised during the current statement.
    raised: Arc<Mutex<Option<PyErr>>>,
    progress: Arc<Monitor>,
    shelves: Shelves,
    autocommit: AtomicBool,
    process: Process,
    pub opened: Opened,
}

/// The end of a call without a result.
enum Stop {
    Closed,
    Reentered,
    Raised(PyErr),
    Failed(keyaki::Error),
}

impl Stop {
    #[cold]
    fn raised(self, py: Python<'_>) -> PyErr {
        match self {
            Stop::Closed => failure::interface(py, "the connection is closed"),
            Stop::Reentered => {
                let message = "the connection is in use: signal handlers, callbacks of progress and results that a \
                               statement reads cannot use the connection of the statement";
                failure::interface(py, message)
            }
            Stop::Raised(error) => error,
            Stop::Failed(error) => failure::raised(py, &error),
        }
    }
}

/// Runs the handlers of signals. Returns the exception of one of them.
fn signalled() -> Option<PyErr> {
    Python::try_attach(|py| py.check_signals().err()).flatten()
}

impl Handle {
    /// A handle of a new connection to a database.
    ///
    /// # Errors
    /// Errors of [`Database::connect`].
    pub fn new(database: Database, opened: Opened, modes: Modes) -> keyaki::Result<Handle> {
        let connection = database.connect()?;
        let frames = Arc::<Frames>::default();
        let uses_variables = Arc::new(AtomicBool::new(modes.uses_variables));
        let (of_session, switch) = (frames.clone(), uses_variables.clone());
        connection.session().set_program_tables(move |name| of_session.find(name, switch.load(Ordering::Relaxed)));
        let raised = Arc::<Mutex<Option<PyErr>>>::default();
        let progress = Arc::new(Monitor::new(&connection));
        let (of_hook, reported) = (raised.clone(), progress.clone());
        connection.on_wait(SIGNALS_EVERY, move || {
            let error = signalled().or_else(|| reported.report().err());
            let is_to_end = error.is_some();
            if is_to_end {
                *of_hook.lock() = error;
            }
            is_to_end
        });
        Ok(Handle {
            interrupt: connection.interrupt_handle(),
            connection: Mutex::new(Some(connection)),
            database: Mutex::new(Some(database)),
            owner: AtomicUsize::new(0),
            helper: AtomicUsize::new(0),
            frames,
            uses_variables,
            raised,
            progress,
            shelves: Shelves::default(),
            autocommit: AtomicBool::new(modes.autocommit),
            process: Process::current(),
            opened,
        })
    }

    /// Runs `work` on the connection, without the GIL.
    ///
    /// # Errors
    /// `InterfaceError` for a closed connection and in a forked child; exceptions of signal handlers; errors of `work`.
    pub fn run<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Connection) -> keyaki::Result<T> + Send,
    ) -> PyResult<T> {
        self.check_process(py)?;
        let _call = self.progress.call();
        let ended = py.detach(|| {
            let guard = self.lock()?;
            let Some(connection) = guard.as_ref() else { return Err(Stop::Closed) };
            self.owner.store(thread_mark(), Ordering::Relaxed);
            let result = work(connection);
            self.frames.end_call();
            self.owner.store(0, Ordering::Relaxed);
            let (raised, of_frame) = (self.raised.lock().take(), self.frames.take_raised());
            match raised.or(of_frame) {
                Some(error) => Err(Stop::Raised(error)),
                None => result.map_err(Stop::Failed),
            }
        });
        ended.map_err(|stop| stop.raised(py))
    }

    fn lock(&self) -> Result<MutexGuard<'_, Option<Connection>>, Stop> {
        loop {
            if let Some(guard) = self.connection.try_lock_for(SIGNALS_EVERY) {
                return Ok(guard);
            }
            let mark = thread_mark();
            if [&self.owner, &self.helper].iter().any(|user| user.load(Ordering::Relaxed) == mark) {
                return Err(Stop::Reentered);
            }
            if process::is_ending() {
                return Err(Stop::Closed);
            }
            if let Some(error) = signalled() {
                return Err(Stop::Raised(error));
            }
        }
    }

    /// Reads rows for the running statement, on another thread than that of the statement.
    pub fn help<T>(&self, read: impl FnOnce() -> T) -> T {
        let mark = thread_mark();
        self.helper.store(mark, Ordering::Relaxed);
        let read = read();
        // Unless another load has begun.
        let _ = self.helper.compare_exchange(mark, 0, Ordering::Relaxed, Ordering::Relaxed);
        read
    }

    /// The progress of calls of the connection.
    pub fn progress(&self) -> &Monitor {
        &self.progress
    }

    /// The frames that statements can use as tables.
    pub fn frames(&self) -> &Frames {
        &self.frames
    }

    /// Checks that this process has opened the connection.
    ///
    /// # Errors
    /// `InterfaceError` in a forked child.
    pub fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_of_this_process() {
            return Ok(());
        }
        let message = "the connection belongs to the parent of this forked process: open another one here \
                       (with read_only=True while the parent has the database open), or start processes with \"spawn\"";
        Err(failure::interface(py, message))
    }

    /// False in a forked child.
    pub fn is_of_this_process(&self) -> bool {
        self.process == Process::current()
    }

    /// Begins a transaction if the statement needs one; see [`statements`]. Returns true if it did.
    ///
    /// # Errors
    /// Errors of BEGIN.
    pub fn begin_for(&self, connection: &Connection, sql: &str) -> keyaki::Result<bool> {
        let begins = !self.autocommit()
            && statements::begins_transaction(sql)
            && connection.session().transaction_status() == TransactionStatus::Idle;
        if begins {
            connection.execute("BEGIN", ())?;
        }
        Ok(begins)
    }

    /// Commits the open transaction, if there is one.
    ///
    /// # Errors
    /// `FailedTransaction` if a statement has failed: the transaction is rolled back. Errors of COMMIT.
    pub fn commit(connection: &Connection) -> keyaki::Result<()> {
        match connection.session().transaction_status() {
            TransactionStatus::Idle => Ok(()),
            TransactionStatus::Failed => {
                connection.execute("ROLLBACK", ())?;
                Err(keyaki::Error::FailedTransaction)
            }
            TransactionStatus::Open => connection.execute("COMMIT", ()).map(drop),
        }
    }

    /// Rolls the open transaction back, if there is one.
    ///
    /// # Errors
    /// Errors of ROLLBACK.
    pub fn roll_back(connection: &Connection) -> keyaki::Result<()> {
        match connection.session().transaction_status() {
            TransactionStatus::Idle => Ok(()),
            _ => connection.execute("ROLLBACK", ()).map(drop),
        }
    }

    /// The modes of new connections to the same database.
    pub fn modes(&self) -> Modes {
        Modes { autocommit: self.autocommit(), uses_variables: self.uses_variables.load(Ordering::Relaxed) }
    }

    /// Permits or forbids variables of the caller as tables.
    pub fn set_uses_variables(&self, uses_variables: bool) {
        self.uses_variables.store(uses_variables, Ordering::Relaxed);
    }

    /// Cancels the running statement.
    pub fn interrupt(&self) {
        self.interrupt.interrupt();
    }

    /// True if statements that change rows are transactions of their own.
    pub fn autocommit(&self) -> bool {
        self.autocommit.load(Ordering::Relaxed)
    }

    /// Switches autocommit on or off.
    pub fn set_autocommit(&self, autocommit: bool) {
        self.autocommit.store(autocommit, Ordering::Relaxed);
    }

    /// The database, unless the handle is closed.
    pub fn database(&self) -> Option<Database> {
        self.database.lock().clone()
    }

    /// True after [`Handle::close`].
    pub fn is_closed(&self) -> bool {
        self.shelves.is_closed()
    }

    /// The place for a result: the rows of a cursor, or a stream.
    pub fn shelf<T: Send + 'static>(&self) -> Arc<Shelf<T>> {
        self.shelves.shelf()
    }

    /// Puts a result back into its place, unless the connection was closed meanwhile.
    pub fn put<T>(&self, shelf: &Shelf<T>, result: Option<T>) {
        self.shelves.put(shelf, result);
    }

    /// Closes the connection: rolls its transaction back and drops the results of its cursors. Waits for the running statement,
    /// or cancels it at the end of the interpreter.
    ///
    /// # Errors
    /// `InterfaceError` in a forked child; exceptions of signal handlers.
    pub fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process(py)?;
        // It may refer to the connection.
        self.progress.set_reporter(None);
        py.detach(|| {
            let mut guard = loop {
                if !process::is_ending() {
                    break self.lock()?;
                }
                // The statement may begin only now.
                self.interrupt();
                if let Some(guard) = self.connection.try_lock_for(SIGNALS_EVERY) {
                    break guard;
                }
            };
            self.shelves.close();
            self.frames.clear();
            drop(guard.take());
            let database = self.database.lock().take();
            drop(database);
            Ok(())
        })
        .map_err(|stop: Stop| stop.raised(py))
    }
}

impl Open for Handle {
    fn opened(&self) -> &Opened {
        &self.opened
    }

    fn database(&self) -> Option<Database> {
        Handle::database(self)
    }

    fn is_of_this_process(&self) -> bool {
        Handle::is_of_this_process(self)
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        Handle::close(self, py)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // The transaction ends before the database.
        let mut parts = Some((self.connection.get_mut().take(), self.database.get_mut().take()));
        if !self.is_of_this_process() {
            std::mem::forget(parts);
            return;
        }
        // The end of the last connection writes the log. Other threads go on meanwhile.
        let mut close = || drop(parts.take());
        if Python::try_attach(|py| py.detach(&mut close)).is_none() {
            close();
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("opened", &self.opened)
            .field("is_closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}

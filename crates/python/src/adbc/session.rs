//! The session of an ADBC connection, which its statements and results share.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use adbc_core::CancelHandle;
use adbc_core::error::Result;
use keyaki::{Database, TransactionStatus};
use parking_lot::Mutex;

use super::{failed, state};
use crate::process::Process;
use crate::process::thread_mark;
use crate::registry::{Open, Opened};
use crate::shelves::Shelves;
use crate::statements;

const SAVEPOINT: &str = "SAVEPOINT keyaki_adbc";
const RELEASE: &str = "RELEASE keyaki_adbc";
const ROLLBACK_TO: &str = "ROLLBACK TO keyaki_adbc";

/// The state that a connection shares with its statements. One statement runs at a time.
pub struct Session {
    /// `None` after the end of the connection.
    connection: Mutex<Option<keyaki::Connection>>,
    database: Mutex<Option<Database>>,
    shelves: Shelves,
    /// Statements that change rows are transactions of their own.
    autocommit: AtomicBool,
    /// Mark of the thread that reads rows for an ingestion; 0 without one.
    helper: AtomicUsize,
    interrupt: keyaki::InterruptHandle,
    opened: Opened,
    process: Process,
}

impl Session {
    /// A session that commits each statement.
    pub fn new(connection: keyaki::Connection, opened: Opened) -> Session {
        Session {
            interrupt: connection.interrupt_handle(),
            database: Mutex::new(Some(connection.database().clone())),
            connection: Mutex::new(Some(connection)),
            shelves: Shelves::default(),
            autocommit: AtomicBool::new(true),
            helper: AtomicUsize::new(0),
            opened,
            process: Process::current(),
        }
    }

    /// Checks that this process has opened the connection, and that the calling thread may wait for it.
    ///
    /// # Errors
    /// `InvalidState`.
    pub fn check(&self) -> Result<()> {
        if !Session::is_of_this_process(self) {
            return Err(state("the connection belongs to the parent of this forked process: open another one here"));
        }
        if self.helper.load(Ordering::Relaxed) == thread_mark() {
            return Err(state("the connection is in use: an ingestion cannot read a result of its own connection"));
        }
        Ok(())
    }

    /// Runs `work` on the connection.
    ///
    /// # Errors
    /// Errors of `work`; `InvalidState` as of [`Session::check`] and for a closed connection.
    pub fn with<T>(&self, work: impl FnOnce(&keyaki::Connection) -> keyaki::Result<T>) -> Result<T> {
        self.check()?;
        let connection = self.connection.lock();
        let connection = connection.as_ref().ok_or_else(|| state("the connection is closed"))?;
        work(connection).map_err(failed)
    }

    /// Runs `work` on the connection, in a transaction if `sql` needs one.
    ///
    /// # Errors
    /// Errors of `work` and of BEGIN.
    pub fn run<T>(&self, sql: &str, work: impl FnOnce(&keyaki::Connection) -> keyaki::Result<T>) -> Result<T> {
        let begins = !self.autocommit() && statements::begins_transaction(sql);
        self.with(|connection| {
            let begins = begins && connection.session().transaction_status() == TransactionStatus::Idle;
            if begins {
                connection.execute("BEGIN", ())?;
            }
            let done = work(connection);
            if begins && done.is_err() {
                // The first error is the one to report.
                let _ = connection.execute("ROLLBACK", ());
            }
            done
        })
    }

    /// Runs `work`, whose changes take effect together or not at all. With autocommit, they are committed.
    ///
    /// # Errors
    /// Errors of `work` and of the transaction.
    pub fn atomically<T>(&self, work: impl FnOnce(&keyaki::Connection) -> keyaki::Result<T>) -> Result<T> {
        let autocommit = self.autocommit();
        self.with(|connection| {
            let is_idle = connection.session().transaction_status() == TransactionStatus::Idle;
            let (begin, end, undo): (_, &[&str], &[&str]) = match (is_idle, autocommit) {
                (true, true) => ("BEGIN", &["COMMIT"], &["ROLLBACK"]),
                (true, false) => ("BEGIN", &[], &["ROLLBACK"]),
                (false, _) => (SAVEPOINT, &[RELEASE], &[ROLLBACK_TO, RELEASE]),
            };
            connection.execute(begin, ())?;
            let done = work(connection);
            for statement in if done.is_ok() { end } else { undo } {
                let ended = connection.execute(statement, ());
                if done.is_ok() {
                    ended?;
                }
            }
            done
        })
    }

    /// Executes a statement of the driver itself.
    ///
    /// # Errors
    /// Errors of the statement.
    pub fn set(&self, sql: &str) -> Result<()> {
        self.with(|connection| connection.execute(sql, ()).map(drop))
    }

    /// The text that a query returns.
    ///
    /// # Errors
    /// Errors of the query.
    pub fn one(&self, sql: &str) -> Result<String> {
        self.with(|connection| connection.query_row(sql, (), |row| row.get(0)))
    }

    /// Ends the transaction by COMMIT or ROLLBACK.
    ///
    /// # Errors
    /// `InvalidState` with autocommit; errors of the commit.
    pub fn end(&self, sql: &str) -> Result<()> {
        if self.autocommit() {
            return Err(state(&format!("{sql} needs a transaction: switch autocommit off")));
        }
        self.with(|connection| match connection.session().transaction_status() {
            TransactionStatus::Idle => Ok(()),
            TransactionStatus::Failed if sql == "COMMIT" => {
                connection.execute("ROLLBACK", ())?;
                Err(keyaki::Error::FailedTransaction)
            }
            _ => connection.execute(sql, ()).map(drop),
        })
    }

    /// True if statements that change rows are transactions of their own.
    pub fn autocommit(&self) -> bool {
        self.autocommit.load(Ordering::Relaxed)
    }

    /// Switches autocommit on or off.
    pub fn set_autocommit(&self, autocommit: bool) {
        self.autocommit.store(autocommit, Ordering::Relaxed);
    }

    /// Reads rows for the running ingestion, on a thread of its own.
    pub fn help<T>(&self, read: impl FnOnce() -> T) -> T {
        let mark = thread_mark();
        self.helper.store(mark, Ordering::Relaxed);
        let read = read();
        // Unless another ingestion has begun.
        let _ = self.helper.compare_exchange(mark, 0, Ordering::Relaxed, Ordering::Relaxed);
        read
    }

    /// The results and prepared statements, which keep the database open.
    pub fn shelves(&self) -> &Shelves {
        &self.shelves
    }

    /// False in a forked child.
    pub fn is_of_this_process(&self) -> bool {
        self.process == Process::current()
    }

    /// Ends the connection: cancels its statement, rolls its transaction back, and drops its results.
    pub fn close(&self) {
        self.interrupt.interrupt();
        let connection = self.connection.lock().take();
        self.shelves.close();
        drop(connection);
        let database = self.database.lock().take();
        drop(database);
    }

    /// A handle that cancels the running statement.
    pub fn cancel_handle(&self) -> Box<dyn CancelHandle> {
        Box::new(Cancel(self.interrupt.clone()))
    }
}

struct Cancel(keyaki::InterruptHandle);

impl CancelHandle for Cancel {
    fn try_cancel(&self) -> Result<()> {
        self.0.interrupt();
        Ok(())
    }
}

impl Open for Session {
    fn opened(&self) -> &Opened {
        &self.opened
    }

    fn database(&self) -> Option<Database> {
        self.database.lock().clone()
    }

    fn is_of_this_process(&self) -> bool {
        Session::is_of_this_process(self)
    }

    fn close(&self, py: pyo3::Python<'_>) -> pyo3::PyResult<()> {
        py.detach(|| Session::close(self));
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // In a forked child, the threads of the database do not exist.
        if !Session::is_of_this_process(self) {
            std::mem::forget((self.connection.get_mut().take(), self.database.get_mut().take()));
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("opened", &self.opened).finish_non_exhaustive()
    }
}

//! Transactions of connections.

use std::ops::Deref;

use super::{Connection, Session};
use crate::base::options::Isolation;
use crate::engine::transaction::TransactionStatus;
use crate::{Error, Result};

/// An open transaction of a [`Connection`] ([`Connection::transaction`]). Its statements are those of the connection.
/// Dropping it rolls it back.
///
/// ```
/// # fn main() -> keyaki::Result<()> {
/// let connection = keyaki::Connection::open_temporary()?;
/// connection.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance BIGINT)", ())?;
/// connection.execute("INSERT INTO account VALUES (1, 100), (2, 0)", ())?;
/// let transaction = connection.transaction()?;
/// transaction.execute("UPDATE account SET balance = balance - 30 WHERE id = $1", (1,))?;
/// transaction.execute("UPDATE account SET balance = balance + 30 WHERE id = $1", (2,))?;
/// transaction.commit()?;
/// # let sum: i64 = connection.query_row("SELECT balance FROM account WHERE id = 2", (), |row| row.get(0))?;
/// # assert_eq!(sum, 30);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Transaction<'c> {
    connection: &'c Connection,
    has_ended: bool,
}

impl Connection {
    /// Begins a transaction at the session's default level, which is snapshot isolation unless SET changes it.
    ///
    /// # Errors
    /// `ActiveTransaction` if one is open.
    pub fn transaction(&self) -> Result<Transaction<'_>> {
        self.execute("BEGIN", ())?;
        Ok(Transaction { connection: self, has_ended: false })
    }

    /// Begins a transaction at an isolation level.
    ///
    /// # Errors
    /// As [`Connection::transaction`].
    pub fn transaction_at(&self, isolation: Isolation) -> Result<Transaction<'_>> {
        self.execute(&format!("BEGIN ISOLATION LEVEL {isolation}"), ())?;
        Ok(Transaction { connection: self, has_ended: false })
    }

    /// Runs `work` in a transaction and commits it. If the transaction conflicts with another one, runs it again, at most
    /// `attempts` times in total. Rolls back if `work` fails.
    ///
    /// # Errors
    /// The error of `work`, or of the commit.
    ///
    /// # Panics
    /// If `attempts` is 0.
    pub fn with_transaction<T>(
        &self,
        attempts: usize,
        mut work: impl FnMut(&Transaction<'_>) -> Result<T>,
    ) -> Result<T> {
        assert!(attempts > 0, "a transaction runs at least once");
        for attempt in 1.. {
            let transaction = self.transaction()?;
            let result = work(&transaction).and_then(|value| transaction.commit().map(|()| value));
            match result {
                Err(error) if error.is_retryable() && attempt < attempts => {}
                result => return result,
            }
        }
        unreachable!("the last attempt returns")
    }
}

impl Transaction<'_> {
    /// Commits the transaction.
    ///
    /// # Errors
    /// `Conflict` if another transaction has changed the same rows, or what a serializable transaction has read;
    /// `FailedTransaction` if a statement has failed; `TransactionTimeout`; errors of the commit. The transaction is then
    /// rolled back.
    pub fn commit(mut self) -> Result<()> {
        if self.connection.session().transaction_status() == TransactionStatus::Failed {
            let cause = self.connection.session().sql.transaction.check();
            self.end("ROLLBACK")?;
            return Err(cause.err().unwrap_or(crate::Error::FailedTransaction));
        }
        self.end("COMMIT")
    }

    /// Executes a statement that ends the transaction.
    fn end(&mut self, statement: &str) -> Result<()> {
        self.has_ended = true;
        let ended = self.connection.execute(statement, ()).map(drop);
        if ended.is_err() && self.connection.session().transaction_status() != TransactionStatus::Idle {
            // The statement was cancelled, by an interrupt or a timeout.
            self.connection.execute("ROLLBACK", ())?;
        }
        ended
    }

    /// Ends the transaction without its changes.
    ///
    /// # Errors
    /// `NoActiveTransaction` if a statement has ended it.
    pub fn rollback(mut self) -> Result<()> {
        self.end("ROLLBACK")
    }
}

impl Deref for Transaction<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.has_ended
            && let Err(error) = self.end("ROLLBACK")
        {
            // A statement of the program has ended the transaction.
            tracing::debug!(%error, "the transaction had ended");
        }
    }
}

impl Session {
    /// The state of the session's transaction.
    pub fn transaction_status(&self) -> TransactionStatus {
        self.sql.transaction.status()
    }

    /// Makes the open transaction fail, as an error of one of its statements does: for servers, whose clients expect that all
    /// errors of a transaction end it.
    pub fn fail_transaction(&self, cause: &Error) {
        self.sql.transaction.failed(cause);
        self.sql.activity.fail(self.transaction_status());
    }
}

//! The connection of a shell: a session of an embedded database, or a server.

use std::sync::Arc;

use datafusion::error::DataFusionError;
use keyaki::{IndexSuggestions, InterruptHandle, Notification, Outcome, Session, TransactionStatus};

use crate::failure::{Failure, Result};
use crate::remote::{self, Canceller, Remote, plain, show_notification};

/// The destination of statements.
pub enum Connection {
    /// A database in this process.
    Embedded(Arc<Session>),
    /// A server that speaks PostgreSQL's protocol.
    Remote(Remote),
}

/// Interrupts the running statement of a connection.
pub enum Interrupter {
    Embedded(InterruptHandle),
    Remote(Canceller),
}

impl Interrupter {
    pub fn interrupt(&self) {
        match self {
            Interrupter::Embedded(handle) => handle.interrupt(),
            Interrupter::Remote(canceller) => canceller.interrupt(),
        }
    }
}

impl Connection {
    /// Executes a statement.
    ///
    /// # Errors
    /// [`Failure::Cancelled`] for a statement that was interrupted; errors of the statement.
    pub async fn query(&self, sql: &str) -> Result<Outcome> {
        match self {
            Connection::Embedded(session) => session.query(sql).await.map_err(cancelled_or),
            Connection::Remote(remote) => Ok(remote.query(sql).await?),
        }
    }

    /// Suggests indexes for a statement.
    ///
    /// # Errors
    /// As [`Connection::query`]; if the connection is one to a server.
    pub async fn suggest_indexes(&self, sql: &str) -> Result<IndexSuggestions> {
        self.session()?.suggest_indexes(sql).await.map_err(cancelled_or)
    }

    pub fn interrupter(&self) -> Interrupter {
        match self {
            Connection::Embedded(session) => Interrupter::Embedded(session.interrupt_handle()),
            Connection::Remote(remote) => Interrupter::Remote(remote.canceller()),
        }
    }

    pub fn transaction_status(&self) -> TransactionStatus {
        match self {
            Connection::Embedded(session) => session.transaction_status(),
            Connection::Remote(remote) => remote.transaction_status(),
        }
    }

    /// Waits until an interrupted statement has ended.
    pub async fn settle(&self) {
        if let Connection::Remote(remote) = self {
            remote.settle().await;
        }
    }

    /// Writes the notices and notifications of an embedded database to standard error. Notices of a server are shown as they
    /// arrive.
    pub fn show_messages(&self) {
        let Connection::Embedded(session) = self else { return };
        for notice in session.take_notices() {
            let detail = notice.detail.map(|detail| format!("\n  DETAIL: {detail}")).unwrap_or_default();
            eprintln!("{}: {}", notice.severity.name(), plain(&format!("{}{detail}", notice.message)));
        }
        match session.take_notifications() {
            Ok(notifications) => {
                for Notification { process, channel, payload } in notifications {
                    show_notification(&channel, &payload, process);
                }
            }
            Err(error) => eprintln!("warning: {error}"),
        }
    }

    /// The session of an embedded database.
    ///
    /// # Errors
    /// If the connection is one to a server.
    pub fn session(&self) -> Result<&Arc<Session>> {
        match self {
            Connection::Embedded(session) => Ok(session),
            Connection::Remote(_) => {
                Err(Failure::message("this needs an embedded database; the shell is connected to a server"))
            }
        }
    }
}

/// The failure of a statement in this process.
fn cancelled_or(error: keyaki::Error) -> Failure {
    match error.root() {
        keyaki::Error::Cancelled => Failure::Cancelled,
        _ => error.into(),
    }
}

/// The failure of a result: errors of servers are inside of DataFusion's.
pub fn failure_of(error: DataFusionError) -> Failure {
    match error {
        DataFusionError::External(inner) => match inner.downcast::<remote::Error>() {
            Ok(error) => (*error).into(),
            Err(inner) => cancelled_or(DataFusionError::External(inner).into()),
        },
        error => cancelled_or(error.into()),
    }
}

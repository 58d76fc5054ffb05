//! A connection to a server that speaks PostgreSQL's protocol: Keyaki's, PostgreSQL's.
//!
//! A task owns the connection ([`driver`]). It executes one statement after another by the simple protocol, whose results
//! are texts with the types of their columns, and converts the rows to Arrow batches ([`rows`]). The results have the form of
//! those of an embedded session, so that the shell formats both in the same way.
//!
//! | module | contents |
//! |---|---|
//! | [`error`] | errors of servers and connections |
//! | [`address`] | `postgres://user@host:port/db?…`, environment variables, the password file |
//! | [`prompt`] | a password that is typed without echo |
//! | [`tls`] | encryption, with or without verification of the server |
//! | [`texts`] | texts without characters that control a terminal |
//! | [`wire`] | messages over a stream |
//! | [`login`] | the startup of a connection, and requests to cancel a statement |
//! | [`rows`] | rows of texts as Arrow batches |
//! | [`driver`] | the task of a connection |

mod address;
mod driver;
mod error;
mod login;
mod prompt;
mod rows;
mod texts;
mod tls;
mod wire;

use std::sync::Arc;

use keyaki::{Outcome, TransactionStatus};
use tokio::sync::{mpsc, oneshot};

pub use address::{Address, has_password, is_address};
pub use driver::CopySource;
use driver::{Driver, Request, State};
#[cfg(test)]
pub use error::ServerError;
pub use error::{Error, Result};
pub use texts::{PlainWriter, plain};

/// Writes a notification to standard error.
pub fn show_notification(channel: &str, payload: &str, process: i32) {
    let payload = if payload.is_empty() { String::new() } else { format!(": {payload}") };
    let text = format!("notification on channel \"{channel}\" from process {process}{payload}");
    eprintln!("{}", plain(&text));
}

/// An open connection.
#[derive(Debug)]
pub struct Remote {
    requests: mpsc::Sender<Request>,
    state: Arc<State>,
    description: String,
}

/// Cancels the running statement of a connection.
#[derive(Debug, Clone)]
pub struct Canceller(Arc<State>);

impl Canceller {
    /// Asks the server to cancel the running statement. Returns at once.
    pub fn interrupt(&self) {
        self.0.cancel.notify_one();
    }
}

impl Remote {
    /// Opens a connection.
    ///
    /// # Errors
    /// If the server cannot be reached, does not prove its identity, or refuses the user.
    pub async fn connect(address: Address) -> Result<Remote> {
        let (opened, address) = login::open(&address).await?;
        let description = opened.description(&address);
        let state = Arc::new(State::default());
        let (requests, receiver) = mpsc::channel(1);
        // Ends with the last sender, or with the connection.
        tokio::spawn(Driver::new(opened, address, state.clone()).run(receiver));
        Ok(Remote { requests, state, description })
    }

    /// Executes a statement.
    ///
    /// # Errors
    /// Errors of the server and the connection.
    pub async fn query(&self, sql: &str) -> Result<Outcome> {
        let (answer, answered) = oneshot::channel();
        self.send(Request::Query { sql: sql.into(), answer }).await?;
        answered.await.map_err(|_| Error::Closed)?
    }

    /// Sends the input of a COPY statement. Returns the number of rows.
    ///
    /// # Errors
    /// As [`Remote::query`], and those of a file.
    pub async fn copy_in(&self, sql: &str, source: CopySource) -> Result<Outcome> {
        let (answer, answered) = oneshot::channel();
        self.send(Request::CopyIn { sql: sql.into(), source, answer }).await?;
        answered.await.map_err(|_| Error::Closed)?
    }

    /// Waits until the connection is idle, for example after rows were dropped.
    pub async fn settle(&self) {
        let (answer, answered) = oneshot::channel();
        if self.send(Request::Settle { answer }).await.is_ok() {
            // The state is that of the end of the connection otherwise.
            let _ = answered.await;
        }
    }

    pub fn canceller(&self) -> Canceller {
        Canceller(self.state.clone())
    }

    pub fn transaction_status(&self) -> TransactionStatus {
        *self.state.transaction.lock()
    }

    /// The address, the version of the server and the encryption.
    pub fn description(&self) -> &str {
        &self.description
    }

    async fn send(&self, request: Request) -> Result<()> {
        self.requests.send(request).await.map_err(|_| Error::Closed)
    }
}

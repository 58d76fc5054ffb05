//! State of a connection, the execution of statements, and their transactions.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::StreamExt;
use keyaki::{InterruptHandle, Notification, Outcome, Prepared, Session, Severity, TransactionStatus, Value};
use pgwire::messages::response::{
    CommandComplete, NoticeResponse, NotificationResponse, ReadyForQuery, TransactionStatus as Shown,
};
use pgwire::messages::startup::ParameterStatus;
use pgwire::messages::{PgWireBackendMessage, PgWireFrontendMessage};
use tokio::time::{Instant, sleep_until, timeout};

use super::statements::{Portal, Recent, Rows, Statement, is_outside_transactions, is_plain_begin, no_effect};
use crate::failure::{Failure, Result};
use crate::frames::Wire;
use crate::registry::Registration;
use crate::shared::Shared;
use crate::socket::Socket;

/// Rows are sent in pieces of this size.
const PIECE_BYTES: usize = 64 << 10;
/// Maximum time for the last message of a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection after its startup.
pub struct Client {
    pub wire: Wire<Socket>,
    pub session: Session,
    /// The prepared statements that the protocol has used, by name. The session has all with names.
    pub statements: HashMap<String, Arc<Statement>>,
    /// Removals of prepared statements by SQL that `statements` follows.
    removals: u64,
    pub portals: HashMap<String, Portal>,
    /// The last unnamed statements.
    pub recent: Recent,
    /// A request of the extended protocol has failed: everything up to the next Sync is skipped.
    pub is_skipping: bool,
    /// The open transaction has begun with the first of several statements, and ends with the last one.
    is_implicit: bool,
    /// The text of the statement that is being prepared, for the positions of errors.
    pub parsing: String,
    /// The time zone that the client knows.
    pub time_zone: String,
    /// The role that has logged in; `None` for a superuser without a role.
    pub role: Option<String>,
    /// The name of the application that the client knows.
    pub application: String,
    /// The end of the running statement's time.
    deadline: Option<Instant>,
    /// Requests to cancel a statement that have been made before the running one.
    cancels: u64,
    interrupt: InterruptHandle,
    registration: Registration,
    pub shared: Arc<Shared>,
}

/// A statement to be executed.
#[derive(Clone, Copy)]
pub enum Work<'a> {
    /// The text of one statement.
    Text(&'a str),
    /// A prepared statement and the values of its parameters.
    Prepared(&'a Prepared, &'a [Value]),
}

impl Client {
    pub fn new(
        shared: Arc<Shared>,
        wire: Wire<Socket>,
        session: Session,
        interrupt: InterruptHandle,
        registration: Registration,
    ) -> Client {
        Client {
            wire,
            session,
            statements: HashMap::new(),
            removals: 0,
            portals: HashMap::new(),
            recent: Recent::default(),
            is_skipping: false,
            is_implicit: false,
            parsing: String::new(),
            time_zone: String::new(),
            role: None,
            application: String::new(),
            deadline: None,
            cancels: 0,
            interrupt,
            registration,
            shared,
        }
    }

    /// Removes the statements that DEALLOCATE and DISCARD have removed.
    pub fn follow_removals(&mut self) {
        let removals = self.session.prepared_removals();
        if self.removals != removals {
            self.removals = removals;
            let Client { statements, session, .. } = self;
            statements.retain(|name, _| name.is_empty() || session.has_prepared(name));
        }
    }

    /// The number of the connection.
    pub fn process(&self) -> i32 {
        self.registration.process
    }

    /// The key of requests to cancel statements.
    pub fn secret(&self) -> Vec<u8> {
        self.registration.secret.clone()
    }

    /// The next request.
    ///
    /// # Errors
    /// Fatal errors: 57P01 if the server shuts down, 25P03 if a transaction was idle for too long; errors of the connection.
    pub async fn next(&mut self) -> Result<PgWireFrontendMessage> {
        let limit = self.shared.options.idle_transaction_timeout;
        let limit = limit.filter(|_| self.session.transaction_status() != TransactionStatus::Idle);
        let deadline = limit.map(|limit| Instant::now() + limit);
        loop {
            if self.registration.signal.borrow_and_update().terminate {
                return Err(terminated());
            }
            if self.put_notifications()? {
                self.flush().await?;
            }
            tokio::select! {
                biased;
                request = self.wire.next() => return request,
                changed = self.registration.signal.changed() => changed.map_err(|_| ended())?,
                () = until(deadline) => {
                    return Err(Failure::fatal("25P03", "terminating connection due to idle-in-transaction timeout"));
                }
            }
        }
    }

    /// Notes the start of a statement.
    pub fn start(&mut self) {
        self.cancels = self.registration.signal.borrow().cancels;
        let limits = [self.shared.options.statement_timeout, self.session.statement_timeout()];
        self.deadline = limits.into_iter().flatten().min().map(|limit| Instant::now() + limit);
    }

    /// Requests to cancel a statement that have been made before the running one.
    pub fn cancels(&self) -> u64 {
        self.cancels
    }

    /// Executes a statement. It is cancelled by a request, by its timeout, and if the client closes the connection.
    ///
    /// # Errors
    /// Errors of the statement; 57014.
    pub async fn run(&mut self, work: Work<'_>) -> Result<Outcome> {
        let outcome = {
            let Client { wire, session, interrupt, deadline, .. } = &mut *self;
            let mut running = pin!(async {
                match work {
                    Work::Text(text) => session.query(text).await,
                    Work::Prepared(prepared, values) => prepared.query(session, values).await,
                }
            });
            watched(wire, interrupt, *deadline, running.as_mut()).await
        };
        outcome.map_err(|failure| self.ended_by(failure))
    }

    /// The failure of a statement that `pg_terminate_backend` has cancelled: it ends the connection.
    pub fn ended_by(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Sql(keyaki::Error::Cancelled | keyaki::Error::Terminated)
                if self.registration.signal.borrow().is_terminated =>
            {
                terminated()
            }
            other => other,
        }
    }

    /// Prepares a statement with the types that the client has declared for its parameters.
    ///
    /// # Errors
    /// Errors of the statement; 57014.
    pub async fn prepare(&mut self, text: &str, declared: &[u32]) -> Result<Prepared> {
        let Client { wire, session, interrupt, deadline, .. } = self;
        let prepared = watched(wire, interrupt, *deadline, pin!(session.prepare_declared(text, declared))).await;
        prepared.map_err(|failure| self.ended_by(failure))
    }

    /// True if a prepared statement has the parameters and columns that it would have if it was prepared now.
    ///
    /// # Errors
    /// As [`Client::prepare`].
    pub async fn is_current(&mut self, prepared: &Prepared) -> Result<bool> {
        let Client { wire, session, interrupt, deadline, .. } = self;
        let is_current = watched(wire, interrupt, *deadline, pin!(prepared.is_current(session))).await;
        is_current.map_err(|failure| self.ended_by(failure))
    }

    /// Sends rows: at most `limit`, all of them if it is 0. True if there may be more.
    ///
    /// # Errors
    /// Errors of the statement; 57014.
    pub async fn send(&mut self, rows: &mut Rows, limit: u64) -> Result<bool> {
        let mut left = if limit == 0 { u64::MAX } else { limit };
        loop {
            while rows.has_row() {
                if left == 0 {
                    return Ok(true);
                }
                left -= rows.put(self.wire.rows(), left, PIECE_BYTES)?;
                self.flush_if_large().await?;
            }
            match self.next_batch(rows).await {
                Ok(Some(batch)) => rows.set_batch(&self.session, &batch)?,
                Ok(None) => return Ok(false),
                Err(failure) => {
                    self.fail(&failure);
                    return Err(self.ended_by(failure));
                }
            }
        }
    }

    /// Sends the output if it is large. A client that does not read it cannot keep the connection for longer than the timeout of
    /// the statement, nor in a shutdown.
    ///
    /// # Errors
    /// Errors of the connection.
    pub async fn flush_if_large(&mut self) -> Result<()> {
        if !self.wire.is_large() {
            return Ok(());
        }
        let Client { wire, registration, deadline, .. } = self;
        tokio::select! {
            biased;
            sent = wire.flush() => Ok(sent?),
            () = until(*deadline) => Err(Failure::Closed(ErrorKind::TimedOut.into())),
            _ = registration.signal.wait_for(|signal| signal.abort) => Err(Failure::Closed(ErrorKind::TimedOut.into())),
        }
    }

    /// Sends the output. A client that does not read it cannot keep the connection in a shutdown.
    ///
    /// # Errors
    /// Errors of the connection.
    pub async fn flush(&mut self) -> Result<()> {
        let Client { wire, registration, .. } = self;
        tokio::select! {
            biased;
            sent = wire.flush() => Ok(sent?),
            _ = registration.signal.wait_for(|signal| signal.abort) => Err(Failure::Closed(ErrorKind::TimedOut.into())),
        }
    }

    /// The next rows of a result.
    ///
    /// # Errors
    /// Errors of the statement; 57014.
    pub async fn next_batch(&mut self, rows: &mut Rows) -> Result<Option<keyaki::RecordBatch>> {
        let cancelled = || Err(Failure::Sql(keyaki::Error::Cancelled));
        let cancels = rows.cancels;
        if self.registration.signal.borrow_and_update().cancels != cancels {
            return cancelled();
        }
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Err(timed_out());
        }
        let mut next = rows.stream().next();
        if let Poll::Ready(batch) = futures::poll!(&mut next) {
            return Ok(batch.transpose().map_err(keyaki::Error::from)?);
        }
        loop {
            tokio::select! {
                biased;
                batch = &mut next => return Ok(batch.transpose().map_err(keyaki::Error::from)?),
                error = self.wire.closed() => return Err(error.into()),
                () = until(self.deadline) => return Err(timed_out()),
                changed = self.registration.signal.changed() => {
                    changed.map_err(|_| ended())?;
                    if self.registration.signal.borrow_and_update().cancels != cancels {
                        return cancelled();
                    }
                }
            }
        }
    }

    /// Waits for a part of a statement that reads from the connection.
    ///
    /// # Errors
    /// Errors of `work`; 57014.
    pub async fn while_running<T>(&mut self, work: impl AsyncFnOnce(&mut Wire<Socket>) -> Result<T>) -> Result<T> {
        let Client { wire, registration, deadline, cancels, .. } = self;
        tokio::select! {
            biased;
            result = work(wire) => result,
            () = until(*deadline) => Err(timed_out()),
            changed = registration.signal.wait_for(|signal| signal.cancels != *cancels || signal.terminate) => {
                match changed.map_err(|_| ended())?.terminate {
                    true => Err(terminated()),
                    false => Err(Failure::Sql(keyaki::Error::Cancelled)),
                }
            }
        }
    }

    /// Makes the open transaction fail after an error outside of the session's statements.
    pub fn fail(&self, failure: &Failure) {
        let error = match failure {
            Failure::Sql(error) => error.clone(),
            other => keyaki::Error::InvalidStatement(other.to_string()),
        };
        self.session.fail_transaction(&error);
    }

    /// Begins a transaction for one of several statements, unless one is open or the statement cannot run inside.
    ///
    /// # Errors
    /// Errors of BEGIN.
    pub async fn begin_implicit(&mut self, text: &str) -> Result<()> {
        self.notice_end();
        if self.session.transaction_status() == TransactionStatus::Idle && !is_outside_transactions(text) {
            self.run(Work::Text("BEGIN")).await?;
            self.is_implicit = true;
        }
        Ok(())
    }

    /// Notices that a statement of the client has ended the transaction of several statements.
    fn notice_end(&mut self) {
        if self.session.transaction_status() == TransactionStatus::Idle {
            self.is_implicit = false;
        }
    }

    /// The tag of a statement that controls transactions and is not executed: the transaction of several statements becomes one
    /// that the client ends, or the statement has no effect, of which the client is warned, as by PostgreSQL.
    ///
    /// # Errors
    /// None but for bugs.
    pub fn without_execution(&mut self, text: &str) -> Result<Option<String>> {
        if self.takes_over(text) {
            return Ok(Some("BEGIN".into()));
        }
        let Some((tag, code, warning)) = no_effect(text, self.session.transaction_status()) else { return Ok(None) };
        self.session.add_notice(Severity::Warning, code, warning);
        Ok(Some(tag.into()))
    }

    /// Appends the notices of the statements since the last call.
    ///
    /// # Errors
    /// None but for bugs.
    pub fn put_notices(&mut self) -> Result<()> {
        for notice in self.session.take_notices() {
            let severity = notice.severity.name().to_string();
            let mut fields = vec![
                (b'S', severity.clone()),
                (b'V', severity),
                (b'C', notice.sqlstate.to_string()),
                (b'M', notice.message),
            ];
            fields.extend(notice.detail.map(|detail| (b'D', detail)));
            fields.iter_mut().for_each(|(_, value)| value.retain(|c| c != '\0'));
            self.wire.put(&PgWireBackendMessage::NoticeResponse(NoticeResponse::new(fields)))?;
        }
        Ok(())
    }

    /// Appends the notifications that have arrived, unless a transaction is open. True if there are any.
    ///
    /// # Errors
    /// A fatal error (54000) if notifications were lost, because the client has not read them for too long.
    fn put_notifications(&mut self) -> Result<bool> {
        if self.session.transaction_status() != TransactionStatus::Idle {
            return Ok(false);
        }
        let lost = |error: keyaki::Error| Failure::fatal(error.sqlstate().code(), error.to_string());
        let notifications = self.session.take_notifications().map_err(lost)?;
        let has_any = !notifications.is_empty();
        for Notification { process, channel, payload } in notifications {
            let response = NotificationResponse::new(process, channel.to_string(), payload.to_string());
            self.wire.put(&PgWireBackendMessage::NotificationResponse(response))?;
        }
        Ok(has_any)
    }

    /// Makes the transaction of several statements one that the client ends, if the statement begins one.
    fn takes_over(&mut self, text: &str) -> bool {
        self.notice_end();
        let takes_over = self.is_implicit && is_plain_begin(text);
        if takes_over {
            self.is_implicit = false;
        }
        takes_over
    }

    /// Ends the transaction of several statements: commits it, or rolls it back after an error.
    ///
    /// # Errors
    /// Errors of COMMIT.
    pub async fn end_implicit(&mut self, has_failed: bool) -> Result<()> {
        self.notice_end();
        if !std::mem::take(&mut self.is_implicit) {
            return Ok(());
        }
        self.portals.clear();
        self.start();
        let committed = match has_failed {
            true => Ok(()),
            false => self.run(Work::Text("COMMIT")).await.map(drop),
        };
        if self.session.transaction_status() != TransactionStatus::Idle {
            // Neither a timeout nor the end of the connection keeps it open.
            self.session.query("ROLLBACK").await?;
        }
        if has_failed || committed.is_err() {
            // The client knows the settings that the transaction has set.
            self.put_settings()?;
        }
        committed
    }

    /// Appends the completion of a statement, and the settings that it has changed.
    ///
    /// # Errors
    /// None but for bugs.
    pub fn put_complete(&mut self, tag: String) -> Result<()> {
        self.put_notices()?;
        // The end of a transaction restores what SET LOCAL has changed.
        if matches!(tag.as_str(), "SET" | "RESET" | "COMMIT" | "ROLLBACK" | "DISCARD ALL") {
            self.put_settings()?;
        }
        if tag.starts_with("DEALLOCATE") || tag == "DISCARD ALL" {
            // Before a statement with the same name is prepared.
            self.follow_removals();
        }
        self.wire.put(&PgWireBackendMessage::CommandComplete(CommandComplete::new(tag)))
    }

    fn put_settings(&mut self) -> Result<()> {
        let zone = self.session.time_zone();
        if zone != self.time_zone {
            self.time_zone.clone_from(&zone);
            self.wire.put(&PgWireBackendMessage::ParameterStatus(ParameterStatus::new("TimeZone".into(), zone)))?;
        }
        let application = self.session.application_name();
        if *application != *self.application {
            self.application = application.to_string();
            let status = ParameterStatus::new("application_name".into(), self.application.clone());
            self.wire.put(&PgWireBackendMessage::ParameterStatus(status))?;
        }
        Ok(())
    }

    /// Tells the client that it may send the next request, and sends all output.
    ///
    /// # Errors
    /// Errors of the connection.
    pub async fn ready(&mut self) -> Result<()> {
        let status = match self.session.transaction_status() {
            TransactionStatus::Idle => Shown::Idle,
            TransactionStatus::Open => Shown::Transaction,
            TransactionStatus::Failed => Shown::Error,
        };
        if status == Shown::Idle {
            // Portals end with their transaction.
            self.portals.clear();
            self.put_notifications()?;
        }
        self.put_notices()?;
        self.wire.put(&PgWireBackendMessage::ReadyForQuery(ReadyForQuery::new(status)))?;
        self.flush().await
    }

    /// Sends the last messages and closes the connection.
    pub async fn end(self) {
        let Client { wire, portals, session, registration, .. } = self;
        // Rolls an open transaction back.
        drop((portals, session));
        if timeout(CLOSE_TIMEOUT, wire.close()).await.is_err() {
            tracing::debug!(process = registration.process, "the client does not read its last message");
        }
    }
}

fn timed_out() -> Failure {
    Failure::sql("57014", "canceling statement due to statement timeout")
}

fn terminated() -> Failure {
    Failure::fatal("57P01", "terminating connection due to administrator command")
}

/// The registry holds the other end of the channel as long as the connection.
fn ended() -> Failure {
    Failure::fatal("57P01", "the server has ended")
}

/// Waits until a time, for ever without one.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Waits for the result of a statement, and interrupts it after its time, or when the connection is closed.
async fn watched<T, F>(
    wire: &mut Wire<Socket>,
    interrupt: &InterruptHandle,
    deadline: Option<Instant>,
    mut running: std::pin::Pin<&mut F>,
) -> Result<T>
where
    F: Future<Output = keyaki::Result<T>>,
{
    // Small statements never wait.
    if let Poll::Ready(result) = futures::poll!(running.as_mut()) {
        return Ok(result?);
    }
    let (mut closed, mut is_late) = (None, false);
    loop {
        tokio::select! {
            biased;
            result = running.as_mut() => {
                return match (result, closed) {
                    (_, Some(error)) => Err(Failure::Closed(error)),
                    (Err(keyaki::Error::Cancelled), None) if is_late => Err(timed_out()),
                    (result, None) => Ok(result?),
                };
            }
            error = wire.closed(), if closed.is_none() => {
                closed = Some(error);
                interrupt.interrupt();
            }
            () = until(deadline), if !is_late => {
                is_late = true;
                interrupt.interrupt();
            }
        }
    }
}

//! The task that owns a connection.
//!
//! It takes one request after another. The rows of a query go through a channel: if the shell drops its end, the task asks the
//! server to cancel the query, and reads up to the end of its messages. The task drops its own end when the server is ready
//! again, so that the state of the transaction is current when the shell has seen the last row.

use std::io::Read;
use std::sync::Arc;

use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::stream;
use keyaki::{Outcome, RecordBatch, TransactionStatus};
use parking_lot::Mutex;
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use tokio::sync::{Notify, mpsc, oneshot};

use super::address::Address;
use super::error::{Error, Result, ServerError};
use super::login::{self, Key, Opened};
use super::rows::Rows;
use super::wire::Wire;

/// Size of a piece of a file that is copied to the server.
const PIECE_BYTES: usize = 64 << 10;
/// Batches that wait for the shell.
const BATCHES: usize = 4;

/// What the shell and the task share.
#[derive(Debug)]
pub struct State {
    pub transaction: Mutex<TransactionStatus>,
    /// Notified by requests to cancel the running statement.
    pub cancel: Notify,
}

impl Default for State {
    fn default() -> State {
        State { transaction: Mutex::new(TransactionStatus::Idle), cancel: Notify::new() }
    }
}

type Answer = oneshot::Sender<Result<Outcome>>;
type Batches = mpsc::Sender<Result<RecordBatch>>;

/// A request of the shell, and the channel of its answer.
pub enum Request {
    Query { sql: String, answer: Answer },
    CopyIn { sql: String, file: std::fs::File, answer: Answer },
    Settle { answer: oneshot::Sender<()> },
}

pub struct Driver {
    wire: Wire,
    key: Key,
    address: Address,
    state: Arc<State>,
}

/// A statement that is being executed.
struct Running {
    answer: Option<Answer>,
    batches: Option<Batches>,
    rows: Option<Rows>,
    copied: Option<CopiedRows>,
    file: Option<std::fs::File>,
    tag: Option<String>,
    failure: Option<Error>,
    is_cancelled: bool,
}

/// The lines of a COPY TO STDOUT.
type CopiedRows = Vec<u8>;

impl Driver {
    pub fn new(opened: Opened, address: Address, state: Arc<State>) -> Driver {
        Driver { wire: opened.wire, key: opened.key, address, state }
    }

    /// Serves requests until the shell drops the connection, or the connection fails.
    pub async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        while let Some(request) = requests.recv().await {
            let (sql, file, answer) = match request {
                Request::Query { sql, answer } => (sql, None, answer),
                Request::CopyIn { sql, file, answer } => (sql, Some(file), answer),
                Request::Settle { answer } => {
                    // The shell may have stopped waiting.
                    let _ = answer.send(());
                    continue;
                }
            };
            if !self.statement(&sql, file, answer).await {
                *self.state.transaction.lock() = TransactionStatus::Idle;
                return;
            }
        }
        frontend::terminate(&mut self.wire.output);
        // The connection ends in any case.
        let _ = self.wire.flush().await;
    }

    /// Executes a statement. False if the connection has failed.
    async fn statement(&mut self, sql: &str, file: Option<std::fs::File>, answer: Answer) -> bool {
        let mut running = Running::new(answer, file);
        // Of a request to cancel that came too late for the statement before.
        let _ = futures::FutureExt::now_or_never(self.state.cancel.notified());
        let done = match frontend::query(sql, &mut self.wire.output) {
            Ok(()) => self.execute(&mut running).await,
            Err(_) => {
                // Nothing was sent.
                self.wire.output.clear();
                running.finish(Some(Error::Value("the statement contains a zero byte".into()))).await;
                return true;
            }
        };
        let is_alive = done.is_ok();
        running.finish(done.err()).await;
        is_alive
    }

    /// Sends the statement, and reads its answers up to the end.
    ///
    /// # Errors
    /// Errors of the connection.
    async fn execute(&mut self, running: &mut Running) -> Result<()> {
        self.wire.flush().await?;
        loop {
            let message = match self.wire.buffered()? {
                Some(message) => message,
                None => {
                    // The shell shows rows while it waits for others.
                    running.send_rows().await;
                    self.wait(running).await?
                }
            };
            match message {
                Message::RowDescription(description) => running.begin(&description),
                Message::DataRow(row) => running.row(&row).await,
                Message::CommandComplete(complete) => running.tag = Some(complete.tag()?.into()),
                Message::EmptyQueryResponse => running.tag = Some(String::new()),
                Message::ErrorResponse(error) => {
                    let error = ServerError::new(error.fields());
                    running.fail(match running.is_cancelled && error.is_cancelled() {
                        true => Error::Cancelled,
                        false => Error::Server(Box::new(error)),
                    });
                }
                Message::NoticeResponse(notice) => {
                    let notice = ServerError::new(notice.fields());
                    eprintln!("{}: {notice}", notice.severity);
                }
                Message::CopyInResponse(_) => self.copy_in(running).await?,
                Message::CopyOutResponse(_) => running.copied = Some(Vec::new()),
                Message::CopyData(data) => running.copied.get_or_insert_default().extend_from_slice(data.data()),
                Message::CopyDone | Message::ParameterStatus(_) | Message::NotificationResponse(_) => {}
                Message::ReadyForQuery(ready) => {
                    *self.state.transaction.lock() = match ready.status() {
                        b'T' => TransactionStatus::Open,
                        b'E' => TransactionStatus::Failed,
                        _ => TransactionStatus::Idle,
                    };
                    return Ok(());
                }
                _ => return Err(Error::Lost(std::io::Error::other("unexpected message of the server"))),
            }
            if running.is_abandoned() {
                self.cancel(running).await;
            }
        }
    }

    /// The next message. Passes a request to cancel the statement on to the server.
    async fn wait(&mut self, running: &mut Running) -> Result<Message> {
        let state = self.state.clone();
        loop {
            tokio::select! {
                message = self.wire.next() => return Ok(message?),
                () = state.cancel.notified(), if !running.is_cancelled => self.cancel(running).await,
                () = running.abandoned(), if !running.is_cancelled => self.cancel(running).await,
            }
        }
    }

    async fn cancel(&mut self, running: &mut Running) {
        if std::mem::replace(&mut running.is_cancelled, true) {
            return;
        }
        if let Err(error) = login::cancel(&self.address, self.key).await {
            eprintln!("warning: could not cancel the statement: {error}");
        }
    }

    /// Sends the file as the input of a COPY, or refuses a COPY without one.
    async fn copy_in(&mut self, running: &mut Running) -> Result<()> {
        let Some(mut file) = running.file.take() else {
            let problem = "COPY FROM STDIN has no input here (use .import FILE TABLE)";
            frontend::copy_fail(problem, &mut self.wire.output)?;
            return Ok(self.wire.flush().await?);
        };
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            match file.read(&mut piece) {
                Ok(0) => frontend::copy_done(&mut self.wire.output),
                Ok(len) => {
                    frontend::CopyData::new(&piece[..len])?.write(&mut self.wire.output);
                    self.wire.flush().await?;
                    let is_pressed = futures::FutureExt::now_or_never(self.state.cancel.notified()).is_some();
                    if !is_pressed {
                        continue;
                    }
                    running.is_cancelled = true;
                    running.fail(Error::Cancelled);
                    frontend::copy_fail("cancelled", &mut self.wire.output)?;
                }
                Err(error) => {
                    running.fail(Error::Lost(error));
                    frontend::copy_fail("the file cannot be read", &mut self.wire.output)?;
                }
            }
            return Ok(self.wire.flush().await?);
        }
    }
}

impl Running {
    fn new(answer: Answer, file: Option<std::fs::File>) -> Running {
        Running {
            answer: Some(answer),
            batches: None,
            rows: None,
            copied: None,
            file,
            tag: None,
            failure: None,
            is_cancelled: false,
        }
    }

    /// Notes the first error.
    fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    /// Begins a result with rows.
    fn begin(&mut self, description: &postgres_protocol::message::backend::RowDescriptionBody) {
        // The shell sends one statement at a time; a rule of PostgreSQL can add results, which are not shown.
        let Some(answer) = self.answer.take() else { return };
        match Rows::new(description) {
            Ok(rows) => {
                let (batches, receiver) = mpsc::channel(BATCHES);
                let stream = stream_of(&rows, receiver);
                (self.rows, self.batches) = (Some(rows), Some(batches));
                // If the shell has stopped waiting, the receiver is dropped here: the statement is abandoned.
                let _ = answer.send(Ok(Outcome::Rows(stream)));
            }
            Err(error) => {
                self.answer = Some(answer);
                self.fail(error);
            }
        }
    }

    async fn row(&mut self, row: &postgres_protocol::message::backend::DataRowBody) {
        let Some(rows) = self.rows.as_mut().filter(|_| self.failure.is_none()) else { return };
        match rows.push(row) {
            Ok(()) if rows.is_full() => self.send_rows().await,
            Ok(()) => {}
            Err(error) => self.fail(error),
        }
    }

    async fn send_rows(&mut self) {
        let (Some(rows), Some(batches)) = (&mut self.rows, &self.batches) else { return };
        match rows.take() {
            // The shell has dropped its end if sending fails: the statement is abandoned.
            Ok(Some(batch)) => drop(batches.send(Ok(batch)).await),
            Ok(None) => {}
            Err(error) => self.fail(error),
        }
    }

    /// True if the receiver of the result was dropped.
    fn is_abandoned(&self) -> bool {
        let is_dropped = self.batches.as_ref().is_some_and(Batches::is_closed);
        (is_dropped || self.answer.as_ref().is_some_and(oneshot::Sender::is_closed)) && !self.is_cancelled
    }

    /// Waits until the receiver of the result is dropped.
    async fn abandoned(&mut self) {
        match (&self.batches, &mut self.answer) {
            (Some(batches), _) => batches.closed().await,
            (None, Some(answer)) => answer.closed().await,
            (None, None) => std::future::pending().await,
        }
    }

    /// Answers the shell at the end of the statement.
    async fn finish(mut self, lost: Option<Error>) {
        self.send_rows().await;
        if let Some(lost) = lost {
            self.fail(lost);
        }
        match (self.answer.take(), self.batches.take()) {
            (Some(answer), _) => {
                let outcome = match (self.failure.take(), self.copied.take()) {
                    (Some(error), _) => Err(error),
                    (None, Some(lines)) => copied(&lines),
                    (None, None) => Ok(done(self.tag.as_deref().unwrap_or_default())),
                };
                // The shell may have stopped waiting.
                let _ = answer.send(outcome);
            }
            (None, Some(batches)) => {
                if let Some(error) = self.failure.take() {
                    let _ = batches.send(Err(error)).await;
                }
            }
            (None, None) => {}
        }
    }
}

/// The rows of a channel as a result. Errors are those of this module inside DataFusion's.
fn stream_of(rows: &Rows, receiver: mpsc::Receiver<Result<RecordBatch>>) -> SendableRecordBatchStream {
    let batches = stream::unfold(receiver, |mut receiver| async move {
        let batch: Result<RecordBatch> = receiver.recv().await?;
        Some((batch.map_err(|error| DataFusionError::External(Box::new(error))), receiver))
    });
    Box::pin(RecordBatchStreamAdapter::new(rows.schema(), batches))
}

/// The lines of a COPY TO STDOUT as a result of one column without a name.
fn copied(lines: &[u8]) -> Result<Outcome> {
    use arrow::array::StringArray;
    use arrow::datatypes::{DataType, Field, Schema};

    let text = std::str::from_utf8(lines)
        .map_err(|_| Error::Value("COPY TO STDOUT in binary format cannot be shown".into()))?;
    let schema = Arc::new(Schema::new(vec![Field::new("copy", DataType::Utf8, false)]));
    let values = Arc::new(StringArray::from(text.lines().collect::<Vec<_>>()));
    let batch = RecordBatch::try_new(schema.clone(), vec![values]).map_err(|error| Error::Value(error.to_string()))?;
    let batches = stream::iter([Ok(batch)]);
    Ok(Outcome::Rows(Box::pin(RecordBatchStreamAdapter::new(schema, batches))))
}

/// The outcome of a statement without rows: `INSERT 0 5`, `CREATE TABLE`.
fn done(tag: &str) -> Outcome {
    let (words, last) = tag.rsplit_once(' ').unwrap_or((tag, ""));
    match last.parse() {
        Ok(rows) => Outcome::Done { tag: words.trim_end_matches(" 0").into(), rows: Some(rows) },
        Err(_) => Outcome::Done { tag: tag.into(), rows: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_have_rows() {
        let shown = |tag| match done(tag) {
            Outcome::Done { tag, rows } => (tag, rows),
            Outcome::Rows(_) => panic!("no rows"),
        };
        assert_eq!(shown("INSERT 0 5"), ("INSERT".into(), Some(5)));
        assert_eq!(shown("DELETE 12"), ("DELETE".into(), Some(12)));
        assert_eq!(shown("CREATE TABLE"), ("CREATE TABLE".into(), None));
        assert_eq!(shown(""), (String::new(), None));
    }
}

//! The task that owns a connection.
//!
//! It takes one request after another. The rows of a query go through a channel: if the shell drops its end, the task asks the
//! server to cancel the query, and reads up to the end of its messages. The task drops its own end when the server is ready
//! again, so that the state of the transaction is current when the shell has seen the last row.

use std::io::{self, Read};
use std::sync::Arc;

use arrow::array::StringArray;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
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
use super::show_notification;
use super::texts::plain;
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
    CopyIn { sql: String, source: CopySource, answer: Answer },
    Settle { answer: oneshot::Sender<()> },
}

/// The input of a COPY FROM STDIN.
#[derive(Debug)]
pub enum CopySource {
    File(std::fs::File),
    /// Pieces of a script, up to the end of the channel. After an error, the statement fails.
    Pieces(mpsc::Receiver<io::Result<Vec<u8>>>),
}

impl CopySource {
    /// The next piece; empty at the end.
    async fn next(&mut self) -> io::Result<Vec<u8>> {
        match self {
            CopySource::File(file) => {
                let mut piece = vec![0; PIECE_BYTES];
                let len = file.read(&mut piece)?;
                piece.truncate(len);
                Ok(piece)
            }
            CopySource::Pieces(pieces) => loop {
                match pieces.recv().await {
                    Some(Ok(piece)) if piece.is_empty() => {}
                    piece => return piece.unwrap_or_else(|| Ok(Vec::new())),
                }
            },
        }
    }
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
    /// Lines of a COPY TO STDOUT that the shell has not got yet.
    copied: Option<Vec<u8>>,
    /// Channel, payload and process of the notifications that have arrived.
    notifications: Vec<(String, String, i32)>,
    source: Option<CopySource>,
    tag: Option<String>,
    failure: Option<Error>,
    is_cancelled: bool,
}

impl Driver {
    pub fn new(opened: Opened, address: Address, state: Arc<State>) -> Driver {
        Driver { wire: opened.wire, key: opened.key, address, state }
    }

    /// Serves requests until the shell drops the connection, or the connection fails.
    pub async fn run(mut self, mut requests: mpsc::Receiver<Request>) {
        while let Some(request) = requests.recv().await {
            let (sql, source, answer) = match request {
                Request::Query { sql, answer } => (sql, None, answer),
                Request::CopyIn { sql, source, answer } => (sql, Some(source), answer),
                Request::Settle { answer } => {
                    // The shell may have stopped waiting.
                    let _ = answer.send(());
                    continue;
                }
            };
            if !self.statement(&sql, source, answer).await {
                *self.state.transaction.lock() = TransactionStatus::Idle;
                return;
            }
        }
        frontend::terminate(&mut self.wire.output);
        // The connection ends in any case.
        let _ = self.wire.flush().await;
    }

    /// Executes a statement. False if the connection has failed.
    async fn statement(&mut self, sql: &str, source: Option<CopySource>, answer: Answer) -> bool {
        let mut running = Running::new(answer, source);
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
        let notifications = std::mem::take(&mut running.notifications);
        running.finish(done.err()).await;
        for (channel, payload, process) in notifications {
            show_notification(&channel, &payload, process);
        }
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
                    eprintln!("{}", plain(&format!("{}: {notice}", notice.severity)));
                }
                Message::NotificationResponse(notification) => {
                    let (channel, payload) = (notification.channel()?.into(), notification.message()?.into());
                    running.notifications.push((channel, payload, notification.process_id()));
                }
                Message::CopyInResponse(_) => self.copy_in(running).await?,
                Message::CopyOutResponse(_) => running.begin_copy(),
                Message::CopyData(data) => running.copied(data.data()).await,
                Message::CopyDone | Message::ParameterStatus(_) => {}
                Message::ReadyForQuery(ready) => {
                    *self.state.transaction.lock() = match ready.status() {
                        b'T' => TransactionStatus::Open,
                        b'E' => TransactionStatus::Failed,
                        _ => TransactionStatus::Idle,
                    };
                    return Ok(());
                }
                _ => return Err(Error::Lost(io::Error::other("unexpected message of the server"))),
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

    /// Sends the input of a COPY, or refuses a COPY without one.
    async fn copy_in(&mut self, running: &mut Running) -> Result<()> {
        let Some(mut source) = running.source.take() else {
            let problem = "COPY FROM STDIN has no input here (use .import FILE TABLE, or a script)";
            frontend::copy_fail(problem, &mut self.wire.output)?;
            return Ok(self.wire.flush().await?);
        };
        loop {
            match source.next().await {
                Ok(piece) if piece.is_empty() => frontend::copy_done(&mut self.wire.output),
                Ok(piece) => {
                    frontend::CopyData::new(piece.as_slice())?.write(&mut self.wire.output);
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
    fn new(answer: Answer, source: Option<CopySource>) -> Running {
        Running {
            answer: Some(answer),
            batches: None,
            rows: None,
            copied: None,
            notifications: Vec::new(),
            source,
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
                let stream = stream_of(rows.schema(), receiver);
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

    /// Begins a COPY TO STDOUT, whose lines are a result of one column.
    fn begin_copy(&mut self) {
        let Some(answer) = self.answer.take() else { return };
        let (batches, receiver) = mpsc::channel(BATCHES);
        (self.copied, self.batches) = (Some(Vec::new()), Some(batches));
        let _ = answer.send(Ok(Outcome::Rows(stream_of(copied_schema(), receiver))));
    }

    /// Adds data of a COPY TO STDOUT.
    async fn copied(&mut self, data: &[u8]) {
        let Some(lines) = self.copied.as_mut().filter(|_| self.failure.is_none()) else { return };
        lines.extend_from_slice(data);
        if lines.len() >= PIECE_BYTES {
            self.send_lines(false).await;
        }
    }

    /// Sends the lines of a COPY TO STDOUT that are complete, or all.
    async fn send_lines(&mut self, all: bool) {
        let (Some(lines), Some(batches)) = (&mut self.copied, &self.batches) else { return };
        let end = if all { lines.len() } else { lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1) };
        if end == 0 {
            return;
        }
        let rest = lines.split_off(end);
        match copied_batch(&std::mem::replace(lines, rest)) {
            // The shell has dropped its end if sending fails: the statement is abandoned.
            Ok(batch) => drop(batches.send(Ok(batch)).await),
            Err(error) => self.fail(error),
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
        self.send_lines(false).await;
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
        self.send_lines(true).await;
        if let Some(lost) = lost {
            self.fail(lost);
        }
        match (self.answer.take(), self.batches.take()) {
            (Some(answer), _) => {
                let outcome = match self.failure.take() {
                    Some(error) => Err(error),
                    None => Ok(done(self.tag.as_deref().unwrap_or_default())),
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
fn stream_of(schema: SchemaRef, receiver: mpsc::Receiver<Result<RecordBatch>>) -> SendableRecordBatchStream {
    let batches = stream::unfold(receiver, |mut receiver| async move {
        let batch: Result<RecordBatch> = receiver.recv().await?;
        Some((batch.map_err(|error| DataFusionError::External(Box::new(error))), receiver))
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, batches))
}

/// The schema of the lines of a COPY TO STDOUT.
fn copied_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("copy", DataType::Utf8, false)]))
}

/// Lines of a COPY TO STDOUT.
///
/// # Errors
/// If they are not UTF-8.
fn copied_batch(lines: &[u8]) -> Result<RecordBatch> {
    let text = std::str::from_utf8(lines)
        .map_err(|_| Error::Value("COPY TO STDOUT in binary format cannot be shown".into()))?;
    let values = Arc::new(StringArray::from(text.lines().collect::<Vec<_>>()));
    RecordBatch::try_new(copied_schema(), vec![values]).map_err(|error| Error::Value(error.to_string()))
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

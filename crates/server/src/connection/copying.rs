//! COPY FROM STDIN and COPY TO STDOUT.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use keyaki::{CopyFormat, Outcome, ProgramCopy, RecordBatch};
use parking_lot::Mutex;
use pgwire::messages::copy::{CopyData, CopyDone, CopyInResponse, CopyOutResponse};
use pgwire::messages::{PgWireBackendMessage as Message, PgWireFrontendMessage as Request};
use tokio::sync::mpsc::{Permit, Receiver, Sender, channel};
use tokio::time::timeout;

use super::client::{Client, Work};
use super::statements::{Names, Rows, columns};
use crate::copy::reader::Reader;
use crate::copy::writer::Writer;
use crate::failure::{Failure, Result};
use crate::frames::{Wire, put_message};
use crate::socket::Socket;
use crate::values::Format;

/// Rows are read when this many bytes have arrived.
const PIECE_BYTES: usize = 256 << 10;
/// A load begins when this many bytes of rows have arrived.
const EARLY_BYTES: usize = 8 << 20;
/// A load fails if no rows arrive for this time: it holds up other writers.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Batches between the reader of rows and the load.
const BATCHES_AHEAD: usize = 4;
/// Pieces between the connection and the reader of rows.
const PIECES_AHEAD: usize = 2;

/// Executes a statement. Returns its tag.
///
/// # Errors
/// Errors of the statement and of rows; 57014 if the client gives up.
pub async fn run(client: &mut Client, copy: ProgramCopy) -> Result<String> {
    let rows = match copy.to_program {
        true => write(client, copy).await,
        false => read(client, copy).await,
    };
    Ok(format!("COPY {}", rows.map_err(|failure| client.ended_by(failure))?))
}

/// The code of a format in the answers to COPY, and one for each column.
fn codes(format: CopyFormat, columns: usize) -> (i8, i16, Vec<i16>) {
    let code = if format == CopyFormat::Binary { Format::Binary } else { Format::Text }.code();
    (code as i8, columns as i16, vec![code; columns])
}

async fn read(client: &mut Client, copy: ProgramCopy) -> Result<u64> {
    let (Some(schema), Some(table)) = (copy.columns.clone(), copy.table.clone()) else {
        return Err(Failure::sql("42601", "COPY FROM takes a table, not a query"));
    };
    let (format, columns, formats) = codes(copy.format, schema.fields().len());
    client.wire.put(&Message::CopyInResponse(CopyInResponse::new(format, columns, formats)))?;
    client.wire.flush().await?;
    let limit = client.shared.options.message_bytes_max;
    let mut incoming = Incoming { reader: Reader::new(copy, schema), enough: PIECE_BYTES, limit, has_ended: false };
    // A load holds up other writers: it begins when many rows have arrived, or all.
    let (mut pending, mut bytes) = (VecDeque::new(), 0);
    while bytes < EARLY_BYTES && !incoming.has_ended {
        for batch in client.while_running(async |wire| incoming.next(wire).await).await? {
            bytes += batch.get_array_memory_size();
            pending.push_back(batch);
        }
    }
    let (sender, mut receiver) = channel(BATCHES_AHEAD);
    // The load succeeds only if its rows have ended, and not if their reader has.
    let (has_all, mut is_cut) = (Arc::new(AtomicBool::new(false)), false);
    let all = Arc::clone(&has_all);
    let batches = futures::stream::poll_fn(move |context| match receiver.poll_recv(context) {
        Poll::Ready(None) if !all.load(Ordering::Acquire) && !std::mem::replace(&mut is_cut, true) => {
            Poll::Ready(Some(Err(keyaki::Error::Cancelled)))
        }
        next => next,
    });
    let Client { wire, session, .. } = client;
    let mut load = std::pin::pin!(session.load(&table, batches));
    let mut failed = None;
    // The rows that have arrived so far.
    while let Some(batch) = pending.pop_front() {
        tokio::select! {
            biased;
            loaded = load.as_mut() => return Ok(loaded?),
            permit = sender.reserve() => permit.map(|permit| permit.send(Ok(batch))).unwrap_or_default(),
        }
    }
    // Another task reads the others, so that they are read and loaded at the same time.
    let Incoming { reader, limit, mut has_ended, .. } = incoming;
    let (pieces, receiver) = channel(PIECES_AHEAD);
    let (mut pieces, refused) = (Some(pieces), Arc::default());
    let mut parsing = tokio::spawn(parse(reader, limit, receiver, sender, (Arc::clone(&refused), has_all)));
    let (mut data, mut piece, mut is_parsing) = (BytesMut::new(), None, true);
    loop {
        if piece.is_none() && (data.len() >= PIECE_BYTES || has_ended && !data.is_empty()) {
            piece = Some(Piece::Rows(data.split().freeze()));
        }
        if piece.is_none() && has_ended {
            pieces = None;
        }
        tokio::select! {
            biased;
            // The rest of the rows is skipped if the load fails before the client has sent them all.
            loaded = load.as_mut() => return match failed.or_else(|| refused.lock().take()) {
                Some(failure) => Err(failure),
                None => Ok(loaded?),
            },
            parsed = &mut parsing, if is_parsing => {
                if let Err(error) = parsed {
                    failed = Some(Failure::Sql(keyaki::Error::Internal(format!("reading rows: {error}"))));
                }
                data.clear();
                (is_parsing, has_ended, piece) = (false, true, None);
            }
            permit = reserve(&pieces), if piece.is_some() => match permit.zip(piece.take()) {
                Some((permit, piece)) => permit.send(piece),
                None => data.clear(),
            },
            next = timeout(STALL_TIMEOUT, next_data(wire)), if piece.is_none() && !has_ended => {
                let stalled = |_| Err(Failure::sql("57014", "COPY from stdin failed: no data has arrived for 30 s"));
                match next.unwrap_or_else(stalled) {
                    Ok(Some(next)) => data.extend_from_slice(&next),
                    Ok(None) => has_ended = true,
                    Err(failure) => {
                        data.clear();
                        (failed, has_ended, piece) = (Some(failure), true, Some(Piece::Failed));
                    }
                }
            }
        }
    }
}

/// What the connection passes on to the reader of rows.
enum Piece {
    Rows(Bytes),
    /// There are no further rows, and the load must fail.
    Failed,
}

/// Reads rows from pieces and passes them on to the load, up to the end of `pieces`, an error, or the end of the load. After an
/// error, which it leaves in `refused`, the load gets an error, too, so that it changes nothing. `has_all` becomes true after the
/// last row.
async fn parse(
    mut reader: Reader,
    limit: usize,
    mut pieces: Receiver<Piece>,
    batches: Sender<keyaki::Result<RecordBatch>>,
    (refused, has_all): (Arc<Mutex<Option<Failure>>>, Arc<AtomicBool>),
) {
    let mut enough = PIECE_BYTES;
    loop {
        let is_last = match pieces.recv().await {
            Some(Piece::Rows(piece)) => {
                reader.push(&piece);
                if reader.len() < enough {
                    continue;
                }
                false
            }
            Some(Piece::Failed) => {
                let _ = batches.send(Err(keyaki::Error::Cancelled)).await;
                return;
            }
            None => true,
        };
        loop {
            let failure = match reader.batch(is_last) {
                Ok(Some(batch)) => match batches.send(Ok(batch)).await {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                Ok(None) if reader.len() <= limit => break,
                Ok(None) => too_long(limit),
                Err(failure) => failure,
            };
            *refused.lock() = Some(failure);
            let _ = batches.send(Err(keyaki::Error::Cancelled)).await;
            return;
        }
        if is_last {
            // Before `batches` is dropped.
            return has_all.store(true, Ordering::Release);
        }
        // A row that is longer than the piece is not read again with each piece.
        enough = PIECE_BYTES.max(2 * reader.len());
    }
}

fn too_long(limit: usize) -> Failure {
    Failure::sql("54000", format!("a row exceeds the limit of {limit} bytes"))
}

/// The next piece of rows; `None` after the last one. Cancel safe.
///
/// # Errors
/// 57014 if the client gives up; other messages.
async fn next_data(wire: &mut Wire<Socket>) -> Result<Option<Bytes>> {
    loop {
        return match wire.next().await? {
            Request::CopyData(data) => Ok(Some(data.data)),
            Request::CopyDone(_) => Ok(None),
            Request::CopyFail(fail) => Err(Failure::sql("57014", format!("COPY from stdin failed: {}", fail.message))),
            // Clients may send these before they know that the statement reads rows.
            Request::Sync(_) | Request::Flush(_) => continue,
            _ => Err(Failure::fatal("08P01", "unexpected message type during COPY from stdin")),
        };
    }
}

/// Room for a piece; `None` if no further ones are read.
async fn reserve<T>(sender: &Option<Sender<T>>) -> Option<Permit<'_, T>> {
    sender.as_ref()?.reserve().await.ok()
}

/// The rows that a client sends.
struct Incoming {
    reader: Reader,
    /// Rows are read when this many bytes have arrived.
    enough: usize,
    /// Maximum length of a row.
    limit: usize,
    /// The client has sent all rows.
    has_ended: bool,
}

impl Incoming {
    /// The rows of the next message. Cancel safe.
    ///
    /// # Errors
    /// Errors of rows; 54000 for a row that is too long; those of [`next_data`].
    async fn next(&mut self, wire: &mut Wire<Socket>) -> Result<Vec<RecordBatch>> {
        match next_data(wire).await? {
            Some(data) => self.reader.push(&data),
            None => self.has_ended = true,
        }
        let mut batches = Vec::new();
        if self.reader.len() < self.enough && !self.has_ended {
            return Ok(batches);
        }
        while let Some(batch) = self.reader.batch(self.has_ended)? {
            batches.push(batch);
        }
        if self.reader.len() > self.limit {
            return Err(too_long(self.limit));
        }
        // A row that is longer than the piece is not read again with each message.
        self.enough = PIECE_BYTES.max(2 * self.reader.len());
        Ok(batches)
    }
}

async fn write(client: &mut Client, copy: ProgramCopy) -> Result<u64> {
    let outcome = client.run(Work::Text(&copy.query)).await.map_err(Failure::without_position)?;
    let Outcome::Rows(stream) = outcome else {
        return Err(Failure::sql("0A000", "COPY query must have a RETURNING clause"));
    };
    let (schema, format) = (Names::default().shown(&copy.query, &stream.schema()), copy.format);
    let mut writer = Writer::new(copy);
    let columns = columns(&schema, &[writer.format().code()])?;
    let mut rows = Rows::new(stream, columns, client.cancels());
    let (code, count, formats) = codes(format, schema.fields().len());
    client.wire.put(&Message::CopyOutResponse(CopyOutResponse::new(code, count, formats)))?;
    let mut header = writer.header(schema.fields().iter().map(|field| field.name().as_str()));
    if format != CopyFormat::Binary
        && let Some(header) = header.take()
    {
        client.wire.put(&Message::CopyData(CopyData::new(header.into())))?;
    }
    let mut sent = 0;
    while let Some(batch) = client.next_batch(&mut rows).await? {
        let columns = rows.encoded(&client.session, &batch)?;
        for row in 0..batch.num_rows() {
            // As PostgreSQL, a message for each row: clients rely on it.
            put_message(client.wire.rows(), b'd', |output| {
                // That of the binary format precedes the first row in its message.
                if let Some(header) = header.take() {
                    output.extend_from_slice(&header);
                }
                writer.put(&columns, row, output);
            })?;
            client.flush_if_large().await?;
        }
        sent += batch.num_rows() as u64;
    }
    if let Some(trailer) = writer.trailer() {
        let mut end = header.unwrap_or_default();
        end.extend_from_slice(&trailer);
        client.wire.put(&Message::CopyData(CopyData::new(end.into())))?;
    }
    client.wire.put(&Message::CopyDone(CopyDone::new()))?;
    Ok(sent)
}

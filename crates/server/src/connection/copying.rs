//! COPY FROM STDIN and COPY TO STDOUT.

use keyaki::{CopyFormat, Outcome, ProgramCopy, RecordBatch};
use pgwire::messages::copy::{CopyData, CopyDone, CopyInResponse, CopyOutResponse};
use pgwire::messages::{PgWireBackendMessage as Message, PgWireFrontendMessage as Request};
use tokio::sync::mpsc::{Sender, channel};

use super::client::{Client, Work};
use super::statements::{Rows, columns};
use crate::copy::reader::Reader;
use crate::copy::writer::Writer;
use crate::failure::{Failure, Result};
use crate::frames::{Wire, put_message};
use crate::socket::Socket;
use crate::values::Format;

/// Rows are read when this many bytes have arrived.
const PIECE_BYTES: usize = 256 << 10;
/// Batches between the connection and the load.
const BATCHES_AHEAD: usize = 4;

/// Executes a statement. Returns its tag.
///
/// # Errors
/// Errors of the statement and of rows; 57014 if the client gives up.
pub async fn run(client: &mut Client, copy: ProgramCopy) -> Result<String> {
    let rows = match copy.to_program {
        true => write(client, copy).await?,
        false => read(client, copy).await?,
    };
    Ok(format!("COPY {rows}"))
}

/// The code of a format in the answers to COPY, and one for each column.
fn codes(format: CopyFormat, columns: usize) -> (i8, i16, Vec<i16>) {
    let code = if format == CopyFormat::Binary { Format::Binary } else { Format::Text }.code();
    (code as i8, columns as i16, vec![code; columns])
}

async fn read(client: &mut Client, copy: ProgramCopy) -> Result<u64> {
    let columns = client.prepare(&copy.query).await?;
    let (Some(schema), Some(table)) = (columns.columns().cloned(), copy.table.clone()) else {
        return Err(Failure::sql("42601", "COPY FROM takes a table, not a query"));
    };
    let (format, columns, formats) = codes(copy.format, schema.fields().len());
    client.wire.put(&Message::CopyInResponse(CopyInResponse::new(format, columns, formats)))?;
    client.wire.flush().await?;
    let (sender, mut receiver) = channel(BATCHES_AHEAD);
    let batches = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
    let Client { wire, session, .. } = client;
    let mut load = std::pin::pin!(session.load(&table, batches));
    let mut received = std::pin::pin!(receive(wire, Reader::new(copy, schema), sender));
    let mut failed = None;
    let mut is_receiving = true;
    loop {
        tokio::select! {
            biased;
            // The rest of the rows is skipped if the load fails before the client has sent them all.
            loaded = load.as_mut() => return match failed {
                Some(failure) => Err(failure),
                None => Ok(loaded?),
            },
            result = received.as_mut(), if is_receiving => {
                is_receiving = false;
                failed = result.err();
            }
        }
    }
}

/// Reads the rows that the client sends. After an error, the load gets one too, so that it changes nothing.
async fn receive(
    wire: &mut Wire<Socket>,
    mut reader: Reader,
    sender: Sender<keyaki::Result<RecordBatch>>,
) -> Result<()> {
    let result = receive_all(wire, &mut reader, &sender).await;
    if result.is_err() {
        // The load may have failed before.
        let _ = sender.send(Err(keyaki::Error::Cancelled)).await;
    }
    result
}

async fn receive_all(
    wire: &mut Wire<Socket>,
    reader: &mut Reader,
    sender: &Sender<keyaki::Result<RecordBatch>>,
) -> Result<()> {
    let mut enough = PIECE_BYTES;
    loop {
        let is_last = match wire.next().await? {
            Request::CopyData(data) => {
                reader.push(&data.data);
                false
            }
            Request::CopyDone(_) => true,
            Request::CopyFail(fail) => {
                return Err(Failure::sql("57014", format!("COPY from stdin failed: {}", fail.message)));
            }
            // Clients may send these before they know that the statement reads rows.
            Request::Sync(_) | Request::Flush(_) => continue,
            _ => return Err(Failure::fatal("08P01", "unexpected message type during COPY from stdin")),
        };
        if reader.len() < enough && !is_last {
            continue;
        }
        while let Some(batch) = reader.batch(is_last)? {
            // The load tells about its error.
            if sender.send(Ok(batch)).await.is_err() {
                return Ok(());
            }
        }
        if is_last {
            return Ok(());
        }
        // A row that is longer than the piece is not read again with each message.
        enough = PIECE_BYTES.max(2 * reader.len());
    }
}

async fn write(client: &mut Client, copy: ProgramCopy) -> Result<u64> {
    let Outcome::Rows(stream) = client.run(Work::Text(&copy.query)).await? else {
        return Err(Failure::sql("0A000", "COPY query must have a RETURNING clause"));
    };
    let (schema, format) = (stream.schema(), copy.format);
    let mut writer = Writer::new(copy);
    let columns = columns(&schema, &[writer.format().code()])?;
    let mut rows = Rows::new(stream, columns, client.cancels());
    let (code, count, formats) = codes(format, schema.fields().len());
    client.wire.put(&Message::CopyOutResponse(CopyOutResponse::new(code, count, formats)))?;
    let mut header = writer.header(schema.fields().iter().map(|field| field.name().as_str()));
    if format != CopyFormat::Binary
        && let Some(header) = header.take()
    {
        client.wire.put(&Message::CopyData(CopyData::new(header.freeze())))?;
    }
    let mut sent = 0;
    while let Some(batch) = client.next_batch(&mut rows).await? {
        let columns = rows.encoded(&client.session, &batch)?;
        for row in 0..batch.num_rows() {
            // As PostgreSQL, a message for each row: clients rely on it.
            put_message(client.wire.output(), b'd', |output| {
                // That of the binary format precedes the first row in its message.
                if let Some(header) = header.take() {
                    output.extend_from_slice(&header);
                }
                writer.put(&columns, row, output);
            });
            client.wire.flush_if_large().await?;
        }
        sent += batch.num_rows() as u64;
    }
    if let Some(trailer) = writer.trailer() {
        let mut end = header.unwrap_or_default();
        end.extend_from_slice(&trailer);
        client.wire.put(&Message::CopyData(CopyData::new(end.freeze())))?;
    }
    client.wire.put(&Message::CopyDone(CopyDone::new()))?;
    Ok(sent)
}

//! COPY TO: writes the rows of a query to a file or an object.
//!
//! ```text
//! query ─► text of each batch, on several threads ─► bounded channel ─► output, on a thread of the blocking pool
//! ```
//!
//! Parquet files are encoded by the last thread. The output takes effect after the end mark `None`. A channel that closes
//! without an end mark means that the query failed or the statement was cancelled.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::pin::pin;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::LogicalPlan;
use futures::{Stream, StreamExt};
use tokio::sync::mpsc::{Receiver, channel};

use super::options::{CopyOptions, Format};
use super::output::{Output, Target};
use super::partitioned;
use super::statement::{Copy, CopyObject};
use super::write::{ParquetSink, Part, Sink, TextEncoder, TextFile, TextSink};
use crate::base::interrupt::{Decision, Execution};
use crate::sql::SqlSession;
use crate::sql::names::{full_sql, plain_ident, quoted};
use crate::sql::parse_query;
use crate::sql::state::StatementState;
use crate::{Error, Result};

/// Capacity of the channel to the writer, in batches.
const PARTS_AHEAD: usize = 4;

pub(super) async fn run(session: &SqlSession, execution: &Execution<'_>, copy: Copy) -> Result<u64> {
    let path = PathBuf::from(&copy.path);
    if !copy.options.partition_by.is_empty() {
        return partitioned::run(session, execution, copy).await;
    }
    let decision = execution.decision().clone();
    let target = Output::of(&path, &session.files(), &decision)?;
    let (format, dialect) = copy.options.resolve(&path, true)?;
    let rows = query(session, copy.object).await?;
    let (schema, options) = (rows.schema(), copy.options);
    let has_header = match format {
        Format::Csv => options.header.unwrap_or(true),
        Format::Tbl | Format::Json | Format::Parquet => false,
    };
    let rows = rows.map(|batch| batch.map_err(Error::from));
    session.progress.lock().start(&format!("writing {}", path.display()), None);
    let written = if format == Format::Parquet {
        let open = move |file| ParquetSink::new(file, &options, &schema);
        on_thread(session, path, rows, move |batches| write_to(target, open, batches, &decision)).await
    } else {
        let encoder = match format {
            Format::Json => TextEncoder::json(&schema)?,
            _ => TextEncoder::delimited(&schema, dialect)?,
        };
        let header = if has_header { encoder.header() } else { String::new() };
        let compression = options.compression(&path);
        let open = move |file| {
            let file = TextFile::new(file, compression).map_err(|error| Error::io("write", Path::new(""), error))?;
            TextSink::new(file, &header)
        };
        let threads = session.engine.base_state.config().target_partitions();
        let texts = pin!(encoder.encode_all(rows, threads));
        on_thread(session, path, texts, move |texts| write_to(target, open, texts, &decision)).await
    };
    session.progress.lock().finish();
    written
}

/// Writes parts to the target. Returns the number of rows.
fn write_to<S: Sink>(
    output: Output,
    open: impl FnOnce(Target) -> Result<S>,
    parts: Receiver<Option<S::Part>>,
    decision: &Decision,
) -> Result<u64> {
    let (target, pending) = output.open()?;
    let (target, rows) = write(open(target)?, parts, decision)?;
    pending.finish(target, Some(decision))?;
    Ok(rows)
}

/// Writes rows to a new Parquet file, durably. Returns the number of rows and the bytes of the file.
///
/// # Errors
/// `Io`, `DiskFull`, `Unsupported` for types that Parquet files cannot have, `Cancelled`; errors of the rows.
pub(in crate::sql) async fn write_parquet(
    session: &SqlSession,
    execution: &Execution<'_>,
    path: &Path,
    schema: SchemaRef,
    rows: impl Stream<Item = Result<RecordBatch>> + Unpin,
) -> Result<(u64, u64)> {
    let (target, decision) = (path.to_path_buf(), execution.decision().clone());
    let options = CopyOptions { format: Some(Format::Parquet), ..CopyOptions::default() };
    // Created here: the thread may begin after the statement has been cancelled and the directory removed.
    let file = File::create_new(path).map_err(|error| Error::io("create", path, error))?;
    let write = move |batches| {
        let sink = ParquetSink::new(Target::File(file), &options, &schema)?;
        let (Target::File(file), rows) = write(sink, batches, &decision)? else {
            return Err(Error::Internal("a file was opened as another output".into()));
        };
        let length = file.sync_all().and_then(|()| file.metadata()).map(|metadata| metadata.len());
        Ok((rows, length.map_err(|error| Error::io("sync", &target, error))?))
    };
    on_thread(session, path.to_path_buf(), rows, write).await
}

/// Sends parts, and the end mark after them, to `write` on a thread of the blocking pool.
pub(super) async fn on_thread<P: Part, T: Send + 'static>(
    session: &SqlSession,
    path: PathBuf,
    mut parts: impl Stream<Item = Result<P>> + Unpin,
    write: impl FnOnce(Receiver<Option<P>>) -> Result<T> + Send + 'static,
) -> Result<T> {
    let (sender, receiver) = channel(PARTS_AHEAD);
    let task = tokio::task::spawn_blocking(move || write(receiver));
    let progress = session.progress.lock().clone();
    let mut failed = None;
    while let Some(part) = parts.next().await {
        match part {
            Ok(part) => {
                let rows = part.rows();
                // A closed channel means that the writer has failed; its error is returned below.
                if sender.send(Some(part)).await.is_err() {
                    break;
                }
                progress.advance(rows);
            }
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
    }
    if failed.is_none() {
        let _ = sender.send(None).await;
    }
    drop(sender);
    let written = task.await.map_err(|error| Error::task(&error))?;
    // Sinks have no path; errors of the output file get it here.
    failed.map_or(written, Err).map_err(|error| match error {
        Error::Io { operation, offset, source, .. } => Error::Io { path, operation, offset, source },
        Error::DiskFull { operation, .. } => Error::DiskFull { path, operation },
        other => other,
    })
}

/// Starts the query whose rows are written.
async fn query(session: &SqlSession, object: CopyObject) -> Result<SendableRecordBatchStream> {
    let state = StatementState::reading(session)?;
    let rows = state.run(&plan(&state, object).await?).await?;
    Ok(session.transaction.watch(&session.engine, rows))
}

/// The plan of the query whose rows are written.
pub(super) async fn plan(state: &StatementState, object: CopyObject) -> Result<LogicalPlan> {
    let query = match object {
        CopyObject::Query(query) => query,
        CopyObject::Table { name, columns } => {
            let name = state.relation(&name)?;
            let mut columns: Vec<String> = columns.iter().map(|column| quoted(&plain_ident(column))).collect();
            // As in PostgreSQL, without generated columns, so that COPY FROM can read the file.
            let generating =
                state.catalog.tables.get(&name).filter(|table| table.has_generated() && columns.is_empty());
            if let Some(table) = generating {
                columns.extend(table.given_columns().into_iter().map(|column| quoted(&table.def.columns[column].name)));
            }
            let columns = if columns.is_empty() { "*".into() } else { columns.join(", ") };
            parse_query(&format!("SELECT {columns} FROM {}", full_sql(&name)))?
        }
    };
    state.plan_query(*query).await
}

/// Writes parts until the end mark. Returns the target, not yet synced, and the number of rows.
///
/// # Errors
/// `Cancelled` if the channel closes without an end mark, or if the statement was cancelled; errors of the sink.
fn write<S: Sink>(mut sink: S, mut parts: Receiver<Option<S::Part>>, decision: &Decision) -> Result<(Target, u64)> {
    let mut rows = 0;
    loop {
        match parts.blocking_recv() {
            Some(Some(part)) => {
                decision.check()?;
                rows += part.rows();
                sink.write(&part)?;
            }
            Some(None) => return Ok((sink.finish()?, rows)),
            None => return Err(Error::Cancelled),
        }
    }
}

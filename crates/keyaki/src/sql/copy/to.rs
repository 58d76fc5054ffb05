//! COPY TO: writes the rows of a query to a file.
//!
//! ```text
//! query ─► text of each batch, on several threads ─► bounded channel ─► file, on a thread of the blocking pool
//! ```
//!
//! Parquet files are encoded by the last thread. It writes a temporary file, and syncs and renames it after the end
//! mark `None`. Standard output, pipes and terminals are written directly. A channel that closes without an end mark
//! means that the query failed or the statement was cancelled; the temporary file is then removed.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::execution::SendableRecordBatchStream;
use futures::{Stream, StreamExt};
use tempfile::TempPath;
use tokio::sync::mpsc::{Receiver, channel};

use super::options::{CopyOptions, Format, is_stream_name};
use super::statement::{Copy, CopyObject};
use super::write::{ParquetSink, Part, Sink, TextEncoder, TextFile, TextSink};
use crate::base::interrupt::{Decision, Execution, Stage};
use crate::sql::SqlSession;
use crate::sql::names::{full_sql, plain_ident, quoted};
use crate::sql::parse_query;
use crate::sql::state::StatementState;
use crate::{Error, Result};

/// Capacity of the channel to the writer, in batches.
const PARTS_AHEAD: usize = 4;
/// Permission bits of the new file, before the umask is applied.
const PERMISSIONS: u32 = 0o666;

pub(super) async fn run(session: &SqlSession, execution: &Execution<'_>, copy: Copy) -> Result<u64> {
    let path = PathBuf::from(&copy.path);
    session.files().check(&path)?;
    let target = Output::of(&path)?;
    let (format, dialect) = copy.options.resolve(&path, true)?;
    let rows = query(session, copy.object).await?;
    let (schema, options) = (rows.schema(), copy.options);
    let has_header = match format {
        Format::Csv => options.header.unwrap_or(true),
        Format::Tbl | Format::Json | Format::Parquet => false,
    };
    let rows = rows.map(|batch| batch.map_err(Error::from));
    session.progress.lock().start(&format!("writing {}", path.display()), None);
    let decision = execution.decision().clone();
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
    target: Output,
    open: impl FnOnce(File) -> Result<S>,
    parts: Receiver<Option<S::Part>>,
    decision: &Decision,
) -> Result<u64> {
    let target = match target {
        Output::Stream(path) => {
            let (_, rows) = write(open(stream(&path)?)?, parts, decision)?;
            decision.commit()?;
            decision.reach(Stage::Committed);
            return Ok(rows);
        }
        Output::File(target) => target,
    };
    let (file, temporary) = target.create()?;
    let (file, rows) = write(open(file)?, parts, decision)?;
    file.sync_all().map_err(|error| Error::io("sync", &target.path, error))?;
    decision.commit()?;
    target.replace(temporary)?;
    decision.reach(Stage::Committed);
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
        let (file, rows) = write(ParquetSink::new(file, &options, &schema)?, batches, &decision)?;
        let length = file.sync_all().and_then(|()| file.metadata()).map(|metadata| metadata.len());
        Ok((rows, length.map_err(|error| Error::io("sync", &target, error))?))
    };
    on_thread(session, path.to_path_buf(), rows, write).await
}

/// Sends parts, and the end mark after them, to `write` on a thread of the blocking pool.
async fn on_thread<P: Part, T: Send + 'static>(
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
    let plan = state.plan_query(*query).await?;
    let rows = state.run(&plan).await?;
    Ok(session.transaction.watch(&session.engine, rows))
}

/// Writes parts until the end mark. Returns the file, not yet synced, and the number of rows.
///
/// # Errors
/// `Cancelled` if the channel closes without an end mark, or if the statement was cancelled; errors of the sink.
fn write<S: Sink>(mut sink: S, mut parts: Receiver<Option<S::Part>>, decision: &Decision) -> Result<(File, u64)> {
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

/// The standard output of the process.
pub(super) const STDOUT: &str = "/dev/stdout";
const STDERR: &str = "/dev/stderr";

/// The target of COPY TO.
enum Output {
    /// A file, which is replaced.
    File(OutputFile),
    /// Standard output, a pipe or a device. Rows that were written before an error stay.
    Stream(PathBuf),
}

impl Output {
    fn of(path: &Path) -> Result<Self> {
        use std::os::unix::fs::FileTypeExt;
        // Redirected output is a regular file, but its name is a symbolic link that must stay.
        let is_stream = is_stream_name(path);
        let is_special = || {
            let kind = std::fs::metadata(path).map(|metadata| metadata.file_type());
            kind.is_ok_and(|kind| kind.is_char_device() || kind.is_fifo())
        };
        match is_stream || is_special() {
            true => Ok(Output::Stream(path.to_path_buf())),
            false => OutputFile::new(path).map(Output::File),
        }
    }
}

/// Opens standard output, a pipe or a device. Standard output continues where the process has written last.
fn stream(path: &Path) -> Result<File> {
    let failed = |error| Error::io("open", path, error);
    if path == Path::new(STDOUT) {
        let output = std::io::stdout();
        std::io::Write::flush(&mut &output).map_err(failed)?;
        return Ok(File::from(output.as_fd().try_clone_to_owned().map_err(failed)?));
    }
    if path == Path::new(STDERR) {
        return Ok(File::from(std::io::stderr().as_fd().try_clone_to_owned().map_err(failed)?));
    }
    match std::fs::metadata(path).map_err(failed)?.is_file() {
        true => Err(failed(std::io::Error::new(ErrorKind::InvalidInput, "is redirected (name the file itself)"))),
        false => File::options().write(true).open(path).map_err(failed),
    }
}

/// A file that COPY TO replaces.
struct OutputFile {
    path: PathBuf,
}

impl OutputFile {
    fn new(path: &Path) -> Result<Self> {
        let failed = |kind, message: &str| Err(Error::io("write", path, std::io::Error::new(kind, message)));
        match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => return failed(ErrorKind::IsADirectory, "is a directory"),
            Ok(metadata) if !metadata.is_file() => return failed(ErrorKind::InvalidInput, "is not a regular file"),
            _ => {}
        }
        match path.file_name() {
            Some(_) => Ok(OutputFile { path: path.to_path_buf() }),
            None => failed(ErrorKind::InvalidInput, "is not the name of a file"),
        }
    }

    /// The directory of the file.
    fn directory(&self) -> &Path {
        // The parent of a name without a directory is the empty path.
        self.path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    /// Creates a temporary file beside the target, with a name of its own. Dropping the path removes the file.
    fn create(&self) -> Result<(File, TempPath)> {
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(self.path.file_name().unwrap_or_default());
        prefix.push(".");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".tmp").permissions(Permissions::from_mode(PERMISSIONS));
        let created = builder.tempfile_in(self.directory());
        Ok(created.map_err(|error| Error::io("create", &self.path, error))?.into_parts())
    }

    /// Replaces the target by the temporary file, durably.
    fn replace(&self, temporary: TempPath) -> Result<()> {
        temporary.persist(&self.path).map_err(|failed| Error::io("create", &self.path, failed.error))?;
        let synced = File::open(self.directory()).and_then(|directory| directory.sync_all());
        synced.map_err(|error| Error::io("sync", self.directory(), error))
    }
}

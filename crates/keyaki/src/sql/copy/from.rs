//! COPY FROM: loads files into a table.
//!
//! A thread of the blocking pool reads the files one after another, converts their batches to rows of the table
//! ([`Conform`]) and sends them through a bounded channel to the load. The load (`write::insert_loaded`) chooses
//! between a write batch and a bulk load. The first error ends both sides.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{RecordBatch, StringViewArray};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use keyaki_store::ColumnType;
use parking_lot::Mutex;
use tokio::sync::mpsc::{Sender, channel};

use super::files::expand;
use super::folders::folders;
use super::options::{CopyOptions, Dialect, Format};
use super::read::{DelimitedReader, FileRows, JsonReader, ParquetReader, bad};
use super::source::{STDIN, Source};
use super::statement::{Copy, CopyObject};
use crate::base::interrupt::Execution;
use crate::base::notices::Severity;
use crate::catalog::Table;
use crate::sql::SqlSession;
use crate::sql::access;
use crate::sql::dml::defaults;
use crate::sql::expressions;
use crate::sql::files::Files;
use crate::sql::names::plain_ident;
use crate::sql::notices;
use crate::values::zone::Zone;
use crate::write::text::TimeFormats;
use crate::write::{BadCell, Conform, Defaults, Given, Origin, insert_loaded};
use crate::{Error, Result};

/// Capacity of the channel between reader and load, in batches.
const BATCHES_AHEAD: usize = 4;
/// Rows that are converted together where rows with errors are left out.
const LENIENT_ROWS: usize = 256;

pub(super) async fn run(session: &SqlSession, execution: &Execution<'_>, copy: Copy) -> Result<u64> {
    let CopyObject::Table { name, columns } = &copy.object else {
        return Err(Error::syntax("COPY FROM takes a table, not a query"));
    };
    let writer = session.writer(execution, "COPY FROM").await?;
    let (catalog, _) = session.engine.latest(&writer);
    let table = catalog.table(&session.relation(&catalog, name)?)?.clone();
    access::insertion(session, &catalog, &table)?;
    expressions::compiled(session, &table)?;
    let listed = columns.iter().map(|column| table.column(&plain_ident(column))).collect::<Result<Vec<_>>>()?;
    if let Some((_, twice)) = listed.iter().enumerate().find(|(i, column)| listed[..*i].contains(column)) {
        return Err(Error::DuplicateColumn(table.def.columns[*twice].name.clone()));
    }
    let is_listed = !listed.is_empty();
    let targets = if is_listed { listed } else { table.given_columns() };
    let permitted = session.files();
    let files = expand(&copy.path, &permitted).await?;
    let origin = Arc::new(FileOrigin::default());
    let import = Import {
        targets,
        is_listed,
        defaults: defaults::physical(session, &writer, &table)?.into(),
        zone: session.zone(),
        options: copy.options,
        table: table.clone(),
        origin: origin.clone(),
        files: permitted,
    };
    let (sender, mut receiver) = channel(BATCHES_AHEAD);
    tokio::task::spawn_blocking(move || import.run(&files, &sender));
    let rows = futures::stream::poll_fn(move |context| receiver.poll_recv(context));
    let rows = Box::pin(RecordBatchStreamAdapter::new(table.arrow.clone(), rows));
    let loaded = insert_loaded(session.write(writer), &table, rows, origin.clone()).await?;
    let skipped = origin.skipped.load(Ordering::Relaxed);
    if skipped > 0 {
        notices::add(session, Severity::Notice, "00000", notices::skipped_rows(skipped));
    }
    Ok(loaded)
}

/// State of the reading thread.
struct Import {
    table: Arc<Table>,
    /// Positions of the table columns to fill; other columns get their defaults.
    targets: Vec<usize>,
    /// The statement lists the columns.
    is_listed: bool,
    defaults: Arc<Defaults>,
    /// The time zone of texts without an offset.
    zone: Zone,
    options: CopyOptions,
    origin: Arc<FileOrigin>,
    /// The files that may be opened.
    files: Files,
}

type BatchSender = Sender<datafusion::error::Result<RecordBatch>>;

/// An open file.
struct OpenFile<'a> {
    path: &'a Path,
    reader: Reader,
    conform: Conform,
    /// Rows read so far.
    rows: u64,
    /// Rows with invalid values are left out and counted.
    ignore_errors: bool,
    skipped: u64,
}

enum Reader {
    Parquet(ParquetReader),
    Json(JsonReader),
    /// With the number of fields of each record.
    Delimited(DelimitedReader, usize),
}

impl Import {
    /// Reads all files and sends their rows. Sends the first error and stops; stops silently if the load has ended.
    fn run(&self, files: &[PathBuf], sender: &BatchSender) {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.read_all(files, sender)));
        let failed = match done {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            // The readers of Parquet and JSON are other crates and may panic on damaged files.
            Err(_) => match self.origin.current() {
                Some(path) => in_file(&path, Error::InvalidFile("the file is damaged".into())),
                None => Error::Internal("a reader of files panicked".into()),
            },
        };
        // A closed channel means that the load has already failed with another error.
        let _ = sender.blocking_send(Err(failed.into()));
    }

    fn read_all(&self, files: &[PathBuf], sender: &BatchSender) -> Result<()> {
        let sizes: u64 = files.iter().filter_map(|path| path.metadata().ok()).map(|metadata| metadata.len()).sum();
        let mut row = 0;
        for path in files {
            self.origin.begin(path, row);
            let mut open = self.open(path)?;
            while let Some(rows) = open.next()? {
                if row == 0 {
                    self.estimate(&open, files, sizes, rows.num_rows() as u64);
                }
                row += rows.num_rows() as u64;
                if rows.num_rows() > 0 && sender.blocking_send(Ok(rows)).is_err() {
                    return Ok(());
                }
            }
            let malformed = if let Reader::Delimited(reader, _) = &open.reader { reader.skipped() } else { 0 };
            self.origin.skipped.fetch_add(open.skipped + malformed, Ordering::Relaxed);
        }
        Ok(())
    }

    /// # Errors
    /// `Import` if a column of the table is in the names of the folders, and may not be in the file.
    fn check_folders(&self, path: &Path, names: Option<&[String]>) -> Result<()> {
        let of_folder = folders(path).0.into_iter().find(|name| {
            let is_in_file = names.is_some_and(|names| names.iter().any(|other| other.eq_ignore_ascii_case(name)));
            self.is_target(name) && !is_in_file
        });
        match of_folder {
            Some(name) => {
                let hint = "use INSERT INTO … BY NAME SELECT * FROM the files, or list the columns that the file has";
                let message =
                    format!("column \"{name}\" is in the name of a folder, which COPY FROM does not read ({hint})");
                Err(bad(path, None, message))
            }
            None => Ok(()),
        }
    }

    fn open<'a>(&self, path: &'a Path) -> Result<OpenFile<'a>> {
        let (format, dialect) = self.options.resolve(path, false)?;
        let (reader, conform) = match format {
            Format::Parquet => {
                // Files may have more columns than the statement lists.
                let wanted = |name: &str| !self.is_listed || self.is_target(name);
                let reader = ParquetReader::open(path, &self.files, wanted)?;
                let names: Vec<String> = reader.schema().fields().iter().map(|field| field.name().clone()).collect();
                self.check_folders(path, Some(&names))?;
                self.check_found(path, &names)?;
                let conform = self.conform(path, Given::Named(&names))?;
                (Reader::Parquet(reader), conform)
            }
            Format::Json => {
                let names: Vec<String> =
                    self.targets.iter().map(|&column| self.table.def.columns[column].name.clone()).collect();
                let dimensions: Vec<u8> = self.targets.iter().map(|&column| self.dimensions(column)).collect();
                // Objects may lack columns.
                self.check_folders(path, None)?;
                let reader = JsonReader::open(self.source(path)?, &names, &dimensions)?;
                (Reader::Json(reader), self.conform(path, Given::Named(&names))?)
            }
            Format::Csv | Format::Tbl => self.open_delimited(path, dialect)?,
        };
        let ignore_errors = self.options.ignore_errors.unwrap_or(false);
        Ok(OpenFile { path, reader, conform, rows: 0, ignore_errors, skipped: 0 })
    }

    /// # Errors
    /// `Import` if the statement lists a column that the file does not have.
    fn check_found(&self, path: &Path, names: &[String]) -> Result<()> {
        let columns = self.targets.iter().map(|&column| &self.table.def.columns[column].name);
        let missing = |column: &&String| !names.iter().any(|name| name.eq_ignore_ascii_case(column));
        match columns.filter(|_| self.is_listed).find(missing) {
            Some(column) => Err(bad(path, None, format!("the file has no column \"{column}\""))),
            None => Ok(()),
        }
    }

    fn is_target(&self, name: &str) -> bool {
        self.targets.iter().any(|&column| self.table.def.columns[column].name.eq_ignore_ascii_case(name))
    }

    fn source(&self, path: &Path) -> Result<Source> {
        if path == Path::new(STDIN) {
            return Source::stdin(&self.files, self.options.compression(path));
        }
        Source::open(path, &self.files, self.options.compression(path))
    }

    /// The number of dimensions of a column of arrays; 0 for other columns.
    fn dimensions(&self, column: usize) -> u8 {
        match self.table.def.columns[column].ty.column {
            ColumnType::List(list) => list.dimensions(),
            _ => 0,
        }
    }

    /// Opens a text file and decides whether it has a header.
    fn open_delimited(&self, path: &Path, dialect: Dialect) -> Result<(Reader, Conform)> {
        let mut reader = DelimitedReader::open(self.source(path)?, dialect)?;
        let first = reader.peek()?.unwrap_or_default();
        let first: Vec<String> = first.into_iter().map(Option::unwrap_or_default).collect();
        let header = self.options.header.unwrap_or_else(|| self.is_header(&first));
        if !header || first.is_empty() {
            let conform = self.conform(path, Given::Positional(self.targets.len()))?;
            return Ok((Reader::Delimited(reader, self.targets.len()), conform));
        }
        reader.skip_header()?;
        // As in PostgreSQL, a header without any column name of the table is skipped, and the columns are matched by
        // position.
        let foreign = !first.iter().any(|name| self.is_column(name)) && first.len() == self.targets.len();
        if !foreign {
            self.check_folders(path, Some(&first))?;
        }
        let given = if foreign { Given::Positional(first.len()) } else { Given::Named(&first) };
        let conform = self.conform(path, given)?;
        Ok((Reader::Delimited(reader, first.len()), conform))
    }

    /// True if every field of the first record is the name of a column.
    fn is_header(&self, first: &[String]) -> bool {
        !first.is_empty() && first.iter().all(|text| self.is_column(text))
    }

    fn is_column(&self, name: &str) -> bool {
        self.table.def.columns.iter().any(|column| column.name.eq_ignore_ascii_case(name))
    }

    fn conform(&self, path: &Path, given: Given<'_>) -> Result<Conform> {
        let conform = Conform::new(&self.table, &self.targets, given, &self.defaults);
        let (date, timestamp) = (self.options.date_format.clone(), self.options.timestamp_format.clone());
        let formats = TimeFormats { date, timestamp };
        let conform = conform.map(|conform| conform.in_zone(self.zone).with_formats(formats));
        conform.map_err(|error| in_file(path, error))
    }

    /// Estimates the total number of rows for progress reports: exact for Parquet, else from the size of the files and
    /// the bytes of the first batch.
    fn estimate(&self, open: &OpenFile<'_>, files: &[PathBuf], total_bytes: u64, rows: u64) {
        let total = match &open.reader {
            Reader::Parquet(first) => {
                // A file that cannot be opened fails when the loop reaches it.
                let others = files[1..].iter().filter_map(|path| ParquetReader::open(path, &self.files, |_| true).ok());
                first.rows() + others.map(|reader| reader.rows()).sum::<u64>()
            }
            // The bytes of files are compressed, those of rows are not.
            // The lengths of objects are not known.
            _ if total_bytes == 0 => return,
            Reader::Json(reader) if reader.is_compressed() => return,
            Reader::Delimited(reader, _) if reader.is_compressed() => return,
            Reader::Json(reader) => scaled(rows, reader.progress().1, total_bytes),
            Reader::Delimited(reader, _) => scaled(rows, reader.progress().1, total_bytes),
        };
        self.origin.total.store(total, Ordering::Relaxed);
    }
}

fn scaled(rows: u64, bytes: u64, total_bytes: u64) -> u64 {
    (rows as f64 * total_bytes as f64 / bytes.max(1) as f64) as u64
}

impl OpenFile<'_> {
    /// The next batch of the file as rows of the table; `None` at the end.
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let rows = match &mut self.reader {
            Reader::Parquet(reader) => reader.next()?,
            Reader::Json(reader) => reader.next()?,
            Reader::Delimited(reader, width) => reader.next(*width)?,
        };
        let Some(rows) = rows else { return Ok(None) };
        let before = self.rows;
        self.rows += rows.len() as u64;
        let conformed = match &rows {
            FileRows::Typed(batch) => self.conform.typed(batch),
            FileRows::Text(columns) if self.ignore_errors => self.valid(columns, rows.len()),
            FileRows::Text(columns) => self.conform.texts(columns, rows.len()),
        };
        conformed.map(Some).map_err(|BadCell { row, column, error }| Error::Import {
            path: Some(self.path.to_path_buf()),
            row: row.map(|row| before + row as u64 + 1),
            column: Some(column).filter(|column| !column.is_empty()),
            source: Box::new((*error).without_column()),
        })
    }
}

impl OpenFile<'_> {
    /// The rows whose values are valid for the types of their columns. Other rows are counted.
    fn valid(&mut self, columns: &[StringViewArray], rows: usize) -> std::result::Result<RecordBatch, BadCell> {
        let conform = &self.conform;
        let part = |first: usize, count: usize| {
            let columns: Vec<StringViewArray> = columns.iter().map(|column| column.slice(first, count)).collect();
            conform.texts(&columns, count)
        };
        let (mut valid, mut skipped) = (Vec::new(), 0);
        for first in (0..rows).step_by(LENIENT_ROWS) {
            let count = LENIENT_ROWS.min(rows - first);
            match part(first, count) {
                Ok(batch) => valid.push(batch),
                Err(_) => {
                    for row in first..first + count {
                        match part(row, 1) {
                            Ok(batch) => valid.push(batch),
                            // Constraints apply to all rows.
                            Err(bad) if is_violation(&bad.error) => return Err(BadCell { row: Some(row), ..bad }),
                            Err(_) => skipped += 1,
                        }
                    }
                }
            }
        }
        self.skipped += skipped;
        let schema = conform.schema();
        arrow::compute::concat_batches(schema, &valid).map_err(|error| BadCell {
            row: None,
            column: String::new(),
            error: Box::new(error.into()),
        })
    }
}

/// True for errors other than those of a value that its type does not have.
fn is_violation(error: &Error) -> bool {
    !matches!(
        error.root(),
        Error::InvalidText { .. }
            | Error::OutOfRange { .. }
            | Error::StringTooLong { .. }
            | Error::InvalidEncoding { .. }
    )
}

/// Maps rows of the stream to files, for error messages.
#[derive(Debug, Default)]
struct FileOrigin {
    /// First row of each file in the stream, ascending.
    files: Mutex<Vec<(u64, PathBuf)>>,
    /// Estimated rows of all files; 0 before the estimate.
    total: AtomicU64,
    /// Rows with errors that were left out.
    skipped: AtomicU64,
}

impl FileOrigin {
    fn begin(&self, path: &Path, row: u64) {
        self.files.lock().push((row, path.to_path_buf()));
    }

    /// The file that is currently being read.
    fn current(&self) -> Option<PathBuf> {
        self.files.lock().last().map(|(_, path)| path.clone())
    }
}

impl Origin for FileOrigin {
    fn locate(&self, row: u64) -> Option<(Option<PathBuf>, u64)> {
        let files = self.files.lock();
        let (first, path) = files.get(files.partition_point(|(first, _)| *first <= row).checked_sub(1)?)?;
        Some((Some(path.clone()), row - first + 1))
    }

    fn total_rows(&self) -> Option<u64> {
        Some(self.total.load(Ordering::Relaxed)).filter(|total| *total > 0)
    }
}

fn in_file(path: &Path, error: Error) -> Error {
    Error::Import { path: Some(path.to_path_buf()), row: None, column: None, source: Box::new(error) }
}

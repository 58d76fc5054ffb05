//! COPY TO with PARTITION_BY: a file for each combination of the values of some columns.
//!
//! The files lie in folders that are named as those of Hive, `year=2026/month=7/data_0.parquet`, and lack these columns. The
//! rows are sorted by them, so that one file is written at a time, however many there are. Each file appears when it is
//! complete; an error leaves those before it.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::partition;
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder};
use futures::StreamExt;
use tokio::sync::mpsc::Receiver;

use super::folders::{NULL, escaped};
use super::options::{Compression, CopyOptions, Dialect, Format, is_stream_name};
use super::output::{Output, Pending};
use super::statement::Copy;
use super::to::{on_thread, plan};
use super::write::{ParquetSink, Sink, TextEncoder, TextFile, TextSink, convert, unsupported};
use crate::base::interrupt::{Decision, Execution};
use crate::base::intervals::is_interval;
use crate::base::type_name;
use crate::sql::SqlSession;
use crate::sql::files::{Files, local, object_url};
use crate::sql::state::StatementState;
use crate::write::text::Formatter;
use crate::{Error, Result};

/// The name of the file in each folder, without extensions.
const FILE: &str = "data_0";

pub(super) async fn run(session: &SqlSession, execution: &Execution<'_>, copy: Copy) -> Result<u64> {
    let files = session.files();
    let root = root(&copy.path, &files)?;
    if is_stream_name(&root) {
        return Err(Error::Unsupported("PARTITION_BY in COPY to a stream (name a directory)".into()));
    }
    let options = copy.options;
    let (format, dialect) = options.resolve(&root, true)?;
    if !options.overwrite_or_ignore.unwrap_or(false) {
        check_unused(&files, &root).await?;
    }
    let state = StatementState::reading(session)?;
    let query = plan(&state, copy.object).await?;
    let columns = positions(&query, &options.partition_by)?;
    let rows = state.run(&sorted(query, &columns)?).await?;
    let rows = session.transaction.watch(&session.engine, rows);
    let writer = Writer::new(root.clone(), files, format, dialect, options, columns, &rows.schema())?;
    let decision = execution.decision().clone();
    session.progress.lock().start(&format!("writing {}", root.display()), None);
    let rows = rows.map(|batch| batch.map_err(Error::from));
    let written = on_thread(session, root, rows, move |batches| writer.write_all(batches, &decision)).await;
    session.progress.lock().finish();
    written
}

/// The folder above all others: a directory, or the URL of a folder in a bucket.
///
/// # Errors
/// `FileAccess`; `Io` for names that no folder can have.
fn root(path: &str, files: &Files) -> Result<PathBuf> {
    if let Some(url) = object_url(Path::new(path)) {
        let (bucket, name) = files.bucket(url)?;
        return Ok(Path::new(bucket.root()).join(name.trim_end_matches('/')));
    }
    let root = local(Path::new(path));
    files.check(&root)?;
    match root.as_os_str().is_empty() {
        true => {
            let hint = "is not the name of a directory";
            Err(Error::io("write", &root, std::io::Error::new(std::io::ErrorKind::InvalidInput, hint)))
        }
        false => Ok(root),
    }
}

/// Checks that a folder does not exist, or has no files.
///
/// # Errors
/// `Io`.
async fn check_unused(files: &Files, root: &Path) -> Result<()> {
    let failed = |error| Error::io("read", root, error);
    let is_used = match object_url(root) {
        Some(url) => {
            let (bucket, name) = files.bucket(url)?;
            !bucket.list(name).await.map_err(failed)?.is_empty()
        }
        None => match std::fs::read_dir(root) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
            Err(error) => return Err(failed(error)),
        },
    };
    match is_used {
        true => {
            let hint = "is not empty (name another folder, or set OVERWRITE_OR_IGNORE)";
            Err(failed(std::io::Error::new(std::io::ErrorKind::DirectoryNotEmpty, hint)))
        }
        false => Ok(()),
    }
}

/// The positions of the columns with these names in the result of a query.
///
/// # Errors
/// `UndefinedColumn`, `DuplicateColumn`; `Unsupported` for types without an order of their texts, and if no other column is left.
fn positions(query: &LogicalPlan, names: &[String]) -> Result<Vec<usize>> {
    let fields = query.schema().fields();
    let mut positions: Vec<usize> = Vec::new();
    for name in names {
        let exact = fields.iter().position(|field| field.name() == name);
        let found = exact.or_else(|| fields.iter().position(|field| field.name().eq_ignore_ascii_case(name)));
        let Some(found) = found else {
            let similar = Vec::new();
            return Err(Error::UndefinedColumn { column: name.clone(), relation: None, similar });
        };
        if positions.contains(&found) {
            return Err(Error::DuplicateColumn(name.clone()));
        }
        // Different intervals are equal in an order.
        let ty = fields[found].data_type();
        if is_interval(ty) || ty.is_nested() {
            return Err(Error::Unsupported(format!(
                "PARTITION_BY with a column of type {} (use a cast to TEXT)",
                type_name(ty)
            )));
        }
        positions.push(found);
    }
    match positions.len() == fields.len() {
        true => Err(Error::Unsupported("PARTITION_BY with all columns (files without columns have no rows)".into())),
        false => Ok(positions),
    }
}

/// The query with its rows in the order of some columns.
fn sorted(query: LogicalPlan, columns: &[usize]) -> Result<LogicalPlan> {
    let all = query.schema().columns();
    let keys: Vec<_> = columns.iter().map(|&column| Expr::Column(all[column].clone()).sort(true, false)).collect();
    Ok(LogicalPlanBuilder::from(query).sort(keys)?.build()?)
}

/// Writes batches whose rows are sorted by the columns of the folders.
struct Writer {
    root: PathBuf,
    files: Files,
    format: Format,
    dialect: Dialect,
    options: CopyOptions,
    /// The positions and names of the columns of the folders.
    columns: Vec<(usize, String)>,
    /// The positions of the other columns.
    rest: Vec<usize>,
    /// The other columns.
    schema: SchemaRef,
    file: Option<File>,
    /// The folders so far.
    folders: HashSet<String>,
}

/// A file under construction.
struct File {
    folder: String,
    sink: Rows,
    pending: Pending,
}

enum Rows {
    Parquet(Box<ParquetSink>),
    /// With the number of rows so far.
    Text(Box<TextSink>, TextEncoder, u64),
}

impl Writer {
    fn new(
        root: PathBuf,
        files: Files,
        format: Format,
        dialect: Dialect,
        options: CopyOptions,
        columns: Vec<usize>,
        schema: &SchemaRef,
    ) -> Result<Self> {
        let rest: Vec<usize> = (0..schema.fields().len()).filter(|column| !columns.contains(column)).collect();
        let columns = columns.into_iter().map(|column| (column, escaped(schema.field(column).name()))).collect();
        let schema: SchemaRef = Arc::new(Schema::clone(&schema.project(&rest)?));
        let (file, folders) = Default::default();
        Ok(Writer { root, files, format, dialect, options, columns, rest, schema, file, folders })
    }

    fn write_all(mut self, mut batches: Receiver<Option<RecordBatch>>, decision: &Arc<Decision>) -> Result<u64> {
        let mut rows = 0;
        loop {
            match batches.blocking_recv() {
                Some(Some(batch)) => {
                    decision.check()?;
                    rows += batch.num_rows() as u64;
                    self.write(&batch, decision)?;
                }
                Some(None) => {
                    match self.file.take() {
                        Some(file) => file.finish(Some(decision))?,
                        None => decision.commit()?,
                    }
                    return Ok(rows);
                }
                None => return Err(Error::Cancelled),
            }
        }
    }

    fn write(&mut self, batch: &RecordBatch, decision: &Arc<Decision>) -> Result<()> {
        let keys: Vec<ArrayRef> = self.columns.iter().map(|(column, _)| batch.column(*column).clone()).collect();
        let rest = batch.project(&self.rest)?;
        let converted = keys.iter().zip(&self.columns).map(|(key, (_, name))| convert(key, name));
        let converted = converted.collect::<Result<Vec<_>>>()?;
        for Range { start, end } in partition(&converted)?.ranges() {
            let folder = self.folder(&converted, start)?;
            if self.file.as_ref().is_none_or(|file| file.folder != folder) {
                decision.check()?;
                self.begin(folder, decision)?;
            }
            if let Some(file) = &mut self.file {
                file.write(&rest.slice(start, end - start))?;
            }
        }
        Ok(())
    }

    /// The name of the folder of a row.
    fn folder(&self, keys: &[ArrayRef], row: usize) -> Result<String> {
        let mut folder = String::new();
        for (key, (_, name)) in keys.iter().zip(&self.columns) {
            let mut value = String::new();
            match key.is_null(row) {
                true => value.push_str(NULL),
                false => {
                    let formatter = Formatter::new(key).ok_or_else(|| unsupported(name, key.data_type()))?;
                    formatter.write(row, &mut value);
                    value = escaped(&value);
                }
            }
            if !folder.is_empty() {
                folder.push('/');
            }
            folder.push_str(&format!("{name}={value}"));
        }
        Ok(folder)
    }

    /// Ends the file and begins that of another folder.
    fn begin(&mut self, folder: String, decision: &Arc<Decision>) -> Result<()> {
        if let Some(file) = self.file.take() {
            file.finish(None)?;
        }
        if !self.folders.insert(folder.clone()) {
            return Err(Error::Internal(format!("the rows of \"{folder}\" are not together")));
        }
        let directory = self.root.join(&folder);
        let path = directory.join(self.name());
        // Before a directory is created, where a symbolic link may lead.
        self.files.check(&path)?;
        if object_url(&path).is_none() {
            create_directories(&directory).map_err(|error| Error::io("create", &directory, error))?;
        }
        let (target, pending) = Output::of(&path, &self.files, decision)?.open()?;
        let sink = match self.format {
            Format::Parquet => Rows::Parquet(Box::new(ParquetSink::new(target, &self.options, &self.schema)?)),
            format => {
                let encoder = match format {
                    Format::Json => TextEncoder::json(&self.schema)?,
                    _ => TextEncoder::delimited(&self.schema, self.dialect.clone())?,
                };
                let has_header = format == Format::Csv && self.options.header.unwrap_or(true);
                let header = if has_header { encoder.header() } else { String::new() };
                let file = TextFile::new(target, self.options.compression(&path));
                let file = file.map_err(|error| Error::io("write", &path, error))?;
                Rows::Text(Box::new(TextSink::new(file, &header)?), encoder, 0)
            }
        };
        self.file = Some(File { folder, sink, pending });
        Ok(())
    }

    fn name(&self) -> String {
        let extension = match self.format {
            Format::Parquet => return format!("{FILE}.parquet"),
            Format::Csv => "csv",
            Format::Json => "json",
            Format::Tbl => "tbl",
        };
        match self.options.compression {
            None | Some(Compression::None) => format!("{FILE}.{extension}"),
            Some(compression) => format!("{FILE}.{extension}.{}", compression.extension()),
        }
    }
}

impl File {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        match &mut self.sink {
            Rows::Parquet(sink) => sink.write(batch),
            Rows::Text(sink, encoder, rows) => {
                sink.write(&encoder.encode(batch, *rows)?)?;
                *rows += batch.num_rows() as u64;
                Ok(())
            }
        }
    }

    fn finish(self, decision: Option<&Decision>) -> Result<()> {
        let target = match self.sink {
            Rows::Parquet(sink) => sink.finish()?,
            Rows::Text(sink, ..) => sink.finish()?,
        };
        self.pending.finish(target, decision)
    }
}

/// Creates a directory, with those above it, durably.
fn create_directories(directory: &Path) -> std::io::Result<()> {
    if directory.as_os_str().is_empty() || directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().unwrap_or(Path::new(""));
    create_directories(parent)?;
    match std::fs::create_dir(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    std::fs::File::open(parent)?.sync_all()
}

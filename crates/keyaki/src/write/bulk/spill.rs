//! Sorted runs in temporary files, in Arrow's IPC stream format.
//!
//! The files have no directory entries. The operating system frees them when they are closed, even if the process is killed.

use std::fs::File;
use std::io::{BufReader, BufWriter, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;

use crate::{Error, Result};

/// Buffer size of file reads and writes.
pub(super) const BUFFER_BYTES: usize = 256 << 10;

/// Directory of the temporary files.
#[derive(Debug, Clone)]
pub(super) struct SpillDir(PathBuf);

impl SpillDir {
    /// The database directory, or the system's directory for temporary files if the database directory does not exist
    /// in the file system (a database on a simulated device).
    pub fn new(database: &Path) -> Self {
        SpillDir(if database.is_dir() { database.to_path_buf() } else { std::env::temp_dir() })
    }

    fn file(&self) -> Result<File> {
        tempfile::tempfile_in(&self.0).map_err(|error| Error::io("create a temporary file in", &self.0, error))
    }
}

/// Writes one run.
pub(super) struct RunWriter {
    writer: StreamWriter<BufWriter<File>>,
    rows: u64,
}

/// A finished run.
#[derive(Debug)]
pub(super) struct SpilledRun {
    file: File,
    pub rows: u64,
}

/// Reads a run. Dropping the reader frees the file.
#[derive(Debug)]
pub(super) struct RunReader(StreamReader<BufReader<File>>);

impl RunWriter {
    pub fn new(dir: &SpillDir, schema: &Schema) -> Result<Self> {
        let file = BufWriter::with_capacity(BUFFER_BYTES, dir.file()?);
        Ok(RunWriter { writer: StreamWriter::try_new(file, schema)?, rows: 0 })
    }

    pub fn push(&mut self, batch: &RecordBatch) -> Result<()> {
        self.rows += batch.num_rows() as u64;
        self.writer.write(batch).map_err(Error::from)
    }

    pub fn finish(self) -> Result<SpilledRun> {
        let file = self.writer.into_inner()?;
        let file = file.into_inner().map_err(|error| spill_error("write", error.into_error()))?;
        Ok(SpilledRun { file, rows: self.rows })
    }
}

impl SpilledRun {
    pub fn read(mut self) -> Result<RunReader> {
        self.file.seek(SeekFrom::Start(0)).map_err(|error| spill_error("read", error))?;
        let file = BufReader::with_capacity(BUFFER_BYTES, self.file);
        Ok(RunReader(StreamReader::try_new(file, None)?))
    }
}

impl RunReader {
    pub fn next(&mut self) -> Result<Option<RecordBatch>> {
        self.0.next().transpose().map_err(Error::from)
    }
}

/// An I/O error of a temporary file, which has no path.
fn spill_error(operation: &'static str, error: std::io::Error) -> Error {
    Error::io(operation, Path::new("temporary file"), error)
}

//! The program's errors and their exit codes.

use std::io;
use std::path::{Path, PathBuf};

use crate::remote;

pub type Result<T> = std::result::Result<T, Failure>;

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Database(#[from] keyaki::Error),
    #[error(transparent)]
    Device(#[from] keyaki_device::Error),
    #[error(transparent)]
    Arrow(#[from] datafusion::arrow::error::ArrowError),
    #[error(transparent)]
    Parquet(#[from] datafusion::parquet::errors::ParquetError),
    #[error(transparent)]
    Remote(remote::Error),
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    /// Writing to standard output or the pager failed.
    #[error("output: {0}")]
    Output(io::Error),
    #[error("{0}")]
    Message(String),
    #[error("{0}")]
    Usage(String),
    #[error("cancelled")]
    Cancelled,
    /// A statement failed, and its error is on standard error already.
    #[error("")]
    Reported,
    /// A repair has ended with a new database, in which something is missing. The report is on standard output already.
    #[error("the new database lacks data of the damaged one")]
    Incomplete,
}

impl From<remote::Error> for Failure {
    fn from(error: remote::Error) -> Failure {
        match error {
            remote::Error::Cancelled => Failure::Cancelled,
            error => Failure::Remote(error),
        }
    }
}

impl Failure {
    /// Adds the path to an I/O error.
    pub fn file(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure::File { path: path.as_ref().to_path_buf(), source }
    }

    pub fn message(text: impl Into<String>) -> Failure {
        Failure::Message(text.into())
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Incomplete => 3,
            Failure::Remote(remote::Error::Usage(_)) => 2,
            Failure::Cancelled => 130,
            Failure::Database(error) if matches!(error.root(), keyaki::Error::Cancelled) => 130,
            _ => 1,
        }
    }

    /// True if the reader of standard output closed it early, as `head` does. This is not reported as an error.
    pub fn is_broken_pipe(&self) -> bool {
        match self {
            Failure::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            // COPY TO STDOUT.
            Failure::Database(error) => matches!(error.root(), keyaki::Error::Io { path, source, .. }
                if path == Path::new("/dev/stdout") && source.kind() == io::ErrorKind::BrokenPipe),
            _ => false,
        }
    }
}

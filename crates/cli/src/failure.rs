//! What ends a run of the program early, and with which exit code.

use std::io;
use std::path::{Path, PathBuf};

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
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    /// Standard output (or the pager) does not take any more.
    #[error("output: {0}")]
    Output(io::Error),
    #[error("{0}")]
    Message(String),
    #[error("{0}")]
    Usage(String),
    #[error("cancelled")]
    Cancelled,
    /// The error has been shown already.
    #[error("")]
    Reported,
}

impl Failure {
    pub fn file(path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure::File { path: path.as_ref().to_path_buf(), source }
    }

    pub fn message(text: impl Into<String>) -> Failure {
        Failure::Message(text.into())
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Cancelled | Failure::Database(keyaki::Error::Cancelled) => 130,
            _ => 1,
        }
    }

    /// The reader of our output went away; nobody wants to hear about it.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Failure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

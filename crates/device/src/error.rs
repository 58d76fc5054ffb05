//! What can go wrong with a device: always which call, on which path, at which offset.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub type Result<T> = std::result::Result<T, Error>;

/// A failed device call. Cloneable, because one failed read may have many waiters.
#[derive(Debug, Clone)]
pub struct Error {
    /// `"read"`, `"write"`, `"sync"`, `"open"` …
    pub operation: &'static str,
    pub path: PathBuf,
    pub offset: u64,
    pub len: u64,
    pub kind: ErrorKind,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum ErrorKind {
    #[error("no space left on the device")]
    NoSpace,
    #[error("the file ends before the requested range")]
    Short,
    #[error("locked by another process or another open handle")]
    Locked,
    #[error("not found")]
    NotFound,
    #[error("exists already")]
    Exists,
    #[error("{0}")]
    Other(Arc<io::Error>),
}

impl Error {
    pub fn new(operation: &'static str, path: &Path, offset: u64, len: u64, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
            io::ErrorKind::UnexpectedEof => ErrorKind::Short,
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::AlreadyExists => ErrorKind::Exists,
            io::ErrorKind::WouldBlock if operation == "lock" => ErrorKind::Locked,
            _ => ErrorKind::Other(Arc::new(source)),
        };
        Error { operation, path: path.to_path_buf(), offset, len, kind }
    }

    /// A failed call that has no range.
    pub(crate) fn on_path(operation: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Error::new(operation, path, 0, 0, source.into())
    }

    pub(crate) fn invalid(operation: &'static str, path: &Path, offset: u64, len: u64, why: &'static str) -> Self {
        Error::new(operation, path, offset, len, io::Error::new(io::ErrorKind::InvalidInput, why))
    }

    pub fn is_no_space(&self) -> bool {
        matches!(self.kind, ErrorKind::NoSpace)
    }
    pub fn is_short(&self) -> bool {
        matches!(self.kind, ErrorKind::Short)
    }
    pub fn is_locked(&self) -> bool {
        matches!(self.kind, ErrorKind::Locked)
    }
    pub fn is_not_found(&self) -> bool {
        matches!(self.kind, ErrorKind::NotFound)
    }
    pub fn is_exists(&self) -> bool {
        matches!(self.kind, ErrorKind::Exists)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Error { operation, path, offset, len, kind } = self;
        if *len == 0 && *offset == 0 {
            write!(f, "{operation} {}: {kind}", path.display())
        } else {
            write!(f, "{operation} of {len} bytes at offset {offset} of {}: {kind}", path.display())
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ErrorKind::Other(source) => Some(source.as_ref()),
            _ => None,
        }
    }
}

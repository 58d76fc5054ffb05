//! What can go wrong with a device: always which call, on which path, at which offset.

use std::io;
use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, Error>;

/// A failed device call. Cloneable, because one failed read may have many waiters.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{operation} of {} bytes at offset {offset} of {}: {kind}", .len, .path.display())]
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
    Other(std::sync::Arc<io::Error>),
}

impl Error {
    pub fn new(operation: &'static str, path: &Path, offset: u64, len: u64, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
            io::ErrorKind::UnexpectedEof => ErrorKind::Short,
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::AlreadyExists => ErrorKind::Exists,
            io::ErrorKind::WouldBlock => ErrorKind::Locked,
            _ => ErrorKind::Other(std::sync::Arc::new(source)),
        };
        Error { operation, path: path.to_path_buf(), offset, len, kind }
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
}

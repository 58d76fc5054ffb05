//! Errors of device calls: the operation, the file and byte range where there are any, and the cause.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::memory::BLOCK;

/// The result of a device call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failed device call. Cloneable, because one failed read may have many waiters.
#[derive(Debug, Clone)]
pub struct Error {
    /// The call that failed.
    pub operation: Operation,
    /// The file or directory; `None` for calls on queues, threads and whole devices.
    pub path: Option<PathBuf>,
    /// The bytes of the file, for calls on a part of it.
    pub range: Option<ByteRange>,
    /// The cause.
    pub kind: ErrorKind,
}

/// A range of a file, in bytes. A length of 0 denotes a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// A device call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Opening or creating a file.
    Open,
    /// Reading from a file.
    Read,
    /// Writing to a file.
    Write,
    /// `fdatasync` of a file.
    Sync,
    /// Setting the length of a file.
    Truncate,
    /// Reserving space in a file.
    Allocate,
    /// Querying the length of a file.
    Length,
    /// Creating a directory.
    CreateDir,
    /// Listing a directory.
    List,
    /// Testing the existence of a path.
    Exists,
    /// Removing a file or directory.
    Remove,
    /// Renaming a file or directory; the error's path is the old name.
    Rename,
    /// `fsync` of a directory.
    SyncDir,
    /// Taking a lock.
    Lock,
    /// Marking a file, or listing its marks.
    Mark,
    /// Selecting the device by `KEYAKI_IO`.
    SelectDevice,
    /// Setting up io_uring.
    SetUpRing,
    /// Creating a queue.
    CreateQueue,
    /// Handing requests to the operating system.
    Submit,
    /// Collecting completions.
    Complete,
    /// Measuring a device.
    Calibrate,
    /// Writing a calibration file.
    SaveCalibration,
    /// Reading a calibration file.
    LoadCalibration,
    /// Copying a file into a simulated device.
    Import,
    /// Making a range of a simulated file unreadable.
    FailReads,
    /// Flipping a bit of a simulated file.
    FlipBit,
}

impl Operation {
    /// The operation as the verb phrase of "could not …", before the path: `"read"`, `"allocate space in"`.
    pub const fn verb(self) -> &'static str {
        match self {
            Operation::Open => "open",
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Sync => "fsync",
            Operation::Truncate => "truncate",
            Operation::Allocate => "allocate space in",
            Operation::Length => "get the length of",
            Operation::CreateDir => "create directory",
            Operation::List => "list directory",
            Operation::Exists => "look up",
            Operation::Remove => "remove",
            Operation::Rename => "rename",
            Operation::SyncDir => "fsync directory",
            Operation::Lock => "lock",
            Operation::Mark => "mark",
            Operation::SelectDevice => "select an I/O device",
            Operation::SetUpRing => "set up io_uring",
            Operation::CreateQueue => "create an I/O queue",
            Operation::Submit => "submit I/O requests",
            Operation::Complete => "collect I/O completions",
            Operation::Calibrate => "calibrate",
            Operation::SaveCalibration => "save calibration",
            Operation::LoadCalibration => "load calibration",
            Operation::Import => "import",
            Operation::FailReads => "make unreadable",
            Operation::FlipBit => "flip a bit of",
        }
    }
}

/// The cause of an [`Error`].
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The disk or a quota is full.
    #[error("no space left on device")]
    NoSpace,
    /// The file ends before the end of the requested range.
    #[error("unexpected end of file")]
    EndOfFile,
    /// Another process, or another opener in this one, holds the lock.
    #[error("locked by {}", .holder.as_deref().unwrap_or("another process or another open handle"))]
    Locked {
        /// The process with the lock, for example `process 1234 (keyaki)`; `None` if it is unknown.
        holder: Option<String>,
    },
    /// The path does not exist.
    #[error("no such file or directory")]
    NotFound,
    /// The path exists already.
    #[error("file exists")]
    Exists,
    /// The offset is not a multiple of [`BLOCK`].
    #[error("the offset is not a multiple of {BLOCK}")]
    UnalignedOffset,
    /// The length is not a multiple of [`BLOCK`].
    #[error("the length is not a multiple of {BLOCK}")]
    UnalignedLength,
    /// The range ends beyond `i64::MAX`, the largest file offset.
    #[error("the range ends beyond the largest file offset")]
    OutOfRange,
    /// The request names a file of another device.
    #[error("the file belongs to another device")]
    ForeignFile,
    /// A queue of io_uring was used on another thread while requests were in flight.
    #[error("the queue was moved to another thread with requests in flight")]
    QueueMoved,
    /// The kernel's io_uring lacks a feature that Keyaki needs.
    #[error("the kernel's io_uring is too old (Linux 5.13 or later is required)")]
    KernelTooOld,
    /// `KEYAKI_IO` has a value other than `uring` and `threads`.
    #[error("invalid value for environment variable KEYAKI_IO: \"{value}\" (use \"uring\" or \"threads\")")]
    UnknownDevice {
        /// The variable's value; bytes that are not UTF-8 are replaced.
        value: String,
    },
    /// The simulated machine is down, or was restarted after the handle had been opened.
    #[error("the simulated machine has lost power")]
    PowerLost,
    /// An error injected into the simulated device.
    #[error("simulated I/O error")]
    Injected,
    /// The measurements or their options are unusable.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// Any other error of the operating system.
    #[error("{0}")]
    Io(Arc<io::Error>),
}

/// Unusable measurements, or unusable options of a measurement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationError {
    /// The file has another format version.
    #[error("calibration has format version {found}, expected {expected}")]
    Version {
        /// Version in the file.
        found: u32,
        /// Version that this program reads and writes.
        expected: u32,
    },
    /// There is no measurement of reads.
    #[error("calibration has no measurements")]
    Empty,
    /// A rate is not a positive finite number, or a size or depth is 0.
    #[error("calibration has a size, depth or rate that is not positive")]
    NotPositive,
    /// The measurements are not sorted.
    #[error("calibration is not sorted by request size and depth")]
    Unsorted,
    /// The options have no request sizes, or an invalid one.
    #[error("request sizes must be positive multiples of {BLOCK}")]
    RequestSizes,
    /// The options have no depths, or a depth of 0.
    #[error("depths must be at least 1")]
    Depths,
    /// The file to be measured is too short.
    #[error("the file has {file_bytes} bytes, the largest request needs {request_bytes}")]
    FileTooShort {
        /// Length of the file.
        file_bytes: u64,
        /// Length of the largest request.
        request_bytes: u64,
    },
}

impl From<io::Error> for ErrorKind {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
            io::ErrorKind::UnexpectedEof => ErrorKind::EndOfFile,
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::AlreadyExists => ErrorKind::Exists,
            _ => ErrorKind::Io(Arc::new(error)),
        }
    }
}

impl From<io::ErrorKind> for ErrorKind {
    fn from(kind: io::ErrorKind) -> Self {
        io::Error::from(kind).into()
    }
}

#[cfg(unix)]
impl From<rustix::io::Errno> for ErrorKind {
    fn from(error: rustix::io::Errno) -> Self {
        io::Error::from(error).into()
    }
}

impl Error {
    /// A failed call on a whole file or directory.
    pub fn new(operation: Operation, path: &Path, kind: impl Into<ErrorKind>) -> Self {
        Error { operation, path: Some(path.to_path_buf()), range: None, kind: kind.into() }
    }

    /// A failed call on `len` bytes of a file from `offset` on.
    pub fn in_range(operation: Operation, path: &Path, offset: u64, len: u64, kind: impl Into<ErrorKind>) -> Self {
        Error { range: Some(ByteRange { offset, len }), ..Error::new(operation, path, kind) }
    }

    /// A failed call that concerns no file.
    pub fn without_path(operation: Operation, kind: impl Into<ErrorKind>) -> Self {
        Error { operation, path: None, range: None, kind: kind.into() }
    }

    /// The disk is full. Nothing was changed, and the call may be repeated once there is space, unless it was a sync: a
    /// failed sync may have lost any change that it covers, and a later one reports success all the same.
    pub fn is_no_space(&self) -> bool {
        matches!(self.kind, ErrorKind::NoSpace)
    }

    /// A read reached the end of the file.
    pub fn is_end_of_file(&self) -> bool {
        matches!(self.kind, ErrorKind::EndOfFile)
    }

    /// The lock is held by another opener.
    pub fn is_locked(&self) -> bool {
        matches!(self.kind, ErrorKind::Locked { .. })
    }

    /// The process that holds the lock, for example `process 1234 (keyaki)`, if this is an error of a lock and the process
    /// is known.
    pub fn lock_holder(&self) -> Option<&str> {
        match &self.kind {
            ErrorKind::Locked { holder } => holder.as_deref(),
            _ => None,
        }
    }

    /// The path does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self.kind, ErrorKind::NotFound)
    }

    /// The path exists already.
    pub fn is_exists(&self) -> bool {
        matches!(self.kind, ErrorKind::Exists)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not {}", self.operation.verb())?;
        if let Some(path) = &self.path {
            write!(f, " \"{}\"", path.display())?;
        }
        match self.range {
            Some(ByteRange { offset, len: 0 }) => write!(f, " (at offset {offset})")?,
            Some(ByteRange { offset, len }) => write!(f, " ({len} bytes at offset {offset})")?,
            None => {}
        }
        write!(f, ": {}", self.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ErrorKind::Io(source) => Some(source.as_ref()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_operation_file_range_and_cause() {
        let path = Path::new("data");
        let error = Error::in_range(Operation::Read, path, 8192, 4096, ErrorKind::EndOfFile);
        assert_eq!(error.to_string(), "could not read \"data\" (4096 bytes at offset 8192): unexpected end of file");
        let error = Error::in_range(Operation::Truncate, path, 100, 0, io::ErrorKind::StorageFull);
        assert_eq!(error.to_string(), "could not truncate \"data\" (at offset 100): no space left on device");
        let error = Error::new(Operation::Open, path, io::Error::from(io::ErrorKind::NotFound));
        assert_eq!(error.to_string(), "could not open \"data\": no such file or directory");
        let error = Error::without_path(Operation::CreateQueue, ErrorKind::KernelTooOld);
        assert_eq!(
            error.to_string(),
            "could not create an I/O queue: the kernel's io_uring is too old (Linux 5.13 or later is required)"
        );
    }
}

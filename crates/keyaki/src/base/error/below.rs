//! Errors of the store, the executor, the device and the runtime.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use keyaki_device::{ErrorKind, Operation};
use keyaki_exec::Error as ExecError;
use keyaki_publish::Error as PublishError;
use keyaki_store::Error as StoreError;

use super::{Error, ObjectKind, SqlState, datafusion};

impl Error {
    /// The error for a task that panicked (`Internal`) or was cancelled by the shutdown of its runtime (`Cancelled`).
    pub(crate) fn task(error: &tokio::task::JoinError) -> Error {
        match error.is_cancelled() {
            true => Error::Cancelled,
            false => Error::Internal(format!("a background task failed: {error}")),
        }
    }
}

impl From<keyaki_device::Error> for Error {
    fn from(error: keyaki_device::Error) -> Self {
        let keyaki_device::Error { operation, path, range, kind } = error;
        // A sync that fails for lack of space may have lost writes, so it is no `DiskFull`.
        let is_sync = matches!(operation, Operation::Sync | Operation::SyncDir);
        let (operation, path) = (operation.verb(), path.unwrap_or_else(|| PathBuf::from("device")));
        let io_kind = match &kind {
            ErrorKind::NoSpace if is_sync => io::ErrorKind::StorageFull,
            ErrorKind::NoSpace => return Error::DiskFull { path, operation },
            ErrorKind::Locked { holder } => return Error::Locked { path, holder: holder.clone() },
            ErrorKind::EndOfFile => io::ErrorKind::UnexpectedEof,
            ErrorKind::NotFound => io::ErrorKind::NotFound,
            ErrorKind::Exists => io::ErrorKind::AlreadyExists,
            ErrorKind::Io(error) => error.kind(),
            _ => io::ErrorKind::Other,
        };
        let source = match kind {
            ErrorKind::Io(error) => error,
            kind => Arc::new(io::Error::new(io_kind, kind)),
        };
        Error::Io { path, operation, offset: range.map(|range| range.offset), source }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Device(error) => error.into(),
            StoreError::DiskFull { path, operation, .. } => Error::DiskFull { path, operation },
            StoreError::OutOfMemory { what, requested, budget } => Error::OutOfMemory {
                consumer: what.into(),
                requested: Some(requested),
                available: None,
                budget: Some(budget),
                remedy: "raise the memory of the database",
            },
            StoreError::Corrupt { path, what, offset, detail } => Error::Corrupt { path, what, offset, detail },
            StoreError::DatabaseNotFound { path } => {
                Error::NotFound { kind: ObjectKind::Database, name: path.display().to_string() }
            }
            StoreError::NotADatabase { path, detail } => Error::NotADatabase { path, detail },
            StoreError::FormatVersion { path, found, supported } => Error::FormatVersion { path, found, supported },
            StoreError::Locked { path, holder } => Error::Locked { path, holder },
            StoreError::ReadOnly => Error::ReadOnlyDatabase { statement: "this statement".into() },
            StoreError::Conflict { .. } => Error::Conflict { relation: None },
            StoreError::PageSource(error) => external(&*error),
            other => Error::Store(other),
        }
    }
}

/// The code of an error of the store that has no variant in [`Error`].
pub(super) fn sqlstate(error: &StoreError) -> SqlState {
    match error {
        StoreError::TooLarge { .. } => SqlState::PROGRAM_LIMIT_EXCEEDED,
        StoreError::Poisoned { .. } => SqlState::IO_ERROR,
        StoreError::Quarantined { .. } => SqlState::DATA_CORRUPTED,
        StoreError::Closed => SqlState::ADMIN_SHUTDOWN,
        StoreError::Overtaken { .. } => SqlState::OBJECT_IN_USE,
        _ => SqlState::INTERNAL_ERROR,
    }
}

impl From<PublishError> for Error {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Database(error) => error.into(),
            PublishError::Device(error) => error.into(),
            other => Error::ObjectStore(other),
        }
    }
}

/// The code of an error of an object store.
pub(super) fn sqlstate_of_publish(error: &PublishError) -> SqlState {
    match error {
        PublishError::InvalidUrl { .. } => SqlState::INVALID_PARAMETER_VALUE,
        PublishError::NoVersion { .. } | PublishError::VersionNotFound { .. } => SqlState::INVALID_CATALOG_NAME,
        PublishError::OtherDatabase { .. } | PublishError::OlderState { .. } => {
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE
        }
        PublishError::Conflict { .. } | PublishError::LeaseExpired { .. } => SqlState::OBJECT_IN_USE,
        PublishError::DirectoryNotEmpty { .. } => SqlState::DUPLICATE_FILE,
        PublishError::FormatVersion { .. } => SqlState::FEATURE_NOT_SUPPORTED,
        PublishError::Damaged { .. } | PublishError::Malformed { .. } => SqlState::DATA_CORRUPTED,
        _ => SqlState::IO_ERROR,
    }
}

impl From<ExecError> for Error {
    fn from(error: ExecError) -> Self {
        match error {
            ExecError::Store(error) => error.into(),
            ExecError::Device(error) => error.into(),
            ExecError::Filter(error) => external(&*error),
            ExecError::Arrow(error) => Error::from(&*error),
            ExecError::Cancelled => Error::Cancelled,
            ExecError::TooManyRows { .. } => Error::Evaluation(error.to_string()),
            other => Error::Internal(other.to_string()),
        }
    }
}

/// A boxed error of any source: Keyaki's, the store's, the executor's, the device's or a library's.
pub(super) fn external(error: &(dyn StdError + Send + Sync + 'static)) -> Error {
    if let Some(error) = error.downcast_ref::<Error>() {
        error.clone()
    } else if let Some(error) = error.downcast_ref::<StoreError>() {
        error.clone().into()
    } else if let Some(error) = error.downcast_ref::<ExecError>() {
        error.clone().into()
    } else if let Some(error) = error.downcast_ref::<keyaki_device::Error>() {
        error.clone().into()
    } else {
        datafusion::external(error)
    }
}

//! What users are told when something does not work.

use std::path::PathBuf;

use arrow::error::ArrowError;
use datafusion::error::DataFusionError;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] keyaki_store::Error),
    #[error(transparent)]
    Exec(#[from] keyaki_exec::Error),
    #[error(transparent)]
    Device(#[from] keyaki_device::Error),
    /// The statement cannot be parsed.
    #[error("{0}")]
    Syntax(String),
    /// Planning or execution in DataFusion failed.
    #[error("{}", .0.strip_backtrace())]
    DataFusion(#[source] DataFusionError),
    #[error("{kind} \"{name}\" does not exist")]
    NotFound { kind: &'static str, name: String },
    #[error("{kind} \"{name}\" already exists")]
    Exists { kind: &'static str, name: String },
    /// A primary key or unique index has the value already. `key`: `(id)=(5)`.
    #[error("duplicate key in \"{constraint}\" of table \"{table}\": {key} already exists")]
    Duplicate { table: String, constraint: String, key: String },
    #[error("column \"{column}\" of table \"{table}\" must not be null")]
    NotNull { table: String, column: String },
    /// A value does not fit its column.
    #[error("{0}")]
    Value(String),
    /// A file given to COPY: where in it, and what is wrong. `row` counts from 1.
    #[error("{}{}{}: {message}", .path.display(), .row.map(|r| format!(", row {r}")).unwrap_or_default(), .column.as_ref().map(|c| format!(", column {c}")).unwrap_or_default())]
    Import { path: PathBuf, row: Option<u64>, column: Option<String>, message: String },
    /// Valid SQL that Keyaki does not have.
    #[error("not supported: {0}")]
    Unsupported(String),
    #[error("{0}")]
    Invalid(String),
    #[error("cancelled")]
    Cancelled,
}

impl From<Error> for DataFusionError {
    fn from(error: Error) -> Self {
        match error {
            Error::DataFusion(inner) => inner,
            other => DataFusionError::External(Box::new(other)),
        }
    }
}

impl From<DataFusionError> for Error {
    /// Finds our own error again, if it went through DataFusion.
    fn from(error: DataFusionError) -> Self {
        match error {
            DataFusionError::External(inner) => match inner.downcast::<Error>() {
                Ok(own) => *own,
                Err(inner) => Error::DataFusion(DataFusionError::External(inner)),
            },
            DataFusionError::ArrowError(arrow, backtrace) => match *arrow {
                ArrowError::ExternalError(inner) => match inner.downcast::<DataFusionError>() {
                    Ok(inner) => Error::from(*inner),
                    Err(inner) => Error::from(DataFusionError::External(inner)),
                },
                arrow => Error::DataFusion(DataFusionError::ArrowError(Box::new(arrow), backtrace)),
            },
            DataFusionError::Context(_, inner) if has_own(&inner) => Error::from(*inner),
            other => Error::DataFusion(other),
        }
    }
}

/// Whether an error of ours is at the bottom.
fn has_own(error: &DataFusionError) -> bool {
    match error {
        DataFusionError::External(inner) => inner.is::<Error>(),
        DataFusionError::Context(_, inner) => has_own(inner),
        _ => false,
    }
}

/// An error of Arrow, or our own error in it.
pub(crate) fn arrow_error(error: ArrowError) -> Error {
    recover(DataFusionError::from(error))
}

/// Our own error, if that is what another library passes on.
pub(crate) fn recover(error: DataFusionError) -> Error {
    match error {
        DataFusionError::External(inner) => match inner.downcast::<Error>() {
            Ok(own) => *own,
            Err(inner) => Error::DataFusion(DataFusionError::External(inner)),
        },
        DataFusionError::ArrowError(inner, trace) => match *inner {
            ArrowError::ExternalError(inner) => recover(DataFusionError::External(inner)),
            inner => Error::DataFusion(DataFusionError::ArrowError(Box::new(inner), trace)),
        },
        other => Error::DataFusion(other),
    }
}

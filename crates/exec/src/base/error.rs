//! Errors of the executor: one variant for each case that a caller may handle in its own way.
//!
//! Pages are read through [`keyaki_store::PageSource`], whose methods return errors of the store. An error of the executor
//! crosses that interface inside [`keyaki_store::Error::PageSource`]; the conversions here unwrap it on the way back.
//!
//! The comment of a variant names the SQLSTATE condition of PostgreSQL that describes it best.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use arrow_schema::{ArrowError, DataType};

/// The result of a call into the executor.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a scan or pipeline failed. `Clone`, because one failed read may have many waiters.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed, for example because a page is corrupt; the wrapped error has its own SQLSTATE.
    #[error(transparent)]
    Store(keyaki_store::Error),
    /// The device failed outside of a read of the store. SQLSTATE 58030 `io_error`.
    #[error(transparent)]
    Device(#[from] keyaki_device::Error),
    /// A [`Filter`](crate::Filter) returned an error of its own, which callers recover by `downcast_ref`.
    #[error(transparent)]
    Filter(Arc<dyn std::error::Error + Send + Sync>),
    /// A [`Filter`](crate::Filter) returned a mask of the wrong length. SQLSTATE XX000 `internal_error`.
    #[error("filter returned {values} values for {rows} rows")]
    FilterLength {
        /// Rows given to the filter.
        rows: usize,
        /// Values of its mask.
        values: usize,
    },
    /// Columns, types or keys of a scan or pipeline do not fit its trees. SQLSTATE XX000 `internal_error`.
    #[error("invalid plan: {0}")]
    Plan(PlanError),
    /// Arrow could not build or combine columns. SQLSTATE XX000 `internal_error`.
    #[error(transparent)]
    Arrow(Arc<ArrowError>),
    /// Rows collected for one batch exceed the range of their 32-bit indices. SQLSTATE 54000 `program_limit_exceeded`.
    #[error("batch of {rows} rows exceeds the maximum of {limit} rows")]
    TooManyRows {
        /// Rows that the batch would have had.
        rows: usize,
        /// Rows that it may have.
        limit: usize,
    },
    /// A task of the query panicked, most likely in a filter. Other queries are not affected.
    /// SQLSTATE XX000 `internal_error`.
    #[error("task of the query panicked: {0}")]
    Panicked(String),
    /// The stream of rows was dropped, or the caller of [`Executor::touch`](crate::Executor::touch) ended the walk.
    /// SQLSTATE 57014 `query_canceled`.
    #[error("the query was cancelled")]
    Cancelled,
    /// The operating system did not start a thread. SQLSTATE 53000 `insufficient_resources`.
    #[error("could not start thread \"{thread}\": {source}")]
    StartThread {
        /// Name of the thread.
        thread: String,
        /// The operating system's error.
        source: Arc<std::io::Error>,
    },
    /// A worker thread panicked outside of any task, so the executor runs nothing any more.
    /// SQLSTATE XX000 `internal_error`.
    #[error("executor stopped after a worker thread panicked (reopen the database)")]
    ExecutorStopped,
}

/// How a plan does not fit its trees. Steps, columns and key parts are numbered from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// A projected or filtered column does not exist.
    ColumnOutOfRange {
        /// The step of the pipeline; `None` for a scan or the driver.
        step: Option<usize>,
        /// Index of the column.
        column: usize,
        /// Columns there are.
        columns: usize,
    },
    /// A pipeline whose rows are pushed has no steps.
    NoSteps,
    /// Pushed rows have other columns than the driver.
    PushedColumns {
        /// Types of the driver's columns.
        expected: Vec<DataType>,
        /// Types of the columns pushed.
        found: Vec<DataType>,
    },
    /// A step gives more key values than the key of its tree has columns.
    TooManyKeyParts {
        /// The step.
        step: usize,
        /// Values given.
        parts: usize,
        /// Columns of the key.
        key_columns: usize,
    },
    /// A key value comes from a column that the rows of the step before do not have.
    KeyColumnOutOfRange {
        /// The step.
        step: usize,
        /// The key part.
        part: usize,
        /// Index of the column.
        column: usize,
        /// Columns there are.
        columns: usize,
    },
    /// A constant of a key is an array of several values, or of none.
    ConstantLength {
        /// The step.
        step: usize,
        /// The key part.
        part: usize,
        /// Values of the array.
        values: usize,
    },
    /// A key value has another type than its key column.
    KeyType {
        /// The step.
        step: usize,
        /// The key part.
        part: usize,
        /// Arrow type of the key column.
        expected: DataType,
        /// Arrow type of the value.
        found: DataType,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PlanError::ColumnOutOfRange { step, column, columns } => {
                if let Some(step) = step {
                    write!(f, "step {step}: ")?;
                }
                write!(f, "column {column} is out of range, {columns} columns exist")
            }
            PlanError::NoSteps => write!(f, "a pipeline of pushed rows needs a step"),
            PlanError::PushedColumns { expected, found } => {
                write!(f, "rows with columns {found:?} were pushed, expected {expected:?}")
            }
            PlanError::TooManyKeyParts { step, parts, key_columns } => {
                write!(f, "step {step}: {parts} values given for a key of {key_columns} columns")
            }
            PlanError::KeyColumnOutOfRange { step, part, column, columns } => {
                write!(f, "step {step}, key column {part}: column {column} is out of range, {columns} columns exist")
            }
            PlanError::ConstantLength { step, part, values } => {
                write!(f, "step {step}, key column {part}: constant has {values} values, expected 1")
            }
            PlanError::KeyType { step, part, expected, found } => {
                write!(f, "step {step}, key column {part} is of type {expected}, but its value is of type {found}")
            }
        }
    }
}

impl std::error::Error for PlanError {}

impl Error {
    /// The error for a filter that failed with an error of its own.
    pub fn filter(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Error::Filter(Arc::new(error))
    }

    /// The error for a thread that the operating system did not start.
    pub(crate) fn start_thread(thread: &str, source: std::io::Error) -> Self {
        Error::StartThread { thread: thread.to_string(), source: Arc::new(source) }
    }

    /// This error as one of the store, for implementations of [`keyaki_store::PageSource`].
    pub(crate) fn into_store_error(self) -> keyaki_store::Error {
        match self {
            Error::Store(error) => error,
            other => keyaki_store::Error::PageSource(Arc::new(other)),
        }
    }
}

impl From<keyaki_store::Error> for Error {
    /// Unwraps an error of the executor that went through a page source.
    fn from(error: keyaki_store::Error) -> Self {
        match &error {
            keyaki_store::Error::PageSource(source) => source.downcast_ref().cloned().unwrap_or(Error::Store(error)),
            _ => Error::Store(error),
        }
    }
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Self {
        Error::Plan(error)
    }
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        Error::Arrow(Arc::new(error))
    }
}

/// The error for a payload caught by [`std::panic::catch_unwind`].
pub(crate) fn panicked(payload: Box<dyn Any + Send>) -> Error {
    let message = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_string(),
        (_, Some(text)) => text.clone(),
        _ => "no message".to_string(),
    };
    Error::Panicked(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_errors_survive_a_page_source() {
        let through_store = Error::Cancelled.into_store_error();
        assert!(matches!(through_store, keyaki_store::Error::PageSource(_)));
        assert!(matches!(Error::from(through_store), Error::Cancelled));
        let of_the_store = Error::from(keyaki_store::Error::Closed);
        assert!(matches!(of_the_store.into_store_error(), keyaki_store::Error::Closed));
    }

    #[test]
    fn filter_errors_keep_their_type_and_text() {
        let error = Error::filter(PlanError::ConstantLength { step: 1, part: 0, values: 2 });
        assert_eq!(error.to_string(), "step 1, key column 0: constant has 2 values, expected 1");
        let Error::Filter(source) = error else { panic!("{error:?}") };
        assert!(source.downcast_ref::<PlanError>().is_some());
    }
}

//! What can go wrong while a query runs.

use std::sync::Arc;

/// The result of a call into the executor.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Cloneable, because one failed read may have many waiters.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A call into the store failed, or the operating system did not start a thread.
    #[error(transparent)]
    Store(keyaki_store::Error),
    #[error(transparent)]
    Device(#[from] keyaki_device::Error),
    /// A filter failed; its own message.
    #[error("{0}")]
    Filter(String),
    /// Columns, types or keys of a scan or pipeline do not fit its trees.
    #[error("invalid plan: {0}")]
    Plan(String),
    /// Columns could not be put together (for instance, a result beyond Arrow's limits).
    #[error("{0}")]
    Arrow(String),
    /// A task (most likely a filter) panicked; the query ends, others go on.
    #[error("a task of the query panicked: {0}")]
    Panicked(String),
    #[error("the query was cancelled")]
    Cancelled,
    #[error("a worker of the executor ended unexpectedly")]
    WorkerGone,
}

impl From<keyaki_store::Error> for Error {
    /// An error of the executor that went through a page source comes out as it went in.
    fn from(error: keyaki_store::Error) -> Self {
        if let keyaki_store::Error::PageSource(source) = &error
            && let Some(own) = source.downcast_ref::<Error>()
        {
            return own.clone();
        }
        Error::Store(error)
    }
}

impl Error {
    /// This error as that of a page source, for code of the store that reads through one.
    pub(crate) fn of_page_source(self) -> keyaki_store::Error {
        keyaki_store::Error::PageSource(Arc::new(self))
    }
}

impl From<arrow_schema::ArrowError> for Error {
    fn from(error: arrow_schema::ArrowError) -> Self {
        Error::Arrow(error.to_string())
    }
}

/// The error for what [`std::panic::catch_unwind`] caught.
pub(crate) fn panicked(payload: Box<dyn std::any::Any + Send>) -> Error {
    let message = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_string(),
        (_, Some(text)) => text.clone(),
        _ => "no message".to_string(),
    };
    Error::Panicked(message)
}

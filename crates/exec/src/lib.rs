//! The out-of-order executor: index scans and index nested-loop joins, taken apart into small tasks at run time, with
//! thousands of reads in flight (OoODE paper, sections 2 and 4).
//!
//! Lookups are ordinary `async` functions over a page source. The out-of-order scheduler runs thousands of them; a task
//! whose page is not cached steps aside until its read arrives. The in-order scheduler, the paper's baseline, runs the
//! same functions one at a time with blocking reads.
//!
//! The executor knows trees, keys and Arrow columns; it does not know SQL.

mod executor;
mod pipeline;
mod stats;

pub use executor::{Executor, ExecutorOptions, Rows};
pub use pipeline::{Driver, Filter, Join, KeyPart, Mode, Pipeline, Scan, Step};
pub use stats::{Sample, Stats, StatsSnapshot};

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Store(#[from] keyaki_store::Error),
    #[error(transparent)]
    Device(#[from] keyaki_device::Error),
    /// A filter failed; its own message.
    #[error("{0}")]
    Filter(String),
    #[error("the query was cancelled")]
    Cancelled,
    #[error("a worker of the executor ended unexpectedly")]
    WorkerGone,
}

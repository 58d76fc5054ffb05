//! Definitions that every other folder uses: errors, options, the description of scans and pipelines, and helpers for
//! Arrow columns. Nothing here reads pages or starts threads.

mod columns;
mod error;
mod mode;
mod options;
mod pipeline;

pub(crate) use columns::{batch, builders, compact, evaluate, memory_bytes, project, slice_bytes};
pub(crate) use error::panicked;
pub use error::{Error, PlanError, Result};
pub use mode::ExecutionMode;
pub use options::ExecutorOptions;
pub use pipeline::{Driver, DriverScan, Filter, Join, KeyPart, Pipeline, Scan, Step};

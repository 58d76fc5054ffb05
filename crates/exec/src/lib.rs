//! The out-of-order executor: index scans and index nested-loop joins, taken apart into small tasks at run time, with
//! thousands of reads in flight (OoODE paper, sections 2 and 4).
//!
//! Lookups are ordinary `async` functions over a page source. The out-of-order scheduler runs thousands of them; a task
//! whose page is not cached steps aside until its read arrives. The in-order scheduler, the paper's baseline, runs the
//! same functions one at a time with blocking reads.
//!
//! The executor knows trees, keys and Arrow columns; it does not know SQL.

mod base;
mod executor;
mod operators;
mod query;
mod runtime;
mod source;

pub use base::error::{Error, Result};
pub use base::mode::ExecutionMode;
pub use base::pipeline::{Driver, Filter, Join, KeyPart, Pipeline, Scan, Step};
pub use executor::{Executor, ExecutorOptions, Rows};
pub use query::cache_use::CacheUse;
pub use query::stats::{Sample, Stats, StatsSnapshot};
pub use query::trace::MemoryTrace;
pub use source::touch::{Touched, touch_page};

//! The out-of-order executor: index scans and index nested-loop joins, divided into small tasks at run time, with thousands
//! of reads in flight (OoODE paper, sections 2 and 4).
//!
//! Tasks are ordinary `async` functions over a page source. Out of order, the executor runs thousands of them; a task whose
//! page is not cached is suspended until its read completes. In order, the paper's baseline, it runs the same functions one
//! at a time with blocking reads.
//!
//! The executor handles trees, keys and Arrow columns. It has no notion of SQL.
//!
//! # Layers
//!
//! A module uses its own folder and the folders below it:
//! `base < query < runtime < source < operators < executor`.
//!
//! - `base`: errors, options, the description of scans and pipelines, helpers for Arrow columns.
//! - `query`: the state of one running query: counters, back-pressure, output.
//! - `runtime`: worker threads, the in-flight table, reads from the device.
//! - `source`: pages for tasks, in order and out of order.
//! - `operators`: the scan and the pipeline.
//! - `executor`: the public face.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod base;
mod executor;
mod operators;
mod query;
mod runtime;
mod source;

pub use base::{
    Driver, DriverScan, Error, ExecutionMode, ExecutorOptions, Filter, Join, KeyPart, Pipeline, PlanError, Result,
    Scan, Step,
};
pub use executor::{Executor, Rows};
pub use query::{CacheUse, MemoryTrace, Sample, Stats, StatsSnapshot};
pub use source::{Touched, touch_page};

// Types of other crates in the signatures above.
pub use keyaki_llc::{Governor, WorkClass};
pub use keyaki_store::{Direction, KeyRange, Page, Store, TreeId, TreeView};

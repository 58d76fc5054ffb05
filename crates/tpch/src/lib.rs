//! TPC-H: the eight tables with their keys and useful indexes, and their rows as Arrow batches.
//!
//! The rows come from `tpchgen`, which gives the same rows as the official generator. [`Rows`] generates them on many threads
//! and delivers them in primary key order. The same scale gives the same rows for any number of threads.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod rows;
mod table;

pub use rows::Rows;
pub use table::{Index, Table};

//! Repair: salvages a damaged database into a new one.
//!
//! ```text
//!   source (read only)                    target
//!   checkpoint, intact log  ── copy ───>  rows of each table, bare definitions     blocking, in the store
//!                           ── finish ─>  indexes, constraints, views, comments    as SQL statements
//!                           ── check ──>  all pages, indexes against tables        CHECK DATABASE
//! ```
//!
//! Only tables are salvaged: indexes are built again. A definition that the salvaged rows violate, because rows are
//! lost or outdated, is left out and reported; no row is dropped for it. A table whose definition is lost is restored
//! under the name `recovered_N`, with the columns of its tree.
//!
//! *Invariant.* The source is opened for reading only.

mod copy;
mod finish;
mod report;

pub(crate) use copy::{Copied, Source, copy};
pub(crate) use finish::finish;
pub use report::{KeySpan, Repaired, RepairedTable};

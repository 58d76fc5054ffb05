//! Writing: from rows to write batches and bulk loads.
//!
//! | module | contents |
//! |---|---|
//! | [`assign`] | values of any type as values of a column |
//! | [`conform`] | rows of a file or a program as rows of a table |
//! | [`text`] | values as text |
//! | [`rows`], [`apply`] | changed rows as messages of a write batch, with uniqueness checked |
//! | [`bulk`] | many rows written straight to leaf extents |
//! | [`statistics`] | statistics collected from loaded or sampled rows |
//!
//! The caller holds the [`Writer`](crate::engine::Writer) from its first read to its commit.

pub(crate) mod apply;
pub(crate) mod assign;
mod bulk;
mod conform;
pub(crate) mod rows;
pub(crate) mod statistics;
pub(crate) mod text;

pub(crate) use bulk::{NoOrigin, Origin, build_index, insert_stream};
pub(crate) use conform::{BadCell, Conform, Defaults, Given};

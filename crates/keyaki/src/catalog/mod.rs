//! Definitions of tables, indexes and views, and everything that follows from a definition alone.
//!
//! | module | contents |
//! |---|---|
//! | [`documents`] | the definitions, and the catalog tree that stores them as JSON documents |
//! | [`types`] | SQL types: their names, column types and Arrow types |
//! | [`table`] | [`Table`]: the tree schemas and column mappings derived from a [`TableDef`] |
//! | [`statistics`] | [`TableStatistics`], which the cost model reads |
//!
//! A [`Catalog`] is immutable. DDL replaces it as a whole.

mod documents;
pub(crate) mod statistics;
mod table;
pub(crate) mod types;

pub use documents::{
    CATALOG_TREE, ColumnDef, IndexDef, IndexMethod, SqlType, TableDef, VastGoal, VastOptions, ViewDef,
};
pub(crate) use documents::{Catalog, Kind, bootstrap, put, remove};
pub(crate) use statistics::TableStatistics;
pub(crate) use table::{HIDDEN_ROWID, Table};

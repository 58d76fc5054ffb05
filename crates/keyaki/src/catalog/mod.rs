//! The catalog: definitions of tables, indexes, views and sequences, and data derived from a definition alone.
//!
//! | module | contents |
//! |---|---|
//! | [`definitions`] | [`TableDef`], [`IndexDef`], [`ViewDef`], [`SequenceDef`] and their parts |
//! | [`documents`] | [`Catalog`]; the catalog tree, which stores definitions as JSON documents |
//! | [`types`] | SQL types: their names, column types and Arrow types |
//! | [`expressions`] | [`Compiled`]: conditions, generated columns and constant defaults of a table in executable form |
//! | [`table`] | [`Table`]: the tree schemas and column mappings derived from a [`TableDef`] |
//! | [`statistics`] | [`TableStatistics`]: input of the cost model |
//!
//! Invariants: a [`Catalog`] is immutable; DDL replaces it as a whole. Every [`Table`] in it has a consistent
//! definition.

mod definitions;
mod documents;
mod expressions;
pub(crate) mod statistics;
mod table;
pub(crate) mod types;

pub use definitions::{
    CheckDef, ColumnDef, ForeignKeyDef, IdentityDef, IndexDef, IndexMethod, ReferentialAction, SequenceDef, SqlType,
    TableDef, VastOptions, ViewDef,
};
pub(crate) use definitions::{SequencePosition, goal_name, goal_of_name};
pub(crate) use documents::{Catalog, DocumentKind, bootstrap, corrupt, document, put, remove};
pub(crate) use expressions::{Check, Compiled, Generated, Generation};
pub(crate) use statistics::TableStatistics;
pub(crate) use table::{HIDDEN_ROWID, Table, TableTree};

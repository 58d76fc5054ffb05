//! The catalog: definitions of tables, indexes, views and sequences, and data derived from a definition alone.
//!
//! | module | contents |
//! |---|---|
//! | [`definitions`] | [`TableDef`], [`IndexDef`], [`ViewDef`], [`SequenceDef`] and their parts |
//! | [`documents`] | [`Catalog`]; the catalog tree, which stores definitions as JSON documents |
//! | [`index_build`] | [`IndexBuild`]: an index that CREATE INDEX CONCURRENTLY is building |
//! | [`names`] | [`RelationName`]: a schema and a name in it |
//! | [`types`] | SQL types: their names, column types and Arrow types |
//! | [`expressions`] | [`Compiled`]: conditions, generated columns, constant defaults and predicates of a table in executable form |
//! | [`privileges`] | [`Access`]: the owner of an object, and the privileges of other roles |
//! | [`roles`] | [`RoleDef`]; [`Authority`]: the privileges of a role |
//! | [`table`] | [`Table`]: the tree schemas and column mappings derived from a [`TableDef`] |
//! | [`salvaged`] | [`SalvagedCatalog`]: the definitions of a damaged database |
//! | [`projection`] | [`Projection`]: rows of a table as rows of one of its trees |
//! | [`statistics`] | [`TableStatistics`]: input of the cost model |
//!
//! Invariants: a [`Catalog`] is immutable; DDL replaces it as a whole. Every [`Table`] in it has a consistent
//! definition.

mod definitions;
mod documents;
mod expressions;
mod index_build;
mod names;
mod privileges;
mod projection;
mod roles;
mod salvaged;
pub(crate) mod statistics;
mod table;
pub(crate) mod types;

pub use definitions::{
    CheckDef, ColumnDef, ConstraintTiming, DroppedColumn, ForeignKeyDef, IdentityDef, IndexDef, IndexExpression,
    IndexKey, IndexMethod, OnCommit, ReferentialAction, SequenceDef, SqlType, TableDef, VastOptions, ViewDef,
};
pub(crate) use definitions::{SequencePosition, goal_name, goal_of_name};
pub(crate) use documents::{
    CATALOG_TREE, Catalog, DocumentKind, SYSTEM_PREFIX, bootstrap, corrupt, document, extend_format, positions_at, put,
    put_new, put_roles_format, put_schema, remove, remove_positions, remove_table, remove_temporary,
};
pub(crate) use expressions::{Check, Compiled, Generated, Generation, Predicate, RowExpression, VirtualValue};
pub use index_build::IndexBuild;
pub(crate) use index_build::remove_builds;
pub(crate) use names::{PUBLIC, RelationName, TEMPORARY_PREFIX};
pub use privileges::{Access, Grant, Privileges};
pub(crate) use projection::Projection;
pub(crate) use roles::{Authority, MONITOR, PREDEFINED, READ_ALL_STATS, SIGNAL_BACKEND, memberships};
pub use roles::{DefaultKind, DefaultPrivileges, RoleDef, Verifier};
pub(crate) use salvaged::SalvagedCatalog;
pub(crate) use statistics::TableStatistics;
pub(crate) use table::{HIDDEN_ROWID, Table, TableTree};

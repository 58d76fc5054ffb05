//! The schema `pg_catalog`: the definitions in the form that PostgreSQL's tools read, as one statement sees them.
//!
//! | module | contents |
//! |---|---|
//! | [`shapes`] | names, OIDs and columns of the relations of PostgreSQL 15 |
//! | [`types`] | the types, and their names with modifiers |
//! | [`objects`] | all objects with their OIDs |
//! | [`definitions`] | the texts of definitions: of constraints, indexes and views |
//! | [`rows`], [`others`] | the rows of the relations |
//! | [`activity`] | sessions, and functions that cancel and end them |
//! | [`locks`] | locks of rows |
//! | [`functions`] | functions of the catalog |
//! | [`privileges`] | functions about privileges |
//! | [`procedures`] | the functions of `pg_proc` |
//! | [`operators`] | operators, casts and aggregates |
//! | [`rewrite`] | casts to types of OIDs, and names with `pg_catalog` |
//!
//! The relations have the columns of PostgreSQL 15. Relations about objects that do not exist here (triggers, policies,
//! publications …) are empty. An OID is a hash of the kind and the name of an object: it is the same in every session, and
//! changes when the object is renamed.

mod activity;
mod definitions;
mod functions;
mod locks;
mod objects;
mod operators;
mod others;
mod privileges;
mod procedures;
mod rewrite;
mod rows;
mod shapes;
mod types;

pub(super) use functions::{NAME as FUNCTION, register_for};
pub(super) use objects::Source;
pub(super) use procedures::known as functions;
pub(super) use rewrite::replace;
pub(super) use rows::view;
pub(super) use shapes::{exists, names};

use super::split;
use crate::catalog::{RelationName, SqlType};

/// Name of the schema.
pub(super) const NAME: &str = "pg_catalog";

/// The OID of a type.
pub(super) fn type_oid(ty: SqlType) -> u32 {
    types::of_column(ty).0
}

/// The OID of the type of the elements of an array type; `None` for other types.
pub(super) fn element_oid(oid: u32) -> Option<u32> {
    types::find(oid).filter(|ty| ty.element != 0 && ty.name.starts_with('_')).map(|ty| ty.element)
}

/// The type with an OID as the parser returns it; `None` for unknown types.
pub(super) fn sql_type(oid: u32) -> Option<datafusion::sql::sqlparser::ast::DataType> {
    types::find(oid)?;
    split::single(&types::sql_name(oid, None)).ok()?.parser().parse_data_type().ok()
}

/// The name of a type in `pg_type`, for an array that of its elements.
pub(super) fn element_type_name(ty: SqlType) -> &'static str {
    let found = types::find(type_oid(ty));
    let element = found.filter(|ty| ty.element != 0).and_then(|ty| types::find(ty.element));
    element.or(found).map_or("text", |ty| ty.name)
}

/// True for the relation that has the columns of all views.
pub(super) fn needs_plans(name: &RelationName) -> bool {
    *name.schema == *NAME && name.name == "pg_attribute"
}

//! Kinds of named objects, for errors about names.

use std::fmt;

use super::SqlState;

/// Kind of a named object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ObjectKind {
    /// A table or view: the statement allows both.
    Relation,
    /// A table.
    Table,
    /// A view.
    View,
    /// A secondary index.
    Index,
    /// A database directory.
    Database,
    /// A schema.
    Schema,
    /// A parameter of SET, SHOW and RESET.
    Setting,
    /// A prepared statement.
    PreparedStatement,
    /// A cursor.
    Cursor,
    /// A savepoint of a transaction.
    Savepoint,
    /// A constraint of a table.
    Constraint,
    /// A sequence.
    Sequence,
    /// A role.
    Role,
    /// A type of PostgreSQL.
    Type,
}

impl ObjectKind {
    /// The SQLSTATE for a missing object of this kind.
    pub(super) fn undefined(self) -> SqlState {
        match self {
            ObjectKind::Relation | ObjectKind::Table | ObjectKind::View | ObjectKind::Sequence => {
                SqlState::UNDEFINED_TABLE
            }
            ObjectKind::Index | ObjectKind::Setting | ObjectKind::Constraint | ObjectKind::Role | ObjectKind::Type => {
                SqlState::UNDEFINED_OBJECT
            }
            ObjectKind::Database => SqlState::INVALID_CATALOG_NAME,
            ObjectKind::Schema => SqlState::INVALID_SCHEMA_NAME,
            ObjectKind::PreparedStatement => SqlState::UNDEFINED_STATEMENT,
            ObjectKind::Cursor => SqlState::INVALID_CURSOR_NAME,
            ObjectKind::Savepoint => SqlState::INVALID_SAVEPOINT,
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ObjectKind::Relation => "relation",
            ObjectKind::Table => "table",
            ObjectKind::View => "view",
            ObjectKind::Index => "index",
            ObjectKind::Database => "database",
            ObjectKind::Schema => "schema",
            ObjectKind::Setting => "configuration parameter",
            ObjectKind::PreparedStatement => "prepared statement",
            ObjectKind::Cursor => "cursor",
            ObjectKind::Savepoint => "savepoint",
            ObjectKind::Constraint => "constraint",
            ObjectKind::Sequence => "sequence",
            ObjectKind::Role => "role",
            ObjectKind::Type => "type",
        })
    }
}

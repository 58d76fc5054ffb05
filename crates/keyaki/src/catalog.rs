//! Tables, indexes and views, as they are stored: JSON documents in the catalog tree (tree 1), keyed by kind and name.

use keyaki_store::ColumnType;
use serde::{Deserialize, Serialize};

/// The tree that holds the catalog: a key-value tree.
pub const CATALOG_TREE: u32 = 1;

/// A table. Its tree's schema is: the primary key's columns in key order, then the other columns in table order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableDef {
    pub name: String,
    pub tree: u32,
    /// In the order of CREATE TABLE.
    pub columns: Vec<ColumnDef>,
    /// Indices into `columns`. A table without PRIMARY KEY has a hidden last column `rowid` (Int64) as its key.
    pub primary_key: Vec<usize>,
    pub hidden_rowid: bool,
    pub indexes: Vec<IndexDef>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ColumnDef {
    pub name: String,
    pub ty: SqlType,
    pub nullable: bool,
    /// SQL text of the DEFAULT expression.
    pub default: Option<String>,
}

/// A column's type with what SQL knows beyond the store: the length of VARCHAR(n).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SqlType {
    #[serde(with = "crate::types::column_type_text")]
    pub column: ColumnType,
    /// Characters at the most, for VARCHAR(n) and CHAR(n).
    pub max_chars: Option<u32>,
}

/// A secondary index. Its tree's schema is: the indexed columns, then those primary-key columns that are not among them
/// (these together are the key), then the included columns. A unique index has the same shape; uniqueness is checked
/// before writing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IndexDef {
    pub name: String,
    pub tree: u32,
    /// Indices into the table's columns.
    pub columns: Vec<usize>,
    pub include: Vec<usize>,
    pub unique: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ViewDef {
    pub name: String,
    /// The SELECT.
    pub sql: String,
}

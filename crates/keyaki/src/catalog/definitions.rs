//! Definitions of tables, indexes and views.

use std::fmt;
use std::str::FromStr;

use keyaki_store::{ColumnType, Goal, TreeId};
use serde::{Deserialize, Serialize};

/// A table. Its tree's schema is: the primary key's columns in key order, then the other columns in table order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableDef {
    pub name: String,
    #[serde(with = "crate::catalog::types::tree_number")]
    pub tree: TreeId,
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
    #[serde(with = "crate::catalog::types::column_type_text")]
    pub column: ColumnType,
    /// Characters at the most, for VARCHAR(n) and CHAR(n).
    pub max_chars: Option<u32>,
}

/// What an index is made of, and where it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexMethod {
    /// On the device.
    #[default]
    Betree,
    /// In memory; built anew from the table when the database is opened.
    Masstree,
    /// On the device, with a compressed tree in memory that leads to its pages; these too are in memory if they may.
    Vast,
}

impl IndexMethod {
    pub fn is_in_memory(self) -> bool {
        match self {
            IndexMethod::Betree | IndexMethod::Vast => false,
            IndexMethod::Masstree => true,
        }
    }
}

impl fmt::Display for IndexMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IndexMethod::Betree => "betree",
            IndexMethod::Masstree => "masstree",
            IndexMethod::Vast => "vast",
        })
    }
}

impl FromStr for IndexMethod {
    /// The names that would have been possible.
    type Err = &'static str;
    fn from_str(name: &str) -> std::result::Result<Self, Self::Err> {
        match name.to_ascii_lowercase().as_str() {
            "betree" => Ok(IndexMethod::Betree),
            "masstree" => Ok(IndexMethod::Masstree),
            "vast" => Ok(IndexMethod::Vast),
            _ => Err("betree, masstree, vast"),
        }
    }
}

/// Options of a [`IndexMethod::Vast`] index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VastOptions {
    /// Small or fast. No index has a bounded one ([`goal_name`]).
    #[serde(with = "goal_text")]
    pub goal: Goal,
    /// Bytes of memory that the index may take; `None`: as many as it needs.
    pub memory_bytes: Option<u64>,
}

impl Default for VastOptions {
    fn default() -> Self {
        VastOptions { goal: Goal::Smallest, memory_bytes: None }
    }
}

/// The name of a goal in SQL and in the catalog; `None` if SQL has no such goal.
pub(crate) fn goal_name(goal: Goal) -> Option<&'static str> {
    match goal {
        Goal::Smallest => Some("small"),
        Goal::Fastest => Some("fast"),
        Goal::Bounded { .. } => None,
    }
}

/// The reverse of [`goal_name`].
pub(crate) fn goal_of_name(name: &str) -> Option<Goal> {
    [Goal::Smallest, Goal::Fastest].into_iter().find(|&goal| goal_name(goal) == Some(name))
}

/// How a [`Goal`] is written in the catalog.
mod goal_text {
    use keyaki_store::Goal;
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(goal: &Goal, serializer: S) -> Result<S::Ok, S::Error> {
        let name = super::goal_name(*goal).ok_or_else(|| S::Error::custom("a goal that SQL does not have"))?;
        serializer.serialize_str(name)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Goal, D::Error> {
        let name = String::deserialize(deserializer)?;
        super::goal_of_name(&name).ok_or_else(|| D::Error::custom(format!("unknown goal {name:?}")))
    }
}

impl VastOptions {
    fn is_default(&self) -> bool {
        *self == VastOptions::default()
    }
}

/// A secondary index. Its tree's schema is: the indexed columns, then those primary-key columns that are not among them
/// (these together are the key), then the included columns. A unique index has the same shape; uniqueness is checked
/// before writing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IndexDef {
    pub name: String,
    /// Of an index in memory: valid until the database is closed.
    #[serde(with = "crate::catalog::types::tree_number")]
    pub tree: TreeId,
    #[serde(default)]
    pub method: IndexMethod,
    #[serde(default, skip_serializing_if = "VastOptions::is_default")]
    pub vast: VastOptions,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_of_vast_indexes_have_names() {
        assert_eq!(VastOptions::default().goal, Goal::Smallest);
        for (goal, name) in [(Goal::Smallest, "small"), (Goal::Fastest, "fast")] {
            let options = VastOptions { goal, memory_bytes: None };
            let stored = serde_json::to_string(&options).unwrap();
            assert_eq!(stored, format!("{{\"goal\":\"{name}\",\"memory_bytes\":null}}"));
            assert_eq!(serde_json::from_str::<VastOptions>(&stored).unwrap(), options);
        }
        assert!(serde_json::from_str::<VastOptions>("{\"goal\":\"bounded\",\"memory_bytes\":null}").is_err());
        assert!(serde_json::to_string(&VastOptions { goal: Goal::Bounded { rows: 1 }, memory_bytes: None }).is_err());
    }
}

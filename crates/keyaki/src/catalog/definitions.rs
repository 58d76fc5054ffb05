//! Definitions of tables, indexes and views, in the form stored in the catalog tree.
//!
//! All types here serialise to JSON. Column positions are indices into [`TableDef::columns`]. New fields have defaults,
//! so that documents written by earlier versions remain readable.

use std::fmt;
use std::str::FromStr;

use keyaki_store::{ColumnType, Compression, Goal, TreeId};
use serde::{Deserialize, Serialize};

use super::index_build::IndexBuild;
use super::names::RelationName;
use super::privileges::Access;
use crate::{Error, JsonType};

/// A table. The schema of its tree is the primary key columns in key order, then the other columns in table order, with dropped
/// columns at their places.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableDef {
    pub name: RelationName,
    #[serde(with = "crate::catalog::types::tree_number")]
    pub tree: TreeId,
    /// Columns in the order of CREATE TABLE.
    pub columns: Vec<ColumnDef>,
    /// Columns that the tree still has, by ascending place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<DroppedColumn>,
    /// Indices into `columns`, in key order. Empty for a table without PRIMARY KEY.
    pub primary_key: Vec<usize>,
    /// The table has no PRIMARY KEY: a hidden column `__rowid` (Int64) is the key of its tree.
    pub hidden_rowid: bool,
    /// The table's tree has a place for nulls in all columns outside its key, including NOT NULL columns, so that DROP
    /// NOT NULL does not change the rows. False for tables of earlier versions.
    #[serde(default)]
    pub nullable_values: bool,
    pub indexes: Vec<IndexDef>,
    /// Name of the PRIMARY KEY constraint; `None` for the default name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary_key_name: Option<String>,
    /// CHECK constraints in the order of their definition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<CheckDef>,
    /// FOREIGN KEY constraints in the order of their definition.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign_keys: Vec<ForeignKeyDef>,
    /// Of the table's tree.
    #[serde(default, skip_serializing_if = "is_default_compression", with = "compression_text")]
    pub compression: Compression,
    /// Text of COMMENT ON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// What the end of a transaction does to a temporary table; `None` if the rows stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_commit: Option<OnCommit>,
    /// The owner, and the privileges of other roles.
    #[serde(default, skip_serializing_if = "Access::is_default")]
    pub access: Access,
    /// The indexes that CREATE INDEX CONCURRENTLY is building. Not stored.
    #[serde(skip)]
    pub building: Vec<IndexBuild>,
}

/// A column that ALTER TABLE has dropped. Rows written before have its values in the table's tree, later ones NULL or a zero
/// value, until the table is rebuilt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DroppedColumn {
    /// Position in the table's tree, behind its key.
    pub place: usize,
    pub ty: SqlType,
    /// The tree has a place for nulls.
    pub nullable: bool,
}

/// ON COMMIT of a temporary table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnCommit {
    DeleteRows,
    Drop,
}

impl TableDef {
    /// A table without indexes and checks.
    pub fn new(name: RelationName, tree: TreeId, columns: Vec<ColumnDef>, primary_key: Vec<usize>) -> TableDef {
        TableDef {
            name,
            tree,
            columns,
            dropped: Vec::new(),
            hidden_rowid: primary_key.is_empty(),
            nullable_values: true,
            primary_key,
            indexes: Vec::new(),
            primary_key_name: None,
            checks: Vec::new(),
            foreign_keys: Vec::new(),
            compression: Compression::default(),
            comment: None,
            on_commit: None,
            access: Access::default(),
            building: Vec::new(),
        }
    }

    /// True if a column is in an index, as a key or included.
    pub fn is_indexed(&self, column: usize) -> bool {
        self.indexes.iter().any(|index| index.columns().any(|of_index| of_index == column))
    }

    /// True if the table's tree has a place for nulls in a column outside its key.
    pub fn stores_nulls(&self, column: usize) -> bool {
        let column = &self.columns[column];
        self.nullable_values || column.nullable || column.stores_nulls
    }

    /// Name of the PRIMARY KEY constraint; without a primary key, the name that it would have.
    pub fn primary_key_name(&self) -> String {
        self.primary_key_name.clone().unwrap_or_else(|| format!("{}_pkey", &*self.name))
    }

    /// True if a constraint of the table has this name.
    pub fn has_constraint(&self, name: &str) -> bool {
        self.checks.iter().any(|check| check.name == name)
            || self.foreign_keys.iter().any(|key| key.name == name)
            || self.indexes.iter().any(|index| index.constraint && index.name == name)
            || (!self.hidden_rowid && self.primary_key_name() == name)
    }
}

/// A CHECK constraint of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckDef {
    pub name: String,
    /// SQL text of the condition. Columns have no qualifiers.
    pub sql: String,
}

/// A FOREIGN KEY constraint of a table, the *referencing* one: each row without nulls in `columns` has a row with the same
/// values in the *referenced* table (MATCH SIMPLE). The referenced columns are those of its primary key or of a unique
/// index, in any order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignKeyDef {
    pub name: String,
    /// The referencing columns: indices into [`TableDef::columns`].
    pub columns: Vec<usize>,
    /// Name of the referenced table, which may be the referencing one.
    pub references: RelationName,
    /// Names of the referenced columns, one for each of `columns`.
    pub referenced: Vec<String>,
    #[serde(default, skip_serializing_if = "ReferentialAction::is_default")]
    pub on_delete: ReferentialAction,
    #[serde(default, skip_serializing_if = "ReferentialAction::is_default")]
    pub on_update: ReferentialAction,
    #[serde(default, skip_serializing_if = "ConstraintTiming::is_default")]
    pub timing: ConstraintTiming,
}

/// When a constraint is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConstraintTiming {
    /// At the end of each statement.
    #[default]
    NotDeferrable,
    /// At the end of each statement, unless SET CONSTRAINTS defers it.
    Immediate,
    /// At the commit, unless SET CONSTRAINTS makes it immediate.
    Deferred,
}

impl ConstraintTiming {
    fn is_default(&self) -> bool {
        *self == ConstraintTiming::default()
    }
}

/// What happens to referencing rows when the row they refer to is deleted or gets another key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReferentialAction {
    /// The statement fails if its end finds referencing rows.
    #[default]
    NoAction,
    /// As `NoAction`, but before the actions of other constraints.
    Restrict,
    /// They are deleted, or follow to the new key.
    Cascade,
    SetNull,
    SetDefault,
}

impl ReferentialAction {
    fn is_default(&self) -> bool {
        *self == ReferentialAction::default()
    }
}

impl fmt::Display for ReferentialAction {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            ReferentialAction::NoAction => "NO ACTION",
            ReferentialAction::Restrict => "RESTRICT",
            ReferentialAction::Cascade => "CASCADE",
            ReferentialAction::SetNull => "SET NULL",
            ReferentialAction::SetDefault => "SET DEFAULT",
        })
    }
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ColumnDef {
    pub name: String,
    pub ty: SqlType,
    pub nullable: bool,
    /// SQL text of the DEFAULT expression.
    pub default: Option<String>,
    /// The column is GENERATED … AS IDENTITY, and has no `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<IdentityDef>,
    /// SQL text of the expression of a generated column, which has no `default` and no `identity`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generated: Option<String>,
    /// All trees with the column have a place for nulls although it is NOT NULL: it was declared so when it had rows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stores_nulls: bool,
    /// Text of COMMENT ON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

impl ColumnDef {
    /// A column that accepts NULL, without a default.
    pub fn new(name: impl Into<String>, ty: impl Into<SqlType>) -> ColumnDef {
        ColumnDef {
            name: name.into(),
            ty: ty.into(),
            nullable: true,
            default: None,
            identity: None,
            generated: None,
            stores_nulls: false,
            comment: None,
        }
    }

    /// True if a row that gives no value gets one.
    pub fn has_default(&self) -> bool {
        self.default.is_some() || self.identity.is_some()
    }
}

/// An identity column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IdentityDef {
    /// ALWAYS: INSERT and UPDATE must not give a value. Otherwise BY DEFAULT.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub always: bool,
    pub sequence: SequenceDef,
}

/// A sequence of numbers.
///
/// Invariants: `min <= start <= max`, and `increment` is not 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SequenceDef {
    pub name: RelationName,
    /// Key of the position. A sequence that is restarted by a definition gets a new one.
    pub id: u64,
    /// The first `id`, if a restart has replaced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<u64>,
    pub min: i64,
    pub max: i64,
    pub increment: i64,
    pub start: i64,
    /// The first value, if it is not `start`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<i64>,
    /// The type of the values, an integer type: that of CREATE SEQUENCE or of the identity column.
    #[serde(default = "bigint", skip_serializing_if = "is_bigint", with = "crate::catalog::types::column_type_text")]
    pub ty: ColumnType,
    /// The sequence starts again at the other end after its last value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cycles: bool,
    /// Text of COMMENT ON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The owner, and the privileges of other roles. Sequences of identity columns use that of their tables.
    #[serde(default, skip_serializing_if = "Access::is_default")]
    pub access: Access,
}

fn bigint() -> ColumnType {
    ColumnType::Int64
}

fn is_bigint(ty: &ColumnType) -> bool {
    *ty == ColumnType::Int64
}

impl SequenceDef {
    /// Identifies the sequence from its creation to its removal.
    pub(crate) fn lasting_id(&self) -> u64 {
        self.origin.unwrap_or(self.id)
    }

    /// Gives the sequence a new position, with the key `id`.
    pub(crate) fn renew(&mut self, id: u64) {
        (self.origin, self.id) = (Some(self.lasting_id()), id);
    }

    /// The value that follows when `next` was set: `next`, unless it lies outside of the limits. `None` after the last
    /// value.
    pub(crate) fn within(&self, next: i64) -> Option<i64> {
        let first = if self.increment > 0 { self.min } else { self.max };
        if (self.min..=self.max).contains(&next) { Some(next) } else { self.cycles.then_some(first) }
    }

    /// The first value.
    pub(crate) fn first(&self) -> i64 {
        self.restart.unwrap_or(self.start)
    }

    /// Number of values from `value` to the end, at most `u64::MAX`. `value` lies between the limits.
    pub(crate) fn left(&self, value: i64) -> u64 {
        let end = if self.increment > 0 { self.max } else { self.min };
        self.steps(value, end).saturating_add(1)
    }

    /// Number of whole increments from one value to another that lies in the direction of the sequence.
    pub(crate) fn steps(&self, from: i64, to: i64) -> u64 {
        from.abs_diff(to) / self.increment.unsigned_abs()
    }

    /// The value `steps` after `value`, at most one step behind the end; `None` there if the sequence does not cycle.
    pub(crate) fn after(&self, value: i64, steps: u64) -> Option<i64> {
        let after = i128::from(value) + i128::from(steps) * i128::from(self.increment);
        let first = if self.increment > 0 { self.min } else { self.max };
        let is_within = (i128::from(self.min)..=i128::from(self.max)).contains(&after);
        if is_within { i64::try_from(after).ok() } else { self.cycles.then_some(first) }
    }

    /// True if the sequence returns `value`, or a value beyond it, from `next` on without starting again.
    pub(crate) fn reaches(&self, next: i64, value: i64) -> bool {
        if self.increment > 0 { (next..=self.max).contains(&value) } else { (self.min..=next).contains(&value) }
    }

    /// The error behind the last value.
    pub(crate) fn exhausted(&self) -> Error {
        let (end, limit) = if self.increment > 0 { ("maximum", self.max) } else { ("minimum", self.min) };
        Error::SequenceLimit { name: self.name.to_string(), end, limit }
    }
}

/// The position of a sequence in the catalog tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SequencePosition {
    /// A value that has not been returned yet, nor have those behind it; `None` if all have been.
    pub next: Option<i64>,
    /// The value before `next`, from which a changed definition continues; `None` if `next` was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<i64>,
}

/// A SQL type: the store's column type, and what its texts must satisfy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredType", into = "StoredType")]
pub struct SqlType {
    pub column: ColumnType,
    /// Maximum number of characters, for VARCHAR(n) and CHAR(n).
    pub max_chars: Option<u32>,
    /// Texts are JSON documents.
    pub json: Option<JsonType>,
}

/// The stored form of a type. Programs that know JSON only read JSONB as JSON.
#[derive(Serialize, Deserialize)]
struct StoredType {
    #[serde(with = "crate::catalog::types::column_type_text")]
    column: ColumnType,
    max_chars: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    json: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    jsonb: bool,
}

impl From<StoredType> for SqlType {
    fn from(stored: StoredType) -> SqlType {
        let json = stored.json.then_some(if stored.jsonb { JsonType::Jsonb } else { JsonType::Json });
        SqlType { column: stored.column, max_chars: stored.max_chars, json }
    }
}

impl From<SqlType> for StoredType {
    fn from(ty: SqlType) -> StoredType {
        let (json, jsonb) = (ty.json.is_some(), ty.json == Some(JsonType::Jsonb));
        StoredType { column: ty.column, max_chars: ty.max_chars, json, jsonb }
    }
}

impl SqlType {
    /// True for types of text that do not accept every text.
    pub fn restricts_text(self) -> bool {
        self.json.is_some() || self.max_chars.is_some()
    }
}

/// The access method of an index (USING).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexMethod {
    /// A Bε-tree on the device.
    #[default]
    Betree,
    /// A Masstree in memory, rebuilt from the table when the database is opened.
    Masstree,
    /// A Bε-tree on the device with a locator: a compressed VAST tree in memory that maps keys to pages without I/O. Its
    /// pages stay in memory too if they fit into the index's memory option and the database's memory.
    Vast,
}

impl IndexMethod {
    /// True if the index has no pages on the device.
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
    /// The accepted names, separated by commas.
    type Err = &'static str;
    fn from_str(name: &str) -> std::result::Result<Self, Self::Err> {
        match name.to_ascii_lowercase().as_str() {
            // PostgreSQL's name for its ordered indexes.
            "betree" | "btree" => Ok(IndexMethod::Betree),
            "masstree" => Ok(IndexMethod::Masstree),
            "vast" => Ok(IndexMethod::Vast),
            _ => Err("betree, masstree, vast"),
        }
    }
}

/// Options of a [`IndexMethod::Vast`] index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VastOptions {
    /// Small or fast. SQL has no bounded goal ([`goal_name`]).
    #[serde(with = "goal_text")]
    pub goal: Goal,
    /// Maximum bytes of the locator and the pages that it keeps in memory. `None`: the locator is unlimited and keeps no
    /// pages.
    pub memory_bytes: Option<u64>,
}

impl Default for VastOptions {
    fn default() -> Self {
        VastOptions { goal: Goal::Smallest, memory_bytes: None }
    }
}

/// Name of a goal in SQL and in the catalog. Returns `None` for goals that SQL does not support.
pub(crate) fn goal_name(goal: Goal) -> Option<&'static str> {
    match goal {
        Goal::Smallest => Some("small"),
        Goal::Fastest => Some("fast"),
        Goal::Bounded { .. } => None,
    }
}

/// Inverse of [`goal_name`].
pub(crate) fn goal_of_name(name: &str) -> Option<Goal> {
    [Goal::Smallest, Goal::Fastest].into_iter().find(|&goal| goal_name(goal) == Some(name))
}

/// Serialisation of a [`Goal`] as its name.
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

fn is_default_compression(compression: &Compression) -> bool {
    *compression == Compression::default()
}

/// Serialisation of a [`Compression`] as its name.
mod compression_text {
    use keyaki_store::Compression;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(compression: &Compression, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(compression.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Compression, D::Error> {
        let name = String::deserialize(deserializer)?;
        Compression::of_name(&name).ok_or_else(|| D::Error::custom(format!("unknown compression {name:?}")))
    }
}

impl VastOptions {
    fn is_default(&self) -> bool {
        *self == VastOptions::default()
    }
}

/// What an index is ordered by: a column or the values of an expression.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IndexKey {
    /// Index into the table's columns.
    Column(usize),
    Expression(IndexExpression),
}

/// An expression of an index over the columns of one row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IndexExpression {
    /// SQL text. Columns have no qualifiers.
    pub sql: String,
    /// Type of the values.
    pub ty: SqlType,
}

/// A secondary index. The key of its tree is the indexed columns, then the primary key columns not among them. The
/// included columns follow the key. A unique index has the same schema; writes check uniqueness first. A partial index has
/// entries for the rows that satisfy its predicate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IndexDef {
    /// Name in the schema of the table.
    pub name: String,
    /// For an in-memory index, valid until the database is closed.
    #[serde(with = "crate::catalog::types::tree_number")]
    pub tree: TreeId,
    #[serde(default)]
    pub method: IndexMethod,
    #[serde(default, skip_serializing_if = "VastOptions::is_default")]
    pub vast: VastOptions,
    /// Of the index's tree.
    #[serde(default, skip_serializing_if = "is_default_compression", with = "compression_text")]
    pub compression: Compression,
    #[serde(rename = "columns")]
    pub keys: Vec<IndexKey>,
    /// Columns of INCLUDE; columns that are in the key already have no effect.
    pub include: Vec<usize>,
    pub unique: bool,
    /// SQL text of the condition of a partial index. Columns have no qualifiers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicate: Option<String>,
    /// The index belongs to a UNIQUE constraint, whose name it has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub constraint: bool,
    /// Text of COMMENT ON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

impl IndexDef {
    /// True if no two rows of the table may have equal keys, unless one of these has a null.
    pub fn is_key(&self) -> bool {
        self.unique && self.predicate.is_none()
    }

    /// The columns that are keys, in their order; expressions are left out.
    pub fn key_columns(&self) -> impl Iterator<Item = usize> + '_ {
        self.keys.iter().filter_map(|key| match key {
            IndexKey::Column(column) => Some(*column),
            IndexKey::Expression(_) => None,
        })
    }

    /// The expressions that are keys, in their order.
    pub fn expressions(&self) -> impl Iterator<Item = &IndexExpression> {
        self.keys.iter().filter_map(|key| match key {
            IndexKey::Column(_) => None,
            IndexKey::Expression(expression) => Some(expression),
        })
    }

    /// The indexed columns; `None` if a key is an expression.
    pub fn plain_columns(&self) -> Option<Vec<usize>> {
        let columns: Vec<usize> = self.key_columns().collect();
        (columns.len() == self.keys.len()).then_some(columns)
    }

    /// The columns that are keys or included.
    pub fn columns(&self) -> impl Iterator<Item = usize> + '_ {
        self.key_columns().chain(self.include.iter().copied())
    }

    /// The positions of the columns that are keys or included.
    pub fn columns_mut(&mut self) -> impl Iterator<Item = &mut usize> {
        let keys = self.keys.iter_mut().filter_map(|key| match key {
            IndexKey::Column(column) => Some(column),
            IndexKey::Expression(_) => None,
        });
        keys.chain(&mut self.include)
    }

    /// The SQL texts of the expressions and the predicate.
    pub fn texts_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let expressions = self.keys.iter_mut().filter_map(|key| match key {
            IndexKey::Column(_) => None,
            IndexKey::Expression(expression) => Some(&mut expression.sql),
        });
        expressions.chain(&mut self.predicate)
    }

    /// As [`IndexDef::texts_mut`].
    pub fn texts(&self) -> impl Iterator<Item = &String> {
        self.expressions().map(|expression| &expression.sql).chain(&self.predicate)
    }

    /// A unique index without further options.
    pub fn unique(name: impl Into<String>, tree: TreeId, columns: Vec<usize>) -> IndexDef {
        IndexDef {
            name: name.into(),
            tree,
            method: IndexMethod::default(),
            vast: VastOptions::default(),
            compression: Compression::default(),
            keys: columns.into_iter().map(IndexKey::Column).collect(),
            include: Vec::new(),
            unique: true,
            predicate: None,
            constraint: false,
            comment: None,
        }
    }
}

/// A view.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ViewDef {
    pub name: RelationName,
    /// SQL text of the SELECT. Relations without a schema are those of `public`.
    pub sql: String,
    /// Text of COMMENT ON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The owner, with whose privileges the query is executed, and the privileges of other roles.
    #[serde(default, skip_serializing_if = "Access::is_default")]
    pub access: Access,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_stored_by_name() {
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

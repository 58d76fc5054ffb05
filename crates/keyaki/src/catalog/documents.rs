//! Tables, indexes and views, as they are stored: JSON documents in the catalog tree (tree 1), keyed by kind and name.
//!
//! | key | document |
//! |---|---|
//! | `meta/format` | [`Format`]: the version of these documents |
//! | `table/NAME` | [`TableDef`], with its indexes |
//! | `view/NAME` | [`ViewDef`] |
//! | `statistics/NAME` | [`TableStatistics`] of the table |
//!
//! A change of the catalog is part of the write batch that makes it true, so catalog and trees always agree.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryViewArray, RecordBatch};
use keyaki_store::{
    ColumnType, Direction, Goal, KeyRange, LocatorOptions, Schema, Snapshot, Store, TreeId, WriteBatch, block_on,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::catalog::Table;
use crate::catalog::TableStatistics;
use crate::{Error, Result};

/// The tree that holds the catalog: a key-value tree.
pub const CATALOG_TREE: u32 = 1;

/// Names of system views begin so.
pub(crate) const SYSTEM_PREFIX: &str = "keyaki_";

/// Version of the documents.
const FORMAT: u32 = 1;

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

/// What a [`IndexMethod::Vast`] index is to be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VastOptions {
    pub goal: VastGoal,
    /// Bytes of memory that it may take.
    pub memory_bytes: Option<u64>,
}

/// What the tree in memory is to be good at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VastGoal {
    #[default]
    Small,
    Fast,
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
    pub tree: u32,
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

#[derive(Debug, Serialize, Deserialize)]
struct Format {
    version: u32,
}

/// What a document describes; part of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Meta,
    Table,
    View,
    Statistics,
}

impl Kind {
    fn key(self, name: &str) -> String {
        let kind = match self {
            Kind::Meta => "meta",
            Kind::Table => "table",
            Kind::View => "view",
            Kind::Statistics => "statistics",
        };
        format!("{kind}/{name}")
    }
}

/// Everything named, as of one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Catalog {
    pub tables: BTreeMap<String, Arc<Table>>,
    pub views: BTreeMap<String, Arc<ViewDef>>,
}

impl Catalog {
    pub fn table(&self, name: &str) -> Result<&Arc<Table>> {
        self.tables.get(name).ok_or_else(|| {
            if self.views.contains_key(name) {
                Error::Invalid(format!("\"{name}\" is a view, not a table"))
            } else {
                Error::NotFound { kind: "table", name: name.into() }
            }
        })
    }

    /// The table that has an index, and the index's place in it.
    pub fn index(&self, name: &str) -> Option<(&Arc<Table>, usize)> {
        self.tables.values().find_map(|table| {
            let place = table.def.indexes.iter().position(|index| index.name == name)?;
            Some((table, place))
        })
    }

    /// Trees whose pages are to be located in memory.
    pub fn locators(&self) -> BTreeMap<TreeId, LocatorOptions> {
        let indexes = self.tables.values().flat_map(|table| &table.def.indexes);
        let located = indexes.filter(|index| index.method == IndexMethod::Vast).map(|index| {
            let goal = match index.vast.goal {
                VastGoal::Small => Goal::Smallest,
                VastGoal::Fast => Goal::Fastest,
            };
            (index.tree, LocatorOptions { goal, memory_bytes: index.vast.memory_bytes })
        });
        located.collect()
    }

    /// Whether a table or index has this tree.
    pub fn has_tree(&self, tree: TreeId) -> bool {
        self.tables
            .values()
            .any(|table| table.def.tree == tree || table.def.indexes.iter().any(|index| index.tree == tree))
    }

    /// Tables, indexes and views share one space of names with the system views.
    pub fn check_free(&self, name: &str) -> Result<()> {
        if name.starts_with(SYSTEM_PREFIX) {
            return Err(Error::Invalid(format!("\"{name}\": names that begin with {SYSTEM_PREFIX} are the system's")));
        }
        let kind = if self.tables.contains_key(name) {
            "table"
        } else if self.views.contains_key(name) {
            "view"
        } else if self.index(name).is_some() {
            "index"
        } else {
            return Ok(());
        };
        Err(Error::Exists { kind, name: name.into() })
    }

    /// Reads what `snapshot` has; none if there is no catalog yet. Blocks.
    pub fn read(store: &Store, snapshot: &Snapshot) -> Result<Option<Catalog>> {
        let Ok(view) = snapshot.tree(CATALOG_TREE) else { return Ok(None) };
        let source = store.blocking();
        let mut documents = BTreeMap::new();
        let mut cursor = view.cursor(&source, KeyRange::all(), Direction::Ascending);
        while let Some(chunk) = block_on(cursor.next())? {
            let columns = chunk.to_arrays(&[0, 1])?;
            let (keys, values) = (binary(&columns[0])?, binary(&columns[1])?);
            for row in 0..chunk.rows() {
                let key = String::from_utf8_lossy(keys.value(row)).into_owned();
                documents.insert(key, values.value(row).to_vec());
            }
        }
        Catalog::decode(&documents, || store.new_memory_tree_id()).map(Some)
    }

    /// `memory_tree` gives ids to the trees of indexes in memory, which are still to be built.
    fn decode(documents: &BTreeMap<String, Vec<u8>>, memory_tree: impl Fn() -> TreeId) -> Result<Catalog> {
        let format: Option<Format> =
            documents.get(&Kind::Meta.key("format")).map(|d| parse("meta/format", d)).transpose()?;
        match format {
            Some(Format { version: FORMAT }) => {}
            Some(Format { version }) => {
                return Err(Error::Invalid(format!(
                    "the catalog has format version {version}; this program reads version {FORMAT}"
                )));
            }
            None => return Err(Error::Invalid("the catalog has no format version".into())),
        }
        let mut catalog = Catalog::default();
        for (key, document) in documents {
            if key.starts_with("table/") {
                let mut def: TableDef = parse(key, document)?;
                for index in def.indexes.iter_mut().filter(|index| index.method.is_in_memory()) {
                    index.tree = memory_tree();
                }
                let statistics = documents.get(&Kind::Statistics.key(&def.name));
                let statistics: Option<TableStatistics> = statistics.map(|d| parse("statistics", d)).transpose()?;
                catalog.tables.insert(def.name.clone(), Arc::new(Table::new(def, statistics.map(Arc::new))?));
            } else if key.starts_with("view/") {
                let view: ViewDef = parse(key, document)?;
                catalog.views.insert(view.name.clone(), Arc::new(view));
            }
        }
        Ok(catalog)
    }
}

fn binary(array: &ArrayRef) -> Result<&BinaryViewArray> {
    array.as_binary_view_opt().ok_or_else(|| Error::Invalid(format!("the catalog tree holds {}", array.data_type())))
}

fn parse<T: DeserializeOwned>(key: &str, document: &[u8]) -> Result<T> {
    serde_json::from_slice(document)
        .map_err(|e| Error::Invalid(format!("the document {key} of the catalog cannot be read: {e}")))
}

/// Adds the creation of an empty catalog to `batch`.
pub(crate) fn bootstrap(batch: &mut WriteBatch) -> Result<()> {
    batch.create_tree(CATALOG_TREE, &Schema::key_value());
    put(batch, Kind::Meta, "format", &Format { version: FORMAT })
}

/// Adds writing a document to `batch`.
pub(crate) fn put(batch: &mut WriteBatch, kind: Kind, name: &str, document: &impl Serialize) -> Result<()> {
    let document = serde_json::to_vec(document)
        .map_err(|e| Error::Invalid(format!("the definition of \"{name}\" cannot be written: {e}")))?;
    let schema = Schema::key_value();
    let rows = record(&schema, &[kind.key(name).as_bytes(), &document])?;
    Ok(batch.insert(CATALOG_TREE, &schema, &rows)?)
}

/// Adds removing a document to `batch`; it need not exist.
pub(crate) fn remove(batch: &mut WriteBatch, kind: Kind, name: &str) -> Result<()> {
    let schema = Schema::key_value();
    let rows = record(&schema, &[kind.key(name).as_bytes(), b""])?;
    Ok(batch.delete(CATALOG_TREE, &schema, &rows)?)
}

fn record(schema: &Schema, values: &[&[u8]]) -> Result<RecordBatch> {
    let columns = values.iter().map(|value| Arc::new(BinaryViewArray::from_iter_values([value])) as ArrayRef);
    RecordBatch::try_new(schema.arrow().clone(), columns.collect())
        .map_err(|e| Error::DataFusion(datafusion::error::DataFusionError::from(e)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"{"name":"t","tree":16,"columns":[{"name":"a","ty":{"column":"BIGINT","max_chars":null},
        "nullable":false,"default":null}],"primary_key":[0],"hidden_rowid":false,
        "indexes":[{"name":"i","tree":17,"columns":[0],"include":[],"unique":true}]}"#;

    fn decode(documents: &[(&str, &str)]) -> Result<Catalog> {
        let documents = documents.iter().map(|(key, text)| (key.to_string(), text.as_bytes().to_vec()));
        Catalog::decode(&documents.collect(), || 1 << 31)
    }

    #[test]
    fn documents_become_a_catalog() {
        let view = r#"{"name":"v","sql":"SELECT 1"}"#;
        let catalog = decode(&[("meta/format", r#"{"version":1}"#), ("table/t", TABLE), ("view/v", view)]).unwrap();
        assert_eq!(catalog.table("t").unwrap().def.tree, 16);
        assert_eq!(catalog.index("i").map(|(table, place)| (table.def.name.as_str(), place)), Some(("t", 0)));
        assert!(catalog.table("v").unwrap_err().to_string().contains("is a view"));
        assert!(matches!(catalog.table("x"), Err(Error::NotFound { kind: "table", .. })));
        for (name, kind) in [("t", "table"), ("v", "view"), ("i", "index")] {
            assert!(matches!(catalog.check_free(name), Err(Error::Exists { kind: found, .. }) if found == kind));
        }
        assert!(catalog.check_free("x").is_ok());
        assert!(catalog.check_free("keyaki_x").unwrap_err().to_string().contains("the system's"));
    }

    #[test]
    fn indexes_in_memory_get_trees_anew() {
        let table = TABLE.replace(r#""unique":true"#, r#""unique":true,"method":"masstree""#);
        let catalog = decode(&[("meta/format", r#"{"version":1}"#), ("table/t", &table)]).unwrap();
        let index = &catalog.table("t").unwrap().def.indexes[0];
        assert_eq!((index.tree, index.method), (1 << 31, IndexMethod::Masstree));
        assert_eq!("MASSTREE".parse(), Ok(IndexMethod::Masstree));
        assert!("hash".parse::<IndexMethod>().is_err());
    }

    #[test]
    fn damaged_documents_are_errors() {
        let format = ("meta/format", r#"{"version":1}"#);
        assert!(decode(&[]).unwrap_err().to_string().contains("no format version"));
        assert!(decode(&[("meta/format", r#"{"version":2}"#)]).unwrap_err().to_string().contains("version 2"));
        for damaged in ["", "{", "{}", &TABLE.replace("[0]", "[7]"), &TABLE.replace("BIGINT", "BIGINTEGER")] {
            let error = decode(&[format, ("table/t", damaged)]).unwrap_err().to_string();
            assert!(error.contains("table"), "{error}");
        }
    }
}

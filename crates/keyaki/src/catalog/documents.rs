//! The catalog tree (tree 1): JSON documents keyed by kind and name.
//!
//! | key | document |
//! |---|---|
//! | `meta/format` | [`FormatDocument`]: the format version of the documents |
//! | `table/NAME` | [`TableDef`], with its indexes |
//! | `view/NAME` | [`ViewDef`] |
//! | `statistics/NAME` | [`TableStatistics`] of the table |
//! | `sequence/NAME` | [`SequenceDef`]; those of identity columns are in the table |
//! | `index_build/TREE` | an unfinished CREATE INDEX CONCURRENTLY; see [`IndexBuild`](super::IndexBuild) |
//! | `schema/NAME` | [`SchemaDocument`]; `public` has one only for its comment and its privileges |
//! | `role/NAME` | [`RoleDef`] |
//! | `sequence_position/ID` | [`SequencePosition`](super::SequencePosition), also of identity columns |
//!
//! The key of an object in another schema than `public` is `KIND@SCHEMA/NAME`. The schemas of temporary objects have no
//! documents.
//!
//! Invariant: catalog and trees agree. A document changes in the same write batch as the trees that it describes.
//!
//! Positions change in commits of their own. A position may remain after its sequence; opening the database removes it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryViewArray, RecordBatch};
use keyaki_store::key_value::KeyValue;
use keyaki_store::{Direction, KeyRange, LocatorOptions, Schema, Snapshot, Store, TreeId, WriteBatch, block_on};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::definitions::{ForeignKeyDef, IndexDef, IndexMethod, SequenceDef, SequencePosition, TableDef, ViewDef};
use super::names::{PUBLIC, RelationName, TEMPORARY_PREFIX};
use super::privileges::Access;
use super::roles::{PREDEFINED, RoleDef};
use crate::catalog::Table;
use crate::catalog::TableStatistics;
use crate::{Error, ObjectKind, Result};

/// Id of the catalog tree, a key-value tree.
pub(crate) const CATALOG_TREE: TreeId = TreeId::new(1);

/// Prefix of the names of system views; reserved.
pub(crate) const SYSTEM_PREFIX: &str = "keyaki_";

/// Names the catalog in errors: it has no file of its own.
const CATALOG: &str = "catalog";

/// Format version of the documents of a new database.
const FORMAT: u32 = 1;
/// Format version of documents with schemas, with temporary objects or with predicates of indexes. A program that does not
/// know predicates would take such an index for one of all rows.
pub(super) const FORMAT_EXTENDED: u32 = 2;
/// Format version of documents with roles, owners or privileges. A program that does not know them would let every user do
/// everything.
const FORMAT_ROLES: u32 = 3;
/// Format version of documents with default privileges. A program that does not know them would keep those of a role that it
/// drops: a later role of the same name would have them.
const FORMAT_DEFAULTS: u32 = 4;
/// The newest format version.
pub(super) const FORMAT_NEWEST: u32 = FORMAT_DEFAULTS;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FormatDocument {
    pub version: u32,
}

/// The definition of a schema.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SchemaDocument {
    pub name: String,
    /// Text of COMMENT ON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The owner, and the privileges of other roles. Without it, those of a schema without an owner; for `public`, those of
    /// a new database.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
}

/// Kind of a document; the first part of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DocumentKind {
    Meta,
    Table,
    View,
    Statistics,
    Sequence,
    SequencePosition,
    Schema,
    IndexBuild,
    Role,
}

/// The name of a document in its key.
pub(crate) trait DocumentName: std::fmt::Display {
    /// The key of the document of a kind.
    fn key(&self, kind: &str) -> String {
        format!("{kind}/{self}")
    }
}

impl DocumentName for &str {}
impl DocumentName for String {}

impl DocumentName for RelationName {
    fn key(&self, kind: &str) -> String {
        match self.is_public() {
            true => format!("{kind}/{}", self.name),
            // The name begins behind the first slash.
            false => format!("{kind}@{}/{}", self.schema.replace('%', "%25").replace('/', "%2F"), self.name),
        }
    }
}

impl DocumentKind {
    pub fn key(self, name: &impl DocumentName) -> String {
        name.key(match self {
            DocumentKind::Meta => "meta",
            DocumentKind::Table => "table",
            DocumentKind::View => "view",
            DocumentKind::Statistics => "statistics",
            DocumentKind::Sequence => "sequence",
            DocumentKind::SequencePosition => "sequence_position",
            DocumentKind::Schema => "schema",
            DocumentKind::IndexBuild => "index_build",
            DocumentKind::Role => "role",
        })
    }
}

/// All tables, indexes and views as of one snapshot.
#[derive(Debug, Clone, Default)]
pub(crate) struct Catalog {
    pub tables: BTreeMap<RelationName, Arc<Table>>,
    pub views: BTreeMap<RelationName, Arc<ViewDef>>,
    /// The sequences of CREATE SEQUENCE.
    pub sequences: BTreeMap<RelationName, Arc<SequenceDef>>,
    /// The schemas other than `public`.
    pub schemas: BTreeSet<String>,
    /// The comments of schemas, by name.
    pub schema_comments: BTreeMap<String, String>,
    /// The owners and privileges of schemas that have any; those of `public` if they were changed.
    pub schema_access: BTreeMap<String, Arc<Access>>,
    /// The roles by name, without the predefined ones.
    pub roles: BTreeMap<String, Arc<RoleDef>>,
}

impl Catalog {
    /// Looks up a table by name.
    ///
    /// # Errors
    /// If there is no such table, or the name is that of a view.
    pub fn table(&self, name: &RelationName) -> Result<&Arc<Table>> {
        self.tables.get(name).ok_or_else(|| {
            if self.views.contains_key(name) {
                Error::WrongObjectType {
                    name: name.to_string(),
                    found: ObjectKind::View,
                    expected: ObjectKind::Table,
                    hint: None,
                }
            } else {
                Error::NotFound { kind: ObjectKind::Relation, name: name.to_string() }
            }
        })
    }

    /// Looks up an index by name. Returns its table and its position in the table's list of indexes.
    pub fn index(&self, name: &RelationName) -> Option<(&Arc<Table>, usize)> {
        self.tables.values().filter(|table| table.def.name.schema == name.schema).find_map(|table| {
            let place = table.def.indexes.iter().position(|index| index.name == name.name)?;
            Some((table, place))
        })
    }

    /// All sequences, those of identity columns included, with the names of their table and column.
    pub fn sequences(&self) -> impl Iterator<Item = (&SequenceDef, Option<(&RelationName, &str)>)> {
        let own = self.sequences.values().map(|def| (&**def, None));
        let identities = self.tables.values().flat_map(|table| {
            let columns = table.def.columns.iter();
            columns.filter_map(|column| {
                let sequence = &column.identity.as_ref()?.sequence;
                Some((sequence, Some((&table.def.name, column.name.as_str()))))
            })
        });
        own.chain(identities)
    }

    /// The keys of the positions of all sequences, except for those of tables and sequences that `other` has unchanged.
    pub fn positions(&self, other: &Catalog) -> BTreeSet<u64> {
        fn differing<'a, T>(
            own: &'a BTreeMap<RelationName, Arc<T>>,
            other: &'a BTreeMap<RelationName, Arc<T>>,
        ) -> impl Iterator<Item = &'a Arc<T>> {
            let is_same = |name, value| other.get(name).is_some_and(|other| Arc::ptr_eq(other, value));
            own.iter().filter(move |(name, value)| !is_same(*name, *value)).map(|(_, value)| value)
        }
        let columns = differing(&self.tables, &other.tables).flat_map(|table| &table.def.columns);
        let identities = columns.filter_map(|column| column.identity.as_ref()).map(|identity| identity.sequence.id);
        differing(&self.sequences, &other.sequences).map(|def| def.id).chain(identities).collect()
    }

    /// Looks up a sequence by name.
    pub fn sequence(&self, name: &RelationName) -> Option<&SequenceDef> {
        let own = self.sequences.get(name).map(|def| &**def);
        own.or_else(|| self.sequences().map(|(def, _)| def).find(|def| def.name == *name))
    }

    /// The foreign keys that refer to a table, each with the table that has it.
    pub fn referencing(&self, name: &RelationName) -> impl Iterator<Item = (&Arc<Table>, &ForeignKeyDef)> {
        let keys = self.tables.values().flat_map(|table| table.def.foreign_keys.iter().map(move |key| (table, key)));
        keys.filter(move |(_, key)| key.references == *name)
    }

    /// Trees that need a locator, with its options: the indexes with USING vast.
    pub fn locators(&self) -> BTreeMap<TreeId, LocatorOptions> {
        let indexes = self.tables.values().flat_map(|table| &table.def.indexes);
        let located = indexes
            .filter(|index| index.method == IndexMethod::Vast)
            .map(|index| (index.tree, LocatorOptions { goal: index.vast.goal, memory_bytes: index.vast.memory_bytes }));
        located.collect()
    }

    /// The trees of all tables and indexes, and the change logs of indexes that are being built.
    pub fn trees(&self) -> impl Iterator<Item = TreeId> + '_ {
        self.tables.values().flat_map(|table| {
            let indexes = table.def.indexes.iter().map(|index| index.tree);
            [table.def.tree].into_iter().chain(indexes).chain(table.def.building.iter().map(|build| build.log))
        })
    }

    /// True if an index of this name is being built.
    fn is_building(&self, name: &RelationName) -> bool {
        let mut tables = self.tables.values().filter(|table| table.def.name.schema == name.schema);
        tables.any(|table| table.def.building.iter().any(|build| build.name == name.name))
    }

    /// True if the tree belongs to a table or index.
    pub fn has_tree(&self, tree: TreeId) -> bool {
        self.tables.values().any(|table| table.has_tree(tree))
    }

    /// True if a schema has this name. The schemas of temporary objects always exist.
    pub fn has_schema(&self, name: &str) -> bool {
        name == PUBLIC || self.schemas.contains(name) || name.starts_with(TEMPORARY_PREFIX)
    }

    /// The owner of a schema and the privileges of other roles.
    pub fn access_of_schema(&self, name: &str) -> Cow<'_, Access> {
        match self.schema_access.get(name) {
            Some(access) => Cow::Borrowed(&**access),
            None if name == PUBLIC => Cow::Owned(Access::of_public()),
            None => Cow::Owned(Access::default()),
        }
    }

    /// True if a role has this name.
    pub fn has_role(&self, name: &str) -> bool {
        self.roles.contains_key(name) || PREDEFINED.contains(&name)
    }

    /// True if there are roles, owners or privileges.
    fn has_access(&self) -> bool {
        !self.roles.is_empty()
            || !self.schema_access.is_empty()
            || self.views.values().any(|view| !view.access.is_default())
            || self.sequences().any(|(def, _)| !def.access.is_default())
            || self.tables.values().any(|table| !table.def.access.is_default())
    }

    /// True if a table, index, view or sequence has this name.
    pub fn has_relation(&self, name: &RelationName) -> bool {
        self.tables.contains_key(name)
            || self.views.contains_key(name)
            || self.index(name).is_some()
            || self.sequence(name).is_some()
    }

    /// Checks that a name is not in use, also by an index that is being built. The tables, indexes, views and sequences of a schema share one namespace, with
    /// the system views.
    ///
    /// # Errors
    /// If the name is in use or starts with [`SYSTEM_PREFIX`].
    pub fn check_free(&self, name: &RelationName) -> Result<()> {
        if name.starts_with(SYSTEM_PREFIX) {
            let reason = format!("names starting with \"{SYSTEM_PREFIX}\" are reserved for system views");
            return Err(Error::ReservedName { name: name.name.clone(), reason });
        }
        match self.has_relation(name) || self.is_building(name) {
            true => Err(Error::AlreadyExists { kind: ObjectKind::Relation, name: name.to_string() }),
            false => Ok(()),
        }
    }

    /// Reads the catalog as of `snapshot`, and the keys of all positions. Returns `None` if the database has no catalog
    /// tree. Blocks.
    pub fn read(store: &Store, snapshot: &Snapshot) -> Result<Option<(Catalog, BTreeSet<u64>)>> {
        let Some(documents) = Catalog::documents(store, snapshot)? else { return Ok(None) };
        let prefix = DocumentKind::SequencePosition.key(&"");
        let positions = documents.keys().filter_map(|key| key.strip_prefix(&prefix)?.parse().ok()).collect();
        let catalog = Catalog::decode(&documents, || store.new_memory_tree_id())?;
        Ok(Some((catalog, positions)))
    }

    /// All documents as of `snapshot`, by key; `None` if the database has no catalog tree. Blocks.
    pub fn documents(store: &Store, snapshot: &Snapshot) -> Result<Option<BTreeMap<String, Vec<u8>>>> {
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
        Ok(Some(documents))
    }

    /// Decodes the documents. `memory_tree` allocates tree ids for in-memory indexes; the caller builds these trees.
    pub fn decode(documents: &BTreeMap<String, Vec<u8>>, memory_tree: impl Fn() -> TreeId) -> Result<Catalog> {
        let format: Option<FormatDocument> =
            documents.get(&DocumentKind::Meta.key(&"format")).map(|d| parse("meta/format", d)).transpose()?;
        match format {
            Some(FormatDocument { version: FORMAT..=FORMAT_NEWEST }) => {}
            Some(FormatDocument { version }) => {
                return Err(Error::FormatVersion { path: CATALOG.into(), found: version, supported: FORMAT_NEWEST });
            }
            None => return Err(corrupt("it has no format version".into())),
        }
        let mut catalog = Catalog::default();
        for (key, document) in documents {
            // `table` for `table/NAME` and `table@SCHEMA/NAME`.
            let kind = key.split(['/', '@']).next();
            if kind == Some("table") {
                let mut def: TableDef = parse(key, document)?;
                for index in def.indexes.iter_mut().filter(|index| index.method.is_in_memory()) {
                    index.tree = memory_tree();
                }
                let statistics = documents.get(&DocumentKind::Statistics.key(&def.name));
                let statistics = statistics.and_then(|document| {
                    let parsed: Result<TableStatistics> = parse("statistics", document);
                    // Results do not depend on them. Earlier versions have written infinite numbers, which JSON has not.
                    let table = &def.name;
                    parsed.inspect_err(|error| tracing::warn!(%table, %error, "the statistics are not readable")).ok()
                });
                catalog.tables.insert(def.name.clone(), Arc::new(Table::new(def, statistics.map(Arc::new))?));
            } else if kind == Some("view") {
                let view: ViewDef = parse(key, document)?;
                catalog.views.insert(view.name.clone(), Arc::new(view));
            } else if kind == Some("sequence") {
                let sequence: SequenceDef = parse(key, document)?;
                catalog.sequences.insert(sequence.name.clone(), Arc::new(sequence));
            } else if kind == Some("schema") {
                let SchemaDocument { name, comment, access } = parse(key, document)?;
                catalog.schema_comments.extend(comment.map(|comment| (name.clone(), comment)));
                catalog.schema_access.extend(access.map(|access| (name.clone(), Arc::new(access))));
                if name != PUBLIC {
                    catalog.schemas.insert(name);
                }
            } else if kind == Some("role") {
                let role: RoleDef = parse(key, document)?;
                catalog.roles.insert(role.name.clone(), Arc::new(role));
            }
        }
        Ok(catalog)
    }
}

/// The positions of sequences as of `snapshot`, by their keys. Blocks.
///
/// # Errors
/// `Corrupt`, errors of the store.
pub(crate) fn positions_at(store: &Store, snapshot: &Snapshot) -> Result<BTreeMap<u64, SequencePosition>> {
    let prefix = DocumentKind::SequencePosition.key(&"");
    let mut positions = BTreeMap::new();
    for (key, document) in Catalog::documents(store, snapshot)?.unwrap_or_default() {
        if let Some(id) = key.strip_prefix(&prefix).and_then(|id| id.parse().ok()) {
            positions.insert(id, parse(&key, &document)?);
        }
    }
    Ok(positions)
}

/// Reads a document. Blocks.
///
/// # Errors
/// `Corrupt`, errors of the store.
pub(crate) fn document<T: DeserializeOwned>(
    store: &Store,
    kind: DocumentKind,
    name: &impl DocumentName,
) -> Result<Option<T>> {
    let key = kind.key(name);
    let document = KeyValue::open(store, CATALOG_TREE)?.get(key.as_bytes())?;
    document.map(|document| parse(&key, &document)).transpose()
}

fn binary(array: &ArrayRef) -> Result<&BinaryViewArray> {
    array.as_binary_view_opt().ok_or_else(|| corrupt(format!("its tree has values of type {}", array.data_type())))
}

/// Decodes a document. `key` names it in errors.
pub(super) fn parse<T: DeserializeOwned>(key: &str, document: &[u8]) -> Result<T> {
    serde_json::from_slice(document).map_err(|error| corrupt(format!("document \"{key}\" is not readable: {error}")))
}

/// The error for a catalog that cannot be read although its pages can.
pub(crate) fn corrupt(detail: String) -> Error {
    Error::Corrupt { path: CATALOG.into(), what: "documents", offset: None, detail }
}

/// Adds the creation of the catalog tree and its format document to `batch`.
pub(crate) fn bootstrap(batch: &mut WriteBatch) -> Result<()> {
    batch.create_tree(CATALOG_TREE, &Schema::key_value());
    put(batch, DocumentKind::Meta, &"format", &FormatDocument { version: FORMAT })
}

/// Adds a schema of `catalog` to `batch`, with its comment and privileges. The schema `public` has a document only if it has
/// either.
pub(crate) fn put_schema(batch: &mut WriteBatch, catalog: &Catalog, name: &str) -> Result<()> {
    let comment = catalog.schema_comments.get(name).cloned();
    let access = catalog.schema_access.get(name).map(|access| Access::clone(access));
    if name == PUBLIC && comment.is_none() && access.is_none() {
        return remove(batch, DocumentKind::Schema, &name);
    }
    extend_format(batch)?;
    put(batch, DocumentKind::Schema, &name, &SchemaDocument { name: name.into(), comment, access })
}

/// Adds a new table, view or sequence to `batch`.
pub(crate) fn put_new(
    batch: &mut WriteBatch,
    kind: DocumentKind,
    name: &RelationName,
    document: &impl Serialize,
) -> Result<()> {
    if name.is_temporary() {
        extend_format(batch)?;
    }
    put(batch, kind, name, document)
}

/// Adds the format version that documents with schemas, temporary objects or partial indexes need to `batch`.
pub(crate) fn extend_format(batch: &mut WriteBatch) -> Result<()> {
    put(batch, DocumentKind::Meta, &"format", &FormatDocument { version: FORMAT_EXTENDED })
}

/// Adds the format version that the roles, owners and privileges of `catalog` need to `batch`, if it has any. Called when all
/// other documents are in the batch, because these may need a lower version.
pub(crate) fn put_roles_format(batch: &mut WriteBatch, catalog: &Catalog) -> Result<()> {
    let has_defaults = catalog.roles.values().any(|role| !role.defaults.is_empty());
    let version = match has_defaults {
        true => FORMAT_DEFAULTS,
        false if catalog.has_access() => FORMAT_ROLES,
        false => return Ok(()),
    };
    put(batch, DocumentKind::Meta, &"format", &FormatDocument { version })
}

/// Adds the insertion or replacement of a document to `batch`.
pub(crate) fn put(
    batch: &mut WriteBatch,
    kind: DocumentKind,
    name: &impl DocumentName,
    document: &impl Serialize,
) -> Result<()> {
    let document = serde_json::to_vec(document)
        .map_err(|error| Error::Internal(format!("the definition of \"{name}\" is not valid JSON: {error}")))?;
    let schema = Schema::key_value();
    let rows = record(&schema, &[kind.key(name).as_bytes(), &document])?;
    Ok(batch.insert(CATALOG_TREE, &schema, &rows)?)
}

/// Adds the deletion of a document to `batch`. The document need not exist.
pub(crate) fn remove(batch: &mut WriteBatch, kind: DocumentKind, name: &impl DocumentName) -> Result<()> {
    let schema = Schema::key_value();
    let rows = record(&schema, &[kind.key(name).as_bytes(), b""])?;
    Ok(batch.delete(CATALOG_TREE, &schema, &rows)?)
}

/// A key-value row as a batch.
fn record(schema: &Schema, values: &[&[u8]]) -> Result<RecordBatch> {
    let columns = values.iter().map(|value| Arc::new(BinaryViewArray::from_iter_values([value])) as ArrayRef);
    Ok(RecordBatch::try_new(schema.arrow().clone(), columns.collect())?)
}

/// Adds the removal of positions to `batch`.
pub(crate) fn remove_positions<'a>(batch: &mut WriteBatch, ids: impl IntoIterator<Item = &'a u64>) -> Result<()> {
    ids.into_iter().try_for_each(|id| remove(batch, DocumentKind::SequencePosition, &id.to_string()))
}

/// Adds the removal of a table with its trees to `batch`. Without `has_memory_trees`, its in-memory indexes are not built.
pub(crate) fn remove_table(batch: &mut WriteBatch, def: &TableDef, has_memory_trees: bool) -> Result<()> {
    remove(batch, DocumentKind::Table, &def.name)?;
    remove(batch, DocumentKind::Statistics, &def.name)?;
    batch.drop_tree(def.tree);
    let is_built = |index: &&IndexDef| has_memory_trees || !index.method.is_in_memory();
    def.indexes.iter().filter(is_built).for_each(|index| batch.drop_tree(index.tree));
    Ok(())
}

/// Removes the temporary relations of sessions that have ended: those whose schemas `is_ended` accepts. No other relation
/// depends on them. See [`remove_table`] for `has_memory_trees`.
pub(crate) fn remove_temporary(
    catalog: &mut Catalog,
    batch: &mut WriteBatch,
    is_ended: impl Fn(&str) -> bool,
    has_memory_trees: bool,
) -> Result<()> {
    let is_removed = |name: &&RelationName| name.is_temporary() && is_ended(&name.schema);
    for name in catalog.tables.keys().filter(is_removed).cloned().collect::<Vec<_>>() {
        if let Some(table) = catalog.tables.remove(&name) {
            remove_table(batch, &table.def, has_memory_trees)?;
        }
    }
    for name in catalog.views.keys().filter(is_removed).cloned().collect::<Vec<_>>() {
        remove(batch, DocumentKind::View, &name)?;
        catalog.views.remove(&name);
    }
    for name in catalog.sequences.keys().filter(is_removed).cloned().collect::<Vec<_>>() {
        remove(batch, DocumentKind::Sequence, &name)?;
        catalog.sequences.remove(&name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"{"name":"t","tree":16,"columns":[{"name":"a","ty":{"column":"BIGINT","max_chars":null},
        "nullable":false,"default":null}],"primary_key":[0],"hidden_rowid":false,
        "indexes":[{"name":"i","tree":17,"columns":[0],"include":[],"unique":true}]}"#;

    fn decode(documents: &[(&str, &str)]) -> Result<Catalog> {
        let documents = documents.iter().map(|(key, text)| (key.to_string(), text.as_bytes().to_vec()));
        Catalog::decode(&documents.collect(), || TreeId::new(1 << 31))
    }

    #[test]
    fn documents_decode_to_a_catalog() {
        let view = r#"{"name":"v","sql":"SELECT 1"}"#;
        let catalog = decode(&[("meta/format", r#"{"version":1}"#), ("table/t", TABLE), ("view/v", view)]).unwrap();
        assert_eq!(catalog.table(&RelationName::public("t")).unwrap().def.tree, TreeId::new(16));
        assert_eq!(
            catalog.index(&RelationName::public("i")).map(|(table, place)| (&*table.def.name, place)),
            Some(("t", 0))
        );
        assert!(catalog.table(&RelationName::public("v")).unwrap_err().to_string().contains("is a view"));
        assert!(matches!(
            catalog.table(&RelationName::public("x")),
            Err(Error::NotFound { kind: ObjectKind::Relation, .. })
        ));
        for name in ["t", "v", "i"].map(RelationName::public) {
            assert!(matches!(catalog.check_free(&name), Err(Error::AlreadyExists { kind: ObjectKind::Relation, .. })));
        }
        assert!(catalog.check_free(&RelationName::public("x")).is_ok());
        assert!(catalog.check_free(&RelationName::public("keyaki_x")).unwrap_err().to_string().contains("is reserved"));
    }

    #[test]
    fn documents_of_schemas_have_keys_of_their_own() {
        let table = TABLE.replace(r#""name":"t""#, r#""name":{"schema":"s","name":"t"}"#);
        let schema = ("schema/s", r#"{"name":"s"}"#);
        let format = ("meta/format", r#"{"version":2}"#);
        let catalog = decode(&[format, ("table/t", TABLE), schema, ("table@s/t", &table)]).unwrap();
        let name = RelationName::new("s", "t");
        assert_eq!(catalog.table(&name).unwrap().def.name, name);
        assert_eq!(catalog.tables.len(), 2);
        assert!(catalog.has_schema("s") && catalog.has_schema(PUBLIC) && !catalog.has_schema("t"));
        assert!(catalog.index(&RelationName::new("s", "i")).is_some());
        let key = |schema: &str, name: &str| DocumentKind::View.key(&RelationName::new(schema, name));
        assert_eq!(key("s", "a/b"), "view@s/a/b");
        assert_ne!(key("s/a", "b"), key("s", "a/b"));
        assert_ne!(key("s%2Fa", "b"), key("s/a", "b"));
    }

    #[test]
    fn indexes_in_memory_get_new_tree_ids() {
        let table = TABLE.replace(r#""unique":true"#, r#""unique":true,"method":"masstree""#);
        let catalog = decode(&[("meta/format", r#"{"version":1}"#), ("table/t", &table)]).unwrap();
        let index = &catalog.table(&RelationName::public("t")).unwrap().def.indexes[0];
        assert_eq!((index.tree, index.method), (TreeId::new(1 << 31), IndexMethod::Masstree));
        assert_eq!("MASSTREE".parse(), Ok(IndexMethod::Masstree));
        assert!("hash".parse::<IndexMethod>().is_err());
    }

    #[test]
    fn partial_indexes_keep_their_predicates() {
        let table = TABLE.replace(r#""unique":true"#, r#""unique":true,"predicate":"a > 0""#);
        let catalog = decode(&[("meta/format", r#"{"version":2}"#), ("table/t", &table)]).unwrap();
        let def = &catalog.table(&RelationName::public("t")).unwrap().def;
        assert_eq!((def.indexes[0].predicate.as_deref(), def.indexes[0].is_key()), (Some("a > 0"), false));
        let stored = serde_json::to_string(def).unwrap();
        assert_eq!(serde_json::from_str::<TableDef>(&stored).unwrap(), *def);
        let whole = decode(&[("meta/format", r#"{"version":1}"#), ("table/t", TABLE)]).unwrap();
        assert!(whole.table(&RelationName::public("t")).unwrap().def.indexes[0].is_key());
    }

    #[test]
    fn roles_and_privileges_need_a_format_version_of_their_own() {
        let format = ("meta/format", r#"{"version":3}"#);
        let table = TABLE.replace(
            r#""hidden_rowid":false"#,
            r#""hidden_rowid":false,"access":{"owner":"o","grants":[{"to":"r","by":"o","privileges":"rw"},{"privileges":"r"}]}"#,
        );
        let role = ("role/r", r#"{"name":"r","id":7,"login":true,"member_of":["o"]}"#);
        let schema = ("schema/public", r#"{"name":"public","access":{}}"#);
        let catalog = decode(&[format, ("table/t", &table), role, schema]).unwrap();
        assert_eq!(catalog.roles["r"].id, 7);
        let access = &catalog.table(&RelationName::public("t")).unwrap().def.access;
        assert_eq!((access.owner.as_deref(), access.grants.len()), (Some("o"), 2));
        assert!(catalog.access_of_schema(PUBLIC).grants.is_empty());
        let mut batch = WriteBatch::new();
        put_roles_format(&mut batch, &catalog).unwrap();
        assert!(!batch.is_empty());
        let plain = decode(&[("meta/format", r#"{"version":1}"#), ("table/t", TABLE)]).unwrap();
        assert_eq!(plain.access_of_schema(PUBLIC).grants.len(), 1);
        let mut batch = WriteBatch::new();
        put_roles_format(&mut batch, &plain).unwrap();
        assert!(batch.is_empty(), "earlier programs can read a database without roles");
    }

    #[test]
    fn damaged_documents_are_errors() {
        let format = ("meta/format", r#"{"version":1}"#);
        assert!(decode(&[]).unwrap_err().to_string().contains("no format version"));
        assert!(decode(&[("meta/format", r#"{"version":5}"#)]).unwrap_err().to_string().contains("version 5"));
        for damaged in ["", "{", "{}", &TABLE.replace("[0]", "[7]"), &TABLE.replace("BIGINT", "BIGINTEGER")] {
            let error = decode(&[format, ("table/t", damaged)]).unwrap_err().to_string();
            assert!(error.contains("table"), "{error}");
        }
    }
}

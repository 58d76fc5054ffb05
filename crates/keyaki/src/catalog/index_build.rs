//! Indexes that CREATE INDEX CONCURRENTLY is building.
//!
//! A table with such an index has a *change log*: a tree with the primary keys of the rows that were changed since the
//! build began, each with the *stamp* of its change. Stamps are unique: each entry is inserted once, and the build can
//! delete the entries that it has read while writers add others. The index itself is not part of the definition before it
//! is complete: no plan uses it, and changes do not write to it.
//!
//! A definition keeps its builds in memory only. A document names their trees, so that the trees can be removed when the
//! database is opened after a crash. Programs that do not know the document ignore it: the index does not exist for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use keyaki_store::key_value::KeyValue;
use keyaki_store::{Column, ColumnType, Direction, Schema, Snapshot, Store, TreeId, WriteBatch};
use serde::{Deserialize, Serialize};

use super::documents::{CATALOG_TREE, Catalog, DocumentKind, corrupt, parse, put, remove};
use super::names::RelationName;
use super::table::Table;
use crate::Result;

/// Name of the column of stamps in a change log.
const STAMP: &str = "__stamp";

/// An index that is being built. Clones share the stamps.
#[derive(Debug, Clone)]
pub struct IndexBuild {
    /// Name of the index, in the schema of its table.
    pub name: String,
    /// The tree of the index.
    pub tree: TreeId,
    /// The tree of the change log.
    pub log: TreeId,
    /// Schema of the change log: the key columns of the table's tree and the stamp, which together are its key.
    pub schema: Arc<Schema>,
    stamps: Arc<AtomicI64>,
}

impl PartialEq for IndexBuild {
    fn eq(&self, other: &Self) -> bool {
        (self.tree, self.log) == (other.tree, other.log)
    }
}

/// The document of a build.
#[derive(Debug, Serialize, Deserialize)]
struct IndexBuildDocument {
    table: RelationName,
    index: String,
    #[serde(with = "crate::catalog::types::tree_number")]
    tree: TreeId,
    #[serde(with = "crate::catalog::types::tree_number")]
    log: TreeId,
}

impl IndexBuild {
    /// The build of an index of `table` in `tree`, with `log` as the change log.
    pub(crate) fn new(table: &Table, name: String, tree: TreeId, log: TreeId) -> IndexBuild {
        let mut columns = table.schema.columns()[..table.schema.key_columns()].to_vec();
        columns.push(Column { name: STAMP.into(), ty: ColumnType::Int64, nullable: false });
        let keys = columns.len();
        IndexBuild { name, tree, log, schema: Arc::new(Schema::new(columns, keys)), stamps: Arc::default() }
    }

    /// The entries of a change of rows with different primary keys, given by the key columns of the table's tree.
    ///
    /// # Errors
    /// None is expected: the columns are those of the table.
    pub(crate) fn entries(&self, mut keys: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
        let stamp = self.stamps.fetch_add(1, Ordering::Relaxed);
        keys.push(Arc::new(Int64Array::from_value(stamp, rows)));
        Ok(RecordBatch::try_new(self.schema.arrow().clone(), keys)?)
    }

    /// Adds the creation of the two trees and of the document to `batch`.
    ///
    /// # Errors
    /// None is expected.
    pub(crate) fn create(&self, batch: &mut WriteBatch, table: &Table, index_schema: &Schema) -> Result<()> {
        batch.create_tree(self.tree, index_schema);
        batch.create_tree(self.log, &self.schema);
        let document = IndexBuildDocument {
            table: table.def.name.clone(),
            index: self.name.clone(),
            tree: self.tree,
            log: self.log,
        };
        put(batch, DocumentKind::IndexBuild, &self.document_name(), &document)
    }

    /// Adds the end of the build to `batch`: the removal of the change log and of the document. The tree of the index stays.
    ///
    /// # Errors
    /// None is expected.
    pub(crate) fn end(&self, batch: &mut WriteBatch) -> Result<()> {
        batch.drop_tree(self.log);
        remove(batch, DocumentKind::IndexBuild, &self.document_name())
    }

    /// Adds the removal of the build with its trees to `batch`, unless it has ended. `snapshot` is the newest one.
    ///
    /// # Errors
    /// None is expected.
    pub(crate) fn remove(&self, batch: &mut WriteBatch, snapshot: &Snapshot) -> Result<()> {
        if snapshot.tree(self.log).is_err() {
            return Ok(());
        }
        batch.drop_tree(self.tree);
        self.end(batch)
    }

    fn document_name(&self) -> String {
        self.log.get().to_string()
    }
}

/// Adds the removal of the builds of the previous process to `batch`, with their trees. Blocks.
///
/// # Errors
/// `Corrupt` if a document names a tree of the catalog; errors of the store.
pub(crate) fn remove_builds(store: &Store, catalog: &Catalog, batch: &mut WriteBatch) -> Result<()> {
    let kind = DocumentKind::IndexBuild.key(&"");
    let snapshot = store.latest();
    for document in KeyValue::open(store, CATALOG_TREE)?.range(kind.as_bytes().., Direction::Ascending)? {
        let (key, document) = document?;
        let Some(name) = std::str::from_utf8(&key).ok().and_then(|key| key.strip_prefix(&kind)) else { break };
        let IndexBuildDocument { tree, log, .. } = parse(&format!("{kind}{name}"), &document)?;
        for tree in [tree, log] {
            if tree == CATALOG_TREE || catalog.has_tree(tree) {
                return Err(corrupt(format!("the build of an index has tree {}, which is in use", tree.get())));
            }
            if snapshot.tree(tree).is_ok() {
                batch.drop_tree(tree);
            }
        }
        remove(batch, DocumentKind::IndexBuild, &name)?;
    }
    Ok(())
}

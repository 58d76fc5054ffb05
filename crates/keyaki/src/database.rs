//! The database: a store, its catalog, and the executor.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use keyaki_device::calibrate::Calibration;
use keyaki_exec::Executor;
use keyaki_store::Store;
use parking_lot::{Mutex, RwLock};

use crate::catalog::{TableDef, ViewDef};
use crate::statistics::TableStatistics;
use crate::{Options, Result, Session};

/// An open database. `Clone` gives another handle; sessions hold one.
#[derive(Debug, Clone)]
pub struct Database {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub path: PathBuf,
    pub store: Store,
    pub executor: Executor,
    /// What is in the catalog tree, decoded. Replaced as a whole by DDL.
    pub catalog: RwLock<Arc<Catalog>>,
    /// Held by every writing statement from its first read to its commit: one writer at a time.
    pub writer: tokio::sync::Mutex<()>,
    pub calibration: Mutex<Arc<Calibration>>,
    /// Bytes for DataFusion operators (a part of `Options::memory_bytes`).
    pub query_memory_bytes: usize,
    pub threads: usize,
}

/// Everything named, as of one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Catalog {
    pub tables: std::collections::BTreeMap<String, Arc<Table>>,
    pub views: std::collections::BTreeMap<String, Arc<ViewDef>>,
}

/// A table with what is derived from its definition.
#[derive(Debug)]
pub(crate) struct Table {
    pub def: TableDef,
    /// Schema of the table's tree.
    pub schema: Arc<keyaki_store::Schema>,
    /// Schemas of the indexes' trees, parallel to `def.indexes`.
    pub index_schemas: Vec<Arc<keyaki_store::Schema>>,
    /// Schema as SQL sees it: `def.columns` in order (without a hidden rowid).
    pub arrow: arrow::datatypes::SchemaRef,
    /// Column `i` of SQL is column `tree_column[i]` of the table's tree.
    pub tree_column: Vec<usize>,
    pub statistics: Option<Arc<TableStatistics>>,
}

impl Table {
    /// For the tree of index `i`: which table column each of its columns is (`None`: the hidden rowid).
    pub fn index_columns(&self, _index: usize) -> Vec<Option<usize>> {
        todo!()
    }
}

/// What `.tables` and the system views show.
#[derive(Debug, Clone)]
pub struct TableInfo {
    pub name: String,
    pub is_view: bool,
    pub rows: f64,
    pub bytes: u64,
    /// CREATE statement.
    pub sql: String,
}

#[derive(Debug, Clone)]
pub struct IndexInfo {
    pub name: String,
    pub table: String,
    pub columns: Vec<String>,
    pub include: Vec<String>,
    pub unique: bool,
    pub bytes: u64,
    /// CREATE statement.
    pub sql: String,
}

impl Database {
    /// Opens the database directory, creating it if it does not exist.
    pub fn open(_path: impl AsRef<Path>, _options: Options) -> Result<Database> {
        todo!()
    }
    /// As `open`, but an existing database is an error.
    pub fn create(_path: impl AsRef<Path>, _options: Options) -> Result<Database> {
        todo!()
    }
    pub fn session(&self) -> Session {
        todo!()
    }
    pub fn path(&self) -> &Path {
        &self.inner.path
    }
    /// The store underneath, for tools.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }
    pub fn tables(&self) -> Vec<TableInfo> {
        todo!()
    }
    pub fn indexes(&self) -> Vec<IndexInfo> {
        todo!()
    }
    /// Columns of a table or view: (name, SQL type text).
    pub fn columns(&self, _table: &str) -> Result<Vec<(String, String)>> {
        todo!()
    }
    /// The device's measured speed: `calibration.json` in the database directory, else assumed figures.
    pub fn calibration(&self) -> Arc<Calibration> {
        self.inner.calibration.lock().clone()
    }
    /// Stores a measurement in the database directory and uses it from now on.
    pub fn set_calibration(&self, _calibration: Calibration) -> Result<()> {
        todo!()
    }
    pub fn drop_caches(&self) {
        self.inner.store.drop_caches();
    }
}

//! The handle of an open database: opening, calibration, cache control and descriptions of its objects.

use std::path::Path;
use std::sync::Arc;

use futures::FutureExt;
use keyaki_device::calibrate::Calibration;
use keyaki_exec::MemoryTrace;
use keyaki_store::{Durability, Store};
use tempfile::TempDir;

use super::runtime::BlockingRuntime;
use super::{Connection, Session};
use crate::catalog::Table;
use crate::engine::Engine;
use crate::engine::cache::{CacheCalibration, CacheStatus};
use crate::sql::cluster::Cluster;
use crate::sql::{IndexInfo, PlanCache, SequenceInfo, TableInfo, expressions, info, show};
use crate::{CacheGovernor, Error, Options, Result};

/// An open database. Clones and sessions refer to the same database. The last of them closes it when dropped.
#[derive(Debug, Clone)]
pub struct Database {
    // In the order of their drops: tasks of the runtime refer to the engine, which has files in the directory.
    pub(super) runtime: Arc<BlockingRuntime>,
    pub(super) engine: Arc<Engine>,
    pub(super) plans: Arc<PlanCache>,
    /// The cluster that executes queries.
    pub(super) cluster: Option<Arc<dyn Cluster>>,
    /// The directory of a temporary database.
    _directory: Option<Arc<TempDir>>,
}

impl Database {
    /// Opens the database directory, and creates it if it does not exist. The URL of a published database
    /// (`s3://bucket/shop`, `file:///backups/shop`; with `@` and a number, that version, otherwise the newest one) is opened
    /// for reading.
    ///
    /// # Errors
    /// `ObjectStore` for a URL;
    /// `NotFound` with [`Options::must_exist`] and [`Options::read_only`], `NotADatabase`, `FormatVersion`, `Locked` if the database is open
    /// elsewhere, `Corrupt`, `InvalidParameter` if the memory is below the minimum, `Io` and `DiskFull`.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Database> {
        Ok(Database::of(Engine::open(path.as_ref(), options, compile)?, None))
    }

    /// Creates a database.
    ///
    /// # Errors
    /// `AlreadyExists` if the database exists, and the errors of [`Database::open`].
    pub fn create(path: impl AsRef<Path>, options: Options) -> Result<Database> {
        Ok(Database::of(Engine::create(path.as_ref(), options, compile)?, None))
    }

    /// Creates a database in a new directory among the system's temporary files. The directory is removed when the
    /// database is closed. Commits are not synced: the database does not survive the program anyway.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub fn open_temporary(options: Options) -> Result<Database> {
        let made = tempfile::Builder::new().prefix("keyaki-").tempdir();
        let directory = made.map_err(|error| Error::io("create", &std::env::temp_dir(), error))?;
        let options = Options { must_exist: false, durability: Durability::Off, ..options };
        let engine = Engine::open(directory.path(), options, compile)?;
        Ok(Database::of(engine, Some(directory)))
    }

    fn of(engine: Arc<Engine>, directory: Option<TempDir>) -> Database {
        let _directory = directory.map(Arc::new);
        Database { runtime: Arc::default(), engine, plans: Arc::default(), cluster: None, _directory }
    }

    /// A blocking connection.
    ///
    /// # Errors
    /// `Io` if the threads of the first connection cannot be started.
    pub fn connect(&self) -> Result<Connection> {
        Connection::new(self.clone())
    }

    /// Starts the threads that run statements of connections.
    pub(super) fn start_runtime(&self) -> Result<()> {
        self.runtime.start(self.engine.base_state.config().target_partitions())
    }

    /// A new session with default options.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }

    /// The database directory.
    pub fn path(&self) -> &Path {
        &self.engine.path
    }

    /// The store of the database, for tools.
    pub fn store(&self) -> &Store {
        &self.engine.store
    }

    /// The speed of the device: [`Options::calibration`], or measured, from `calibration.json` in the database directory;
    /// default values without that file.
    pub fn calibration(&self) -> Arc<Calibration> {
        self.engine.calibration()
    }

    /// Stores a measurement of the device in the database directory, unless the database was opened with
    /// [`Options::calibration`]. Statements use it from now on.
    ///
    /// # Errors
    /// `Io` or `DiskFull` if the file cannot be written.
    pub fn set_calibration(&self, calibration: Calibration) -> Result<()> {
        self.engine.set_calibration(calibration)
    }

    /// The state of the CPU cache governor, and the pinned objects.
    pub fn cache_status(&self) -> CacheStatus {
        self.engine.cache.status(&self.engine.store)
    }

    /// Stores a measurement of the CPU's caches in the database directory. Statements use it from now on.
    ///
    /// # Errors
    /// `Io` or `DiskFull` if the file cannot be written.
    pub fn set_cache_calibration(&self, measured: CacheCalibration) -> Result<()> {
        self.engine.check_read_write("CALIBRATE")?;
        self.engine.cache.set_calibration(measured)
    }

    /// Switches the CPU cache governor on or off. Switching it off ends all pins.
    pub fn set_cache_governor(&self, mode: CacheGovernor) {
        self.engine.set_cache_governor(mode);
    }

    /// Starts recording the memory accesses of all queries in a file for `keyaki_llc::sim`, until
    /// [`Database::end_memory_trace`].
    ///
    /// # Errors
    /// `Io` or `DiskFull` if the file cannot be written.
    pub fn start_memory_trace(&self, file: &Path) -> Result<Arc<MemoryTrace>> {
        self.engine.start_memory_trace(file)
    }

    /// Ends a trace and returns the number of recorded accesses.
    ///
    /// # Errors
    /// `Io` or `DiskFull` if the file could not be written, an error if the trace has ended before.
    pub fn end_memory_trace(&self, trace: &MemoryTrace) -> Result<u64> {
        self.engine.end_memory_trace(trace)
    }

    /// Empties the page cache, for measurements.
    pub fn drop_caches(&self) {
        self.engine.store.drop_caches();
    }

    /// Brings a database that is open read-only up to date for a description. After an error, it is that of the last
    /// statement.
    fn refresh(&self) {
        if let Err(error) = self.engine.refresh() {
            tracing::warn!(%error, "could not bring the database up to date");
        }
    }

    /// Descriptions of all tables and views, sorted by schema and name.
    pub fn tables(&self) -> Vec<TableInfo> {
        self.refresh();
        info::tables(&self.engine)
    }

    /// Descriptions of the sequences of CREATE SEQUENCE, sorted by schema and name.
    pub fn sequences(&self) -> Vec<SequenceInfo> {
        self.refresh();
        info::sequences(&self.engine)
    }

    /// The schemas, sorted by name, without `public`.
    pub fn schemas(&self) -> Vec<String> {
        self.refresh();
        self.engine.moment().0.schemas.iter().cloned().collect()
    }

    /// COMMENT statements for the schemas that have a comment.
    pub fn schema_comments(&self) -> Vec<String> {
        self.refresh();
        show::schema_comments(&self.engine.moment().0)
    }

    /// Descriptions of all secondary indexes, sorted by schema, table and name.
    pub fn indexes(&self) -> Vec<IndexInfo> {
        self.refresh();
        let (catalog, snapshot) = self.engine.moment();
        info::indexes(&self.engine, &catalog, &snapshot)
    }

    /// Columns of a table or view as (name, SQL type). The name may be qualified as in SQL.
    ///
    /// # Errors
    /// `NotFound`; for a view, errors of planning its query.
    pub fn columns(&self, table: &str) -> Result<Vec<(String, String)>> {
        self.engine.refresh()?;
        let catalog = self.engine.catalog.read().clone();
        let session = self.session();
        let name = session.sql.named(&catalog, table)?;
        if catalog.views.contains_key(&name) {
            let planned = crate::sql::view_columns(&session.sql, &name).now_or_never();
            return planned.unwrap_or_else(|| Err(Error::Internal(format!("planning view \"{table}\" waited"))));
        }
        let table = catalog.table(&name)?;
        Ok(table.def.columns.iter().map(|c| (c.name.clone(), c.ty.to_string())).collect())
    }
}

/// Compiles the expressions of a table.
fn compile(engine: &Engine, table: &Table) -> Result<()> {
    expressions::compile(engine, table).map(drop)
}

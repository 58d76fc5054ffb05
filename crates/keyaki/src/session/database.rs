//! The database: a handle on an engine, and what it says of itself.

use std::path::Path;
use std::sync::Arc;

use futures::FutureExt;
use keyaki_device::calibrate::Calibration;
use keyaki_exec::MemoryTrace;
use keyaki_store::Store;

use super::Session;
use crate::engine::Engine;
use crate::engine::cache::{CacheCalibration, CacheStatus};
use crate::sql::{IndexInfo, TableInfo, info};
use crate::{CacheGovernor, Options, Result};

/// An open database. `Clone` gives another handle; sessions hold one.
#[derive(Debug, Clone)]
pub struct Database {
    pub(super) engine: Arc<Engine>,
}

impl Database {
    /// Opens the database directory, creating it if it does not exist.
    ///
    /// # Errors
    /// `NotFound` with [`Options::must_exist`]; the store's errors if the directory is something else, is open already,
    /// of another version, or damaged.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Database> {
        Ok(Database { engine: Engine::open(path.as_ref(), options)? })
    }

    /// As `open`, but an existing database is an error.
    pub fn create(path: impl AsRef<Path>, options: Options) -> Result<Database> {
        Ok(Database { engine: Engine::create(path.as_ref(), options)? })
    }

    /// A new session with default options.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }

    /// The database directory.
    pub fn path(&self) -> &Path {
        &self.engine.path
    }

    /// The store underneath, for tools.
    pub fn store(&self) -> &Store {
        &self.engine.store
    }

    /// The device's measured speed: `calibration.json` in the database directory, else assumed figures.
    pub fn calibration(&self) -> Arc<Calibration> {
        self.engine.calibration()
    }

    /// Stores a measurement in the database directory and uses it from now on.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set_calibration(&self, calibration: Calibration) -> Result<()> {
        self.engine.set_calibration(calibration)
    }

    /// What the governor of the CPU's caches does, and what is pinned.
    pub fn cache_status(&self) -> CacheStatus {
        self.engine.cache.status(&self.engine.store)
    }

    /// Stores what was measured of the CPU's caches in the database directory and uses it from now on.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set_cache_calibration(&self, measured: CacheCalibration) -> Result<()> {
        self.engine.cache.set_calibration(measured)
    }

    /// Switches the governor of the CPU's caches; switching it off ends all pins.
    pub fn set_cache_governor(&self, mode: CacheGovernor) {
        self.engine.set_cache_governor(mode);
    }

    /// Records which memory all queries touch from now on, in a file for `keyaki_llc::sim`, until the trace is given back.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn start_memory_trace(&self, file: &Path) -> Result<Arc<MemoryTrace>> {
        self.engine.start_memory_trace(file)
    }

    /// Ends a trace. Gives the number of accesses recorded.
    ///
    /// # Errors
    /// If the file could not be written.
    pub fn end_memory_trace(&self, trace: &MemoryTrace) -> Result<u64> {
        self.engine.end_memory_trace(trace)
    }

    /// Empties the page cache, for measurements.
    pub fn drop_caches(&self) {
        self.engine.store.drop_caches();
    }

    /// Tables and views, by name.
    pub fn tables(&self) -> Vec<TableInfo> {
        info::tables(&self.engine)
    }

    /// Secondary indexes, by table and name.
    pub fn indexes(&self) -> Vec<IndexInfo> {
        info::indexes(&self.engine)
    }

    /// Columns of a table or view: (name, SQL type text).
    ///
    /// # Errors
    /// `NotFound`; a view that cannot be planned.
    pub fn columns(&self, table: &str) -> Result<Vec<(String, String)>> {
        let catalog = self.engine.catalog.read().clone();
        if catalog.views.contains_key(table) {
            let session = self.session();
            let planned = crate::sql::view_columns(&session.sql, table).now_or_never();
            return planned.unwrap_or_else(|| Err(crate::Error::Internal(format!("planning view \"{table}\" waited"))));
        }
        let table = catalog.table(table)?;
        Ok(table.def.columns.iter().map(|c| (c.name.clone(), c.ty.to_string())).collect())
    }
}

//! The engine: an open database without sessions and SQL.
//!
//! An [`Engine`] owns the store, the executor, the catalog, the writer lock, the memory budget of in-memory indexes,
//! the calibration, and the control of the CPU caches. Readers take a [`Snapshot`] with the matching [`Catalog`]
//! ([`Engine::moment`]) and never wait for writers. A statement that writes has a [`Writer`]: it holds the writer lock, or
//! writes to the transaction of its session.
//!
//! Invariant: every tree of the catalog that a statement reads exists in its snapshot. Definitions are committed first and
//! then published. A reader between the two, with the old catalog and a snapshot without its removed trees, reads again
//! ([`Engine::moment`]).
//!
//! | module | contents |
//! |---|---|
//! | [`writer`] | the writer lock, commits of statements |
//! | [`transaction`] | transactions of several statements |
//! | [`moment`] | kept snapshots for small statements |
//! | [`memory_index`] | in-memory indexes |
//! | [`index_builds`] | unfinished indexes of CREATE INDEX CONCURRENTLY |
//! | [`queries`] | the statements that run, and the last ones that have ended |
//! | [`base_state`] | functions and resources of DataFusion |
//! | [`types`] | types of literals and casts |
//! | [`read_only`] | databases that are open read-only |
//! | [`published`] | published versions as databases |
//! | [`cache`] | control of the CPU caches |

mod base_state;
pub(crate) mod cache;
mod index_builds;
mod memory_index;
mod moment;
pub(crate) mod notifications;
pub(crate) mod published;
pub(crate) mod queries;
pub(crate) mod query_memory;
mod read_only;
pub(crate) mod sequences;
pub(crate) mod sessions;
mod temporary;
pub(crate) mod transaction;
mod types;
mod writer;

use std::collections::{BTreeSet, HashMap};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use datafusion::execution::SessionState;
use datafusion::execution::memory_pool::MemoryLimit;
use keyaki_device::Device;
use keyaki_device::calibrate::Calibration;
use keyaki_device::metered::{Metering, Meters};
use keyaki_exec::{Executor, MemoryTrace};
use keyaki_publish::{Buckets, DiskCacheOptions, VersionDevice};
use keyaki_store::{Direction, Durability, KeyRange, Store, TreeId, WriteBatch, block_on};
use parking_lot::{Mutex, RwLock};

use crate::base::advisory_locks::AdvisoryLocks;
use crate::base::options::{MEMORY_BYTES_MIN, MemoryBudget};
use crate::base::progress::NoProgress;
use crate::base::row_locks::RowLocks;
use crate::base::timers::Timers;
use crate::catalog::{Catalog, Table};
use crate::catalog::{IndexDef, bootstrap};
use crate::engine::cache::{CacheControl, SharedCache};
use crate::{CacheGovernor, Error, ObjectKind, Options, Result};

use base_state::base_state;
use index_builds::IndexBuilds;
use memory_index::{no_memory, rebuild};
use notifications::Notifications;
use queries::Queries;
use read_only::{Follower, not_built};
use sequences::Sequences;
use sessions::Sessions;

pub(crate) use base_state::CATALOG_NAME;
pub(crate) use index_builds::RunningBuild;
pub(crate) use memory_index::{Build, Unusable, scanned};
pub(crate) use moment::{Moment, Moments};
use temporary::TemporarySchemas;
pub(crate) use writer::{Changes, Writer};

/// The stored calibration of the device, in the database directory.
const CALIBRATION_FILE: &str = "calibration.json";
/// Opening a database waits for the locators if their trees have at most this many bytes together; larger ones are
/// built in the background.
const LOCATE_AT_ONCE_BYTES: u64 = 1 << 30;
/// Kinds of files with meters of their own.
const FILE_KINDS: &[&str] = &["data", "log", "other"];
/// Spill directory of queries, in the database directory. Opening the database empties it.
const SPILL_DIR: &str = "tmp";

/// The place of a file's kind in [`FILE_KINDS`].
fn file_kind(path: &Path) -> usize {
    match path.file_name().and_then(|name| name.to_str()) {
        Some("data" | "data.new") => 0,
        Some(name) if name.starts_with("log-") || name == "log.spare" => 1,
        _ => 2,
    }
}

/// Databases that sessions have attached, by location.
pub(crate) type SharedEngines = Mutex<Vec<(String, Weak<Engine>)>>;

/// Compiles the expressions of a table.
pub(crate) type Compile = fn(&Engine, &Table) -> Result<()>;

/// An open database. Sessions share it through an [`Arc`].
#[derive(Debug)]
pub(crate) struct Engine {
    /// The database directory.
    pub path: PathBuf,
    pub store: Store,
    pub executor: Executor,
    /// The published catalog. DDL replaces it as a whole ([`Engine::publish`]).
    pub catalog: RwLock<Arc<Catalog>>,
    /// Number of replacements of `catalog`.
    catalog_version: AtomicU64,
    /// Number of commits of definitions that may be in the store already and are not published yet.
    unpublished: AtomicU64,
    /// Snapshots of sessions for small statements.
    pub moments: Arc<Moments>,
    /// The writer lock. A writing statement holds it from its first read to its commit.
    writer: Arc<tokio::sync::Mutex<()>>,
    pub calibration: Mutex<Arc<Calibration>>,
    /// File of the stored calibration; `None` if the device is not the one under the database directory.
    calibration_file: Option<PathBuf>,
    pub durability: Mutex<Durability>,
    /// The settings of the database when it was opened, for RESET.
    pub initial: InitialSettings,
    /// Memory budget of DataFusion's operators in bytes, a part of `Options::memory_bytes`.
    pub query_memory_bytes: usize,
    /// DataFusion's functions, rules and resources, shared by all statements.
    pub base_state: SessionState,
    /// Build times of in-memory indexes.
    pub build_times: Mutex<HashMap<TreeId, Duration>>,
    /// In-memory indexes that could not be built.
    unusable: Arc<Unusable>,
    /// Set if the database is open read-only.
    follower: Option<Follower>,
    /// The device of a published version.
    pub version: Option<Arc<VersionDevice>>,
    /// Its URL, with `@` and its number.
    pub version_url: Option<String>,
    /// Settings of the clients of object stores.
    pub object_store: Vec<(String, String)>,
    /// The buckets with files of statements.
    pub buckets: Arc<Buckets>,
    /// The cache on disk for the pages of published databases.
    pub object_cache: Option<DiskCacheOptions>,
    /// `Options::memory_bytes`.
    pub memory_bytes: usize,
    /// The databases that sessions have attached.
    pub attached: SharedEngines,
    /// Control of the CPU caches.
    pub cache: SharedCache,
    /// Maximum memory of in-memory indexes and locators in bytes, taken from the page cache.
    pub memory_index_bytes_max: usize,
    /// The next hidden rowid of tables that have been inserted into since opening.
    rowids: Mutex<HashMap<TreeId, i64>>,
    /// Positions of the sequences.
    pub sequences: Sequences,
    /// The schemas of temporary objects.
    pub temporary: TemporarySchemas,
    /// Unfinished indexes.
    pub index_builds: Arc<IndexBuilds>,
    /// The statements that run, and the last ones that have ended.
    pub queries: Arc<Queries>,
    /// The sessions and their current statements.
    pub sessions: Sessions,
    /// The requests to the device, by kind of file.
    pub meters: Arc<Meters>,
    /// The timeouts of transactions.
    pub timers: Timers,
    /// The channels of NOTIFY.
    pub notifications: Notifications,
    /// The locks of rows that transactions and statements have changed.
    pub row_locks: Arc<RowLocks>,
    /// The advisory locks of the sessions.
    pub advisory_locks: Arc<AdvisoryLocks>,
}

/// Settings of the database that SET changes, as they were when it was opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InitialSettings {
    pub durability: Durability,
    pub cache_governor: CacheGovernor,
}

impl Drop for Engine {
    fn drop(&mut self) {
        let positions = self.catalog.read().positions(&Catalog::default());
        if !self.is_read_only()
            && let Err(error) = self.sequences.close(&self.store, &positions)
        {
            // The sequences go on behind the values that were reserved.
            tracing::warn!(%error, "failed to store the positions of sequences");
        }
        // The observer of the store outlives the engine.
        self.moments.clear();
    }
}

impl Engine {
    /// Memory that all queries may use together, in bytes.
    pub fn query_bytes(&self) -> usize {
        match self.base_state.runtime_env().memory_pool.memory_limit() {
            MemoryLimit::Finite(bytes) => bytes,
            MemoryLimit::Infinite | MemoryLimit::Unknown => unreachable!("the pool of queries has a size"),
        }
    }

    /// Opens a database directory. Creates it if it does not exist, unless `options.must_exist` is set. `compile` compiles
    /// the expressions of a table whose in-memory indexes are built.
    pub fn open(path: &Path, options: Options, compile: Compile) -> Result<Arc<Engine>> {
        if let Some(url) = path.to_str().filter(|_| published::is_url(path)) {
            if options.device.is_some() {
                return Err(Error::Unsupported("a device for a database at a URL".into()));
            }
            let (version, options) = published::open(url, options)?;
            let path = version.directory().to_path_buf();
            let url = format!("{}@{}", published::split_version(url).0, version.number());
            return Engine::open_on(version.clone(), Some((version, url)), &path, options, compile);
        }
        let device = device(&options)?;
        if options.must_exist && !exists(&device, path)? {
            return Err(Error::NotFound { kind: ObjectKind::Database, name: path.display().to_string() });
        }
        Engine::open_on(device, None, path, options, compile)
    }

    /// Like [`Engine::open`], but fails if the database exists.
    pub fn create(path: &Path, options: Options, compile: Compile) -> Result<Arc<Engine>> {
        if published::is_url(path) {
            let what = "databases at URLs, except as copies (create a local database, and publish it)";
            return Err(Error::Unsupported(what.into()));
        }
        let device = device(&options)?;
        if exists(&device, path)? {
            return Err(Error::AlreadyExists { kind: ObjectKind::Database, name: path.display().to_string() });
        }
        Engine::open_on(device, None, path, Options { must_exist: false, ..options }, compile)
    }

    /// Opens a database on a device. `version`: the same device, if it is a published version, and the URL of this version.
    fn open_on(
        device: Arc<dyn Device>,
        version: Option<(Arc<VersionDevice>, String)>,
        path: &Path,
        options: Options,
        compile: Compile,
    ) -> Result<Arc<Engine>> {
        let (version, url) = version.unzip();
        let threads = options.threads.unwrap_or_else(default_threads).max(1);
        let memory_bytes = options.memory_bytes();
        if memory_bytes < MEMORY_BYTES_MIN {
            return Err(Error::InvalidParameter {
                name: "memory".into(),
                value: memory_bytes.to_string(),
                expected: format!("at least {MEMORY_BYTES_MIN} bytes"),
            });
        }
        let budget = MemoryBudget::divide(memory_bytes);
        let real = device.name() != "simulated";
        // Measurements of the device and of the CPU's caches have files there.
        let has_directory = real && device.name() != "object";
        let store_options = store_options(&options);
        let device = Arc::new(Metering::new(device, FILE_KINDS, file_kind));
        let meters = device.meters().clone();
        let open = if options.read_only { Store::open_read_only } else { Store::open };
        let store = open(device, path, store_options)?;
        let executor_options = options.executor.unwrap_or_default();
        let executor_options = keyaki_exec::ExecutorOptions {
            workers: if executor_options.workers == 0 { threads } else { executor_options.workers },
            ..executor_options
        };
        let executor = Executor::new(store.clone(), executor_options)?;
        let (catalog, follower) = if options.read_only {
            let (follower, catalog) = Follower::open(&store)?;
            (catalog, Some(follower))
        } else {
            let (mut catalog, positions) = read_or_create_catalog(&store)?;
            temporary::remove_left(&store, &mut catalog, &positions)?;
            (catalog, None)
        };
        let catalog = Arc::new(catalog);
        let memory_index_bytes_max = budget.memory_index_bytes_max();
        let progress = options.progress.unwrap_or_else(|| Arc::new(NoProgress));
        let spill = match &follower {
            Some(follower) if real => Some(follower.spill_dir()),
            None if real => Some(empty_spill_dir(path)?),
            _ => None,
        };
        let cache = CacheControl::new(options.cache_governor, has_directory.then_some(path));
        let calibration_file = (has_directory && options.calibration.is_none()).then(|| path.join(CALIBRATION_FILE));
        let calibration = options
            .calibration
            .or_else(|| calibration_file.as_deref().and_then(read_calibration))
            .or_else(|| version.as_deref().map(published::calibration))
            .unwrap_or_else(Calibration::assumed);
        let mut engine = Engine {
            cache: Arc::new(cache),
            path: path.to_path_buf(),
            base_state: base_state(budget.query_bytes, spill, threads)?,
            store,
            executor,
            catalog: RwLock::new(catalog.clone()),
            catalog_version: AtomicU64::new(0),
            unpublished: AtomicU64::new(0),
            moments: Arc::default(),
            sequences: Sequences::default(),
            temporary: TemporarySchemas::default(),
            index_builds: Arc::default(),
            queries: Arc::default(),
            sessions: Sessions::default(),
            meters,
            timers: Timers::default(),
            notifications: Notifications::default(),
            row_locks: Arc::default(),
            advisory_locks: Arc::default(),
            writer: Arc::default(),
            calibration: Mutex::new(Arc::new(calibration)),
            calibration_file,
            durability: Mutex::new(options.durability),
            initial: InitialSettings { durability: options.durability, cache_governor: options.cache_governor },
            query_memory_bytes: budget.query_bytes,
            build_times: Mutex::default(),
            unusable: Arc::default(),
            follower,
            version,
            version_url: url,
            buckets: Arc::new(Buckets::new(options.object_store.clone())),
            object_store: options.object_store,
            object_cache: options.object_cache,
            memory_bytes,
            attached: SharedEngines::default(),
            memory_index_bytes_max,
            rowids: Mutex::default(),
        };
        if !engine.is_read_only() {
            let (build_times, unusable) = rebuild(&engine, &catalog, threads, &*progress, compile)?;
            (engine.build_times, engine.unusable) = (Mutex::new(build_times), Arc::new(unusable));
        }
        let moments = engine.moments.clone();
        engine.store.observe_generations(move |generation| moments.release(generation));
        engine.store.set_memory_limit(memory_index_bytes_max as u64);
        engine.locate_pages();
        let located = engine.catalog.read().locators();
        if located.keys().map(|&tree| engine.store.tree_bytes(tree)).sum::<u64>() <= LOCATE_AT_ONCE_BYTES {
            engine.store.wait_for_locators();
        }
        engine.store.share_memory();
        Ok(Arc::new(engine))
    }

    /// Calibration of the device: given, measured, or default figures.
    pub fn calibration(&self) -> Arc<Calibration> {
        self.calibration.lock().clone()
    }

    /// Applies a calibration, and stores it in the database directory unless the database was opened with another one.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set_calibration(&self, calibration: Calibration) -> Result<()> {
        self.check_read_write("CALIBRATE")?;
        if let Some(file) = &self.calibration_file {
            calibration.save(file)?;
        }
        *self.calibration.lock() = Arc::new(calibration);
        Ok(())
    }

    /// Changes the durability of later commits. Blocks if earlier commits must become durable.
    pub fn set_durability(&self, durability: Durability) {
        let mut current = self.durability.lock();
        if *current != durability {
            self.store.set_durability(durability);
            *current = durability;
        }
    }

    /// Switches the cache governor on or off. Switching off ends all pins.
    pub fn set_cache_governor(&self, mode: CacheGovernor) {
        if mode == CacheGovernor::Off {
            self.cache.pins.clear(&self.store);
        }
        self.cache.set_mode(mode);
    }

    /// Records the memory accesses of all queries in a file for `keyaki_llc::sim`, until [`Engine::end_memory_trace`].
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn start_memory_trace(&self, file: &Path) -> Result<Arc<MemoryTrace>> {
        let (catalog, _) = self.moment();
        let trees = catalog.tables.values().flat_map(|table| {
            let own = (table.def.tree, table.def.name.to_string());
            let index = |index: &IndexDef| (index.tree, format!("{}.{}", table.def.name, index.name));
            std::iter::once(own).chain(table.def.indexes.iter().map(index)).collect::<Vec<_>>()
        });
        let failed = |error| Error::io("create", file, error);
        let out = std::io::BufWriter::new(std::fs::File::create(file).map_err(failed)?);
        let trace = MemoryTrace::new(Box::new(out), &trees.collect::<Vec<_>>()).map_err(failed)?;
        let trace = Arc::new(trace);
        self.executor.set_memory_trace(Some(trace.clone()));
        Ok(trace)
    }

    /// Ends a trace and returns the number of recorded accesses.
    ///
    /// # Errors
    /// If the file could not be written.
    pub fn end_memory_trace(&self, trace: &MemoryTrace) -> Result<u64> {
        self.executor.set_memory_trace(None);
        trace.finish().map_err(|error| Error::io("write", Path::new("memory trace"), error))
    }

    /// Number of replacements of the catalog. It changes after the catalog did.
    pub fn catalog_version(&self) -> u64 {
        self.catalog_version.load(Ordering::Acquire)
    }

    /// Checks the memory budget of in-memory indexes.
    ///
    /// # Errors
    /// If in-memory indexes and locators with `further` more bytes would exceed the budget.
    pub fn check_memory(&self, further: usize) -> Result<()> {
        let stats = self.store.stats();
        match (stats.memory_tree_bytes + stats.locator_bytes) as usize + further > self.memory_index_bytes_max {
            true => Err(no_memory(self.memory_index_bytes_max)),
            false => Ok(()),
        }
    }

    /// In-memory indexes that could not be built, or are not, each with the reason.
    pub fn unusable(&self) -> Arc<Unusable> {
        match self.is_read_only() {
            true => Arc::new(not_built(&self.catalog.read())),
            false => self.unusable.clone(),
        }
    }

    /// Gives the store the list of trees that need a locator. The store builds missing locators in the background and
    /// drops others. A database that is open read-only has none.
    fn locate_pages(&self) {
        if self.is_read_only() {
            return;
        }
        let locators = self.catalog.read().locators();
        if let Err(error) = self.store.set_locators(&locators) {
            // Lookups without a locator use index pages.
            tracing::warn!(%error, "failed to update locators, lookups will use index pages");
        }
    }

    /// Checks that all indexes of a table are usable.
    ///
    /// # Errors
    /// `IndexUnusable` if an in-memory index of the table could not be built. Writes would be missing in the index, and its uniqueness
    /// could not be checked.
    pub fn check_writable(&self, table: &Table) -> Result<()> {
        let unusable = self.unusable();
        let broken = table.def.indexes.iter().find_map(|index| Some((index, unusable.get(&index.tree)?)));
        let Some((index, cause)) = broken else { return Ok(()) };
        let unusable = Error::IndexUnusable { index: index.name.clone(), cause: cause.clone() };
        Err(unusable.within(format!("cannot change table \"{}\"", table.def.name)))
    }

    /// Reserves `count` consecutive hidden rowids of a table and returns the first. The first call for a table reads its
    /// greatest rowid, which blocks.
    ///
    /// # Errors
    /// If the rowids are exhausted or a page cannot be read.
    pub fn reserve_rowids(&self, table: &Table, count: u64) -> Result<i64> {
        let mut rowids = self.rowids.lock();
        let next = match rowids.get(&table.def.tree) {
            Some(next) => *next,
            None => greatest_rowid(&self.store, table)?.map_or(Some(1), |id| id.checked_add(1)).unwrap_or(i64::MAX),
        };
        let end = i64::try_from(count).ok().and_then(|count| next.checked_add(count));
        let end = end.ok_or_else(|| Error::RowidsExhausted { table: table.def.name.to_string() })?;
        rowids.insert(table.def.tree, end);
        Ok(next)
    }
}

/// Reads the greatest rowid of a table; `None` if the table is empty or does not exist yet. Blocks.
fn greatest_rowid(store: &Store, table: &Table) -> Result<Option<i64>> {
    let view = match store.latest().tree(table.def.tree) {
        Ok(view) => view,
        // CREATE TABLE AS reserves rowids before it creates the tree.
        Err(keyaki_store::Error::TreeNotFound(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let source = store.blocking();
    let mut cursor = view.cursor(&source, KeyRange::all(), Direction::Descending);
    let Some(chunk) = block_on(cursor.next())? else { return Ok(None) };
    let arrays = chunk.to_arrays(&[0])?;
    Ok(arrays[0].as_primitive_opt::<Int64Type>().and_then(|ids| ids.values().first().copied()))
}

/// The options of the store of a database.
pub(crate) fn store_options(options: &Options) -> keyaki_store::Options {
    let budget = MemoryBudget::divide(options.memory_bytes());
    keyaki_store::Options {
        create: !options.must_exist,
        durability: options.durability,
        ..options.store.clone().unwrap_or_else(|| keyaki_store::Options {
            cache_bytes: budget.cache_bytes,
            buffer_bytes: budget.buffer_bytes,
            ..keyaki_store::Options::default()
        })
    }
}

/// The device of the options, or the default device of the operating system.
pub(crate) fn device(options: &Options) -> Result<Arc<dyn Device>> {
    match &options.device {
        Some(device) => Ok(device.clone()),
        None => default_device(),
    }
}

/// The device of the operating system's files.
///
/// # Errors
/// If its threads or queues cannot be created.
pub(crate) fn default_device() -> Result<Arc<dyn Device>> {
    Ok(keyaki_device::open_default()?)
}

/// True if a directory contains a database.
pub(crate) fn exists(device: &Arc<dyn Device>, path: &Path) -> Result<bool> {
    Ok(device.exists(&path.join("data"))?)
}

/// Number of processors available to the process; 1 if unknown.
fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Reads the catalog, and the keys of all positions; commits an empty catalog in a new database. Blocks.
fn read_or_create_catalog(store: &Store) -> Result<(Catalog, BTreeSet<u64>)> {
    if let Some(read) = Catalog::read(store, &store.latest())? {
        return Ok(read);
    }
    let mut batch = WriteBatch::new();
    bootstrap(&mut batch)?;
    store.commit(batch)?;
    Ok(Default::default())
}

/// Creates the spill directory, or empties it: a crash leaves spill files behind.
fn empty_spill_dir(path: &Path) -> Result<PathBuf> {
    let dir = path.join(SPILL_DIR);
    match std::fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => std::fs::create_dir(&dir),
    }
    .map_err(|error| Error::io("empty", &dir, error))?;
    Ok(dir)
}

/// Reads the stored calibration, if there is one and it can be read. It affects plans and speed, but not results.
fn read_calibration(file: &Path) -> Option<Calibration> {
    match Calibration::load(file) {
        Ok(calibration) => Some(calibration),
        Err(error) if error.is_not_found() => None,
        Err(error) => {
            tracing::warn!(%error, "cannot read the device calibration, using default figures");
            None
        }
    }
}

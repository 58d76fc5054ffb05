//! The bulk build of in-memory indexes, when a database is opened and by CREATE INDEX.
//!
//! ```text
//!            ┌─ part of the table ─ scan ─ entries ─┐
//!  table ────┤                                      ├─ radix sort ─ bulk construction ─► index
//!            └─ part of the table ─ scan ─ entries ─┘
//! ```
//!
//! Each table is read once. It is split into one part per thread; each thread scans its part and turns every row into
//! entries of all indexes. All threads then sort the entries and build the tree of one index after the other.
//!
//! If a build fails when a database is opened (a page of the table is damaged, or the indexes exceed their memory
//! budget), the database opens nevertheless. The planner ignores the index, and its table is read-only until the index
//! is dropped.
//!
//! Invariants: the entries of a build exceed the remaining budget by at most one batch per thread. A finished tree is
//! passed on only if all in-memory trees fit into the budget.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use keyaki_exec::{ExecutionMode, Executor, Scan};
use keyaki_store::{Direction, KeyRange, Loaded, MemoryBuilder, Snapshot, Store, TreeId, TreeView};

use crate::base::progress::Progress;
use crate::catalog::{Catalog, Projection, Table};
use crate::engine::{Compile, Engine};
use crate::{Error, Result};

/// Rows per batch of the scans.
const BATCH_ROWS: usize = 8192;

/// Trees of in-memory indexes that could not be built, with the error text.
pub(crate) type Unusable = HashMap<TreeId, String>;

/// Builds all in-memory indexes of the tables of a catalog, after `compile` has compiled the expressions of each table.
/// Returns the build time of each index and the indexes that could not be built; the trees of the latter are empty. Blocks.
///
/// # Errors
/// If the store cannot install an empty tree. A failed build is not an error.
pub(crate) fn rebuild(
    engine: &Engine,
    catalog: &Catalog,
    threads: usize,
    progress: &dyn Progress,
    compile: Compile,
) -> Result<(HashMap<TreeId, Duration>, Unusable)> {
    let Engine { store, executor, memory_index_bytes_max, .. } = engine;
    let (mut times, mut unusable) = (HashMap::new(), Unusable::new());
    for table in catalog.tables.values() {
        let places: Vec<usize> =
            (0..table.def.indexes.len()).filter(|&i| table.def.indexes[i].method.is_in_memory()).collect();
        if places.is_empty() {
            continue;
        }
        let start = Instant::now();
        let check = || Ok(());
        let (places, memory_bytes_max) = (&places, *memory_index_bytes_max);
        let build = Build { store, executor, table, places, threads, memory_bytes_max, progress, check: &check };
        let install = &mut |tree, loaded| Ok(store.install_memory(vec![(tree, loaded)])?);
        let compiled = if table.has_computed_index() { compile(engine, table) } else { Ok(()) };
        let built = compiled.and_then(|()| build.run(&store.latest(), install));
        progress.finish();
        for &place in places {
            let tree = table.def.indexes[place].tree;
            times.insert(tree, start.elapsed());
            if let Err(error) = &built
                && store.memory_tree_stats(tree).is_none()
            {
                tracing::error!(%error, index = table.def.indexes[place].name, "failed to build an in-memory index");
                unusable.insert(tree, error.to_string());
                let empty = store.memory_builder(tree, &table.index_schemas[place]).finish(1)?;
                store.install_memory(vec![(tree, empty)])?;
            }
        }
    }
    Ok((times, unusable))
}

/// The error for in-memory indexes that exceed their budget of `bytes_max` bytes.
pub(crate) fn no_memory(bytes_max: usize) -> Error {
    Error::OutOfMemory {
        consumer: "indexes in memory".into(),
        requested: None,
        available: None,
        budget: Some(bytes_max as u64),
        remedy: "raise the memory of the database, drop an index, or create one USING betree",
    }
}

/// The build of several indexes of one table.
pub(crate) struct Build<'a> {
    pub store: &'a Store,
    pub executor: &'a Executor,
    pub table: &'a Arc<Table>,
    /// Positions of the indexes in `table.def.indexes`.
    pub places: &'a [usize],
    pub threads: usize,
    /// Memory budget of all in-memory indexes of the database in bytes.
    pub memory_bytes_max: usize,
    pub progress: &'a dyn Progress,
    /// Returns an error to cancel the build. Called after every batch.
    pub check: &'a (dyn Fn() -> Result<()> + Sync),
}

impl Build<'_> {
    /// Builds the indexes from the table as of `snapshot` and passes each finished tree to `done`.
    ///
    /// # Errors
    /// If a page cannot be read, the budget is exceeded, or `check` or `done` fails.
    pub fn run(&self, snapshot: &Snapshot, done: &mut dyn FnMut(TreeId, Loaded) -> Result<()>) -> Result<()> {
        let view = snapshot.tree(self.table.def.tree)?;
        let rows = view.estimate(&KeyRange::all()).rows as u64;
        let name = &self.table.def.name;
        self.progress.start(&format!("scanning {name} for its in-memory indexes"), Some(rows));
        // Remaining budget for entries, in bytes.
        let remaining =
            self.memory_bytes_max as u64 - self.store.stats().memory_tree_bytes.min(self.memory_bytes_max as u64);
        let remaining = AtomicI64::new(remaining as i64);
        let parts = view.split(&KeyRange::all(), self.threads);
        let read = std::thread::scope(|scope| {
            let threads: Vec<_> =
                parts.into_iter().map(|part| scope.spawn(|| self.read(&view, part, &remaining))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err(Error::Internal("a thread that builds indexes panicked".into())))
            };
            threads.into_iter().map(join).collect::<Result<Vec<Vec<MemoryBuilder>>>>()
        });
        let mut read = read?.into_iter();
        // `split` returns at least one part.
        let mut builders = read.next().unwrap_or_default();
        for others in read {
            for (builder, other) in builders.iter_mut().zip(others) {
                builder.append(other)?;
            }
        }
        self.progress.start(&format!("building in-memory indexes of {name}"), None);
        for (&place, builder) in self.places.iter().zip(builders) {
            (self.check)()?;
            let loaded = builder.finish(self.threads)?;
            if self.store.stats().memory_tree_bytes + loaded.bytes() > self.memory_bytes_max as u64 {
                return Err(no_memory(self.memory_bytes_max));
            }
            done(self.table.def.indexes[place].tree, loaded)?;
        }
        self.progress.finish();
        Ok(())
    }

    /// Scans a part of the table and returns the entries of each index. `remaining` is the budget in bytes, shared by
    /// all threads.
    fn read(&self, view: &TreeView, part: KeyRange, remaining: &AtomicI64) -> Result<Vec<MemoryBuilder>> {
        // The scan reads the union of the columns of all indexes.
        let mut columns = Vec::new();
        let projection =
            |&place: &usize| Projection::of_index(self.table, place, |c| scanned(self.table, c, &mut columns));
        let projections = self.places.iter().map(projection).collect::<Result<Vec<_>>>()?;
        let (indexes, schemas) = (&self.table.def.indexes, &self.table.index_schemas);
        let builder = |&place: &usize| self.store.memory_builder(indexes[place].tree, &schemas[place]);
        let mut builders: Vec<MemoryBuilder> = self.places.iter().map(builder).collect();
        let scan = Scan {
            view: view.clone(),
            ranges: vec![part],
            direction: Direction::Ascending,
            columns,
            filters: Vec::new(),
            limit: None,
            batch_rows: BATCH_ROWS,
            kept: Vec::new(),
        };
        let mut rows = self.executor.scan(scan, ExecutionMode::OutOfOrder);
        while let Some(batch) = futures::executor::block_on(rows.next()) {
            let batch = batch?;
            (self.check)()?;
            for (builder, projection) in builders.iter_mut().zip(&projections) {
                let before = builder.bytes();
                builder.push(&projection.apply(&batch)?)?;
                let grown = (builder.bytes() - before) as i64;
                if remaining.fetch_sub(grown, Ordering::Relaxed) < grown {
                    return Err(no_memory(self.memory_bytes_max));
                }
            }
            self.progress.advance(batch.num_rows() as u64);
        }
        Ok(builders)
    }
}

/// Position of a table column among the columns that a scan of the table's tree reads; adds it if it is not there. `None` is
/// the hidden rowid.
pub(crate) fn scanned(table: &Table, column: Option<usize>, columns: &mut Vec<usize>) -> usize {
    // The hidden rowid is the first column of the table's tree.
    let column = column.map_or(0, |column| table.tree_column[column]);
    columns.iter().position(|&known| known == column).unwrap_or_else(|| {
        columns.push(column);
        columns.len() - 1
    })
}

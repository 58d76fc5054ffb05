//! Indexes in memory, built from their table: when a database is opened, and by CREATE INDEX.
//!
//! ```text
//!            ┌─ part of the table ─ scan ─ entries ─┐
//!  table ────┤                                      ├─ radix sort ─ bulk construction ─► index
//!            └─ part of the table ─ scan ─ entries ─┘
//! ```
//!
//! Each table with such indexes is read once: as many parts as there are threads side by side, each by a scan of the
//! executor, whose rows become entries of all its indexes. Then the entries of each index are sorted and its tree is
//! built, by all threads together.
//!
//! If that fails (a page of the table is damaged, or they do not fit into memory), the database opens nevertheless: the
//! index is not used, and its table cannot be changed until the index is dropped.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use futures::StreamExt;
use keyaki_exec::{ExecutionMode, Executor, Scan};
use keyaki_store::{Direction, KeyRange, Loaded, MemoryBuilder, Snapshot, Store, TreeId, TreeView};

use crate::base::arrow_error;
use crate::base::progress::Progress;
use crate::catalog::{Catalog, Table};
use crate::{Error, Result};

/// Rows of a batch of the scan.
const BATCH_ROWS: usize = 8192;

/// Trees of indexes in memory that could not be built, and why.
pub(crate) type Unusable = HashMap<TreeId, String>;

/// Builds all indexes in memory. Blocks. Returns how long each took, and those that could not be built (which are empty).
pub(crate) fn rebuild(
    store: &Store,
    executor: &Executor,
    catalog: &Catalog,
    threads: usize,
    memory_bytes_max: usize,
    progress: &dyn Progress,
) -> Result<(HashMap<TreeId, Duration>, Unusable)> {
    let (mut times, mut unusable) = (HashMap::new(), Unusable::new());
    for table in catalog.tables.values() {
        let places: Vec<usize> =
            (0..table.def.indexes.len()).filter(|&i| table.def.indexes[i].method.is_in_memory()).collect();
        if places.is_empty() {
            continue;
        }
        let start = Instant::now();
        let check = || Ok(());
        let build =
            Build { store, executor, table, places: &places, threads, memory_bytes_max, progress, check: &check };
        let built = build.run(&store.latest(), &mut |tree, loaded| Ok(store.install_memory(vec![(tree, loaded)])?));
        progress.finish();
        for &place in &places {
            let tree = table.def.indexes[place].tree;
            times.insert(tree, start.elapsed());
            if let Err(error) = &built
                && store.memory_tree_stats(tree).is_none()
            {
                tracing::error!(%error, index = table.def.indexes[place].name, "the index cannot be built in memory");
                unusable.insert(tree, error.to_string());
                let empty = store.memory_builder(tree, &table.index_schemas[place]).finish(1)?;
                store.install_memory(vec![(tree, empty)])?;
            }
        }
    }
    Ok((times, unusable))
}

/// The error for an index in memory that has no place there.
pub(crate) fn no_memory(bytes_max: usize) -> Error {
    Error::Invalid(format!(
        "indexes in memory may take {} MiB in all, of the database's memory, and need more: give it more memory, drop an \
         index, or have one on the device (USING betree)",
        bytes_max >> 20
    ))
}

/// Indexes of one table that are built together.
pub(crate) struct Build<'a> {
    pub store: &'a Store,
    pub executor: &'a Executor,
    pub table: &'a Arc<Table>,
    /// In `table.def.indexes`.
    pub places: &'a [usize],
    pub threads: usize,
    pub memory_bytes_max: usize,
    pub progress: &'a dyn Progress,
    /// Whether to go on.
    pub check: &'a (dyn Fn() -> Result<()> + Sync),
}

impl Build<'_> {
    /// Builds all indexes from the table as of `snapshot`; gives each to `done`.
    pub fn run(&self, snapshot: &Snapshot, done: &mut dyn FnMut(TreeId, Loaded) -> Result<()>) -> Result<()> {
        let view = snapshot.tree(self.table.def.tree)?;
        let rows = view.estimate(&KeyRange::all()).rows as u64;
        let name = &self.table.def.name;
        self.progress.start(&format!("reading {name} for its indexes in memory"), Some(rows));
        // Bytes that the entries may still take.
        let left =
            self.memory_bytes_max as u64 - self.store.stats().memory_tree_bytes.min(self.memory_bytes_max as u64);
        let left = AtomicI64::new(left as i64);
        let parts = view.split(&KeyRange::all(), self.threads);
        let read = std::thread::scope(|scope| {
            let threads: Vec<_> = parts.into_iter().map(|part| scope.spawn(|| self.read(&view, part, &left))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err(Error::Invalid("a thread that builds indexes failed".into())))
            };
            threads.into_iter().map(join).collect::<Result<Vec<Vec<MemoryBuilder>>>>()
        });
        let mut read = read?.into_iter();
        // There is one part at least.
        let mut builders = read.next().unwrap_or_default();
        for others in read {
            for (builder, other) in builders.iter_mut().zip(others) {
                builder.append(other)?;
            }
        }
        self.progress.start(&format!("building indexes of {name} in memory"), None);
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

    /// The entries of all indexes, from a part of the table.
    fn read(&self, view: &TreeView, part: KeyRange, left: &AtomicI64) -> Result<Vec<MemoryBuilder>> {
        // Which columns of the table's tree the indexes have between them, and where each index finds its own.
        let mut columns: Vec<usize> = Vec::new();
        let mut places_of = |place: usize| -> Vec<usize> {
            let wanted = self.table.index_columns(place);
            // The hidden rowid is the first column of the table's tree.
            let wanted = wanted.into_iter().map(|column| column.map_or(0, |column| self.table.tree_column[column]));
            let mut found = |column| {
                columns.iter().position(|&c| c == column).unwrap_or_else(|| {
                    columns.push(column);
                    columns.len() - 1
                })
            };
            wanted.map(&mut found).collect()
        };
        let projections: Vec<Vec<usize>> = self.places.iter().map(|&place| places_of(place)).collect();
        let schemas: Vec<_> = self.places.iter().map(|&place| &self.table.index_schemas[place]).collect();
        let tree = |place: usize| self.table.def.indexes[place].tree;
        let mut builders: Vec<MemoryBuilder> = self
            .places
            .iter()
            .zip(&schemas)
            .map(|(&place, schema)| self.store.memory_builder(tree(place), schema))
            .collect();
        let scan = Scan {
            view: view.clone(),
            ranges: vec![part],
            direction: Direction::Ascending,
            columns,
            filter: None,
            limit: None,
            batch_rows: BATCH_ROWS,
        };
        let mut rows = self.executor.scan(scan, ExecutionMode::OutOfOrder);
        while let Some(batch) = futures::executor::block_on(rows.next()) {
            let batch = batch?;
            (self.check)()?;
            for ((builder, projection), schema) in builders.iter_mut().zip(&projections).zip(&schemas) {
                let columns = projection.iter().map(|&column| batch.column(column).clone()).collect();
                let before = builder.bytes();
                builder.push(&RecordBatch::try_new(schema.arrow().clone(), columns).map_err(arrow_error)?)?;
                let grown = (builder.bytes() - before) as i64;
                if left.fetch_sub(grown, Ordering::Relaxed) < grown {
                    return Err(no_memory(self.memory_bytes_max));
                }
            }
            self.progress.advance(batch.num_rows() as u64);
        }
        Ok(builders)
    }
}

//! Builds an index beside writers (CREATE INDEX CONCURRENTLY).
//!
//! ```text
//!  register ──► load ──────────► rounds ─────────────────────► last round, definition
//!  (lock)       rows as of the   rows changed since the        (lock)
//!               registration     previous round
//! ```
//!
//! From the registration on, each change of rows adds their primary keys to the change log of the build
//! ([`crate::catalog::IndexBuild`]), in the commit that changes the rows. A *round* goes from one snapshot to a newer one: for
//! each key in the log of the newer snapshot, it replaces the entries of the row in the older snapshot by those in the newer
//! one, and deletes the entries of the log that it has read. Rounds run without the writer lock until few changes are left
//! or writers are faster. The last round and the commit of the definition hold the lock.
//!
//! *Invariants.* After the load and after each round, the index has exactly the entries of the rows in the snapshot of the
//! build, and the log has the keys of all rows that were changed since. Snapshots only become newer. A round
//! deletes no entry of the log that was added after its snapshot, because stamps are unique.
//!
//! *Uniqueness* is checked by the load, and after each round for the rows that it has changed. Both compare rows of one
//! snapshot: duplicates that are committed at one time fail the build, also if they are removed later.

use std::sync::Arc;

use arrow::array::RecordBatch;
use futures::StreamExt;
use futures::executor::block_on;
use keyaki_exec::{ExecutionMode, Scan};
use keyaki_store::{Direction, KeyCodec, KeyRange, Snapshot, TreeView, WriteBatch};

use super::apply::{TableChange, describe, unique_keys};
use super::bulk;
use super::rows::{Keys, TableRows};
use crate::base::interrupt::Decision;
use crate::base::progress::Progress;
use crate::catalog::{Catalog, IndexBuild, Projection, Table};
use crate::engine::{Engine, Writer, scanned};
use crate::{ConstraintKind, Error, Result};

/// A round without the writer lock is followed by the last round if it has read at most this many entries of the log.
const LAST_ROUND_ENTRIES: u64 = 4096;
/// Maximum number of rounds without the writer lock.
const ROUNDS_MAX: usize = 100;
/// Number of keys whose rows are read together.
const PART_KEYS: usize = 2048;
/// Number of scans that read the rows of a part.
const PART_SCANS: usize = 8;
/// Number of rows of a batch that is read.
const BATCH_ROWS: usize = 2048;

/// A registered build of an index.
#[derive(Debug)]
pub(crate) struct ConcurrentBuild {
    target: Arc<Target>,
    progress: Arc<dyn Progress>,
    /// The snapshot of the build.
    at: Snapshot,
}

/// The index that is built.
#[derive(Debug)]
struct Target {
    engine: Arc<Engine>,
    decision: Arc<Decision>,
    /// The table at the registration, with the index.
    table: Arc<Table>,
    /// Position of the index in the definition of `table`.
    index: usize,
    build: IndexBuild,
    /// The columns of the table's tree that the index uses, and the index in batches of these.
    columns: Vec<usize>,
    projection: Projection,
}

/// Keys of the change log, in key order.
#[derive(Default)]
struct LogPart {
    /// Primary keys that no earlier part of the round has.
    keys: Vec<Vec<u8>>,
    entries: Vec<RecordBatch>,
}

impl ConcurrentBuild {
    /// The build that was registered in the commit before `registered`. `table` has the index at position `index` of its
    /// definition, and compiled expressions.
    ///
    /// # Errors
    /// `Internal` if the expressions are not compiled.
    pub fn new(
        engine: &Arc<Engine>,
        decision: &Arc<Decision>,
        progress: Arc<dyn Progress>,
        (table, index): (Arc<Table>, usize),
        build: IndexBuild,
        registered: Snapshot,
    ) -> Result<ConcurrentBuild> {
        let mut columns = Vec::new();
        let projection = Projection::of_index(&table, index, |column| scanned(&table, column, &mut columns))?;
        let (engine, decision) = (engine.clone(), decision.clone());
        let target = Arc::new(Target { engine, decision, table, index, build, columns, projection });
        Ok(ConcurrentBuild { target, progress, at: registered })
    }

    /// The table in the catalog; `None` if its definition has changed so that the build has to begin again.
    pub fn current<'c>(&self, catalog: &'c Catalog) -> Option<&'c Arc<Table>> {
        let def = &self.target.table.def;
        let is_same = |table: &&Arc<Table>| {
            table.def.building.contains(&self.target.build)
                && table.def.tree == def.tree
                && table.def.columns == def.columns
                && table.def.dropped == def.dropped
                && table.def.primary_key == def.primary_key
        };
        catalog.tables.get(&def.name).filter(is_same)
    }

    /// Writes the entries of the rows in the snapshot of the build.
    ///
    /// # Errors
    /// `Constraint` with the first duplicate key; `Cancelled`; errors of the expressions of the index.
    pub async fn load(&self) -> Result<()> {
        let Target { engine, decision, table, index, .. } = &*self.target;
        let loaded = bulk::load_index(engine, decision, &self.progress, (table, *index), self.at.clone()).await?;
        if loaded.iter().all(|(_, loaded)| loaded.rows() == 0) {
            return Ok(());
        }
        let target = self.target.clone();
        let install = move || {
            target.decision.check()?;
            // Commits wait for the checkpoint of the installation. This one syncs the loaded extents before, beside commits.
            target.engine.store.checkpoint()?;
            target.decision.check()?;
            Ok(target.engine.store.install(WriteBatch::new(), loaded)?)
        };
        tokio::task::spawn_blocking(install).await.map_err(|error| Error::task(&error))?
    }

    /// Adds the changes of writers, until few are left or the writers are faster. Returns false if the build has to begin
    /// again; see [`ConcurrentBuild::current`].
    ///
    /// # Errors
    /// As [`ConcurrentBuild::load`].
    pub async fn catch_up(&mut self) -> Result<bool> {
        self.progress.start(&format!("adding changes of {}", self.target.table.def.name), None);
        let mut previous = u64::MAX;
        for _ in 0..ROUNDS_MAX {
            let (catalog, newest) = self.target.engine.newest_moment();
            if self.current(&catalog).is_none() {
                return Ok(false);
            }
            let entries = self.follow(newest, None).await?;
            if entries <= LAST_ROUND_ENTRIES || entries >= previous {
                break;
            }
            previous = entries;
        }
        Ok(true)
    }

    /// Adds the last changes. `newest` is the newest snapshot under the writer lock, which the caller keeps until it has
    /// committed the definition.
    ///
    /// # Errors
    /// As [`ConcurrentBuild::load`].
    pub async fn complete(&mut self, writer: &Writer, newest: Snapshot) -> Result<()> {
        self.follow(newest, Some(writer.clone())).await?;
        self.progress.finish();
        Ok(())
    }

    /// Makes a round to a newer snapshot. Returns the number of entries of the log that it has read.
    async fn follow(&mut self, newest: Snapshot, lock: Option<Writer>) -> Result<u64> {
        let (target, from, to) = (self.target.clone(), self.at.clone(), newest.clone());
        let round = move || -> Result<u64> {
            let lock = lock;
            let entries = target.follow(&from, &to)?;
            if lock.is_none() {
                target.engine.store.pending().wait()?;
            }
            Ok(entries)
        };
        let entries = tokio::task::spawn_blocking(round).await.map_err(|error| Error::task(&error))??;
        self.at = newest;
        Ok(entries)
    }
}

impl Target {
    /// Makes a round. Blocks.
    fn follow(&self, from: &Snapshot, to: &Snapshot) -> Result<u64> {
        let mut entries = 0;
        self.read_log(to, |part| {
            entries += part.entries.iter().map(|rows| rows.num_rows() as u64).sum::<u64>();
            self.apply(from, to, &part)
        })?;
        if entries > 0 && self.table.def.indexes[self.index].unique {
            self.check_unique(to)?;
        }
        Ok(entries)
    }

    /// Calls `each` with the parts of the change log in a snapshot.
    fn read_log(&self, snapshot: &Snapshot, mut each: impl FnMut(LogPart) -> Result<()>) -> Result<()> {
        let view = snapshot.tree(self.build.log)?;
        let source = self.engine.store.blocking();
        let columns: Vec<usize> = (0..self.build.schema.columns().len()).collect();
        let mut cursor = view.cursor(&source, KeyRange::all(), Direction::Ascending);
        let (mut part, mut last) = (LogPart::default(), Vec::new());
        while let Some(chunk) = keyaki_store::block_on(cursor.next())? {
            self.decision.check()?;
            let rows = RecordBatch::try_new(self.build.schema.arrow().clone(), chunk.to_arrays(&columns)?)?;
            let own = &rows.columns()[..columns.len() - 1];
            let keys = Keys::encode(&self.table.trees[0].keys, own, rows.num_rows(), |_| false);
            for i in keys.sorted() {
                let key = keys.get(i);
                // The entries of a row are neighbours. No key is empty.
                if *key != *last {
                    last = key.to_vec();
                    part.keys.push(last.clone());
                }
            }
            part.entries.push(rows);
            if part.keys.len() >= PART_KEYS {
                each(std::mem::take(&mut part))?;
            }
        }
        if part.entries.is_empty() { Ok(()) } else { each(part) }
    }

    /// Replaces the entries of rows in one snapshot by those in another one.
    fn apply(&self, from: &Snapshot, to: &Snapshot, part: &LogPart) -> Result<()> {
        let (old, new) =
            (self.table_rows(&self.rows(from, &part.keys)?)?, self.table_rows(&self.rows(to, &part.keys)?)?);
        let change = TableChange { table: self.table.clone(), old, new, pairs: 0, old_repeats: false, assigned: None };
        let mut batch = WriteBatch::new();
        change.apply_to_built_index(self.index, &mut batch)?;
        for entries in &part.entries {
            batch.delete_existing(self.build.log, &self.build.schema, entries)?;
        }
        self.decision.check()?;
        // The next round, the check of uniqueness and the commit of the definition follow it in the log.
        drop(self.engine.store.submit(batch)?);
        Ok(())
    }

    /// Reads the rows with these primary keys, in any order.
    fn rows(&self, snapshot: &Snapshot, keys: &[Vec<u8>]) -> Result<Vec<RecordBatch>> {
        let view = snapshot.tree(self.table.def.tree)?;
        let scan = |keys: &[Vec<u8>]| {
            let scan = Scan {
                view: view.clone(),
                ranges: keys.iter().cloned().map(KeyRange::point).collect(),
                direction: Direction::Ascending,
                columns: self.columns.clone(),
                filters: Vec::new(),
                limit: None,
                batch_rows: BATCH_ROWS,
                kept: Vec::new(),
            };
            self.engine.executor.scan(scan, ExecutionMode::OutOfOrder)
        };
        // All scans run while the first one is read.
        let scans: Vec<_> = keys.chunks(keys.len().div_ceil(PART_SCANS).max(1)).map(scan).collect();
        let mut batches = Vec::new();
        for mut rows in scans {
            while let Some(batch) = block_on(rows.next()) {
                batches.push(batch?);
            }
        }
        Ok(batches)
    }

    fn table_rows(&self, batches: &[RecordBatch]) -> Result<TableRows> {
        let place = |column: usize| self.columns.iter().position(|&known| known == column);
        let parts = batches.iter().map(|rows| {
            let array = |column: usize| place(column).map(|place| rows.column(place).clone());
            TableRows {
                len: rows.num_rows(),
                columns: self.table.tree_column.iter().map(|&column| array(column)).collect(),
                // The hidden rowid is the first column of the table's tree.
                rowid: if self.table.def.hidden_rowid { array(0) } else { None },
            }
        });
        TableRows::concat(&parts.collect::<Vec<_>>())
    }

    /// Checks that the rows of the change log in a snapshot, whose entries the index has, share no unique key with others.
    fn check_unique(&self, snapshot: &Snapshot) -> Result<()> {
        let def = &self.table.def.indexes[self.index];
        let schema = &self.table.index_schemas[self.index];
        let view = self.engine.store.latest().tree(self.build.tree)?;
        let codec = KeyCodec::new(schema);
        self.read_log(snapshot, |part| {
            for rows in self.rows(snapshot, &part.keys)? {
                self.decision.check()?;
                let entries = self.projection.apply(&rows)?;
                let columns = &entries.columns()[..def.keys.len()];
                let keys = unique_keys(&codec, columns, entries.num_rows(), None);
                for i in keys.sorted() {
                    if self.is_shared(&view, keys.get(i))? {
                        return Err(Error::Constraint {
                            kind: ConstraintKind::Unique,
                            table: self.table.def.name.to_string(),
                            name: def.name.clone(),
                            key: Some(describe(schema, columns, keys.row(i))?),
                        });
                    }
                }
            }
            Ok(())
        })
    }

    /// True if several entries of the index have a unique key.
    fn is_shared(&self, view: &TreeView, key: &[u8]) -> Result<bool> {
        let source = self.engine.store.blocking();
        let mut cursor = view.cursor(&source, KeyRange::prefix(key.to_vec()), Direction::Ascending);
        let mut entries = 0;
        while entries < 2
            && let Some(chunk) = keyaki_store::block_on(cursor.next())?
        {
            entries += chunk.rows();
        }
        Ok(entries > 1)
    }
}

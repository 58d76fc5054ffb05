//! A transaction that has a snapshot: its writes, its catalog, and its commit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use keyaki_store::{Savepoint, Snapshot, Store, Submitted, WriteBatch};

use crate::base::interrupt::{Decision, Stage};
use crate::base::options::Isolation;
use crate::catalog::{Catalog, ForeignKeyDef, RelationName, Table};
use crate::engine::Engine;
use crate::{Error, Result};

/// Estimated memory of a write, as a multiple of its bytes in the batch: the batch, and the buffer that makes it readable.
const BYTES_PER_BATCH_BYTE: usize = 3;

/// The changes of a transaction may take this share of the query memory before they spill.
const SPILL_SHARE: usize = 4;
/// Changes spill if they can free at least this share of their budget.
const SPILLED_SHARE_MIN: usize = 4;

/// Commits of transactions with at most this many bytes run on the calling thread.
const INLINE_BYTES_MAX: usize = 256 << 10;

/// A transaction that has a snapshot.
#[derive(Debug)]
pub(super) struct Running {
    pub store: keyaki_store::Transaction,
    /// The catalog of the snapshot.
    base: Arc<Catalog>,
    /// The catalog with the transaction's own definitions.
    pub catalog: Arc<Catalog>,
    pub changed: ChangedTables,
    reservation: MemoryReservation,
    /// Bytes of changes in memory above which they spill.
    spill_bytes: usize,
}

/// Names of the tables whose rows were changed, each with the number of changed rows and the change of their number.
pub(super) type ChangedTables = BTreeMap<RelationName, (u64, i64)>;

/// A committed transaction.
#[derive(Debug, Default)]
pub(crate) struct Committed {
    /// `None` if nothing was written.
    pub submitted: Option<Submitted>,
    /// The changed tables, with the number of changed rows and the change of their number.
    pub changed: Vec<(Arc<Table>, u64, i64)>,
}

impl Running {
    pub fn new(engine: &Engine, isolation: Isolation) -> Running {
        let (base, mut store) = engine.stable(Store::begin, |store| store.snapshot());
        if isolation == Isolation::Serializable {
            store.track_reads();
        }
        let pool = &engine.base_state.runtime_env().memory_pool;
        let reservation = MemoryConsumer::new("changes of a transaction").register(pool);
        let spill_bytes = engine.query_bytes() / SPILL_SHARE;
        Running { store, catalog: base.clone(), base, changed: BTreeMap::new(), reservation, spill_bytes }
    }

    pub fn moment(&self) -> (Arc<Catalog>, Snapshot) {
        (self.catalog.clone(), self.store.snapshot())
    }

    /// Takes a new snapshot, with the newest catalog; with `is_newest`, also of commits that are not acknowledged yet.
    pub fn refresh(&mut self, engine: &Engine, is_newest: bool) -> Result<()> {
        let refresh = |_: &Store| {
            match is_newest {
                true => self.store.refresh_to_newest(),
                false => self.store.refresh(),
            }
            self.store.snapshot()
        };
        let (newest, _) = engine.stable(refresh, Snapshot::clone);
        if Arc::ptr_eq(&newest, &self.base) {
            return Ok(());
        }
        self.check_definitions(&newest)?;
        if self.defines() {
            // Only statistics and temporary objects of other sessions differ.
            return Ok(());
        }
        (self.base, self.catalog) = (newest.clone(), newest);
        Ok(())
    }

    /// True if the transaction changes definitions.
    pub fn defines(&self) -> bool {
        !Arc::ptr_eq(&self.base, &self.catalog)
    }

    /// Checks that other commits have not changed the definitions that the changes are made for.
    ///
    /// # Errors
    /// `Conflict`.
    fn check_definitions(&self, newest: &Arc<Catalog>) -> Result<()> {
        if Arc::ptr_eq(&self.base, newest) {
            return Ok(());
        }
        let differs = |name: &RelationName| {
            let (old, new) = (self.base.tables.get(name), newest.tables.get(name));
            old.map(|table| &table.def) != new.map(|table| &table.def)
                || !references(&self.base, name).eq(references(newest, name))
        };
        let changed = match self.defines() {
            false => self.changed.keys().find(|name| differs(name)).map(RelationName::to_string),
            // The new definitions may depend on all others, for example by their names.
            true => {
                let names = self.base.tables.keys().chain(newest.tables.keys());
                // Other transactions change those of other sessions.
                let mut names = names.filter(|name| !name.is_temporary());
                let table = names.find(|name| differs(name)).map(RelationName::to_string);
                let view = || first_difference(&self.base.views, &newest.views);
                let sequence = || first_difference(&self.base.sequences, &newest.sequences);
                let schema = || self.base.schemas.symmetric_difference(&newest.schemas).next().cloned();
                let comment = || {
                    let (old, new) = (&self.base.schema_comments, &newest.schema_comments);
                    old.keys().chain(new.keys()).find(|name| old.get(*name) != new.get(*name)).cloned()
                };
                let access = || {
                    let (old, new) = (&self.base.schema_access, &newest.schema_access);
                    old.keys().chain(new.keys()).find(|name| old.get(*name) != new.get(*name)).cloned()
                };
                let role = || {
                    let (old, new) = (&self.base.roles, &newest.roles);
                    old.keys().chain(new.keys()).find(|name| old.get(*name) != new.get(*name)).cloned()
                };
                let found = table.or_else(view).or_else(sequence).or_else(schema).or_else(comment);
                found.or_else(access).or_else(role)
            }
        };
        match changed {
            Some(name) => Err(Error::Conflict { relation: Some(name) }),
            None => Ok(()),
        }
    }

    /// Reserves memory for `bytes` more bytes of writes.
    fn reserve(&mut self, bytes: usize) -> Result<()> {
        let needed = self.store.bytes() + BYTES_PER_BATCH_BYTE * bytes;
        let further = needed.saturating_sub(self.reservation.size());
        Ok(self.reservation.try_grow(further)?)
    }

    /// Adds writes. Those before spill if all together would take too much memory; `savepoints` are those to which the
    /// transaction may be rolled back.
    ///
    /// # Errors
    /// `OutOfMemory`, errors of the store. Nothing has changed then.
    pub fn write(&mut self, batch: WriteBatch, savepoints: &[Savepoint]) -> Result<()> {
        let is_large = self.store.bytes() + BYTES_PER_BATCH_BYTE * batch.bytes() > self.spill_bytes;
        // Not for each small write, if the rest cannot spill.
        if is_large && self.store.spillable_bytes() > self.spill_bytes / SPILLED_SHARE_MIN {
            self.spill(savepoints)?;
        }
        if self.reserve(batch.bytes()).is_err() {
            // Other queries use the memory.
            self.spill(savepoints)?;
            self.reserve(batch.bytes())?;
        }
        let written = self.store.write(batch);
        self.reservation.resize(self.store.bytes());
        Ok(written?)
    }

    fn spill(&mut self, savepoints: &[Savepoint]) -> Result<()> {
        self.store.spill(savepoints)?;
        self.reservation.resize(self.store.bytes());
        Ok(())
    }

    /// Adds definitions; `catalog` has them.
    ///
    /// # Errors
    /// As [`Running::write`].
    pub fn define(&mut self, batch: WriteBatch, catalog: Catalog, savepoints: &[Savepoint]) -> Result<()> {
        self.write(batch, savepoints)?;
        self.catalog = Arc::new(catalog);
        Ok(())
    }

    /// Returns to a savepoint. `catalog` has the transaction's own definitions, if it had changed any.
    pub fn roll_back_to(&mut self, point: Savepoint, catalog: Option<Arc<Catalog>>, changed: ChangedTables) {
        self.store.roll_back_to(point);
        self.catalog = catalog.unwrap_or_else(|| self.base.clone());
        self.changed = changed;
        self.reservation.resize(self.store.bytes());
    }

    /// True if nothing was written.
    pub fn is_read_only(&self) -> bool {
        self.store.is_read_only()
    }

    /// True if the commit needs little time.
    pub fn is_small(&self) -> bool {
        self.store.bytes() <= INLINE_BYTES_MAX && !self.store.has_spilled() && !self.defines()
    }

    /// Commits. The caller holds the writer lock. Blocks.
    pub fn commit(self, engine: &Engine, decision: &Decision) -> Result<Committed> {
        let newest = engine.catalog.read().clone();
        self.check_definitions(&newest)?;
        decision.commit()?;
        let Running { store, base, catalog, changed, .. } = self;
        let relation =
            |tree| catalog.tables.values().find(|table| table.has_tree(tree)).map(|t| t.def.name.to_string());
        let failed = |error| match error {
            // Another commit has raised the bound of a column: when the statement runs again, it reads the row.
            keyaki_store::Error::Conflict { tree } | keyaki_store::Error::UpsertRange { tree } => {
                Error::Conflict { relation: relation(tree) }
            }
            error => error.into(),
        };
        let submitted = match Arc::ptr_eq(&base, &catalog) {
            true => store.commit().map_err(failed)?,
            false => {
                let merged = Arc::new(merged(&base, &catalog, &newest));
                engine.replace_catalog(merged, || {
                    let submitted = store.commit().map_err(failed)?;
                    // New trees exist at once, their rows only then.
                    submitted.map(|submitted| submitted.wait()).transpose()?;
                    Ok(None)
                })?
            }
        };
        decision.reach(Stage::Committed);
        let current = engine.catalog.read().clone();
        let tables = changed.iter().filter_map(|(name, &(rows, grown))| {
            let table = current.tables.get(name)?;
            Some((table.clone(), rows, grown))
        });
        let tables: Vec<_> = tables.collect();
        if tables.iter().any(|(table, ..)| table.def.indexes.iter().any(|index| index.method.is_in_memory())) {
            engine.store.share_memory();
        }
        Ok(Committed { submitted, changed: tables })
    }
}

/// The first object that differs between two versions of the catalog and is not temporary.
fn first_difference<T: PartialEq>(
    base: &BTreeMap<RelationName, Arc<T>>,
    newest: &BTreeMap<RelationName, Arc<T>>,
) -> Option<String> {
    let mut names = base.keys().chain(newest.keys()).filter(|name| !name.is_temporary());
    names.find(|name| base.get(*name) != newest.get(*name)).map(RelationName::to_string)
}

/// The foreign keys that refer to a table, which changes of its rows are checked for.
fn references<'a>(
    catalog: &'a Catalog,
    table: &'a RelationName,
) -> impl Iterator<Item = (&'a RelationName, &'a ForeignKeyDef)> {
    catalog.referencing(table).map(|(other, key)| (&other.def.name, key))
}

/// The catalog of a transaction, with the newest statistics of the tables that it has not redefined, and the temporary
/// objects of other sessions.
fn merged(base: &Catalog, catalog: &Catalog, newest: &Catalog) -> Catalog {
    let mut merged = catalog.clone();
    for (name, table) in &mut merged.tables {
        let is_base = base.tables.get(name).is_some_and(|base| Arc::ptr_eq(base, table));
        if let Some(newest) = newest.tables.get(name).filter(|_| is_base) {
            *table = newest.clone();
        }
    }
    merge_temporary(&mut merged.tables, &base.tables, &newest.tables);
    merge_temporary(&mut merged.views, &base.views, &newest.views);
    merge_temporary(&mut merged.sequences, &base.sequences, &newest.sequences);
    merged
}

/// Takes over the changes of temporary objects by other sessions. `objects` are those of `base` with the changes of a
/// transaction.
fn merge_temporary<T>(
    objects: &mut BTreeMap<RelationName, Arc<T>>,
    base: &BTreeMap<RelationName, Arc<T>>,
    newest: &BTreeMap<RelationName, Arc<T>>,
) {
    objects.retain(|name, object| {
        let is_unchanged = base.get(name).is_some_and(|base| Arc::ptr_eq(base, object));
        match newest.get(name) {
            _ if !name.is_temporary() => true,
            Some(newest) if is_unchanged => {
                *object = newest.clone();
                true
            }
            None => !is_unchanged,
            Some(_) => true,
        }
    });
    let new = newest.iter().filter(|(name, _)| name.is_temporary() && !base.contains_key(*name));
    for (name, object) in new {
        objects.entry(name.clone()).or_insert_with(|| object.clone());
    }
}

impl Engine {
    /// Calls `take`, which takes a snapshot of the store, and returns the matching catalog. `snapshot` returns the
    /// snapshot taken.
    fn stable<T>(&self, mut take: impl FnMut(&Store) -> T, snapshot: impl Fn(&T) -> Snapshot) -> (Arc<Catalog>, T) {
        loop {
            let catalog = self.catalog.read().clone();
            let taken = take(&self.store);
            // A commit before the snapshot is either published, and has replaced the catalog, or counted here.
            let is_published = self.unpublished.load(Ordering::SeqCst) == 0;
            let has_trees = || {
                let snapshot = snapshot(&taken);
                catalog.trees().all(|tree| snapshot.tree(tree).is_ok())
            };
            // A refresh of a database that is open read-only may have passed several definitions, and rows that need them.
            let is_matching = is_published || (!self.is_read_only() && has_trees());
            if is_matching && Arc::ptr_eq(&catalog, &self.catalog.read()) {
                return (catalog, taken);
            }
            self.wait_for_refresh();
            std::thread::yield_now();
        }
    }

    /// As [`Engine::moment`], with a snapshot that includes commits that are not yet durable.
    pub fn newest_moment(&self) -> (Arc<Catalog>, Snapshot) {
        self.stable(Store::latest, Snapshot::clone)
    }

    /// Returns a snapshot and the matching catalog: the snapshot contains every tree of the catalog.
    pub fn moment(&self) -> (Arc<Catalog>, Snapshot) {
        self.stable(Store::snapshot, Snapshot::clone)
    }
}

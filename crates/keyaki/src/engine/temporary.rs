//! The schemas of temporary objects: tables, views and sequences that belong to one session.
//!
//! Each session that creates temporary objects has a schema of its own, which has no document in the catalog. The objects
//! have documents and trees like all others. The next statement that writes, or that begins a transaction, removes the
//! objects of sessions that have ended; so does opening the database.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use keyaki_store::{Store, WriteBatch};
use parking_lot::Mutex;

use super::Engine;
use crate::Result;
use crate::base::interrupt::{Execution, Interrupts};
use crate::catalog::{Catalog, TEMPORARY_PREFIX, Table, remove_builds, remove_positions, remove_temporary};

/// The schemas of temporary objects since the database was opened.
#[derive(Debug, Default)]
pub(crate) struct TemporarySchemas {
    /// Number of the last schema.
    last: AtomicU64,
    has_ended: AtomicBool,
    /// The schemas of sessions that have ended, whose objects may remain.
    ended: Mutex<Vec<Arc<str>>>,
    /// The schemas whose tables with ON COMMIT may have changed since the last end of a transaction of their session.
    changed: Mutex<HashSet<Arc<str>>>,
}

impl TemporarySchemas {
    /// The name of a schema for one session.
    pub fn new_name(&self) -> Arc<str> {
        format!("{TEMPORARY_PREFIX}{}", self.last.fetch_add(1, Ordering::Relaxed) + 1).into()
    }

    /// Called at the end of the session with the schema.
    pub fn end(&self, schema: Arc<str>) {
        self.take_change(&schema);
        self.ended.lock().push(schema);
        self.has_ended.store(true, Ordering::Release);
    }

    /// Called when a table with ON COMMIT is created or gets rows.
    pub fn note_change(&self, schema: &Arc<str>) {
        self.changed.lock().insert(schema.clone());
    }

    /// True if tables of the schema may have changed since the last call.
    pub fn take_change(&self, schema: &Arc<str>) -> bool {
        self.changed.lock().remove(schema)
    }

    /// Takes schemas whose objects are removed from the list.
    fn removed(&self, schemas: &[Arc<str>]) {
        let mut ended = self.ended.lock();
        ended.retain(|schema| !schemas.contains(schema));
        self.has_ended.store(!ended.is_empty(), Ordering::Release);
    }

    /// True if a session that has ended may have left objects.
    pub fn have_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}

impl Engine {
    /// Called before a table gets rows: the end of the transaction may have to delete them.
    pub fn note_rows(&self, table: &Table) {
        if table.def.on_commit.is_some() {
            self.temporary.note_change(&table.def.name.schema);
        }
    }

    /// Removes the temporary objects of sessions that have ended, in a commit of its own. After a failure, which is logged,
    /// the next call tries again.
    pub async fn remove_ended(self: &Arc<Self>) {
        let interrupts = Arc::new(Interrupts::default());
        let execution = Execution::new(&interrupts, interrupts.start());
        let writer = self.own_writer(execution.decision()).await;
        // They stay in the list until their objects are removed: this future may be dropped, which cancels the removal.
        let schemas = self.temporary.ended.lock().clone();
        let (catalog, _) = self.latest(&writer);
        let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&catalog));
        let is_ended = |schema: &str| schemas.iter().any(|ended| **ended == *schema);
        let removed = match remove_temporary(&mut changed, &mut batch, is_ended, true) {
            Ok(()) if batch.is_empty() => Ok(()),
            Ok(()) => self.commit_catalog(&writer, batch, changed).await,
            Err(error) => Err(error),
        };
        match removed {
            Ok(()) => self.temporary.removed(&schemas),
            Err(error) => tracing::warn!(%error, "could not remove the temporary tables of an ended session"),
        }
    }
}

/// Removes what the previous process has left: temporary objects, indexes that were not completed, and the positions, of
/// all `positions`, that no sequence has. Blocks.
///
/// # Errors
/// Errors of the store.
pub(super) fn remove_left(store: &Store, catalog: &mut Catalog, positions: &BTreeSet<u64>) -> Result<()> {
    let mut batch = WriteBatch::new();
    remove_temporary(catalog, &mut batch, |_| true, false)?;
    let used = catalog.positions(&Catalog::default());
    remove_positions(&mut batch, positions.difference(&used))?;
    remove_builds(store, catalog, &mut batch)?;
    if !batch.is_empty() {
        store.commit(batch)?;
    }
    Ok(())
}

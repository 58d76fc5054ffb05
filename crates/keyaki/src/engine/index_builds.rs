//! Indexes that CREATE INDEX CONCURRENTLY has begun and not completed.
//!
//! A build is abandoned if its statement fails, is cancelled, or is dropped with its session. The next statement that writes,
//! or that begins a transaction, removes the trees of the build, and the change log from the definition of the table.
//! After a crash, opening the database does the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyaki_store::WriteBatch;
use parking_lot::Mutex;

use super::Engine;
use crate::Result;
use crate::base::interrupt::{Execution, Interrupts};
use crate::catalog::{Catalog, IndexBuild, Table};

/// The abandoned builds since the database was opened.
#[derive(Debug, Default)]
pub(crate) struct IndexBuilds {
    has_abandoned: AtomicBool,
    abandoned: Mutex<Vec<IndexBuild>>,
}

/// A build that is abandoned when this is dropped, unless it has ended by then.
#[derive(Debug)]
pub(crate) struct RunningBuild {
    builds: Arc<IndexBuilds>,
    build: IndexBuild,
    has_ended: bool,
}

impl RunningBuild {
    /// Called when the index is complete.
    pub fn end(mut self) {
        self.has_ended = true;
    }
}

impl IndexBuilds {
    /// Begins a build. The caller holds the writer lock and registers the build next: its removal waits for the lock.
    pub fn begin(self: &Arc<Self>, build: IndexBuild) -> RunningBuild {
        RunningBuild { builds: self.clone(), build, has_ended: false }
    }

    fn abandon(&self, build: IndexBuild) {
        let mut abandoned = self.abandoned.lock();
        abandoned.push(build);
        self.has_abandoned.store(true, Ordering::Release);
    }

    /// Takes removed builds from the list.
    fn removed(&self, builds: &[IndexBuild]) {
        let mut abandoned = self.abandoned.lock();
        abandoned.retain(|build| !builds.contains(build));
        self.has_abandoned.store(!abandoned.is_empty(), Ordering::Release);
    }

    /// True if an abandoned build may have left trees.
    pub fn have_abandoned(&self) -> bool {
        self.has_abandoned.load(Ordering::Acquire)
    }
}

impl Drop for RunningBuild {
    fn drop(&mut self) {
        // A statement can be dropped after the commit of its index: the removal then changes nothing.
        if !self.has_ended {
            self.builds.abandon(self.build.clone());
        }
    }
}

impl Engine {
    /// Removes the abandoned builds, in a commit of its own. After a failure, which is logged, the next call tries again.
    pub async fn remove_abandoned(self: &Arc<Self>) {
        let interrupts = Arc::new(Interrupts::default());
        let execution = Execution::new(&interrupts, interrupts.start());
        let writer = self.own_writer(execution.decision()).await;
        // They stay in the list until they are removed: this future may be dropped, which cancels the removal.
        let builds = self.index_builds.abandoned.lock().clone();
        let (catalog, snapshot) = self.latest(&writer);
        let (mut batch, mut changed) = (WriteBatch::new(), Catalog::clone(&catalog));
        let mut remove = || {
            builds.iter().try_for_each(|build| {
                forget(&mut changed, build)?;
                build.remove(&mut batch, &snapshot)
            })
        };
        let removed = match remove() {
            Ok(()) if batch.is_empty() => Ok(()),
            Ok(()) => self.commit_catalog(&writer, batch, changed).await,
            Err(error) => Err(error),
        };
        match removed {
            Ok(()) => self.index_builds.removed(&builds),
            Err(error) => tracing::warn!(%error, "could not remove an index whose build was abandoned"),
        }
    }
}

/// Removes a build from the definition of its table.
fn forget(catalog: &mut Catalog, build: &IndexBuild) -> Result<()> {
    let tables = catalog.tables.values().filter(|table| table.def.building.contains(build));
    for table in tables.cloned().collect::<Vec<_>>() {
        let mut def = table.def.clone();
        def.building.retain(|other| other != build);
        let table = Table::new(def, table.statistics.clone())?;
        catalog.tables.insert(table.def.name.clone(), Arc::new(table));
    }
    Ok(())
}

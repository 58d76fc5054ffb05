//! A database that is open read-only.
//!
//! Another process may change it. Before each statement, [`Engine::refresh`] brings the store up to date, and reads the
//! catalog again if its documents have changed. The catalog has its in-memory indexes, but they are not built: the planner
//! ignores them.
//!
//! *Invariant.* While the store has newer definitions than the published catalog, [`Engine::moment`] waits. If the catalog
//! cannot be read, refreshes fail until it can, and statements that have refreshed before may find the old one with newer
//! trees.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use keyaki_store::{Refreshed, Store};
use parking_lot::Mutex;
use tempfile::TempDir;

use super::{Engine, Unusable};
use crate::catalog::{CATALOG_TREE, Catalog, DocumentKind};
use crate::{Error, Result};

/// The catalog of a database that is open read-only, and the directory for files of its queries.
#[derive(Debug)]
pub(super) struct Follower {
    /// Locked by the session that refreshes.
    read: Mutex<ReadDocuments>,
    /// Files of queries, outside of the database directory.
    spill: TempDir,
}

#[derive(Debug)]
struct ReadDocuments {
    /// The documents of the published catalog, without positions of sequences.
    documents: Documents,
    /// The store may have newer documents.
    is_stale: bool,
}

type Documents = BTreeMap<String, Vec<u8>>;

impl Follower {
    /// Reads the catalog.
    ///
    /// # Errors
    /// `Corrupt`, `FormatVersion`, `Io`.
    pub fn open(store: &Store) -> Result<(Follower, Catalog)> {
        let documents = read(store)?;
        let catalog = decode(store, &documents)?;
        let made = tempfile::Builder::new().prefix("keyaki-").tempdir();
        let spill = made.map_err(|error| Error::io("create", &std::env::temp_dir(), error))?;
        let read = Mutex::new(ReadDocuments { documents, is_stale: false });
        Ok((Follower { read, spill }, catalog))
    }

    /// The directory for files of queries.
    pub fn spill_dir(&self) -> PathBuf {
        self.spill.path().to_path_buf()
    }
}

/// Reads the documents of the catalog.
fn read(store: &Store) -> Result<Documents> {
    // A process that has just created the database has not yet committed its catalog.
    let mut documents = Catalog::documents(store, &store.latest())?.unwrap_or_default();
    let positions = DocumentKind::SequencePosition.key(&"");
    documents.retain(|key, _| !key.starts_with(&positions));
    Ok(documents)
}

fn decode(store: &Store, documents: &Documents) -> Result<Catalog> {
    match documents.is_empty() {
        true => Ok(Catalog::default()),
        false => Catalog::decode(documents, || store.new_memory_tree_id()),
    }
}

/// The in-memory indexes of a catalog, which are unusable.
pub(super) fn not_built(catalog: &Catalog) -> Unusable {
    let indexes = catalog.tables.values().flat_map(|table| &table.def.indexes);
    let in_memory = indexes.filter(|index| index.method.is_in_memory());
    in_memory.map(|index| (index.tree, "the database is open read-only".into())).collect()
}

impl Engine {
    /// True if the database is open read-only.
    pub fn is_read_only(&self) -> bool {
        self.follower.is_some()
    }

    /// Checks that the database is not open read-only. `what` names the statement.
    ///
    /// # Errors
    /// `ReadOnlyDatabase`.
    pub fn check_read_write(&self, what: &str) -> Result<()> {
        match self.is_read_only() {
            true => Err(Error::ReadOnlyDatabase { statement: what.into() }),
            false => Ok(()),
        }
    }

    /// Brings a database that is open read-only up to date: see [`Store::refresh`]. Blocks.
    ///
    /// # Errors
    /// `Corrupt`, `FormatVersion`, `Io`. The next call continues.
    pub fn refresh(&self) -> Result<()> {
        let Some(follower) = &self.follower else { return Ok(()) };
        let mut read = follower.read.lock();
        let changing = Changing { unpublished: &self.unpublished, has_begun: AtomicBool::new(false) };
        // Changes of rows alone need no other catalog.
        let before = |changes: &Refreshed| {
            if changes.may_have_changed(CATALOG_TREE) {
                changing.begin();
            }
        };
        let refreshed = self.store.refresh(&before);
        // After an error, the documents may have changed.
        if refreshed.as_ref().map_or(true, |refreshed| refreshed.may_have_changed(CATALOG_TREE)) {
            read.is_stale = true;
        }
        if read.is_stale {
            changing.begin();
            self.publish_read(&mut read)?;
        }
        refreshed.map(|_| ()).map_err(Error::from)
    }

    /// Waits for a refresh that is under way.
    pub fn wait_for_refresh(&self) {
        if let Some(follower) = &self.follower {
            drop(follower.read.lock());
        }
    }

    /// Reads the catalog, and publishes it if it has changed.
    fn publish_read(&self, read: &mut ReadDocuments) -> Result<()> {
        let documents = self::read(&self.store)?;
        if documents != read.documents {
            let catalog = decode(&self.store, &documents)?;
            *self.catalog.write() = Arc::new(catalog);
            self.catalog_version.fetch_add(1, Ordering::Release);
            read.documents = documents;
        }
        read.is_stale = false;
        Ok(())
    }
}

/// A refresh that may have definitions that are not published yet, until it is dropped.
struct Changing<'a> {
    unpublished: &'a AtomicU64,
    has_begun: AtomicBool,
}

impl Changing<'_> {
    fn begin(&self) {
        if !self.has_begun.swap(true, Ordering::Relaxed) {
            self.unpublished.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if *self.has_begun.get_mut() {
            self.unpublished.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

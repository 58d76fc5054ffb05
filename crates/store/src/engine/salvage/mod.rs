//! Reads the intact rows of a damaged database, and reports the damaged ranges.
//!
//! ```text
//! checkpoint  the newest checkpoint with an intact node table, and the intact prefix of the log
//! remains     the intact pages of a damaged extent
//! prune       a tree without its damaged pages, for the ordinary cursors
//! rows        the rows of such a tree
//! ```
//!
//! [`Salvage::survey`] verifies all pages of a tree, as a check does. A damaged page of rows is a range of keys whose
//! rows are *lost*, unless newer messages have them. A damaged page of messages is a range of keys whose rows may be
//! *outdated*: an older value, or a row that was deleted. Outside of these ranges, rows are exact.
//!
//! *Invariant.* The files are opened for reading only, and nothing is written.

mod checkpoint;
mod prune;
mod remains;
mod rows;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyaki_device::{Device, Lock};
use keyaki_primitives::sync::Mutex;

use self::checkpoint::Restored;
use self::prune::{Pruned, prune};
use self::remains::Remains;
pub use self::rows::SalvagedRows;
use super::backup::check_outside;
use super::check::{Damage, DamagedPart, Item, Verifier, by_position, in_parallel, items_of};
use crate::base::{Error, Options, Result, Schema, TreeId};
use crate::engine::DamagedKeys;
use crate::pages::Files;
use crate::tree::{StoreVersion, TreeVersion, TreeView};

/// A database that may be damaged, opened for reading only.
#[derive(Debug)]
pub struct Salvage {
    files: Arc<Files>,
    state: StoreVersion,
    found: SalvagedState,
    _lock: Option<Box<dyn Lock>>,
}

/// The state of the database that is read.
#[derive(Debug)]
pub struct SalvagedState {
    /// Generation and newest commit of the checkpoint; `None` if none is intact, and the log alone was replayed.
    pub checkpoint: Option<(u64, u64)>,
    /// The newest commit that is read.
    pub sequence: u64,
    /// The newest commit in any group header of the log. Later ones may have existed.
    pub newest_known: u64,
    /// The reason for the loss of later commits; `None` if no durable commit is lost.
    pub log_problem: Option<Error>,
    /// Damaged superblocks and node tables.
    pub damaged: Vec<Error>,
    /// Number of commits in the log whose changes only a later checkpoint had: of bulk loads, large transactions, and
    /// in-memory trees. If a superblock or node table is damaged, that checkpoint may be lost.
    pub empty_records: u64,
    /// False if the database has no lock file, so that no lock excludes writers.
    pub is_locked: bool,
}

impl Salvage {
    /// Opens a database, as far as it is intact. `options` has the upsert functions and the budget of the page cache.
    /// Writers are locked out until this is dropped. Blocks.
    ///
    /// # Errors
    /// [`Error::Locked`] if the database is open, [`Error::DatabaseNotFound`] if the directory does not exist,
    /// [`Error::NotADatabase`] or [`Error::Corrupt`] if there is neither an intact checkpoint nor the beginning of the
    /// log, [`Error::FormatVersion`]; device errors, except for reads.
    pub fn open(device: &Arc<dyn Device>, dir: &Path, options: &Options) -> Result<Salvage> {
        if !device.exists(dir)? {
            return Err(Error::DatabaseNotFound { path: dir.to_path_buf() });
        }
        let lock = match device.lock_existing(&dir.join("LOCK")) {
            Ok(lock) => Some(lock),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(Error::of_lock(dir, error)),
        };
        let Restored { files, state, superblock, log, damaged, empty_records } =
            checkpoint::restore(device, dir, options)?;
        files.poison("the database is open for reading only");
        let found = SalvagedState {
            checkpoint: superblock.map(|superblock| (superblock.generation, superblock.sequence)),
            sequence: log.last,
            newest_known: log.newest_known,
            log_problem: log.problem,
            damaged,
            empty_records,
            is_locked: lock.is_some(),
        };
        Ok(Salvage { files, state, found, _lock: lock })
    }

    /// Checks that a new database in the directory `dir` would not lie within another one, such as this one.
    ///
    /// # Errors
    /// [`Error::NotADatabase`] if it would; device errors.
    pub fn check_target(&self, dir: &Path) -> Result<()> {
        check_outside(&*self.files.device, dir)
    }

    /// The state that is read.
    pub fn state(&self) -> &SalvagedState {
        &self.found
    }

    /// The trees with their columns, by ascending id.
    pub fn trees(&self) -> impl Iterator<Item = (TreeId, &Arc<Schema>)> {
        self.state.trees.iter().map(|(&tree, version)| (tree, &version.codecs.schema))
    }

    /// Verifies all pages of a tree, on several threads. `progress` receives the numbers of rows and messages verified
    /// so far and in total, and ends the survey by returning false; the result is `None` then. Blocks.
    ///
    /// # Errors
    /// [`Error::TreeNotFound`]. Damage is part of the result.
    pub fn survey(
        &self,
        tree: TreeId,
        progress: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<Option<SalvagedTree<'_>>> {
        let version = self.state.trees.get(&tree).ok_or(Error::TreeNotFound(tree))?;
        let Some(Verified { damage, remains }) = self.verify(version, progress)? else { return Ok(None) };
        let pruned = prune(version, &remains);
        Ok(Some(SalvagedTree { salvage: self, tree, damage, pruned }))
    }

    /// Verifies the extents of a tree. `None` if `progress` has ended it.
    fn verify(
        &self,
        version: &Arc<TreeVersion>,
        progress: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<Option<Verified>> {
        let items = items_of(version);
        let total = items.iter().map(|item| item.extent.meta.rows).sum();
        let (done, found) = (AtomicU64::new(0), Mutex::new(Ok(Verified::default())));
        let is_complete = in_parallel(&items, |item| {
            let verified = self.verify_extent(item);
            match (&mut *found.lock(), verified) {
                (Ok(found), Ok((damage, remain))) => {
                    found.damage.extend(damage);
                    found.remains.extend(remain.map(|remain| (item.extent.meta.offset, remain)));
                }
                (found, Err(error)) => *found = Err(error),
                (Err(_), Ok(_)) => {}
            }
            let rows = item.extent.meta.rows;
            found.lock().is_ok() && progress(done.fetch_add(rows, Ordering::Relaxed) + rows, total)
        });
        let mut verified = found.into_inner()?;
        by_position(&mut verified.damage);
        Ok(is_complete.then_some(verified))
    }

    /// The damaged pages of an extent, and the remains of a damaged one. The sample of a tree is not needed.
    fn verify_extent(&self, item: &Item) -> Result<(Vec<Damage>, Option<Remains>)> {
        let verifier = Verifier { files: &self.files, item };
        let damage = verifier.extent()?;
        let is_needed = !damage.is_empty() && item.part != DamagedPart::Sample;
        let remains = is_needed.then(|| Remains::of(&verifier)).transpose()?;
        Ok((damage, remains))
    }
}

/// The damaged pages of a tree, and the remains of its damaged extents by their offset.
#[derive(Default)]
struct Verified {
    damage: Vec<Damage>,
    remains: HashMap<u64, Remains>,
}

/// A surveyed tree.
pub struct SalvagedTree<'a> {
    salvage: &'a Salvage,
    tree: TreeId,
    damage: Vec<Damage>,
    pruned: Pruned,
}

impl SalvagedTree<'_> {
    /// The damaged pages, in the order of their positions.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// The keys whose rows are lost, unless newer messages have them. In key order, without overlaps.
    pub fn lost(&self) -> &[DamagedKeys] {
        &self.pruned.lost
    }

    /// The keys whose rows may be older than they were, or deleted ones. In key order, without overlaps.
    pub fn outdated(&self) -> &[DamagedKeys] {
        &self.pruned.outdated
    }

    /// The rows of the tree.
    pub fn rows(&self) -> SalvagedRows {
        let view = TreeView {
            tree: self.tree,
            sequence: self.salvage.found.sequence,
            version: Arc::new(self.pruned.version.clone()),
            files: self.salvage.files.clone(),
            locator: None,
            registration: None,
            own: None,
            reads: None,
            ignores_cache: false,
        };
        SalvagedRows::new(view, &self.pruned)
    }
}

impl std::fmt::Debug for SalvagedTree<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("SalvagedTree");
        debug.field("tree", &self.tree).field("damage", &self.damage).field("lost", &self.pruned.lost);
        debug.field("outdated", &self.pruned.outdated).finish_non_exhaustive()
    }
}

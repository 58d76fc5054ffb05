//! The store: snapshots, commits, closing. Opening and recovery are in `open`, background work in `background`.
//!
//! Locks, in the order in which they are taken:
//! 1. `maintenance`: one structural change at a time (flush, install, checkpoint);
//! 2. `commit`: gives out sequence numbers, appends to the log and inserts into the active buffers;
//! 3. `state`: the current version of every tree, held only to copy or swap a pointer.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;

use keyaki_device::{Device, File, Lock};
use parking_lot::{Condvar, Mutex, RwLock};

use super::open;
use crate::base::{Durability, Error, Options, Result, Schema, Snapshots, TreeId, TreeKind};
use crate::codec::{Codecs, Page, PageRef};
use crate::engine::{LocatorThread, Work, check, next_id};
use crate::locator::Locators;
use crate::log::Log;
use crate::message::{Operation, WriteBatch, decode};
use crate::pages::{BlockingPages, Cache, Files, Priority};
use crate::tree::{InnerNode, Snapshot, StoreVersion, TreeVersion};

/// An open store. `Clone` gives another handle to the same one; the last handle's drop closes it (with a checkpoint, if
/// nothing failed).
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    _closer: Arc<Closer>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub options: Options,
    pub files: Arc<Files>,
    pub log: Log,
    pub state: RwLock<Arc<StoreVersion>>,
    pub commit: Mutex<CommitToken>,
    /// Newest sequence number whose messages are all in the buffers. Stored with `state` locked if trees are created or
    /// dropped with it, so that a snapshot has both or neither.
    pub inserted: AtomicU64,
    /// Changed under `commit`; the floor is raised at any time.
    pub durability: Mutex<Visibility>,
    /// Newest sequence number with something in the log.
    pub logged: AtomicU64,
    pub next_tree: AtomicU32,
    pub next_memory_tree: AtomicU32,
    pub snapshots: Arc<Snapshots>,
    pub maintenance: Mutex<Checkpointed>,
    pub work: Mutex<Work>,
    pub work_changed: Condvar,
    pub locators: Arc<Locators>,
    pub locator_thread: LocatorThread,
    pub bytes_flushed: AtomicU64,
    pub checkpoints: AtomicU64,
    pub lock: Mutex<Option<Box<dyn Lock>>>,
}

/// Only the commit lock has one: a function that takes a reference runs with the lock held.
#[derive(Debug)]
pub(crate) struct CommitToken(());

impl CommitToken {
    /// The token of a new store's commit lock.
    pub fn new_lock() -> Mutex<CommitToken> {
        Mutex::new(CommitToken(()))
    }
}

/// What readers may see.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visibility {
    pub durability: Durability,
    /// Newest sequence number known to be visible though the log may not have it: visible under another durability, or of a
    /// commit that the log has nothing of.
    pub floor: u64,
}

/// The newest checkpoint on the medium: what it refers to must not be overwritten.
#[derive(Debug)]
pub(crate) struct Checkpointed {
    pub generation: u64,
    pub sequence: u64,
    pub meta: (u64, u64),
    #[expect(dead_code, reason = "held so that the checkpoint's extents are not freed")]
    pub state: Arc<StoreVersion>,
    /// A checkpoint whose superblock may be on the medium or not.
    /// (Held so that its extents are not freed.)
    pub doubtful: Option<Arc<StoreVersion>>,
}

/// Closes the store when the last handle goes.
#[derive(Debug)]
struct Closer {
    shared: Arc<Shared>,
    background: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.shared.stop_background();
        if let Some(thread) = self.background.lock().take() {
            // A panicked thread has nothing left to do.
            drop(thread.join());
        }
        self.shared.locator_thread.stop();
        if let Err(error) = self.shared.checkpoint() {
            tracing::warn!(%error, "closing without a checkpoint; the log will be replayed at the next opening");
        }
        self.shared.log.close();
        self.shared.files.close();
        // Another process may have the files now.
        *self.shared.lock.lock() = None;
    }
}

/// Counters since opening; bytes and calls.
#[derive(Debug, Clone, Copy, Default)]
pub struct StoreStats {
    /// Pages read from the data file and verified.
    pub pages_read: u64,
    /// Lookups in the page cache that found the page.
    pub cache_hits: u64,
    /// Lookups in the page cache that did not.
    pub cache_misses: u64,
    /// Bytes of pages in the cache now.
    pub cache_bytes: u64,
    /// Bytes in the root buffers of trees on disk now.
    pub buffer_bytes: u64,
    /// Bytes of trees in memory now.
    pub memory_tree_bytes: u64,
    /// Bytes of locators now, without pages.
    pub locator_bytes: u64,
    /// Of pages that locators keep in memory.
    pub held_bytes: u64,
    /// Bytes of the data file in use.
    pub data_bytes_used: u64,
    /// Length of the data file.
    pub data_file_bytes: u64,
    /// Bytes of root buffers written to disk.
    pub bytes_flushed: u64,
    /// Checkpoints made.
    pub checkpoints: u64,
}

impl Store {
    /// Opens the database directory `dir`, recovering it if it was not closed.
    ///
    /// # Errors
    /// [`Error::Locked`] if it is open already, [`Error::DatabaseNotFound`], [`Error::NotADatabase`],
    /// [`Error::FormatVersion`], [`Error::Corrupt`], device errors.
    pub fn open(device: Arc<dyn Device>, dir: &Path, options: Options) -> Result<Store> {
        open::check_options(&options)?;
        let data_path = dir.join("data");
        if !device.exists(&data_path)? {
            if !options.create {
                return Err(Error::DatabaseNotFound { path: dir.to_path_buf() });
            }
            open::prepare_directory(&*device, dir)?;
        }
        let lock = device.lock(&dir.join("LOCK")).map_err(|error| match error.is_locked() {
            true => Error::Locked { path: dir.to_path_buf() },
            false => error.into(),
        })?;
        if !device.exists(&data_path)? {
            open::check_no_log(&*device, dir)?;
            open::create(&*device, dir, &options)?;
        }
        let shared = Arc::new(open::recover(device, dir, options, lock)?);
        let background = crate::engine::spawn(&shared)?;
        let closer = Closer { shared: shared.clone(), background: Mutex::new(Some(background)) };
        Ok(Store { shared, _closer: Arc::new(closer) })
    }

    /// Everything acknowledged so far.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.snapshot(|| self.shared.visible())
    }

    /// Also what is committed but not yet durable; for writers that must see their predecessors. (Trees are created and
    /// dropped when that is durable, not before.)
    pub fn latest(&self) -> Snapshot {
        self.shared.snapshot(|| self.shared.inserted.load(Ordering::Acquire))
    }

    /// Makes the batch visible and, as [`crate::Durability`] asks, durable; all of it or nothing. Returns its sequence
    /// number. Blocks: call it from a thread that may wait.
    ///
    /// # Errors
    /// `TreeNotFound`, `TooLarge`, `UnknownUpsert`; `InvalidKey` and `InvalidRow` for bytes that do not encode a row of their tree; a full disk, after which
    /// commits may be tried again; `Poisoned`.
    pub fn commit(&self, batch: WriteBatch) -> Result<u64> {
        self.shared.commit(&batch)
    }

    /// An id that no tree has had. (After 2^31 of them an id that no tree can have.)
    pub fn new_tree_id(&self) -> TreeId {
        next_id(&self.shared.next_tree, TreeId::DISK_END)
    }

    /// Forgets cached pages (index pages too).
    pub fn drop_caches(&self) {
        self.shared.files.cache.clear();
    }

    /// Changes the durability of later commits. Under `Full`, everything before is made durable too (blocks); a failure
    /// of that poisons the log, as the next commit will tell.
    pub fn set_durability(&self, durability: Durability) {
        let shared = &self.shared;
        {
            let _commit = shared.commit.lock();
            let visible = shared.visible();
            let mut visibility = shared.durability.lock();
            *visibility = Visibility { durability, floor: visibility.floor.max(visible) };
            drop(visibility);
            shared.log.set_durability(durability);
        }
        if durability == Durability::Full
            && let Err(error) = shared.log.sync()
        {
            tracing::error!(%error, "earlier commits could not be made durable");
        }
    }

    /// The durability of later commits.
    pub fn durability(&self) -> Durability {
        self.shared.durability.lock().durability
    }

    /// Counters and sizes of now.
    pub fn stats(&self) -> StoreStats {
        let files = &self.shared.files;
        let (used, length) = files.space.usage();
        let (locators, held) = self.shared.locators.bytes();
        let (hits, misses) = files.cache.counters();
        StoreStats {
            pages_read: files.pages_read.load(Ordering::Relaxed),
            cache_hits: hits,
            cache_misses: misses,
            cache_bytes: files.cache.usage().0 as u64,
            buffer_bytes: self.shared.buffer_bytes() as u64,
            memory_tree_bytes: self.shared.memory_tree_bytes() as u64,
            locator_bytes: locators,
            held_bytes: held,
            data_bytes_used: used,
            data_file_bytes: length,
            bytes_flushed: self.shared.bytes_flushed.load(Ordering::Relaxed),
            checkpoints: self.shared.checkpoints.load(Ordering::Relaxed),
        }
    }

    /// Bytes of the data file that a tree uses.
    pub fn tree_bytes(&self, tree: TreeId) -> u64 {
        let state = self.shared.state.read().clone();
        let mut seen = std::collections::HashSet::new();
        let mut bytes = 0;
        if let Some(version) = state.trees.get(&tree) {
            version.root.visit_extents(&mut |extent| {
                if seen.insert(extent.meta.offset) {
                    bytes += extent.meta.len;
                }
            });
        }
        bytes
    }

    /// The options that the store was opened with; the page length is that of the database.
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// The device that the store was opened on.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.shared.files.device
    }

    /// The file that [`PageRef`]s point into.
    pub fn data_file(&self) -> &Arc<dyn File> {
        &self.shared.files.data
    }

    /// The page cache.
    pub fn cache(&self) -> &Cache {
        &self.shared.files.cache
    }

    pub(crate) fn files(&self) -> &Arc<Files> {
        &self.shared.files
    }

    /// Pages read with blocking calls.
    pub fn blocking(&self) -> BlockingPages {
        BlockingPages { files: self.shared.files.clone() }
    }

    /// Checks the bytes read for `page` and puts it into the cache.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub fn admit(&self, bytes: &[u8], page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        self.shared.files.admit(bytes, page, schema, priority)
    }

    /// The page from the cache, or read now (blocking) and put there.
    ///
    /// # Errors
    /// Device errors, [`Error::Corrupt`].
    pub fn read_page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        self.shared.files.read_page(page, schema, priority)
    }
}

/// Applies a commit to the active buffers, which versions of a state share, and to the set of trees, for which the state
/// is copied.
pub(crate) fn apply(state: &mut Cow<'_, StoreVersion>, sequence: u64, payload: &[u8]) -> Result<()> {
    decode(payload, |operation| {
        match operation {
            Operation::Message { tree, key, message } => {
                let version = state.trees.get(&tree).ok_or(Error::TreeNotFound(tree))?;
                version.active.insert(key, sequence, message);
            }
            Operation::CreateTree { tree, schema } => {
                let version = TreeVersion::new(Arc::new(Codecs::new(schema)), Arc::new(InnerNode::empty()));
                state.to_mut().trees.insert(tree, Arc::new(version));
            }
            Operation::DropTree { tree } => drop(state.to_mut().trees.remove(&tree)),
        }
        Ok(())
    })
}

impl Shared {
    /// The newest sequence number that readers may see.
    pub fn visible(&self) -> u64 {
        let inserted = self.inserted.load(Ordering::Acquire);
        let Visibility { durability, floor } = *self.durability.lock();
        match durability {
            Durability::Full => inserted.min(self.log.durable()).max(floor),
            Durability::Normal | Durability::Off => inserted.max(floor),
        }
    }

    /// The messages of commit `sequence` are in the buffers.
    pub fn set_inserted(&self, _commit: &CommitToken, sequence: u64) {
        let before = self.inserted.swap(sequence, Ordering::Release);
        assert_eq!(before + 1, sequence, "sequence numbers of commits are consecutive");
    }

    /// Everything up to `sequence` is to be seen from now on.
    pub fn raise_floor(&self, sequence: u64) {
        let mut visibility = self.durability.lock();
        visibility.floor = visibility.floor.max(sequence);
    }

    fn snapshot(&self, sequence: impl Fn() -> u64) -> Snapshot {
        // While the state is held no fresh buffers can take its place, so that every commit up to the number read here
        // is in these buffers.
        let state = self.state.read();
        let has_memory_trees = state.trees.last_key_value().is_some_and(|(&tree, _)| tree.is_memory());
        let registration = has_memory_trees.then(|| Arc::new(self.snapshots.enter(&sequence)));
        let sequence = registration.as_ref().map_or_else(&sequence, |registration| registration.sequence());
        Snapshot { sequence, state: state.clone(), locators: self.locators.clone(), registration }
    }

    /// What has stopped the data file stops the log, and the other way round.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn check_poison(&self) -> Result<()> {
        let checked = self.files.check_writable().and_then(|()| self.log.check());
        if let Err(Error::Poisoned { cause }) = &checked {
            self.poison(cause);
        }
        checked
    }

    /// Nothing is written any more, neither data nor log.
    pub fn poison(&self, cause: &str) {
        self.files.poison(cause);
        self.log.poison(cause);
    }

    fn commit(&self, batch: &WriteBatch) -> Result<u64> {
        let result = self.try_commit(batch);
        if result.is_err() {
            // The error at hand says more than what this may say.
            let _ = self.check_poison();
        }
        result
    }

    fn try_commit(&self, batch: &WriteBatch) -> Result<u64> {
        batch.check()?;
        self.check_poison()?;
        if !batch.bytes.is_empty() {
            self.wait_for_room()?;
        }
        // What a dropped tree leaves behind is freed when others may commit again.
        let state;
        let (sequence, logged) = {
            let commit = self.commit.lock();
            state = self.state.read().clone();
            let changes_trees = self.check_batch(&state, batch)?;
            let sequence = self.inserted.load(Ordering::Relaxed) + 1;
            // One that is about memory trees only needs a number there, but need not be there.
            self.log.append(sequence, &batch.bytes)?;
            if !batch.bytes.is_empty() {
                self.logged.store(sequence, Ordering::Relaxed);
            }
            let logged = self.logged.load(Ordering::Relaxed);
            if changes_trees {
                // The set of trees has no versions by sequence number: it may change only when that is durable. Rare
                // enough for others to wait.
                self.log.commit(logged)?;
                let mut current = self.state.write();
                let mut changed = Cow::Borrowed(&**current);
                apply(&mut changed, sequence, &batch.bytes)?;
                self.apply_in_memory(&commit, &mut changed, sequence, batch)?;
                *current = Arc::new(changed.into_owned());
                self.set_inserted(&commit, sequence);
            } else {
                let mut state = Cow::Borrowed(&*state);
                apply(&mut state, sequence, &batch.bytes)?;
                self.apply_in_memory(&commit, &mut state, sequence, batch)?;
                self.set_inserted(&commit, sequence);
            }
            (sequence, logged)
        };
        self.request_work();
        self.log.commit(logged)?;
        if logged < sequence {
            // All before is as durable as it must be, and there is nothing to wait for in the log.
            self.raise_floor(sequence);
        }
        Ok(sequence)
    }

    /// Checks both parts of a batch; tells whether trees are created or dropped.
    pub fn check_batch(&self, state: &StoreVersion, batch: &WriteBatch) -> Result<bool> {
        let upserts = Some(&*self.files.upserts);
        let on_disk = check(state, &batch.bytes, TreeKind::Disk, upserts)?;
        Ok(check(state, &batch.in_memory, TreeKind::Memory, upserts)? || on_disk)
    }
}

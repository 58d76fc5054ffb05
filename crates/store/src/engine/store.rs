//! The store: snapshots, commits, closing.
//!
//! A commit takes the commit lock, checks its batch, appends it to the log and inserts its messages into the active
//! buffers. It releases the lock and waits for the log as the durability requires; concurrent commits share a sync. A
//! commit that creates or drops trees waits for the log under the lock, because the set of trees has no versions by
//! sequence number.
//!
//! *Lock order.*
//! 1. `maintenance`: serialises structural changes (flush, install, checkpoint);
//! 2. `commit`: serialises sequence numbers, appends to the log and inserts into the active buffers;
//! 3. `state`: guards the current versions of all trees; held only to copy or swap a pointer.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use keyaki_device::metered::Meter;
use keyaki_device::{Device, File, Lock};
use keyaki_primitives::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use keyaki_primitives::sync::thread::JoinHandle;
use keyaki_primitives::sync::{Condvar, Mutex, RwLock};

use super::open;
use crate::base::{Durability, Error, Options, Result, Schema, Snapshots, TreeId};
use crate::codec::{Page, PageRef, Projection};
use crate::engine::{
    CommitStats, Follower, LocatorThread, Pacing, Pinned, Place, Submitted, Transactions, Work, next_id, pacing_start,
};
use crate::locator::Locators;
use crate::log::{Log, LogPosition};
use crate::message::WriteBatch;
use crate::pages::{BlockingPages, Cache, Files, Priority};
use crate::tree::{Snapshot, StoreVersion};

/// A handle to an open store. `Clone` returns another handle to the same store. Dropping the last handle closes the
/// store, with a checkpoint unless an earlier failure disabled writes.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
    _closer: Arc<Closer>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub options: Options,
    /// See [`Superblock`](crate::pages::Superblock).
    pub database_id: u64,
    pub files: Arc<Files>,
    pub log: Log,
    pub state: RwLock<Arc<StoreVersion>>,
    /// Replaced states that commits have used. The background thread drops them: the last reference frees the messages of
    /// buffers and the extents of a flush, which takes much longer than a commit.
    pub released: Mutex<Vec<Arc<StoreVersion>>>,
    /// Number of replacements of `state`; changed under its write lock.
    pub generation: AtomicU64,
    /// See [`Store::observe_generations`].
    pub observer: Observer,
    pub commit: Mutex<CommitToken>,
    /// Newest sequence number whose messages are all in the buffers. A commit that creates or drops trees stores it
    /// under the `state` lock, so that a snapshot sees the tree and the number together.
    pub inserted: AtomicU64,
    /// The durability changes under the commit lock; the floor may be raised at any time.
    pub visibility: Visibility,
    /// Newest sequence number with a record in the log.
    pub logged: AtomicU64,
    pub next_tree: AtomicU32,
    pub next_memory_tree: AtomicU32,
    pub snapshots: Arc<Snapshots>,
    pub transactions: Transactions,
    pub maintenance: Mutex<Checkpointed>,
    pub work: Mutex<Work>,
    pub work_changed: Condvar,
    pub locators: Arc<Locators>,
    pub locator_thread: LocatorThread,
    pub bytes_flushed: AtomicU64,
    pub bytes_loaded: AtomicU64,
    pub checkpoints: AtomicU64,
    /// Commits with their bytes, until they are durable as required.
    pub commits: Meter,
    /// Commits that have waited, because the buffers exceeded one and a half times their budget.
    pub stalls: Meter,
    pub pacing: Pacing,
    /// Newest sequence number, used bytes of the data file and newest segment of the log after the last call of
    /// [`Shared::make_space`] for a commit.
    pub futile: Mutex<Option<(u64, u64, Option<u64>)>>,
    pub lock: Mutex<Option<Box<dyn Lock>>>,
    /// Set if the store is open read-only.
    pub follower: Option<Mutex<Follower>>,
}

/// Proof that the commit lock is held: the value exists only inside the lock, so a function that takes a reference to
/// it runs under the lock.
#[derive(Debug)]
pub(crate) struct CommitToken(());

impl CommitToken {
    /// The commit lock of a new store.
    pub fn new_lock() -> Mutex<CommitToken> {
        Mutex::new(CommitToken(()))
    }
}

/// The observer of generations.
#[derive(Default)]
pub(crate) struct Observer(OnceLock<Box<dyn Fn(u64) + Send + Sync>>);

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observer")
    }
}

/// Determines the newest commit that readers may see.
#[derive(Debug)]
pub(crate) struct Visibility {
    durability: AtomicU8,
    /// Newest sequence number that is visible independently of the log: it was visible under an earlier durability, is
    /// in a checkpoint, or belongs to a commit without a log record.
    floor: AtomicU64,
}

impl Visibility {
    pub fn new(durability: Durability, floor: u64) -> Self {
        Visibility { durability: AtomicU8::new(durability as u8), floor: AtomicU64::new(floor) }
    }

    pub fn durability(&self) -> Durability {
        let number = self.durability.load(Ordering::Acquire);
        let all = [Durability::Full, Durability::Normal, Durability::Off];
        all.into_iter().find(|durability| *durability as u8 == number).unwrap_or(Durability::Full)
    }

    /// Changes the durability of later commits. `visible` is the newest visible sequence number; the caller holds the
    /// commit lock.
    fn set_durability(&self, _commit: &CommitToken, durability: Durability, visible: u64) {
        // In this order, so that the newest visible sequence number never decreases.
        self.raise(visible);
        self.durability.store(durability as u8, Ordering::Release);
    }

    /// Makes all commits up to `sequence` visible.
    fn raise(&self, sequence: u64) {
        self.floor.fetch_max(sequence, Ordering::AcqRel);
    }

    /// The newest visible sequence number. `inserted` was read before.
    fn newest(&self, inserted: u64, log: &Log) -> u64 {
        let newest = match self.durability() {
            Durability::Full => inserted.min(log.durable()),
            Durability::Normal | Durability::Off => inserted,
        };
        newest.max(self.floor.load(Ordering::Acquire))
    }
}

/// The newest checkpoint on the medium. The extents and the node table that it refers to must not be overwritten.
#[derive(Debug)]
pub(crate) struct Checkpointed {
    pub generation: u64,
    pub sequence: u64,
    /// Position from which the log is replayed.
    pub log: LogPosition,
    /// The range of the node table.
    pub meta: Place,
    /// A free range for the next node table, if there is one: not shorter than the table of this checkpoint.
    pub spare_table: Option<Place>,
    /// Keeps the checkpoint's extents from being freed.
    pub state: Arc<StoreVersion>,
    /// Earlier checkpoints that readers use.
    pub pinned: Pinned,
    /// A checkpoint whose superblock write failed and may or may not be on the medium. Keeps its extents from being
    /// freed.
    pub doubtful: Option<Arc<StoreVersion>>,
}

/// Closes the store when the last handle is dropped: background threads, checkpoint, log, data file, then the lock.
#[derive(Debug)]
struct Closer {
    shared: Arc<Shared>,
    background: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.shared.stop_background();
        if let Some(thread) = self.background.lock().take() {
            // An error is the panic of the thread, which has ended in any case.
            drop(thread.join());
        }
        self.shared.locator_thread.stop();
        self.shared.drop_released();
        if self.shared.follower.is_none()
            && let Err(error) = self.shared.checkpoint()
        {
            tracing::warn!(%error, "could not write a checkpoint on closing; the next open replays the log");
        }
        self.shared.log.close();
        self.shared.files.close();
        // Last: another process may open the files once the lock is released.
        *self.shared.lock.lock() = None;
    }
}

/// Counters since the store was opened, and current sizes.
#[derive(Debug, Clone, Copy, Default)]
pub struct StoreStats {
    /// Number of pages read from the data file and verified.
    pub pages_read: u64,
    /// Number of lookups in the page cache that found the page.
    pub cache_hits: u64,
    /// Number of lookups in the page cache that did not find the page.
    pub cache_misses: u64,
    /// Current bytes of pages in the cache, and of decompressed columns of all pages in memory.
    pub cache_bytes: u64,
    /// Current bytes in the root buffers of trees on disk.
    pub buffer_bytes: u64,
    /// Current bytes of memory trees.
    pub memory_tree_bytes: u64,
    /// Current bytes of locators, without the pages that they keep.
    pub locator_bytes: u64,
    /// Current bytes of the pages that locators keep in memory.
    pub held_bytes: u64,
    /// Bytes of the data file that are in use.
    pub data_bytes_used: u64,
    /// Length of the data file in bytes.
    pub data_file_bytes: u64,
    /// Bytes of root buffers written to disk.
    pub bytes_flushed: u64,
    /// Bytes of the extents and changes of bulk loads and large transactions.
    pub bytes_loaded: u64,
    /// Number of checkpoints completed.
    pub checkpoints: u64,
}

impl Store {
    /// Opens the database directory `dir`, creating it if it does not exist and `options.create` is set. Replays the
    /// log if the database was not closed. `options.page_bytes` applies to new databases only.
    ///
    /// # Errors
    /// [`Error::Locked`] if the database is already open, [`Error::DatabaseNotFound`], [`Error::NotADatabase`],
    /// [`Error::FormatVersion`], [`Error::Corrupt`], [`Error::InvalidArgument`] for invalid options,
    /// [`Error::StartThread`], [`Error::DiskFull`], device errors.
    pub fn open(device: Arc<dyn Device>, dir: &Path, options: Options) -> Result<Store> {
        open::check_options(&options)?;
        let data_path = dir.join("data");
        if !device.exists(&data_path)? {
            if !options.create {
                return Err(Error::DatabaseNotFound { path: dir.to_path_buf() });
            }
            open::prepare_directory(&*device, dir)?;
        }
        let lock = device.lock(&dir.join("LOCK")).map_err(|error| Error::of_lock(dir, error))?;
        if !device.exists(&data_path)? {
            open::check_no_log(&*device, dir)?;
            open::create(&*device, dir, &options)?;
        }
        let shared = Arc::new(open::recover(device, dir, options, lock)?);
        let background = crate::engine::spawn(&shared)?;
        let closer = Closer { shared: shared.clone(), background: Mutex::new(Some(background)) };
        Ok(Store { shared, _closer: Arc::new(closer) })
    }

    /// Opens the database directory `dir` for reading, also while another process has it open for reading and writing.
    /// Nothing is written. The store has the commits of the newest checkpoint and of the log; [`Store::refresh`] brings it
    /// up to date. It has no memory trees. `options` are those of [`Store::open`]; `create` and `durability` have no effect.
    ///
    /// # Errors
    /// As [`Store::open`], without [`Error::Locked`] and [`Error::DiskFull`].
    pub fn open_read_only(device: Arc<dyn Device>, dir: &Path, options: Options) -> Result<Store> {
        open::check_options(&options)?;
        let shared = Arc::new(open::open_read_only(device, dir, options)?);
        let closer = Closer { shared: shared.clone(), background: Mutex::new(None) };
        Ok(Store { shared, _closer: Arc::new(closer) })
    }

    /// True if the store was opened by [`Store::open_read_only`].
    pub fn is_read_only(&self) -> bool {
        self.shared.follower.is_some()
    }

    /// A snapshot of all acknowledged commits.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.snapshot(|| self.shared.visible())
    }

    /// Like [`Store::snapshot`], but includes commits that are not yet durable, for writers that must see earlier
    /// writes. The creation or removal of a tree is visible only once it is durable.
    pub fn latest(&self) -> Snapshot {
        self.shared.snapshot(|| self.shared.inserted.load(Ordering::Acquire))
    }

    /// Commits a batch atomically: makes it visible, and durable as far as [`crate::Durability`] requires. Returns its
    /// sequence number. Blocks.
    ///
    /// # Errors
    /// - [`Error::TreeNotFound`], [`Error::TreeExists`], [`Error::TooMany`], [`Error::TooLarge`], [`Error::UnknownUpsert`]:
    ///   the batch is not applicable;
    /// - [`Error::InvalidKey`], [`Error::InvalidRow`] for bytes that do not encode a row of their tree;
    /// - [`Error::DiskFull`]: the commit changed nothing and may be repeated. Batches that drop trees or only delete
    ///   rows use a reserve, which other batches do not use up;
    /// - [`Error::Quarantined`]: the batch changes a tree that is damaged, without dropping it;
    /// - errors of background flushes while the buffers are full, unless the batch drops trees;
    /// - [`Error::Poisoned`], [`Error::Closed`].
    pub fn commit(&self, batch: WriteBatch) -> Result<u64> {
        self.submit(batch)?.wait()
    }

    /// The first part of a commit: [`Store::latest`] and later commits see the changes, but other readers do not, and
    /// the changes need not be durable, before [`Submitted::wait`] has returned. A writer that holds a lock of its own
    /// can release it between the two, so that commits of several writers share one `fdatasync`. Blocks only while the
    /// buffers exceed one and a half times their budget, and for batches that create or drop trees.
    ///
    /// # Errors
    /// As [`Store::commit`].
    pub fn submit(&self, batch: WriteBatch) -> Result<Submitted> {
        self.shared.submit(&batch, |_| Ok(()))
    }

    /// A tree id that no tree of the database has had. Once all ids are used, it returns an id that [`Store::commit`]
    /// rejects with [`Error::TooMany`].
    pub fn new_tree_id(&self) -> TreeId {
        next_id(&self.shared.next_tree, TreeId::DISK_END)
    }

    /// Drops all pages from the page cache, including index pages.
    pub fn drop_caches(&self) {
        self.shared.files.cache.clear();
    }

    /// True if commits may sleep or wait for a flush, because the buffers exceed one and a half times their budget.
    pub fn slows_commits(&self) -> bool {
        self.shared.buffer_bytes() > pacing_start(self.shared.options.buffer_bytes)
    }

    /// All commits so far, as one to wait for.
    pub fn pending(&self) -> Submitted {
        self.shared.pending()
    }

    /// Makes a snapshot the newest one without the cost of taking one: no lock, and no shared reference count. Returns
    /// false, without an effect, if trees or their buffers were replaced since the snapshot was taken, or if the store
    /// has memory trees; only a new snapshot is the newest one then.
    pub fn renew(&self, snapshot: &mut Snapshot) -> bool {
        if !snapshot.is_renewable() {
            return false;
        }
        let sequence = self.shared.visible();
        // A commit after a replacement publishes its sequence number after it has seen the new state. So if the state
        // of the snapshot is still the current one, its buffers have all commits up to `sequence`.
        let is_current = self.shared.generation.load(Ordering::Acquire) == snapshot.generation;
        if is_current {
            snapshot.sequence = snapshot.sequence.max(sequence);
        }
        is_current
    }

    /// Calls `observe` with the new generation after trees or buffers were replaced, in the thread that replaced them, and
    /// without locks of the store. A holder of kept snapshots can then drop them. Only the first call has an effect.
    pub fn observe_generations(&self, observe: impl Fn(u64) + Send + Sync + 'static) {
        let _ = self.shared.observer.0.set(Box::new(observe));
    }

    /// Number of replacements of trees and buffers since the store was opened. Snapshots of different generations are
    /// not [renewed](Store::renew).
    pub fn generation(&self) -> u64 {
        self.shared.generation.load(Ordering::Acquire)
    }

    /// Changes the durability of later commits. Switching to `Full` also makes all earlier commits durable, and blocks
    /// until they are. If that fails, later commits return [`Error::Poisoned`]. No effect if the store is open read-only.
    pub fn set_durability(&self, durability: Durability) {
        let shared = &self.shared;
        if shared.follower.is_some() {
            return;
        }
        {
            let commit = shared.commit.lock();
            shared.visibility.set_durability(&commit, durability, shared.visible());
            shared.log.set_durability(durability);
        }
        if durability == Durability::Full
            && let Err(error) = shared.log.sync()
        {
            tracing::error!(%error, "could not make earlier commits durable");
        }
    }

    /// The durability of later commits.
    pub fn durability(&self) -> Durability {
        self.shared.visibility.durability()
    }

    /// The current counters and sizes.
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
            bytes_loaded: self.shared.bytes_loaded.load(Ordering::Relaxed),
            checkpoints: self.shared.checkpoints.load(Ordering::Relaxed),
        }
    }

    /// The commits since the store was opened.
    pub fn commit_stats(&self) -> CommitStats {
        CommitStats { commits: self.shared.commits.snapshot(), stalls: self.shared.stalls.snapshot() }
    }

    /// Bytes of the data file used by a tree's extents; 0 if the tree does not exist.
    pub fn tree_bytes(&self, tree: TreeId) -> u64 {
        let state = self.shared.state.read().clone();
        let mut seen = std::collections::HashSet::new();
        let mut bytes = 0;
        if let Some(version) = state.trees.get(&tree) {
            version.visit_extents(&mut |extent| {
                if seen.insert(extent.meta.offset) {
                    bytes += extent.meta.len;
                }
            });
        }
        bytes
    }

    /// The options that the store was opened with, except for `page_bytes`, which is that of the database.
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

    /// A page source with blocking reads.
    pub fn blocking(&self) -> BlockingPages {
        BlockingPages { files: self.shared.files.clone() }
    }

    /// Verifies the bytes read for `page`, and inserts the page into the cache: with all its columns, or with those of
    /// `projection` if it is a page of a leaf and they take at most three quarters of it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the bytes are not those of the page.
    pub fn admit(
        &self,
        bytes: &[u8],
        page: PageRef,
        schema: &Arc<Schema>,
        priority: Priority,
        projection: Option<&Arc<Projection>>,
    ) -> Result<Arc<Page>> {
        self.shared.files.admit(bytes, page, schema, priority, projection)
    }

    /// The page from the cache; otherwise reads it with a blocking call and inserts it into the cache.
    ///
    /// # Errors
    /// Device errors, [`Error::Corrupt`].
    pub fn read_page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        self.shared.files.read_page(page, schema, priority)
    }
}

impl Shared {
    /// The newest sequence number that readers may see.
    pub fn visible(&self) -> u64 {
        let inserted = self.inserted.load(Ordering::Acquire);
        self.visibility.newest(inserted, &self.log)
    }

    /// Records that all messages of commit `sequence` are in the buffers.
    pub fn set_inserted(&self, _commit: &CommitToken, sequence: u64) {
        let before = self.inserted.swap(sequence, Ordering::Release);
        assert_eq!(before + 1, sequence, "sequence numbers of commits must be consecutive");
    }

    /// Makes all commits up to `sequence` visible.
    pub fn raise_floor(&self, sequence: u64) {
        self.visibility.raise(sequence);
    }

    pub fn snapshot(&self, sequence: impl Fn() -> u64) -> Snapshot {
        // A freeze needs the write lock, so the buffers of this state stay current while it is read-locked: they
        // contain all commits up to the sequence number read here.
        let state = self.state.read();
        let has_memory_trees = state.trees.last_key_value().is_some_and(|(&tree, _)| tree.is_memory());
        let registration = has_memory_trees.then(|| Arc::new(self.snapshots.enter(&sequence)));
        let sequence = registration.as_ref().map_or_else(&sequence, |registration| registration.sequence());
        let generation = self.generation.load(Ordering::Relaxed);
        let (state, locators) = (state.clone(), self.locators.clone());
        Snapshot { sequence, generation, state, locators, registration, own: None, reads: None }
    }

    /// Tells the observer the current generation. The caller holds no locks that readers need.
    pub fn tell_generation(&self) {
        if let Some(observe) = self.observer.0.get() {
            observe(self.generation.load(Ordering::Acquire));
        }
    }

    /// Replaces the current state.
    pub fn replace_state(&self, current: &mut Arc<StoreVersion>, state: StoreVersion) {
        *current = Arc::new(state);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Checks that neither the data file nor the log is poisoned; if one is, poisons both.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn check_poison(&self) -> Result<()> {
        let checked = self.files.check_writable().and_then(|()| self.log.check());
        if let Err(Error::Poisoned { cause }) = &checked {
            self.poison(cause);
        }
        checked
    }

    /// Disables all further writes to the data file and the log.
    pub fn poison(&self, cause: &str) {
        self.files.poison(cause);
        self.log.poison(cause);
    }

    /// Spreads the poison of the data file or the log after an error of a commit.
    pub fn checked<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            // Only for its effect; the error of the commit is more specific.
            let _ = self.check_poison();
        }
        result
    }
}

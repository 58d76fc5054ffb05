//! Background work: flushing buffers, checkpoints, bulk installs.
//!
//! A checkpoint is: freeze all buffers and cut the log (one moment); flush the frozen buffers into the trees; write the
//! metadata; sync; flip the superblock; then let go of the previous checkpoint, whose extents may be overwritten from
//! here on, and of the log before the cut. A crash before the flip finds the previous checkpoint and the whole log.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use keyaki_device::Buffer;

use crate::base::{Durability, Error, Result, TreeId};
use crate::engine::{Checkpointed, CommitToken, Loaded, LoadedRows, Shared, Store, apply, node_table};
use crate::log::LogPosition;
use crate::message::WriteBatch;
use crate::pages::{META_BYTES_MAX, Superblock};
use crate::tree::{Flusher, InnerNode, StoreVersion, TreeVersion};

/// How long the background thread rests after a failure, before it tries again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How often the background thread looks for what snapshots have held.
const COLLECT_INTERVAL: Duration = Duration::from_millis(100);

/// What the background thread is asked to do, and how it went.
#[derive(Debug, Default)]
pub(crate) struct Work {
    requested: bool,
    stop: bool,
    /// Attempts finished.
    attempts: u64,
    /// The last attempt's failure: no space left (others poison the store).
    failed: Option<Error>,
}

pub(crate) fn spawn(shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
    let shared = shared.clone();
    std::thread::Builder::new()
        .name("keyaki-flush".into())
        .spawn(move || shared.run_background())
        .map_err(|source| Error::StartThread { thread: "keyaki-flush", source: Arc::new(source) })
}

impl Store {
    /// Writes everything out and recycles the log.
    ///
    /// # Errors
    /// A full disk (nothing has changed then), `Poisoned`, device errors.
    pub fn checkpoint(&self) -> Result<()> {
        self.shared.checkpoint()
    }

    /// Makes bulk-loaded rows part of their trees, together with the changes of `batch` (applied before), and makes a
    /// checkpoint: all of it is durable on return, or none of it. Rows with a key that the tree has are replaced.
    ///
    /// # Errors
    /// As [`Store::commit`] and [`Store::checkpoint`]; [`Error::TreeMismatch`], [`Error::WrongTreeKind`] if rows
    /// were loaded for another tree, schema or store.
    pub fn install(&self, batch: WriteBatch, loaded: Vec<(TreeId, Loaded)>) -> Result<()> {
        self.shared.maintain(|| self.shared.install(&batch, loaded))
    }
}

impl Shared {
    /// Bytes in root buffers, active and frozen, of trees on disk.
    pub fn buffer_bytes(&self) -> usize {
        let state = self.state.read().clone();
        state.trees.range(..TreeId::MEMORY_START).map(|(_, version)| version.buffer_bytes()).sum()
    }

    /// Wakes the background thread if there is enough to do.
    pub fn request_work(&self) {
        let (log, buffers) = (self.options.checkpoint_log_bytes, self.options.buffer_bytes);
        if self.log.bytes() > log || self.buffer_bytes() > buffers || self.has_fresh_garbage() {
            self.ask_for_work(&mut self.work.lock());
        }
    }

    /// Wakes the background thread, unless somebody has: writers that wait would else wake each other without end.
    fn ask_for_work(&self, work: &mut Work) {
        if !std::mem::replace(&mut work.requested, true) {
            self.work_changed.notify_all();
        }
    }

    /// Holds a writer back while buffers are far over budget.
    ///
    /// # Errors
    /// What keeps them from being flushed.
    pub fn wait_for_room(&self) -> Result<()> {
        if self.buffer_bytes() <= 2 * self.options.buffer_bytes {
            return Ok(());
        }
        let mut work = self.work.lock();
        let attempt = work.attempts;
        while self.buffer_bytes() > 2 * self.options.buffer_bytes {
            self.ask_for_work(&mut work);
            self.work_changed.wait(&mut work);
            if work.attempts > attempt
                && let Some(error) = &work.failed
            {
                return Err(error.clone());
            }
            self.check_poison()?;
        }
        Ok(())
    }

    pub fn stop_background(&self) {
        self.work.lock().stop = true;
        self.work_changed.notify_all();
    }

    fn run_background(&self) {
        loop {
            {
                let mut work = self.work.lock();
                while !work.requested && !work.stop {
                    if !self.has_garbage() {
                        self.work_changed.wait(&mut work);
                    } else if self.work_changed.wait_for(&mut work, COLLECT_INTERVAL).timed_out() {
                        // The snapshots that held it may be gone.
                        break;
                    }
                }
                if work.stop {
                    return;
                }
                work.requested = false;
            }
            self.collect_garbage();
            let result = if self.log.bytes() > self.options.checkpoint_log_bytes {
                self.checkpoint()
            } else if self.buffer_bytes() > self.options.buffer_bytes {
                self.flush_buffers()
            } else {
                Ok(())
            };
            if let Err(error) = &result {
                tracing::warn!(%error, "flushing failed");
            }
            let mut work = self.work.lock();
            work.attempts += 1;
            work.failed = result.err();
            self.work_changed.notify_all();
            // Every commit asks again, but what is the matter will hardly be over at once.
            let rested = Instant::now() + RETRY_INTERVAL;
            while work.failed.is_some() && !work.stop && Instant::now() < rested {
                self.work_changed.wait_until(&mut work, rested);
            }
        }
    }

    /// Runs a structural change. A failed write stops the log too; a panic stops everything, so that nobody waits for
    /// what will never come.
    fn maintain<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        struct Unfinished<'a>(&'a Shared);
        impl Drop for Unfinished<'_> {
            fn drop(&mut self) {
                self.0.poison("a flush or checkpoint panicked");
                self.0.work_changed.notify_all();
            }
        }
        let unfinished = Unfinished(self);
        let result = change();
        std::mem::forget(unfinished);
        if result.is_err() {
            // The error at hand says more than what this may say.
            let _ = self.check_poison();
        }
        result
    }

    /// Puts fresh buffers in the place of those that have messages.
    fn freeze(&self, _commit: &CommitToken) -> Arc<StoreVersion> {
        let mut current = self.state.write();
        let mut state = StoreVersion::clone(&current);
        let trees = state.trees.range_mut(..TreeId::MEMORY_START).map(|(_, version)| version);
        for version in trees.filter(|version| !version.active.is_empty()) {
            let mut frozen = vec![version.active.clone()];
            frozen.extend_from_slice(&version.frozen);
            let (codecs, root) = (version.codecs.clone(), version.root.clone());
            *version = Arc::new(TreeVersion { codecs, root, frozen, active: Arc::default() });
        }
        *current = Arc::new(state);
        current.clone()
    }

    fn flusher<'a>(&'a self, tree: TreeId, version: &'a TreeVersion) -> Flusher<'a> {
        Flusher { tree, codecs: &version.codecs, files: &self.files, options: &self.options }
    }

    /// Flushes the frozen buffers of `frozen` and publishes the new trees; returns them, without any buffers (and without memory
    /// trees). `_checkpointed` is what the maintenance lock guards.
    fn flush(&self, _checkpointed: &Checkpointed, frozen: &StoreVersion) -> Result<StoreVersion> {
        if self.durability.lock().durability != Durability::Off {
            // Runs are visible to every snapshot: what is in them must be acknowledged, or about to be.
            self.log.sync()?;
        }
        let mut flushed = StoreVersion::default();
        for (&tree, version) in frozen.trees.range(..TreeId::MEMORY_START) {
            let root = if version.frozen.is_empty() {
                version.root.clone()
            } else {
                let flusher = self.flusher(tree, version);
                let mut root = InnerNode::clone(&version.root);
                for buffer in version.frozen.iter().rev() {
                    self.bytes_flushed.fetch_add(buffer.bytes() as u64, Ordering::Relaxed);
                    root = flusher.flush_buffer(&root, buffer)?;
                }
                let root = Arc::new(root);
                self.publish(tree, version, &root);
                self.leaves_changed();
                root
            };
            flushed.trees.insert(tree, Arc::new(TreeVersion::new(version.codecs.clone(), root)));
        }
        Ok(flushed)
    }

    /// Makes `root`, which has all messages of the version that was frozen, the tree's current one, if it still is that
    /// tree: it may have been dropped meanwhile, and another one created under its id.
    fn publish(&self, tree: TreeId, frozen: &TreeVersion, root: &Arc<InnerNode>) {
        let mut current = self.state.write();
        let mut state = StoreVersion::clone(&current);
        let version = state.trees.get_mut(&tree);
        if let Some(version) = version.filter(|version| Arc::ptr_eq(&version.codecs, &frozen.codecs)) {
            let (codecs, active) = (version.codecs.clone(), version.active.clone());
            *version = Arc::new(TreeVersion { codecs, root: root.clone(), frozen: Vec::new(), active });
            *current = Arc::new(state);
        }
    }

    fn flush_buffers(&self) -> Result<()> {
        self.maintain(|| {
            let checkpointed = self.maintenance.lock();
            self.check_poison()?;
            let frozen = {
                let commit = self.commit.lock();
                self.freeze(&commit)
            };
            self.flush(&checkpointed, &frozen).map(drop)
        })
    }

    pub fn checkpoint(&self) -> Result<()> {
        self.maintain(|| self.make_checkpoint())
    }

    fn make_checkpoint(&self) -> Result<()> {
        let mut checkpointed = self.maintenance.lock();
        self.check_poison()?;
        let (frozen, sequence, position) = {
            let commit = self.commit.lock();
            let sequence = self.inserted.load(Ordering::Relaxed);
            if sequence == checkpointed.sequence {
                return Ok(());
            }
            (self.freeze(&commit), sequence, self.log.cut()?)
        };
        let state = self.flush(&checkpointed, &frozen)?;
        self.write_checkpoint(&mut checkpointed, state, sequence, position)
    }

    /// Writes metadata and superblock for `state`, which holds all commits up to `sequence`.
    fn write_checkpoint(
        &self,
        checkpointed: &mut Checkpointed,
        state: StoreVersion,
        sequence: u64,
        log: LogPosition,
    ) -> Result<()> {
        assert!(sequence > checkpointed.sequence, "checkpoint of {sequence} after {}", checkpointed.sequence);
        let files = &self.files;
        let bytes = node_table::encode(&state, TreeId::new(self.next_tree.load(Ordering::Relaxed)));
        if bytes.len() as u64 > META_BYTES_MAX {
            let (what, bytes, limit) = ("node table", bytes.len() as u64, META_BYTES_MAX);
            return Err(Error::TooLarge { what, bytes, limit });
        }
        let mut buffer = Buffer::zeroed(bytes.len().next_multiple_of(4096));
        buffer[..bytes.len()].copy_from_slice(&bytes);
        let place = (files.allocate(buffer.len() as u64)?, buffer.len() as u64);
        let superblock = Superblock {
            generation: checkpointed.generation + 1,
            sequence,
            log,
            meta_offset: place.0,
            meta_len: bytes.len() as u64,
            meta_hash: xxhash_rust::xxh3::xxh3_64(&bytes),
            page_bytes: files.page_bytes,
        };
        let written = files.write_at(place.0, &buffer).and_then(|()| files.sync());
        if let Err(error) = written {
            files.space.free(place.0, place.1);
            return Err(error);
        }
        let state = Arc::new(state);
        // From here on the medium may have the new superblock or the old one: a failure must stop everything, and what
        // either refers to must stay.
        if let Err(error) = superblock.write(&*files.data) {
            self.poison(&error.to_string());
            checkpointed.doubtful = Some(state);
            return Err(error);
        }
        let generation = superblock.generation;
        let new = Checkpointed { generation, sequence, meta: place, state, doubtful: None };
        let old = std::mem::replace(checkpointed, new);
        files.space.free(old.meta.0, old.meta.1);
        drop(old);
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        // Neither is needed for anything but space.
        for result in [self.log.remove_before(log), files.space.trim()] {
            if let Err(error) = result {
                tracing::warn!(%error, "cannot give space back after a checkpoint");
            }
        }
        Ok(())
    }

    fn install(&self, batch: &WriteBatch, loaded: Vec<(TreeId, Loaded)>) -> Result<()> {
        batch.check()?;
        let mut checkpointed = self.maintenance.lock();
        self.check_poison()?;
        // Most of what is buffered is flushed while commits go on; what comes in meanwhile, while they wait.
        let frozen = {
            let commit = self.commit.lock();
            self.freeze(&commit)
        };
        self.flush(&checkpointed, &frozen)?;
        let commit = self.commit.lock();
        let mut next = Cow::Owned(self.flush(&checkpointed, &self.freeze(&commit))?);
        let current = self.state.read().clone();
        self.check_batch(&current, batch)?;
        let sequence = self.inserted.load(Ordering::Relaxed) + 1;
        apply(&mut next, sequence, &batch.bytes)?;
        let mut next = next.into_owned();
        for (&tree, version) in &mut next.trees {
            if !version.active.is_empty() {
                let root = self.flusher(tree, version).flush_buffer(&version.root, &version.active)?;
                *version = Arc::new(TreeVersion::new(version.codecs.clone(), Arc::new(root)));
            }
        }
        let (built, loaded) = loaded.into_iter().partition::<Vec<_>, _>(|(tree, _)| tree.is_memory());
        let built = self.check_built(&current, batch, built)?;
        for (tree, loaded) in loaded {
            let version = next.trees.get_mut(&tree).ok_or(Error::TreeNotFound(tree))?;
            if let LoadedRows::Extents(extents) = loaded.into_rows(tree, &version.codecs.schema, &self.files)? {
                let root = self.flusher(tree, version).add_loaded(&version.root, extents)?;
                *version = Arc::new(TreeVersion::new(version.codecs.clone(), Arc::new(root)));
            }
        }
        // The log needs a record for the number; it says nothing, so that a crash before the flip leaves no trace.
        self.log.append(sequence, &[])?;
        let durable = self
            .log
            .cut()
            .and_then(|position| self.write_checkpoint(&mut checkpointed, next.clone(), sequence, position));
        for version in next.trees.values_mut() {
            // The checkpoint's versions must never get messages.
            *version = Arc::new(TreeVersion::new(version.codecs.clone(), version.root.clone()));
        }
        let mut state = self.state.write();
        if durable.is_ok() {
            next.trees.extend(self.install_built(&commit, &current, sequence, batch, built)?.trees);
            *state = Arc::new(next);
            self.leaves_changed();
        }
        self.set_inserted(&commit, sequence);
        if durable.is_ok() {
            // The checkpoint has everything, whatever the log still has to write.
            self.raise_floor(sequence);
        }
        durable
    }
}

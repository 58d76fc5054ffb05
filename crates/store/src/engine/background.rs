//! Background work: flushes, checkpoints, garbage collection in memory trees, installation of bulk loads.
//!
//! A checkpoint has these steps:
//! 1. under the commit lock, freeze all buffers and cut the log;
//! 2. flush the frozen buffers into the trees;
//! 3. write the node table, and sync the data file;
//! 4. write and sync the superblock;
//! 5. release the previous checkpoint, whose extents may be overwritten from then on, and remove the log before the cut.
//!
//! A tree that a flush finds damaged is quarantined: its buffers become runs of its root, for which nothing of the tree
//! is read, so that neither the other trees nor checkpoints need to wait, and no committed change is lost. From then on
//! it accepts no changes but to be dropped.
//!
//! The space for a checkpoint on a full disk, and the return of freed space, are the subject of
//! [`reserve`](super::reserve).
//!
//! *Invariants.* A crash before step 4 finds the previous checkpoint and the complete log. Messages reach the medium in
//! runs only after their log records are durable, unless the durability is `Off`. After a failed superblock write, the
//! store is poisoned and both checkpoints keep their extents.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use keyaki_device::Buffer;
use keyaki_primitives::sync::thread::{Builder, JoinHandle};

use crate::base::{Error, Result, TreeId};
use crate::engine::node_table::Trained;
use crate::engine::{Checkpointed, CommitToken, Loaded, LoadedRows, Shared, Store, apply, node_table};
use crate::log::{LogPosition, LogReserve};
use crate::message::WriteBatch;
use crate::pages::{Kept, NODE_TABLE_BYTES_MAX, Superblock};
use crate::tree::{Delta, InnerNode, RowCounts, Run, SampledMessages, StoreVersion, TreeVersion};

/// Time that the background thread waits after a failure before it retries.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of garbage collection while dirty keys remain, for example because of live snapshots.
const COLLECT_INTERVAL: Duration = Duration::from_millis(100);

/// The messages of a transaction to one tree, as runs in the data file.
#[derive(Debug)]
pub(crate) struct Spilled<'a> {
    /// Newest first.
    pub runs: Vec<Run>,
    /// Change of the number of rows.
    pub delta: Delta,
    /// The bounds of numbers in the tree with the messages; `None` if they do not change.
    pub bounds: Option<Vec<u64>>,
    /// For a sampled tree.
    pub sample: Option<&'a SampledMessages>,
}

/// Requests to the background thread, and the result of its last attempt.
#[derive(Debug, Default)]
pub(crate) struct Work {
    requested: bool,
    /// A commit has freed space on a full disk, which a checkpoint returns.
    pub reclaim: bool,
    stop: bool,
    /// The background thread has ended, because of `stop` or by a panic.
    ended: bool,
    /// Number of finished attempts.
    attempts: u64,
    /// The error of the last attempt that did not poison the store, such as a full disk or a failing upsert function.
    failed: Option<Error>,
}

pub(crate) fn spawn(shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
    let shared = shared.clone();
    Builder::new()
        .name("keyaki-flush".into())
        .spawn(move || shared.run_background())
        .map_err(|source| Error::StartThread { thread: "keyaki-flush", source: Arc::new(source) })
}

impl Store {
    /// Writes a checkpoint: all commits are in the data file afterwards, and the log before the checkpoint is removed.
    /// Returns at once if there was no commit since the last checkpoint. Blocks.
    ///
    /// # Errors
    /// [`Error::DiskFull`] (the call may be repeated), [`Error::Upsert`], [`Error::TooLarge`] for the node table,
    /// [`Error::Corrupt`], [`Error::Poisoned`], [`Error::Closed`], device errors.
    pub fn checkpoint(&self) -> Result<()> {
        self.shared.checkpoint()
    }

    /// Adds bulk-loaded rows to their trees, after the changes of `batch`, in one atomic commit, and writes a
    /// checkpoint. All changes are durable on return. Loaded rows replace existing rows with the same key.
    ///
    /// # Errors
    /// Those of [`Store::commit`] and [`Store::checkpoint`]; [`Error::TreeMismatch`], [`Error::WrongTreeKind`] if rows
    /// were loaded for another tree, schema or store.
    pub fn install(&self, batch: WriteBatch, loaded: Vec<(TreeId, Loaded)>) -> Result<()> {
        self.shared.run_structural_change(|| self.shared.install(&batch, loaded, |_| Ok(Vec::new()))).map(drop)
    }
}

impl Shared {
    /// Bytes in root buffers, active and frozen, of trees on disk.
    pub fn buffer_bytes(&self) -> usize {
        let state = self.state.read().clone();
        state.trees.range(..TreeId::MEMORY_START).map(|(_, version)| version.buffer_bytes()).sum()
    }

    /// Wakes the background thread if the log, the buffers or the garbage exceed their limits.
    pub fn request_work(&self) {
        let (log, buffers) = (self.options.checkpoint_log_bytes, self.options.buffer_bytes);
        if self.log.bytes() > log || self.buffer_bytes() > buffers || self.has_fresh_garbage() {
            self.ask_for_work(&mut self.work.lock());
        }
    }

    /// Wakes the background thread unless a request is pending. The check keeps waiting writers, which share the
    /// condition variable, from waking each other endlessly.
    pub fn ask_for_work(&self, work: &mut Work) {
        if !std::mem::replace(&mut work.requested, true) {
            self.work_changed.notify_all();
        }
    }

    /// Blocks while the buffers exceed twice their budget.
    ///
    /// # Errors
    /// The error of a failed flush; [`Error::Poisoned`], [`Error::Closed`].
    pub fn wait_for_flush(&self) -> Result<()> {
        let mut work = self.work.lock();
        let attempt = work.attempts;
        while self.buffer_bytes() > 2 * self.options.buffer_bytes {
            // Before each wait: after the end of the thread, or after the poison, no flush follows.
            self.check_poison()?;
            if work.ended || work.stop {
                return Err(Error::Closed);
            }
            self.ask_for_work(&mut work);
            self.work_changed.wait(&mut work);
            if work.attempts > attempt
                && self.buffer_bytes() > 2 * self.options.buffer_bytes
                && let Some(error) = &work.failed
            {
                return Err(error.clone());
            }
        }
        Ok(())
    }

    /// Poisons the store after a panic, and wakes the writers that wait for a flush, which may never complete.
    fn poison_after_panic(&self, cause: &str) {
        self.poison(cause);
        // A writer between its check of the poison and its wait holds the mutex: the notification follows its wait.
        drop(self.work.lock());
        self.work_changed.notify_all();
    }

    pub fn stop_background(&self) {
        self.work.lock().stop = true;
        self.work_changed.notify_all();
    }

    fn run_background(&self) {
        /// Keeps writers from waiting for a thread that has ended. If it ends by a panic, for example of garbage
        /// collection, the store is poisoned: nothing can be flushed any more.
        struct Ended<'a>(&'a Shared);
        impl Drop for Ended<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.poison("the background thread panicked");
                }
                self.0.work.lock().ended = true;
                self.0.work_changed.notify_all();
            }
        }
        let _ended = Ended(self);
        // The flush helpers inherit it. Writers that wait for room leave the processors to the flush.
        keyaki_primitives::enter_background();
        loop {
            let reclaims = {
                let mut work = self.work.lock();
                while !work.requested && !work.stop {
                    if !self.has_garbage() {
                        self.work_changed.wait(&mut work);
                    } else if self.work_changed.wait_for(&mut work, COLLECT_INTERVAL).timed_out() {
                        // Snapshots that kept garbage alive may have ended.
                        break;
                    }
                }
                if work.stop {
                    return;
                }
                work.requested = false;
                std::mem::take(&mut work.reclaim)
            };
            self.drop_released();
            self.collect_garbage();
            let has_much = self.buffer_bytes() > self.options.buffer_bytes;
            let result = if reclaims || (has_much && self.files.space.is_full()) {
                self.make_space()
            } else if self.log.bytes() > self.options.checkpoint_log_bytes
                // Readers of other processes keep the messages of the log in memory.
                || (has_much && (self.has_readers() || self.files.space.needs_checkpoint()))
            {
                self.checkpoint()
            } else if has_much {
                self.flush_buffers()
            } else {
                Ok(())
            };
            if let Err(error) = &result {
                tracing::warn!(%error, "could not flush buffers");
            }
            self.tell_generation();
            let mut work = self.work.lock();
            work.attempts += 1;
            work.failed = result.err();
            self.work_changed.notify_all();
            // Back off: the failure is unlikely to clear immediately, and every commit sends a new request.
            let rested = Instant::now() + RETRY_INTERVAL;
            while work.failed.is_some() && !work.stop && Instant::now() < rested {
                self.work_changed.wait_until(&mut work, rested);
            }
        }
    }

    /// Runs a structural change. A failed write of the data file also poisons the log. A panic poisons the store, so
    /// that no writer waits for a flush that never completes.
    pub fn run_structural_change<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        struct Unfinished<'a>(&'a Shared);
        impl Drop for Unfinished<'_> {
            fn drop(&mut self) {
                self.0.poison_after_panic("a flush or checkpoint panicked");
            }
        }
        self.drop_released();
        let unfinished = Unfinished(self);
        let result = change();
        std::mem::forget(unfinished);
        if result.is_err() {
            // Only for its effect; the error of the change is more specific.
            let _ = self.check_poison();
        }
        self.tell_generation();
        result
    }

    /// Replaces all non-empty active buffers of trees on disk by empty ones. Returns the new state, which contains the
    /// frozen buffers.
    fn freeze(&self, _commit: &CommitToken) -> Arc<StoreVersion> {
        let mut current = self.state.write();
        let mut state = StoreVersion::clone(&current);
        let trees = state.trees.range_mut(..TreeId::MEMORY_START).map(|(_, version)| version);
        for version in trees.filter(|version| !version.active.is_empty()) {
            let mut frozen = vec![version.active.clone()];
            frozen.extend_from_slice(&version.frozen);
            *version = Arc::new(TreeVersion { frozen, active: Arc::default(), ..TreeVersion::clone(version) });
        }
        self.replace_state(&mut current, state);
        current.clone()
    }

    fn flush_buffers(&self) -> Result<()> {
        self.run_structural_change(|| {
            let checkpointed = self.maintenance.lock();
            self.flush_now(&checkpointed)
        })
    }

    /// Flushes all buffers of trees on disk. As long as the maintenance lock is held, of which `checkpointed` is the
    /// proof, there are no frozen buffers afterwards.
    ///
    /// # Errors
    /// [`Error::Poisoned`], those of [`Flusher::flush_buffer`], and errors of syncing the log.
    pub fn flush_now(&self, checkpointed: &Checkpointed) -> Result<()> {
        self.check_poison()?;
        let frozen = {
            let commit = self.commit.lock();
            self.freeze(&commit)
        };
        self.flush(checkpointed, &frozen).map(drop)
    }

    /// The id of the next tree on disk.
    pub fn next_tree(&self) -> TreeId {
        TreeId::new(self.next_tree.load(Ordering::Relaxed))
    }

    pub fn checkpoint(&self) -> Result<()> {
        self.run_structural_change(|| self.make_checkpoint(false))
    }

    /// See [`Store::checkpoint`]. With `again`, also writes one without a commit since the last.
    pub fn make_checkpoint(&self, again: bool) -> Result<()> {
        self.advance_checkpoint(&mut self.maintenance.lock(), again)
    }

    /// Replaces the checkpoint, which the caller has locked, by one with all commits so far. Without a commit since the
    /// last one, only with `again`.
    pub fn advance_checkpoint(&self, checkpointed: &mut Checkpointed, again: bool) -> Result<()> {
        self.check_poison()?;
        self.release_pins(checkpointed);
        let (frozen, sequence, position) = {
            let commit = self.commit.lock();
            let sequence = self.inserted.load(Ordering::Relaxed);
            if sequence == checkpointed.sequence && !again {
                return Ok(());
            }
            let frozen = self.freeze(&commit);
            let rows: Vec<Option<u64>> = frozen.trees.values().map(|version| version.counts.newest()).collect();
            ((frozen, rows), sequence, self.log.cut()?)
        };
        let (frozen, rows) = frozen;
        let mut state = self.flush(checkpointed, &frozen)?;
        // Trees on disk come first.
        for (version, rows) in state.trees.values_mut().zip(rows) {
            let rows = rows.or_else(|| {
                let rows = version.root.is_settled().then(|| version.root.rows())?;
                version.counts.settle(sequence, rows);
                Some(rows)
            });
            *version = Arc::new(version.with_counts(RowCounts::new(sequence, rows)));
        }
        self.write_checkpoint(checkpointed, state, sequence, position, Trained::All)?;
        self.remove_log_before(position);
        Ok(())
    }

    /// Removes the log before the newest checkpoint. A failure does not matter to the checkpoint.
    fn remove_log_before(&self, position: LogPosition) {
        if let Err(error) = self.log.remove_before(position) {
            tracing::warn!(%error, "could not remove the log before a checkpoint");
        }
    }

    /// Writes the node table and the superblock for `state`, which contains all commits up to `sequence`.
    ///
    /// # Errors
    /// [`Error::TooLarge`] for the node table; [`Error::DiskFull`]; device errors. An error of writing the superblock
    /// poisons the store.
    pub fn write_checkpoint(
        &self,
        checkpointed: &mut Checkpointed,
        state: StoreVersion,
        sequence: u64,
        log: LogPosition,
        trained: Trained,
    ) -> Result<()> {
        assert!(
            sequence >= checkpointed.sequence,
            "checkpoint at {sequence} follows a checkpoint at {}",
            checkpointed.sequence
        );
        let files = &self.files;
        let next_tree = self.next_tree();
        let bytes = node_table::encode(&state, next_tree, &files.dictionaries, trained);
        if bytes.len() as u64 > NODE_TABLE_BYTES_MAX {
            let (what, bytes, limit) = ("node table", bytes.len() as u64, NODE_TABLE_BYTES_MAX);
            return Err(Error::TooLarge { what, bytes, limit });
        }
        let mut buffer = Buffer::zeroed(bytes.len().next_multiple_of(4096));
        buffer[..bytes.len()].copy_from_slice(&bytes);
        let len = buffer.len() as u64;
        let place = self.place_table(checkpointed, len)?;
        let superblock = Superblock {
            generation: checkpointed.pinned.next_generation(checkpointed.generation),
            sequence,
            log,
            node_table_offset: place.0,
            node_table_len: bytes.len() as u64,
            node_table_hash: xxhash_rust::xxh3::xxh3_64(&bytes),
            page_bytes: files.page_bytes,
            database_id: self.database_id,
        };
        let written = files.write_at(place.0, &buffer).and_then(|()| files.sync());
        if let Err(error) = written {
            self.set_table_aside(checkpointed, place, len);
            return Err(error);
        }
        let state = Arc::new(state);
        // After a failed write, the medium may have the old superblock or the new one. Stop all writes, and keep the
        // extents of both checkpoints.
        if let Err(error) = superblock.write(&*files.data) {
            self.poison(&error.to_string());
            checkpointed.doubtful = Some(state);
            return Err(error);
        }
        let generation = superblock.generation;
        let (spare_table, pinned) = (checkpointed.spare_table, std::mem::take(&mut checkpointed.pinned));
        let new = Checkpointed { generation, sequence, log, meta: place, spare_table, state, pinned, doubtful: None };
        let old = std::mem::replace(checkpointed, new);
        // After the superblock was written: readers that have not pinned the old checkpoint by now use the new one.
        self.retire(checkpointed, old, len);
        let spare_bytes = checkpointed.spare_table.map_or(0, |spare| spare.1);
        files.space.set_spare_bytes(spare_bytes + place.1 - len);
        self.checkpoints.fetch_add(1, Ordering::Relaxed);
        // Their extents are free.
        self.drop_released();
        if trained == Trained::All {
            files.dictionaries.set_stored();
        }
        files.dictionaries.retain(|tree| checkpointed.state.trees.contains_key(&tree));
        // A failure does not matter to the checkpoint.
        if let Err(error) = files.trim(Kept::Growth).and_then(|()| files.top_up()) {
            tracing::warn!(%error, "could not adapt the length of the data file after a checkpoint");
        }
        Ok(())
    }

    /// Commits a batch and what is already in the data file by a checkpoint: loaded rows, and messages of a
    /// transaction. Under the commit lock, `admit` decides on the current state whether they may commit, and returns
    /// the messages, which are newer than all others. Returns the sequence number of the commit.
    ///
    /// # Errors
    /// Those of [`Store::install`] and of `admit`.
    pub fn install<'a>(
        &self,
        batch: &WriteBatch,
        loaded: Vec<(TreeId, Loaded)>,
        admit: impl FnOnce(&StoreVersion) -> Result<Vec<(TreeId, Spilled<'a>)>>,
    ) -> Result<u64> {
        batch.check()?;
        let mut checkpointed = self.maintenance.lock();
        self.check_poison()?;
        // The first flush runs beside commits. The second one, under the commit lock, has only the messages since then.
        let frozen = {
            let commit = self.commit.lock();
            self.freeze(&commit)
        };
        self.flush(&checkpointed, &frozen)?;
        let commit = self.commit.lock();
        let mut next = self.flush(&checkpointed, &self.freeze(&commit))?;
        let current = self.state.read().clone();
        self.check_commit(&current, batch)?;
        let spilled = admit(&current)?;
        let sequence = self.inserted.load(Ordering::Relaxed) + 1;
        for version in next.trees.values_mut() {
            // If the installation fails, the current counts remain as they are.
            *version = Arc::new(version.with_counts(RowCounts::new(sequence - 1, version.counts.newest())));
        }
        let mut next = Cow::Owned(next);
        apply(&mut next, sequence, &batch.bytes)?;
        let mut next = next.into_owned();
        for (&tree, version) in &mut next.trees {
            if !version.active.is_empty() {
                let flusher = self.flusher(tree, version);
                let (root, sample) = flusher.flush_buffer(&version.root, version.sample.as_ref(), &version.active)?;
                *version = Arc::new(version.with_root(Arc::new(root), sample));
            }
        }
        let mut touched: Vec<TreeId> = loaded.iter().map(|(tree, _)| *tree).collect();
        let with_runs: Vec<TreeId> = spilled.iter().map(|(tree, _)| *tree).collect();
        touched.extend(&with_runs);
        batch.visit_messages(|tree, _| {
            if touched.last() != Some(&tree) {
                touched.push(tree);
            }
        })?;
        touched.sort_unstable();
        touched.dedup();
        let (built, loaded) = loaded.into_iter().partition::<Vec<_>, _>(|(tree, _)| tree.is_memory());
        let built = self.check_built(&current, batch, built)?;
        let mut bytes_loaded = batch.bytes.len() as u64;
        for (tree, loaded) in loaded {
            let version = next.trees.get_mut(&tree).ok_or(Error::TreeNotFound(tree))?;
            version.check_intact(tree)?;
            let (rows, has_new_keys) = (loaded.rows(), loaded.has_new_keys());
            let (loaded, of_loaded) = loaded.take_sample();
            // Harmless if the installation fails: bounds may be too large.
            let bounds = loaded.bounds().to_vec();
            if let LoadedRows::Extents(extents) = loaded.into_rows(tree, &version.codecs.schema, &self.files)? {
                bytes_loaded += extents.iter().map(|extent| extent.meta.len).sum::<u64>();
                version.bounds.raise_to(&bounds);
                let was_empty = version.counts.newest() == Some(0);
                let flusher = self.flusher(tree, version);
                let (root, is_between) = flusher.add_loaded(&version.root, extents)?;
                let old = (&*version.root, version.sample.as_ref());
                let sample = match of_loaded {
                    Some(of_loaded) => flusher.unless_damaged(flusher.sample_loaded(old, of_loaded, &root))?,
                    None => None,
                };
                let counts = if root.is_settled() {
                    RowCounts::new(sequence, Some(root.rows()))
                } else {
                    let is_exact = was_empty || is_between || has_new_keys;
                    version.counts.add(sequence, is_exact.then_some(rows as i64));
                    version.counts.clone()
                };
                *version = Arc::new(version.with_root(Arc::new(root), sample).with_counts(counts));
            }
        }
        for (tree, spilled) in spilled {
            let version = next.trees.get_mut(&tree).ok_or(Error::TreeNotFound(tree))?;
            version.check_intact(tree)?;
            if let Some(bounds) = &spilled.bounds {
                version.bounds.raise_to(bounds);
            }
            version.counts.add(sequence, spilled.delta);
            bytes_loaded += spilled.runs.iter().map(Run::bytes).sum::<u64>();
            let mut root = InnerNode::clone(&version.root);
            root.runs.splice(0..0, spilled.runs);
            let flusher = self.flusher(tree, version);
            let old = (&*version.root, version.sample.as_ref());
            let sample = match spilled.sample {
                Some(messages) => flusher.unless_damaged(flusher.sample_spilled(old, messages, &root))?,
                None => None,
            };
            *version = Arc::new(version.with_root(Arc::new(root), sample));
        }
        // The log requires a record for each sequence number. The record is empty: a crash before the superblock is
        // written undoes the whole installation.
        if !self.files.space.is_small() {
            self.log.lengthen()?;
        }
        self.log.append(sequence, &[], LogReserve::Keep)?;
        let durable = self.log.cut().and_then(|position| {
            self.write_checkpoint(&mut checkpointed, next.clone(), sequence, position, Trained::All)?;
            self.remove_log_before(position);
            Ok(())
        });
        for version in next.trees.values_mut() {
            // New active buffers, so that the checkpoint does not keep messages of later commits in memory.
            *version = Arc::new(version.without_buffers());
        }
        if durable.is_ok() {
            self.transactions.replaced(touched, sequence, self.visible());
        }
        let mut state = self.state.write();
        if durable.is_ok() {
            next.trees.extend(self.install_built(&commit, &current, sequence, batch, built)?.trees);
            self.replace_state(&mut state, next);
            self.leaves_changed();
        }
        self.set_inserted(&commit, sequence);
        if durable.is_ok() {
            self.bytes_loaded.fetch_add(bytes_loaded, Ordering::Relaxed);
            // The checkpoint makes the commit durable, whether or not the log record is.
            self.raise_floor(sequence);
        }
        drop((state, commit));
        durable?;
        for tree in with_runs {
            // Other commits need not wait for this. The next flush tries again.
            if let Err(error) = self.settle(&checkpointed, tree) {
                tracing::warn!(%error, "could not move the messages of a transaction to leaves");
            }
        }
        Ok(sequence)
    }

    /// Moves messages of the root of a tree down, as far as its budget requires. `_checkpointed` proves that the
    /// maintenance lock is held.
    fn settle(&self, _checkpointed: &Checkpointed, tree: TreeId) -> Result<()> {
        let Some(version) = self.state.read().trees.get(&tree).cloned() else { return Ok(()) };
        version.check_intact(tree)?;
        let root = self.flusher(tree, &version).settle_root(InnerNode::clone(&version.root))?;
        self.publish(tree, &version, &version.with_root(Arc::new(root), version.sample.clone()));
        self.leaves_changed();
        Ok(())
    }
}

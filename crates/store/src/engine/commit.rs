//! Commits: checks of a batch, its record in the log, and its messages in the active buffers. The module of the
//! [store](super::store) describes the order of the locks.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use keyaki_primitives::sync::atomic::Ordering;

use crate::base::{Error, Result, Schema, TreeKind};
use crate::engine::{BatchContents, Shared, Submitted, apply, check};
use crate::log::LogReserve;
use crate::message::WriteBatch;
use crate::tree::{BatchBounds, StoreVersion};

impl Shared {
    /// See [`Store::pending`].
    pub fn pending(self: &Arc<Self>) -> Submitted {
        let logged = self.logged.load(Ordering::Acquire);
        Submitted::through(self, logged)
    }

    /// See [`Store::submit`]. Under the commit lock, `check` decides on the current state whether the batch may commit.
    pub fn submit(
        self: &Arc<Self>,
        batch: &WriteBatch,
        check: impl Fn(&StoreVersion) -> Result<()>,
    ) -> Result<Submitted> {
        let (generation, started) = (self.generation.load(Ordering::Acquire), Instant::now());
        let mut submitted = self.try_submit(batch, &check, LogReserve::Keep);
        if matches!(submitted, Err(Error::DiskFull { .. })) {
            submitted = self.submit_on_full_disk(batch, &check);
        }
        let submitted = self.checked(submitted);
        if self.generation.load(Ordering::Acquire) != generation {
            // The batch has created or dropped trees.
            self.tell_generation();
        }
        let (sequence, logged) = submitted?;
        self.commits.start(batch.bytes.len());
        Ok(Submitted::new(self, sequence, logged, started))
    }

    /// Applies a batch. Returns its sequence number, and the newest logged one. With [`LogReserve::Keep`], the batch is
    /// refused if the disk is full.
    pub fn try_submit(
        &self,
        batch: &WriteBatch,
        check: impl Fn(&StoreVersion) -> Result<()>,
        log: LogReserve,
    ) -> Result<(u64, u64)> {
        batch.check()?;
        self.check_poison()?;
        if !batch.bytes.is_empty() {
            self.wait_for_room(batch)?;
        }
        let needs_room = log == LogReserve::Keep && !batch.bytes.is_empty();
        // Commits to a small file take turns, so that each regards the others.
        let has_room = needs_room && !self.files.space.is_small();
        if has_room {
            self.make_room(batch)?;
        }
        // Dropped after the commit lock is released: freeing the extents of a dropped tree may take long.
        let (state, generation);
        let (sequence, logged, changes_trees) = {
            let commit = self.commit.lock();
            (state, generation) = {
                let current = self.state.read();
                (current.clone(), self.generation.load(Ordering::Relaxed))
            };
            check(&state)?;
            let changes_trees = self.check_commit(&state, batch)?;
            if needs_room && (!has_room || self.files.space.is_small()) {
                self.make_room(batch)?;
            } else if needs_room {
                // Another commit may have made the database small, and large again.
                self.log.lengthen()?;
            }
            let sequence = self.inserted.load(Ordering::Relaxed) + 1;
            // A commit to memory trees only has a sequence number, but no bytes for the log.
            self.log.append(sequence, &batch.bytes, log)?;
            if !batch.bytes.is_empty() {
                self.logged.store(sequence, Ordering::Release);
            }
            let logged = self.logged.load(Ordering::Relaxed);
            if changes_trees {
                // The set of trees has no versions by sequence number, so it changes only once the commit is durable.
                // Such commits are rare, so other commits may wait.
                self.log.commit(logged)?;
                let mut current = self.state.write();
                let mut changed = Cow::Borrowed(&**current);
                apply(&mut changed, sequence, &batch.bytes)?;
                self.apply_in_memory(&commit, &mut changed, sequence, batch)?;
                let changed = changed.into_owned();
                self.replace_state(&mut current, changed);
                self.set_inserted(&commit, sequence);
            } else {
                let mut state = Cow::Borrowed(&*state);
                apply(&mut state, sequence, &batch.bytes)?;
                self.apply_in_memory(&commit, &mut state, sequence, batch)?;
                self.set_inserted(&commit, sequence);
            }
            (sequence, logged, changes_trees)
        };
        if !changes_trees && self.generation.load(Ordering::Acquire) != generation {
            self.release(state);
        }
        self.request_work();
        Ok((sequence, logged))
    }

    /// Leaves a replaced state to the background thread.
    fn release(&self, state: Arc<StoreVersion>) {
        self.released.lock().push(state);
        self.ask_for_work(&mut self.work.lock());
    }

    /// Drops the states that commits have left.
    pub fn drop_released(&self) {
        let released = std::mem::take(&mut *self.released.lock());
        drop(released);
    }

    /// Checks that a batch can be committed to a state. Returns true if it creates or drops trees.
    ///
    /// # Errors
    /// Those of [`check`]; [`Error::UpsertRange`].
    pub fn check_commit(&self, state: &StoreVersion, batch: &WriteBatch) -> Result<bool> {
        let contents = self.check_batch(state, batch)?;
        if contents.has_row_upserts {
            let mut bounds = BatchBounds::default();
            batch.parts().into_iter().try_for_each(|part| bounds.admit(state, part))?;
        }
        Ok(contents.changes_trees)
    }

    /// Checks both parts of a batch, except the bounds of sums.
    ///
    /// # Errors
    /// Those of [`check`]; [`Error::TreeMismatch`] if rows were encoded for other columns.
    pub fn check_batch(&self, state: &StoreVersion, batch: &WriteBatch) -> Result<BatchContents> {
        for (tree, schema) in batch.schemas() {
            let is_alike = |known: &Schema| known.is_alike(schema);
            if state.trees.get(&tree).is_none_or(|version| is_alike(&version.codecs.schema)) {
                continue;
            }
            // The batch may change the tree.
            if !batch.schema_of(tree)?.as_ref().is_some_and(is_alike) {
                return Err(Error::TreeMismatch { tree, reason: "the rows were encoded for other columns" });
            }
        }
        let upserts = Some(&*self.files.upserts);
        let on_disk = check(state, &batch.bytes, TreeKind::Disk, upserts)?;
        let in_memory = check(state, &batch.in_memory, TreeKind::Memory, upserts)?;
        let changes_trees = on_disk.changes_trees || in_memory.changes_trees;
        Ok(BatchContents {
            changes_trees,
            extends_trees: on_disk.extends_trees,
            has_row_upserts: on_disk.has_row_upserts || in_memory.has_row_upserts,
        })
    }
}

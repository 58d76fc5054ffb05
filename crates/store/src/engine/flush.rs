//! Flushes of frozen buffers into their trees, several trees at a time, and the publication of the new trees.
//!
//! *Invariant.* A tree is published after all its extents are written.

use std::collections::HashMap;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use keyaki_primitives::sync::Mutex;

use crate::base::{Durability, Error, Result, TreeId};
use crate::engine::{Checkpointed, Shared};
use crate::pages::{Purpose, WriteBehind};
use crate::tree::{Flusher, InnerNode, StoreVersion, TreeVersion};

/// Maximum number of threads that flush, each one tree at a time.
const FLUSH_THREADS_MAX: usize = 4;
/// Buffers of fewer bytes are flushed by one thread.
const PARALLEL_BYTES_MIN: usize = 1 << 20;

impl Shared {
    pub fn flusher<'a>(&'a self, tree: TreeId, version: &'a TreeVersion) -> Flusher<'a> {
        let (codecs, files, options) = (&version.codecs, &self.files, &self.options);
        Flusher {
            tree,
            codecs,
            files,
            options,
            purpose: Purpose::Settle,
            extent_bytes: options.leaf_bytes,
            behind: None,
        }
    }

    /// Flushes the frozen buffers of `frozen`, several trees at a time, and publishes the new trees. Returns the trees
    /// on disk without buffers. After an error, some trees may have been flushed. `_checkpointed` proves that the
    /// maintenance lock is held.
    ///
    /// # Errors
    /// Those of [`Flusher::flush_buffer`], and errors of syncing the log.
    pub fn flush(&self, _checkpointed: &Checkpointed, frozen: &StoreVersion) -> Result<StoreVersion> {
        if self.visibility.durability() != Durability::Off {
            // Every snapshot sees the messages in runs, so their commits must be durable first.
            self.log.sync()?;
        }
        let postponed = self.files.postponed.swap(false, Ordering::Relaxed);
        let has_excess = |tree, version: &TreeVersion| self.flusher(tree, version).has_excess(&version.root);
        let bytes_of = |version: &TreeVersion| version.frozen.iter().map(|buffer| buffer.bytes()).sum::<usize>();
        let trees = frozen.trees.range(..TreeId::MEMORY_START);
        let mut pending: Vec<(TreeId, &TreeVersion, usize)> =
            trees.clone().map(|(&tree, version)| (tree, &**version, bytes_of(version))).collect();
        pending.retain(|&(tree, version, _)| {
            !version.frozen.is_empty() || (postponed && version.damage.is_none() && has_excess(tree, version))
        });
        // The largest last: it is flushed first.
        pending.sort_by_key(|&(.., bytes)| bytes);
        let threads = match pending.iter().map(|(.., bytes)| bytes).sum::<usize>() {
            ..PARALLEL_BYTES_MIN => 1,
            _ => std::thread::available_parallelism().map_or(1, NonZero::get).min(FLUSH_THREADS_MAX).min(pending.len()),
        };
        let frozen_bytes =
            |version: &TreeVersion| version.frozen.iter().map(|buffer| buffer.message_bytes()).sum::<usize>();
        let (bytes, started) = (pending.iter().map(|(_, version, _)| frozen_bytes(version)).sum(), Instant::now());
        let (pending, flushed, failed) = (Mutex::new(pending), Mutex::new(HashMap::new()), Mutex::new(None));
        let work = || {
            loop {
                let Some((tree, version, _)) = pending.lock().pop() else { return };
                match self.flush_tree(tree, version, postponed) {
                    Ok(version) => drop(flushed.lock().insert(tree, version)),
                    // The other trees are flushed nevertheless.
                    Err(error) => drop(failed.lock().get_or_insert(error)),
                }
            }
        };
        std::thread::scope(|scope| {
            let helpers: Vec<_> = (1..threads)
                .map_while(|_| std::thread::Builder::new().name("keyaki-flush".into()).spawn_scoped(scope, work).ok())
                .collect();
            work();
            helpers.into_iter().for_each(|helper| helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
        });
        if let Some(error) = failed.into_inner() {
            self.files.postponed.fetch_or(postponed, Ordering::Relaxed);
            return Err(error);
        }
        self.pacing.flushed(bytes, self.options.buffer_bytes, started.elapsed());
        let mut flushed = flushed.into_inner();
        let all = trees.map(|(&tree, version)| {
            let flushed = flushed.remove(&tree).unwrap_or_else(|| version.without_buffers());
            (tree, Arc::new(flushed))
        });
        Ok(StoreVersion { trees: all.collect() })
    }

    /// Flushes the frozen buffers of a tree, and publishes the new tree. Returns it without buffers. If the tree is
    /// damaged, it is quarantined. `postponed`: earlier flushes may have left messages above the budgets.
    fn flush_tree(&self, tree: TreeId, version: &TreeVersion, postponed: bool) -> Result<TreeVersion> {
        let flushed = match &version.damage {
            Some(damage) => self.quarantine(tree, version, damage.clone()),
            None => {
                let mut flushed = self.flush_into_tree(tree, version, postponed);
                if let Err(error) = flushed.as_ref()
                    && error.is_damage()
                {
                    // A single read may fail, as while a device is reset.
                    tracing::warn!(%error, %tree, "a flush failed and is repeated");
                    flushed = self.flush_into_tree(tree, version, postponed);
                }
                match flushed {
                    Err(error) if error.is_damage() => {
                        tracing::error!(%error, %tree, "a tree is damaged and accepts no more changes");
                        self.quarantine(tree, version, Arc::new(error))
                    }
                    flushed => flushed,
                }
            }
        }?;
        // Before the buffers leave the state, so that a conflict check finds them in one of the two places. Their
        // messages are durable or need not be, so they are visible.
        self.transactions.flushed(tree, &version.frozen, self.visible(), self.options.buffer_bytes);
        self.publish(tree, version, &flushed);
        self.leaves_changed();
        Ok(flushed)
    }

    /// The tree with its frozen buffers flushed.
    fn flush_into_tree(&self, tree: TreeId, version: &TreeVersion, postponed: bool) -> Result<TreeVersion> {
        let behind = WriteBehind::new(&self.files);
        let flusher = self.flusher(tree, version).with_behind(&behind);
        let (mut root, mut sample) = (InnerNode::clone(&version.root), version.sample.clone());
        for buffer in version.frozen.iter().rev() {
            (root, sample) = flusher.flush_buffer(&root, sample.as_ref(), buffer)?;
            self.bytes_flushed.fetch_add(buffer.bytes() as u64, Ordering::Relaxed);
        }
        if postponed {
            root = flusher.settle_all(&root)?;
        }
        behind.finish()?;
        Ok(version.with_root(Arc::new(root), sample))
    }

    /// The tree with its frozen buffers as runs of the root, which accepts no more changes. Reads nothing of the tree.
    /// The sample is given up, because bringing it up to date may need damaged pages.
    fn quarantine(&self, tree: TreeId, version: &TreeVersion, damage: Arc<Error>) -> Result<TreeVersion> {
        let flusher = self.flusher(tree, version);
        let mut root = InnerNode::clone(&version.root);
        for buffer in version.frozen.iter().rev() {
            root = flusher.keep_as_run(&root, buffer)?;
            self.bytes_flushed.fetch_add(buffer.bytes() as u64, Ordering::Relaxed);
        }
        Ok(TreeVersion { damage: Some(damage), ..version.with_root(Arc::new(root), None) })
    }

    /// Publishes the root of `flushed`, which has all messages of the frozen buffers, with its sample and its damage.
    /// No effect if the tree was dropped during the flush, even if another tree was created under the same id.
    pub fn publish(&self, tree: TreeId, frozen: &TreeVersion, flushed: &TreeVersion) {
        let mut current = self.state.write();
        let mut state = StoreVersion::clone(&current);
        let version = state.trees.get_mut(&tree);
        if let Some(version) = version.filter(|version| Arc::ptr_eq(&version.codecs, &frozen.codecs)) {
            let TreeVersion { root, sample, damage, .. } = flushed.clone();
            let published = TreeVersion { root, sample, damage, frozen: Vec::new(), ..TreeVersion::clone(version) };
            *version = Arc::new(published);
            self.replace_state(&mut current, state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use arrow_array::{ArrayRef, BinaryViewArray};
    use keyaki_device::simulated::{FaultKind, Model, Simulated, SimulatedOptions};

    use super::*;
    use crate::base::{Options, Schema, TreeId};
    use crate::codec::Codecs;
    use crate::engine::Store;
    use crate::pages::{Extent, ExtentWriter};

    /// Extents of 64 KiB, written behind to an empty store.
    fn written(store: &Store, behind: &Arc<WriteBehind>, count: usize) -> Result<Vec<Arc<Extent>>> {
        let codecs = Arc::new(Codecs::new(Schema::key_value()));
        let writer = ExtentWriter::new(TreeId::new(2), &codecs, store.files(), 4096, 64 << 10);
        let mut writer = writer.with_behind(Some(behind));
        let keys = (0..count as u32 * 64).map(u32::to_be_bytes);
        let keys: ArrayRef = Arc::new(BinaryViewArray::from_iter_values(keys));
        let mut random = keyaki_primitives::Random::new(1);
        let mut value = || (0..125).flat_map(|_| random.next_u64().to_le_bytes()).collect::<Vec<u8>>();
        let values: ArrayRef = Arc::new(BinaryViewArray::from_iter_values((0..keys.len()).map(|_| value())));
        writer.write(&[keys, values], None, 0, true)?;
        writer.finish()
    }

    fn open(simulated: &Simulated) -> Store {
        Store::open(simulated.device(), Path::new("/db"), Options::default()).unwrap()
    }

    #[test]
    fn extents_are_read_after_they_are_written() {
        let simulated = Simulated::new(SimulatedOptions::default());
        let store = open(&simulated);
        simulated.set_model(Model::disk());
        let behind = WriteBehind::new(store.files());
        let extents = written(&store, &behind, 100).unwrap();
        assert!(extents.len() > 50 && behind.in_flight() > 0);
        for extent in extents.iter().rev() {
            let index = store.files().read_index(extent, &Arc::new(Schema::key_value())).unwrap();
            assert_eq!(index.rows(), extent.meta.pages as usize);
        }
        behind.finish().unwrap();
        assert!(behind.in_flight() == 0);
    }

    #[test]
    fn a_failed_write_fails_all_that_follows() {
        for kind in [FaultKind::Eio, FaultKind::NoSpace] {
            let simulated = Simulated::new(SimulatedOptions::default());
            let store = open(&simulated);
            let behind = WriteBehind::new(store.files());
            let first = written(&store, &behind, 1).unwrap();
            behind.finish().unwrap();
            simulated.fail_after(0, kind);
            let second = written(&store, &behind, 1).and_then(|_| behind.finish());
            let is_expected = match kind {
                FaultKind::Eio => matches!(second, Err(Error::Device(_))),
                _ => matches!(second, Err(Error::DiskFull { .. })),
            };
            assert!(is_expected, "{second:?}");
            // Writes after an I/O error may be lost; a full disk changes nothing.
            assert_eq!(store.files().check_writable().is_ok(), kind == FaultKind::NoSpace);
            assert!(behind.finish().is_err() && written(&store, &behind, 1).is_err());
            assert!(first[0].wait_until_written().is_err());
        }
    }

    #[test]
    fn space_is_not_used_again_while_it_is_written() {
        let simulated = Simulated::new(SimulatedOptions::default());
        let store = open(&simulated);
        let used = store.files().space.usage().0;
        simulated.set_model(Model::disk());
        let behind = WriteBehind::new(store.files());
        drop(written(&store, &behind, 3).unwrap());
        assert!(store.files().space.usage().0 > used);
        behind.finish().unwrap();
        assert_eq!(store.files().space.usage().0, used);
    }

    #[test]
    fn dropping_waits_for_the_writes() {
        let simulated = Simulated::new(SimulatedOptions::default());
        let store = open(&simulated);
        simulated.set_model(Model::disk());
        let (before, behind) = (simulated.writes(), WriteBehind::new(store.files()));
        let extents = written(&store, &behind, 3).unwrap();
        drop(behind);
        assert_eq!(simulated.writes() - before, extents.len() as u64);
        assert!(extents.iter().all(|extent| extent.wait_until_written().is_ok()));
    }
}

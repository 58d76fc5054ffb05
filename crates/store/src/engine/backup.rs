//! Copies of the database, made beside writers.
//!
//! A copy has the extents of a new checkpoint, at the same positions of its data file, with holes between them: pages
//! carry their positions. The copy needs no log. Each extent is verified before it is written.
//!
//! *Invariant.* The data file of the copy gets its final name only when it is complete and durable.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use keyaki_device::{Buffer, Device, File, OpenMode};
use parking_lot::Mutex;

use super::check::{Item, Verifier, in_parallel, items_of};
use super::open::{check_no_log, prepare_directory};
use crate::base::{Error, Result, TreeId};
use crate::engine::{Store, node_table};
use crate::log::LogPosition;
use crate::pages::{RESERVED_BYTES, Superblock};
use crate::tree::StoreVersion;

/// A complete copy of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backup {
    /// Sequence number of the newest commit that the copy has.
    pub sequence: u64,
    /// Bytes of the copied extents. The length of the data file can be larger, but takes no more space.
    pub bytes: u64,
}

impl Store {
    /// Writes a copy of the database to the directory `dir`, which is created. It has all commits so far and no later
    /// ones; commits continue meanwhile. `progress` receives the numbers of rows and messages copied so far and in
    /// total, from several threads, and ends the copy by returning false. `publish` is called when the copy is
    /// complete, before it gets its name, and can also end it. The result of a copy that was ended is `None`. Blocks.
    ///
    /// # Errors [`Error::Locked`] if the directory is a database that is open, or the target of another copy;
    /// [`Error::NotADatabase`] if it has files, or lies within a database; [`Error::Corrupt`] for the first damaged
    /// page; those of [`Store::checkpoint`]; [`Error::DiskFull`], device errors. The directory has no database then,
    /// unless only its last sync failed.
    pub fn backup(
        &self,
        dir: &Path,
        progress: &(dyn Fn(u64, u64) -> bool + Sync),
        publish: &dyn Fn() -> bool,
    ) -> Result<Option<Backup>> {
        let shared = &self.shared;
        check_outside(&*self.files().device, dir)?;
        let (state, sequence) = shared.run_structural_change(|| {
            let mut checkpointed = shared.maintenance.lock();
            shared.advance_checkpoint(&mut checkpointed, false)?;
            Ok((checkpointed.state.clone(), checkpointed.sequence))
        })?;
        let device = &*self.files().device;
        prepare_directory(device, dir)?;
        let locked = dir.join("LOCK");
        let _lock = device.lock(&locked).map_err(|error| match error.is_locked() {
            true => Error::Locked { path: dir.to_path_buf() },
            false => error.into(),
        })?;
        // Another copy may have ended before the lock.
        prepare_directory(device, dir)?;
        check_no_log(device, dir)?;
        let copied = self.copy_to(dir, &state, sequence, progress, publish);
        if !matches!(copied, Ok(Some(_))) {
            // The first error says more than one of the removal.
            let _ = device.remove(&dir.join("data.new"));
            let _ = device.remove(&locked);
        }
        copied
    }

    fn copy_to(
        &self,
        dir: &Path,
        state: &StoreVersion,
        sequence: u64,
        progress: &(dyn Fn(u64, u64) -> bool + Sync),
        publish: &dyn Fn() -> bool,
    ) -> Result<Option<Backup>> {
        let device = &*self.files().device;
        let new = dir.join("data.new");
        if device.exists(&new)? {
            device.remove(&new)?;
        }
        let file = device.open(&new, OpenMode::CreateNew)?;
        let Some(bytes) = self.copy_extents(state, &*file, progress)? else { return Ok(None) };
        self.finish_copy(state, &*file, sequence)?;
        drop(file);
        if !publish() {
            return Ok(None);
        }
        device.rename(&new, &dir.join("data"))?;
        device.sync_dir(dir)?;
        Ok(Some(Backup { sequence, bytes }))
    }

    /// Copies the extents of a checkpoint. Returns the number of their bytes; `None` if `progress` has ended the copy.
    fn copy_extents(
        &self,
        state: &StoreVersion,
        file: &dyn File,
        progress: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<Option<u64>> {
        let items: Vec<Item> = state.trees.values().flat_map(items_of).collect();
        let total = items.iter().map(|item| item.extent.meta.rows).sum();
        let (done, failed) = (AtomicU64::new(0), Mutex::new(None));
        let is_complete = in_parallel(&items, |item| match self.copy_extent(item, file) {
            Ok(()) => {
                let rows = item.extent.meta.rows;
                progress(done.fetch_add(rows, Ordering::Relaxed) + rows, total)
            }
            Err(error) => {
                failed.lock().get_or_insert(error);
                false
            }
        });
        match failed.into_inner() {
            Some(error) => Err(error),
            None => Ok(is_complete.then(|| items.iter().map(|item| item.extent.meta.len).sum())),
        }
    }

    fn copy_extent(&self, item: &Item, file: &dyn File) -> Result<()> {
        let meta = &item.extent.meta;
        let mut bytes = Buffer::zeroed(meta.len as usize);
        self.files().read_at(meta.offset, &mut bytes)?;
        match (Verifier { files: self.files(), item }).pages(Some(&bytes))?.into_iter().next() {
            Some(damage) => Err(damage.cause),
            None => Ok(file.write_at(meta.offset, &bytes)?),
        }
    }

    /// Writes the node table behind the extents, syncs, and writes the superblock of a checkpoint without a log.
    fn finish_copy(&self, state: &StoreVersion, file: &dyn File, sequence: u64) -> Result<()> {
        let next_tree = TreeId::new(self.shared.next_tree.load(Ordering::Relaxed));
        let bytes = node_table::encode(&state.counted_at(sequence), next_tree);
        let mut end = RESERVED_BYTES;
        for version in state.trees.values() {
            version.visit_extents(&mut |extent| end = end.max(extent.meta.offset + extent.meta.len));
        }
        let mut buffer = Buffer::zeroed(bytes.len().next_multiple_of(4096));
        buffer[..bytes.len()].copy_from_slice(&bytes);
        file.write_at(end, &buffer)?;
        file.sync_data()?;
        let superblock = Superblock {
            generation: 1,
            sequence,
            log: LogPosition::default(),
            node_table_offset: end,
            node_table_len: bytes.len() as u64,
            node_table_hash: xxhash_rust::xxh3::xxh3_64(&bytes),
            page_bytes: self.files().page_bytes,
        };
        superblock.write(file)
    }
}

/// Checks that a directory does not lie within a database, which may remove files of its directory.
///
/// # Errors
/// [`Error::NotADatabase`] if it does; device errors.
pub(super) fn check_outside(device: &dyn Device, dir: &Path) -> Result<()> {
    for outer in resolved(dir).ancestors().skip(1) {
        if device.exists(&outer.join("data"))? && device.exists(&outer.join("LOCK"))? {
            let detail = format!("it lies within the database \"{}\"", outer.display());
            return Err(Error::NotADatabase { path: dir.to_path_buf(), detail });
        }
    }
    Ok(())
}

/// A path without links and `..` as far as it exists, and absolute where there is a current directory.
fn resolved(dir: &Path) -> PathBuf {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    let existing = absolute.ancestors().find_map(|outer| Some((outer, outer.canonicalize().ok()?)));
    match existing {
        Some((outer, canonical)) => canonical.join(absolute.strip_prefix(outer).unwrap_or(Path::new(""))),
        None => absolute,
    }
}

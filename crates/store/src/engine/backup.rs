//! Copies of the database, made beside writers.
//!
//! A copy has the extents of a new checkpoint, at the same positions of its data file, with holes between them: pages
//! carry their positions. The copy needs no log. Each extent is verified before it is written.
//!
//! *Incremental copies.* Extents never change. An earlier copy is updated by writing only the extents that it does not
//! have. First come those at positions that are free in the earlier copy, which therefore remains usable if the update ends
//! early. Then the store verifies the others and allocates their space. Finally it renames the data file and writes
//! them.
//!
//! *Invariant.* A data file has its final name only while it is a complete and durable copy.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use keyaki_device::{Buffer, Device, File, Lock, OpenMode};
use keyaki_primitives::sync::Mutex;

use super::check::{Item, Verifier, in_parallel, items_of};
use super::open::{check_no_log, prepare_directory, read_checkpoint};
use crate::base::{Error, Options, Result};
use crate::engine::node_table::Trained;
use crate::engine::{Store, node_table};
use crate::log::LogPosition;
use crate::pages::{ExtentMeta, RESERVED_BYTES, Superblock};
use crate::tree::StoreVersion;

/// Cache for the index of an earlier copy, in bytes.
const CACHE_BYTES: usize = 1 << 20;

/// A complete copy of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backup {
    /// Sequence number of the newest commit that the copy has.
    pub sequence: u64,
    /// Bytes of the extents that were written. The length of the data file can be larger, but takes no more space.
    pub bytes: u64,
    /// Bytes of the extents that an earlier copy had.
    pub kept_bytes: u64,
}

/// How a copy is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackupMode {
    /// Into a new directory.
    Full,
    /// Into the directory of an earlier copy, which is updated. As [`BackupMode::Full`] if there is none.
    Incremental,
}

/// The progress of a copy: receives the numbers of rows and messages copied so far and in total, and ends it by returning
/// false.
type Progress<'p> = &'p (dyn Fn(u64, u64) -> bool + Sync);

/// An earlier copy.
struct Earlier {
    generation: u64,
    sequence: u64,
    /// By position.
    extents: BTreeMap<u64, ExtentMeta>,
    /// Ranges that the copy uses, by their start: its extents and its node table.
    used: BTreeMap<u64, u64>,
}

impl Earlier {
    fn uses(&self, meta: &ExtentMeta) -> bool {
        let before = self.used.range(..meta.offset + meta.len).next_back();
        before.is_some_and(|(start, len)| start + len > meta.offset)
    }
}

impl Store {
    /// Writes a copy of the database to the directory `dir`, which is created. It has all commits so far and no later
    /// ones; commits continue meanwhile. `progress` receives the numbers of rows and messages copied so far and in
    /// total, from several threads, and ends the copy by returning false. `publish` is called when the copy is
    /// complete, before it gets its name, and can also end it. The result of a copy that was ended is `None`. Blocks.
    ///
    /// The pages that an [incremental](BackupMode::Incremental) copy keeps are not read again. It calls `publish` before it
    /// replaces extents, and cannot be ended afterwards. If it fails then, the directory has no database.
    ///
    /// # Errors
    /// [`Error::Locked`] if the directory is a database that is open, or the target of another copy;
    /// [`Error::NotADatabase`] if it has files, lies within a database, or is a copy of another database, with newer commits, or
    /// changed since;
    /// [`Error::Corrupt`] for the first damaged page; those of [`Store::checkpoint`]; [`Error::DiskFull`], device errors. The
    /// directory has no database then, unless only its last sync failed, or an earlier copy is intact.
    pub fn backup(
        &self,
        dir: &Path,
        mode: BackupMode,
        progress: Progress<'_>,
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
        let data = dir.join("data");
        let updates = mode == BackupMode::Incremental && device.exists(&data)?;
        if !updates {
            prepare_directory(device, dir)?;
        }
        let _lock = lock(device, dir)?;
        // Another copy may have ended before the lock.
        if updates && device.exists(&data)? {
            return self.update(dir, &state, sequence, progress, publish);
        }
        prepare_directory(device, dir)?;
        check_no_log(device, dir)?;
        let new = dir.join("data.new");
        let copied = self.copy_to(&new, &state, sequence, progress);
        self.publish(dir, copied, publish)
    }

    /// A new copy in the file `new`.
    fn copy_to(
        &self,
        new: &Path,
        state: &StoreVersion,
        sequence: u64,
        progress: Progress<'_>,
    ) -> Result<Option<Backup>> {
        let device = &*self.files().device;
        if device.exists(new)? {
            device.remove(new)?;
        }
        let file = device.open(new, OpenMode::CreateNew)?;
        let items: Vec<Item> = state.trees.values().flat_map(items_of).collect();
        if !self.copy_extents(&items, &*file, &Rows::of(&items), &|| (), progress)? {
            return Ok(None);
        }
        self.finish_copy(state, &self.node_table(state, sequence), &*file, sequence, 1)?;
        Ok(Some(Backup { sequence, bytes: bytes_of(&items), kept_bytes: 0 }))
    }

    /// Updates an earlier copy.
    fn update(
        &self,
        dir: &Path,
        state: &StoreVersion,
        sequence: u64,
        progress: Progress<'_>,
        publish: &dyn Fn() -> bool,
    ) -> Result<Option<Backup>> {
        let device = &*self.files().device;
        let (data, new) = (dir.join("data"), dir.join("data.new"));
        let file = device.open(&data, OpenMode::ReadWrite)?;
        let earlier = self.read_earlier(dir, &file, sequence)?;
        let Some([kept, free, occupied]) = self.divide(state, &earlier, &*file, progress)? else { return Ok(None) };
        let rows = Rows::of(kept.iter().chain(&free).chain(&occupied));
        rows.done.store(kept.iter().map(|item| item.extent.meta.rows).sum(), Ordering::Relaxed);
        let (bytes, kept_bytes) = (bytes_of(&free) + bytes_of(&occupied), bytes_of(&kept));
        let backup = Backup { sequence, bytes, kept_bytes };
        if bytes == 0 && earlier.sequence == sequence {
            // It has this state already.
            return Ok(publish().then_some(backup));
        }
        // The space for it is allocated before anything is replaced.
        let table = self.node_table(state, sequence);
        let len = file.len()?;
        let prepare = || {
            let is_ready = self.copy_extents(&free, &*file, &rows, &|| (), progress)?
                && self.prepare(state, &table, &occupied, &*file, &rows, progress)?;
            if is_ready {
                file.sync_data()?;
            }
            Ok(is_ready && publish())
        };
        let prepared = prepare();
        if !matches!(prepared, Ok(true)) {
            // All that the copy uses lies before.
            let _ = file.truncate(len);
            return prepared.map(|_| None);
        }
        let written = AtomicBool::new(false);
        let replace = || {
            device.rename(&data, &new)?;
            device.sync_dir(dir)?;
            // A reader that marks the copy later does not find the data file.
            check_unread(device, dir)?;
            // The copy cannot be ended any more.
            let progress = |done, total| {
                progress(done, total);
                true
            };
            self.copy_extents(&occupied, &*file, &rows, &|| written.store(true, Ordering::Relaxed), &progress)?;
            written.store(true, Ordering::Relaxed);
            self.finish_copy(state, &table, &*file, sequence, earlier.generation + 1)
        };
        match replace() {
            Ok(end) => {
                if let Err(error) = file.truncate(end) {
                    tracing::warn!(%error, "could not shorten the data file of a backup");
                }
                device.rename(&new, &data)?;
                device.sync_dir(dir)?;
                Ok(Some(backup))
            }
            Err(error) => {
                match written.load(Ordering::Relaxed) {
                    true => self.remove_incomplete(dir),
                    // The earlier copy is still complete.
                    false => _ = device.rename(&new, &data).and_then(|()| device.sync_dir(dir)),
                }
                Err(error)
            }
        }
    }

    /// The extents of a state that an earlier copy in `file` has, those at positions that are free in it, and those at
    /// positions that it uses for others. `None` if `progress` has ended the copy.
    fn divide(
        &self,
        state: &StoreVersion,
        earlier: &Earlier,
        file: &dyn File,
        progress: Progress<'_>,
    ) -> Result<Option<[Vec<Item>; 3]>> {
        let items: Vec<Item> = state.trees.values().flat_map(items_of).collect();
        let total = Rows::of(&items).total;
        let (found, failed) = (Mutex::new(BTreeSet::new()), Mutex::new(None));
        let is_complete = in_parallel(&items, |item| match self.is_kept(earlier, item, file) {
            Ok(is_kept) => {
                if is_kept {
                    found.lock().insert(item.extent.meta.offset);
                }
                progress(0, total)
            }
            Err(error) => {
                failed.lock().get_or_insert(error);
                false
            }
        });
        failed.into_inner().map_or(Ok(()), Err)?;
        let found = found.into_inner();
        let (kept, changed): (Vec<Item>, Vec<Item>) =
            items.into_iter().partition(|item| found.contains(&item.extent.meta.offset));
        let (occupied, free) = changed.into_iter().partition(|item| earlier.uses(&item.extent.meta));
        Ok(is_complete.then_some([kept, free, occupied]))
    }

    /// Verifies the extents that replace others, and allocates their space and that of the node table. Returns false if
    /// `progress` has ended the copy.
    fn prepare(
        &self,
        state: &StoreVersion,
        table: &[u8],
        items: &[Item],
        file: &dyn File,
        rows: &Rows,
        progress: Progress<'_>,
    ) -> Result<bool> {
        let failed = Mutex::new(None);
        let is_complete = in_parallel(items, |item| {
            let meta = &item.extent.meta;
            match self.read_verified(item).and_then(|_| Ok(file.allocate(meta.offset, meta.len)?)) {
                Ok(()) => progress(rows.done.load(Ordering::Relaxed), rows.total),
                Err(error) => {
                    failed.lock().get_or_insert(error);
                    false
                }
            }
        });
        failed.into_inner().map_or(Ok(()), Err)?;
        file.allocate(end_of(state), table.len().next_multiple_of(4096) as u64)?;
        Ok(is_complete)
    }

    /// Gives the file `data.new` its final name if the copy is complete, otherwise removes it.
    fn publish(
        &self,
        dir: &Path,
        copied: Result<Option<Backup>>,
        publish: &dyn Fn() -> bool,
    ) -> Result<Option<Backup>> {
        let device = &*self.files().device;
        let new = dir.join("data.new");
        let name = |backup| {
            if !publish() {
                return Ok(None);
            }
            device.rename(&new, &dir.join("data"))?;
            device.sync_dir(dir)?;
            Ok(Some(backup))
        };
        let published = match copied {
            Ok(Some(backup)) => name(backup),
            failed => failed,
        };
        if !matches!(published, Ok(Some(_))) {
            self.remove_incomplete(dir);
        }
        published
    }

    fn remove_incomplete(&self, dir: &Path) {
        let device = &*self.files().device;
        // The first error says more than one of the removal.
        let _ = device.remove(&dir.join("data.new"));
        let _ = device.remove(&dir.join("LOCK"));
    }

    /// The extents of an earlier copy.
    ///
    /// # Errors
    /// [`Error::NotADatabase`] if it was changed, has newer commits than `sequence`, or is of another database; those of
    /// opening it.
    fn read_earlier(&self, dir: &Path, file: &Arc<dyn File>, sequence: u64) -> Result<Earlier> {
        let device = &self.files().device;
        let superblock = Superblock::read(&**file)?;
        // A copy has no log. Its first commit creates one, which its next checkpoint names.
        let has_log = device.list(dir)?.iter().any(|name| name.starts_with("log-"));
        if has_log || superblock.log != LogPosition::default() {
            let detail = "it is a database that was changed, not a copy as it was made (name another directory)".into();
            return Err(Error::NotADatabase { path: dir.to_path_buf(), detail });
        }
        let ids = [superblock.database_id, self.shared.database_id];
        let is_other = ids[0] != ids[1];
        if is_other || superblock.page_bytes != self.files().page_bytes || superblock.sequence > sequence {
            let detail = match is_other {
                true => "it is a copy of another database (name another directory)",
                false => "it has changes that this database does not have (name another directory)",
            };
            return Err(Error::NotADatabase { path: dir.to_path_buf(), detail: detail.into() });
        }
        let options = Options { cache_bytes: CACHE_BYTES, ..self.shared.options.clone() };
        let (_files, state, _) = read_checkpoint(device, file, &dir.join("data"), &superblock, &options)?;
        let (mut extents, mut used) = (BTreeMap::new(), BTreeMap::new());
        used.insert(superblock.node_table_offset, superblock.node_table_len.next_multiple_of(4096));
        for version in state.trees.values() {
            version.visit_extents(&mut |extent| {
                used.insert(extent.meta.offset, extent.meta.len);
                extents.insert(extent.meta.offset, extent.meta.clone());
            });
        }
        Ok(Earlier { generation: superblock.generation, sequence: superblock.sequence, extents, used })
    }

    /// True if an earlier copy in `file` has the extent: the same entry in its node table and the same index page, which has
    /// the checksum of each data page.
    fn is_kept(&self, earlier: &Earlier, item: &Item, file: &dyn File) -> Result<bool> {
        let meta = &item.extent.meta;
        let is_same = |before: &&ExtentMeta| {
            (before.tree, before.len, before.index_len) == (meta.tree, meta.len, meta.index_len)
                && (before.index_checksum, before.pages, before.rows) == (meta.index_checksum, meta.pages, meta.rows)
                && (&before.first, &before.last) == (&meta.first, &meta.last)
        };
        if earlier.extents.get(&meta.offset).filter(is_same).is_none() {
            return Ok(false);
        }
        let index = item.extent.index();
        let (mut here, mut there) = (Buffer::zeroed(index.len as usize), Buffer::zeroed(index.len as usize));
        self.files().read_at(index.offset, &mut here)?;
        // A damaged page would make the copy lose an intact one.
        item.extent.check_index(&*self.files().open_page(&here, index, &item.version.codecs.schema)?)?;
        // A page of the copy that cannot be read is written again.
        Ok(file.read_at(index.offset, &mut there).is_ok() && *here == *there)
    }

    /// Copies extents. `before_write` is called before each write. Returns false if `progress` has ended the copy.
    fn copy_extents(
        &self,
        items: &[Item],
        file: &dyn File,
        rows: &Rows,
        before_write: &(dyn Fn() + Sync),
        progress: Progress<'_>,
    ) -> Result<bool> {
        let failed = Mutex::new(None);
        let is_complete = in_parallel(items, |item| match self.copy_extent(item, file, before_write) {
            Ok(()) => {
                let copied = item.extent.meta.rows;
                progress(rows.done.fetch_add(copied, Ordering::Relaxed) + copied, rows.total)
            }
            Err(error) => {
                failed.lock().get_or_insert(error);
                false
            }
        });
        failed.into_inner().map_or(Ok(is_complete), Err)
    }

    fn copy_extent(&self, item: &Item, file: &dyn File, before_write: &(dyn Fn() + Sync)) -> Result<()> {
        let bytes = self.read_verified(item)?;
        before_write();
        Ok(file.write_at(item.extent.meta.offset, &bytes)?)
    }

    /// The bytes of an extent.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for the first damaged page, device errors.
    pub(super) fn read_verified(&self, item: &Item) -> Result<Buffer> {
        let meta = &item.extent.meta;
        let mut bytes = Buffer::zeroed(meta.len as usize);
        self.files().read_at(meta.offset, &mut bytes)?;
        match (Verifier { files: self.files(), item }).pages(Some(&bytes))?.into_iter().next() {
            Some(damage) => Err(damage.cause),
            None => Ok(bytes),
        }
    }

    fn node_table(&self, state: &StoreVersion, sequence: u64) -> Vec<u8> {
        let (next_tree, dictionaries) = (self.shared.next_tree(), &self.files().dictionaries);
        node_table::encode(&state.counted_at(sequence), next_tree, dictionaries, Trained::All)
    }

    /// Writes the node table behind the extents, syncs, and writes the superblock of a checkpoint without a log. Returns the
    /// end of the node table.
    fn finish_copy(
        &self,
        state: &StoreVersion,
        bytes: &[u8],
        file: &dyn File,
        sequence: u64,
        generation: u64,
    ) -> Result<u64> {
        let end = end_of(state);
        let mut buffer = Buffer::zeroed(bytes.len().next_multiple_of(4096));
        buffer[..bytes.len()].copy_from_slice(bytes);
        file.write_at(end, &buffer)?;
        file.sync_data()?;
        let superblock = Superblock {
            generation,
            sequence,
            log: LogPosition::default(),
            node_table_offset: end,
            node_table_len: bytes.len() as u64,
            node_table_hash: xxhash_rust::xxh3::xxh3_64(bytes),
            page_bytes: self.files().page_bytes,
            database_id: self.shared.database_id,
        };
        superblock.write(file)?;
        Ok(end + buffer.len() as u64)
    }
}

/// Rows and messages of a copy.
struct Rows {
    done: AtomicU64,
    total: u64,
}

impl Rows {
    fn of<'i>(items: impl IntoIterator<Item = &'i Item>) -> Rows {
        let total = items.into_iter().map(|item| item.extent.meta.rows).sum();
        Rows { done: AtomicU64::new(0), total }
    }
}

/// The end of the last extent.
pub(super) fn end_of(state: &StoreVersion) -> u64 {
    let mut end = RESERVED_BYTES;
    for version in state.trees.values() {
        version.visit_extents(&mut |extent| end = end.max(extent.meta.offset + extent.meta.len));
    }
    end
}

fn bytes_of(items: &[Item]) -> u64 {
    items.iter().map(|item| item.extent.meta.len).sum()
}

/// The lock of the directory of a copy.
///
/// # Errors
/// [`Error::Locked`], also if a process reads the copy; device errors.
fn lock(device: &dyn Device, dir: &Path) -> Result<Box<dyn Lock>> {
    let lock = device.lock(&dir.join("LOCK")).map_err(|error| Error::of_lock(dir, error))?;
    check_unread(device, dir)?;
    Ok(lock)
}

/// Checks that no process reads a copy.
///
/// # Errors
/// [`Error::Locked`], device errors.
fn check_unread(device: &dyn Device, dir: &Path) -> Result<()> {
    match device.marks(&dir.join("LOCK"))?.is_empty() {
        true => Ok(()),
        false => Err(Error::Locked { path: dir.to_path_buf(), holder: Some("a process that reads it".into()) }),
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

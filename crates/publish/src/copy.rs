//! Clones: a version as a local database that can be written.
//!
//! A clone is written under the name `data.clone`, which no database has, with holes between the extents. It gets the name `data`
//! when it is complete and durable.
//!
//! *Exclusion.* A clone holds the lock of the file `LOCK`, as databases do, and looks at the directory with the lock
//! held. `LOCK` is never removed: of two processes that lock it, one could have opened the removed file and the other
//! one a new file, and each would remove or rename the other's `data.clone`.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyaki_device::{Buffer, Device, File, OpenMode};

use crate::error::{Error, Result};
use crate::parallel::for_each;
use crate::reader::{ReadOptions, SUPERBLOCKS, VersionDevice};
use crate::repository::Repository;

/// Bytes of a request.
const PART_BYTES: u64 = 4 << 20;
/// Threads that read and write parts.
const THREADS: usize = 8;
/// Files that an interrupted clone leaves.
const REMAINS: [&str; 2] = ["LOCK", NEW];
/// The data file of a clone under construction: the store makes no new database beside it.
const NEW: &str = "data.clone";

/// The result of [`Repository::clone_version`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cloned {
    /// Number of the version.
    pub number: u64,
    /// Bytes of the data file without holes.
    pub bytes: u64,
}

/// Receives the numbers of bytes copied so far and in total, from several threads, and ends the copy by returning
/// false.
type Progress<'p> = &'p (dyn Fn(u64, u64) -> bool + Sync);

impl Repository {
    /// Copies a version, the newest one by default, to a directory of `device`, which is created: a database that can
    /// be opened for writing. `progress` receives the numbers of bytes copied so far and in total, from several
    /// threads, and ends the copy by returning false: the result is `None` then. Blocks.
    ///
    /// # Errors
    /// [`Error::DirectoryNotEmpty`]; those of [`Repository::open_version`] and of reads; [`Error::Device`], also if
    /// another clone into the directory is under way. The directory has no database then, and only the file `LOCK`,
    /// unless only its last sync failed.
    pub fn clone_version(
        &self,
        number: Option<u64>,
        device: &Arc<dyn Device>,
        directory: &Path,
        progress: Progress<'_>,
    ) -> Result<Option<Cloned>> {
        let version = self.open_version(number, &ReadOptions::default())?;
        prepare(&**device, directory)?;
        let _lock = device.lock(&directory.join("LOCK"))?;
        prepare(&**device, directory)?;
        let new = directory.join(NEW);
        if device.exists(&new)? {
            device.remove(&new)?;
        }
        let copied = copy(&version, &**device, &new, progress).and_then(|bytes| match bytes {
            Some(bytes) => {
                device.rename(&new, &directory.join("data"))?;
                device.sync_dir(directory)?;
                Ok(Some(Cloned { number: version.number(), bytes }))
            }
            None => Ok(None),
        });
        if !matches!(copied, Ok(Some(_))) {
            // The first error says more than one of the removal.
            let _ = device.remove(&new);
        }
        copied
    }
}

/// Creates the directory, or checks that it is empty.
fn prepare(device: &dyn Device, directory: &Path) -> Result<()> {
    if !device.exists(directory)? {
        match device.create_dir(directory) {
            // Another clone has made it.
            Err(error) if error.is_exists() => {}
            created => created?,
        }
        if let Some(parent) = directory.parent() {
            // The parent of a relative path of one component is the current directory.
            device.sync_dir(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?;
        }
    }
    let is_empty = device.list(directory)?.iter().all(|name| REMAINS.contains(&name.as_str()));
    if is_empty { Ok(()) } else { Err(Error::DirectoryNotEmpty { path: directory.into() }) }
}

/// Writes a version to the file `new`. Returns the bytes of its extents and node table; `None` if `progress` has
/// ended it.
fn copy(version: &VersionDevice, device: &dyn Device, new: &Path, progress: Progress<'_>) -> Result<Option<u64>> {
    let data = version.open(&version.directory().join("data"), OpenMode::Read)?;
    let file = device.open(new, OpenMode::CreateNew)?;
    let parts = version.map().parts(PART_BYTES);
    let total = parts.iter().map(|part| part.end - part.start).sum();
    let done = AtomicU64::new(0);
    let work = |number: usize| {
        let (start, len) = (parts[number].start, parts[number].end - parts[number].start);
        copy_part(&*data, &*file, start, len)?;
        Ok(progress(done.fetch_add(len, Ordering::Relaxed) + len, total))
    };
    if !for_each("keyaki-clone", THREADS, parts.len(), work)? {
        return Ok(None);
    }
    file.sync_data()?;
    let mut superblock = Buffer::zeroed(version.map().superblock().len());
    superblock.copy_from_slice(version.map().superblock());
    for offset in SUPERBLOCKS {
        file.write_at(offset, &superblock)?;
        file.sync_data()?;
    }
    Ok(Some(total))
}

fn copy_part(from: &dyn File, to: &dyn File, offset: u64, len: u64) -> Result<()> {
    let mut buffer = Buffer::zeroed(len as usize);
    from.read_at(offset, &mut buffer)?;
    Ok(to.write_at(offset, &buffer)?)
}

//! Directories and locks.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::FlockOperation;

use crate::Lock;

/// Sorted names of the entries of `dir`.
pub(super) fn list(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

/// Removes a file or an empty directory.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) }
}

pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    // An open directory is a `File` like any other; the empty path means the current directory, as in `Path::parent`.
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    fs::File::open(dir)?.sync_all()
}

/// An exclusive `flock`. It belongs to this open file description, so another opener in the same process conflicts too;
/// it ends with the descriptor, thus with the process at the latest.
#[derive(Debug)]
pub(super) struct OsLock {
    _file: fs::File,
}

impl OsLock {
    /// `WouldBlock` if somebody has it.
    pub(super) fn take(path: &Path) -> io::Result<Self> {
        let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(OsLock { _file: file }),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Lock for OsLock {}

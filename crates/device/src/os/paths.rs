//! Directories and locks.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::interface::{ErrorKind, Lock};

/// Sorted names of the entries of `dir`.
pub(super) fn list(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

/// Removes a file or an empty directory; a symbolic link is removed itself.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) }
}

/// Makes changes of the entries of `dir` durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    // `Path::parent` gives the empty path for the current directory.
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    fs::File::open(dir)?.sync_all()
}

/// An exclusive `flock`. It belongs to the open file description, so another opener in the same process conflicts too.
/// It ends when the descriptor is closed, at the latest when the process ends.
#[derive(Debug)]
pub(super) struct OsLock {
    _file: fs::File,
}

impl OsLock {
    /// Takes the lock; [`ErrorKind::Locked`] if another opener holds it. Without `creates`, the file must exist, and is
    /// opened for reading only.
    pub(super) fn take(path: &Path, creates: bool) -> Result<Self, ErrorKind> {
        let file = fs::OpenOptions::new().read(true).write(creates).create(creates).truncate(false).open(path)?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(OsLock { _file: file }),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => return Err(ErrorKind::Locked),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Lock for OsLock {}

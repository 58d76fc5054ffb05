//! Directories.

use std::fs;
use std::io;
use std::path::Path;

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

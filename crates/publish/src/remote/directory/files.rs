//! The calls on the file system that writes consist of.

use std::fmt::Debug;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use object_store::PutPayload;

/// A file system. Tests have one with power failures.
pub(super) trait Files: Debug + Send + Sync + 'static {
    /// Makes a directory. Its entry is not durable.
    fn create_directory(&self, path: &Path) -> io::Result<()>;

    /// Writes a new file and makes its bytes durable. Its entry is not.
    fn create(&self, path: &Path, payload: &PutPayload) -> io::Result<()>;

    /// Renames a file and replaces another one.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives a file a second name, unless the name is taken.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the entries of a directory durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
}

/// The files of the operating system.
#[derive(Debug)]
pub(super) struct LocalFiles;

impl Files for LocalFiles {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn create(&self, path: &Path, payload: &PutPayload) -> io::Result<()> {
        let mut file = fs::File::create_new(path)?;
        payload.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        fs::File::open(path)?.sync_all()
    }
}

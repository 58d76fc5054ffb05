//! A new database that has a temporary name beside its final one until it is complete.

use std::fs::{File, Permissions};
use std::io::{Error as IoError, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::failure::{Failure, Result};

/// Permission bits of the directory, before the umask is applied.
const PERMISSIONS: u32 = 0o777;
/// Attempts to remove the directory of a failed command, and the time between them.
const REMOVALS: u32 = 40;
const REMOVAL_WAIT: Duration = Duration::from_millis(50);

/// A directory for a new database. It is removed with its contents on drop, unless it gets its final name.
#[derive(Debug)]
pub struct NewDatabase<'a> {
    target: &'a Path,
    temporary: TempDir,
}

impl<'a> NewDatabase<'a> {
    /// Creates the directory beside `target`.
    ///
    /// # Errors
    /// If the target exists and is not an empty directory, or the directory cannot be created.
    pub fn create(target: &'a Path) -> Result<NewDatabase<'a>> {
        check_unused(target)?;
        let name = target.file_name().ok_or_else(|| {
            Failure::Usage(format!(
                "{}: the path does not end with the name of a database (for example ./repaired)",
                target.display()
            ))
        })?;
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        prefix.push(".");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".tmp").permissions(Permissions::from_mode(PERMISSIONS));
        let temporary = builder.tempdir_in(parent(target)).map_err(Failure::file(target))?;
        Ok(NewDatabase { target, temporary })
    }

    /// The directory under its temporary name.
    pub fn path(&self) -> &Path {
        self.temporary.path()
    }

    /// Gives the directory its final name, durably. The database must be closed.
    ///
    /// # Errors
    /// If the directory cannot be renamed or synced.
    pub fn publish(self) -> Result<()> {
        // The temporary name ends here: nothing is left to remove.
        std::fs::rename(self.temporary.path(), self.target).map_err(Failure::file(self.target))?;
        let parent = parent(self.target);
        File::open(parent).and_then(|directory| directory.sync_all()).map_err(Failure::file(parent))
    }
}

impl Drop for NewDatabase<'_> {
    fn drop(&mut self) {
        // Tasks of a failed statement may end a moment later: the last one closes the database, which can write files.
        for _ in 0..REMOVALS {
            let removed = std::fs::remove_dir_all(self.temporary.path());
            if removed.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                return;
            }
            std::thread::sleep(REMOVAL_WAIT);
        }
    }
}

/// Checks that the directory does not exist, or is empty.
fn check_unused(directory: &Path) -> Result<()> {
    let failed = |error| Err(Failure::file(directory)(error));
    match std::fs::read_dir(directory).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => failed(IoError::new(ErrorKind::AlreadyExists, "the directory has files (name a new one)")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => failed(error),
    }
}

/// The directory that contains a path.
pub fn parent(path: &Path) -> &Path {
    // The parent of a name without a directory is the empty path.
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

//! The resctrl file system as a directory tree: few operations, so that a fake can stand in for it.

use std::fmt::Debug;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// A directory tree. Paths are relative to its root, with `/` between names; the root itself is `""`.
pub trait Tree: Send + Sync + Debug {
    /// The whole text of a file.
    fn read(&self, path: &str) -> io::Result<String>;
    /// Writes to a file that exists, in one system call.
    fn write(&self, path: &str, text: &str) -> io::Result<()>;
    /// The names of the directories in a directory, sorted.
    fn directories(&self, path: &str) -> io::Result<Vec<String>>;
    fn create_dir(&self, path: &str) -> io::Result<()>;
    fn remove_dir(&self, path: &str) -> io::Result<()>;
    /// Where the root is, for messages.
    fn location(&self) -> PathBuf;
}

/// The operating system's tree, under a directory.
#[derive(Debug, Clone)]
pub struct OsTree {
    root: PathBuf,
}

impl OsTree {
    pub fn new(root: &Path) -> Self {
        OsTree { root: root.to_path_buf() }
    }
}

/// More than any file of resctrl has; a `tasks` file may list every thread of the machine.
const TEXT_BYTES_MAX: u64 = 64 << 20;

impl Tree for OsTree {
    fn read(&self, path: &str) -> io::Result<String> {
        let mut text = String::new();
        fs::File::open(self.root.join(path))?.take(TEXT_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).open(self.root.join(path))?;
        match file.write(text.as_bytes())? {
            written if written == text.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn directories(&self, path: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.root.join(path))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                names.extend(entry.file_name().into_string().ok());
            }
        }
        names.sort();
        Ok(names)
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        fs::create_dir(self.root.join(path))
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        fs::remove_dir(self.root.join(path))
    }

    fn location(&self) -> PathBuf {
        self.root.clone()
    }
}

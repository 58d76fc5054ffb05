//! The resctrl file system as a directory tree with few operations, so that a fake tree can replace it in tests.

use std::fmt::Debug;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// A directory tree. Paths are relative to its root, with `/` between names; the root itself is `""`.
///
/// Every operation fails with the error of the operating system.
pub trait Tree: Send + Sync + Debug {
    /// Reads the whole text of a file.
    ///
    /// # Errors
    /// If the file does not exist or is not UTF-8.
    fn read(&self, path: &str) -> io::Result<String>;
    /// Writes to an existing file in one system call.
    ///
    /// # Errors
    /// If the file does not exist, or the kernel rejects the text.
    fn write(&self, path: &str, text: &str) -> io::Result<()>;
    /// Names of the directories in a directory, sorted.
    ///
    /// # Errors
    /// If the directory does not exist.
    fn directories(&self, path: &str) -> io::Result<Vec<String>>;
    /// Creates a directory.
    ///
    /// # Errors
    /// If it exists, or the kernel refuses.
    fn create_dir(&self, path: &str) -> io::Result<()>;
    /// Removes a directory with its kernel-made contents.
    ///
    /// # Errors
    /// If it does not exist, or the kernel refuses.
    fn remove_dir(&self, path: &str) -> io::Result<()>;
    /// The path of the root, for messages.
    fn location(&self) -> PathBuf;
}

/// A directory of the operating system.
#[derive(Debug, Clone)]
pub struct OsTree {
    root: PathBuf,
}

impl OsTree {
    /// The tree with this root.
    pub fn new(root: &Path) -> Self {
        OsTree { root: root.to_path_buf() }
    }
}

/// Maximum bytes of a file. A `tasks` file may list every thread of the machine.
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

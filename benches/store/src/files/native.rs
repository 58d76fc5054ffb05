//! Files in the file system of the data directory, through `std::fs`, by one thread.

use std::fs::{self, DirEntry};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::Files;
use super::tree::File;
use crate::Result;

pub struct Native {
    root: PathBuf,
}

impl Native {
    pub fn new(directory: &Path) -> Result<Self> {
        let root = directory.join("root");
        fs::create_dir_all(&root)?;
        Ok(Native { root })
    }

    /// Passes all entries below a directory to `visit`, in the order in which the file system returns them. The type of
    /// an entry is part of its directory, so that no metadata are read.
    fn walk(&self, directory: &str, visit: &mut dyn FnMut(&DirEntry, bool) -> Result) -> Result {
        let mut directories = vec![self.root.join(directory)];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                let is_directory = entry.file_type()?.is_dir();
                visit(&entry, is_directory)?;
                if is_directory {
                    directories.push(entry.path());
                }
            }
        }
        Ok(())
    }
}

impl Files for Native {
    fn create_directory(&self, path: &str) -> Result {
        Ok(fs::create_dir(self.root.join(path))?)
    }

    fn create(&self, file: &File, contents: &[u8]) -> Result {
        Ok(fs::write(self.root.join(&file.path), contents)?)
    }

    fn find(&self, directory: &str, visit: &mut dyn FnMut(&[u8], bool)) -> Result {
        self.walk(directory, &mut |entry, is_directory| {
            let path = entry.path();
            visit(path.strip_prefix(&self.root)?.as_os_str().as_encoded_bytes(), is_directory);
            Ok(())
        })
    }

    fn read(&self, directory: &str, visit: &mut dyn FnMut(&[u8])) -> Result {
        let mut contents = Vec::new();
        self.walk(directory, &mut |entry, is_directory| {
            if !is_directory {
                contents.clear();
                fs::File::open(entry.path())?.read_to_end(&mut contents)?;
                visit(&contents);
            }
            Ok(())
        })
    }

    fn delete(&self, directory: &str) -> Result {
        fs::remove_dir_all(self.root.join(directory))?;
        if directory.is_empty() {
            fs::create_dir(&self.root)?;
        }
        Ok(())
    }

    fn sync(&self) -> Result {
        Ok(rustix::fs::syncfs(fs::File::open(&self.root)?)?)
    }

    fn settle(&self) -> Result {
        Ok(())
    }
}

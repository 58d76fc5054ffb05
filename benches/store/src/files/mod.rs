//! Trees of small files in a key-value store and in a file system, behind one interface.
//!
//! A key-value store has the schema of BetrFS (W. Jannen et al., FAST 2015): one index with the metadata and one with
//! the contents of files, both with full paths as keys ([`key_value`]). The file system is that of the data directory
//! ([`native`]).

mod key_value;
mod native;
pub mod tree;

use std::path::Path;

use crate::Result;
use crate::system::{self, Memory, Name};
use tree::File;

/// Files and directories below a root. A path has no separator at its beginning and end. The path of the root is empty.
pub trait Files {
    fn create_directory(&self, path: &str) -> Result;

    /// Creates a file with its contents.
    fn create(&self, file: &File, contents: &[u8]) -> Result;

    /// Passes the paths of all files and directories below a directory to `visit`, with true for directories.
    fn find(&self, directory: &str, visit: &mut dyn FnMut(&[u8], bool)) -> Result;

    /// Passes the contents of all files below a directory to `visit`.
    fn read(&self, directory: &str, visit: &mut dyn FnMut(&[u8])) -> Result;

    /// Deletes a directory, or all contents of the root.
    fn delete(&self, directory: &str) -> Result;

    /// Makes all changes durable.
    fn sync(&self) -> Result;

    /// Waits for background work.
    fn settle(&self) -> Result;
}

/// Opens the files of a system in `directory`, which exists.
pub fn open(name: Name, directory: &Path, memory: Memory) -> Result<Box<dyn Files>> {
    Ok(match name {
        Name::FileSystem => Box::new(native::Native::new(directory)?),
        _ => Box::new(key_value::KeyValueFiles::new(system::open_trees(name, directory, memory, key_value::TREES)?)),
    })
}

#[cfg(test)]
mod tests {
    use super::tree::{Contents, Entry, Listing, NEEDLE, Order, Tree};
    use super::*;

    fn check(files: &dyn Files, directory: &str, expected: (Listing, Contents)) {
        let (mut listing, mut contents) = (Listing::default(), Contents::default());
        files.find(directory, &mut |path, is_directory| listing.add(path, is_directory)).unwrap();
        let needle = memchr::memmem::Finder::new(NEEDLE);
        files.read(directory, &mut |bytes| contents.add(bytes, &needle)).unwrap();
        assert_eq!((listing, contents), expected);
    }

    /// All systems contain the same files, also after they were closed and opened again, and after deletions.
    #[test]
    fn systems_agree() {
        let tree = Tree::new(2_000, 1_000);
        for name in [Name::Keyaki, Name::Rocksdb, Name::FileSystem] {
            for order in [Order::Archive, Order::Random] {
                let directory = tempfile::tempdir().unwrap();
                let open = || super::open(name, directory.path(), Memory::split(64 << 20)).unwrap();
                let files = open();
                let mut contents = Vec::new();
                tree.visit(order, &mut |entry| match entry {
                    Entry::Directory(path) => files.create_directory(path),
                    Entry::File(file) => {
                        file.contents(&mut contents);
                        files.create(file, &contents)
                    }
                })
                .unwrap();
                files.sync().unwrap();
                files.settle().unwrap();
                drop(files);

                let files = open();
                let (all, part) = (tree.expected(""), tree.expected(tree.subtree()));
                check(&*files, "", all);
                check(&*files, tree.subtree(), part);
                files.delete(tree.subtree()).unwrap();
                files.sync().unwrap();
                check(&*files, "", minus(all, part, tree.subtree()));
                files.delete("").unwrap();
                check(&*files, "", Default::default());
            }
        }
    }

    /// What remains after the deletion of a directory.
    fn minus(all: (Listing, Contents), part: (Listing, Contents), directory: &str) -> (Listing, Contents) {
        let listing = Listing {
            files: all.0.files - part.0.files,
            directories: all.0.directories - part.0.directories - 1,
            path_bytes: all.0.path_bytes - part.0.path_bytes - directory.len() as u64,
        };
        let contents = Contents {
            files: all.1.files - part.1.files,
            bytes: all.1.bytes - part.1.bytes,
            matches: all.1.matches - part.1.matches,
            checksum: all.1.checksum.wrapping_sub(part.1.checksum),
        };
        (listing, contents)
    }
}

//! Files in two trees of a key-value store: metadata and contents, both by full path.
//!
//! Everything below a directory is one range of each tree. A file and its metadata are one batch, written without a
//! lookup. `find` scans the metadata only. `delete` scans the metadata and deletes each key, in batches: Keyaki has no
//! deletion of ranges, so RocksDB's `DeleteRange` is not used.

use super::Files;
use super::tree::File;
use crate::Result;
use crate::system::{Change, Trees};

pub const TREES: usize = 2;
const METADATA: usize = 0;
const CONTENTS: usize = 1;

/// Entries that a batch deletes.
const DELETED_PER_BATCH: usize = 1_000;

/// Metadata as returned by `stat`: mode, links, owner, group, size, three times.
const METADATA_BYTES: usize = 48;
const DIRECTORY_MODE: u32 = 0o040_755;
const FILE_MODE: u32 = 0o100_644;
const OWNER: u32 = 1_000;
/// Nanoseconds since 1970 of the first file.
const CREATED: u64 = 1_700_000_000_000_000_000;

pub struct KeyValueFiles {
    trees: Box<dyn Trees>,
}

impl KeyValueFiles {
    pub fn new(trees: Box<dyn Trees>) -> Self {
        KeyValueFiles { trees }
    }

    fn delete_all(&self, paths: &[(Vec<u8>, bool)]) -> Result {
        let mut changes = Vec::with_capacity(2 * paths.len());
        for (path, is_directory) in paths {
            changes.push(Change { tree: METADATA, key: path, value: None });
            if !is_directory {
                changes.push(Change { tree: CONTENTS, key: path, value: None });
            }
        }
        self.trees.commit(&changes)
    }
}

impl Files for KeyValueFiles {
    fn create_directory(&self, path: &str) -> Result {
        let metadata = metadata(DIRECTORY_MODE, 0, 0);
        self.trees.commit(&[Change { tree: METADATA, key: path.as_bytes(), value: Some(&metadata) }])
    }

    fn create(&self, file: &File, contents: &[u8]) -> Result {
        let (key, metadata) = (file.path.as_bytes(), metadata(FILE_MODE, file.bytes, file.number));
        self.trees.commit(&[
            Change { tree: METADATA, key, value: Some(&metadata) },
            Change { tree: CONTENTS, key, value: Some(contents) },
        ])
    }

    fn find(&self, directory: &str, visit: &mut dyn FnMut(&[u8], bool)) -> Result {
        let (from, to) = range(directory);
        self.trees.scan(METADATA, &from, &to, &mut |path, metadata| {
            visit(path, metadata.starts_with(&DIRECTORY_MODE.to_le_bytes()));
            Ok(())
        })
    }

    fn read(&self, directory: &str, visit: &mut dyn FnMut(&[u8])) -> Result {
        let (from, to) = range(directory);
        self.trees.scan(CONTENTS, &from, &to, &mut |_, contents| {
            visit(contents);
            Ok(())
        })
    }

    fn delete(&self, directory: &str) -> Result {
        let (from, to) = range(directory);
        let mut paths = Vec::new();
        if !directory.is_empty() {
            paths.push((directory.as_bytes().to_vec(), true));
        }
        self.trees.scan(METADATA, &from, &to, &mut |path, metadata| {
            paths.push((path.to_vec(), metadata.starts_with(&DIRECTORY_MODE.to_le_bytes())));
            if paths.len() == DELETED_PER_BATCH {
                self.delete_all(&paths)?;
                paths.clear();
            }
            Ok(())
        })?;
        self.delete_all(&paths)
    }

    fn sync(&self) -> Result {
        self.trees.sync()
    }

    fn settle(&self) -> Result {
        self.trees.settle()
    }
}

/// The keys below a directory: from the first, to the first that is greater.
fn range(directory: &str) -> (Vec<u8>, Vec<u8>) {
    match directory {
        // No path has this byte, because paths are UTF-8.
        "" => (Vec::new(), vec![0xff]),
        _ => ([directory.as_bytes(), b"/"].concat(), [directory.as_bytes(), &[b'/' + 1]].concat()),
    }
}

fn metadata(mode: u32, bytes: u64, number: u64) -> [u8; METADATA_BYTES] {
    let mut metadata = [0; METADATA_BYTES];
    let mut fields = metadata.chunks_exact_mut(4);
    let mut put = |field: u32| {
        if let Some(place) = fields.next() {
            place.copy_from_slice(&field.to_le_bytes());
        }
    };
    for field in [mode, 1, OWNER, OWNER] {
        put(field);
    }
    let time = CREATED + number * 1_000_000;
    for field in [bytes, time, time, time] {
        put(field as u32);
        put((field >> 32) as u32);
    }
    metadata
}

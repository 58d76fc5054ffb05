//! The compared systems behind one interface: [`System`], or [`Trees`] for several trees with keys of any length.
//!
//! *Memory.* A quarter of the memory is for write buffers, the rest for the cache of blocks or pages ([`Memory`]). A second
//! write buffer of the same size may exist while the first one is flushed, in Keyaki, RocksDB and fjall. redb has one
//! cache for reads and writes. LMDB maps its file. The page cache of the operating system serves redb, fjall and LMDB in
//! addition, without a limit. Keyaki and RocksDB use direct I/O.
//!
//! *Durability.* A batch is atomic and no batch is synced. RocksDB, fjall and LMDB pass each batch to the operating
//! system; Keyaki passes its log every 100 ms or 1 MiB (`Durability::Off`); redb makes its batches durable with every
//! 1,000th. A power failure loses the newest batches. It does not damage Keyaki, RocksDB, fjall and redb, but it may
//! damage LMDB.
//!
//! *Compression* is off, because the values are random bytes. Keyaki chooses an encoding for each page.

mod fjall;
mod keyaki;
mod lmdb;
mod redb;
mod rocksdb;

use std::path::Path;

use clap::ValueEnum;

use crate::Result;
use crate::keys::{Key, Row};

/// A system by the name of its option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Name {
    Keyaki,
    Rocksdb,
    Redb,
    Fjall,
    Lmdb,
    /// The file system of the data directory, for the workloads of files.
    FileSystem,
}

impl Name {
    /// The name in tables and rows.
    pub fn title(self) -> &'static str {
        match self {
            Name::Keyaki => "Keyaki",
            Name::Rocksdb => "RocksDB",
            Name::Redb => "redb",
            Name::Fjall => "fjall",
            Name::Lmdb => "LMDB",
            Name::FileSystem => "file system",
        }
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}

/// Memory of a system in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    pub cache_bytes: usize,
    pub buffer_bytes: usize,
}

impl Memory {
    /// Divides `bytes` into cache and buffers.
    pub fn split(bytes: usize) -> Memory {
        Memory { cache_bytes: bytes - bytes / 4, buffer_bytes: bytes / 4 }
    }
}

/// A key-value store. Methods may be called by several threads.
pub trait System: Send + Sync {
    /// Inserts rows as one atomic batch.
    fn insert(&self, rows: &[Row]) -> Result;

    /// Passes the value of a key to `found`.
    fn get(&self, key: &Key, found: &mut dyn FnMut(Option<&[u8]>)) -> Result;

    /// Passes the values of several keys, which the system reads concurrently, with their places to `found`. False if the
    /// system has no such function.
    fn get_many(&self, _keys: &[Key], _found: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<bool> {
        Ok(false)
    }

    /// Passes up to `limit` rows from a key on, in key order, to `visit`.
    fn scan(&self, from: &Key, limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result;

    /// Adds 1 to the counter in the values of these keys ([`crate::keys::add`]) as one atomic batch, without reading
    /// them. False if the system has no such function.
    fn upsert(&self, _keys: &[Key]) -> Result<bool> {
        Ok(false)
    }

    /// Writes all buffered rows and waits for background work.
    fn settle(&self) -> Result;

    /// Number of pages or blocks that the calling thread, or the whole system, has read from storage; `None` if the
    /// system does not count them.
    fn page_reads(&self) -> Option<u64> {
        None
    }
}

/// A change of a key in one of several trees. Without a value, the key is deleted.
pub struct Change<'a> {
    pub tree: usize,
    pub key: &'a [u8],
    pub value: Option<&'a [u8]>,
}

/// Several trees of a key-value store, with keys and values of any length.
pub trait Trees {
    /// Commits changes to any trees as one atomic batch.
    fn commit(&self, changes: &[Change<'_>]) -> Result;

    /// Passes the rows of a tree with keys of at least `from` and below `to`, in key order, to `visit`. Reads ahead,
    /// for long ranges. `visit` may commit; the scan does not return its changes.
    fn scan(&self, tree: usize, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> Result) -> Result;

    /// Writes all buffered changes.
    fn sync(&self) -> Result;

    /// Waits for background work, after [`Trees::sync`].
    fn settle(&self) -> Result;
}

/// Opens `count` trees in `directory`, which exists.
pub fn open_trees(name: Name, directory: &Path, memory: Memory, count: usize) -> Result<Box<dyn Trees>> {
    Ok(match name {
        Name::Keyaki => Box::new(keyaki::KeyakiTrees::open(directory, memory, count)?),
        Name::Rocksdb => Box::new(rocksdb::RocksDbTrees::open(directory, memory)?),
        name => return Err(format!("{name}: trees are not supported").into()),
    })
}

/// Opens the system in `directory`, which exists, and creates its files if they do not exist. `keys` is the expected
/// number of keys.
pub fn open(name: Name, directory: &Path, memory: Memory, keys: u64) -> Result<Box<dyn System>> {
    Ok(match name {
        Name::Keyaki => Box::new(keyaki::Keyaki::open(directory, memory)?),
        Name::Rocksdb => Box::new(rocksdb::RocksDb::open(directory, memory)?),
        Name::Redb => Box::new(redb::Redb::open(directory, memory)?),
        Name::Fjall => Box::new(fjall::Fjall::open(directory, memory)?),
        Name::Lmdb => Box::new(lmdb::Lmdb::open(directory, keys)?),
        Name::FileSystem => return Err("a file system is not a key-value store".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{absent_key, add, key, row};

    /// Every system gives the same answers, also after it was closed and opened again.
    #[test]
    fn systems_agree() {
        for &name in Name::value_variants().iter().filter(|name| **name != Name::FileSystem) {
            let directory = tempfile::tempdir().unwrap();
            let rows: Vec<Row> = (0..3_000).map(row).collect();
            let open = || super::open(name, directory.path(), Memory::split(64 << 20), 3_000).unwrap();
            let system = open();
            rows.chunks(100).for_each(|batch| system.insert(batch).unwrap());
            check(&*system, &rows);
            system.settle().unwrap();
            drop(system);
            let system = open();
            check(&*system, &rows);
            if system.upsert(&[key(5), key(6)]).unwrap() && system.upsert(&[key(6)]).unwrap() {
                let expected = [(5, 1), (6, 2)].map(|(number, sum)| (row(number), sum));
                for ((key, value), sum) in expected {
                    system.get(&key, &mut |found| assert_eq!(found, Some(&*add(Some(&value), sum)), "{name}")).unwrap();
                }
            }
        }
    }

    fn check(system: &dyn System, rows: &[Row]) {
        let (mut gets, mut many) = (0, 0);
        for (key, value) in rows {
            system.get(key, &mut |found| gets += usize::from(found == Some(value))).unwrap();
        }
        assert_eq!(gets, rows.len());
        let keys: Vec<Key> = rows.iter().map(|row| row.0).collect();
        let batched = system.get_many(&keys, &mut |at, found| many += usize::from(found == Some(&rows[at].1)));
        assert_eq!(many, if batched.unwrap() { rows.len() } else { 0 });
        system.get(&absent_key(1), &mut |found| assert_eq!(found, None)).unwrap();

        let mut sorted = rows.to_vec();
        sorted.sort_unstable();
        let mut scanned = Vec::new();
        let mut visit = |key: &[u8], value: &[u8]| scanned.push((key.try_into().unwrap(), value.try_into().unwrap()));
        system.scan(&sorted[100].0, 1_000, &mut visit).unwrap();
        assert_eq!(scanned, sorted[100..1_100]);
    }
}

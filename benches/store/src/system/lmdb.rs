//! LMDB through heed: a copy-on-write B+-tree in a mapped file. Commits are not synced (`MDB_NOSYNC`), and read-ahead is
//! off (`MDB_NORDAHEAD`), as its documentation advises for random reads of files that exceed the memory.

use std::path::Path;

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions};

use super::System;
use crate::Result;
use crate::keys::{Key, ROW_BYTES, Row};

pub struct Lmdb {
    env: Env,
    rows: Database<Bytes, Bytes>,
}

impl Lmdb {
    pub fn open(directory: &Path, keys: u64) -> Result<Self> {
        let mut options = EnvOpenOptions::new();
        // Half-full pages, twice.
        let map_bytes = (keys * ROW_BYTES * 4).next_multiple_of(1 << 20) + (256 << 20);
        options.map_size(map_bytes as usize).max_readers(128);
        // SAFETY: `NO_SYNC` endangers only the file, and only if the operating system crashes; `NO_READ_AHEAD` is a hint.
        unsafe { options.flags(EnvFlags::NO_SYNC | EnvFlags::NO_READ_AHEAD) };
        // SAFETY: the directory belongs to this process, and nothing else changes or truncates the mapped file.
        let env = unsafe { options.open(directory)? };
        let mut transaction = env.write_txn()?;
        let rows = env.create_database(&mut transaction, None)?;
        transaction.commit()?;
        Ok(Lmdb { env, rows })
    }
}

impl System for Lmdb {
    fn insert(&self, rows: &[Row]) -> Result {
        let mut transaction = self.env.write_txn()?;
        for (key, value) in rows {
            self.rows.put(&mut transaction, key, value)?;
        }
        Ok(transaction.commit()?)
    }

    fn get(&self, key: &Key, found: &mut dyn FnMut(Option<&[u8]>)) -> Result {
        let transaction = self.env.read_txn()?;
        found(self.rows.get(&transaction, key)?);
        Ok(())
    }

    fn scan(&self, from: &Key, limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result {
        let transaction = self.env.read_txn()?;
        let range = (std::ops::Bound::Included(from.as_slice()), std::ops::Bound::Unbounded);
        for row in self.rows.range(&transaction, &range)?.take(limit) {
            let (key, value) = row?;
            visit(key, value);
        }
        Ok(())
    }

    fn settle(&self) -> Result {
        Ok(self.env.force_sync()?)
    }
}

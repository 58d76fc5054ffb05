//! fjall: a log-structured merge tree. Its defaults have Bloom filters of 10 bits per key, blocks of 4 KiB, levelled
//! compaction and a worker per core; memory and compression are set. Batches reach the operating system, and are not
//! synced.

use std::path::Path;

use fjall::config::CompressionPolicy;
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{Memory, System};
use crate::Result;
use crate::keys::{Key, Row};

pub struct Fjall {
    database: Database,
    rows: Keyspace,
}

impl Fjall {
    pub fn open(directory: &Path, memory: Memory) -> Result<Self> {
        let database = Database::builder(directory)
            .cache_size(memory.cache_bytes as u64)
            .journal_compression(CompressionType::None)
            .open()?;
        let rows = database.keyspace("rows", || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(memory.buffer_bytes as u64)
                .data_block_compression_policy(CompressionPolicy::disabled())
        })?;
        Ok(Fjall { database, rows })
    }
}

impl System for Fjall {
    fn insert(&self, rows: &[Row]) -> Result {
        let mut batch = self.database.batch().durability(Some(PersistMode::Buffer));
        rows.iter().for_each(|(key, value)| batch.insert(&self.rows, *key, *value));
        Ok(batch.commit()?)
    }

    fn get(&self, key: &Key, found: &mut dyn FnMut(Option<&[u8]>)) -> Result {
        found(self.rows.get(key)?.as_deref());
        Ok(())
    }

    fn scan(&self, from: &Key, limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result {
        for row in self.rows.range::<&Key, _>(from..).take(limit) {
            let (key, value) = row.into_inner()?;
            visit(&key, &value);
        }
        Ok(())
    }

    fn settle(&self) -> Result {
        self.rows.rotate_memtable_and_wait()?;
        // Compactions have no function to wait for: wait until none is active for a while.
        let mut idle = 0;
        while idle < 10 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let is_busy = self.database.active_compactions() > 0 || self.database.outstanding_flushes() > 0;
            idle = if is_busy { 0 } else { idle + 1 };
        }
        Ok(self.database.persist(PersistMode::SyncAll)?)
    }
}

//! redb: a copy-on-write B-tree. Batches are not durable, except for one in [`ROWS_PER_SYNC`] rows: redb neither frees
//! pages nor survives a crash without durable commits.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::{Builder, Database, Durability, ReadableDatabase, TableDefinition};

use super::{Memory, System};
use crate::Result;
use crate::keys::{KEY_BYTES, Key, Row, VALUE_BYTES};

const TABLE: TableDefinition<&[u8; KEY_BYTES], &[u8; VALUE_BYTES]> = TableDefinition::new("rows");
/// Rows between two durable commits: 1,000 batches.
const ROWS_PER_SYNC: u64 = 100_000;

pub struct Redb {
    database: Database,
    rows: AtomicU64,
}

impl Redb {
    pub fn open(directory: &Path, memory: Memory) -> Result<Self> {
        let mut builder = Builder::new();
        builder.set_cache_size(memory.cache_bytes + memory.buffer_bytes);
        let redb = Redb { database: builder.create(directory.join("redb"))?, rows: AtomicU64::new(0) };
        redb.write(&[], Durability::Immediate)?;
        Ok(redb)
    }

    fn write(&self, rows: &[Row], durability: Durability) -> Result {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(durability)?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in rows {
                table.insert(key, value)?;
            }
        }
        Ok(transaction.commit()?)
    }
}

impl System for Redb {
    fn insert(&self, rows: &[Row]) -> Result {
        let count = rows.len() as u64;
        let before = self.rows.fetch_add(count, Ordering::Relaxed);
        let is_durable = before / ROWS_PER_SYNC != (before + count) / ROWS_PER_SYNC;
        self.write(rows, if is_durable { Durability::Immediate } else { Durability::None })
    }

    fn get(&self, key: &Key, found: &mut dyn FnMut(Option<&[u8]>)) -> Result {
        let value = self.database.begin_read()?.open_table(TABLE)?.get(key)?;
        found(value.as_ref().map(|value| value.value().as_slice()));
        Ok(())
    }

    fn scan(&self, from: &Key, limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result {
        let table = self.database.begin_read()?.open_table(TABLE)?;
        for row in table.range::<&Key>(from..)?.take(limit) {
            let (key, value) = row?;
            visit(key.value(), value.value());
        }
        Ok(())
    }

    fn settle(&self) -> Result {
        self.write(&[], Durability::Immediate)
    }
}

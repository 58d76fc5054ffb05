//! RocksDB, set as its tuning guide advises for data that exceed the memory:
//!
//! - levelled compaction, as many background jobs as cores, two write buffers, pipelined writes;
//! - the first level as large as four write buffers, which fill level 0; files as long as a write buffer;
//! - Bloom filters of 10 bits per key; index and filter blocks in the block cache, all pinned there, so that they count as
//!   memory;
//! - direct reads, direct I/O of flushes and compactions;
//! - the log is not synced; `sync_file_range` writes it back steadily, which avoids long stalls;
//! - `MultiGet` and scans with asynchronous reads through io_uring.
//!
//! Several trees share a column family: the first byte of a key is the number of its tree. They so share the memory and
//! the levels, as the indexes of MyRocks do by default.

use std::path::Path;

use rocksdb::perf::{PerfStatsLevel, set_perf_stats};
use rocksdb::{
    BlockBasedOptions, BlockBasedTablePinningTier, Cache, DB, DBCompressionType, Direction, IteratorMode,
    MergeOperands, Options, PerfContext, PerfMetric, ReadOptions, WaitForCompactOptions, WriteBatch,
};

use super::{Change, Memory, System, Trees};
use crate::Result;
use crate::keys::{Key, ROW_BYTES, Row, add, operand};

/// Longest range that a scan prefetches.
const READAHEAD_BYTES_MAX: usize = 2 << 20;

pub struct RocksDb {
    db: DB,
}

impl RocksDb {
    pub fn open(directory: &Path, memory: Memory) -> Result<Self> {
        Ok(RocksDb { db: open_db(directory, memory)? })
    }
}

fn open_db(directory: &Path, memory: Memory) -> Result<DB> {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(memory.cache_bytes));
    table.set_bloom_filter(10.0, false);
    table.set_cache_index_and_filter_blocks(true);
    table.set_unpartitioned_pinning_tier(BlockBasedTablePinningTier::All);
    table.set_format_version(6);

    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::None);
    options.increase_parallelism(std::thread::available_parallelism().map_or(1, |cores| cores.get() as i32));
    options.set_write_buffer_size(memory.buffer_bytes);
    options.set_max_write_buffer_number(2);
    options.set_max_bytes_for_level_base(4 * memory.buffer_bytes as u64);
    options.set_target_file_size_base(memory.buffer_bytes as u64);
    options.set_enable_pipelined_write(true);
    options.set_use_direct_reads(true);
    options.set_use_direct_io_for_flush_and_compaction(true);
    options.set_wal_bytes_per_sync(1 << 20);
    options.set_merge_operator("add", merge, merge_operands);
    set_perf_stats(PerfStatsLevel::EnableCount);
    // `DB::open_cf` would give the column family the default options.
    let family = (rocksdb::DEFAULT_COLUMN_FAMILY_NAME, options.clone());
    Ok(DB::open_cf_with_opts(&options, directory, [family])?)
}

/// Applies operands to a value.
fn merge(_key: &[u8], old: Option<&[u8]>, operands: &MergeOperands) -> Option<Vec<u8>> {
    Some(add(old, sum(operands)))
}

/// Combines operands.
fn merge_operands(_key: &[u8], _old: Option<&[u8]>, operands: &MergeOperands) -> Option<Vec<u8>> {
    Some(sum(operands).to_le_bytes().to_vec())
}

fn sum(operands: &MergeOperands) -> u64 {
    operands.iter().fold(0, |sum, bytes| sum.wrapping_add(operand(bytes)))
}

impl System for RocksDb {
    fn insert(&self, rows: &[Row]) -> Result {
        let mut batch = WriteBatch::default();
        rows.iter().for_each(|(key, value)| batch.put(key, value));
        Ok(self.db.write(batch)?)
    }

    fn get(&self, key: &Key, found: &mut dyn FnMut(Option<&[u8]>)) -> Result {
        found(self.db.get_pinned(key)?.as_deref());
        Ok(())
    }

    fn get_many(&self, keys: &[Key], found: &mut dyn FnMut(usize, Option<&[u8]>)) -> Result<bool> {
        let family = self.db.cf_handle(rocksdb::DEFAULT_COLUMN_FAMILY_NAME).ok_or("no default column family")?;
        let mut options = ReadOptions::default();
        options.set_async_io(true);
        let values = self.db.batched_multi_get_cf_opt(family, keys, false, &options);
        for (at, value) in values.into_iter().enumerate() {
            found(at, value?.as_deref());
        }
        Ok(true)
    }

    fn scan(&self, from: &Key, limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result {
        let mut options = ReadOptions::default();
        options.set_async_io(true);
        let readahead = limit.saturating_mul(ROW_BYTES as usize);
        if readahead > READAHEAD_BYTES_MAX {
            options.set_readahead_size(READAHEAD_BYTES_MAX);
            options.fill_cache(false);
        }
        let mode = IteratorMode::From(from, Direction::Forward);
        for row in self.db.iterator_opt(mode, options).take(limit) {
            let (key, value) = row?;
            visit(&key, &value);
        }
        Ok(())
    }

    fn upsert(&self, keys: &[Key]) -> Result<bool> {
        let mut batch = WriteBatch::default();
        keys.iter().for_each(|key| batch.merge(key, 1_u64.to_le_bytes()));
        self.db.write(batch)?;
        Ok(true)
    }

    fn settle(&self) -> Result {
        settle(&self.db)
    }

    /// Counts the blocks read by the calling thread, including index and filter blocks.
    fn page_reads(&self) -> Option<u64> {
        Some(PerfContext::default().metric(PerfMetric::BlockReadCount))
    }
}

fn settle(db: &DB) -> Result {
    let mut options = WaitForCompactOptions::default();
    options.set_flush(true);
    Ok(db.wait_for_compact(&options)?)
}

pub struct RocksDbTrees {
    db: DB,
}

impl RocksDbTrees {
    pub fn open(directory: &Path, memory: Memory) -> Result<Self> {
        Ok(RocksDbTrees { db: open_db(directory, memory)? })
    }
}

impl Trees for RocksDbTrees {
    fn commit(&self, changes: &[Change<'_>]) -> Result {
        let (mut batch, mut prefixed) = (WriteBatch::default(), Vec::new());
        for Change { tree, key, value } in changes {
            replace_by_prefixed(&mut prefixed, *tree, key);
            match value {
                Some(value) => batch.put(&prefixed, value),
                None => batch.delete(&prefixed),
            }
        }
        Ok(self.db.write(batch)?)
    }

    fn scan(&self, tree: usize, from: &[u8], to: &[u8], visit: &mut dyn FnMut(&[u8], &[u8]) -> Result) -> Result {
        let (mut start, mut end) = (Vec::new(), Vec::new());
        replace_by_prefixed(&mut start, tree, from);
        replace_by_prefixed(&mut end, tree, to);
        let mut options = ReadOptions::default();
        options.set_async_io(true);
        options.set_readahead_size(READAHEAD_BYTES_MAX);
        options.fill_cache(false);
        options.set_iterate_upper_bound(end);
        let mut iterator = self.db.raw_iterator_opt(options);
        iterator.seek(&start);
        while let Some((key, value)) = iterator.item() {
            visit(&key[1..], value)?;
            iterator.next();
        }
        Ok(iterator.status()?)
    }

    fn sync(&self) -> Result {
        Ok(self.db.flush()?)
    }

    fn settle(&self) -> Result {
        settle(&self.db)
    }
}

fn replace_by_prefixed(prefixed: &mut Vec<u8>, tree: usize, key: &[u8]) {
    prefixed.clear();
    prefixed.push(tree as u8);
    prefixed.extend_from_slice(key);
}

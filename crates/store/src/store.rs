//! The store: opening, snapshots, background work, checkpoints.

use std::path::Path;
use std::sync::Arc;

use keyaki_device::{Device, File};

use crate::cache::{Cache, Priority};
use crate::codec::{Page, PageRef};
use crate::read::Snapshot;
use crate::source::BlockingPages;
use crate::{Durability, Options, Result, Schema};

/// An open store. `Clone` gives another handle to the same one; the last handle's drop closes it (with a checkpoint, if
/// nothing failed).
#[derive(Debug, Clone)]
pub struct Store {
    _todo: (),
}

/// Counters since opening; bytes and calls.
#[derive(Debug, Clone, Copy, Default)]
pub struct StoreStats {
    pub pages_read: u64,
    pub cache_hits: u64,
    pub cache_misses: u64,
    pub cache_bytes: u64,
    pub buffer_bytes: u64,
    pub data_bytes_used: u64,
    pub data_file_bytes: u64,
    pub bytes_flushed: u64,
    pub checkpoints: u64,
}

impl Store {
    /// Opens the database directory `dir`, recovering it if it was not closed.
    pub fn open(_device: Arc<dyn Device>, _dir: &Path, _options: Options) -> Result<Store> {
        todo!()
    }
    /// Everything acknowledged so far.
    pub fn snapshot(&self) -> Snapshot {
        todo!()
    }
    /// Also what is committed but not yet durable; for writers that must see their predecessors.
    pub fn latest(&self) -> Snapshot {
        todo!()
    }
    /// Writes everything out and recycles the log.
    pub fn checkpoint(&self) -> Result<()> {
        todo!()
    }
    /// Forgets cached pages (index pages too).
    pub fn drop_caches(&self) {
        todo!()
    }
    pub fn set_durability(&self, _durability: Durability) {
        todo!()
    }
    pub fn stats(&self) -> StoreStats {
        todo!()
    }
    /// Bytes of the data file that a tree uses.
    pub fn tree_bytes(&self, _tree: u32) -> u64 {
        todo!()
    }
    pub fn options(&self) -> &Options {
        todo!()
    }
    pub fn device(&self) -> &Arc<dyn Device> {
        todo!()
    }
    /// The file that [`PageRef`]s point into.
    pub fn data_file(&self) -> &Arc<dyn File> {
        todo!()
    }
    pub fn cache(&self) -> &Cache {
        todo!()
    }
    /// Pages read with blocking calls.
    pub fn blocking(&self) -> BlockingPages {
        BlockingPages { store: self.clone() }
    }
    /// Checks the bytes read for `page` and puts it into the cache.
    pub fn admit(
        &self,
        _bytes: &[u8],
        _page: PageRef,
        _schema: &Arc<Schema>,
        _priority: Priority,
    ) -> Result<Arc<Page>> {
        todo!()
    }
    /// The page from the cache, or read now (blocking) and put there.
    pub fn read_page(&self, _page: PageRef, _schema: &Arc<Schema>, _priority: Priority) -> Result<Arc<Page>> {
        todo!()
    }
}

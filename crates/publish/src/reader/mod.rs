//! Reading a version: a device whose only file is the version's data file.
//!
//! ```text
//! store ─► file (blocking reads), queues (many reads in flight)
//!            ─► frames of the reads: in memory? under way? on disk? ─► runs of missing frames ─► requests
//! ```

mod device;
mod fetch;
mod file;
mod map;
mod queue;

use std::sync::Arc;

use crate::cache::{DiskCache, DiskCacheOptions, MemoryCache};
use crate::error::{Error, Result};
use crate::random::unique_random;
use crate::repository::Repository;
pub use device::VersionDevice;
use fetch::Fetcher;
pub use fetch::ReadStats;
pub(crate) use map::{DataMap, SUPERBLOCKS};

/// How a version is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    /// Limit of the frames in memory, in bytes. The pages that a store has decoded are in its own cache.
    pub memory_bytes: usize,
    /// A cache on disk; `None` for none.
    pub disk: Option<DiskCacheOptions>,
}

impl Default for ReadOptions {
    /// 64 MiB in memory, nothing on disk.
    fn default() -> Self {
        ReadOptions { memory_bytes: 64 << 20, disk: None }
    }
}

impl Repository {
    /// Opens a version, the newest one by default: one or two requests. The device has the files of a closed database
    /// in [`VersionDevice::directory`], for [`keyaki_store::Store::open_read_only`]. The version can be read at least
    /// for a day after its removal. Blocks.
    ///
    /// # Errors
    /// [`Error::NoVersion`], [`Error::VersionNotFound`], [`Error::Malformed`], [`Error::FormatVersion`],
    /// [`Error::CacheDirectory`]; those of requests.
    pub fn open_version(&self, number: Option<u64>, options: &ReadOptions) -> Result<Arc<VersionDevice>> {
        let repository = self.clone();
        let manifest = self.remote.run(async move {
            match number {
                Some(number) => repository.manifest(number).await,
                None => {
                    let newest = repository.newest().await?.1.map(|(_, manifest)| manifest);
                    newest.ok_or_else(|| Error::NoVersion { repository: repository.name.to_string() })
                }
            }
        })?;
        let open = |options| DiskCache::open(options, unique_random()).map(Arc::new);
        let disk = options.disk.as_ref().map(open).transpose()?;
        if let Some(disk) = disk.clone() {
            self.remote.handle().spawn_blocking(move || disk.evict());
        }
        let (number, memory) = (manifest.number, MemoryCache::new(options.memory_bytes));
        let (map, names) = (DataMap::new(manifest), self.names.clone());
        let fetcher = Arc::new(Fetcher::new(self.remote.clone(), names, map, memory, disk));
        Ok(Arc::new(VersionDevice::new(fetcher, number, &self.name)))
    }
}

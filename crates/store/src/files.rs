//! What extents, readers and writers share: the data file, its free space, and the page cache.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyaki_device::{Buffer, Device, File};

use crate::cache::{Cache, Priority};
use crate::codec::{Page, PageRef};
use crate::extent::Extent;
use crate::space::Space;
use crate::upsert::UpsertFunctions;
use crate::{Result, Schema};

#[derive(Debug)]
pub(crate) struct Files {
    pub device: Arc<dyn Device>,
    pub data: Arc<dyn File>,
    pub data_path: PathBuf,
    pub space: Space,
    pub cache: Cache,
    pub upserts: Arc<UpsertFunctions>,
    pub page_bytes: u32,
    pub pages_read: AtomicU64,
}

impl Files {
    /// Checks the bytes read for `page` and puts it into the cache.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`].
    pub fn admit(&self, bytes: &[u8], page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        self.pages_read.fetch_add(1, Ordering::Relaxed);
        let opened = Arc::new(Page::open(bytes, page, schema, &self.data_path)?);
        self.cache.insert(page.offset, opened.clone(), priority);
        Ok(opened)
    }

    /// The page from the cache, or read now (blocking) and put there.
    pub fn read_page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        if let Some(found) = self.cache.get(page.offset) {
            return Ok(found);
        }
        let mut buffer = Buffer::zeroed(page.len as usize);
        self.data.read_at(page.offset, &mut buffer)?;
        self.admit(&buffer, page, schema, priority)
    }

    /// Reads all pages of an extent at once into the cache, unless its first is there.
    pub fn read_extent(&self, extent: &Extent, schema: &Arc<Schema>) -> Result<()> {
        let index = self.read_page(extent.index(), schema, Priority::Index)?;
        if index.rows() == 0 || self.cache.get(index.entry(0).0.offset).is_some() {
            return Ok(());
        }
        let mut buffer = Buffer::zeroed((extent.meta.len - u64::from(extent.meta.index_len)) as usize);
        self.data.read_at(extent.meta.offset, &mut buffer)?;
        for number in 0..index.rows() {
            let page = index.entry(number).0;
            // An index may name only pages of its own extent; a lookup of others will tell what is wrong.
            let start = page.offset.checked_sub(extent.meta.offset).map(|start| start as usize);
            if let Some(bytes) = start.and_then(|start| buffer.get(start..start + page.len as usize)) {
                self.admit(bytes, page, schema, Priority::Scan)?;
            }
        }
        Ok(())
    }
}

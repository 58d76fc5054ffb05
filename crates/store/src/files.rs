//! What extents, readers and writers share: the data file, its free space, and the page cache.

use std::path::Path;
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
    pub data_path: Arc<Path>,
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

    /// The index page of an extent, and no other.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`].
    pub fn read_index(&self, extent: &Extent, schema: &Arc<Schema>) -> Result<Arc<Page>> {
        let index = self.read_page(extent.index(), schema, Priority::Index)?;
        extent.check_index(&index)?;
        Ok(index)
    }

    /// Reads all pages of an extent at once into the cache, unless its first is there.
    pub fn read_extent(&self, extent: &Extent, schema: &Arc<Schema>) -> Result<()> {
        let index = self.read_index(extent, schema)?;
        if self.cache.get(index.entry(0).0.offset).is_some() {
            return Ok(());
        }
        let mut buffer = Buffer::zeroed((extent.meta.len - u64::from(extent.meta.index_len)) as usize);
        self.data.read_at(extent.meta.offset, &mut buffer)?;
        for number in 0..index.rows() {
            let page = index.entry(number).0;
            // `read_index` has checked that all pages lie within the extent.
            let start = (page.offset - extent.meta.offset) as usize;
            self.admit(&buffer[start..start + page.len as usize], page, schema, Priority::Scan)?;
        }
        Ok(())
    }
}

//! The open data file with its free space and page cache, shared by extents, readers and writers.
//!
//! Snapshots, cursors and bulk writers hold references to it and may outlive the store. Every access to the data file
//! therefore passes a gate. Closing the store waits for accesses in progress and rejects later ones, except for reads of
//! queues, whose pages are not used after that. After a failed write or sync, the gate rejects writes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use keyaki_device::{Buffer, Device, File};
use keyaki_primitives::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use keyaki_primitives::sync::{Mutex, RwLock, RwLockReadGuard};

use crate::base::{Error, Options, Result, Schema, TreeId, UpsertFunctions};
use crate::codec::{Dictionaries, Page, PageRef, Projection};
use crate::pages::{Cache, Extent, ExtentId, IdleQueues, Kept, Priority, Purpose, Space};

/// Maximum length in bytes of a buffer that a thread keeps for its next read.
const BUFFER_BYTES_KEPT: usize = 64 << 10;

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
    /// A flush has left messages above their budgets, because the disk is full.
    pub postponed: AtomicBool,
    /// Number of times that messages moved down a tree.
    pub moves: AtomicU64,
    pub queues: IdleQueues,
    /// Of all trees.
    pub dictionaries: Dictionaries,
    /// The extents of a store that is open read-only, by their offset.
    pub replicas: Replicas,
    /// Held in shared mode during each access to the data file, and in exclusive mode to change the permitted accesses.
    pub gate: RwLock<Gate>,
}

/// The permitted accesses to the data file.
#[derive(Debug, Default)]
pub(crate) enum Gate {
    #[default]
    Open,
    /// Reads only: the store was opened so.
    ReadOnly,
    /// Reads only: a write or sync failed, with this error text, so the contents of the medium are unknown.
    Poisoned(String),
    /// None.
    Closed,
}

/// See [`Files::replicas`]. Each has the number of its objects: several states may have it.
pub(crate) type Replicas = Mutex<HashMap<u64, (ExtentId, usize)>>;

impl Files {
    /// The files of a store with these options. Reads and writes are permitted.
    pub fn new(
        device: &Arc<dyn Device>,
        data: Arc<dyn File>,
        data_path: &Path,
        space: Space,
        page_bytes: u32,
        options: &Options,
    ) -> Files {
        Files {
            device: device.clone(),
            data,
            data_path: data_path.into(),
            space,
            cache: Cache::new(options.cache_bytes),
            upserts: options.upserts.clone(),
            page_bytes,
            pages_read: AtomicU64::new(0),
            postponed: AtomicBool::new(false),
            moves: AtomicU64::new(0),
            queues: IdleQueues::default(),
            dictionaries: Dictionaries::default(),
            replicas: Replicas::default(),
            gate: RwLock::default(),
        }
    }

    /// An [`Error::Corrupt`] for a tree whose rows are not in key order.
    pub fn corrupt_tree(&self, tree: TreeId) -> Error {
        let detail = format!("rows of tree {tree} are not in key order");
        Error::Corrupt { path: self.data_path.to_path_buf(), what: "tree", offset: None, detail }
    }

    /// An [`Error::Corrupt`] for a reference that contradicts another one at its offset.
    pub fn corrupt_reference(&self, page: PageRef, other: PageRef) -> Error {
        let detail = format!(
            "length {} and checksum {:#010x} contradict length {} and checksum {:#010x} of a read in flight",
            page.len, page.checksum, other.len, other.checksum
        );
        let path = self.data_path.to_path_buf();
        Error::Corrupt { path, what: "page reference", offset: Some(page.offset), detail }
    }

    /// Checks that the data file may be read.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn check_open(&self) -> Result<()> {
        self.enter().map(drop)
    }

    /// Checks that the data file may be written.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::ReadOnly`], [`Error::Poisoned`].
    pub fn check_writable(&self) -> Result<()> {
        self.enter_to_write().map(drop)
    }

    fn enter(&self) -> Result<RwLockReadGuard<'_, Gate>> {
        let gate = self.gate.read();
        if matches!(*gate, Gate::Closed) { Err(Error::Closed) } else { Ok(gate) }
    }

    fn enter_to_write(&self) -> Result<RwLockReadGuard<'_, Gate>> {
        let gate = self.gate.read();
        match &*gate {
            Gate::Open => Ok(gate),
            Gate::ReadOnly => Err(Error::ReadOnly),
            Gate::Poisoned(cause) => Err(Error::Poisoned { cause: cause.clone() }),
            Gate::Closed => Err(Error::Closed),
        }
    }

    /// Rejects all later writes. The first cause is kept.
    pub fn poison(&self, cause: &str) {
        let mut gate = self.gate.write();
        if matches!(*gate, Gate::Open) {
            *gate = Gate::Poisoned(cause.to_owned());
        }
    }

    /// Rejects all writes.
    pub fn set_read_only(&self) {
        *self.gate.write() = Gate::ReadOnly;
    }

    /// Waits for accesses in progress and rejects all later ones.
    pub fn close(&self) {
        *self.gate.write() = Gate::Closed;
        self.queues.clear();
    }

    /// Allocates `len` bytes of the data file, which grows if necessary. Returns their offset.
    pub fn allocate(&self, len: u64, purpose: Purpose) -> Result<u64> {
        self.writing(|| self.space.allocate(len, purpose))
    }

    /// See [`Space::make_room`].
    pub fn make_room(&self, bytes: u64) -> Result<()> {
        self.writing(|| self.space.make_room(bytes))
    }

    /// See [`Space::make_small_room`].
    pub fn make_small_room(&self, bytes: u64) -> Result<()> {
        self.writing(|| self.space.make_small_room(bytes))
    }

    /// See [`Space::trim`]. A failure changes nothing.
    pub fn trim(&self, kept: Kept) -> Result<()> {
        let _gate = self.enter_to_write()?;
        self.space.trim(kept)
    }

    /// See [`Space::top_up`].
    pub fn top_up(&self) -> Result<()> {
        self.writing(|| self.space.top_up())
    }

    pub fn write_at(&self, offset: u64, buffer: &Buffer) -> Result<()> {
        self.writing(|| Ok(self.data.write_at(offset, buffer)?))
    }

    pub fn sync(&self) -> Result<()> {
        self.writing(|| Ok(self.data.sync_data()?))
    }

    /// Makes a call that changes the data file. A device error poisons the gate, and so does any failed sync.
    /// [`Error::DiskFull`] does not, because it leaves the file unchanged.
    fn writing<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let result = {
            let _gate = self.enter_to_write()?;
            call()
        };
        if let Err(Error::Device(error)) = &result {
            self.poison(&error.to_string());
        }
        result
    }

    /// Fills the buffer with bytes of the data file. Blocks.
    ///
    /// # Errors
    /// [`crate::Error::Closed`]; device errors.
    pub fn read_at(&self, offset: u64, buffer: &mut Buffer) -> Result<()> {
        let _gate = self.enter()?;
        Ok(self.data.read_at(offset, buffer)?)
    }

    /// Verifies the bytes read for `page` and inserts the page into the cache, with all its columns or those of a
    /// projection, see [`Page::open_columns`].
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] if the bytes fail verification.
    pub fn admit(
        &self,
        bytes: &[u8],
        page: PageRef,
        schema: &Arc<Schema>,
        priority: Priority,
        projection: Option<&Arc<Projection>>,
    ) -> Result<Arc<Page>> {
        let opened = self.open_columns(bytes, page, schema, projection)?;
        self.cache.insert(page.offset, opened.clone(), priority);
        Ok(opened)
    }

    /// Verifies the bytes read for `page`.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] if the bytes fail verification.
    pub fn open_page(&self, bytes: &[u8], page: PageRef, schema: &Arc<Schema>) -> Result<Arc<Page>> {
        self.open_columns(bytes, page, schema, None)
    }

    fn open_columns(
        &self,
        bytes: &[u8],
        page: PageRef,
        schema: &Arc<Schema>,
        projection: Option<&Arc<Projection>>,
    ) -> Result<Arc<Page>> {
        self.pages_read.fetch_add(1, Ordering::Relaxed);
        let mut opened = Page::open_with(bytes, page, schema, &self.data_path, projection, &self.dictionaries)?;
        opened.count_heaps(self.cache.heap_counter());
        Ok(Arc::new(opened))
    }

    /// Returns the page from the cache, or reads it (blocking) and inserts it into the cache.
    pub fn read_page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> Result<Arc<Page>> {
        if let Some(found) = self.cache.get(page.offset) {
            return Ok(found);
        }
        thread_local! {
            /// The buffer of the last read of a thread.
            static LAST: RefCell<Option<Buffer>> = const { RefCell::new(None) };
        }
        let len = page.len as usize;
        let last = LAST.try_with(RefCell::take).ok().flatten().filter(|buffer| buffer.len() == len);
        let mut buffer = last.unwrap_or_else(|| Buffer::zeroed(len));
        self.read_at(page.offset, &mut buffer)?;
        let admitted = self.admit(&buffer, page, schema, priority, None);
        if len <= BUFFER_BYTES_KEPT {
            // A thread that ends drops the buffer.
            let _ = LAST.try_with(|last| last.replace(Some(buffer)));
        }
        admitted
    }

    /// Returns the index page of an extent, and checks that it belongs to the extent.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] if the bytes fail verification, [`crate::Error::Closed`]; device errors.
    pub fn read_index(&self, extent: &Extent, schema: &Arc<Schema>) -> Result<Arc<Page>> {
        extent.wait_until_written()?;
        let index = self.read_page(extent.index(), schema, Priority::Index)?;
        extent.check_index(&index)?;
        Ok(index)
    }

    /// As [`read_index`](Self::read_index), but does not insert the page into the cache.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] if the bytes fail verification, [`crate::Error::Closed`]; device errors.
    pub fn read_index_once(&self, extent: &Extent, schema: &Arc<Schema>) -> Result<Arc<Page>> {
        extent.wait_until_written()?;
        let place = extent.index();
        let index = match self.cache.peek(place.offset) {
            Some(found) => found,
            None => {
                let mut buffer = Buffer::zeroed(place.len as usize);
                self.read_at(place.offset, &mut buffer)?;
                self.open_page(&buffer, place, schema)?
            }
        };
        extent.check_index(&index)?;
        Ok(index)
    }

    /// Reads consecutive data pages by one read. Does not insert them into the cache.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] if the bytes fail verification, [`crate::Error::Closed`]; device errors.
    ///
    /// # Panics
    /// If the pages are not consecutive.
    pub fn read_pages_once(&self, places: &[PageRef], schema: &Arc<Schema>) -> Result<Vec<Arc<Page>>> {
        let (Some(first), Some(last)) = (places.first(), places.last()) else { return Ok(Vec::new()) };
        let is_next = |pair: &[PageRef]| pair[0].offset + u64::from(pair[0].len) == pair[1].offset;
        assert!(places.windows(2).all(is_next), "the pages from {} on are consecutive", first.offset);
        let mut buffer = Buffer::zeroed((last.offset - first.offset) as usize + last.len as usize);
        self.read_at(first.offset, &mut buffer)?;
        let open = |place: &PageRef| {
            let start = (place.offset - first.offset) as usize;
            self.open_page(&buffer[start..start + place.len as usize], *place, schema)
        };
        places.iter().map(open).collect()
    }
}

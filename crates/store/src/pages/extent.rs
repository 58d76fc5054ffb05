//! Extents: large immutable ranges of the data file that contain pages of sorted rows, followed by their index page.
//!
//! An extent is a leaf (rows) or a part of a run (messages). It is written once. Every tree version that contains it,
//! the newest checkpoint included, holds a reference, and the last reference frees its space.

use std::sync::{Arc, Weak};

use arrow_array::{Array, ArrayRef};
use keyaki_device::{BLOCK, Buffer, Lock};
use keyaki_primitives::prefetch;
use keyaki_primitives::sync::Mutex;
use keyaki_primitives::sync::atomic::{AtomicU8, Ordering};

use crate::base::{Error, Result, Schema, TreeId};
use crate::codec::{
    Codecs, IndexEntry, Page, PageKind, PageRef, PageWriter, RunColumns, TreeDictionaries, WrittenPage, encode_index,
    filter_bytes, seal, set_checksum,
};
use crate::pages::{Files, Purpose, RESERVED_BYTES, WriteBehind};

/// A leaf has no filter if the filter would take more than this part of its data: the rows of such trees are small, as
/// those of indexes, which are seldom looked up by their whole keys.
const FILTER_SHARE: usize = 5;
/// See [`Extent::held_index`].
const USES_PER_CACHE_USE: u8 = 16;

/// Position and contents of an extent, as stored by checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExtentMeta {
    pub tree: TreeId,
    /// Offset in the data file in bytes.
    pub offset: u64,
    /// Length in bytes, including the index page.
    pub len: u64,
    /// Length in bytes of the index page, which ends the extent.
    pub index_len: u32,
    /// Checksum of the index page.
    pub index_checksum: u32,
    /// Number of data pages.
    pub pages: u32,
    pub rows: u64,
    /// Estimated change of the number of rows by the messages of a run; the number of rows of a leaf.
    pub net_rows: i64,
    /// The first and the last encoded key.
    pub first: Arc<[u8]>,
    pub last: Arc<[u8]>,
}

/// Identifies an extent among all that were written at its offset: tree, length, length and checksum of the index page.
pub(crate) type ExtentId = (TreeId, u64, u32, u32);

impl ExtentMeta {
    pub fn id(&self) -> ExtentId {
        (self.tree, self.len, self.index_len, self.index_checksum)
    }

    /// Length of the data pages in bytes.
    pub fn data_bytes(&self) -> u64 {
        self.len - u64::from(self.index_len)
    }
}

/// A live extent. Dropping it removes its pages from the cache and frees its space.
#[derive(Debug)]
pub(crate) struct Extent {
    pub meta: ExtentMeta,
    files: Arc<Files>,
    #[expect(dead_code, reason = "keeps the dictionaries that the pages may need")]
    dictionaries: Arc<TreeDictionaries>,
    /// Keeps the process that writes the file from using the space again.
    pin: Option<Arc<dyn Lock>>,
    /// The writes that include this extent, as long as one may be in flight.
    behind: Weak<WriteBehind>,
    /// The index page of the last reader, as long as the cache or a reader has it.
    index: Mutex<Weak<Page>>,
    /// Number of times that [`Extent::held_index`] was called.
    uses: AtomicU8,
}

impl Extent {
    /// Takes ownership of an allocated range.
    pub fn new(meta: ExtentMeta, files: Arc<Files>) -> Self {
        Extent::with_pin(meta, files, None)
    }

    fn with_pin(meta: ExtentMeta, files: Arc<Files>, pin: Option<Arc<dyn Lock>>) -> Self {
        let aligned = |bytes: u64| bytes.is_multiple_of(BLOCK as u64);
        assert!(aligned(meta.offset) && aligned(meta.len) && aligned(meta.index_len.into()), "{meta:?}");
        assert!(meta.offset >= RESERVED_BYTES && u64::from(meta.index_len) < meta.len, "{meta:?}");
        let dictionaries = files.dictionaries.of(meta.tree);
        let (behind, index, uses) = (Weak::new(), Mutex::default(), AtomicU8::new(0));
        Extent { meta, files, dictionaries, pin, behind, index, uses }
    }

    /// An extent of a file that another process may write. `pin` keeps it from using the space again. Extents of several
    /// checkpoints at one offset are the same extent as long as one of them lives, and share their cached pages.
    /// `None` if the space was used again nevertheless: another extent at the offset lives.
    pub fn pinned(meta: ExtentMeta, files: Arc<Files>, pin: Arc<dyn Lock>) -> Option<Self> {
        let id = meta.id();
        let mut replicas = files.replicas.lock();
        let (found, count) = replicas.entry(meta.offset).or_insert((id, 0));
        if *found != id {
            return None;
        }
        *count += 1;
        drop(replicas);
        Some(Extent::with_pin(meta, files, Some(pin)))
    }

    /// Waits until the extent is written, if a flush has begun to write it. Precedes all reads of its pages by the flush; other
    /// readers find the extent in published trees only.
    ///
    /// # Errors
    /// The error of the failed write.
    pub fn wait_until_written(&self) -> Result<()> {
        self.behind.upgrade().map_or(Ok(()), |behind| behind.wait_for(self.meta.offset))
    }

    /// Returns true if the extent lies in this data file.
    pub fn is_of(&self, files: &Arc<Files>) -> bool {
        Arc::ptr_eq(&self.files, files)
    }

    /// An [`Error::Corrupt`] for a leaf whose keys are not greater than those of the leaf before.
    pub fn corrupt_order(&self) -> Error {
        let (path, detail) =
            (self.files.data_path.to_path_buf(), "its keys are not greater than those of the leaf before".into());
        Error::Corrupt { path, what: "leaf", offset: Some(self.meta.offset), detail }
    }

    /// The reference of the index page.
    pub fn index(&self) -> PageRef {
        let len = u64::from(self.meta.index_len);
        PageRef {
            offset: self.meta.offset + self.meta.len - len,
            len: self.meta.index_len,
            tree: self.meta.tree,
            checksum: self.meta.index_checksum,
        }
    }

    /// The index page, if a reader has passed it to [`Extent::hold_index`] and it is still in memory. Finding it in the
    /// cache takes longer. Each [`USES_PER_CACHE_USE`]th call returns `None`, so that the cache counts a use.
    pub fn held_index(&self) -> Option<Arc<Page>> {
        let uses = self.uses.load(Ordering::Relaxed);
        self.uses.store(uses.wrapping_add(1), Ordering::Relaxed);
        if uses.is_multiple_of(USES_PER_CACHE_USE) {
            return None;
        }
        self.index.lock().upgrade()
    }

    /// Loads the memory that [`Extent::held_index`] needs into the caches of the processor.
    #[inline]
    pub fn prefetch(&self) {
        prefetch(&raw const self.index);
    }

    /// Loads the memory of the index page into the caches of the processor, if it was held before.
    #[inline]
    pub fn prefetch_index(&self) {
        Page::prefetch(self.index.lock().as_ptr());
    }

    /// Remembers the index page, which [`Extent::check_index`] has checked.
    pub fn hold_index(&self, index: &Arc<Page>) {
        let mut held = self.index.lock();
        if !std::ptr::eq(held.as_ptr(), Arc::as_ptr(index)) {
            *held = Arc::downgrade(index);
        }
    }

    /// Checks that `page`, read for [`Extent::index`], is the index page of this extent.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] if it is not.
    pub fn check_index(&self, page: &Page) -> Result<()> {
        let meta = &self.meta;
        if page.kind() != PageKind::Index {
            return Err(page.damaged(format!("found a page of kind {:?}, expected an index page", page.kind())));
        }
        let (start, rows) = page.extent();
        if (start, page.rows() as u64, rows) != (meta.offset, u64::from(meta.pages), meta.rows) {
            return Err(page.damaged(format!(
                "found an index of {} pages with {rows} rows from offset {start} on, expected {} pages with {} rows from \
                 offset {} on",
                page.rows(),
                meta.pages,
                meta.rows,
                meta.offset
            )));
        }
        Ok(())
    }

    /// A copy of the extent in free space before it (not synced); `None` if no free range is long enough. All pages are
    /// verified.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged page, [`Error::Closed`], [`Error::Poisoned`]; device errors.
    pub fn moved_down(&self, schema: &Arc<Schema>) -> Result<Option<Extent>> {
        let (files, meta) = (&self.files, &self.meta);
        let Some(offset) = files.space.find_below(meta.len, meta.offset) else { return Ok(None) };
        // From here on, dropping `copy` frees the space.
        let mut copy = Extent::new(ExtentMeta { offset, ..meta.clone() }, files.clone());
        let mut bytes = Buffer::zeroed(meta.len as usize);
        files.read_at(meta.offset, &mut bytes)?;
        let index_at = (meta.len - u64::from(meta.index_len)) as usize;
        let index = files.open_page(&bytes[index_at..], self.index(), schema)?;
        self.check_index(&index)?;
        for i in 0..index.rows() {
            let place = index.entry(i).0;
            let start = (place.offset - meta.offset) as usize;
            let page = &mut bytes[start..start + place.len as usize];
            files.open_page(page, place, schema)?;
            let sealed = seal(page, PageRef { offset: offset + start as u64, ..place });
            set_checksum(&mut bytes[index_at..], i, sealed.checksum);
        }
        copy.meta.index_checksum = seal(&mut bytes[index_at..], copy.index()).checksum;
        files.write_at(offset, &bytes)?;
        Ok(Some(copy))
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        if self.pin.is_some() {
            let mut replicas = self.files.replicas.lock();
            let replica = replicas.get_mut(&self.meta.offset);
            if let Some((_, count)) = replica.filter(|(_, count)| *count > 1) {
                *count -= 1;
                return;
            }
            // Under the lock, and before the pin ends: the next extent at this offset may have other pages.
            replicas.remove(&self.meta.offset);
            self.files.cache.remove(self.meta.offset..self.meta.offset + self.meta.len);
            return;
        }
        self.files.cache.remove(self.meta.offset..self.meta.offset + self.meta.len);
        self.files.space.free(self.meta.offset, self.meta.len);
    }
}

/// Writes sorted rows or messages into extents of about `target_bytes` bytes.
#[derive(Debug)]
pub(crate) struct ExtentWriter {
    tree: TreeId,
    codecs: Arc<Codecs>,
    files: Arc<Files>,
    target_bytes: usize,
    purpose: Purpose,
    behind: Option<Arc<WriteBehind>>,
    pages: PageWriter,
    dictionaries: Arc<TreeDictionaries>,
    pending: Vec<PendingPage>,
    pending_bytes: usize,
    rows: u64,
    net_rows: i64,
    /// True if the extent of the pending pages gets a filter.
    is_filtered: bool,
    /// Hashes of the keys of pending pages, for the filter.
    key_hashes: Vec<u64>,
    last_key: Vec<u8>,
    done: Vec<Arc<Extent>>,
}

#[derive(Debug)]
struct PendingPage {
    page: WrittenPage,
    first: Vec<u8>,
    fence: Vec<u8>,
}

impl ExtentWriter {
    pub fn new(tree: TreeId, codecs: &Arc<Codecs>, files: &Arc<Files>, page_bytes: usize, target_bytes: usize) -> Self {
        ExtentWriter {
            tree,
            codecs: codecs.clone(),
            files: files.clone(),
            target_bytes,
            purpose: Purpose::Load,
            behind: None,
            pages: PageWriter::new(codecs.schema.clone(), page_bytes),
            dictionaries: files.dictionaries.of(tree),
            pending: Vec::new(),
            pending_bytes: 0,
            rows: 0,
            net_rows: 0,
            is_filtered: false,
            key_hashes: Vec::new(),
            last_key: Vec::new(),
            done: Vec::new(),
        }
    }

    /// The same writer with another purpose than [`Purpose::Load`].
    pub fn with_purpose(self, purpose: Purpose) -> Self {
        ExtentWriter { purpose, ..self }
    }

    /// The same writer, which does not wait for its writes. The extents are written once [`WriteBehind::finish`] has returned.
    pub fn with_behind(self, behind: Option<&Arc<WriteBehind>>) -> Self {
        ExtentWriter { behind: behind.cloned(), ..self }
    }

    /// Writes the rows from `from` on, whose keys follow those written before. Unless `all` is set, the last rows are
    /// left for the next call if they may not fill a page. Returns the index of the first row not written.
    pub fn write(
        &mut self,
        columns: &[ArrayRef],
        messages: Option<&RunColumns>,
        from: usize,
        all: bool,
    ) -> Result<usize> {
        let rows = columns.first().map_or(0, |column| column.len());
        self.pages.train(columns, &self.dictionaries);
        let mut row = from;
        while row < rows {
            let page = self.pages.encode(columns, messages, row)?;
            let end = row + page.rows;
            if end == rows && !all {
                // The page may have space for more rows.
                break;
            }
            self.add(page, columns, messages, row)?;
            row = end;
        }
        Ok(row)
    }

    fn add(
        &mut self,
        page: WrittenPage,
        columns: &[ArrayRef],
        messages: Option<&RunColumns>,
        row: usize,
    ) -> Result<()> {
        let keys = &columns[..self.codecs.schema.key_columns()];
        let mut first = Vec::new();
        self.codecs.key.encode(keys, row, &mut first);
        if first <= self.last_key {
            // The rows come from pages of the tree, or from a caller that has checked their order.
            return Err(self.files.corrupt_tree(self.tree));
        }
        let fence = if self.pending.is_empty() { Vec::new() } else { separator(&self.last_key, &first) };
        self.is_filtered |= self.pending.is_empty();
        if self.is_filtered {
            self.codecs.key.hashes(keys, row..row + page.rows, &mut self.key_hashes);
            let data = self.pending_bytes + page.bytes.len();
            if messages.is_none() && filter_bytes(self.key_hashes.len()) * FILTER_SHARE > data {
                self.is_filtered = false;
                self.key_hashes.clear();
            }
        }
        self.last_key.clear();
        self.codecs.key.encode(keys, row + page.rows - 1, &mut self.last_key);
        self.pending_bytes += page.bytes.len();
        self.rows += page.rows as u64;
        self.net_rows += match messages {
            Some(RunColumns { kinds, priors, .. }) => {
                (row..row + page.rows).map(|row| kinds[row].net_rows(priors[row])).sum()
            }
            None => page.rows as i64,
        };
        self.pending.push(PendingPage { page, first, fence });
        if self.pending_bytes >= self.target_bytes {
            self.cut()?;
        }
        Ok(())
    }

    /// Ends the current extent and writes it out (not synced).
    fn cut(&mut self) -> Result<()> {
        let Some(head) = self.pending.first() else { return Ok(()) };
        let (first, last) = (head.first.as_slice().into(), self.last_key.as_slice().into());
        // Offsets are relative until the extent is placed, and stay relative in the index page.
        let mut entries = Vec::with_capacity(self.pending.len());
        let mut offset = 0;
        for pending in &mut self.pending {
            let len = pending.page.bytes.len() as u32;
            let page = PageRef { offset, len, tree: self.tree, checksum: 0 };
            entries.push(IndexEntry {
                page,
                rows: pending.page.rows as u32,
                fence: std::mem::take(&mut pending.fence),
            });
            offset += u64::from(len);
        }
        let mut index = encode_index(&entries, &self.key_hashes);
        let index_len = index.len();
        let len = offset + index_len as u64;
        let base = self.allocate(len)?;
        let meta = ExtentMeta {
            tree: self.tree,
            offset: base,
            len,
            index_len: index_len as u32,
            index_checksum: 0,
            pages: entries.len() as u32,
            rows: self.rows,
            net_rows: self.net_rows,
            first,
            last,
        };
        // From here on, dropping `extent` frees the space.
        let mut extent = Extent::new(meta, self.files.clone());
        let mut buffer = Buffer::zeroed(len as usize);
        for (i, (entry, pending)) in entries.iter().zip(&self.pending).enumerate() {
            let at = entry.page.offset as usize;
            let bytes = &mut buffer[at..at + pending.page.bytes.len()];
            bytes.copy_from_slice(&pending.page.bytes);
            let sealed = seal(bytes, PageRef { offset: base + entry.page.offset, ..entry.page });
            set_checksum(&mut index, i, sealed.checksum);
        }
        let at = offset as usize;
        buffer[at..at + index_len].copy_from_slice(&index);
        extent.meta.index_checksum = seal(&mut buffer[at..at + index_len], extent.index()).checksum;
        self.put(extent, buffer)?;
        self.pending.clear();
        self.pending_bytes = 0;
        self.rows = 0;
        self.net_rows = 0;
        self.key_hashes.clear();
        Ok(())
    }

    /// Allocates `len` bytes. Returns their offset.
    fn allocate(&self, len: u64) -> Result<u64> {
        match (self.files.allocate(len, self.purpose), &self.behind) {
            (Err(Error::DiskFull { .. }), Some(behind)) => {
                // Extents that the flush has replaced may be in flight, and their space is free afterwards.
                behind.finish()?;
                self.files.allocate(len, self.purpose)
            }
            (allocated, _) => allocated,
        }
    }

    /// Writes an extent, or begins to.
    fn put(&mut self, mut extent: Extent, buffer: Buffer) -> Result<()> {
        let behind = self.behind.as_ref().filter(|_| !self.files.space.is_full());
        extent.behind = behind.map_or(Weak::new(), Arc::downgrade);
        let extent = Arc::new(extent);
        match behind {
            Some(behind) => behind.begin(extent.clone(), buffer)?,
            None => self.files.write_at(extent.meta.offset, &buffer)?,
        }
        self.done.push(extent);
        Ok(())
    }

    /// Writes the pending pages and returns all extents in key order (not synced).
    pub fn finish(mut self) -> Result<Vec<Arc<Extent>>> {
        self.cut()?;
        Ok(std::mem::take(&mut self.done))
    }
}

/// The shortest prefix of `above` that is greater than `below` (`below < above`).
fn separator(below: &[u8], above: &[u8]) -> Vec<u8> {
    let common = below.iter().zip(above).take_while(|(a, b)| a == b).count();
    above[..above.len().min(common + 1)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::separator;

    #[test]
    fn separators_are_short_and_between() {
        assert_eq!(separator(b"abc", b"abd"), b"abd");
        assert_eq!(separator(b"abc", b"b"), b"b");
        assert_eq!(separator(b"ab", b"abcdef"), b"abc");
        assert_eq!(separator(b"aaaa", b"bbbb"), b"b");
    }
}

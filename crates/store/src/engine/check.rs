//! Verification of all pages that the trees refer to.
//!
//! Reads verify the pages that they need; [`Store::check`] verifies all of them, from the device, and also what no read
//! verifies: the order of the keys within a page, the filters, and the first and last keys of extents.

use std::ops::{Bound, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use keyaki_device::Buffer;
use keyaki_primitives::sync::Mutex;

use crate::base::{Error, Key, KeyRange, Result, Schema, TreeId};
use crate::codec::{MessageKind, Page, PageRef};
use crate::engine::{DamagedKeys, Store};
use crate::pages::{Extent, Files};
use crate::tree::{InnerNode, Node, TreeVersion};

/// Threads that verify extents, at most.
const THREADS_MAX: usize = 8;

/// Result of [`Store::check`].
#[derive(Debug, Clone, Default)]
pub struct Checked {
    /// The trees on disk, by their ids.
    pub trees: Vec<CheckedTree>,
    /// The damaged pages, in the order of their trees and positions in the data file.
    pub damage: Vec<Damage>,
    /// False if the check was ended before all pages were verified.
    pub is_complete: bool,
}

/// The verified pages of one tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedTree {
    /// The tree.
    pub tree: TreeId,
    /// Number of pages with rows or messages.
    pub pages: u64,
    /// Bytes of the data file that belong to the tree.
    pub bytes: u64,
}

/// A page, or all pages of an extent, that cannot be used.
#[derive(Debug, Clone)]
pub struct Damage {
    /// The tree that the page belongs to.
    pub tree: TreeId,
    /// What the page holds.
    pub part: DamagedPart,
    /// What is wrong, with the position in the data file.
    pub cause: Error,
    /// The keys that may lie there.
    pub keys: DamagedKeys,
}

/// What a damaged page holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DamagedPart {
    /// Rows.
    Rows,
    /// Changes that have not reached the rows.
    Messages,
    /// A sample of the rows, for statistics. No row is lost.
    Sample,
}

/// An extent to verify.
pub(super) struct Item {
    pub extent: Arc<Extent>,
    pub version: Arc<TreeVersion>,
    pub part: DamagedPart,
    /// A leaf's keys are greater than or equal to the first and less than the second.
    bounds: (Option<Key>, Option<Key>),
}

impl Store {
    /// Reads and verifies all pages of the trees on disk that are `wanted`, and continues after damage. `progress` receives the
    /// numbers of rows and messages verified so far and in total, from several threads, and ends the check by returning
    /// false. Blocks.
    ///
    /// # Errors
    /// [`Error::Closed`]. Damage, also pages that the device cannot read, is part of the result.
    pub fn check(
        &self,
        wanted: impl Fn(TreeId) -> bool,
        progress: &(dyn Fn(u64, u64) -> bool + Sync),
    ) -> Result<Checked> {
        self.files().check_open()?;
        let state = self.shared.state.read().clone();
        let (mut items, mut trees) = (Vec::new(), Vec::new());
        for (&tree, version) in state.trees.iter().filter(|(tree, _)| !tree.is_memory() && wanted(**tree)) {
            let own = items_of(version);
            let sum = |of: fn(&Item) -> u64| own.iter().map(of).sum();
            let (pages, bytes) = (sum(|item| item.extent.meta.pages.into()), sum(|item| item.extent.meta.len));
            trees.push(CheckedTree { tree, pages, bytes });
            items.extend(own);
        }
        let total = items.iter().map(|item| item.extent.meta.rows).sum();
        let (done, found) = (AtomicU64::new(0), Mutex::new(Ok(Vec::new())));
        let is_complete = in_parallel(&items, |item| {
            let damage = Verifier { files: self.files(), item }.extent();
            match (&mut *found.lock(), damage) {
                (Ok(found), Ok(damage)) => found.extend(damage),
                (found, Err(error)) => *found = Err(error),
                (Err(_), Ok(_)) => {}
            }
            let rows = item.extent.meta.rows;
            found.lock().is_ok() && progress(done.fetch_add(rows, Ordering::Relaxed) + rows, total)
        });
        let mut damage = found.into_inner()?;
        by_position(&mut damage);
        Ok(Checked { trees, damage, is_complete })
    }
}

/// Calls `work` for each item, on several threads, until it returns false. Returns true if it never does.
pub(super) fn in_parallel<T: Sync>(items: &[T], work: impl Fn(&T) -> bool + Sync) -> bool {
    let (next, goes_on) = (AtomicUsize::new(0), AtomicBool::new(true));
    let run = || {
        while goes_on.load(Ordering::Relaxed)
            && let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed))
        {
            if !work(item) {
                goes_on.store(false, Ordering::Relaxed);
            }
        }
    };
    let helpers = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX).min(items.len());
    std::thread::scope(|scope| {
        // Without further threads, this one does all.
        let spawn = |_| std::thread::Builder::new().name("keyaki-verify".into()).spawn_scoped(scope, run).ok();
        let threads: Vec<_> = (1..helpers).filter_map(spawn).collect();
        run();
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    goes_on.into_inner()
}

/// The extents of a tree, in the order of their positions in the data file.
pub(super) fn items_of(version: &Arc<TreeVersion>) -> Vec<Item> {
    let mut items = Vec::new();
    add_node(&mut items, version, &version.root, (None, None));
    let sample = version.sample.iter().flat_map(|sample| &sample.leaves);
    items.extend(sample.map(|extent| Item {
        extent: extent.clone(),
        version: version.clone(),
        part: DamagedPart::Sample,
        bounds: (None, None),
    }));
    // The parts of a run in several nodes share an extent.
    items.sort_by_key(|item| (item.extent.meta.offset, item.part));
    items.dedup_by_key(|item| item.extent.meta.offset);
    items
}

/// Sorts damaged pages by their trees and positions in the data file.
pub(super) fn by_position(damage: &mut [Damage]) {
    damage.sort_by_key(|damage| (damage.tree, position(&damage.cause)));
}

/// The position of an error in the data file.
fn position(error: &Error) -> u64 {
    match error {
        Error::Corrupt { offset, .. } => offset.unwrap_or(0),
        Error::Device(error) => error.range.as_ref().map_or(0, |range| range.offset),
        _ => 0,
    }
}

/// Adds the extents of a subtree, whose keys lie between the bounds.
fn add_node(items: &mut Vec<Item>, version: &Arc<TreeVersion>, node: &InnerNode, bounds: (Option<&Key>, Option<&Key>)) {
    let parts = node.runs.iter().flat_map(|run| run.parts());
    items.extend(parts.map(|part| Item {
        extent: part.extent.clone(),
        version: version.clone(),
        part: DamagedPart::Messages,
        bounds: (None, None),
    }));
    for (i, child) in node.children.iter().enumerate() {
        let (low, high) = node.bounds(i);
        let (low, high) = (low.or(bounds.0), high.or(bounds.1));
        match &**child {
            Node::Inner(inner) => add_node(items, version, inner, (low, high)),
            Node::Leaf(None) => {}
            Node::Leaf(Some(extent)) => items.push(Item {
                extent: extent.clone(),
                version: version.clone(),
                part: DamagedPart::Rows,
                bounds: (low.cloned(), high.cloned()),
            }),
        }
    }
}

/// Verifies one extent.
pub(super) struct Verifier<'a> {
    pub files: &'a Arc<Files>,
    pub item: &'a Item,
}

impl Verifier<'_> {
    /// Reads the extent. Returns its damaged pages.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn extent(&self) -> Result<Vec<Damage>> {
        self.pages(self.read().as_ref())
    }

    /// The bytes of the extent; `None` if the device cannot read all of it, so that the caller reads page by page.
    pub fn read(&self) -> Option<Buffer> {
        let meta = &self.item.extent.meta;
        self.read_range(meta.offset, meta.len).ok()
    }

    /// Reads a range, which may lie behind the end of a file that was truncated.
    fn read_range(&self, offset: u64, len: u64) -> Result<Buffer> {
        // Before the allocation: the length may be wrong.
        let end = offset.saturating_add(len);
        if end > self.files.data.len()? {
            let (path, detail) = (self.files.data_path.to_path_buf(), format!("the file ends before offset {end}"));
            return Err(Error::Corrupt { path, what: "data file", offset: Some(offset), detail });
        }
        let mut bytes = Buffer::zeroed(len as usize);
        self.files.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads and opens a page of the extent, which may have these bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Closed`], device errors.
    pub fn open(&self, bytes: Option<&Buffer>, place: PageRef) -> Result<Arc<Page>> {
        if let Some(bytes) = bytes {
            let start = (place.offset - self.item.extent.meta.offset) as usize;
            return self.files.open_page(&bytes[start..start + place.len as usize], place, self.schema());
        }
        let bytes = self.read_range(place.offset, place.len.into())?;
        self.files.open_page(&bytes, place, self.schema())
    }

    /// The schema of the tree.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.item.version.codecs.schema
    }

    /// True if the pages must have rows, not messages.
    pub fn is_leaf(&self) -> bool {
        self.item.part == DamagedPart::Rows
    }

    /// Opens the index page of the extent, and checks it against its reference and the node of the extent.
    ///
    /// # Errors
    /// As [`Verifier::open`].
    pub fn index(&self, bytes: Option<&Buffer>) -> Result<Arc<Page>> {
        let index = self.open(bytes, self.item.extent.index())?;
        self.item.extent.check_index(&index)?;
        self.bounds().map_err(|detail| index.damaged(detail))?;
        Ok(index)
    }

    /// Opens and checks page `i` of the extent.
    ///
    /// # Errors
    /// As [`Verifier::open`].
    pub fn data_page(&self, bytes: Option<&Buffer>, index: &Page, i: usize) -> Result<Arc<Page>> {
        let page = self.open(bytes, index.entry(i).0)?;
        self.page(index, i, &page)?;
        Ok(page)
    }

    /// The damaged pages of the extent with these bytes; without bytes, reads each page.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn pages(&self, bytes: Option<&Buffer>) -> Result<Vec<Damage>> {
        let (extent, mut found) = (&*self.item.extent, Vec::new());
        let mut damage = |cause: Error, keys: DamagedKeys| match cause {
            Error::Closed => Err(Error::Closed),
            cause => {
                found.push(Damage { tree: extent.meta.tree, part: self.item.part, cause, keys });
                Ok(())
            }
        };
        match self.index(bytes) {
            Err(cause) => damage(cause, DamagedKeys::of(extent))?,
            Ok(index) => {
                for i in 0..index.rows() {
                    if let Err(cause) = self.data_page(bytes, &index, i) {
                        damage(cause, DamagedKeys::of_pages(extent, &index, i..i + 1))?;
                    }
                }
            }
        }
        Ok(found)
    }

    /// Checks the keys of the extent against its node.
    pub fn bounds(&self) -> std::result::Result<(), String> {
        let (meta, (low, high)) = (&self.item.extent.meta, &self.item.bounds);
        let is_within =
            low.as_ref().is_none_or(|low| **low <= *meta.first) && high.as_ref().is_none_or(|high| *meta.last < **high);
        match meta.first <= meta.last && is_within {
            true => Ok(()),
            false => Err("the keys of its extent do not lie between those of its node".into()),
        }
    }

    /// Checks page `i` of the extent.
    fn page(&self, index: &Page, i: usize, page: &Page) -> Result<()> {
        let meta = &self.item.extent.meta;
        index.check_data_page(i, page, self.is_leaf())?;
        let (_, last) = check_rows(page, |row, key| match row {
            _ if !index.may_contain(key) => Some("is missing in the filter of its extent"),
            0 if i == 0 && *key != *meta.first => Some("is not the first one of its extent"),
            0 if *key < *index.fence(i) => Some("lies before its page"),
            _ => None,
        })?;
        let is_last = i + 1 == index.rows();
        match if is_last { *last == *meta.last } else { *last < *index.fence(i + 1) } {
            true => Ok(()),
            false => Err(page.damaged("its last row lies behind its page".into())),
        }
    }
}

/// Checks the rows of a page: their order, and whether `defect` names a defect of a row with its key. Returns the first
/// and the last key.
///
/// # Errors
/// [`Error::Corrupt`].
pub(super) fn check_rows(
    page: &Page,
    defect: impl Fn(usize, &[u8]) -> Option<&'static str>,
) -> Result<(Vec<u8>, Vec<u8>)> {
    page.check_all_columns()?;
    let (mut first, mut key, mut before) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..page.rows() {
        key.clear();
        page.key(row, &mut key);
        let detail = match page.message(row) {
            None => Some("has an unknown kind"),
            Some((MessageKind::Insert, _)) if !page.is_complete(row) => Some("lacks a value"),
            _ if row > 0 && key <= before => Some("is not in key order"),
            _ => defect(row, &key),
        };
        if let Some(detail) = detail {
            return Err(page.damaged(format!("row {row} {detail}")));
        }
        if row == 0 {
            first = key.clone();
        }
        std::mem::swap(&mut key, &mut before);
    }
    Ok((first, before))
}

impl DamagedKeys {
    /// The keys as a range.
    pub(super) fn range(&self) -> KeyRange {
        let high = self.high.clone();
        let end = if self.includes_high { Bound::Included(high) } else { Bound::Excluded(high) };
        KeyRange { start: Bound::Included(self.low.clone()), end }
    }

    /// All keys of an extent.
    pub(super) fn of(extent: &Extent) -> DamagedKeys {
        DamagedKeys { low: extent.meta.first.to_vec(), high: extent.meta.last.to_vec(), includes_high: true }
    }

    /// The keys of the pages `pages` of an extent.
    pub(super) fn of_pages(extent: &Extent, index: &Page, pages: Range<usize>) -> DamagedKeys {
        let mut keys = DamagedKeys::of(extent);
        if pages.start > 0 {
            keys.low = index.fence(pages.start).to_vec();
        }
        if pages.end < index.rows() {
            (keys.high, keys.includes_high) = (index.fence(pages.end).to_vec(), false);
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, BinaryViewArray};
    use keyaki_device::simulated::Simulated;

    use super::*;
    use crate::base::Options;
    use crate::pages::ExtentWriter;

    /// The damage of an extent with these keys in the order given, and `bounds` of its node.
    fn verified(keys: &[&str], bounds: (&str, &str)) -> Vec<Damage> {
        let device = Simulated::new(Default::default()).device();
        let store = Store::open(device, std::path::Path::new("/db"), Options::default()).unwrap();
        let codecs = TreeVersion::empty(Arc::new(crate::codec::Codecs::new(Schema::key_value())));
        let column: ArrayRef = Arc::new(BinaryViewArray::from_iter_values(keys));
        let tree = TreeId::new(2);
        let mut writer = ExtentWriter::new(tree, &codecs.codecs, store.files(), 4096, 1 << 20);
        writer.write(&[column.clone(), column], None, 0, true).unwrap();
        let extent = writer.finish().unwrap().remove(0);
        let bound = |text: &str| Some(text.as_bytes().into());
        let bounds = (bound(bounds.0), bound(bounds.1));
        let item = Item { extent, version: Arc::new(codecs), part: DamagedPart::Rows, bounds };
        Verifier { files: store.files(), item: &item }.extent().unwrap()
    }

    #[test]
    fn orders_and_bounds_are_verified() {
        let damage = verified(&["a", "b", "c"], ("a", "d"));
        assert!(damage.is_empty(), "{damage:?}");
        for (keys, bounds, detail) in [
            (&["a", "c", "b", "d"][..], ("a", "e"), "row 2 is not in key order"),
            (&["a", "b", "b", "c"][..], ("a", "e"), "row 2 is not in key order"),
            (&["a", "b"][..], ("b", "e"), "do not lie between those of its node"),
            (&["a", "b"][..], ("a", "b"), "do not lie between those of its node"),
        ] {
            let damage = verified(keys, bounds);
            let [damage] = damage.as_slice() else { panic!("{keys:?}: {damage:?}") };
            assert!(damage.cause.to_string().contains(detail), "{}", damage.cause);
            assert_eq!((damage.tree, damage.part), (TreeId::new(2), DamagedPart::Rows));
        }
    }
}

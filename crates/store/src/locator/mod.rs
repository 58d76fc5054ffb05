//! Locators: an in-memory index of the leaf pages of a tree, so that a lookup reads one data page and no index page.
//!
//! ```text
//!           a VAST tree over the words: at most half a bit for each page
//!  word     first eight bytes of the page's fence key  ─┐
//!  blocks   blocks before the page, over all leaves    ─┤ compressed columns: a few bytes for each page
//!  rows     rows before the page, over all leaves      ─┘
//!  checksum four bytes for each page
//! ```
//!
//! Without a locator, a lookup first searches the index page of the leaf. The index page may have to be read, and a
//! cached index page takes several times the memory of the locator's entries. A locator is derived from the index pages
//! and is not stored in the database.
//!
//! A locator is static. It describes *extents*, which never change, so every entry is valid for every snapshot. A leaf
//! written after the locator is searched through its index page until the locator is rebuilt (see [`registry`]). Newer
//! messages of the tree are in root buffers and runs, as in a tree without a locator.
//!
//! A word is a prefix of the key. A lookup falls back to the index page if the word does not decide between two pages,
//! that is, if the word of the next page is equal to the word of the search key.
//!
//! If the memory limits allow it, the locator also keeps the data pages of the leaves in memory.

mod build;
mod registry;

use std::collections::HashMap;
use std::ops::{Bound, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use keyaki_device::BLOCK;
use keyaki_vast::{Packed, Tree};

pub use keyaki_vast::{Displacement, Goal};
pub(crate) use registry::{Locators, TreeLeaves};

use crate::base::KeyRange;
use crate::codec::{Page, PageRef};
use crate::pages::Extent;

/// Options of a locator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocatorOptions {
    /// Optimization goal of the search tree.
    pub goal: Goal,
    /// Maximum size in bytes; `None`: unlimited, and no pages in memory. The pages of the leaves are kept in memory if
    /// they fit both into this budget and into the store's memory limit.
    pub memory_bytes: Option<u64>,
}

/// Size and composition of a locator.
#[derive(Debug, Clone, Default)]
pub struct LocatorStats {
    /// Leaves that the locator describes.
    pub leaves: u64,
    /// Data pages of these leaves.
    pub pages: u64,
    /// Rows of these leaves.
    pub rows: u64,
    /// Pages of the tree's current leaves that the locator does not describe.
    pub pages_missing: u64,
    /// Bytes of the locator in memory, without the pages that it keeps.
    pub bytes: u64,
    /// Bytes of the search tree; part of `bytes`.
    pub tree_bytes: u64,
    /// Number of pages kept in memory.
    pub pages_held: u64,
    /// Bytes of the pages kept in memory.
    pub bytes_held: u64,
    /// Distribution of the distance, in pages, from the end of a traversal of the search tree to the answer.
    pub displacement: Displacement,
    /// Duration of the build; `None` without a locator.
    pub build_time: Option<Duration>,
    /// The reason why the tree has no locator (reads then use index pages), or why no page is kept in memory.
    pub problem: Option<String>,
}

/// A static index of leaf pages (shared), with the pages themselves if they are kept in memory.
#[derive(Debug)]
pub(crate) struct Locator {
    index: Arc<Index>,
    held: Option<Held>,
}

/// Word, position, row count and checksum of each page, in key order.
#[derive(Debug)]
struct Index {
    /// In key order.
    leaves: Vec<Leaf>,
    /// Number of each leaf by the address of its extent. `leaves` holds a weak reference to the extent, so no other
    /// extent can be allocated at that address.
    by_extent: HashMap<usize, u32>,
    tree: Tree<u64>,
    words: Packed<u64>,
    /// Blocks before each page, counted from the first page of the locator; the additional last value is the total.
    blocks: Packed<u64>,
    /// Rows before each page; the additional last value is the total.
    rows: Packed<u64>,
    checksums: Box<[u32]>,
    keys: Words,
    build_time: Duration,
}

/// Pages kept in memory: a slot for each page of the locator.
#[derive(Debug)]
struct Held {
    pages: Box<[OnceLock<Arc<Page>>]>,
    count: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Debug)]
struct Leaf {
    #[expect(dead_code, reason = "the weak reference keeps the extent's address from being reused")]
    extent: Weak<Extent>,
    first_page: u32,
}

/// The function from encoded keys to words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Words {
    /// The first key column is nullable: each key starts with a marker byte (0: null, 1: a value follows).
    nullable: bool,
}

impl Words {
    /// The word of a key or of a prefix of a key: its first eight bytes after the marker, padded with zeros, as a
    /// big-endian number. Monotonic: `a <= b` implies `of(a) <= of(b)`.
    fn of(self, key: &[u8]) -> u64 {
        let key = match key.split_first() {
            Some((0, _)) | None if self.nullable => return 0,
            Some((1, rest)) if self.nullable => rest,
            // An end bound above all keys.
            Some(_) if self.nullable => return u64::MAX,
            _ => key,
        };
        let mut word = [0; 8];
        let len = key.len().min(8);
        word[..len].copy_from_slice(&key[..len]);
        u64::from_be_bytes(word)
    }
}

/// A leaf that a locator describes; used instead of the leaf's index page.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    locator: Arc<Locator>,
    extent: Arc<Extent>,
    /// First page and end, as page numbers of the locator.
    pages: (usize, usize),
}

impl Locator {
    /// The entries of an extent; `None` if the locator does not describe the extent.
    pub fn locate(self: &Arc<Self>, extent: &Arc<Extent>) -> Option<Located> {
        let leaf = *self.index.by_extent.get(&address(extent))? as usize;
        let pages = self.index.pages_of(leaf);
        Some(Located { locator: self.clone(), extent: extent.clone(), pages: (pages.start, pages.end) })
    }

    fn describes(&self, extent: &Arc<Extent>) -> bool {
        self.index.by_extent.contains_key(&address(extent))
    }

    /// Bytes in memory, without the pages that are kept.
    fn bytes(&self) -> u64 {
        let slots = self.held.as_ref().map_or(0, |held| size_of_val(&*held.pages));
        (self.index.bytes() + slots) as u64
    }

    /// Bytes of the pages kept in memory.
    fn held_bytes(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.bytes.load(Ordering::Relaxed))
    }

    fn stats(&self) -> LocatorStats {
        let index = &*self.index;
        LocatorStats {
            leaves: index.leaves.len() as u64,
            pages: index.pages() as u64,
            rows: index.rows.get(index.pages()),
            pages_missing: 0,
            bytes: self.bytes(),
            tree_bytes: index.tree.bytes() as u64,
            pages_held: self.held.as_ref().map_or(0, |held| held.count.load(Ordering::Relaxed)),
            bytes_held: self.held_bytes(),
            displacement: index.tree.displacement().clone(),
            build_time: Some(index.build_time),
            problem: None,
        }
    }
}

impl Index {
    fn pages(&self) -> usize {
        self.checksums.len()
    }

    fn pages_of(&self, leaf: usize) -> Range<usize> {
        let end = self.leaves.get(leaf + 1).map_or(self.pages(), |next| next.first_page as usize);
        self.leaves[leaf].first_page as usize..end
    }

    fn bytes(&self) -> usize {
        let columns = self.words.bytes() + self.blocks.bytes() + self.rows.bytes() + size_of_val(&*self.checksums);
        // A hash map entry takes a control byte. The factor 2 covers the map's free slots.
        let leaf = size_of::<Leaf>() + 2 * (size_of::<(usize, u32)>() + 1);
        self.tree.bytes() + columns + leaf * self.leaves.len()
    }
}

impl Held {
    fn new(pages: usize) -> Held {
        let pages = (0..pages).map(|_| OnceLock::new()).collect();
        Held { pages, count: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }
}

fn address(extent: &Arc<Extent>) -> usize {
    Arc::as_ptr(extent) as usize
}

impl Located {
    pub fn pages(&self) -> usize {
        self.pages.1 - self.pages.0
    }

    /// Reference to a page, and its number of rows; the same answer as [`Page::entry`] of the index page.
    pub fn entry(&self, page: usize) -> (PageRef, u32) {
        let (index, meta, page) = (&self.locator.index, &self.extent.meta, self.pages.0 + page);
        let (start, end) = (index.blocks.get(page), index.blocks.get(page + 1));
        let place = PageRef {
            offset: meta.offset + (start - index.blocks.get(self.pages.0)) * BLOCK as u64,
            len: ((end - start) * BLOCK as u64) as u32,
            tree: meta.tree,
            checksum: index.checksums[page],
        };
        (place, (index.rows.get(page + 1) - index.rows.get(page)) as u32)
    }

    /// The pages that may hold keys of a range, equal to the answer of the index page. `None` if the words do not
    /// decide; the caller then searches the index page.
    pub fn pages_of(&self, range: &KeyRange) -> Option<Range<usize>> {
        let exact = |key: &Vec<u8>| match self.find(key) {
            (page, true) => Some(page),
            (_, false) => None,
        };
        let first = match &range.start {
            Bound::Included(key) | Bound::Excluded(key) => exact(key)?,
            Bound::Unbounded => 0,
        };
        let last = match &range.end {
            Bound::Included(key) | Bound::Excluded(key) => exact(key)?,
            Bound::Unbounded => self.pages() - 1,
        };
        Some(first..last + 1)
    }

    /// The last page with a fence key of at most `key` (page 0 if no page has one), and true if the words prove it.
    /// With false, the answer is this page or a later one.
    pub fn find(&self, key: &[u8]) -> (usize, bool) {
        let (first, end) = self.pages;
        let index = &*self.locator.index;
        let word = index.keys.of(key);
        // The first page is the answer for all keys below the second fence key, so its word is not compared.
        let window = index.tree.window(word);
        let (mut low, mut high) = (window.start.clamp(first + 1, end), window.end.clamp(first + 1, end));
        while low < high {
            let middle = low.midpoint(high);
            if index.words.get(middle) < word {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low - 1 - first, low == end || index.words.get(low) > word)
    }

    /// The page `page` of the leaf, if it is kept in memory.
    pub fn held(&self, page: usize) -> Option<&Arc<Page>> {
        self.locator.held.as_ref()?.pages[self.pages.0 + page].get()
    }

    /// Keeps page `number` of the leaf in memory if the locator keeps pages.
    pub fn hold(&self, number: usize, page: &Arc<Page>) {
        if let Some(held) = &self.locator.held
            // `set` fails if another thread has stored the same page first.
            && held.pages[self.pages.0 + number].set(page.clone()).is_ok()
        {
            held.count.fetch_add(1, Ordering::Relaxed);
            held.bytes.fetch_add(page.memory_bytes_max() as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_the_order_of_keys() {
        for nullable in [false, true] {
            let words = Words { nullable };
            let mut keys: Vec<Vec<u8>> = vec![vec![], vec![0], vec![0, 0, 9], vec![0, 1], vec![1], vec![1, 0, 0, 1]];
            keys.push([&[1][..], &[7; 7]].concat());
            keys.push([&[1][..], &[7; 8]].concat());
            keys.push([&[1][..], &[7; 8], &[1]].concat());
            keys.push(vec![1, 0xff]);
            keys.push(vec![2]);
            keys.push(vec![0xff]);
            keys.sort();
            assert!(keys.windows(2).all(|pair| words.of(&pair[0]) <= words.of(&pair[1])));
            assert!(words.of(&keys[9]) > words.of(&keys[8]));
        }
        assert_eq!(Words { nullable: true }.of(&[1, 0x80, 0, 0, 0, 0, 0, 0, 5, 9]), 0x8000_0000_0000_0005);
        assert_eq!(Words { nullable: false }.of(&[0x80, 0, 0, 0, 0, 0, 0, 5, 9]), 0x8000_0000_0000_0005);
    }
}

//! Locators: where the pages of a tree's leaves are, known in memory, so that a lookup reads the page that it needs and no other.
//!
//! ```text
//!           a VAST tree over the words: half a bit for each page, or less
//!  word     first eight bytes of the page's fence   ─┐
//!  place    in blocks from the first page's         ─┤ compressed columns: a few bytes for each page,
//!  rows     before the page                         ─┘ and its checksum
//! ```
//!
//! Without one, the index page of a leaf is looked at first, which may have to be read, and takes several times as much
//! memory while it is cached. A locator is derived from these index pages, and not stored.
//!
//! It is static, and describes *extents*, which never change: so it is right for every snapshot as far as it goes. A leaf
//! that was written after it is looked up by its index page, until the locator is made anew (see [`registry`]). Its tree's newer
//! messages are where they always are: in root buffers and runs.
//!
//! A word is not the whole key. What it cannot tell (the next page has the same word) is left to the index page.
//!
//! If there is memory for them, the leaves' pages are kept beside it.

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

/// How a locator is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocatorOptions {
    /// What its tree is to be good at.
    pub goal: Goal,
    /// Bytes that it may take. If all pages of the leaves fit too, and into [`Store::set_memory_limit`](crate::Store), they are
    /// kept in memory.
    pub memory_bytes: Option<u64>,
}

/// What a locator is made of.
#[derive(Debug, Clone, Default)]
pub struct LocatorStats {
    /// Of the leaves that it describes.
    pub leaves: u64,
    /// Data pages of these leaves.
    pub pages: u64,
    /// Rows of these leaves.
    pub rows: u64,
    /// Pages of the tree's current leaves that it does not describe.
    pub pages_missing: u64,
    /// Of everything but pages.
    pub bytes: u64,
    /// Of its search tree.
    pub tree_bytes: u64,
    /// Pages kept in memory, and their bytes.
    pub pages_held: u64,
    /// Bytes of the pages kept in memory.
    pub bytes_held: u64,
    /// How many pages the answer is from where the traversal of its tree ends.
    pub displacement: Displacement,
    /// How long it took to build; `None` without a locator.
    pub build_time: Option<Duration>,
    /// Why there is none (the tree is read without), or no page is kept in memory.
    pub problem: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Locator {
    index: Arc<Index>,
    held: Option<Held>,
}

/// What it knows of pages.
#[derive(Debug)]
struct Index {
    /// In key order.
    leaves: Vec<Leaf>,
    /// The leaf of an extent, by its address: taken by nobody else as long as a weak reference is held.
    by_extent: HashMap<usize, u32>,
    tree: Tree<u64>,
    words: Packed<u64>,
    /// Blocks and rows before each page; one more for the end.
    blocks: Packed<u64>,
    rows: Packed<u64>,
    checksums: Box<[u32]>,
    keys: Words,
    build_time: Duration,
}

/// Pages kept in memory.
#[derive(Debug)]
struct Held {
    pages: Box<[OnceLock<Arc<Page>>]>,
    count: AtomicU64,
    bytes: AtomicU64,
}

#[derive(Debug)]
struct Leaf {
    #[expect(dead_code, reason = "held so that no other extent gets its address")]
    extent: Weak<Extent>,
    first_page: u32,
}

/// Which part of a key is its word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Words {
    /// The key begins with a marker that says whether a value follows.
    nullable: bool,
}

impl Words {
    /// Never greater for a smaller key, or a prefix of one.
    fn of(self, key: &[u8]) -> u64 {
        let key = match key.split_first() {
            Some((0, _)) | None if self.nullable => return 0,
            Some((1, rest)) if self.nullable => rest,
            // Above every value: the end of a range.
            Some(_) if self.nullable => return u64::MAX,
            _ => key,
        };
        let mut word = [0; 8];
        let len = key.len().min(8);
        word[..len].copy_from_slice(&key[..len]);
        u64::from_be_bytes(word)
    }
}

/// A leaf whose pages a locator knows: in place of its index page.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    locator: Arc<Locator>,
    extent: Arc<Extent>,
    /// Of the locator.
    pages: (usize, usize),
}

impl Locator {
    /// The pages of an extent.
    pub fn locate(self: &Arc<Self>, extent: &Arc<Extent>) -> Option<Located> {
        let leaf = *self.index.by_extent.get(&address(extent))? as usize;
        let pages = self.index.pages_of(leaf);
        Some(Located { locator: self.clone(), extent: extent.clone(), pages: (pages.start, pages.end) })
    }

    fn knows(&self, extent: &Arc<Extent>) -> bool {
        self.index.by_extent.contains_key(&address(extent))
    }

    /// Bytes of everything but pages.
    fn bytes(&self) -> u64 {
        let slots = self.held.as_ref().map_or(0, |held| size_of_val(&*held.pages));
        (self.index.bytes() + slots) as u64
    }

    /// Bytes of the pages that it keeps.
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
        // An entry of the map takes a control byte, and its share of what is free.
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

    /// Where a page is, and how many rows it has; as [`Page::entry`] of the index page.
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

    /// The pages that may hold keys of a range, if words can tell; then the same as the index page tells.
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

    /// The last page whose fence is not above `key` (0 if there is none), and whether that is certain: else it may be a later one.
    pub fn find(&self, key: &[u8]) -> (usize, bool) {
        let (first, end) = self.pages;
        let index = &*self.locator.index;
        let word = index.keys.of(key);
        // The first page's fence is below everything.
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

    /// The page, if it is kept in memory.
    pub fn held(&self, page: usize) -> Option<&Arc<Page>> {
        self.locator.held.as_ref()?.pages[self.pages.0 + page].get()
    }

    /// Keeps a page in memory, if that is wanted.
    pub fn hold(&self, number: usize, page: &Arc<Page>) {
        if let Some(held) = &self.locator.held
            // Whoever was first has set the same.
            && held.pages[self.pages.0 + number].set(page.clone()).is_ok()
        {
            held.count.fetch_add(1, Ordering::Relaxed);
            held.bytes.fetch_add(page.memory_bytes() as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_ordered_as_keys_are() {
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

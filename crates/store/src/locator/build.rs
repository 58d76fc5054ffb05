//! Construction of a locator.
//!
//! The entries of a leaf are copied from the previous locator if it describes the leaf, otherwise they come from the
//! leaf's index page. Index pages that are not cached are read by up to [`READS_AT_ONCE`] threads. The columns are then
//! packed, and the VAST tree is built over the words.
//!
//! *Invariants.* Words ascend over all pages; damaged files give [`Error::Corrupt`]. The finished locator and its pages
//! take at most `options.memory_bytes`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use keyaki_device::BLOCK;
use keyaki_primitives::sync::Mutex;
use keyaki_vast::{Packer, Parameters, Tree};

use super::{Held, Index, Leaf, Located, Locator, LocatorOptions, Words, address};
use crate::base::{Error, Result};
use crate::codec::{Codecs, Page};
use crate::pages::{Extent, Files};

/// Maximum number of threads that read index pages.
const READS_AT_ONCE: usize = 32;
/// Leaves per unit of work of a reading thread.
const LEAVES_AT_ONCE: usize = 16;
/// Name of the threads that read index pages.
const READER: &str = "keyaki-locate-read";
/// Maximum number of pages of a locator: page numbers have 32 bits.
const PAGES_MAX: usize = u32::MAX as usize;
/// Lower bound on the bytes for each page: its checksum.
const PAGE_BYTES_MIN: u64 = 4;

/// Input of the construction of a locator.
pub(super) struct Build<'a> {
    /// All leaves of the tree, in key order.
    pub leaves: &'a [Arc<Extent>],
    /// The tree's previous locator; its entries and pages are reused.
    pub last: Option<&'a Arc<Locator>>,
    pub codecs: &'a Codecs,
    pub files: &'a Files,
    pub options: LocatorOptions,
    /// Called before each unit of work; an error cancels the construction.
    pub check_cancelled: &'a (dyn Fn() -> Result<()> + Sync),
}

/// The entries of one leaf: in the previous locator, or read from the index page.
enum Source {
    Located(Located),
    Read(LeafPages),
}

/// The entries of an index page: one value per page in each column.
struct LeafPages {
    words: Vec<u64>,
    blocks: Vec<u32>,
    rows: Vec<u32>,
    checksums: Vec<u32>,
}

/// The columns of a locator under construction.
#[derive(Default)]
struct Columns {
    words: Vec<u64>,
    /// Blocks before each page, then the total.
    blocks: Vec<u64>,
    /// Rows before each page, then the total.
    rows: Vec<u64>,
    checksums: Vec<u32>,
}

impl Build<'_> {
    /// Builds the locator of the leaves, without pages in memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::TooMany`] if the locator would be too large; [`Error::SearchTree`]; errors of
    /// reading index pages; the error of `check_cancelled`.
    pub fn run(&self) -> Result<Locator> {
        let start = Instant::now();
        let pages: u64 = self.leaves.iter().map(|leaf| u64::from(leaf.meta.pages)).sum();
        self.check_bytes(pages * PAGE_BYTES_MIN)?;
        if pages > PAGES_MAX as u64 {
            return Err(Error::TooMany { what: "pages in one locator", limit: PAGES_MAX as u64 });
        }
        let keys = Words { nullable: self.codecs.schema.columns()[0].nullable };
        let mut columns = Columns::default();
        columns.blocks.push(0);
        columns.rows.push(0);
        let mut leaves = Vec::with_capacity(self.leaves.len());
        for (extent, source) in self.leaves.iter().zip(self.sources(keys)?) {
            leaves.push(Leaf { extent: Arc::downgrade(extent), first_page: columns.words.len() as u32 });
            columns.add(extent, source)?;
        }
        let Columns { words, blocks, rows, checksums } = columns;
        let packed = |values: &[u64]| {
            let mut packer = Packer::new(false);
            packer.push(values)?;
            packer.finish()
        };
        let mut parameters = Parameters::new(self.options.goal);
        parameters.memory = self.options.memory_bytes.map(|bytes| bytes as usize);
        let index = Index {
            by_extent: self.leaves.iter().zip(0..).map(|(extent, leaf)| (address(extent), leaf)).collect(),
            leaves,
            tree: Tree::build(&words[..], &parameters).map_err(Error::SearchTree)?,
            words: packed(&words).map_err(Error::SearchTree)?,
            blocks: packed(&blocks).map_err(Error::SearchTree)?,
            rows: packed(&rows).map_err(Error::SearchTree)?,
            checksums: checksums.into(),
            keys,
            build_time: start.elapsed(),
        };
        self.check_bytes(index.bytes() as u64)?;
        Ok(Locator { index: Arc::new(index), held: None })
    }

    fn check_bytes(&self, bytes: u64) -> Result<()> {
        match self.options.memory_bytes {
            Some(budget) if bytes > budget => Err(Error::OutOfMemory { what: "locator", requested: bytes, budget }),
            _ => Ok(()),
        }
    }

    /// The locator with all pages of its leaves in memory. `None` if the locator and the pages exceed `memory_bytes` or
    /// `room` bytes, or if no `memory_bytes` is set.
    ///
    /// # Errors
    /// Errors of reading pages; the error of `check_cancelled`.
    pub fn hold(&self, locator: &Locator, room: u64) -> Result<Option<Locator>> {
        let Some(memory) = self.options.memory_bytes else { return Ok(None) };
        let pages = locator.index.pages();
        let slots = pages * size_of::<OnceLock<Arc<Page>>>();
        let room = room.min(memory).saturating_sub((locator.index.bytes() + slots) as u64);
        // Lower bound: the length on disk. Pages in memory take more.
        if self.leaves.iter().map(|leaf| leaf.meta.len).sum::<u64>() > room {
            return Ok(None);
        }
        let held = Arc::new(Locator { index: locator.index.clone(), held: Some(Held::new(pages)) });
        for leaf in self.leaves {
            (self.check_cancelled)()?;
            self.hold_leaf(&held, leaf)?;
            if held.held_bytes() > room {
                return Ok(None);
            }
        }
        // This function has the only reference: `hold_leaf` drops each `Located`.
        Ok(Arc::into_inner(held))
    }

    fn hold_leaf(&self, locator: &Arc<Locator>, leaf: &Arc<Extent>) -> Result<()> {
        let Some(located) = locator.locate(leaf) else { return Ok(()) };
        if let Some(last) = self.last.and_then(|last| last.locate(leaf)) {
            let pages = 0..last.pages();
            pages.for_each(|page| last.held(page).into_iter().for_each(|held| located.hold(page, held)));
        }
        if (0..located.pages()).all(|page| located.held(page).is_some()) {
            return Ok(());
        }
        let places: Vec<_> = (0..located.pages()).map(|page| located.entry(page).0).collect();
        for (number, page) in self.files.read_pages_once(&places, &self.codecs.schema)?.iter().enumerate() {
            page.check_rows(located.entry(number).1, true)?;
            located.hold(number, page);
        }
        Ok(())
    }

    /// The entries of each leaf, from the previous locator or from the index page.
    ///
    /// # Errors
    /// Errors of reading index pages; the error of `check_cancelled`; [`Error::Panicked`].
    fn sources(&self, keys: Words) -> Result<Vec<Source>> {
        let locate = |leaf| self.last.and_then(|last| last.locate(leaf)).map(Source::Located);
        let mut sources: Vec<Option<Source>> = self.leaves.iter().map(locate).collect();
        let missing: Vec<usize> = (0..self.leaves.len()).filter(|&leaf| sources[leaf].is_none()).collect();
        let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(missing.len())));
        let read = || -> Result<()> {
            loop {
                let from = next.fetch_add(LEAVES_AT_ONCE, Ordering::Relaxed).min(missing.len());
                let these = &missing[from..(from + LEAVES_AT_ONCE).min(missing.len())];
                if these.is_empty() {
                    return Ok(());
                }
                (self.check_cancelled)()?;
                for &leaf in these {
                    let extent = &self.leaves[leaf];
                    let index = self.files.read_index_once(extent, &self.codecs.schema)?;
                    found.lock().push((leaf, LeafPages::of(extent, &index, keys)));
                }
            }
        };
        let threads = (missing.len() / LEAVES_AT_ONCE).min(READS_AT_ONCE);
        std::thread::scope(|scope| {
            // If a thread cannot be started, the threads started before it share the work.
            let others: Vec<_> = (1..threads)
                .map_while(|_| std::thread::Builder::new().name(READER.into()).spawn_scoped(scope, read).ok())
                .collect();
            let mut result = read();
            for other in others {
                result = result.and(other.join().unwrap_or(Err(Error::Panicked { thread: READER })));
            }
            result
        })?;
        for (leaf, pages) in found.into_inner() {
            sources[leaf] = Some(Source::Read(pages));
        }
        // All threads succeeded, so every leaf has its source.
        Ok(sources.into_iter().flatten().collect())
    }
}

impl LeafPages {
    fn of(extent: &Extent, index: &Page, keys: Words) -> LeafPages {
        let pages = index.rows();
        let word = |page| if page == 0 { keys.of(&extent.meta.first) } else { keys.of(index.fence(page)) };
        LeafPages {
            words: (0..pages).map(word).collect(),
            blocks: (0..pages).map(|page| index.entry(page).0.len / BLOCK as u32).collect(),
            rows: (0..pages).map(|page| index.entry(page).1).collect(),
            checksums: (0..pages).map(|page| index.entry(page).0.checksum).collect(),
        }
    }
}

impl Columns {
    /// Appends the pages of the next leaf in key order.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the leaf's words are below those of the leaves before it.
    fn add(&mut self, extent: &Extent, source: Source) -> Result<()> {
        match source {
            Source::Located(old) => {
                for page in 0..old.pages() {
                    let (place, rows) = old.entry(page);
                    let word = old.locator.index.words.get(old.pages.0 + page);
                    self.add_page(extent, word, place.len / BLOCK as u32, rows, place.checksum)?;
                }
            }
            Source::Read(pages) => {
                for page in 0..pages.words.len() {
                    let (word, blocks) = (pages.words[page], pages.blocks[page]);
                    self.add_page(extent, word, blocks, pages.rows[page], pages.checksums[page])?;
                }
            }
        }
        Ok(())
    }

    fn add_page(&mut self, extent: &Extent, word: u64, blocks: u32, rows: u32, checksum: u32) -> Result<()> {
        if self.words.last().is_some_and(|&last| last > word) {
            return Err(extent.corrupt_order());
        }
        let after = |column: &[u64], more: u32| column.last().copied().unwrap_or_default() + u64::from(more);
        self.blocks.push(after(&self.blocks, blocks));
        self.rows.push(after(&self.rows, rows));
        self.words.push(word);
        self.checksums.push(checksum);
        Ok(())
    }
}

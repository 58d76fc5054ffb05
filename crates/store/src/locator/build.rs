//! Making a locator from the index pages of a tree's leaves; of those that the last one knew, from there.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use keyaki_device::BLOCK;
use keyaki_vast::{Packer, Settings, Tree};
use parking_lot::Mutex;

use super::{Leaf, Located, Locator, LocatorOptions, Words, address};
use crate::codec::Page;
use crate::extent::Extent;
use crate::files::Files;
use crate::tree::{Codecs, Inner, Node};
use crate::{Error, Result};

/// Index pages read at a time.
const READS_AT_ONCE: usize = 32;
/// Leaves that a thread takes at a time.
const LEAVES_AT_ONCE: usize = 16;
/// Pages of one locator, so that they are counted in 32 bits.
const PAGES_MAX: usize = u32::MAX as usize;

/// The leaves of a tree, in key order.
pub(super) fn leaves(root: &Inner) -> Vec<Arc<Extent>> {
    fn gather(inner: &Inner, leaves: &mut Vec<Arc<Extent>>) {
        for child in &inner.children {
            match &**child {
                Node::Leaf(extent) => leaves.extend(extent.clone()),
                Node::Inner(inner) => gather(inner, leaves),
            }
        }
    }
    let mut found = Vec::new();
    gather(root, &mut found);
    found
}

/// What is known of a leaf's pages.
enum Source {
    Located(Located),
    Index(Arc<Page>),
}

/// The columns of a locator, as they grow.
#[derive(Default)]
struct Columns {
    words: Vec<u64>,
    blocks: Vec<u64>,
    rows: Vec<u64>,
    checksums: Vec<u32>,
}

/// Makes the locator of `leaves`. `go_on` is asked now and then.
///
/// # Errors
/// What reading index pages gives; `Invalid` if it would be too large, or should not go on.
pub(super) fn build(
    leaves: &[Arc<Extent>],
    last: Option<&Arc<Locator>>,
    codecs: &Codecs,
    files: &Files,
    options: &LocatorOptions,
    go_on: &(dyn Fn() -> Result<()> + Sync),
) -> Result<Locator> {
    let start = Instant::now();
    let keys = Words { nullable: codecs.schema.columns()[0].nullable };
    let sources = sources(leaves, last, codecs, files, go_on)?;
    let (mut columns, mut places) = (Columns::default(), Vec::with_capacity(leaves.len()));
    for (extent, source) in leaves.iter().zip(&sources) {
        places.push(Leaf { extent: Arc::downgrade(extent), first_page: columns.words.len() as u32 });
        columns.add(extent, source, keys)?;
    }
    let Columns { words, blocks, rows, checksums } = columns;
    let wrong = |error: keyaki_vast::Error| Error::Invalid(format!("the index's tree cannot be built: {error}"));
    let packed = |values: &[u64], end: bool| {
        let mut packer = Packer::new(false);
        packer.push(values)?;
        if end && values.is_empty() {
            packer.push(&[0])?;
        }
        packer.finish()
    };
    let mut settings = Settings::new(options.goal);
    settings.memory = options.memory_bytes.map(|bytes| bytes as usize);
    let mut locator = Locator {
        by_extent: leaves.iter().zip(0..).map(|(extent, leaf)| (address(extent), leaf)).collect(),
        leaves: places,
        tree: Tree::build(&words[..], &settings).map_err(wrong)?,
        words: packed(&words, false).map_err(wrong)?,
        blocks: packed(&blocks, true).map_err(wrong)?,
        rows: packed(&rows, true).map_err(wrong)?,
        checksums: checksums.into(),
        keys,
        held: None,
        build_time: start.elapsed(),
    };
    if let Some(memory) = options.memory_bytes {
        let bytes = locator.bytes() as u64;
        if bytes > memory {
            return Err(Error::Invalid(format!("it takes {bytes} bytes of memory, and may take {memory}")));
        }
        let slots = locator.checksums.len() * size_of::<OnceLock<Arc<Page>>>();
        let pages: u64 = leaves.iter().map(|leaf| leaf.meta.len).sum();
        // In memory pages are somewhat longer than in the file.
        if bytes + slots as u64 + pages + pages / 16 <= memory {
            locator.held = Some((0..locator.checksums.len()).map(|_| OnceLock::new()).collect());
            let locator = Arc::new(locator);
            keep_held(&locator, leaves, &sources);
            // Nobody else has it yet: what was located through it is gone.
            return Arc::into_inner(locator)
                .ok_or_else(|| Error::Invalid("a locator is in use before its time".into()));
        }
    }
    Ok(locator)
}

/// Pages that the last locator has kept stay.
fn keep_held(locator: &Arc<Locator>, leaves: &[Arc<Extent>], sources: &[Source]) {
    for (extent, source) in leaves.iter().zip(sources) {
        let Source::Located(old) = source else { continue };
        let Some(new) = locator.locate(extent) else { continue };
        for page in 0..old.pages() {
            if let Some(held) = old.held(page) {
                new.hold(page, held);
            }
        }
    }
}

impl Columns {
    fn add(&mut self, extent: &Extent, source: &Source, keys: Words) -> Result<()> {
        if self.words.is_empty() {
            self.blocks.push(0);
            self.rows.push(0);
        }
        let pages = match source {
            Source::Located(located) => located.pages(),
            Source::Index(index) => index.rows(),
        };
        if self.words.len() + pages > PAGES_MAX {
            return Err(Error::Invalid("an index with more than 2^32 pages".into()));
        }
        let (mut blocks, mut rows) = (self.blocks[self.words.len()], self.rows[self.words.len()]);
        for page in 0..pages {
            let ((place, page_rows), word) = match source {
                Source::Located(old) => (old.entry(page), old.locator.words.get(old.pages.0 + page)),
                Source::Index(index) if page == 0 => (index.entry(page), keys.of(&extent.meta.first)),
                Source::Index(index) => (index.entry(page), keys.of(index.fence(page))),
            };
            if self.words.last().is_some_and(|&last| last > word) {
                return Err(Error::Invalid(format!("the keys of tree {} are not in order", extent.meta.tree)));
            }
            blocks += u64::from(place.len) / BLOCK as u64;
            rows += u64::from(page_rows);
            self.words.push(word);
            self.blocks.push(blocks);
            self.rows.push(rows);
            self.checksums.push(place.checksum);
        }
        Ok(())
    }
}

/// Each leaf's pages: from the last locator, or the index page, read by many threads if it is not cached.
fn sources(
    leaves: &[Arc<Extent>],
    last: Option<&Arc<Locator>>,
    codecs: &Codecs,
    files: &Files,
    go_on: &(dyn Fn() -> Result<()> + Sync),
) -> Result<Vec<Source>> {
    let mut sources: Vec<Option<Source>> = Vec::with_capacity(leaves.len());
    sources.extend(leaves.iter().map(|leaf| last.and_then(|last| last.locate(leaf)).map(Source::Located)));
    let missing: Vec<usize> = (0..leaves.len()).filter(|&leaf| sources[leaf].is_none()).collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(missing.len())));
    let read = || -> Result<()> {
        loop {
            let from = next.fetch_add(LEAVES_AT_ONCE, Ordering::Relaxed).min(missing.len());
            let these = &missing[from..(from + LEAVES_AT_ONCE).min(missing.len())];
            if these.is_empty() {
                return Ok(());
            }
            go_on()?;
            for &leaf in these {
                let index = files.read_index_once(&leaves[leaf], &codecs.schema)?;
                found.lock().push((leaf, index));
            }
        }
    };
    let threads = (missing.len() / LEAVES_AT_ONCE).min(READS_AT_ONCE);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(read)).collect();
        let mut result = read();
        for other in others {
            let other = other.join().unwrap_or_else(|_| Err(Error::Invalid("a thread that reads pages failed".into())));
            result = result.and(other);
        }
        result
    })?;
    for (leaf, index) in found.into_inner() {
        sources[leaf] = Some(Source::Index(index));
    }
    // Every one that was missing has been found.
    Ok(sources.into_iter().flatten().collect())
}

//! The class of a query for the governor of the CPU caches, and scans that spare these caches.
//!
//! Threads announce the class of the query they work for to the governor. A worker announces it before it polls a task
//! (without a lock while the class stays the same), and stays announced until it sleeps; other threads are announced while
//! they poll a scan. Where the hardware cannot confine streaming work to a part of the cache, the governor selects one of
//! two software methods: non-temporal prefetches of the next chunk's columns while a chunk is decoded, or eviction of the
//! columns of a group of chunks after the group is decoded.

use keyaki_llc::software::{ScanMethod, flush, prefetch_non_temporal};
use keyaki_llc::{Governor, WorkClass};
use keyaki_primitives::{CACHE_LINE_BYTES, prefetch};
use keyaki_store::{Chunk, ChunkPart, Page};

/// Distance between the steps of prefetching.
const CHUNKS_AHEAD: usize = 2;

/// A class of work, and the governor to which it is announced.
#[derive(Debug, Clone)]
pub struct CacheUse {
    /// The governor of the process.
    pub governor: Governor,
    /// Streaming, adaptive or sensitive.
    pub class: WorkClass,
}

impl CacheUse {
    /// The method that a scan of this class uses now.
    pub(crate) fn scan_method(&self) -> ScanMethod {
        self.governor.scan_method(self.class)
    }
}

/// Before chunk `number` of a group is decoded: prefetches what the following chunks need. These are the objects of pages,
/// the layouts of their columns, and the columns, several chunks ahead each, because each leads to the next. Non-temporal
/// prefetches fetch all of the columns of the next chunk, and before the first chunk its own columns as well.
pub(crate) fn prefetch_next(method: ScanMethod, group: &[Chunk], number: usize, columns: &[usize]) {
    if let Some(page) = group.get(number + 3 * CHUNKS_AHEAD).and_then(first_page) {
        let object = std::ptr::from_ref(page);
        prefetch(object);
        prefetch(object.cast::<u8>().wrapping_add(CACHE_LINE_BYTES));
    }
    if let Some(page) = group.get(number + 2 * CHUNKS_AHEAD).and_then(first_page) {
        page.prefetch_layout(columns);
    }
    if let ScanMethod::NonTemporal { .. } = method {
        let first = if number == 0 { group.first() } else { None };
        for chunk in first.into_iter().chain(group.get(number + 1)) {
            for_each_range(chunk, columns, prefetch_non_temporal);
        }
    } else if let Some(page) = group.get(number + CHUNKS_AHEAD).and_then(first_page) {
        page.prefetch_columns(columns);
    }
}

/// The page of a chunk that begins with rows of a page.
fn first_page(chunk: &Chunk) -> Option<&Page> {
    match chunk.parts().first()? {
        ChunkPart::Page { page, .. } => Some(page),
        _ => None,
    }
}

/// After a group is decoded: evicts the columns read, if the method demands it. Returns the number of pages that either
/// software method kept out of the CPU caches.
pub(crate) fn evict_behind(method: ScanMethod, group: &[Chunk], columns: impl Iterator<Item = usize> + Clone) -> u64 {
    if method == ScanMethod::Plain {
        return 0;
    }
    if let ScanMethod::FlushBehind { .. } = method {
        let columns: Vec<usize> = columns.collect();
        for chunk in group {
            for_each_range(chunk, &columns, |range| _ = flush(range));
            // The parsed header of a page is an object of its own.
            pages(chunk).into_iter().for_each(|page| _ = flush(std::slice::from_ref(page)));
        }
    }
    group.iter().flat_map(pages).count() as u64
}

/// The pages of a chunk. Rows of runs alternate with those of a leaf, so that a page has several parts.
fn pages(chunk: &Chunk) -> Vec<&Page> {
    let mut pages: Vec<&Page> = Vec::new();
    for part in chunk.parts() {
        if let ChunkPart::Page { page, .. } = part
            && !pages.iter().rev().any(|seen| std::ptr::eq(*seen, &**page))
        {
            pages.push(page);
        }
    }
    pages
}

fn for_each_range(chunk: &Chunk, columns: &[usize], mut visit: impl FnMut(&[u8])) {
    for page in pages(chunk) {
        for &column in columns {
            page.column_memory(column).into_iter().for_each(&mut visit);
        }
    }
}

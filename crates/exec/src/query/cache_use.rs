//! What scans and pipelines are to the CPU's caches, and how scans spare them.
//!
//! Whoever runs work of a query announces the query's class to the governor: workers before they poll a task (without a lock, while
//! the class stays the same) until they go to sleep, others for as long as they poll a scan. Where masks of the hardware do not keep
//! streaming work apart, its pages are walked as the governor's tuning says: the columns of the next page are announced by
//! non-temporal prefetches while one is decoded, or those of a group of pages are thrown out of the caches when it has been decoded.

use keyaki_llc::software::{ScanMethod, flush, prefetch_non_temporal};
use keyaki_llc::{Governor, WorkClass};
use keyaki_store::{Chunk, Page, Segment};

/// A class of work, and whom to tell.
#[derive(Debug, Clone)]
pub struct CacheUse {
    pub governor: Governor,
    pub class: WorkClass,
}

impl CacheUse {
    /// How to walk over pages now.
    pub(crate) fn scan_method(&self) -> ScanMethod {
        self.governor.scan_method(self.class)
    }
}

/// Before a chunk of a group is decoded: announces what will be read of the next one, and of the first one itself.
pub(crate) fn announce_next(method: ScanMethod, group: &[Chunk], number: usize, columns: &[usize]) {
    if let ScanMethod::NonTemporal { .. } = method {
        let first = if number == 0 { group.first() } else { None };
        for chunk in first.into_iter().chain(group.get(number + 1)) {
            for_each_range(chunk, columns, prefetch_non_temporal);
        }
    }
}

/// After a group has been decoded: throws out what was read of it. Gives the number of pages that were spared, in whatever way.
pub(crate) fn leave_behind(method: ScanMethod, group: &[Chunk], columns: impl Iterator<Item = usize> + Clone) -> u64 {
    if method == ScanMethod::Plain {
        return 0;
    }
    if let ScanMethod::FlushBehind { .. } = method {
        let columns: Vec<usize> = columns.collect();
        for chunk in group {
            for_each_range(chunk, &columns, |range| _ = flush(range));
            // What was learnt of a page when it was opened lies beside its bytes.
            pages(chunk).for_each(|page| _ = flush(std::slice::from_ref(page)));
        }
    }
    group.iter().flat_map(pages).count() as u64
}

fn pages(chunk: &Chunk) -> impl Iterator<Item = &Page> {
    chunk.segments().iter().filter_map(|segment| match segment {
        Segment::Page { page, .. } => Some(&**page),
        Segment::Row { .. } | Segment::Rows(_) => None,
    })
}

fn for_each_range(chunk: &Chunk, columns: &[usize], mut visit: impl FnMut(&[u8])) {
    for page in pages(chunk) {
        for &column in columns {
            page.column_memory(column).into_iter().for_each(&mut visit);
        }
    }
}

//! Touching every node of a tree: its pages enter the page cache, and their lines the CPU caches.
//!
//! The walk is an ordinary cursor over all rows, on a page source that records the pages it returns. It meets index pages,
//! pages of leaves and pages of runs; reads go through the workers and are coalesced. Nodes in memory are met by the same
//! walk.

use std::sync::Arc;

use keyaki_primitives::CACHE_LINE_BYTES;
use keyaki_primitives::sync::Mutex;
use keyaki_store::{ChunkPart, Direction, KeyRange, Page, PageKind, PageRef, PageSource, Priority, Schema, TreeView};

use super::task_pages::TaskPages;
use crate::base::{Error, Result};
use crate::query::{Query, Stats};
use crate::runtime::{OffsetMap, Runtime};

/// The result of touching a tree.
#[derive(Debug, Default)]
pub struct Touched {
    /// Rows of the tree.
    pub rows: u64,
    /// Index pages met.
    pub index_pages: u64,
    /// Pages of leaves and runs met.
    pub data_pages: u64,
    /// Bytes of these pages, and of rows that are only in memory.
    pub bytes: u64,
    /// Pages with their offsets, in the order met, as long as `bytes` did not exceed the requested limit.
    pub kept: Vec<(u64, Arc<Page>)>,
}

/// A page source that touches and records the pages it returns.
struct TouchingPages {
    pages: TaskPages,
    keep_bytes: u64,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    touched: Touched,
    /// Offsets of the pages met.
    seen: OffsetMap<u64, ()>,
}

/// Reads and touches all pages and rows of a tree, and keeps pages up to `keep_bytes` bytes. Ends early when `go_on`,
/// called once per chunk of rows, returns false.
///
/// # Errors
/// Those of reading; [`Error::Cancelled`] if `go_on` returns false.
pub(crate) async fn touch_tree(
    runtime: &Arc<Runtime>,
    view: &TreeView,
    keep_bytes: u64,
    go_on: impl Fn() -> bool,
) -> Result<Touched> {
    let stats = Stats::start(runtime.store.device(), 1);
    let query = Arc::new(Query::new(stats, vec![view.clone()], None));
    let read_ahead_bytes = runtime.options.read_ahead_bytes;
    let pages = TaskPages::new(runtime.clone(), query, read_ahead_bytes).with_priority(Priority::Lookup);
    let source = TouchingPages { pages, keep_bytes, progress: Mutex::default() };
    let mut cursor = view.cursor(&source, KeyRange::all(), Direction::Ascending);
    while let Some(chunk) = cursor.next().await? {
        if !go_on() {
            return Err(Error::Cancelled);
        }
        let mut progress = source.progress.lock();
        progress.touched.rows += chunk.rows() as u64;
        for segment in chunk.parts() {
            progress.touched.bytes += match segment {
                ChunkPart::Page { page, .. } => {
                    page.check_all_columns()?;
                    0
                }
                ChunkPart::Row { key, value } => (touch_lines(key) + touch_lines(value)) as u64,
                ChunkPart::Rows(rows) => rows.bytes() as u64,
            };
        }
    }
    drop(cursor);
    Ok(source.progress.into_inner().touched)
}

impl PageSource for TouchingPages {
    async fn page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> keyaki_store::Result<Arc<Page>> {
        let found = self.pages.page(page, schema, priority).await?;
        touch_page(&found);
        let mut progress = self.progress.lock();
        let Progress { touched, seen } = &mut *progress;
        if seen.insert(page.offset, ()).is_none() {
            touched.bytes += u64::from(page.len);
            match found.kind() {
                PageKind::Index => touched.index_pages += 1,
                PageKind::Leaf | PageKind::Run => touched.data_pages += 1,
            }
            if touched.bytes <= self.keep_bytes {
                touched.kept.push((page.offset, found.clone()));
            }
        }
        Ok(found)
    }

    fn prefetch(&self, pages: &[PageRef], schema: &Arc<Schema>) {
        self.pages.prefetch(pages, schema);
    }

    fn read_ahead_bytes(&self) -> usize {
        self.pages.read_ahead_bytes()
    }
}

/// Reads a byte of every cache line of a page, and of the columns decompressed from it.
pub fn touch_page(page: &Page) {
    touch_lines(page.memory());
    decompressed_columns(page).for_each(|column| _ = touch_lines(column));
}

/// The columns that were decompressed from a page.
fn decompressed_columns(page: &Page) -> impl Iterator<Item = &[u8]> {
    (0..page.columns()).map(|column| page.column_memory(column)[1]).filter(|column| !column.is_empty())
}

/// Reads a byte of every cache line, and returns the number of bytes.
fn touch_lines(bytes: &[u8]) -> usize {
    let lines = bytes.iter().step_by(CACHE_LINE_BYTES).chain(bytes.last());
    std::hint::black_box(lines.fold(0_u8, |sum, byte| sum.wrapping_add(*byte)));
    bytes.len()
}

//! Touching every node of a tree: pages come into the page cache, and their lines into the CPU's caches.
//!
//! The walk is an ordinary cursor over all rows, whose page source remembers what it gave: so index pages, pages of leaves and pages of
//! runs are all met, reads go through the workers, and coalesce. Nodes of trees in memory are met by the same walk.

use std::sync::Arc;

use keyaki_store::{Direction, KeyRange, Page, PageKind, PageRef, PageSource, Priority, Schema, Segment, TreeView};
use parking_lot::Mutex;

use crate::query::Query;
use crate::runtime::OffsetMap;
use crate::source::TaskPages;
use crate::{Error, Executor, Result, Stats};

const LINE: usize = 64;

/// What was met.
#[derive(Debug, Default)]
pub struct Touched {
    pub rows: u64,
    pub index_pages: u64,
    pub data_pages: u64,
    /// Of pages, and of rows that are in memory only.
    pub bytes: u64,
    /// The pages, by their offset, as long as they are not more bytes than were asked for.
    pub kept: Vec<(u64, Arc<Page>)>,
}

struct Touching {
    pages: TaskPages,
    keep_bytes: u64,
    touched: Mutex<(Touched, OffsetMap<u64, ()>)>,
}

impl Executor {
    /// Reads and touches every page and row of a tree; keeps hold of the first `keep_bytes` bytes of pages. `go_on` is asked now and then.
    ///
    /// # Errors
    /// What reading gives; [`Error::Cancelled`] if `go_on` says no.
    pub async fn touch(&self, view: &TreeView, keep_bytes: u64, go_on: impl Fn() -> bool) -> Result<Touched> {
        let (runtime, query) = self.internal_query(view);
        let read_ahead = runtime.options.read_ahead_bytes;
        let pages = TaskPages::new(runtime, query, read_ahead).with_priority(Priority::Lookup);
        let source = Touching { pages, keep_bytes, touched: Mutex::default() };
        let mut cursor = view.cursor(&source, KeyRange::all(), Direction::Ascending);
        while let Some(chunk) = cursor.next().await? {
            if !go_on() {
                return Err(Error::Cancelled);
            }
            let mut touched = source.touched.lock();
            touched.0.rows += chunk.rows() as u64;
            for segment in chunk.segments() {
                touched.0.bytes += match segment {
                    Segment::Page { page, .. } => {
                        page.check_all_columns()?;
                        0
                    }
                    Segment::Row { key, value } => (touch_lines(key) + touch_lines(value)) as u64,
                    Segment::Rows(rows) => rows.bytes() as u64,
                };
            }
        }
        drop(cursor);
        Ok(source.touched.into_inner().0)
    }

    fn internal_query(&self, view: &TreeView) -> (Arc<crate::runtime::Runtime>, Arc<Query>) {
        let runtime = self.runtime();
        let stats = Stats::start(runtime.store.device(), 1);
        (runtime.clone(), Arc::new(Query::new(stats, vec![view.clone()], None)))
    }
}

impl PageSource for Touching {
    async fn page(&self, page: PageRef, schema: &Arc<Schema>, priority: Priority) -> keyaki_store::Result<Arc<Page>> {
        let found = self.pages.page(page, schema, priority).await?;
        touch_page(&found);
        let mut touched = self.touched.lock();
        let (touched, seen) = &mut *touched;
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

/// Reads a byte of every line of a page, and of what was decompressed of it.
pub fn touch_page(page: &Page) {
    touch_lines(page.memory());
    page_columns(page).for_each(|plain| _ = touch_lines(plain));
}

/// What was decompressed of a page, column by column.
pub(crate) fn page_columns(page: &Page) -> impl Iterator<Item = &[u8]> {
    (0..page.columns()).map(|column| page.column_memory(column)[1]).filter(|plain| !plain.is_empty())
}

fn touch_lines(bytes: &[u8]) -> usize {
    let lines = bytes.iter().step_by(LINE).chain(bytes.last());
    std::hint::black_box(lines.fold(0_u8, |sum, byte| sum.wrapping_add(*byte)));
    bytes.len()
}

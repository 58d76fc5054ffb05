//! Traces of the memory that queries access, for the cache simulator (`keyaki_llc::sim`).
//!
//! A trace has the cache lines of pages. For a decoded column it has the part in which the decoded rows lie, assuming
//! values of equal length. For a search in a page it has as many lines as a binary search compares; the direction of each
//! comparison is not observed, and varies pseudo-randomly. Nodes of trees in memory, rows between operators and the
//! operators' own memory are not traced.

use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use keyaki_llc::WorkClass;
use keyaki_llc::sim::Access;
use keyaki_llc::sim::trace::{TraceHeader, TraceWriter};
use keyaki_primitives::CACHE_LINE_BYTES;
use keyaki_primitives::sync::Mutex;
use keyaki_store::{Chunk, ChunkPart, Page, PageKind, TreeId};

/// Number of the class of work without a class; the governor's classes have lower numbers.
const UNCLASSIFIED: u8 = WorkClass::ALL.len() as u8;

type Writer = TraceWriter<Box<dyn Write + Send>>;

/// A trace being written. All queries of an executor record into it (see
/// [`Executor::set_memory_trace`](crate::Executor::set_memory_trace)) until [`MemoryTrace::finish`].
pub struct MemoryTrace {
    /// Numbers of the trees in the header; 0 is that of all other trees.
    objects: HashMap<TreeId, u16>,
    /// `None` once the trace is finished. The first error ends recording.
    writer: Mutex<Option<io::Result<Writer>>>,
    /// Searches so far; seeds the directions of the next one.
    searches: AtomicU64,
    accesses: AtomicU64,
}

impl std::fmt::Debug for MemoryTrace {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("MemoryTrace").field("accesses", &self.accesses).finish_non_exhaustive()
    }
}

impl MemoryTrace {
    /// A trace of the given trees under the given names. Accesses to other trees count as those of an object `other`.
    ///
    /// # Errors
    /// If the header cannot be written, or the trees exceed the limit of the format.
    pub fn new(out: Box<dyn Write + Send>, trees: &[(TreeId, String)]) -> io::Result<Self> {
        let classes = WorkClass::ALL.iter().map(|class| class.name()).chain(["unclassified"]).map(String::from);
        let objects = std::iter::once("other".to_string()).chain(trees.iter().map(|(_, name)| name.clone()));
        let header = TraceHeader { classes: classes.collect(), objects: objects.collect() };
        let numbered = trees.iter().zip(1_u16..).map(|((tree, _), number)| (*tree, number));
        Ok(MemoryTrace {
            objects: numbered.collect(),
            writer: Mutex::new(Some(Ok(TraceWriter::new(out, &header)?))),
            searches: AtomicU64::new(0),
            accesses: AtomicU64::new(0),
        })
    }

    /// Ends the trace and returns its number of accesses.
    ///
    /// # Errors
    /// If writing has failed, or the trace is already finished.
    pub fn finish(&self) -> io::Result<u64> {
        match self.writer.lock().take() {
            Some(writer) => writer.and_then(TraceWriter::finish).map(drop)?,
            None => return Err(io::Error::other("memory trace is already finished")),
        }
        Ok(self.accesses.load(Ordering::Relaxed))
    }

    /// Records the decoding of columns of a chunk, as work of a class.
    pub(crate) fn record_columns(&self, class: Option<WorkClass>, chunk: &Chunk, columns: &[usize]) {
        for segment in chunk.parts() {
            let ChunkPart::Page { page, rows, .. } = segment else { continue };
            let all = page.rows().max(1);
            if rows.len() < all {
                // Part of a page was selected by a search over its keys; the key columns come first.
                self.search(class, page, page.column_memory(0)[0]);
            }
            for &column in columns {
                for part in page.column_memory(column) {
                    // Assumes values of equal length.
                    let at = |row: u32| part.len() * (row as usize).min(all) / all;
                    self.lines(class, page, part, at(rows.start)..at(rows.end).max(at(rows.start) + 1));
                }
            }
        }
    }

    /// Records the access of a task to a page, as work of a class: it reads the header, and searches an index page.
    pub(crate) fn record_page(&self, class: Option<WorkClass>, page: &Page) {
        let memory = page.memory();
        self.lines(class, page, memory, 0..CACHE_LINE_BYTES);
        if page.kind() == PageKind::Index {
            self.search(class, page, memory);
        }
    }

    /// Records a binary search.
    fn search(&self, class: Option<WorkClass>, page: &Page, searched: &[u8]) {
        let (mut low, mut high) = (0, searched.len());
        let mut directions = self.searches.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        while high - low > CACHE_LINE_BYTES {
            let middle = (low + high) / 2;
            self.lines(class, page, searched, middle..middle + 1);
            if directions & 1 == 0 {
                low = middle
            } else {
                high = middle
            }
            directions = directions.rotate_right(1);
        }
    }

    /// Records one access to each line of a part of `memory`, as far as it exists.
    fn lines(&self, class: Option<WorkClass>, page: &Page, memory: &[u8], part: Range<usize>) {
        let object = self.objects.get(&page.tree()).copied().unwrap_or(0);
        let class = class.map_or(UNCLASSIFIED, class_number);
        let (start, end) = (part.start.min(memory.len()), part.end.min(memory.len()));
        if start == end {
            return;
        }
        let mut writer = self.writer.lock();
        let first = memory.as_ptr().addr() + start;
        let last = memory.as_ptr().addr() + end - 1;
        for line in first / CACHE_LINE_BYTES..=last / CACHE_LINE_BYTES {
            let Some(Ok(open)) = &mut *writer else { return };
            if let Err(error) = open.push(Access::load((line * CACHE_LINE_BYTES) as u64).of(class, object)) {
                *writer = Some(Err(error));
                return;
            }
            self.accesses.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The number of a class in the header of a trace.
fn class_number(class: WorkClass) -> u8 {
    WorkClass::ALL.iter().position(|other| *other == class).map_or(UNCLASSIFIED, |position| position as u8)
}

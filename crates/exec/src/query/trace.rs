//! Recording which memory queries touch, for the simulator of caches (`keyaki_llc::sim`).
//!
//! Recorded are the lines of pages: of columns that are decoded, the part in which the rows lie; of a search in a page, as many lines
//! as it compares, halving the page (which half it goes to is not observed). Nodes of trees in memory, rows between operators, and
//! what operators keep for themselves are not recorded.

use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use keyaki_llc::WorkClass;
use keyaki_llc::sim::Access;
use keyaki_llc::sim::trace::{TraceHeader, TraceWriter};
use keyaki_store::{Chunk, Page, PageKind, Segment, TreeId};
use parking_lot::Mutex;

use crate::query::Query;

const LINE: usize = 64;
/// The class of work that nobody classified.
const UNCLASSIFIED: u8 = WorkClass::ALL.len() as u8;

type Writer = TraceWriter<Box<dyn Write + Send>>;

/// A trace that is being written.
pub struct MemoryTrace {
    objects: HashMap<TreeId, u16>,
    writer: Mutex<Option<io::Result<Writer>>>,
    /// Varies the halves that searches go to.
    searches: AtomicU64,
    accesses: AtomicU64,
}

impl std::fmt::Debug for MemoryTrace {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("MemoryTrace").field("accesses", &self.accesses).finish_non_exhaustive()
    }
}

impl MemoryTrace {
    /// A trace of these trees, under these names; what belongs to others counts as the first of them.
    ///
    /// # Errors
    /// If the header cannot be written, or there are too many trees.
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

    /// Ends the trace. Gives the number of accesses.
    ///
    /// # Errors
    /// If writing failed, now or before.
    pub fn finish(&self) -> io::Result<u64> {
        match self.writer.lock().take() {
            Some(writer) => writer.and_then(TraceWriter::finish).map(drop)?,
            None => return Err(io::Error::other("the trace has ended already")),
        }
        Ok(self.accesses.load(Ordering::Relaxed))
    }

    /// Rows of a chunk were decoded: these columns of them.
    pub(crate) fn decoded(&self, query: &Query, chunk: &Chunk, columns: &[usize]) {
        for segment in chunk.segments() {
            let Segment::Page { page, rows, .. } = segment else { continue };
            let all = page.rows().max(1);
            if rows.len() < all {
                // The columns of the key come first.
                self.search(query, page, page.column_memory(0)[0]);
            }
            for &column in columns {
                for part in page.column_memory(column) {
                    // Values are about as long as one another.
                    let at = |row: u32| part.len() * (row as usize).min(all) / all;
                    self.lines(query, page, part, at(rows.start)..at(rows.end).max(at(rows.start) + 1));
                }
            }
        }
    }

    /// A page was given to a task: its header is read, and an index page is searched.
    pub(crate) fn given(&self, query: &Query, page: &Page) {
        let memory = page.memory();
        self.lines(query, page, memory, 0..LINE);
        if page.kind() == PageKind::Index {
            self.search(query, page, memory);
        }
    }

    fn search(&self, query: &Query, page: &Page, searched: &[u8]) {
        let (mut low, mut high) = (0, searched.len());
        let mut turns = self.searches.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        while high - low > LINE {
            let middle = (low + high) / 2;
            self.lines(query, page, searched, middle..middle + 1);
            if turns & 1 == 0 {
                low = middle
            } else {
                high = middle
            }
            turns = turns.rotate_right(1);
        }
    }

    fn lines(&self, query: &Query, page: &Page, memory: &[u8], part: Range<usize>) {
        let object = self.objects.get(&page.tree()).copied().unwrap_or(0);
        let class = query.cache.as_ref().map_or(UNCLASSIFIED, |cache| class_number(cache.class));
        let (start, end) = (part.start.min(memory.len()), part.end.min(memory.len()));
        if start == end {
            return;
        }
        let mut writer = self.writer.lock();
        let first = memory.as_ptr().addr() + start;
        let last = memory.as_ptr().addr() + end - 1;
        for line in first / LINE..=last / LINE {
            let Some(Ok(open)) = &mut *writer else { return };
            if let Err(error) = open.push(Access::load((line * LINE) as u64).of(class, object)) {
                *writer = Some(Err(error));
                return;
            }
            self.accesses.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// As in the trace's header.
fn class_number(class: WorkClass) -> u8 {
    WorkClass::ALL.iter().position(|other| *other == class).map_or(UNCLASSIFIED, |place| place as u8)
}

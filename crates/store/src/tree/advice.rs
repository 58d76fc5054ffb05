//! The order in which a scan needs the pages of a leaf, and those of the runs that have messages for it.
//!
//! The fences of the index pages give this order. A read-ahead in any other order fills its window with pages that are needed
//! late, while the next ones are read one at a time.

use std::ops::Range;
use std::sync::Arc;

use crate::base::{Direction, Schema};
use crate::codec::{Page, PageRef};
use crate::pages::{PageSource, Priority};
use crate::tree::LeafIndex;

/// The pages of a leaf in a range, how they are read, and the pages of runs in this range.
pub(crate) struct Advice<'p> {
    pub schema: &'p Arc<Schema>,
    pub direction: Direction,
    pub leaf: Option<(&'p LeafIndex, Range<usize>)>,
    /// Priority of the leaf's pages.
    pub priority: Priority,
    /// The pages of the leaf are read with all columns.
    pub whole: bool,
    /// Pages of runs, with the index pages of their extents.
    pub runs: Vec<(Arc<Page>, Range<usize>)>,
}

/// Pages of a leaf and of runs that the source is not advised of yet.
#[derive(Debug)]
pub(crate) struct LaterPages {
    pub leaf: (LeafIndex, Range<usize>),
    pub priority: Priority,
    pub runs: Vec<(Arc<Page>, Range<usize>)>,
}

impl Advice<'_> {
    /// Splits the advice for an ascending scan with runs. `self` keeps the first `count` pages of the leaf, and the pages of
    /// runs that may have keys below the fence of the next one. Returns the other pages, if the leaf has more. Short scans do
    /// not need them, and ordering all pages takes as long as reading several of them.
    pub fn split_off(&mut self, count: usize) -> Option<LaterPages> {
        let (LeafIndex::Page(index), pages) = self.leaf.as_mut()? else { return None };
        if self.direction == Direction::Descending || self.runs.is_empty() || pages.len() <= count {
            return None;
        }
        let cut = pages.start + count;
        let fence = index.fence(cut);
        let later = cut..std::mem::replace(&mut pages.end, cut);
        let mut runs = Vec::with_capacity(self.runs.len());
        for (index, pages) in &mut self.runs {
            // The page with the fence may have smaller keys, too.
            let cut = (index.find(fence) + 1).clamp(pages.start, pages.end);
            runs.push((index.clone(), cut..std::mem::replace(&mut pages.end, cut)));
        }
        Some(LaterPages { leaf: (LeafIndex::Page(index.clone()), later), priority: self.priority, runs })
    }

    /// Advises `source` to read the pages in the order in which they are needed.
    pub fn give(&self, source: &impl PageSource) {
        let leaf = match &self.leaf {
            Some((LeafIndex::Page(index), pages)) => Some((index, pages)),
            Some((located, pages)) => {
                // The entries of a locator have no fences.
                self.give_leaf(source, &located.references(pages.clone(), self.direction));
                None
            }
            None => None,
        };
        // With true for a page of a run.
        let of_leaf = leaf.into_iter().flat_map(|(index, pages)| pages.clone().map(move |page| (false, index, page)));
        let of_runs = self.runs.iter().flat_map(|(index, pages)| pages.clone().map(move |page| (true, index, page)));
        let mut all: Vec<(bool, &Arc<Page>, usize)> = of_leaf.chain(of_runs).collect();
        match self.direction {
            Direction::Ascending => all.sort_by(|(_, a, of_a), (_, b, of_b)| a.fence(*of_a).cmp(b.fence(*of_b))),
            Direction::Descending => {
                // The upper fence of a page; the last page of an extent has none, and comes first.
                let above = |index: &Page, page: usize| page + 1 == index.rows();
                all.sort_by(|(_, a, of_a), (_, b, of_b)| match (above(a, *of_a), above(b, *of_b)) {
                    (false, false) => b.fence(*of_b + 1).cmp(a.fence(*of_a + 1)),
                    (a, b) => b.cmp(&a),
                });
            }
        }
        for group in all.chunk_by(|(a, ..), (b, ..)| a == b) {
            let references: Vec<PageRef> = group.iter().map(|(_, index, page)| index.entry(*page).0).collect();
            match group[0].0 {
                true => source.prefetch(&references, self.schema),
                false => self.give_leaf(source, &references),
            }
        }
    }

    fn give_leaf(&self, source: &impl PageSource, references: &[PageRef]) {
        match self.whole {
            true => source.prefetch(references, self.schema),
            false => source.prefetch_leaf_pages(references, self.schema, self.priority),
        }
    }
}

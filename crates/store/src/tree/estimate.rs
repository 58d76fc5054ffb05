//! Estimates of the rows, pages and bytes in a range, for the planner.
//!
//! The rows are those of the leaves in the range, plus the estimated change by all messages on top of them:
//!
//! ```text
//! buffers  their own estimate: a walk over a few keys, samples of more keys
//! runs     of the transaction and of every node above the range: sums for parts inside the range, index pages for
//!          parts at its ends
//! leaves   sums for subtrees inside the range, index pages for the leaves at its ends
//! ```
//!
//! A page at an end of the range counts exactly if it is in memory. Otherwise its share is interpolated between the
//! fence keys. Estimates read no data page, and at most [`READS_MAX`] index pages that are not cached.

use std::ops::{Bound, Range};
use std::sync::Arc;

use crate::base::{KeyRange, RangeEstimate, position_between};
use crate::codec::Page;
use crate::pages::Extent;
use crate::tree::view::bound_key;
use crate::tree::{InnerNode, LeafIndex, Node, Part, TreeView};

/// Maximum number of index pages that an estimate reads from the device.
const READS_MAX: usize = 4;
/// Maximum number of messages of a page whose kinds are read.
const ROWS_READ_MAX: usize = 128;

impl TreeView {
    /// Estimated rows, data pages and bytes in a range, including pending messages.
    ///
    /// Messages about whose keys the writer knew nothing are assumed to insert keys that had no row and to delete keys that
    /// had one, unless the same buffer shows otherwise. For the whole tree, the rows are [`TreeView::live_rows`] if that
    /// number is known, and 0 only if there are none. Reads at most a few index pages; all other figures are in memory. With
    /// [`TreeView::ignoring_cache`], it is the same in all processes.
    pub fn estimate(&self, range: &KeyRange) -> RangeEstimate {
        if self.tree.is_memory() {
            let mut found = self.version.active.estimate(range, self.sequence);
            let own = self.own.as_ref().map_or(0.0, |(own, statement)| own.messages().net_rows(range, *statement));
            found.rows = (found.rows + own).max(0.0);
            return found;
        }
        if range.is_empty() {
            return RangeEstimate::default();
        }
        let mut estimator = Estimator {
            view: self,
            range,
            low: bound_key(&range.start),
            high: bound_key(&range.end),
            reads_left: READS_MAX,
            found: RangeEstimate::default(),
        };
        let (low, high) = (estimator.low, estimator.high);
        for part in self.own_runs().iter().flat_map(|run| run.overlapping(low, high)) {
            estimator.add_part(part);
        }
        estimator.add_inner(&self.version.root, low, high);
        let mut found = estimator.found;
        found.rows += self.buffers().map(|(buffer, sequence)| buffer.net_rows(range, sequence)).sum::<f64>();
        found.rows = found.rows.clamp(0.0, if range.as_point().is_some() { 1.0 } else { f64::MAX });
        if *range == KeyRange::all() {
            // Callers may take an estimate of 0 for an empty tree.
            let rows_min = if self.has_nothing() { 0.0 } else { 1.0 };
            // A process may have counted them.
            let known = self.known_rows().filter(|_| !self.ignores_cache);
            found.rows = known.map_or(found.rows.max(rows_min), |rows| rows as f64);
        }
        found.bytes = found.pages * f64::from(self.files.page_bytes);
        found
    }
}

struct Estimator<'a> {
    view: &'a TreeView,
    range: &'a KeyRange,
    low: Option<&'a [u8]>,
    high: Option<&'a [u8]>,
    reads_left: usize,
    found: RangeEstimate,
}

impl Estimator<'_> {
    /// Adds a node; `low` and `high` are the bounds of the range that lie within the node.
    fn add_inner(&mut self, inner: &InnerNode, low: Option<&[u8]>, high: Option<&[u8]>) {
        for part in inner.runs.iter().flat_map(|run| run.overlapping(low, high)) {
            self.add_part(part);
        }
        let from = low.map_or(0, |low| inner.child_of(low));
        let to = high.map_or(inner.children.len() - 1, |high| inner.child_of(high));
        for (i, child) in inner.children.iter().enumerate().take(to + 1).skip(from) {
            let (child_low, child_high) = (low.filter(|_| i == from), high.filter(|_| i == to));
            match &**child {
                _ if child_low.is_none() && child_high.is_none() => {
                    self.found.rows += child.rows() as f64 + child.net_rows() as f64;
                    self.found.pages += child.pages() as f64;
                }
                Node::Inner(inner) => self.add_inner(inner, child_low, child_high),
                Node::Leaf(Some(extent)) => self.add_leaf(extent),
                Node::Leaf(None) => {}
            }
        }
    }

    fn add_part(&mut self, part: &Part) {
        let meta = &part.extent.meta;
        let range = self.range.intersect(part.low.as_deref(), part.high.as_deref());
        if contains_all(self.range, part.first(), part.high.as_deref().unwrap_or(&meta.last)) {
            self.found.rows += part.net_rows() as f64;
        } else if range.may_overlap(&meta.first, &meta.last) {
            let per_message = meta.net_rows as f64 / meta.rows as f64;
            let counted = self.index(&part.extent).and_then(|index| {
                let pages = index.pages_in(&range);
                self.sum(&part.extent, &LeafIndex::Page(index), pages, &range, per_message, |page, rows| {
                    let messages = rows.filter_map(|row| page.message(row));
                    messages.map(|(kind, prior)| kind.net_rows(prior)).sum::<i64>() as f64
                })
            });
            self.found.rows +=
                counted.unwrap_or_else(|| share_of(&range, &meta.first, &meta.last) * meta.net_rows as f64);
        }
    }

    fn add_leaf(&mut self, extent: &Arc<Extent>) {
        let meta = &extent.meta;
        if contains_all(self.range, &meta.first, &meta.last) {
            self.found.rows += meta.rows as f64;
            self.found.pages += f64::from(meta.pages);
            return;
        }
        if !self.range.may_overlap(&meta.first, &meta.last) {
            return;
        }
        let rows_of = |_: &Page, rows: Range<usize>| rows.len() as f64;
        let locator = self.view.locator.as_ref().filter(|_| !self.view.ignores_cache);
        let located = locator.and_then(|locator| locator.locate(extent)).map(LeafIndex::Located);
        let located = located.and_then(|index| index.pages_of(self.range).map(|pages| (index, pages)));
        let by_locator = located.and_then(|(index, pages)| {
            let rows = self.sum(extent, &index, pages.clone(), self.range, 1.0, rows_of)?;
            Some((rows, pages.len() as f64))
        });
        let found = by_locator.or_else(|| {
            let index = self.index(extent)?;
            let pages = index.pages_in(self.range);
            let rows = self.sum(extent, &LeafIndex::Page(index), pages.clone(), self.range, 1.0, rows_of)?;
            Some((rows, pages.len() as f64))
        });
        let (rows, pages) = found.unwrap_or_else(|| {
            let share = share_of(self.range, &meta.first, &meta.last);
            (share * meta.rows as f64, (share * f64::from(meta.pages)).max(1.0))
        });
        self.found.rows += rows;
        self.found.pages += pages;
    }

    /// The index page of an extent, from the cache or, up to [`READS_MAX`] times, from the device.
    fn index(&mut self, extent: &Extent) -> Option<Arc<Page>> {
        let files = &self.view.files;
        if self.view.ignores_cache || files.cache.peek(extent.index().offset).is_none() {
            self.reads_left = self.reads_left.checked_sub(1)?;
        }
        files.read_index(extent, self.view.schema()).ok()
    }

    /// The sum over the rows of `pages`, the pages of an extent that overlap `range`. Each row of a page inside the range
    /// counts `per_row`; `rows_of` counts the rows of a page at an end of the range, if it is in memory. `None` if
    /// a locator has no fence keys for a page at an end.
    fn sum(
        &self,
        extent: &Extent,
        index: &LeafIndex,
        pages: Range<usize>,
        range: &KeyRange,
        per_row: f64,
        rows_of: impl Fn(&Page, Range<usize>) -> f64,
    ) -> Option<f64> {
        let mut sum = 0.0;
        for number in pages.clone() {
            let (place, rows) = index.entry(number);
            let is_start = number == pages.start && range.start != Bound::Unbounded;
            let is_end = number + 1 == pages.end && range.end != Bound::Unbounded;
            if !is_start && !is_end {
                sum += f64::from(rows) * per_row;
                continue;
            }
            let held = match index {
                LeafIndex::Located(located) => located.held(number).cloned(),
                LeafIndex::Page(_) => None,
            };
            let cached = || if self.view.ignores_cache { None } else { self.view.files.cache.peek_any(place.offset) };
            sum += match (held.or_else(cached), index) {
                (Some(page), _) => {
                    let inside = page.rows_in(range);
                    // The kinds of many messages would take too long to read.
                    if inside.len() <= ROWS_READ_MAX { rows_of(&page, inside) } else { inside.len() as f64 * per_row }
                }
                (None, LeafIndex::Page(index)) => {
                    let low = if number == 0 { &extent.meta.first } else { index.fence(number) };
                    let high = if number + 1 == index.rows() { &extent.meta.last } else { index.fence(number + 1) };
                    (share_of(range, low, high) * f64::from(rows)).max(1.0) * per_row
                }
                (None, LeafIndex::Located(_)) => return None,
            };
        }
        Some(sum)
    }
}

/// True if a range contains all keys from `first` to `last`.
fn contains_all(range: &KeyRange, first: &[u8], last: &[u8]) -> bool {
    let starts_before = match &range.start {
        Bound::Included(key) => **key <= *first,
        Bound::Excluded(key) => **key < *first,
        Bound::Unbounded => true,
    };
    starts_before && !range.ends_before(last)
}

/// The share of the keys from `low` to `high` that lie in a range, interpolated.
fn share_of(range: &KeyRange, low: &[u8], high: &[u8]) -> f64 {
    let from = bound_key(&range.start).map_or(0.0, |key| position_between(key, low, high));
    let to = bound_key(&range.end).map_or(1.0, |key| position_between(key, low, high));
    (to - from).max(0.0)
}

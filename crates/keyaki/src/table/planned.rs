//! Trees as the planner sees them: those of the snapshot, and those of indexes that do not exist.
//!
//! To find the cost of a plan with an index that does not exist, the catalog of a statement has its definition, and its tree is
//! an [`AssumedTree`]: the keys that a sample of the table's rows would have in it, and the size that follows from the table's.
//! Plans with such trees are costed and shown. Operators take the tree by [`PlannedTree::stored`], which fails for them.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;

use keyaki_store::{CachedShare, KeyRange, RangeEstimate, Schema, TreeId, TreeView};

use crate::{Error, Result};

/// The trees of indexes that do not exist, by their ids.
pub(crate) type AssumedTrees = HashMap<TreeId, Arc<AssumedTree>>;

/// A tree that a plan may read.
#[derive(Debug, Clone)]
pub(crate) enum PlannedTree {
    Stored(TreeView),
    /// A tree that several machines read, whose caches do not count: none of its pages is in them.
    Shared {
        view: TreeView,
        /// The page cache of each machine in bytes.
        page_cache_bytes: usize,
    },
    Assumed(Arc<AssumedTree>),
}

/// The tree of an index that does not exist.
#[derive(Debug)]
pub(crate) struct AssumedTree {
    /// An id that no tree of the store has.
    pub id: TreeId,
    pub schema: Arc<Schema>,
    /// The encoded keys of a sample of the rows, in ascending order.
    pub keys: Vec<Vec<u8>>,
    /// Estimated size of the whole tree.
    pub total: RangeEstimate,
    /// The shares of the table's pages in the page cache, which the index is assumed to have, too.
    pub cached: CachedShare,
    pub page_cache_budget: usize,
}

impl AssumedTree {
    /// Rows of the table for each row of the sample; at least 1.
    fn rows_per_key(&self) -> f64 {
        (self.total.rows / self.keys.len().max(1) as f64).max(1.0)
    }

    /// Estimated size of a range, from the keys of the sample in it. A range with none has half of the rows of a key.
    fn estimate(&self, range: &KeyRange) -> RangeEstimate {
        let before = |bound: &Bound<Vec<u8>>, with_equal: bool, unbounded: usize| match bound {
            Bound::Unbounded => unbounded,
            Bound::Included(key) | Bound::Excluded(key) => {
                self.keys.partition_point(|known| if with_equal { known <= key } else { known < key })
            }
        };
        let start = before(&range.start, matches!(range.start, Bound::Excluded(_)), 0);
        let end = before(&range.end, matches!(range.end, Bound::Included(_)), self.keys.len());
        let is_sampled = self.rows_per_key() > 1.0;
        let keys = match end.saturating_sub(start) {
            0 if is_sampled && !range.is_empty() => 0.5,
            keys => keys as f64,
        };
        let rows = (keys * self.rows_per_key()).min(self.total.rows);
        let share = rows / self.total.rows.max(1.0);
        let pages = if rows > 0.0 { (self.total.pages * share + 1.0).min(self.total.pages) } else { 0.0 };
        let page_bytes = if self.total.pages > 0.0 { self.total.bytes / self.total.pages } else { 0.0 };
        RangeEstimate { rows, pages, bytes: pages * page_bytes }
    }
}

impl PlannedTree {
    pub fn tree(&self) -> TreeId {
        match self {
            PlannedTree::Stored(view) | PlannedTree::Shared { view, .. } => view.tree(),
            PlannedTree::Assumed(assumed) => assumed.id,
        }
    }

    pub fn schema(&self) -> &Arc<Schema> {
        match self {
            PlannedTree::Stored(view) | PlannedTree::Shared { view, .. } => view.schema(),
            PlannedTree::Assumed(assumed) => &assumed.schema,
        }
    }

    /// Estimated size of a range.
    pub fn estimate(&self, range: &KeyRange) -> RangeEstimate {
        match self {
            PlannedTree::Stored(view) | PlannedTree::Shared { view, .. } => view.estimate(range),
            PlannedTree::Assumed(assumed) => assumed.estimate(range),
        }
    }

    /// Rows by which an estimate of a range may be wrong because it is one of a sample; 0 for stored trees.
    pub fn sampling_rows(&self) -> f64 {
        match self {
            PlannedTree::Stored(_) | PlannedTree::Shared { .. } => 0.0,
            PlannedTree::Assumed(assumed) => assumed.rows_per_key(),
        }
    }

    pub fn cached_share(&self) -> CachedShare {
        match self {
            PlannedTree::Stored(view) => view.cached_share(),
            PlannedTree::Shared { .. } => CachedShare { whole: 0.0, any: 0.0 },
            PlannedTree::Assumed(assumed) => assumed.cached,
        }
    }

    pub fn page_cache_budget(&self) -> usize {
        match self {
            PlannedTree::Stored(view) => view.page_cache_budget(),
            PlannedTree::Shared { page_cache_bytes, .. } => *page_cache_bytes,
            PlannedTree::Assumed(assumed) => assumed.page_cache_budget,
        }
    }

    /// Splits a range into at most `parts` ranges: see [`TreeView::split_groups`].
    pub fn split_groups(&self, range: &KeyRange, parts: usize, columns: usize) -> Vec<KeyRange> {
        match self {
            PlannedTree::Stored(view) | PlannedTree::Shared { view, .. } => view.split_groups(range, parts, columns),
            PlannedTree::Assumed(_) => vec![range.clone()],
        }
    }

    /// The tree, for operators.
    ///
    /// # Errors
    /// `Internal` for the tree of an index that does not exist.
    pub fn stored(&self) -> Result<&TreeView> {
        match self {
            PlannedTree::Stored(view) | PlannedTree::Shared { view, .. } => Ok(view),
            PlannedTree::Assumed(_) => Err(Error::Internal("a plan with an index that does not exist".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use keyaki_store::{Column, ColumnType};

    use super::*;

    fn tree(keys: Vec<u8>, rows: f64) -> PlannedTree {
        let column = Column { name: "a".into(), ty: ColumnType::Int64, nullable: false };
        PlannedTree::Assumed(Arc::new(AssumedTree {
            id: TreeId::new(7),
            schema: Arc::new(Schema::new(vec![column], 1)),
            keys: keys.into_iter().map(|key| vec![key]).collect(),
            total: RangeEstimate { rows, pages: rows / 10.0, bytes: rows * 100.0 },
            cached: CachedShare { whole: 0.0, any: 0.0 },
            page_cache_budget: 0,
        }))
    }

    #[test]
    fn estimates_are_shares_of_the_sample() {
        let all = tree((0..100).collect(), 100.0);
        let rows = |tree: &PlannedTree, start, end| tree.estimate(&KeyRange { start, end }).rows;
        assert_eq!(rows(&all, Bound::Unbounded, Bound::Unbounded), 100.0);
        assert_eq!(rows(&all, Bound::Included(vec![10]), Bound::Included(vec![19])), 10.0);
        assert_eq!(rows(&all, Bound::Excluded(vec![10]), Bound::Excluded(vec![19])), 8.0);
        assert_eq!(rows(&all, Bound::Included(vec![200]), Bound::Unbounded), 0.0);
        let sampled = tree((0..100).collect(), 10_000.0);
        assert_eq!(rows(&sampled, Bound::Included(vec![10]), Bound::Included(vec![19])), 1000.0);
        assert_eq!(rows(&sampled, Bound::Included(vec![200]), Bound::Unbounded), 50.0);
        assert_eq!(rows(&sampled, Bound::Included(vec![9]), Bound::Excluded(vec![9])), 0.0);
        assert_eq!((all.sampling_rows(), sampled.sampling_rows()), (1.0, 100.0));
        let pages = sampled.estimate(&KeyRange::point(vec![5])).pages;
        assert_eq!(pages, 11.0);
    }

    #[test]
    fn operators_get_no_tree() {
        assert!(tree(vec![1], 1.0).stored().is_err());
    }
}

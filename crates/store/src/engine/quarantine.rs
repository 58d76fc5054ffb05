//! The list of quarantined trees: what is damaged, and which keys lie there.

use std::ops::Range;
use std::sync::Arc;

use crate::base::{Error, TreeId};
use crate::engine::Store;
use crate::pages::Extent;
use crate::tree::TreeVersion;

/// A tree that accepts no changes but its removal, because a flush found it damaged.
#[derive(Debug, Clone)]
pub struct QuarantinedTree {
    /// The tree.
    pub tree: TreeId,
    /// The error of the flush, with the position in the data file.
    pub cause: Arc<Error>,
    /// The keys that may lie in the damaged page, in the pages of a read that failed, or in the damaged extent if its
    /// index page cannot be read; `None` if the error has no position in an extent of the tree.
    pub keys: Option<DamagedKeys>,
}

/// Encoded keys between two bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedKeys {
    /// Inclusive lower bound.
    pub low: Vec<u8>,
    /// Upper bound.
    pub high: Vec<u8>,
    /// True if the upper bound itself may be one of the keys.
    pub includes_high: bool,
}

impl Store {
    /// The trees that accept no changes, because a flush found them damaged. They can be read where they are intact,
    /// and dropped. The list is empty after opening: a later flush finds the damage again. May read an index page for
    /// each tree.
    pub fn quarantined_trees(&self) -> Vec<QuarantinedTree> {
        let state = self.shared.state.read().clone();
        let damaged = state.trees.iter().filter_map(|(&tree, version)| {
            let cause = version.damage.clone()?;
            let keys = range_of(&cause).and_then(|range| self.keys_at(version, range));
            Some(QuarantinedTree { tree, cause, keys })
        });
        damaged.collect()
    }

    /// The keys of the pages of a tree in a range of the data file.
    fn keys_at(&self, version: &TreeVersion, range: Range<u64>) -> Option<DamagedKeys> {
        let mut found: Option<Arc<Extent>> = None;
        version.visit_extents(&mut |extent: &Arc<Extent>| {
            if (extent.meta.offset..extent.meta.offset + extent.meta.len).contains(&range.start) {
                found = Some(extent.clone());
            }
        });
        let extent = found?;
        let Ok(index) = self.shared.files.read_index_once(&extent, &version.codecs.schema) else {
            return Some(DamagedKeys::of(&extent));
        };
        let pages = (0..index.rows()).filter(|&page| {
            let place = index.entry(page).0;
            place.offset < range.end && range.start < place.offset + u64::from(place.len)
        });
        Some(match (pages.clone().min(), pages.max()) {
            (Some(first), Some(last)) => DamagedKeys::of_pages(&extent, &index, first..last + 1),
            _ => DamagedKeys::of(&extent),
        })
    }
}

/// The position of an error in the data file.
fn range_of(error: &Error) -> Option<Range<u64>> {
    match error {
        Error::Corrupt { offset, .. } => offset.map(|offset| offset..offset + 1),
        Error::Device(error) => error.range.map(|range| range.offset..range.offset + range.len),
        _ => None,
    }
}

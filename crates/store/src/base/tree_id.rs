//! The ids of trees and the kind that each id implies.
//!
//! An id has 32 bits, and its top bit is the kind. Files store only ids of trees on disk.

use std::fmt;

/// The id of a tree. In id order, all trees on disk come before all memory trees.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TreeId(u32);

/// The storage of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TreeKind {
    /// In the data file, with the newest messages in memory and in the log.
    Disk,
    /// In memory only. Neither the log nor checkpoints contain the tree, and closing the store discards it.
    Memory,
}

impl TreeId {
    /// The first id of memory trees.
    pub(crate) const MEMORY_START: TreeId = TreeId(1 << 31);
    /// Upper bound of the ids of trees on disk. No tree has this id.
    pub(crate) const DISK_END: TreeId = TreeId((1 << 31) - 1);
    /// Upper bound of the ids of memory trees. No tree has this id.
    pub(crate) const MEMORY_END: TreeId = TreeId(u32::MAX);

    /// The id with a number: of a tree on disk if the number is below 2^31, else of a memory tree.
    pub const fn new(number: u32) -> Self {
        TreeId(number)
    }

    /// The number that files store.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The kind of tree that has this id.
    pub const fn kind(self) -> TreeKind {
        if self.0 < Self::MEMORY_START.0 { TreeKind::Disk } else { TreeKind::Memory }
    }

    /// Returns true for the ids of memory trees.
    pub const fn is_memory(self) -> bool {
        matches!(self.kind(), TreeKind::Memory)
    }

    /// The next id. The largest number, which no tree has, is followed by itself.
    pub(crate) const fn next(self) -> TreeId {
        TreeId(self.0.saturating_add(1))
    }

    /// Returns true for the last id of each kind, which no tree can have.
    pub(crate) fn is_reserved(self) -> bool {
        self == Self::DISK_END || self == Self::MEMORY_END
    }
}

impl From<u32> for TreeId {
    fn from(number: u32) -> Self {
        TreeId(number)
    }
}

impl From<TreeId> for u32 {
    fn from(tree: TreeId) -> Self {
        tree.0
    }
}

impl fmt::Display for TreeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for TreeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_bit_is_the_kind() {
        for (number, kind) in [(0, TreeKind::Disk), ((1 << 31) - 1, TreeKind::Disk), (1 << 31, TreeKind::Memory)] {
            assert_eq!((TreeId::new(number).kind(), TreeId::from(number).get()), (kind, number));
        }
        assert!(TreeId::DISK_END < TreeId::MEMORY_START && TreeId::MEMORY_START < TreeId::MEMORY_END);
        assert!(TreeId::DISK_END.is_reserved() && TreeId::MEMORY_END.is_reserved() && !TreeId::new(7).is_reserved());
    }
}

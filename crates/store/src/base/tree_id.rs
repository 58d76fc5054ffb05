//! The ids of trees.

/// The id of a tree. Ids from [`MEMORY`] on belong to memory trees.
pub type TreeId = u32;

/// The first id of memory trees. Trees on disk have lower ones.
pub(crate) const MEMORY: TreeId = 1 << 31;

/// Trees on disk have ids below this one.
pub(crate) const TREES_END: TreeId = MEMORY - 1;

/// Returns true for the ids of memory trees.
pub fn is_memory(tree: TreeId) -> bool {
    tree >= MEMORY
}

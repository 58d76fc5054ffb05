//! Bε-trees: nodes, versions, views, and the reads and flushes that work on them.
//!
//! ```text
//! node           inner nodes, leaves and runs; immutable, shared between versions
//! view           snapshots and views of one tree, with estimates
//! cursor, leaf   rows of a range in key order; one leaf in progress
//! merge          messages of a range from buffers and runs, by key
//! count          rows of a range by their number
//! flush          freezes buffers into runs, moves runs down, rebuilds leaves
//! ```
//!
//! Messages in a node are newer than those in the nodes below it. A change copies the nodes on its path, so that readers
//! of an older version are not disturbed.

mod count;
mod cursor;
mod flush;
mod leaf;
mod merge;
mod node;
mod view;

pub use count::Counter;
pub use cursor::Cursor;
pub(crate) use flush::Flusher;
pub(crate) use leaf::{LeafIndex, LeafWalk};
pub(crate) use merge::Merge;
pub(crate) use node::{Inner, Node, Part, Run};
pub use view::{Snapshot, TreeView};
pub(crate) use view::{State, Version};

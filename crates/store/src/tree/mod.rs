//! Bε-trees: nodes, versions, views, reads and flushes.
//!
//! ```text
//! node           inner nodes, leaves and runs; immutable, shared between versions
//! view           snapshots and views of one tree
//! heads          search in sorted keys by their first bytes
//! point          messages of a single key
//! cursor, leaf   rows of a range in key order; the state within one leaf
//! merge          messages of a range from buffers and runs, and rows of a leaf, merged by key
//! advice         order in which a scan needs pages
//! count          number of rows of a range
//! row_counts     number of rows of a tree, kept up by commits
//! value_bounds   bounds of numbers, so that sums can be written without reading
//! own_writes     uncommitted writes of a transaction
//! read_set       ranges read by a serializable transaction
//! estimate       estimated size of a range
//! rewrite        merges messages and rows into new extents
//! page_feed      pages for a rewrite, read ahead
//! sample         a sample of the rows, and sketches of the columns
//! spill          runs of a transaction
//! tiers          which runs of a node are merged, with tiered runs
//! policy         decisions of flushes, as functions of sizes
//! flush          writes buffers as runs, moves runs down, rebuilds leaves
//! compact        moves messages of a range to the leaves, replaces moved extents
//! ```
//!
//! *Invariants.* Messages in a node are newer than the messages in the nodes below it. A change copies the nodes on its
//! path, so that versions in use by readers never change.

mod advice;
mod compact;
mod count;
mod cursor;
mod estimate;
mod flush;
mod heads;
mod leaf;
mod merge;
mod node;
mod own_writes;
mod page_feed;
mod point;
mod policy;
mod read_set;
mod rewrite;
mod row_counts;
mod sample;
mod spill;
mod tiers;
mod value_bounds;
mod view;

pub(crate) use advice::{Advice, LaterPages};
pub(crate) use compact::{Drained, MovedExtents};
pub use count::Counter;
pub(crate) use count::LeafCount;
pub use cursor::Cursor;
pub(crate) use cursor::push_rows;
pub(crate) use flush::{FULL_DISK_PARTS, Flusher};
pub(crate) use heads::KeyHeads;
pub(crate) use leaf::{LeafIndex, LeafWalk};
pub(crate) use merge::Merge;
pub(crate) use node::{InnerNode, Node, Part, Run};
pub(crate) use own_writes::{OwnBuffer, OwnWrites, checked};
pub use policy::{FlushPolicy, FlushStep, NodeSizes};
pub(crate) use read_set::ReadSet;
pub(crate) use row_counts::{Delta, RowCounts};
pub use sample::Sample;
pub(crate) use sample::{LEVEL_MAX, SampledMessages, Sampler, Sketches, TreeSample};
pub(crate) use value_bounds::{BatchBounds, ValueBounds};
pub use view::{CachedShare, Snapshot, TreeView};
pub(crate) use view::{StoreVersion, TreeVersion};

//! The storage engine: opening and recovery, commits, background work, checkpoints, bulk loads and memory trees.
//!
//! ```text
//! store          handles, snapshots, the lock order
//! commit         batches into the log and the buffers
//! submitted      commits that wait for their durability
//! commit_stats   counters and latencies of commits
//! apply          application of a commit to the buffers and counts of its trees
//! open           creation and recovery of a database directory
//! quarantine     the list of damaged trees
//! check          verification of all pages
//! backup         copies of the database
//! image          checkpoints for copies outside of a file system
//! vacuum         compaction of the data file
//! salvage        reading a damaged database
//! reserve        commits that free space, and checkpoints, on a full disk
//! replay         checks of batches, replay of the log into buffers
//! bulk_load      sorted rows written directly into extents
//! follow         reading beside the process that writes
//! pins           checkpoints that readers of other processes use
//! background     the background thread, checkpoints, installation of loaded rows
//! flush          frozen buffers into trees, and their publication
//! pacing         slows commits down before the buffers are full
//! node_table     the encoding of all trees in a checkpoint
//! locator_thread the thread that keeps locators up to date
//! memory_trees   trees without files
//! transaction    uncommitted writes, savepoints, conflicts
//! conflicts      what committed while transactions were active
//! ```
//!
//! *Invariant.* A commit becomes visible after all its messages are in the buffers and, under full durability, after
//! its log record is durable.

mod apply;
mod background;
mod backup;
mod bulk_load;
mod check;
mod commit;
mod commit_stats;
mod conflicts;
mod flush;
mod follow;
mod image;
#[cfg(all(test, feature = "shuttle"))]
mod interleavings;
mod locator_thread;
mod memory_trees;
mod node_table;
mod open;
mod pacing;
mod pins;
mod quarantine;
mod replay;
mod reserve;
mod salvage;
mod store;
mod submitted;
mod transaction;
mod vacuum;

pub(crate) use apply::{RowChanges, apply};
pub(crate) use background::{Spilled, Work, spawn};
pub use backup::{Backup, BackupMode};
pub use bulk_load::{BulkWriter, Loaded};
pub(crate) use bulk_load::{LoadedRows, OTHER_SCHEMA, OTHER_TREE};
pub use check::{Checked, CheckedTree, Damage, DamagedPart};
pub use commit_stats::CommitStats;
pub(crate) use commit_stats::nanoseconds_since;
pub(crate) use conflicts::Transactions;
pub(crate) use follow::Follower;
pub use follow::Refreshed;
pub use image::{CheckpointImage, ImageExtent};
pub(crate) use locator_thread::LocatorThread;
pub(crate) use memory_trees::next_id;
pub use memory_trees::{MemoryBuilder, MemoryTreeStats};
pub(crate) use pacing::{Pacing, pacing_start};
pub(crate) use pins::Pinned;
pub use quarantine::{DamagedKeys, QuarantinedTree};
pub(crate) use replay::{BatchContents, Replay, check, check_new};
pub(crate) use reserve::Place;
pub use salvage::{Salvage, SalvagedRows, SalvagedState, SalvagedTree};
pub(crate) use store::{Checkpointed, CommitToken, Shared, Visibility};
pub use store::{Store, StoreStats};
pub use submitted::Submitted;
pub use transaction::{Savepoint, Transaction};
pub use vacuum::Vacuumed;

//! Options of a store. The defaults come from the measurements in `docs/measurements.md`.

use std::sync::Arc;

use crate::base::UpsertFunctions;

/// The point at which a commit is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// After a sync of its log record. Concurrent commits share one sync.
    #[default]
    Full,
    /// As soon as its log record is in memory. A background thread syncs the log every 100 ms, or as soon as 1 MiB is
    /// pending. A crash can lose the newest commits but does not damage the database.
    Normal,
    /// As `Normal`, but the background thread only writes. The operating system decides when to sync.
    Off,
}

/// How inner nodes hold their messages. A database may be opened with another policy than before: nodes take on the
/// form of the new one when they receive messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MergePolicy {
    /// Several runs in each node, received by reference and merged with runs of similar size (size-tiered Bε-trees:
    /// Conway et al., SplinterDB, USENIX ATC 2020, section 3). Writes less.
    #[default]
    Tiered,
    /// One run in each node, into which received messages are merged: the buffer of the Bε-tree paper (Bender et al.,
    /// An Introduction to Bε-trees and Write-Optimization, 2015, section 1). Reads meet fewer runs, and each level
    /// writes a message about as often as a node has children. Messages that remain in the parent are not rewritten.
    /// VACUUM, joins of nodes and a full disk can leave more runs until the next flush.
    Leveled,
}

/// Parameters of a store. The defaults suit a database of several gigabytes on flash.
#[derive(Debug, Clone)]
pub struct Options {
    /// Create the database if it does not exist.
    pub create: bool,
    /// When commits are acknowledged.
    pub durability: Durability,
    /// Budget of the page cache in bytes.
    pub cache_bytes: usize,
    /// Budget in bytes of the messages in all root buffers together, counted as allocated (nodes, keys and values).
    /// Memory trees do not count. Above one and a half times this size writers slow down, at twice this size they
    /// stall.
    pub buffer_bytes: usize,
    /// Bytes of log since the last checkpoint that trigger the next one.
    pub checkpoint_log_bytes: u64,
    /// Length of a data page in bytes, a multiple of 4096.
    pub page_bytes: usize,
    /// Target length of a leaf extent in bytes.
    pub leaf_bytes: usize,
    /// Maximum number of children of an inner node (B^ε of the Bε-tree).
    pub fan_out: usize,
    /// Pending message bytes in an inner node above which a flush moves the share of the heaviest child down (B − B^ε).
    pub node_buffer_bytes: usize,
    /// Number of runs in a node above which some of them are merged. Not used by [`MergePolicy::Leveled`].
    pub runs_per_node: usize,
    /// How inner nodes hold their messages.
    pub merge_policy: MergePolicy,
    /// The upsert functions that write batches may use.
    pub upserts: Arc<UpsertFunctions>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            create: true,
            durability: Durability::Full,
            cache_bytes: 256 << 20,
            buffer_bytes: 64 << 20,
            checkpoint_log_bytes: 256 << 20,
            page_bytes: 8192,
            leaf_bytes: 1 << 20,
            fan_out: 16,
            node_buffer_bytes: 32 << 20,
            runs_per_node: 10,
            merge_policy: MergePolicy::Tiered,
            upserts: Arc::default(),
        }
    }
}

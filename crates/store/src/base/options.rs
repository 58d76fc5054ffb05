//! Options of a store, with the defaults that were measured to be good (see `docs/measurements.md`).

use std::sync::Arc;

use crate::base::UpsertFunctions;

/// When a commit is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// After its log record is on the medium. Commits that arrive together share one sync.
    #[default]
    Full,
    /// Once it is in the log's memory; the log is synced in the background. A crash may lose the newest commits, never
    /// damages the database.
    Normal,
    /// As `Normal`, without background syncs: the operating system decides.
    Off,
}

/// How a store is opened. The defaults suit a database of some gigabytes on flash.
#[derive(Debug, Clone)]
pub struct Options {
    /// Create the database if it does not exist.
    pub create: bool,
    /// When commits are acknowledged.
    pub durability: Durability,
    /// Bytes of pages kept in memory.
    pub cache_bytes: usize,
    /// Bytes of unflushed messages in memory (all root buffers together: their nodes, keys and values, as they are allocated; not
    /// trees that are held in memory only); twice this stalls writers.
    pub buffer_bytes: usize,
    /// Bytes of log after which a checkpoint is made by itself.
    pub checkpoint_log_bytes: u64,
    /// Length of a data page, a multiple of 4096.
    pub page_bytes: usize,
    /// Target length of a leaf extent.
    pub leaf_bytes: usize,
    /// Children of an inner node (B^ε of the Bε-tree).
    pub fan_out: usize,
    /// Pending bytes in an inner node above which the heaviest child gets its share (B − B^ε).
    pub node_buffer_bytes: usize,
    /// Runs in a node above which they are merged into one.
    pub runs_per_node: usize,
    /// The upsert functions that batches may name.
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
            node_buffer_bytes: 8 << 20,
            runs_per_node: 12,
            upserts: Arc::default(),
        }
    }
}

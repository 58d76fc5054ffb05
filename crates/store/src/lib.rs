//! A store of many Bε-trees in one database directory.
//!
//! A write is a message: an insert, a delete or an upsert. Messages enter the log and a tree's root buffer in memory.
//! Flushes move them down the tree in batches, as immutable runs, and merge them into leaves. Reads merge a leaf with
//! the messages on the path to it. Rows have typed columns and keys are byte strings of the same order; SQL is
//! implemented in the crate above. The store runs on any [`keyaki_device::Device`].
//!
//! Reads are `async` functions over a [`PageSource`], so that the same code serves blocking callers
//! ([`Store::blocking`]) and the executor, which keeps thousands of page reads in flight.
//!
//! [`key_value`] is a map of byte strings over one tree, for programs that need no columns.
//!
//! The modules are layers, lowest first; a module uses its own layer and the layers before it:
//! `base < codec < message < buffer < log < pages < locator < tree < engine < key_value`.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod base;
mod buffer;
mod codec;
mod engine;
pub mod key_value;
mod locator;
mod log;
mod message;
mod pages;
mod tree;

// The store: open it, write batches and bulk loads, take snapshots, read with cursors.
pub use base::{
    Column, ColumnType, Compression, Direction, Durability, Error, KeyRange, ListType, MergePolicy, Options, Prior,
    RangeEstimate, Result, Schema, TreeId, TreeKind, UpsertFunction, UpsertFunctions, successor,
};
pub use engine::{
    Backup, BackupMode, BulkWriter, Checked, CheckedTree, CheckpointImage, CommitStats, Damage, DamagedKeys,
    DamagedPart, ImageExtent, Loaded, MemoryBuilder, MemoryTreeStats, QuarantinedTree, Refreshed, Salvage,
    SalvagedRows, SalvagedState, SalvagedTree, Savepoint, Store, StoreStats, Submitted, Transaction, Vacuumed,
};
pub use locator::{Displacement, Goal, LocatorOptions, LocatorStats};
pub use message::WriteBatch;
pub use tree::{CachedShare, Counter, Cursor, Sample, Snapshot, TreeView};

// Encoded keys and rows, and the rows that cursors return.
pub use codec::{Chunk, ChunkPart, ColumnBuilder, ColumnChange, KeyCodec, KeyEncoder, RowBatch, RowCodec, RowEncoder};

// Batches with buffers of their own.
pub use codec::{compact, compact_array};

// Page access, for programs that read pages their own way (an executor implements `PageSource`).
pub use codec::{MessageKind, Page, PageKind, PageRef, Projection};
pub use pages::{BlockingPages, Cache, PageSource, Priority, block_on};

/// For `examples/codec_bench.rs`, which measures pages without a store.
#[doc(hidden)]
pub use codec::{PageWriter, RunColumns, WrittenPage, seal};
/// For `examples/policy`, which flushes trees of sizes.
#[doc(hidden)]
pub use tree::{FlushPolicy, FlushStep, NodeSizes};

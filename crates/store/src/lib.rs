//! A store of many Bε-trees in one database directory.
//!
//! Writes are messages (insert, delete, upsert) that enter a tree's root buffer in memory and the log, sink down in
//! batches as immutable runs, and are merged into leaves; reads combine a leaf with the messages on the path to it.
//! The store knows typed columns and encoded keys; it does not know SQL, and it runs on any [`keyaki_device::Device`].
//!
//! Reads are `async` functions over a [`PageSource`], so that the same code runs blocking ([`Store::blocking`]) and with
//! thousands of pages in flight (the executor on the floor above).

mod buffer;
mod buffer_cursor;
mod bytes;
mod cache;
mod chunk;
mod codec;
mod collect;
mod count;
mod cursor;
mod error;
mod extent;
mod files;
mod flush;
mod gather;
mod key_value;
mod leaf;
mod locator;
mod log;
mod maintain;
mod memory;
mod merge;
mod meta;
mod open;
mod options;
mod overlay;
mod range;
mod read;
mod replay;
mod rows;
mod schema;
mod snapshots;
mod source;
mod space;
mod store;
mod superblock;
mod tree;
mod upsert;
mod versions;
mod write;

pub use cache::{Cache, Priority};
pub use chunk::{Chunk, RowBatch, Segment};
pub use codec::{ColumnBuilder, KeyCodec, KeyEncoder, Page, PageKind, PageRef, RowCodec, RowEncoder};
/// For `examples/codec_bench.rs`, which measures pages without a store.
#[doc(hidden)]
pub use codec::{PageWriter, seal};
pub use count::Counter;
pub use cursor::Cursor;
pub use error::{Error, Result};
pub use key_value::{KeyValue, KeyValueBatch, KeyValueRange, KeyValueSnapshot};
pub use locator::{Displacement, Goal, LocatorOptions, LocatorStats};
pub use memory::{MemoryBuilder, MemoryTreeStats, is_memory};
pub use options::{Durability, Options};
pub use range::{Direction, KeyRange, successor};
pub use read::{RangeEstimate, Snapshot, TreeView};
pub use schema::{Column, ColumnType, Schema};
pub use source::{BlockingPages, PageSource, block_on};
pub use store::{Store, StoreStats};
pub use upsert::{UpsertFunction, UpsertFunctions};
pub use write::{BulkWriter, Loaded, TreeId, WriteBatch};

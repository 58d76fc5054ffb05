//! The data file: superblock, free space, extents of pages, the page cache, and the interface through which pages are
//! read.
//!
//! ```text
//! superblock   two slots that refer to the newest checkpoint
//! space        free ranges of the file, and the reserve for full disks
//! extent       immutable ranges of pages with an index page; freed with the last reference
//! cache        pages in memory, within a budget
//! behind       writes of extents that a flush does not wait for
//! files        the open data file with its space and cache, behind a gate that poisoning and closing shut
//! source       `PageSource`: pages by blocking reads or through an executor
//! queued       pages for one caller with many reads in flight
//! ```
//!
//! Every page is verified (checksum, position, tree) before it enters the cache.

mod behind;
mod cache;
mod extent;
mod files;
mod queued;
mod source;
mod space;
mod superblock;

pub(crate) use behind::WriteBehind;
pub use cache::{Cache, Priority};
pub(crate) use extent::{Extent, ExtentId, ExtentMeta, ExtentWriter};
pub(crate) use files::Files;
pub(crate) use queued::{IdleQueues, QueuedPages, READS_MAX};
pub use source::{BlockingPages, PageSource, block_on};
pub(crate) use space::{Kept, Purpose, Space};
pub(crate) use superblock::{NODE_TABLE_BYTES_MAX, RESERVED_BYTES, Superblock};

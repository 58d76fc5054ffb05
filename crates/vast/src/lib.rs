//! A compressed static search tree over sorted integers, searched with SIMD instructions: VAST-Tree.
//!
//! ```
//! use keyaki_vast::{Goal, IndexBuilder, Options, Parameters};
//!
//! let times: Vec<i64> = (0..100_000).map(|row| 1_700_000_000 + row * 3).collect();
//! let rows: Vec<u64> = (0..100_000).collect();
//! let mut builder = IndexBuilder::new(Options { parameters: Parameters::new(Goal::Smallest), packed: true });
//! builder.push(&times, &rows)?; // may be called again with further rows
//! let index = builder.finish()?;
//! assert_eq!(index.count(1_700_000_000..1_700_000_300), 100);
//! assert_eq!(index.sum(1_700_000_000..1_700_000_300), 99 * 100 / 2);
//! assert!(index.tree().bits_per_row() < 2.0);
//! # Ok::<(), keyaki_vast::Error>(())
//! ```
//!
//! # How it works
//! A [`Tree`] has one separator for every group of consecutive rows, a *slot*; the sorted keys are stored elsewhere.
//! Its levels are arrays of *compression blocks*. A block has up to 59 separators in a cache line. The block's minimum
//! is subtracted from them, and only 8 or 16 bits of the differences are kept, from the block's *prefix position* on.
//! Consecutive levels with separators of the same width are a *region*: H64 or H32 at the top, with whole keys, then
//! H16, and H8 at the bottom.
//!
//! A search has three phases. *Traversal*: all separators of a block are compared with the search key at once, and the
//! number of lower ones is the index of the child; no branch depends on keys. *Validation*: because low bits are
//! missing, the traversal may have ended too far left, but never too far right. The greatest distance, the
//! *displacement*, is computed exactly at construction, and the answer is searched within this bound. *Range scan*: the
//! rows of a range are consecutive.
//!
//! * In the line layout a block is a cache line, or half or a quarter of one, and contains its header: a level costs
//!   one access to memory. The published layout, SIMD blocks of one register in larger compression blocks, is available
//!   too ([`Preset`]).
//! * The [`Plan`] of a tree is chosen for a [`Goal`]: candidates are tried on a sample of the keys ([`Parameters`]).
//! * Batched lookups advance together and share the latency of memory.
//! * A [`Packed`] column stores keys, or the value of each, in a few bits per value, with random access and aggregates.
//! * An [`Index`] combines a tree, keys and values. [`IndexBuilder`] builds one from a sorted stream. `to_bytes` and
//!   `from_bytes` serialise it and open it again without rebuilding anything.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

#[cfg(target_endian = "big")]
compile_error!("the layouts are little-endian");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("row numbers have 64 bits");

mod error;
mod header;
mod index;
mod key;
mod memory;
mod packed;
mod serial;
mod simd;
mod sorted;
mod tree;

pub use error::Error;
pub use index::{Index, IndexBuilder, Options};
pub use key::Key;
pub use packed::{Aggregate, Packed, Packer};
#[doc(hidden)]
pub use serial::reseal;
pub use simd::Instructions;
pub use sorted::Sorted;
pub use tree::{Caches, Displacement, Goal, Parameters, Plan, Preset, RegionDisplacement, Shape, Tree};

#[cfg(test)]
mod tests;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

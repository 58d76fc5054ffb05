//! A compressed static search tree over sorted integers, searched with SIMD instructions: VAST-Tree.
//!
//! ```
//! use keyaki_vast::{Goal, IndexBuilder, Options, Settings};
//!
//! let times: Vec<i64> = (0..100_000).map(|row| 1_700_000_000 + row * 3).collect();
//! let rows: Vec<u64> = (0..100_000).collect();
//! let mut builder = IndexBuilder::new(Options { settings: Settings::new(Goal::Smallest), packed: true });
//! builder.push(&times, &rows)?; // as often as there is more
//! let index = builder.finish()?;
//! assert_eq!(index.count(1_700_000_000..1_700_000_300), 100);
//! assert_eq!(index.sum(1_700_000_000..1_700_000_300), 99 * 100 / 2);
//! assert!(index.tree().bits_per_row() < 2.0);
//! # Ok::<(), keyaki_vast::Error>(())
//! ```
//!
//! # How it works
//! A [`Tree`] stands above sorted keys that are somewhere else, one separator for every few rows (a *slot*). Its *levels* are
//! arrays of *compression blocks*; a block holds up to some dozens of separators, from which the block's minimum has been
//! subtracted and of which only 8 or 16 bits, from the *prefix position*, are left. Levels with separators of the same width
//! are a *region*: H64 or H32 at the top, whole keys; then H16; at the bottom H8. A search goes through three phases.
//! *Traversal*: a block's separators are compared with the search key at once, and their number below it is the child; no
//! branch depends on keys. *Validation*: since low bits were cut off, the search may have gone too far left, never too far
//! right; how far at most, the *displacement*, is known exactly from construction, and the answer is searched for within that
//! bound. *Range scan*: from there on rows lie side by side.
//!
//! * Blocks in the line layout are a cache line, or half or a quarter of one, with their header in it: one access to memory for
//!   each level. The published layout, SIMD blocks of one register in larger compression blocks, is there too ([`Preset`]).
//! * Parameters are chosen for the keys, for a [`Goal`]: candidates are tried on a sample of them ([`Settings`]).
//! * Lookups in batches advance together and share the latency of memory.
//! * A [`Packed`] column keeps keys, or what belongs to each, in a few bits a value, with random access and aggregates.
//! * An [`Index`] is all of that together; [`IndexBuilder`] makes one from a stream; `to_bytes` and `from_bytes` take it
//!   to a file and back, without building anything anew.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

#[cfg(target_endian = "big")]
compile_error!("the layouts are little-endian");
#[cfg(not(target_pointer_width = "64"))]
compile_error!("rows are counted in 64 bits");

mod error;
mod index;
mod key;
mod memory;
mod packed;
mod serial;
mod simd;
mod tree;

pub use error::Error;
pub use index::{Index, IndexBuilder, Options};
pub use key::Key;
pub use memory::Buffer;
pub use packed::{Aggregate, Packed, Packer};
#[doc(hidden)]
pub use serial::reseal;
pub use simd::Instructions;
pub use tree::{Caches, Displacement, Goal, Plan, Preset, RegionDisplacement, Settings, Shape, Sorted, Tree};

#[cfg(test)]
mod tests;

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

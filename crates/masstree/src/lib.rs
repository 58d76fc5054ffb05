//! A concurrent ordered map from byte strings to values: Masstree, with parallel bulk construction.
//!
//! ```
//! use keyaki_masstree::{Masstree, pin};
//!
//! let map = Masstree::<u64>::new();
//! let guard = pin(); // what is seen under a guard is not freed before the guard is dropped
//! map.insert("apple", 1, &guard);
//! map.insert("banana", 2, &guard);
//! map.insert(&(7u32, -1i64), 3, &guard); // numbers, and tuples of them, sort as numbers
//! assert_eq!(map.get("apple", &guard), Some(1));
//! assert_eq!(map.range::<&str>("apple".."b", &guard).count(), 1);
//! ```
//!
//! # How it works
//! A trie with one layer for each eight bytes of the keys; each layer is a B+-tree of *border* nodes, which hold entries, and
//! *interior* nodes, both with up to 15 key slices. An entry is in the layer in which its key differs from all others, with the
//! rest of the key beside it. Readers take no locks and write nothing that others read: a version word in each node tells them
//! whether what they read was of one moment. Writers lock the single node they change, and its neighbours if it is split or
//! unlinked. `node` describes the layouts, `descend`, `write`, `split`, `unlink` and `scan` the operations.
//!
//! [`Bulk`] builds a map from many keys at once: a parallel radix sort, then nodes from the bottom up, without a descent or a
//! split, by ranges side by side.
//!
//! # What holds
//! - All operations may be called from any number of threads through `&self`. Those on single keys are linearizable. See [`Range`]
//!   about walks.
//! - No operation waits for readers. A writer waits for writers of the same node; a reader waits only while a node is being
//!   changed in place.
//! - Keys may be any byte strings of up to [`KEY_BYTES_MAX`], the empty one and those with NUL bytes included. Keys that share very long
//!   beginnings cost a node for each eight bytes shared.
//! - Memory retired is collected in batches of at most 64 pieces or 64 KiB for each of 16 stripes, and freed when no guard is
//!   left that was there before. A guard held for long holds it back.
//!
//! # Snapshots and freezing
//! The map keeps one value for each key. To read a state of the past, put a version into the key: `(key, newest first)`, that
//! is the key in an encoding of which none is a prefix of another, then the complement of the version; a reader of version v
//! skips newer entries. To freeze such a buffer, stop giving its writers the map (an `Arc` exchanged for a new one): nothing is
//! copied.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod arena;
mod batch;
mod bulk;
mod descend;
mod estimate;
mod guard;
mod key;
mod map;
mod merge;
mod node;
mod partition;
mod range;
mod retire;
mod scan;
mod split;
mod stats;
mod sync;
#[cfg(test)]
mod tests;
mod tree;
mod unlink;
mod value;
mod write;

pub use bulk::{Bulk, BulkError, sort_order};
pub use guard::{Guard, pin};
pub use key::{AsKey, FixedKey, KEY_BYTES_MAX};
pub use map::{Masstree, Occupied, Refused};
pub use range::{Range, RangeRev};
pub use stats::{Memory, Shape};
pub use value::{ArcRef, Value};

/// The README's example is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

// Words are addresses.
const _: () = assert!(size_of::<usize>() == size_of::<u64>());

//! A concurrent ordered map from byte strings to values: Masstree, with parallel bulk construction.
//!
//! ```
//! use keyaki_masstree::{Masstree, pin};
//!
//! let map = Masstree::<u64>::new();
//! let guard = pin(); // nodes and values seen under a guard are not freed before it is dropped
//! map.insert("apple", 1, &guard);
//! map.insert("banana", 2, &guard);
//! map.insert(&(7u32, -1i64), 3, &guard); // numbers and tuples of numbers keep their order
//! assert_eq!(map.get("apple", &guard), Some(1));
//! assert_eq!(map.range::<&str>("apple".."b", &guard).count(), 1);
//! ```
//!
//! # How it works
//! A Masstree is a trie with one layer for each eight bytes of the keys, the *key slice*. Each layer is a B+-tree of
//! *border* nodes, which hold entries, and *interior* nodes, both with up to 15 slices. An entry is in the first layer
//! in which its key differs from all others; the entry stores the rest of the key, the *suffix*.
//!
//! Readers are optimistic: they take no locks and write no shared memory. A version word in each node reveals whether
//! it changed while it was read. A writer locks the node it changes, and its neighbours and parent if the node is split
//! or unlinked. Module `node` describes the layouts; `descend`, `write`, `split`, `unlink` and `scan` describe the
//! operations.
//!
//! [`Bulk`] builds a map from many keys at once: it sorts them by a parallel radix sort and makes the nodes from the
//! bottom up, without descents and splits, several key ranges in parallel.
//!
//! # Guarantees
//! - All operations may be called from any number of threads through `&self`. Operations on single keys are
//!   linearizable. See [`Range`] about scans.
//! - No operation waits for readers. A writer waits for writers of the same node. A reader waits only while a node that
//!   it reads is being changed in place.
//! - Keys are byte strings of up to [`KEY_BYTES_MAX`] bytes. The empty key and keys with NUL bytes are allowed. Keys
//!   that share a long prefix cost a node for each eight bytes of it.
//! - Retired memory is collected in batches of at most 64 items or 64 KiB for each of 16 stripes. A batch is freed when
//!   all guards that existed when it was full are gone. A guard that is held for long holds it back.
//!
//! # Snapshots and freezing
//! The map keeps one value for each key. To keep old versions readable, append the version to the key: an encoding of
//! the key in which no key is a prefix of another, followed by the complement of the version. The newest version of a
//! key then comes first, and a reader of version v skips newer entries. To freeze such a buffer, stop giving the map to
//! writers, for instance by exchanging an `Arc` for one to a new map. Nothing is copied.

#![warn(missing_docs, clippy::unwrap_used, clippy::expect_used)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod arena;
mod ascending;
mod batch;
mod bulk;
mod descend;
mod estimate;
mod guard;
mod key;
mod map;
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
pub use map::{Ascending, Masstree, Occupied, Refused};
pub use range::{Range, RangeRev};
pub use stats::{Memory, Shape};
pub use value::{ArcRef, Value};

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

const _: () = assert!(size_of::<usize>() == size_of::<u64>(), "words of 64 bits hold addresses");

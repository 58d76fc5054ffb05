//! Root buffers: the newest messages of a tree, in memory, in a Masstree from keys to message chains.
//!
//! ```text
//! root      the buffer: map, counters, lookups, walks
//! chain     messages of one key, newest first, behind one machine word
//! cursor    walks over a buffer that hold no guard between calls
//! builder   bulk construction of a buffer from messages in any order
//! garbage   removal of messages that no snapshot can see (memory trees)
//! ```
//!
//! Readers take no locks. The commit lock serialises the writers of a buffer. Messages of a key enter the buffer in the
//! order of their sequence numbers.

mod builder;
mod chain;
mod cursor;
mod garbage;
mod root;

pub(crate) use builder::BufferBuilder;
pub(crate) use chain::{MessageChain, MessageChainRef};
pub(crate) use cursor::{BufferCursor, resolve};
pub(crate) use garbage::Dirty;
pub(crate) use root::RootBuffer;

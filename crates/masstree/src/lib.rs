//! A concurrent ordered map of byte-string keys.
mod arena;
mod descend;
mod guard;
mod key;
mod map;
mod node;
mod range;
mod retire;
mod scan;
mod split;
mod sync;
#[cfg(test)]
mod tests;
mod tree;
mod unlink;
mod value;
mod write;

pub use guard::{Guard, pin};
pub use key::{AsKey, FixedKey};
pub use map::{Masstree, Occupied, Refused};
pub use range::{Range, RangeRev};
pub use value::{ArcRef, Value};

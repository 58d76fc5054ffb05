//! Building an index from a sorted stream: one pass over it, all processors, memory for the result and a little more.
//!
//! Keys and values are packed as they come. The tree is made at the end from the keys that are then there: it needs one in
//! every slot, and those around the boundaries for the displacement.

use super::{Index, Keys};
use crate::error::Error;
use crate::key::Key;
use crate::memory::Buffer;
use crate::packed::Packer;
use crate::tree::{Settings, Tree};

/// What an index is to be.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Options {
    /// What the tree's parameters are chosen by.
    pub settings: Settings,
    /// Whether keys are packed: smaller, and slower to look up.
    pub packed: bool,
}

/// Builds an [`Index`] from rows in the order of their keys.
#[derive(Debug)]
pub struct IndexBuilder<K: Key> {
    options: Options,
    rows: usize,
    last: Option<K>,
    keys: Pending<K>,
    /// None as long as no values were given.
    values: Option<Packer<u64>>,
}

#[derive(Debug)]
enum Pending<K: Key> {
    Plain(Vec<u8>),
    Packed(Packer<K>),
}

impl<K: Key> IndexBuilder<K> {
    /// A builder without rows.
    pub fn new(options: Options) -> Self {
        let keys = if options.packed { Pending::Packed(Packer::new(false)) } else { Pending::Plain(Vec::new()) };
        IndexBuilder { options, rows: 0, last: None, keys, values: None }
    }

    /// More rows: keys not below those before, and a value for each (or none for any).
    pub fn push(&mut self, keys: &[K], values: &[u64]) -> Result<(), Error> {
        let valued = self.values.is_some();
        let matches = if self.rows == 0 {
            values.is_empty() || values.len() == keys.len()
        } else {
            values.len() == if valued { keys.len() } else { 0 }
        };
        if !matches {
            return Err(Error::Lengths { keys: keys.len(), values: values.len() });
        }
        let first = keys.first().zip(self.last).is_some_and(|(&first, last)| first < last).then_some(0);
        let within = || keys.windows(2).position(|pair| pair[1] < pair[0]).map(|at| at + 1);
        if let Some(at) = first.or_else(within) {
            return Err(Error::Order { row: self.rows + at });
        }
        match &mut self.keys {
            Pending::Plain(bytes) => {
                bytes.reserve(keys.len() * K::BYTES);
                for key in keys {
                    bytes.extend_from_slice(&(key.ordered() ^ K::FLIP).to_le_bytes()[..K::BYTES]);
                }
            }
            Pending::Packed(packer) => packer.push(keys)?,
        }
        if !values.is_empty() {
            self.values.get_or_insert_with(|| Packer::new(true)).push(values)?;
        }
        self.rows += keys.len();
        self.last = keys.last().copied().or(self.last);
        Ok(())
    }

    /// The index.
    pub fn finish(self) -> Result<Index<K>, Error> {
        let keys = match self.keys {
            Pending::Plain(bytes) => {
                let mut buffer = Buffer::zeroed(bytes.len());
                buffer.copy_from_slice(&bytes);
                Keys::Plain(buffer.into())
            }
            Pending::Packed(packer) => Keys::Packed(packer.finish()?),
        };
        let values = self.values.map(Packer::finish).transpose()?;
        let tree = Tree::build(&keys, &self.options.settings)?;
        Ok(Index { tree, keys, values })
    }
}

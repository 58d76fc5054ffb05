//! Building an index from a sorted stream in one pass, with all processors and little memory beyond that of the result.
//!
//! Keys and values are packed when they are pushed. The tree is built at the end from the stored keys. It reads one key
//! per slot, and the keys around boundaries for the displacement.

use bytes::Bytes;
use keyaki_primitives::AlignedMemory;

use super::{Index, Keys};
use crate::error::Error;
use crate::key::Key;
use crate::packed::Packer;
use crate::sorted::Sorted;
use crate::tree::{Parameters, Tree};

/// Options of an index.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Options {
    /// The parameters by which the tree's plan is chosen.
    pub parameters: Parameters,
    /// True if keys are packed, which makes them smaller and lookups slower.
    pub packed: bool,
}

/// Builds an [`Index`] from rows in the order of their keys.
#[derive(Debug)]
pub struct IndexBuilder<K: Key> {
    options: Options,
    rows: usize,
    last: Option<K>,
    keys: PendingKeys<K>,
    /// `None` if no values have been given.
    values: Option<Packer<u64>>,
}

/// The keys pushed so far.
#[derive(Debug)]
enum PendingKeys<K: Key> {
    /// Little-endian integers.
    Plain(Vec<u8>),
    Packed(Packer<K>),
}

impl<K: Key> IndexBuilder<K> {
    /// A builder without rows.
    pub fn new(options: Options) -> Self {
        let keys =
            if options.packed { PendingKeys::Packed(Packer::new(false)) } else { PendingKeys::Plain(Vec::new()) };
        IndexBuilder { options, rows: 0, last: None, keys, values: None }
    }

    /// Appends rows: keys in ascending order, and either a value for each key or, in every call, no values.
    ///
    /// # Errors
    /// If the keys, including those pushed before, are not in ascending order, or if the number of values is wrong.
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
            PendingKeys::Plain(bytes) => {
                bytes.reserve(keys.len() * K::BYTES);
                for key in keys {
                    bytes.extend_from_slice(&(key.ordered() ^ K::FLIP).to_le_bytes()[..K::BYTES]);
                }
            }
            PendingKeys::Packed(packer) => packer.push(keys)?,
        }
        if !values.is_empty() {
            self.values.get_or_insert_with(|| Packer::new(true)).push(values)?;
        }
        self.rows += keys.len();
        self.last = keys.last().copied().or(self.last);
        Ok(())
    }

    /// Builds the index.
    ///
    /// # Errors
    /// If no plan meets the goal within the memory limit, or a packed column is too large.
    pub fn finish(self) -> Result<Index<K>, Error> {
        let keys = match self.keys {
            PendingKeys::Plain(bytes) => {
                let mut memory = AlignedMemory::zeroed(bytes.len());
                memory.copy_from_slice(&bytes);
                Keys::Plain(Bytes::from_owner(memory))
            }
            PendingKeys::Packed(packer) => Keys::Packed(packer.finish()?),
        };
        let values = self.values.map(Packer::finish).transpose()?;
        let tree = Tree::build(&keys, &self.options.parameters)?;
        assert!(keys.len() == self.rows && tree.len() == self.rows, "every row has a key");
        assert!(values.as_ref().is_none_or(|values| values.len() == self.rows), "every row has a value");
        Ok(Index { tree, keys, values })
    }
}

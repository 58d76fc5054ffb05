//! An index: a tree, the sorted keys below it, and a row reference or another 64-bit value for each key.
//!
//! Keys are stored plain or packed, values always packed. Both are in the order of the keys, so that a range of keys is
//! a range of rows. Counts, values and aggregates of a range of keys are computed from that range of rows.
//!
//! Invariant: the tree, the keys and the values, if there are any, have the same number of rows.

mod build;
mod lookup;

pub use build::{IndexBuilder, Options};

use std::ops::{Bound, Range, RangeBounds};

use bytes::Bytes;

use crate::error::Error;
use crate::key::Key;
use crate::memory::read;
use crate::packed::{Aggregate, BLOCK, Packed};
use crate::serial::{Kind, Reader, Writer};
use crate::simd::Instructions;
use crate::sorted::Sorted;
use crate::tree::{PlainKeys, Tree};

/// Sorted keys with values, searched through a [`Tree`]. A clone shares the memory.
#[derive(Clone, Debug)]
pub struct Index<K: Key> {
    tree: Tree<K>,
    keys: Keys<K>,
    values: Option<Packed<u64>>,
}

/// The sorted keys.
#[derive(Clone, Debug)]
enum Keys<K: Key> {
    /// Little-endian integers, one after another.
    Plain(Bytes),
    Packed(Packed<K>),
}

impl<K: Key> Sorted<K> for Keys<K> {
    fn len(&self) -> usize {
        match self {
            Keys::Plain(bytes) => bytes.len() / K::BYTES,
            Keys::Packed(packed) => packed.len(),
        }
    }

    fn get(&self, row: usize) -> K {
        match self {
            Keys::Plain(bytes) => {
                let key = &bytes[row * K::BYTES..(row + 1) * K::BYTES];
                // SAFETY: the slice has the bytes of a key, which is an integer.
                unsafe { read(key.as_ptr()) }
            }
            Keys::Packed(packed) => packed.get(row),
        }
    }
}

impl<K: Key> Index<K> {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tree, with its plan and displacement.
    pub fn tree(&self) -> &Tree<K> {
        &self.tree
    }

    /// Size of the keys in bytes.
    pub fn key_bytes(&self) -> usize {
        match &self.keys {
            Keys::Plain(bytes) => bytes.len(),
            Keys::Packed(packed) => packed.bytes(),
        }
    }

    /// Size of the values in bytes; 0 if there are none.
    pub fn value_bytes(&self) -> usize {
        self.values.as_ref().map_or(0, Packed::bytes)
    }

    /// Selects the instruction set that searches use.
    pub fn with_instructions(mut self, instructions: Instructions) -> Self {
        self.tree = self.tree.with_instructions(instructions);
        if let Keys::Packed(packed) = self.keys {
            self.keys = Keys::Packed(packed.with_instructions(instructions));
        }
        self.values = self.values.map(|values| values.with_instructions(instructions));
        self
    }

    /// The key of a row.
    ///
    /// # Panics
    /// If `row` is not below the length.
    pub fn key(&self, row: usize) -> K {
        self.keys.get(row)
    }

    /// The packed values; `None` if the index was built without values.
    pub fn values(&self) -> Option<&Packed<u64>> {
        self.values.as_ref()
    }

    /// The value of a row; the row number if the index was built without values.
    ///
    /// # Panics
    /// If `row` is not below the length.
    pub fn value(&self, row: usize) -> u64 {
        match &self.values {
            Some(values) => values.get(row),
            None => {
                assert!(row < self.len(), "row {row} is out of range, the index has {} rows", self.len());
                row as u64
            }
        }
    }

    /// The rows whose keys are in a range.
    pub fn rows(&self, range: impl RangeBounds<K>) -> Range<usize> {
        let above = |key: K| match key.ordered() {
            last if last == K::LAST => self.len(),
            ordered => self.lower_bound(K::from_ordered(ordered + 1)),
        };
        let start = match range.start_bound() {
            Bound::Included(&key) => self.lower_bound(key),
            Bound::Excluded(&key) => above(key),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&key) => above(key),
            Bound::Excluded(&key) => self.lower_bound(key),
            Bound::Unbounded => self.len(),
        };
        start..end.max(start)
    }

    /// The number of rows whose keys are in a range.
    pub fn count(&self, range: impl RangeBounds<K>) -> usize {
        self.rows(range).len()
    }

    /// Count, sum, minimum and maximum of the values of a range of keys. Only the ends of the range are unpacked.
    pub fn aggregate(&self, range: impl RangeBounds<K>) -> Aggregate<u64> {
        let rows = self.rows(range);
        match &self.values {
            Some(values) => values.aggregate(rows.start, rows.end),
            None => {
                let (count, first) = (rows.len(), rows.start as i128);
                Aggregate {
                    count,
                    sum: (2 * first + count as i128 - 1) * count as i128 / 2,
                    min: (count > 0).then_some(rows.start as u64),
                    max: (count > 0).then(|| rows.end as u64 - 1),
                }
            }
        }
    }

    /// The sum of the values of a range of keys.
    pub fn sum(&self, range: impl RangeBounds<K>) -> i128 {
        match &self.values {
            Some(values) => {
                let rows = self.rows(range);
                values.sum(rows.start, rows.end)
            }
            None => self.aggregate(range).sum,
        }
    }

    /// Calls `each` with the keys and values of a range of rows in order, up to 128 at a time, until it returns
    /// `Break`.
    ///
    /// # Panics
    /// If the end of the range exceeds the length.
    pub fn scan(&self, rows: Range<usize>, mut each: impl FnMut(&[K], &[u64]) -> std::ops::ControlFlow<()>) {
        assert!(rows.end <= self.len(), "row {} is out of range, the index has {} rows", rows.end, self.len());
        let (mut keys, mut values) = ([K::default(); BLOCK], [0; BLOCK]);
        let mut row = rows.start;
        while row < rows.end {
            let block = row / BLOCK;
            let first = block * BLOCK;
            let end = rows.end.min(first + BLOCK);
            match &self.keys {
                Keys::Plain(_) => {
                    for row in row..end {
                        keys[row - first] = self.keys.get(row);
                    }
                }
                Keys::Packed(packed) => {
                    let mut ordered = [0; BLOCK];
                    packed.unpack(block, &mut ordered);
                    for (key, ordered) in keys.iter_mut().zip(ordered) {
                        *key = K::from_ordered(ordered);
                    }
                }
            }
            match &self.values {
                Some(column) => column.unpack(block, &mut values),
                None => (first as u64..).zip(&mut values).for_each(|(row, value)| *value = row),
            }
            let part = row - first..end - first;
            if each(&keys[part.clone()], &values[part]).is_break() {
                return;
            }
            row = end;
        }
    }

    /// Serialises the index.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new(Kind::Index, K::TAG);
        self.tree.write(&mut writer);
        match &self.keys {
            Keys::Plain(bytes) => {
                writer.number(0);
                writer.section(bytes);
            }
            Keys::Packed(packed) => {
                writer.number(1);
                packed.write(&mut writer);
            }
        }
        writer.number(self.values.is_some() as u64);
        if let Some(values) = &self.values {
            values.write(&mut writer);
        }
        writer.finish()
    }

    /// Opens a serialised index, which is used in place. `Bytes::from_owner` takes a mapped file.
    ///
    /// # Errors
    /// If the bytes are no valid serialised index over keys of this type.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, Error> {
        let mut reader = Reader::new(bytes, Kind::Index, K::TAG)?;
        let tree = Tree::<K>::read(&mut reader)?;
        let keys = match reader.number()? {
            0 => Keys::Plain(reader.section()?),
            1 => Keys::Packed(Packed::read(&mut reader)?),
            _ => return Err(Error::Damaged("unknown encoding of keys")),
        };
        let values = match reader.number()? {
            0 => None,
            1 => Some(Packed::read(&mut reader)?),
            _ => return Err(Error::Damaged("unknown encoding of values")),
        };
        reader.finish()?;
        let whole = match &keys {
            Keys::Plain(bytes) => bytes.len().is_multiple_of(K::BYTES),
            Keys::Packed(_) => true,
        };
        if !whole || keys.len() != tree.len() || values.as_ref().is_some_and(|values| values.len() != keys.len()) {
            return Err(Error::Damaged("tree, keys and values have different lengths"));
        }
        Ok(Index { tree, keys, values })
    }

    fn plain(bytes: &Bytes) -> PlainKeys<'_, K> {
        PlainKeys::from_bytes(bytes)
    }
}

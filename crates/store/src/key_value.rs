//! The key-value interface: a tree with one bytes key column and one bytes value column.
//!
//! Keys are encoded as [`crate::KeyCodec`] encodes a non-null bytes column. A range is read in chunks by a new cursor
//! for each chunk, which starts after the last key read.

use std::ops::{Bound, RangeBounds};

use crate::base::{Direction, Error, KeyRange, Result, Schema, TreeId};
use crate::codec::{Chunk, ChunkPart};
use crate::engine::Store;
use crate::message::WriteBatch;
use crate::pages::{BlockingPages, block_on};
use crate::tree::TreeView;

/// A key-value tree of a store. Calls block. Each write is a commit of its own; a [`KeyValueBatch`] commits several
/// together.
///
/// ```no_run
/// # fn main() -> keyaki_store::Result<()> {
/// let device = keyaki_device::open_default()?;
/// let store = keyaki_store::Store::open(device, "counters".as_ref(), keyaki_store::Options::default())?;
/// let map = keyaki_store::key_value::KeyValue::open(&store, keyaki_store::TreeId::new(16))?;
/// map.insert(b"apple", b"1")?;
/// assert_eq!(map.get(b"apple")?.as_deref(), Some(b"1".as_slice()));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct KeyValue {
    store: Store,
    tree: TreeId,
}

/// Changes to one or more key-value trees that become visible and durable together.
#[derive(Debug, Default)]
pub struct KeyValueBatch {
    batch: WriteBatch,
}

/// A key-value tree as of one moment.
#[derive(Debug, Clone)]
pub struct KeyValueSnapshot {
    view: TreeView,
    pages: BlockingPages,
}

impl KeyValue {
    /// Opens the key-value tree `tree`, creating it if it does not exist.
    ///
    /// # Errors
    /// [`Error::TreeMismatch`] if the tree has other columns; errors of [`Store::commit`].
    pub fn open(store: &Store, tree: TreeId) -> Result<KeyValue> {
        let schema = Schema::key_value();
        match store.latest().tree(tree) {
            Ok(view) if **view.schema() == schema => {}
            Ok(_) => return Err(Error::TreeMismatch { tree, reason: "not a key-value tree" }),
            Err(_) => {
                let mut batch = WriteBatch::new();
                batch.create_tree(tree, &schema);
                store.commit(batch)?;
            }
        }
        Ok(KeyValue { store: store.clone(), tree })
    }

    /// The value of a key; `None` if the key does not exist.
    ///
    /// # Errors
    /// [`Error::TreeNotFound`] if the tree was dropped; those of [`KeyValueSnapshot::get`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.snapshot()?.get(key)
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// Those of [`Store::commit`].
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut batch = KeyValueBatch::default();
        batch.insert(self, key, value);
        self.commit(batch)
    }

    /// Deletes a key. Deleting a missing key is not an error.
    ///
    /// # Errors
    /// Those of [`Store::commit`].
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        let mut batch = KeyValueBatch::default();
        batch.delete(self, key);
        self.commit(batch)
    }

    /// Applies function `function` of [`crate::Options::upserts`] to the value of a key, without reading the value.
    ///
    /// # Errors
    /// Those of [`Store::commit`]. An error of the function itself is returned by later reads of the key.
    pub fn upsert(&self, key: &[u8], function: u32, operand: &[u8]) -> Result<()> {
        let mut batch = KeyValueBatch::default();
        batch.upsert(self, key, function, operand);
        self.commit(batch)
    }

    /// Commits a batch.
    ///
    /// # Errors
    /// Those of [`Store::commit`].
    pub fn commit(&self, batch: KeyValueBatch) -> Result<()> {
        self.store.commit(batch.batch).map(drop)
    }

    /// The keys and values of a range of keys in a new snapshot.
    ///
    /// # Errors
    /// [`Error::TreeNotFound`] if the tree was dropped.
    pub fn range<'k>(&self, range: impl RangeBounds<&'k [u8]>, direction: Direction) -> Result<KeyValueRange> {
        Ok(self.snapshot()?.range(range, direction))
    }

    /// A snapshot of the tree with all acknowledged commits.
    ///
    /// # Errors
    /// [`Error::TreeNotFound`] if the tree was dropped.
    pub fn snapshot(&self) -> Result<KeyValueSnapshot> {
        Ok(KeyValueSnapshot { view: self.store.snapshot().tree(self.tree)?, pages: self.store.blocking() })
    }
}

impl KeyValueBatch {
    /// Sets the value of a key.
    pub fn insert(&mut self, map: &KeyValue, key: &[u8], value: &[u8]) {
        self.batch.insert_raw(map.tree, &encode_key(key), value);
    }
    /// Deletes a key. Deleting a missing key is not an error.
    pub fn delete(&mut self, map: &KeyValue, key: &[u8]) {
        self.batch.delete_raw(map.tree, &encode_key(key));
    }
    /// Applies an upsert function to the value of a key, without reading the value.
    pub fn upsert(&mut self, map: &KeyValue, key: &[u8], function: u32, operand: &[u8]) {
        self.batch.upsert_raw(map.tree, &encode_key(key), function, operand);
    }
}

impl KeyValueSnapshot {
    /// The value of a key; `None` if the key does not exist.
    ///
    /// # Errors
    /// Device errors, [`Error::Corrupt`], [`Error::Closed`], errors of upsert functions.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let range = KeyRange::point(encode_key(key));
        let mut cursor = self.view.cursor(&self.pages, range, Direction::Ascending);
        let Some(chunk) = block_on(cursor.next())? else { return Ok(None) };
        let mut value = Vec::new();
        match &chunk.parts()[0] {
            ChunkPart::Page { page, rows, .. } => {
                page.check_all_columns()?;
                page.value(rows.start as usize, &chunk.codecs.row, &mut value);
            }
            ChunkPart::Row { value: found, .. } => value.extend_from_slice(found),
            ChunkPart::Rows(batch) => value.extend_from_slice(batch.value(0)),
        }
        Ok(Some(value))
    }

    /// The keys and values of a range of keys.
    pub fn range<'k>(&self, range: impl RangeBounds<&'k [u8]>, direction: Direction) -> KeyValueRange {
        let range = encode_range(&range);
        KeyValueRange { snapshot: self.clone(), range: Some(range), direction, rows: Vec::new().into_iter() }
    }

    /// The number of keys in a range. Reads the pages at the ends of the range and the pages with unflushed changes
    /// only.
    ///
    /// # Errors
    /// Device errors, [`Error::Corrupt`], [`Error::Closed`], errors of upsert functions.
    pub fn count<'k>(&self, range: impl RangeBounds<&'k [u8]>) -> Result<u64> {
        let mut counter = self.view.counter(&self.pages, encode_range(&range));
        let mut keys = 0;
        while let Some(more) = block_on(counter.next())? {
            keys += more;
        }
        Ok(keys)
    }
}

fn encode_range<'k>(range: &impl RangeBounds<&'k [u8]>) -> KeyRange {
    let encode = |bound: Bound<&&[u8]>| bound.map(|key| encode_key(key));
    KeyRange { start: encode(range.start_bound()), end: encode(range.end_bound()) }
}

/// An iterator over the keys and values of a range, which reads a chunk at a time.
#[derive(Debug)]
pub struct KeyValueRange {
    snapshot: KeyValueSnapshot,
    /// The range after `rows`; `None` at the end.
    range: Option<KeyRange>,
    direction: Direction,
    rows: std::vec::IntoIter<(Vec<u8>, Vec<u8>)>,
}

impl KeyValueRange {
    /// Reads the next chunk; false at the end. The remaining range starts after the last key of the chunk.
    fn advance(&mut self) -> Result<bool> {
        let Some(range) = self.range.take() else { return Ok(false) };
        let view = &self.snapshot.view;
        let mut cursor = view.cursor(&self.snapshot.pages, range.clone(), self.direction);
        let Some(chunk) = block_on(cursor.next())? else { return Ok(false) };
        let mut rows = Vec::with_capacity(chunk.rows());
        let mut last = Vec::new();
        for_each_row(&chunk, |key, value| {
            last = key.to_vec();
            rows.push((decode_key(key), value.to_vec()));
            Ok(())
        })?;
        // Rows out of order, in a damaged page, must not move the range backwards: the iteration would not end.
        if !range.contains(&last) {
            return Err(view.files.corrupt_tree(view.tree));
        }
        self.range = Some(match self.direction {
            Direction::Ascending => KeyRange { start: Bound::Excluded(last), end: range.end },
            Direction::Descending => KeyRange { start: range.start, end: Bound::Excluded(last) },
        });
        self.rows = rows.into_iter();
        Ok(true)
    }
}

impl Iterator for KeyValueRange {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(row) = self.rows.next() {
                return Some(Ok(row));
            }
            match self.advance() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Encodes a key as [`crate::KeyCodec`] encodes a non-null bytes column: 0xff follows each zero byte, two zero bytes
/// end the key.
fn encode_key(key: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(key.len() + 2);
    for &byte in key {
        encoded.push(byte);
        if byte == 0 {
            encoded.push(0xff);
        }
    }
    encoded.extend_from_slice(&[0, 0]);
    encoded
}

fn decode_key(encoded: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(encoded.len());
    let mut bytes = encoded.iter();
    while let Some(&byte) = bytes.next() {
        if byte == 0 && bytes.next() != Some(&0xff) {
            break;
        }
        key.push(byte);
    }
    key
}

/// Calls `visit` with the encoded key and the value of every row.
fn for_each_row(chunk: &Chunk, mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
    let (mut found_key, mut found_value) = (Vec::new(), Vec::new());
    for part in chunk.parts() {
        let (page, rows, reversed) = match part {
            ChunkPart::Row { key, value } => {
                visit(key, value)?;
                continue;
            }
            ChunkPart::Rows(batch) => {
                (0..batch.len()).try_for_each(|row| visit(batch.key(row), batch.value(row)))?;
                continue;
            }
            ChunkPart::Page { page, rows, reversed } => (page, rows.clone(), *reversed),
        };
        page.check_all_columns()?;
        for i in 0..rows.len() as u32 {
            let row = if reversed { rows.end - 1 - i } else { rows.start + i } as usize;
            found_key.clear();
            found_value.clear();
            page.key(row, &mut found_key);
            page.value(row, &chunk.codecs.row, &mut found_value);
            visit(&found_key, &found_value)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, BinaryViewArray};

    use super::*;

    #[test]
    fn keys_are_encoded_as_bytes_columns() {
        let codec = crate::KeyCodec::new(&Schema::key_value());
        for key in [b"".as_slice(), b"abc", b"\0", b"a\0\0b\xff", &[0xff; 300]] {
            let array: ArrayRef = Arc::new(BinaryViewArray::from(vec![key]));
            let mut encoded = Vec::new();
            codec.encode(&[array], 0, &mut encoded);
            assert_eq!(encode_key(key), encoded);
            assert_eq!(decode_key(&encoded), key);
        }
    }
}

//! The key-value interface: a tree with one bytes key column and one bytes value column.
//!
//! Keys are encoded as [`crate::KeyCodec`] encodes a non-null bytes column. The values of a range are references into its
//! pages; its next pages are read meanwhile.

use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use futures::StreamExt;

use crate::base::{Direction, Error, KeyRange, Result, Schema, TreeId};
use crate::codec::{Chunk, ChunkPart, invalid_key, take_escaped};
use crate::engine::Store;
use crate::message::WriteBatch;
use crate::pages::{BlockingPages, PageSource, QueuedPages, READS_MAX, block_on};
use crate::tree::{Cursor, TreeView};

/// Maximum number of bytes that a range reads ahead.
const READ_AHEAD_BYTES: usize = 2 << 20;
/// Columns of a key-value tree.
const COLUMNS: [usize; 2] = [0, 1];

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
            Ok(view) if view.schema().is_alike(&schema) => {}
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

    /// The values of several keys in a new snapshot, in the order of the keys; `None` for keys that do not exist. Their
    /// pages are read concurrently.
    ///
    /// # Errors
    /// [`Error::TreeNotFound`] if the tree was dropped; those of [`KeyValueSnapshot::get`].
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        self.snapshot()?.get_many(keys)
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

    /// Merges the changes of a range of keys with their rows, see [`Store::compact`]. Blocks until that is done; reads and
    /// commits continue.
    ///
    /// # Errors
    /// Those of [`Store::compact`].
    pub fn compact<'k>(&self, range: impl RangeBounds<&'k [u8]>) -> Result<()> {
        self.store.compact(self.tree, &encode_range(&range), &|_, _| true).map(drop)
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
        block_on(self.find(key, &self.pages))
    }

    /// The values of several keys, in the order of the keys; `None` for keys that do not exist. Their pages are read
    /// concurrently.
    ///
    /// # Errors
    /// As [`KeyValueSnapshot::get`].
    pub fn get_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>> {
        // Neighbouring keys share pages, and neighbouring pages a read.
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|&at| keys[at].as_ref());
        let pages = QueuedPages::new(self.pages.files.clone(), 0);
        let mut values = vec![None; keys.len()];
        let gets = order.into_iter().map(|at| {
            let get = self.find(keys[at].as_ref(), &pages);
            async move { (at, get.await) }
        });
        let mut gets = futures::stream::iter(gets).buffer_unordered(READS_MAX);
        pages.block_on(async {
            while let Some((at, value)) = gets.next().await {
                values[at] = value?;
            }
            Ok::<_, Error>(())
        })?;
        drop(gets);
        Ok(values)
    }

    async fn find<P: PageSource>(&self, key: &[u8], pages: &P) -> Result<Option<Vec<u8>>> {
        let range = KeyRange::point(encode_key(key));
        let mut cursor = self.view.cursor(pages, range, Direction::Ascending);
        let Some(chunk) = cursor.next().await? else { return Ok(None) };
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
        let pages = Arc::new(QueuedPages::new(self.pages.files.clone(), READ_AHEAD_BYTES));
        let cursor = self.view.clone().into_cursor(pages.clone(), encode_range(&range), direction);
        KeyValueRange {
            cursor,
            pages,
            chunk: None,
            begun: 0,
            row: 0,
            rows: 0,
            key: Vec::new(),
            value: Vec::new(),
            is_ended: false,
        }
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

/// The keys and values of a range, in the order of its direction. It reads ahead: a little at first, up to 2 MiB in a
/// long range.
#[derive(Debug)]
pub struct KeyValueRange {
    cursor: Cursor<'static, Arc<QueuedPages>>,
    pages: Arc<QueuedPages>,
    chunk: Option<Chunk>,
    /// Number of parts of the chunk that were begun. The last one is the current part.
    begun: usize,
    /// The next row of the current part, and their number.
    row: usize,
    rows: usize,
    /// The last key, and the last value if it is not contiguous in its page.
    key: Vec<u8>,
    value: Vec<u8>,
    /// The iterator has returned an error.
    is_ended: bool,
}

impl KeyValueRange {
    /// The next key and its value, without a copy of the value; `None` at the end. An error of the device may be temporary: the
    /// next call repeats the read.
    ///
    /// # Errors
    /// As [`KeyValueSnapshot::get`].
    pub fn next_row(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        while self.row == self.rows {
            if !self.begin_part()? {
                return Ok(None);
            }
        }
        let KeyValueRange { chunk: Some(chunk), begun, row, key, value, .. } = self else { return Ok(None) };
        let at = *row;
        let next: (&[u8], &[u8]) = match &chunk.parts()[*begun - 1] {
            ChunkPart::Page { page, rows, reversed } => {
                let row = if *reversed { rows.end as usize - 1 - at } else { rows.start as usize + at };
                let ((head, tail), (prefix, suffix)) = (page.bytes_at(0, row), page.bytes_at(1, row));
                replace(key, head, tail);
                if prefix.is_empty() {
                    (key, suffix)
                } else {
                    replace(value, prefix, suffix);
                    (key, value)
                }
            }
            ChunkPart::Row { key: encoded, value } => {
                decode_key(encoded, key)?;
                (key, value)
            }
            ChunkPart::Rows(batch) => {
                decode_key(batch.key(at), key)?;
                (key, batch.value(at))
            }
        };
        *row += 1;
        Ok(Some(next))
    }

    /// Begins the next part of the chunk, or of the next chunk; false at the end. A damaged column is an error again in the
    /// next call.
    fn begin_part(&mut self) -> Result<bool> {
        if self.chunk.as_ref().is_none_or(|chunk| chunk.parts().len() == self.begun) {
            self.chunk = self.pages.block_on(self.cursor.next())?;
            self.begun = 0;
        }
        let Some(chunk) = &self.chunk else { return Ok(false) };
        let Some(part) = chunk.parts().get(self.begun) else { return Ok(true) };
        if let ChunkPart::Page { page, .. } = part {
            page.check_columns(&COLUMNS)?;
        }
        self.begun += 1;
        (self.row, self.rows) = (0, part.rows());
        Ok(true)
    }
}

fn replace(bytes: &mut Vec<u8>, head: &[u8], tail: &[u8]) {
    bytes.clear();
    bytes.extend_from_slice(head);
    bytes.extend_from_slice(tail);
}

/// The reverse of [`encode_key`].
///
/// # Errors
/// [`Error::InvalidKey`].
fn decode_key(encoded: &[u8], key: &mut Vec<u8>) -> Result<()> {
    let mut rest = encoded;
    let decoded = take_escaped(&mut rest).filter(|_| rest.is_empty());
    replace(key, &decoded.ok_or_else(|| invalid_key(encoded))?, &[]);
    Ok(())
}

/// Ends after the first error.
impl Iterator for KeyValueRange {
    type Item = Result<(Vec<u8>, Vec<u8>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_ended {
            return None;
        }
        let row = self.next_row().map(|row| row.map(|(key, value)| (key.to_vec(), value.to_vec())));
        self.is_ended = row.is_err();
        row.transpose()
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

#[cfg(test)]
mod tests {
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
        }
    }
}

//! Changes: write batches (through log and buffers) and bulk loads (straight to extents).

use std::sync::Arc;

use arrow_array::RecordBatch;

use crate::store::Store;
use crate::{KeyRange, Result, Schema};

pub type TreeId = u32;

/// Changes to any number of trees that become visible and durable together.
#[derive(Debug, Default)]
pub struct WriteBatch {
    _todo: (),
}

impl WriteBatch {
    pub fn new() -> Self {
        Self::default()
    }
    /// Creates a tree under an id from [`Store::new_tree_id`].
    pub fn create_tree(&mut self, _tree: TreeId, _schema: &Schema) {
        todo!()
    }
    pub fn drop_tree(&mut self, _tree: TreeId) {
        todo!()
    }
    /// Inserts rows (all columns of the tree's schema, in order); rows with the same key are replaced.
    pub fn insert(&mut self, _tree: TreeId, _schema: &Schema, _rows: &RecordBatch) -> Result<()> {
        todo!()
    }
    /// Deletes rows by key; `keys` has the key columns (further columns are ignored). Missing rows are no error.
    pub fn delete(&mut self, _tree: TreeId, _schema: &Schema, _keys: &RecordBatch) -> Result<()> {
        todo!()
    }
    /// As `insert`, `delete` with encoded keys and values; `upsert` applies a function of
    /// [`crate::Options::upserts`].
    pub fn insert_raw(&mut self, _tree: TreeId, _key: &[u8], _value: &[u8]) {
        todo!()
    }
    pub fn delete_raw(&mut self, _tree: TreeId, _key: &[u8]) {
        todo!()
    }
    pub fn upsert_raw(&mut self, _tree: TreeId, _key: &[u8], _function: u32, _operand: &[u8]) {
        todo!()
    }
    pub fn is_empty(&self) -> bool {
        todo!()
    }
    /// Bytes of messages so far.
    pub fn bytes(&self) -> usize {
        todo!()
    }
}

/// Writes sorted rows into full extents, once, past log and buffers. Made by [`Store::bulk_writer`]; what it wrote becomes
/// part of a tree by [`Store::install`], and is freed if dropped instead.
#[derive(Debug)]
pub struct BulkWriter {
    _todo: (),
}

impl BulkWriter {
    /// Adds rows (all columns, in schema order), which must be in strictly ascending key order over all calls.
    ///
    /// # Errors
    /// [`crate::Error::Order`] (nothing of this call counts), device errors.
    pub fn push(&mut self, _rows: &RecordBatch) -> Result<()> {
        todo!()
    }
    pub fn rows(&self) -> u64 {
        todo!()
    }
    pub fn finish(self) -> Result<Loaded> {
        todo!()
    }
}

/// Extents written by a [`BulkWriter`], not yet part of a tree.
#[derive(Debug)]
pub struct Loaded {
    _todo: (),
}

impl Loaded {
    pub fn rows(&self) -> u64 {
        todo!()
    }
    pub fn bytes(&self) -> u64 {
        todo!()
    }
    /// From the first to the last key; none if there are no rows.
    pub fn range(&self) -> Option<KeyRange> {
        todo!()
    }
}

impl Store {
    pub fn new_tree_id(&self) -> TreeId {
        todo!()
    }
    pub fn bulk_writer(&self, _tree: TreeId, _schema: &Arc<Schema>) -> BulkWriter {
        todo!()
    }
    /// Makes bulk-loaded rows part of their trees, together with the changes of `batch` (applied before), and makes a
    /// checkpoint: all of it is durable on return, or none of it. Rows with a key that the tree has are replaced.
    pub fn install(&self, _batch: WriteBatch, _loaded: Vec<(TreeId, Loaded)>) -> Result<()> {
        todo!()
    }
    /// Makes the batch visible and, as [`crate::Durability`] asks, durable; all of it or nothing. Returns its sequence
    /// number. Blocks: call it from a thread that may wait.
    pub fn commit(&self, _batch: WriteBatch) -> Result<u64> {
        todo!()
    }
}

//! Changes: write batches (through log and buffers) and bulk loads (straight to extents).
//!
//! A batch is kept in the form in which it goes into the log: a list of operations
//!
//! ```text
//! 1 insert       tree: u32, key length: u32, value length: u32, key, value
//! 2 delete       tree: u32, key length: u32, key
//! 3 upsert       tree: u32, function: u32, key length: u32, operand length: u32, key, operand
//! 4 create tree  tree: u32, schema length: u32, schema
//! 5 drop tree    tree: u32
//! ```

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch};

use crate::buffer::Message;
use crate::bytes::Reader;
use crate::extent::{Extent, ExtentWriter};
use crate::read::{TreeView, Version};
use crate::store::{Files, Store};
use crate::tree::{Codecs, Inner, Node};
use crate::{Error, KeyRange, Result, Schema};

pub type TreeId = u32;

const INSERT: u8 = 1;
const DELETE: u8 = 2;
const UPSERT: u8 = 3;
const CREATE_TREE: u8 = 4;
const DROP_TREE: u8 = 5;

/// Longest key and longest value, in bytes.
const KEY_LIMIT: usize = 64 << 10;
const VALUE_LIMIT: usize = 64 << 20;

/// Changes to any number of trees that become visible and durable together.
#[derive(Debug, Default)]
pub struct WriteBatch {
    pub(crate) bytes: Vec<u8>,
    codecs: HashMap<TreeId, Arc<Codecs>>,
    /// A key or value was too long; told at commit.
    too_large: Option<Error>,
}

/// One operation of a batch.
pub(crate) enum Operation<'a> {
    Message { tree: TreeId, key: &'a [u8], message: MessageBytes<'a> },
    CreateTree { tree: TreeId, schema: Schema },
    DropTree { tree: TreeId },
}

/// A message in a batch.
pub(crate) enum MessageBytes<'a> {
    Insert(&'a [u8]),
    Delete,
    Upsert { function: u32, operand: &'a [u8] },
}

impl From<MessageBytes<'_>> for Message {
    fn from(bytes: MessageBytes<'_>) -> Message {
        match bytes {
            MessageBytes::Insert(value) => Message::Insert(value.into()),
            MessageBytes::Delete => Message::Delete,
            MessageBytes::Upsert { function, operand } => Message::Upsert { function, operand: operand.into() },
        }
    }
}

impl WriteBatch {
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a tree under an id from [`Store::new_tree_id`].
    pub fn create_tree(&mut self, tree: TreeId, schema: &Schema) {
        let mut encoded = Vec::new();
        crate::meta::encode_schema(schema, &mut encoded);
        self.head(CREATE_TREE, &[tree, encoded.len() as u32]);
        self.bytes.extend_from_slice(&encoded);
    }

    pub fn drop_tree(&mut self, tree: TreeId) {
        self.head(DROP_TREE, &[tree]);
    }

    /// Inserts rows (all columns of the tree's schema, in order); rows with the same key are replaced.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the columns are not those of the schema.
    pub fn insert(&mut self, tree: TreeId, schema: &Schema, rows: &RecordBatch) -> Result<()> {
        check_columns(schema, rows.columns(), schema.columns().len())?;
        let codecs = self.codecs(tree, schema);
        let (keys, values) = (codecs.key.encoder(rows.columns()), codecs.row.encoder(rows.columns()));
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for row in 0..rows.num_rows() {
            key.clear();
            value.clear();
            keys.encode(row, &mut key);
            values.encode(row, &mut value);
            self.insert_raw(tree, &key, &value);
        }
        Ok(())
    }

    /// Deletes rows by key; `keys` has the key columns (further columns are ignored). Missing rows are no error.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the columns are not those of the schema.
    pub fn delete(&mut self, tree: TreeId, schema: &Schema, keys: &RecordBatch) -> Result<()> {
        check_columns(schema, keys.columns(), schema.key_columns())?;
        let codecs = self.codecs(tree, schema);
        let encoder = codecs.key.encoder(keys.columns());
        let mut key = Vec::new();
        for row in 0..keys.num_rows() {
            key.clear();
            encoder.encode(row, &mut key);
            self.delete_raw(tree, &key);
        }
        Ok(())
    }

    /// As `insert`, with encoded key and value. (A commit refuses what is no row of the tree.)
    pub fn insert_raw(&mut self, tree: TreeId, key: &[u8], value: &[u8]) {
        self.check_len("key", key.len(), KEY_LIMIT);
        self.check_len("row", value.len(), VALUE_LIMIT);
        self.head(INSERT, &[tree, key.len() as u32, value.len() as u32]);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    /// As `delete`, with an encoded key.
    pub fn delete_raw(&mut self, tree: TreeId, key: &[u8]) {
        self.check_len("key", key.len(), KEY_LIMIT);
        self.head(DELETE, &[tree, key.len() as u32]);
        self.bytes.extend_from_slice(key);
    }

    /// Applies a function of [`crate::Options::upserts`] to the row with this key, without reading it.
    pub fn upsert_raw(&mut self, tree: TreeId, key: &[u8], function: u32, operand: &[u8]) {
        self.check_len("key", key.len(), KEY_LIMIT);
        self.check_len("operand", operand.len(), VALUE_LIMIT);
        self.head(UPSERT, &[tree, function, key.len() as u32, operand.len() as u32]);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(operand);
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes of messages so far.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// # Errors
    /// [`Error::TooLarge`] if some key or value exceeded its limit.
    pub(crate) fn check(&self) -> Result<()> {
        self.too_large.clone().map_or(Ok(()), Err)
    }

    fn head(&mut self, operation: u8, numbers: &[u32]) {
        self.bytes.push(operation);
        for number in numbers {
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn check_len(&mut self, what: &'static str, len: usize, limit: usize) {
        if len > limit && self.too_large.is_none() {
            self.too_large = Some(Error::TooLarge { what, bytes: len as u64, limit: limit as u64 });
        }
    }

    fn codecs(&mut self, tree: TreeId, schema: &Schema) -> Arc<Codecs> {
        let known = self.codecs.entry(tree).or_insert_with(|| Arc::new(Codecs::new(schema.clone())));
        if *known.schema != *schema {
            *known = Arc::new(Codecs::new(schema.clone()));
        }
        known.clone()
    }
}

fn check_columns(schema: &Schema, columns: &[ArrayRef], count: usize) -> Result<()> {
    if columns.len() < count {
        return Err(Error::Invalid(format!("{} columns given, {count} expected", columns.len())));
    }
    for (column, array) in schema.columns()[..count].iter().zip(columns) {
        if *array.data_type() != column.ty.arrow() {
            let (found, expected) = (array.data_type(), column.ty.arrow());
            return Err(Error::Invalid(format!("column \"{}\": {found} given, {expected} expected", column.name)));
        }
        if !column.nullable && array.null_count() > 0 {
            return Err(Error::Invalid(format!("column \"{}\" must not be null", column.name)));
        }
    }
    Ok(())
}

/// Decodes a batch, calling `visit` with each operation.
///
/// # Errors
/// [`Error::Invalid`] if the bytes are not a batch; the errors of `visit`.
pub(crate) fn decode(bytes: &[u8], mut visit: impl FnMut(Operation<'_>) -> Result<()>) -> Result<()> {
    let mut reader = Reader::new(bytes);
    while !reader.is_empty() {
        let operation = reader.u8()?;
        let tree = reader.u32()?;
        visit(match operation {
            INSERT => {
                let (key, value) = (reader.u32()? as usize, reader.u32()? as usize);
                let key = reader.bytes(key)?;
                Operation::Message { tree, key, message: MessageBytes::Insert(reader.bytes(value)?) }
            }
            DELETE => {
                let key = reader.u32()? as usize;
                Operation::Message { tree, key: reader.bytes(key)?, message: MessageBytes::Delete }
            }
            UPSERT => {
                let function = reader.u32()?;
                let (key, operand) = (reader.u32()? as usize, reader.u32()? as usize);
                let key = reader.bytes(key)?;
                let operand = reader.bytes(operand)?;
                Operation::Message { tree, key, message: MessageBytes::Upsert { function, operand } }
            }
            CREATE_TREE => {
                let len = reader.u32()? as usize;
                let mut encoded = Reader::new(reader.bytes(len)?);
                let schema = crate::meta::decode_schema(&mut encoded)?;
                if !encoded.is_empty() {
                    return Err(Error::Invalid(format!("the schema of tree {tree} has other columns than it says")));
                }
                Operation::CreateTree { tree, schema }
            }
            DROP_TREE => Operation::DropTree { tree },
            other => return Err(Error::Invalid(format!("unknown operation {other} in the log"))),
        })?;
    }
    Ok(())
}

/// Writes sorted rows into full extents, once, past log and buffers. Made by [`Store::bulk_writer`]; what it wrote becomes
/// part of a tree by [`Store::install`], and is freed if dropped instead.
#[derive(Debug)]
pub struct BulkWriter {
    codecs: Arc<Codecs>,
    writer: ExtentWriter,
    /// Rows that did not fill a page yet.
    rest: Option<RecordBatch>,
    last_key: Option<Vec<u8>>,
    rows: u64,
}

impl BulkWriter {
    pub(crate) fn new(codecs: Arc<Codecs>, writer: ExtentWriter) -> Self {
        BulkWriter { codecs, writer, rest: None, last_key: None, rows: 0 }
    }

    /// Adds rows (all columns, in schema order), which must be in strictly ascending key order over all calls.
    ///
    /// # Errors
    /// [`Error::Order`], [`Error::TooLarge`] (nothing of these calls counts), device errors.
    pub fn push(&mut self, rows: &RecordBatch) -> Result<()> {
        check_columns(&self.codecs.schema, rows.columns(), self.codecs.schema.columns().len())?;
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let last_key = self.check_order(rows)?;
        let joined = match self.rest.take() {
            Some(rest) => arrow_select::concat::concat_batches(self.codecs.schema.arrow(), [&rest, rows])
                .map_err(|error| Error::Invalid(error.to_string()))?,
            None => rows.clone(),
        };
        let done = self.writer.write(joined.columns(), None, 0, false)?;
        if done < joined.num_rows() {
            self.rest = Some(joined.slice(done, joined.num_rows() - done));
        }
        self.last_key = Some(last_key);
        self.rows += rows.num_rows() as u64;
        Ok(())
    }

    /// The last row's key, if every row is above its predecessor.
    fn check_order(&self, rows: &RecordBatch) -> Result<Vec<u8>> {
        let keys = self.codecs.key.encoder(rows.columns());
        let mut last = self.last_key.clone();
        let mut key = Vec::new();
        for row in 0..rows.num_rows() {
            key.clear();
            keys.encode(row, &mut key);
            if key.len() > KEY_LIMIT {
                let (bytes, limit) = (key.len() as u64, KEY_LIMIT as u64);
                return Err(Error::TooLarge { what: "key", bytes, limit });
            }
            match &mut last {
                Some(last) if *last >= key => {
                    return Err(Error::Order { row: self.rows + row as u64, duplicate: *last == key });
                }
                Some(last) => std::mem::swap(last, &mut key),
                None => last = Some(std::mem::take(&mut key)),
            }
        }
        Ok(last.unwrap_or_default())
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// # Errors
    /// Device errors.
    pub fn finish(mut self) -> Result<Loaded> {
        if let Some(rest) = self.rest.take() {
            self.writer.write(rest.columns(), None, 0, true)?;
        }
        Ok(Loaded { codecs: self.codecs, extents: self.writer.finish()? })
    }
}

/// Extents written by a [`BulkWriter`], not yet part of a tree.
#[derive(Debug)]
pub struct Loaded {
    codecs: Arc<Codecs>,
    pub(crate) extents: Vec<Arc<Extent>>,
}

impl Loaded {
    /// # Errors
    /// `Invalid` if it was not written for such a tree of this store.
    pub(crate) fn check(&self, tree: TreeId, schema: &Schema, files: &Arc<Files>) -> Result<()> {
        let ours = |extent: &Arc<Extent>| extent.meta.tree == tree && extent.is_of(files);
        match self.codecs.schema.is_alike(schema) && self.extents.iter().all(ours) {
            true => Ok(()),
            false => Err(Error::Invalid(format!("the loaded rows were not written for tree {tree} as it is"))),
        }
    }

    pub fn rows(&self) -> u64 {
        self.extents.iter().map(|extent| extent.meta.rows).sum()
    }

    pub fn bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.meta.len).sum()
    }

    /// From the first to the last key; none if there are no rows.
    pub fn range(&self) -> Option<KeyRange> {
        let (first, last) = (self.extents.first()?, self.extents.last()?);
        let start = Bound::Included(first.meta.first.to_vec());
        Some(KeyRange { start, end: Bound::Included(last.meta.last.to_vec()) })
    }

    /// A view of just these rows, for a loader that must read them again before they become part of a tree. The view
    /// keeps the extents from being freed.
    pub fn view(&self, store: &Store, tree: TreeId, schema: &Schema) -> TreeView {
        let codecs = Arc::new(Codecs::new(schema.clone()));
        let root = match self.extents.as_slice() {
            [] => Inner::empty(),
            extents => {
                let pivots = extents[1..].iter().map(|extent| extent.meta.first.clone()).collect();
                let leaves = extents.iter().map(|extent| Arc::new(Node::Leaf(Some(extent.clone()))));
                Inner::new(pivots, leaves.collect(), Vec::new())
            }
        };
        let version = Arc::new(Version::new(codecs, Arc::new(root)));
        TreeView { tree, sequence: 0, version, files: store.files().clone() }
    }
}

impl Store {
    /// A writer of sorted rows for tree `tree`, which may not exist yet.
    pub fn bulk_writer(&self, tree: TreeId, schema: &Schema) -> BulkWriter {
        let codecs = Arc::new(Codecs::new(schema.clone()));
        let options = self.options();
        let writer = ExtentWriter::new(tree, &codecs, self.files(), options.page_bytes, options.leaf_bytes);
        BulkWriter::new(codecs, writer)
    }
}

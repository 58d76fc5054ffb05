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
//!
//! and the operations on memory trees beside it, in the same form.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch};

use crate::base::Reader;
use crate::buffer::RootBuffer;
use crate::engine::{Store, is_memory};
use crate::pages::{Extent, ExtentWriter, Files};
use crate::tree::{Codecs, Inner, Node, TreeView, Version};
use crate::{Error, KeyRange, Result, Schema};

pub type TreeId = u32;

const INSERT: u8 = 1;
const DELETE: u8 = 2;
const UPSERT: u8 = 3;
const CREATE_TREE: u8 = 4;
const DROP_TREE: u8 = 5;

/// Longest key and longest value, in bytes.
pub(crate) const KEY_LIMIT: usize = 64 << 10;
pub(crate) const VALUE_LIMIT: usize = 64 << 20;

/// Changes to any number of trees that become visible and durable together.
#[derive(Debug, Default)]
pub struct WriteBatch {
    /// What goes into the log.
    pub(crate) bytes: Vec<u8>,
    /// Operations on memory trees, in the same form.
    pub(crate) in_memory: Vec<u8>,
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

/// A message, as batches and buffers lend it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MessageBytes<'a> {
    /// Value bytes, see [`crate::RowCodec`].
    Insert(&'a [u8]),
    Delete,
    Upsert {
        function: u32,
        operand: &'a [u8],
    },
}

impl MessageBytes<'_> {
    /// Bytes of value or operand.
    pub fn len(&self) -> usize {
        match self {
            MessageBytes::Insert(value) => value.len(),
            MessageBytes::Delete => 0,
            MessageBytes::Upsert { operand, .. } => operand.len() + 4,
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
        crate::engine::encode_schema(schema, &mut encoded);
        self.put(CREATE_TREE, tree, &[encoded.len() as u32], &[&encoded]);
    }

    pub fn drop_tree(&mut self, tree: TreeId) {
        self.put(DROP_TREE, tree, &[], &[]);
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
        self.put(INSERT, tree, &[key.len() as u32, value.len() as u32], &[key, value]);
    }

    /// As `delete`, with an encoded key.
    pub fn delete_raw(&mut self, tree: TreeId, key: &[u8]) {
        self.check_len("key", key.len(), KEY_LIMIT);
        self.put(DELETE, tree, &[key.len() as u32], &[key]);
    }

    /// Applies a function of [`crate::Options::upserts`] to the row with this key, without reading it.
    pub fn upsert_raw(&mut self, tree: TreeId, key: &[u8], function: u32, operand: &[u8]) {
        self.check_len("key", key.len(), KEY_LIMIT);
        self.check_len("operand", operand.len(), VALUE_LIMIT);
        self.put(UPSERT, tree, &[function, key.len() as u32, operand.len() as u32], &[key, operand]);
    }

    /// Adds the changes of another batch, behind its own.
    pub fn append(&mut self, other: WriteBatch) {
        self.bytes.extend_from_slice(&other.bytes);
        self.in_memory.extend_from_slice(&other.in_memory);
        self.too_large = self.too_large.take().or(other.too_large);
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.in_memory.is_empty()
    }

    /// Bytes of messages so far.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + self.in_memory.len()
    }

    /// # Errors
    /// [`Error::TooLarge`] if some key or value exceeded its limit.
    pub(crate) fn check(&self) -> Result<()> {
        self.too_large.clone().map_or(Ok(()), Err)
    }

    fn put(&mut self, operation: u8, tree: TreeId, numbers: &[u32], strings: &[&[u8]]) {
        let part = if is_memory(tree) { &mut self.in_memory } else { &mut self.bytes };
        part.push(operation);
        part.extend_from_slice(&tree.to_le_bytes());
        numbers.iter().for_each(|number| part.extend_from_slice(&number.to_le_bytes()));
        strings.iter().for_each(|string| part.extend_from_slice(string));
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

pub(crate) fn check_columns(schema: &Schema, columns: &[ArrayRef], count: usize) -> Result<()> {
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
                let schema = crate::engine::decode_schema(&mut encoded)?;
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
    /// [`Error::OutOfOrder`], [`Error::DuplicateKey`], [`Error::TooLarge`] (nothing of these calls counts), device errors.
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
                    let number = self.rows + row as u64;
                    let duplicate = *last == key;
                    return Err(if duplicate {
                        Error::DuplicateKey { row: number }
                    } else {
                        Error::OutOfOrder { row: number }
                    });
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
        Ok(Loaded { codecs: self.codecs, rows: LoadedRows::Extents(self.writer.finish()?) })
    }
}

/// Rows written by a [`BulkWriter`], or sorted by a [`crate::MemoryBuilder`], not yet part of a tree.
#[derive(Debug)]
pub struct Loaded {
    codecs: Arc<Codecs>,
    rows: LoadedRows,
}

#[derive(Debug)]
pub(crate) enum LoadedRows {
    Extents(Vec<Arc<Extent>>),
    Memory(TreeId, Arc<RootBuffer>),
}

impl Loaded {
    pub(crate) fn in_memory(tree: TreeId, codecs: Arc<Codecs>, buffer: Arc<RootBuffer>) -> Loaded {
        Loaded { codecs, rows: LoadedRows::Memory(tree, buffer) }
    }

    /// The rows, if they were made for such a tree of this store.
    ///
    /// # Errors
    /// `Invalid` if they were not.
    pub(crate) fn into_rows(self, tree: TreeId, schema: &Schema, files: &Arc<Files>) -> Result<LoadedRows> {
        let ours = match &self.rows {
            LoadedRows::Extents(extents) => {
                !is_memory(tree) && extents.iter().all(|extent| extent.meta.tree == tree && extent.is_of(files))
            }
            LoadedRows::Memory(of, _) => *of == tree,
        };
        match self.codecs.schema.is_alike(schema) && ours {
            true => Ok(self.rows),
            false => Err(Error::Invalid(format!("the loaded rows were not written for tree {tree} as it is"))),
        }
    }

    /// What memory tree `tree` is made of.
    ///
    /// # Errors
    /// `Invalid` if they are not rows for it.
    pub(crate) fn into_memory(self, tree: TreeId) -> Result<(Arc<Codecs>, Arc<RootBuffer>)> {
        match self.rows {
            LoadedRows::Memory(of, buffer) if of == tree => Ok((self.codecs, buffer)),
            _ => Err(Error::Invalid(format!("the loaded rows were not made for memory tree {tree}"))),
        }
    }

    pub fn rows(&self) -> u64 {
        match &self.rows {
            LoadedRows::Extents(extents) => extents.iter().map(|extent| extent.meta.rows).sum(),
            LoadedRows::Memory(_, buffer) => buffer.len() as u64,
        }
    }

    /// Bytes on disk, or in memory.
    pub fn bytes(&self) -> u64 {
        match &self.rows {
            LoadedRows::Extents(extents) => extents.iter().map(|extent| extent.meta.len).sum(),
            LoadedRows::Memory(_, buffer) => buffer.bytes() as u64,
        }
    }

    /// From the first to the last key; none if there are no rows.
    pub fn range(&self) -> Option<KeyRange> {
        let (first, last) = match &self.rows {
            LoadedRows::Extents(extents) => (extents.first()?.meta.first.clone(), extents.last()?.meta.last.clone()),
            LoadedRows::Memory(_, buffer) => buffer.ends()?,
        };
        Some(KeyRange { start: Bound::Included(first.to_vec()), end: Bound::Included(last.to_vec()) })
    }

    /// A view of just these rows, for a loader that must read them again before they become part of a tree. The view
    /// keeps the rows from being freed.
    pub fn view(&self, store: &Store, tree: TreeId, schema: &Schema) -> TreeView {
        let codecs = Arc::new(Codecs::new(schema.clone()));
        let version = match &self.rows {
            LoadedRows::Extents(extents) => Version::new(codecs, Arc::new(root_of(extents))),
            LoadedRows::Memory(_, buffer) => Version::in_memory(codecs, buffer.clone()),
        };
        let registration = is_memory(tree).then(|| Arc::new(store.shared.snapshots.enter(|| 0)));
        TreeView {
            tree,
            sequence: 0,
            version: Arc::new(version),
            files: store.files().clone(),
            locator: None,
            registration,
        }
    }
}

/// A tree of just these leaves.
fn root_of(extents: &[Arc<Extent>]) -> Inner {
    if extents.is_empty() {
        return Inner::empty();
    }
    let pivots = extents[1..].iter().map(|extent| extent.meta.first.clone()).collect();
    let leaves = extents.iter().map(|extent| Arc::new(Node::Leaf(Some(extent.clone()))));
    Inner::new(pivots, leaves.collect(), Vec::new())
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

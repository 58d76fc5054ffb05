//! Write batches: changes to any number of trees that are committed together.
//!
//! A batch is a list of operations in the format of the log:
//!
//! ```text
//! 1 insert       tree: u32, key length: u32, value length: u32, key, value
//! 2 delete       tree: u32, key length: u32, key
//! 3 upsert       tree: u32, function: u32, key length: u32, operand length: u32, key, operand
//! 4 create tree  tree: u32, schema length: u32, schema
//! 5 drop tree    tree: u32
//! 6 insert of a key without a row       as 1
//! 7 insert of a key that has a row      as 1
//! 8 delete of a key that has a row      as 2
//! 9 extend tree  tree: u32, schema length: u32, schema
//! ```
//!
//! Operations on memory trees form a second list in the same format, which is not logged.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch};

use crate::base::{Error, Prior, Reader, Result, Schema, TreeId};
use crate::codec::{COLUMNS_MAX, Codecs, ColumnChange, ROW_UPSERT, decode_schema, encode_schema, put_row_upsert};
use crate::message::{KEY_LIMIT, MessageBytes, VALUE_LIMIT};

const INSERT: u8 = 1;
const DELETE: u8 = 2;
const UPSERT: u8 = 3;
const CREATE_TREE: u8 = 4;
const DROP_TREE: u8 = 5;
const INSERT_NEW: u8 = 6;
const UPDATE: u8 = 7;
const DELETE_EXISTING: u8 = 8;
const EXTEND_TREE: u8 = 9;

/// Changes to any number of trees that become visible and durable together.
///
/// A writer that knows whether a key has a row says so: [`insert_new`](Self::insert_new), [`update`](Self::update) and
/// [`delete_existing`](Self::delete_existing) have the same effect on rows as [`insert`](Self::insert) and
/// [`delete`](Self::delete), but keep the number of rows of the tree known
/// ([`TreeView::live_rows`](crate::TreeView::live_rows)). The knowledge refers to the moment of the message: the state
/// before the commit, with the earlier changes of the batch applied. It is not checked; a false claim gives wrong counts.
#[derive(Debug, Default)]
pub struct WriteBatch {
    /// Operations on trees on disk, logged in this form.
    pub(crate) bytes: Vec<u8>,
    /// Operations on memory trees in the same format, not logged.
    pub(crate) in_memory: Vec<u8>,
    codecs: HashMap<TreeId, Arc<Codecs>>,
    /// The schemas for which the caller encoded rows.
    encoded: HashMap<TreeId, Arc<Schema>>,
    /// The first exceeded limit of a key, a value or a schema. Commits of the batch fail with this error.
    refused: Option<Error>,
}

/// One operation of a batch.
pub(crate) enum Operation<'a> {
    Message { tree: TreeId, key: &'a [u8], message: MessageBytes<'a>, prior: Prior },
    CreateTree { tree: TreeId, schema: Schema },
    DropTree { tree: TreeId },
    ExtendTree { tree: TreeId, schema: Schema },
}

/// The reasons for which a commit frees space on disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FreesSpace {
    /// It drops or truncates trees.
    pub drops_trees: bool,
    /// It deletes rows and does nothing else.
    pub only_deletes: bool,
}

impl FreesSpace {
    pub fn any(self) -> bool {
        self.drops_trees || self.only_deletes
    }
}

impl WriteBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a tree under an id from [`Store::new_tree_id`](crate::Store::new_tree_id).
    pub fn create_tree(&mut self, tree: TreeId, schema: &Schema) {
        self.put_schema(CREATE_TREE, tree, schema);
    }

    /// Changes the columns of a tree on disk without writing its pages again. `schema` has the columns of the tree, in
    /// order, and behind them any new ones, which are nullable or have missing values ([`Schema::with_missing`]). The
    /// rows of the tree get the missing values. The columns that the tree has keep theirs. Decimals outside the key may
    /// get more digits. A commit fails if the tree has other columns. Transactions cannot extend trees.
    pub fn extend_tree(&mut self, tree: TreeId, schema: &Schema) {
        self.put_schema(EXTEND_TREE, tree, schema);
    }

    fn put_schema(&mut self, operation: u8, tree: TreeId, schema: &Schema) {
        if schema.columns().len() > COLUMNS_MAX {
            self.refuse(Error::TooMany { what: "columns", limit: COLUMNS_MAX as u64 });
            return;
        }
        let mut encoded = Vec::new();
        encode_schema(schema, &mut encoded);
        self.put(operation, tree, &[encoded.len() as u32], &[&encoded]);
    }

    /// Drops a tree with all its rows.
    pub fn drop_tree(&mut self, tree: TreeId) {
        self.put(DROP_TREE, tree, &[], &[]);
    }

    /// Inserts rows. `rows` has all columns of the schema of the tree, in order. Rows with the same keys are replaced.
    ///
    /// # Errors
    /// [`Error::ColumnCount`], [`Error::ColumnType`], [`Error::NullValue`] if the columns are not those of the schema.
    pub fn insert(&mut self, tree: TreeId, schema: &Schema, rows: &RecordBatch) -> Result<()> {
        self.insert_rows(tree, schema, rows, Prior::Unknown)
    }

    /// As [`insert`](Self::insert), for keys that have no rows.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn insert_new(&mut self, tree: TreeId, schema: &Schema, rows: &RecordBatch) -> Result<()> {
        self.insert_rows(tree, schema, rows, Prior::Absent)
    }

    /// As [`insert`](Self::insert), for keys that have rows, which are replaced.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    pub fn update(&mut self, tree: TreeId, schema: &Schema, rows: &RecordBatch) -> Result<()> {
        self.insert_rows(tree, schema, rows, Prior::Present)
    }

    fn insert_rows(&mut self, tree: TreeId, schema: &Schema, rows: &RecordBatch, prior: Prior) -> Result<()> {
        schema.check_columns(rows.columns(), schema.columns().len())?;
        let codecs = self.codecs(tree, schema);
        let (keys, values) = (codecs.key.encoder(rows.columns()), codecs.row.encoder(rows.columns()));
        let (mut key, mut value) = (Vec::new(), Vec::new());
        for row in 0..rows.num_rows() {
            key.clear();
            value.clear();
            keys.encode(row, &mut key);
            values.encode(row, &mut value);
            self.put_insert(tree, &key, &value, prior);
        }
        Ok(())
    }

    /// Deletes rows by key. `keys` begins with the key columns; further columns are ignored. Deleting a missing row is
    /// not an error.
    ///
    /// # Errors
    /// [`Error::ColumnCount`], [`Error::ColumnType`], [`Error::NullValue`] if the columns are not those of the schema.
    pub fn delete(&mut self, tree: TreeId, schema: &Schema, keys: &RecordBatch) -> Result<()> {
        self.delete_rows(tree, schema, keys, Prior::Unknown)
    }

    /// As [`delete`](Self::delete), for keys that have rows.
    ///
    /// # Errors
    /// As [`delete`](Self::delete).
    pub fn delete_existing(&mut self, tree: TreeId, schema: &Schema, keys: &RecordBatch) -> Result<()> {
        self.delete_rows(tree, schema, keys, Prior::Present)
    }

    fn delete_rows(&mut self, tree: TreeId, schema: &Schema, keys: &RecordBatch, prior: Prior) -> Result<()> {
        schema.check_columns(keys.columns(), schema.key_columns())?;
        let codecs = self.codecs(tree, schema);
        let encoder = codecs.key.encoder(keys.columns());
        let mut key = Vec::new();
        for row in 0..keys.num_rows() {
            key.clear();
            encoder.encode(row, &mut key);
            self.put_delete(tree, &key, prior);
        }
        Ok(())
    }

    /// Says for which schema the caller encodes the rows of a tree. A commit fails if the tree has other columns by then.
    pub fn encoded_for(&mut self, tree: TreeId, schema: &Arc<Schema>) {
        let known = self.encoded.entry(tree).or_insert_with(|| schema.clone());
        if !Arc::ptr_eq(known, schema) && !known.is_alike(schema) {
            self.refuse(Error::TreeMismatch { tree, reason: "the rows of a batch were encoded for different columns" });
        }
    }

    /// As [`insert`](Self::insert), with an encoded key and value. A commit checks the encodings and fails if one is
    /// invalid; see also [`encoded_for`](Self::encoded_for).
    pub fn insert_raw(&mut self, tree: TreeId, key: &[u8], value: &[u8]) {
        self.put_insert(tree, key, value, Prior::Unknown);
    }

    /// As [`insert_raw`](Self::insert_raw), for a key that has no row.
    pub fn insert_new_raw(&mut self, tree: TreeId, key: &[u8], value: &[u8]) {
        self.put_insert(tree, key, value, Prior::Absent);
    }

    /// As [`insert_raw`](Self::insert_raw), for a key that has a row, which is replaced.
    pub fn update_raw(&mut self, tree: TreeId, key: &[u8], value: &[u8]) {
        self.put_insert(tree, key, value, Prior::Present);
    }

    fn put_insert(&mut self, tree: TreeId, key: &[u8], value: &[u8], prior: Prior) {
        self.check_len("key", key.len(), KEY_LIMIT);
        self.check_len("row", value.len(), VALUE_LIMIT);
        let operation = match prior {
            Prior::Unknown => INSERT,
            Prior::Absent => INSERT_NEW,
            Prior::Present => UPDATE,
        };
        self.put(operation, tree, &[key.len() as u32, value.len() as u32], &[key, value]);
    }

    /// As [`delete`](Self::delete), with an encoded key.
    pub fn delete_raw(&mut self, tree: TreeId, key: &[u8]) {
        self.put_delete(tree, key, Prior::Unknown);
    }

    /// As [`delete_raw`](Self::delete_raw), for a key that has a row.
    pub fn delete_existing_raw(&mut self, tree: TreeId, key: &[u8]) {
        self.put_delete(tree, key, Prior::Present);
    }

    fn put_delete(&mut self, tree: TreeId, key: &[u8], prior: Prior) {
        self.check_len("key", key.len(), KEY_LIMIT);
        let operation = if prior == Prior::Present { DELETE_EXISTING } else { DELETE };
        self.put(operation, tree, &[key.len() as u32], &[key]);
    }

    /// Adds an upsert: the function `function` of [`crate::Options::upserts`] will be applied to the row with this key,
    /// which is not read now.
    pub fn upsert_raw(&mut self, tree: TreeId, key: &[u8], function: u32, operand: &[u8]) {
        self.check_len("key", key.len(), KEY_LIMIT);
        self.check_len("operand", operand.len(), VALUE_LIMIT);
        self.put(UPSERT, tree, &[function, key.len() as u32, operand.len() as u32], &[key, operand]);
    }

    /// Adds row upserts: rows are inserted where their key has no row; the columns of other rows change. No row is read.
    /// `rows` are arrays of equal lengths, one for each column of the schema; so are `arguments`, whose key columns and columns
    /// that keep their value do not matter. `changes` has one entry for each column that is not part of the key.
    ///
    /// A commit refuses sums that could leave the range of their column ([`Error::UpsertRange`]).
    ///
    /// # Errors
    /// As [`insert`](Self::insert), for `rows`; [`Error::ColumnCount`] for `changes`; [`Error::ColumnType`] for `arguments`, and
    /// [`Error::NullValue`] for a null argument of a column that is not nullable.
    pub fn upsert_rows(
        &mut self,
        tree: TreeId,
        schema: &Schema,
        rows: &[ArrayRef],
        changes: &[ColumnChange],
        arguments: Option<&[ArrayRef]>,
    ) -> Result<()> {
        let columns = schema.columns().len();
        schema.check_columns(rows, columns)?;
        let len = rows[0].len();
        let others = rows.iter().chain(arguments.unwrap_or_default());
        assert!(others.clone().all(|array| array.len() == len), "columns of different lengths");
        if changes.len() != columns - schema.key_columns() {
            return Err(Error::ColumnCount { expected: columns - schema.key_columns(), found: changes.len() });
        }
        if let Some(arguments) = arguments {
            schema.check_types(arguments)?;
            let values = schema.columns().iter().zip(arguments).skip(schema.key_columns());
            for ((column, array), change) in values.zip(changes) {
                if *change != ColumnChange::Keep && !column.nullable {
                    column.check_not_null(array)?;
                }
            }
        }
        let codecs = self.codecs(tree, schema);
        let (keys, values) = (codecs.key.encoder(rows), codecs.row.encoder(rows));
        let arguments = arguments.map(|arguments| codecs.row.encoder(arguments));
        let (mut key, mut value, mut argument, mut operand) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for row in 0..len {
            [&mut key, &mut value, &mut argument, &mut operand].into_iter().for_each(Vec::clear);
            keys.encode(row, &mut key);
            values.encode(row, &mut value);
            if let Some(arguments) = &arguments {
                arguments.encode(row, &mut argument);
            }
            put_row_upsert(changes, &value, arguments.as_ref().map(|_| argument.as_slice()), &mut operand);
            self.upsert_raw(tree, &key, ROW_UPSERT, &operand);
        }
        Ok(())
    }

    /// Appends the changes of another batch.
    pub fn append(&mut self, other: WriteBatch) {
        self.bytes.extend_from_slice(&other.bytes);
        self.in_memory.extend_from_slice(&other.in_memory);
        self.codecs.extend(other.codecs);
        other.encoded.iter().for_each(|(&tree, schema)| self.encoded_for(tree, schema));
        self.refused = self.refused.take().or(other.refused);
    }

    /// Returns true if the batch has no changes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.in_memory.is_empty()
    }

    /// Length of all operations in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + self.in_memory.len()
    }

    /// Calls `each` with the keys of the messages to a tree, in the order of the batch, until it returns false.
    ///
    /// # Errors
    /// [`Error::InvalidBatch`] if the batch is invalid.
    pub fn keys(&self, tree: TreeId, mut each: impl FnMut(&[u8]) -> bool) -> Result<()> {
        let mut operations = Operations::new(self.parts()[usize::from(tree.is_memory())]);
        while let Some(operation) = operations.next()? {
            if let Operation::Message { tree: of, key, .. } = operation
                && of == tree
                && !each(key)
            {
                break;
            }
        }
        Ok(())
    }

    /// Calls `each` with the tree and the key of each message, and with true for a deletion, until it returns false. Messages to
    /// trees on disk come first.
    ///
    /// # Errors
    /// [`Error::InvalidBatch`] if the batch is invalid.
    pub fn messages(&self, mut each: impl FnMut(TreeId, &[u8], bool) -> bool) -> Result<()> {
        for part in self.parts() {
            let mut operations = Operations::new(part);
            while let Some(operation) = operations.next()? {
                if let Operation::Message { tree, key, message, .. } = operation
                    && !each(tree, key, matches!(message, MessageBytes::Delete))
                {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The operations on trees on disk, and those on memory trees.
    pub(crate) fn parts(&self) -> [&[u8]; 2] {
        [&self.bytes, &self.in_memory]
    }

    /// Removes the operations behind these lengths of both parts, which are ends of operations.
    pub(crate) fn truncate(&mut self, ends: [usize; 2]) {
        self.bytes.truncate(ends[0]);
        self.in_memory.truncate(ends[1]);
    }

    /// Removes the messages to trees on disk from this batch, which keeps the other operations. `ends` are ends of operations
    /// on trees on disk, ascending; they are moved to the new ends.
    ///
    /// # Panics
    /// If the operations are invalid.
    pub(crate) fn remove_messages<'e>(&mut self, ends: impl Iterator<Item = &'e mut usize>) {
        let mut kept = Vec::new();
        let mut start = 0;
        let keep = |part: &[u8], kept: &mut Vec<u8>| {
            let mut operations = Operations::new(part);
            loop {
                let start = operations.reader.position();
                let operation = operations.next().unwrap_or_else(|error| panic!("a checked batch is invalid: {error}"));
                match operation {
                    None => break,
                    Some(Operation::Message { .. }) => {}
                    Some(_) => kept.extend_from_slice(&part[start..operations.reader.position()]),
                }
            }
        };
        for end in ends {
            keep(&self.bytes[start..*end], &mut kept);
            start = *end;
            *end = kept.len();
        }
        keep(&self.bytes[start..], &mut kept);
        self.bytes = kept;
    }

    /// Calls `visit` with the tree and the key of each message, those of trees on disk first.
    ///
    /// # Errors
    /// As [`decode`].
    pub(crate) fn visit_messages(&self, mut visit: impl FnMut(TreeId, &[u8])) -> Result<()> {
        for part in self.parts() {
            decode(part, |operation| {
                if let Operation::Message { tree, key, .. } = operation {
                    visit(tree, key);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The reasons for which the commit of the batch frees space on disk, sooner or later.
    ///
    /// # Errors
    /// As [`decode`].
    pub(crate) fn frees_space(&self) -> Result<FreesSpace> {
        let mut found = FreesSpace { drops_trees: false, only_deletes: !self.bytes.is_empty() };
        decode(&self.bytes, |operation| {
            found.drops_trees |= matches!(operation, Operation::DropTree { .. });
            found.only_deletes &= matches!(operation, Operation::Message { message: MessageBytes::Delete, .. });
            Ok(())
        })?;
        Ok(found)
    }

    /// The schemas for which the rows of trees were encoded.
    pub(crate) fn schemas(&self) -> impl Iterator<Item = (TreeId, &Schema)> {
        let by_batch = self.codecs.iter().map(|(&tree, codecs)| (tree, &*codecs.schema));
        by_batch.chain(self.encoded.iter().map(|(&tree, schema)| (tree, &**schema)))
    }

    /// The schema that a tree has after the batch, if the batch creates or extends it.
    ///
    /// # Errors
    /// As [`decode`].
    pub(crate) fn schema_of(&self, wanted: TreeId) -> Result<Option<Schema>> {
        let mut found = None;
        for part in self.parts() {
            decode(part, |operation| {
                match operation {
                    Operation::CreateTree { tree, schema } | Operation::ExtendTree { tree, schema }
                        if tree == wanted =>
                    {
                        found = Some(schema);
                    }
                    _ => {}
                }
                Ok(())
            })?;
        }
        Ok(found)
    }

    /// Checks that no limit was exceeded.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if a key or value exceeded its limit, [`Error::TooMany`] if a schema has too many columns.
    pub(crate) fn check(&self) -> Result<()> {
        self.refused.clone().map_or(Ok(()), Err)
    }

    fn put(&mut self, operation: u8, tree: TreeId, numbers: &[u32], strings: &[&[u8]]) {
        let part = if tree.is_memory() { &mut self.in_memory } else { &mut self.bytes };
        part.push(operation);
        part.extend_from_slice(&tree.get().to_le_bytes());
        numbers.iter().for_each(|number| part.extend_from_slice(&number.to_le_bytes()));
        strings.iter().for_each(|string| part.extend_from_slice(string));
    }

    fn check_len(&mut self, what: &'static str, len: usize, limit: usize) {
        if len > limit {
            self.refuse(Error::TooLarge { what, bytes: len as u64, limit: limit as u64 });
        }
    }

    /// Makes commits of this batch fail. The first error is kept.
    fn refuse(&mut self, error: Error) {
        self.refused.get_or_insert(error);
    }

    fn codecs(&mut self, tree: TreeId, schema: &Schema) -> Arc<Codecs> {
        let known = self.codecs.entry(tree).or_insert_with(|| Arc::new(Codecs::new(schema.clone())));
        if *known.schema != *schema {
            *known = Arc::new(Codecs::new(schema.clone()));
        }
        known.clone()
    }
}

/// The operations of a batch, in order.
pub(crate) struct Operations<'a> {
    reader: Reader<'a>,
}

impl<'a> Operations<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Operations { reader: Reader::new(bytes) }
    }

    /// Bytes behind the operations returned so far.
    pub fn remaining(&self) -> usize {
        self.reader.len()
    }

    /// The next operation; `None` at the end.
    ///
    /// # Errors
    /// [`Error::InvalidBatch`] if the bytes are not a list of operations.
    #[inline]
    pub fn next(&mut self) -> Result<Option<Operation<'a>>> {
        let reader = &mut self.reader;
        if reader.is_empty() {
            return Ok(None);
        }
        let operation = reader.u8()?;
        let tree = TreeId::new(reader.u32()?);
        Ok(Some(match operation {
            INSERT | INSERT_NEW | UPDATE => {
                let (key, value) = (reader.u32()? as usize, reader.u32()? as usize);
                let key = reader.bytes(key)?;
                let prior = match operation {
                    INSERT_NEW => Prior::Absent,
                    UPDATE => Prior::Present,
                    _ => Prior::Unknown,
                };
                Operation::Message { tree, key, message: MessageBytes::Insert(reader.bytes(value)?), prior }
            }
            DELETE | DELETE_EXISTING => {
                let key = reader.u32()? as usize;
                let prior = if operation == DELETE_EXISTING { Prior::Present } else { Prior::Unknown };
                Operation::Message { tree, key: reader.bytes(key)?, message: MessageBytes::Delete, prior }
            }
            UPSERT => {
                let function = reader.u32()?;
                let (key, operand) = (reader.u32()? as usize, reader.u32()? as usize);
                let key = reader.bytes(key)?;
                let operand = reader.bytes(operand)?;
                let message = MessageBytes::Upsert { function, operand };
                Operation::Message { tree, key, message, prior: Prior::Unknown }
            }
            CREATE_TREE | EXTEND_TREE => {
                let len = reader.u32()? as usize;
                let mut encoded = reader.section(len)?;
                let schema = decode_schema(&mut encoded)?;
                if !encoded.is_empty() {
                    return Err(encoded.malformed(format!("bytes after the schema of tree {tree}")).into());
                }
                match operation {
                    CREATE_TREE => Operation::CreateTree { tree, schema },
                    _ => Operation::ExtendTree { tree, schema },
                }
            }
            DROP_TREE => Operation::DropTree { tree },
            other => return Err(reader.malformed(format!("unknown operation {other}")).into()),
        }))
    }
}

/// Decodes a batch, calling `visit` with each operation.
///
/// # Errors
/// [`Error::InvalidBatch`] if the bytes are not a list of operations; errors of `visit`.
pub(crate) fn decode<'a>(bytes: &'a [u8], mut visit: impl FnMut(Operation<'a>) -> Result<()>) -> Result<()> {
    let mut operations = Operations::new(bytes);
    while let Some(operation) = operations.next()? {
        visit(operation)?;
    }
    Ok(())
}

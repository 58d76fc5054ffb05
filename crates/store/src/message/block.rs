//! Decoded rows and messages with their keys, as flushes merge them.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef};

use super::resolver::{encode_operands, widened_operands};
use super::{Change, MessageBytes};
use crate::base::{Prior, Result};
use crate::codec::{Codecs, ColumnBuilder, MessageKind, Page};

/// Decoded messages, or rows of a leaf, in key order.
#[derive(Debug)]
pub(crate) struct Block {
    /// One array for each column of the schema. Value columns are null for deletes and upserts.
    pub columns: Vec<ArrayRef>,
    /// One for each message. Empty if all are inserts, as for rows of a leaf.
    kinds: Vec<MessageKind>,
    has_changes: bool,
    /// What is known about the row below each message; empty if nothing is known about any.
    priors: Vec<Prior>,
    /// The operands of each upsert, as pages store them; empty if there are no upserts.
    operands: Vec<Vec<u8>>,
    /// Concatenated encoded keys.
    keys: Vec<u8>,
    /// The start of each key in `keys`, then the end of the last one.
    starts: Vec<usize>,
    /// The first 16 bytes of each key as a number, padded by zeros: a difference between two of these is one between
    /// the keys.
    prefixes: Vec<u128>,
}

impl Block {
    /// Decodes rows of a leaf page or messages of a run page.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] if a column is damaged or a message is invalid.
    pub fn of_page(page: &Page, rows: Range<usize>, codecs: &Codecs) -> Result<Block> {
        page.check_all_columns()?;
        let decode = |(i, column): (usize, &crate::Column)| {
            let mut builder = ColumnBuilder::new(column.ty, rows.len());
            match page.is_run() && i >= page.columns() {
                true => append_missing(page, i, rows.clone(), codecs, &mut builder),
                false => page.append_to(i, rows.clone(), &codecs.schema, &mut builder),
            }
            builder.finish()
        };
        let columns: Vec<ArrayRef> = codecs.schema.columns().iter().enumerate().map(decode).collect();
        let (keys, starts) = codecs.key.encode_batch(&columns[..codecs.schema.key_columns()], 0..rows.len());
        let mut block = Block::new(columns, keys, starts);
        if page.is_run() {
            block.read_messages(page, rows, codecs)?;
        }
        Ok(block)
    }

    fn new(columns: Vec<ArrayRef>, keys: Vec<u8>, starts: Vec<usize>) -> Block {
        let prefixes = starts.windows(2).map(|key| prefix_of(&keys[key[0]..key[1]])).collect();
        Block {
            columns,
            kinds: Vec::new(),
            has_changes: false,
            priors: Vec::new(),
            operands: Vec::new(),
            keys,
            starts,
            prefixes,
        }
    }

    fn read_messages(&mut self, page: &Page, rows: Range<usize>, codecs: &Codecs) -> Result<()> {
        let unsound = |what: &str, row: usize| page.damaged(format!("invalid {what} in row {row}"));
        // Messages without a row have nulls in all value columns, so that most pages need no further check.
        let columns = codecs.schema.columns().iter().zip(&self.columns);
        let may_lack = columns.into_iter().any(|(column, array)| !column.nullable && array.null_count() > 0);
        self.kinds.reserve(rows.len());
        self.priors.reserve(rows.len());
        for (at, row) in rows.clone().enumerate() {
            let (kind, prior) = page.message(row).ok_or_else(|| unsound("kind", row))?;
            if kind == MessageKind::Insert && may_lack && !page.is_complete(row) {
                return Err(unsound("value", row));
            }
            if kind == MessageKind::Upsert {
                self.operands.resize(rows.len(), Vec::new());
                self.operands[at] = widened_operands(page, row, &codecs.row).ok_or_else(|| unsound("operand", row))?;
            }
            self.has_changes |= kind != MessageKind::Insert;
            self.kinds.push(kind);
            self.priors.push(prior);
        }
        Ok(())
    }

    /// Number of messages or rows.
    pub fn len(&self) -> usize {
        self.prefixes.len()
    }

    /// Approximate bytes of memory.
    pub fn bytes(&self) -> usize {
        let columns: usize = self.columns.iter().map(|array| array.get_array_memory_size()).sum();
        let operands: usize = self.operands.iter().map(|operands| operands.capacity() + size_of::<Vec<u8>>()).sum();
        columns + operands + self.keys.capacity() + self.len() * (size_of::<u128>() + size_of::<usize>() + 2)
    }

    pub fn key(&self, row: usize) -> &[u8] {
        &self.keys[self.starts[row]..self.starts[row + 1]]
    }

    #[inline]
    pub fn prefix(&self, row: usize) -> u128 {
        self.prefixes[row]
    }

    pub fn kind(&self, row: usize) -> MessageKind {
        self.kinds.get(row).copied().unwrap_or(MessageKind::Insert)
    }

    /// True if a message is a delete or an upsert.
    pub fn has_changes(&self) -> bool {
        self.has_changes
    }

    pub fn prior(&self, row: usize) -> Prior {
        self.priors.get(row).copied().unwrap_or_default()
    }

    /// The operands of an upsert; empty for other messages.
    pub fn operands(&self, row: usize) -> &[u8] {
        self.operands.get(row).map_or(&[], Vec::as_slice)
    }
}

/// Appends the values of a column that a run page lacks: null for messages without a row.
fn append_missing(page: &Page, column: usize, rows: Range<usize>, codecs: &Codecs, builder: &mut ColumnBuilder) {
    for row in rows {
        match page.message(row) {
            Some((MessageKind::Insert, _)) => page.append_to(column, row..row + 1, &codecs.schema, builder),
            _ => builder.append_nulls(1),
        }
    }
}

/// The first 16 bytes of a key as a number, padded by zeros.
pub(crate) fn prefix_of(key: &[u8]) -> u128 {
    match key.first_chunk() {
        Some(bytes) => u128::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 16];
            bytes[..key.len()].copy_from_slice(key);
            u128::from_be_bytes(bytes)
        }
    }
}

/// Collects messages, encoded as in buffers, into a block.
#[derive(Debug, Default)]
pub(crate) struct BlockBuilder {
    keys: Vec<u8>,
    starts: Vec<usize>,
    values: Vec<u8>,
    /// The values of the inserts in `values`; `None` for other messages.
    places: Vec<Option<Range<usize>>>,
    kinds: Vec<MessageKind>,
    priors: Vec<Prior>,
    operands: Vec<Vec<u8>>,
}

impl BlockBuilder {
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Approximate bytes of memory of the block.
    pub fn bytes(&self) -> usize {
        self.keys.len() + self.values.len() + self.operands.iter().map(Vec::len).sum::<usize>()
    }

    /// Adds an insert or a delete.
    ///
    /// # Panics
    /// If the message is an upsert.
    pub fn push(&mut self, key: &[u8], message: MessageBytes<'_>, prior: Prior) {
        match message {
            MessageBytes::Insert(value) => {
                let start = self.values.len();
                self.values.extend_from_slice(value);
                self.places.push(Some(start..self.values.len()));
                self.kinds.push(MessageKind::Insert);
            }
            MessageBytes::Delete => {
                self.places.push(None);
                self.kinds.push(MessageKind::Delete);
            }
            MessageBytes::Upsert { .. } => panic!("upserts are resolved first"),
        }
        self.push_key(key, prior);
    }

    /// Adds a resolved change.
    ///
    /// # Panics
    /// If the change is a reference to a row of a page.
    pub fn push_change(&mut self, key: &[u8], change: &Change, prior: Prior) {
        match change {
            Change::Insert(value) => self.push(key, MessageBytes::Insert(value), prior),
            Change::Row(_) => unreachable!("the messages of flushes are decoded"),
            Change::Delete => self.push(key, MessageBytes::Delete, prior),
            Change::Upserts(upserts) => {
                self.operands.resize(self.places.len(), Vec::new());
                self.operands.push(encode_operands(upserts));
                self.places.push(None);
                self.kinds.push(MessageKind::Upsert);
                self.push_key(key, prior);
            }
        }
    }

    fn push_key(&mut self, key: &[u8], prior: Prior) {
        self.starts.push(self.keys.len());
        self.keys.extend_from_slice(key);
        self.priors.push(prior);
    }

    /// The messages as a block; leaves the builder empty.
    ///
    /// # Errors
    /// [`crate::Error::InvalidKey`], [`crate::Error::InvalidRow`].
    pub fn finish(&mut self, codecs: &Arc<Codecs>) -> Result<Block> {
        let BlockBuilder { keys, mut starts, values, places, kinds, priors, mut operands } = std::mem::take(self);
        starts.push(keys.len());
        let (rows, schema) = (places.len(), &codecs.schema);
        let mut builders: Vec<_> = schema.columns().iter().map(|column| ColumnBuilder::new(column.ty, rows)).collect();
        let (of_key, of_value) = builders.split_at_mut(schema.key_columns());
        for (i, builder) in of_key.iter_mut().enumerate() {
            codecs.key.append_rows(starts.windows(2).map(|key| &keys[key[0]..key[1]]), i, builder)?;
        }
        let value_columns: Vec<usize> = (schema.key_columns()..schema.columns().len()).collect();
        for place in &places {
            match place {
                Some(place) => codecs.row.append_columns(&values[place.clone()], &value_columns, of_value)?,
                None => of_value.iter_mut().for_each(|builder| builder.append_nulls(1)),
            }
        }
        let columns = builders.iter_mut().map(ColumnBuilder::finish).collect();
        if !operands.is_empty() {
            operands.resize(rows, Vec::new());
        }
        let has_changes = kinds.iter().any(|kind| *kind != MessageKind::Insert);
        Ok(Block { kinds, has_changes, priors, operands, ..Block::new(columns, keys, starts) })
    }
}

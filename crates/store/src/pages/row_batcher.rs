//! Batches of rows or messages to be written into extents. A batch collects rows column by column and is written at
//! once.

use arrow_array::ArrayRef;

use crate::base::{Prior, Result};
use crate::codec::{Chunk, Codecs, ColumnBuilder, MessageKind, RunColumns};
use crate::message::{Change, encode_operands};
use crate::pages::ExtentWriter;

/// Maximum number of rows of a batch.
const BATCH_ROWS: usize = 16 << 10;
/// Maximum bytes of a batch, which the last row may exceed.
const BATCH_BYTES: usize = 4 << 20;

#[derive(Debug)]
pub(crate) struct RowBatcher<'a> {
    codecs: &'a Codecs,
    /// Indices of all columns of the schema.
    all: Vec<usize>,
    builders: Vec<ColumnBuilder>,
    /// Kinds and operands of messages; empty for rows of leaves.
    messages: RunColumns,
    /// Approximate bytes of the batch.
    bytes: usize,
}

impl<'a> RowBatcher<'a> {
    pub fn new(codecs: &'a Codecs) -> Self {
        let columns = codecs.schema.columns();
        RowBatcher {
            codecs,
            all: (0..columns.len()).collect(),
            builders: columns.iter().map(|column| ColumnBuilder::new(column.ty, 1024)).collect(),
            messages: RunColumns { kinds: Vec::new(), operands: Vec::new(), priors: Vec::new() },
            bytes: 0,
        }
    }

    fn len(&self) -> usize {
        self.builders[0].len()
    }

    /// Returns true if the batch has reached its maximum size.
    pub fn is_full(&self) -> bool {
        self.len() >= BATCH_ROWS || self.bytes >= BATCH_BYTES
    }

    /// Adds all rows of a chunk.
    ///
    /// # Errors
    /// As [`Chunk::append_to`].
    pub fn push_chunk(&mut self, chunk: &Chunk) -> Result<()> {
        chunk.append_to(&self.all, &mut self.builders)?;
        self.bytes = self.builders.iter().map(ColumnBuilder::memory_bytes).sum();
        Ok(())
    }

    /// Adds a message; `prior` is the knowledge of the row below it.
    ///
    /// # Errors
    /// [`crate::Error::InvalidKey`], [`crate::Error::InvalidRow`].
    pub fn push_message(&mut self, key: &[u8], change: &Change, prior: Prior) -> Result<()> {
        let key_columns = self.codecs.schema.key_columns();
        let (of_key, of_value) = self.all.split_at(key_columns);
        let (key_builders, value_builders) = self.builders.split_at_mut(key_columns);
        self.codecs.key.append_columns(key, of_key, key_builders)?;
        match change {
            Change::Insert(value) => self.codecs.row.append_columns(value, of_value, value_builders)?,
            Change::Delete | Change::Upserts(_) => {
                value_builders.iter_mut().for_each(|builder| builder.append_nulls(1))
            }
        }
        let (kind, operands) = match change {
            Change::Insert(_) => (MessageKind::Insert, Vec::new()),
            Change::Delete => (MessageKind::Delete, Vec::new()),
            Change::Upserts(upserts) => (MessageKind::Upsert, encode_operands(upserts)),
        };
        self.bytes += key.len() + change.bytes();
        self.messages.kinds.push(kind);
        self.messages.operands.push(operands);
        self.messages.priors.push(prior);
        Ok(())
    }

    /// Writes the batch (not synced) and empties it.
    pub fn write(&mut self, writer: &mut ExtentWriter) -> Result<()> {
        if self.len() == 0 {
            return Ok(());
        }
        let columns: Vec<ArrayRef> = self.builders.iter_mut().map(ColumnBuilder::finish).collect();
        let messages = RunColumns {
            kinds: std::mem::take(&mut self.messages.kinds),
            operands: std::mem::take(&mut self.messages.operands),
            priors: std::mem::take(&mut self.messages.priors),
        };
        let messages = (!messages.kinds.is_empty()).then_some(&messages);
        writer.write(&columns, messages, 0, true)?;
        self.bytes = 0;
        Ok(())
    }
}

//! Rows that a read has found and not yet decoded.
//!
//! A chunk refers to rows of pages and contains the rows that come from messages. Columns are decoded on demand, for
//! all rows or for the rows that pass a filter.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::ArrayRef;

use crate::base::{Result, Schema};
use crate::codec::{Codecs, ColumnBuilder, Page};

/// Rows of a tree in the direction of the cursor, not yet decoded.
#[derive(Debug, Clone)]
pub struct Chunk {
    pub(crate) codecs: Arc<Codecs>,
    pub(crate) parts: Vec<ChunkPart>,
}

/// Consecutive rows of a chunk with the same origin.
#[derive(Debug, Clone)]
pub enum ChunkPart {
    /// Consecutive rows of a page of a leaf or of a run.
    Page {
        /// The page.
        page: Arc<Page>,
        /// Indices of the rows in the page.
        rows: Range<u32>,
        /// True if the rows are in descending order.
        reversed: bool,
    },
    /// A row that comes from messages, possibly applied to a row of a leaf.
    Row {
        /// The key, encoded by [`crate::KeyCodec`].
        key: Arc<[u8]>,
        /// The other columns, encoded by [`crate::RowCodec`].
        value: Arc<[u8]>,
    },
    /// Rows of a memory tree.
    Rows(Arc<RowBatch>),
}

/// Encoded rows in shared buffers.
#[derive(Debug, Clone, Default)]
pub struct RowBatch {
    /// Concatenated keys. Keys of other rows may lie between them.
    keys: Vec<u8>,
    values: Vec<u8>,
    locations: Vec<RowLocation>,
}

/// The byte ranges of the key and the value of a row.
#[derive(Debug, Clone, Copy)]
struct RowLocation {
    key: usize,
    key_end: usize,
    value: usize,
    value_end: usize,
}

impl RowBatch {
    /// Adds a row whose key occupies the range `key` of the bytes passed to [`set_keys`](Self::set_keys).
    pub(crate) fn push(&mut self, key: Range<usize>, value: &[u8]) {
        let start = self.values.len();
        self.values.extend_from_slice(value);
        self.locations.push(RowLocation {
            key: key.start,
            key_end: key.end,
            value: start,
            value_end: self.values.len(),
        });
    }

    pub(crate) fn set_keys(&mut self, keys: Vec<u8>) {
        self.keys = keys;
    }

    pub(crate) fn reserve(&mut self, rows: usize) {
        self.locations.reserve(rows);
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.locations.len()
    }

    /// Returns true if the batch has no rows.
    pub fn is_empty(&self) -> bool {
        self.locations.is_empty()
    }

    /// Length in bytes of keys and values together.
    pub fn bytes(&self) -> usize {
        self.keys.len() + self.values.len()
    }

    /// The encoded key of row `row`.
    ///
    /// # Panics
    /// If `row` is out of bounds.
    #[inline]
    pub fn key(&self, row: usize) -> &[u8] {
        let location = self.locations[row];
        &self.keys[location.key..location.key_end]
    }

    /// The encoded value of row `row`.
    ///
    /// # Panics
    /// If `row` is out of bounds.
    #[inline]
    pub fn value(&self, row: usize) -> &[u8] {
        let location = self.locations[row];
        &self.values[location.value..location.value_end]
    }

    /// Appends column `column` of the rows `rows`.
    fn append_to(
        &self,
        codecs: &Codecs,
        column: usize,
        rows: impl Iterator<Item = usize>,
        builder: &mut ColumnBuilder,
    ) -> Result<()> {
        if column < codecs.schema.key_columns() {
            codecs.key.append_rows(rows.map(|row| self.key(row)), column, builder)
        } else {
            codecs.row.append_rows(rows.map(|row| self.value(row)), column, builder)
        }
    }
}

impl ChunkPart {
    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        match self {
            ChunkPart::Page { rows, .. } => rows.len(),
            ChunkPart::Row { .. } => 1,
            ChunkPart::Rows(batch) => batch.len(),
        }
    }
}

impl Chunk {
    /// The schema of the tree that the rows are from.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.codecs.schema
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.parts.iter().map(ChunkPart::rows).sum()
    }

    /// The parts of the chunk, in the direction of the cursor.
    pub fn parts(&self) -> &[ChunkPart] {
        &self.parts
    }

    /// The encoded key of the first row.
    pub fn first_key(&self) -> Option<Vec<u8>> {
        let part = self.parts.iter().find(|part| part.rows() > 0)?;
        Some(match part {
            ChunkPart::Page { page, rows, reversed } => {
                let (row, mut key) = (if *reversed { rows.end - 1 } else { rows.start }, Vec::new());
                page.key(row as usize, &mut key);
                key
            }
            ChunkPart::Row { key, .. } => key.to_vec(),
            ChunkPart::Rows(batch) => batch.key(0).to_vec(),
        })
    }

    pub(crate) fn reverse(&mut self) {
        self.parts.reverse();
        for part in &mut self.parts {
            match part {
                ChunkPart::Page { reversed, .. } => *reversed = !*reversed,
                ChunkPart::Row { .. } => {}
                ChunkPart::Rows(batch) => Arc::make_mut(batch).locations.reverse(),
            }
        }
    }

    /// Appends the values of all rows, to one builder for each of `columns` (indices into the schema).
    ///
    /// # Errors
    /// [`crate::Error::InvalidKey`] or [`crate::Error::InvalidRow`] if a message does not encode a row of this tree,
    /// [`crate::Error::Corrupt`] if a compressed column is damaged, [`crate::Error::TooLarge`] if a builder has more lists
    /// than one array can have.
    pub fn append_to(&self, columns: &[usize], builders: &mut [ColumnBuilder]) -> Result<()> {
        for part in &self.parts {
            match part {
                ChunkPart::Page { page, rows, reversed: false } => {
                    page.check_columns(columns)?;
                    let rows = rows.start as usize..rows.end as usize;
                    for (&column, builder) in columns.iter().zip(&mut *builders) {
                        page.append_to(column, rows.clone(), self.schema(), builder);
                    }
                }
                ChunkPart::Page { page, rows, reversed: true } => {
                    page.check_columns(columns)?;
                    for (&column, builder) in columns.iter().zip(&mut *builders) {
                        for row in rows.clone().rev() {
                            page.append_to(column, row as usize..row as usize + 1, self.schema(), builder);
                        }
                    }
                }
                ChunkPart::Row { key, value } => self.append_row(key, value, columns, builders)?,
                ChunkPart::Rows(batch) => {
                    for (&column, builder) in columns.iter().zip(&mut *builders) {
                        batch.append_to(&self.codecs, column, 0..batch.len(), builder)?;
                    }
                }
            }
        }
        builders.iter().try_for_each(ColumnBuilder::check_lists)
    }

    fn append_row(&self, key: &[u8], value: &[u8], columns: &[usize], builders: &mut [ColumnBuilder]) -> Result<()> {
        let key_columns = self.codecs.schema.key_columns();
        if columns.is_sorted_by(|a, b| a < b) {
            // Keys and values are decoded in one pass.
            let (of_key, of_value) = columns.split_at(columns.partition_point(|&column| column < key_columns));
            let (key_builders, value_builders) = builders.split_at_mut(of_key.len());
            self.codecs.key.append_columns(key, of_key, key_builders)?;
            return match of_value {
                [] => Ok(()),
                _ => self.codecs.row.append_columns(value, of_value, value_builders),
            };
        }
        for (&column, builder) in columns.iter().zip(builders) {
            if column < key_columns {
                self.codecs.key.append_to(key, column, builder)?;
            } else {
                self.codecs.row.append_to(value, column, builder)?;
            }
        }
        Ok(())
    }

    /// As [`Chunk::append_to`], for the rows `rows` (indices into the chunk, ascending).
    ///
    /// # Errors
    /// As [`Chunk::append_to`].
    pub fn append_selected(&self, columns: &[usize], rows: &[u32], builders: &mut [ColumnBuilder]) -> Result<()> {
        let mut rest = rows;
        let mut base = 0;
        let mut in_page = Vec::new();
        for part in &self.parts {
            let end = base + part.rows() as u32;
            let (here, later) = rest.split_at(rest.partition_point(|&row| row < end));
            rest = later;
            match part {
                _ if here.is_empty() => {}
                ChunkPart::Page { page, rows, reversed: false } => {
                    page.check_columns(columns)?;
                    in_page.clear();
                    in_page.extend(here.iter().map(|row| rows.start + row - base));
                    for (&column, builder) in columns.iter().zip(&mut *builders) {
                        page.append_selected(column, &in_page, self.schema(), builder);
                    }
                }
                ChunkPart::Page { page, rows, reversed: true } => {
                    page.check_columns(columns)?;
                    for (&column, builder) in columns.iter().zip(&mut *builders) {
                        for row in here {
                            let row = (rows.end - 1 - (row - base)) as usize;
                            page.append_to(column, row..row + 1, self.schema(), builder);
                        }
                    }
                }
                ChunkPart::Row { key, value } => self.append_row(key, value, columns, builders)?,
                ChunkPart::Rows(batch) => {
                    for (&column, builder) in columns.iter().zip(&mut *builders) {
                        let rows = here.iter().map(|row| (row - base) as usize);
                        batch.append_to(&self.codecs, column, rows, builder)?;
                    }
                }
            }
            base = end;
        }
        Ok(())
    }

    /// Decodes the columns `columns` of all rows, into one array for each column.
    ///
    /// # Errors
    /// As [`Chunk::append_to`].
    pub fn to_arrays(&self, columns: &[usize]) -> Result<Vec<ArrayRef>> {
        let rows = self.rows();
        let types = self.codecs.schema.columns();
        let mut builders: Vec<_> = columns.iter().map(|&column| ColumnBuilder::new(types[column].ty, rows)).collect();
        self.append_to(columns, &mut builders)?;
        Ok(builders.iter_mut().map(ColumnBuilder::finish).collect())
    }
}

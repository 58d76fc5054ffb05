//! Bulk loads: sorted rows are written directly into full extents, without log and buffers. [`Store::install`] makes
//! them part of a tree.
//!
//! *Invariants.* Keys ascend strictly over all calls of a writer. Extents that are dropped before their installation
//! are freed; after a crash they are free too, because no checkpoint refers to them.

use std::ops::Bound;
use std::sync::Arc;

use arrow_array::RecordBatch;

use crate::base::{Error, KeyRange, Result, Schema, TreeId};
use crate::buffer::RootBuffer;
use crate::codec::{Codecs, compact};
use crate::engine::Store;
use crate::message::KEY_LIMIT;
use crate::pages::{Extent, ExtentWriter, Files};
use crate::tree::{InnerNode, Node, RowCounts, Sample, Sampler, TreeSample, TreeVersion, TreeView, ValueBounds};

/// Writes sorted rows directly into full extents. Created by [`Store::bulk_writer`]. [`Store::install`] makes the
/// result part of a tree; dropping it frees the extents.
#[derive(Debug)]
pub struct BulkWriter {
    codecs: Arc<Codecs>,
    writer: ExtentWriter,
    /// Rows that do not fill a page yet.
    rest: Option<RecordBatch>,
    last_key: Option<Vec<u8>>,
    rows: u64,
    /// See [`ValueBounds`].
    bounds: Vec<u64>,
    /// For a sampled tree, with the writer of the sample.
    sampler: Option<(Sampler, ExtentWriter)>,
}

impl BulkWriter {
    /// `writer` makes writers of extents of the tree.
    fn new(codecs: Arc<Codecs>, writer: impl Fn() -> ExtentWriter) -> Self {
        let bounds = vec![0; codecs.row.value_columns().len()];
        let sampler = codecs.schema.is_sampled().then(|| (Sampler::new(&codecs), writer()));
        BulkWriter { codecs, writer: writer(), rest: None, last_key: None, rows: 0, bounds, sampler }
    }

    /// Adds rows: all columns, in schema order. Keys must ascend strictly over all calls.
    ///
    /// # Errors
    /// [`Error::OutOfOrder`], [`Error::DuplicateKey`], [`Error::TooLarge`], [`Error::ColumnCount`],
    /// [`Error::ColumnType`], [`Error::NullValue`]: no row of the call is added. [`Error::DiskFull`], device errors:
    /// the writer is unusable.
    pub fn push(&mut self, rows: &RecordBatch) -> Result<()> {
        self.codecs.schema.check_columns(rows.columns(), self.codecs.schema.columns().len())?;
        if rows.num_rows() == 0 {
            return Ok(());
        }
        let last_key = self.check_order(rows)?;
        self.codecs.row.raise_bounds_by_arrays(rows.columns(), &mut self.bounds);
        if let Some((sampler, _)) = &mut self.sampler {
            sampler.push(rows.columns())?;
        }
        let joined = match self.rest.take() {
            Some(rest) => arrow_select::concat::concat_batches(self.codecs.schema.arrow(), [&rest, rows])
                .map_err(|error| Error::Arrow(Arc::new(error)))?,
            None => rows.clone(),
        };
        let done = self.writer.write(joined.columns(), None, 0, false)?;
        if done < joined.num_rows() {
            self.rest = Some(compact(&joined.slice(done, joined.num_rows() - done)));
        }
        self.last_key = Some(last_key);
        self.rows += rows.num_rows() as u64;
        Ok(())
    }

    /// The key of the last row, after checking that the keys ascend strictly.
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

    /// Number of rows added.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Writes the remaining rows, and returns all extents.
    ///
    /// # Errors
    /// [`Error::DiskFull`], device errors.
    pub fn finish(mut self) -> Result<Loaded> {
        if let Some(rest) = self.rest.take() {
            self.writer.write(rest.columns(), None, 0, true)?;
        }
        let rows = LoadedRows::Extents(self.writer.finish()?);
        let sample = self.sampler.map(|(sampler, writer)| sampler.finish(writer)).transpose()?;
        Ok(Loaded { codecs: self.codecs, rows, has_new_keys: false, bounds: self.bounds, sample })
    }
}

/// Rows written by a [`BulkWriter`] or built by a [`crate::MemoryBuilder`] that are not yet part of a tree.
#[derive(Debug)]
pub struct Loaded {
    codecs: Arc<Codecs>,
    rows: LoadedRows,
    /// The loader claims that no key has a row in the tree.
    has_new_keys: bool,
    /// See [`ValueBounds`]; empty for memory trees.
    bounds: Vec<u64>,
    /// The sample of the rows, for a sampled tree.
    sample: Option<TreeSample>,
}

#[derive(Debug)]
pub(crate) enum LoadedRows {
    Extents(Vec<Arc<Extent>>),
    Memory(TreeId, Arc<RootBuffer>),
}

/// Reasons of [`Error::TreeMismatch`].
pub(crate) const OTHER_TREE: &str = "the rows were loaded for another tree";
const OTHER_STORE: &str = "the rows were loaded into another store";
pub(crate) const OTHER_SCHEMA: &str = "the rows were loaded for another schema";

impl Loaded {
    pub(crate) fn in_memory(tree: TreeId, codecs: Arc<Codecs>, buffer: Arc<RootBuffer>) -> Loaded {
        Loaded { codecs, rows: LoadedRows::Memory(tree, buffer), has_new_keys: false, bounds: Vec::new(), sample: None }
    }

    /// Claims that no key of the rows has a row in the tree when they are installed, after the changes of the batch. The
    /// number of rows of the tree then stays known ([`TreeView::live_rows`]). The claim is not checked.
    #[must_use]
    pub fn claim_new_keys(self) -> Loaded {
        Loaded { has_new_keys: true, ..self }
    }

    /// Bounds of the values of the rows, for trees on disk.
    pub(crate) fn bounds(&self) -> &[u64] {
        &self.bounds
    }

    /// The sample of the rows, for a sampled tree. Reads up to 4 MiB of the data file. Blocks.
    ///
    /// # Errors
    /// [`Error::Corrupt`], device errors.
    pub fn sample(&self, store: &Store) -> Result<Option<Sample>> {
        self.sample.as_ref().map(|sample| sample.read(self.rows(), store.files(), &self.codecs)).transpose()
    }

    /// The rows without their sample, and the sample.
    pub(crate) fn take_sample(mut self) -> (Loaded, Option<TreeSample>) {
        let sample = self.sample.take();
        (self, sample)
    }

    pub(crate) fn has_new_keys(&self) -> bool {
        self.has_new_keys
    }

    /// The rows, after checking that they were loaded for this tree, schema and store.
    ///
    /// # Errors
    /// [`Error::WrongTreeKind`], [`Error::TreeMismatch`].
    pub(crate) fn into_rows(self, tree: TreeId, schema: &Schema, files: &Arc<Files>) -> Result<LoadedRows> {
        let reason = match &self.rows {
            LoadedRows::Extents(_) if tree.is_memory() => return Err(Error::WrongTreeKind { tree, kind: tree.kind() }),
            LoadedRows::Extents(extents) if extents.iter().any(|extent| extent.meta.tree != tree) => OTHER_TREE,
            LoadedRows::Extents(extents) if !extents.iter().all(|extent| extent.is_of(files)) => OTHER_STORE,
            LoadedRows::Memory(of, _) if *of != tree => OTHER_TREE,
            _ if !self.codecs.schema.is_alike(schema) => OTHER_SCHEMA,
            _ => return Ok(self.rows),
        };
        Err(Error::TreeMismatch { tree, reason })
    }

    /// Codecs and buffer for memory tree `tree`.
    ///
    /// # Errors
    /// [`Error::WrongTreeKind`], [`Error::TreeMismatch`] if the rows were loaded for another tree.
    pub(crate) fn into_memory(self, tree: TreeId) -> Result<(Arc<Codecs>, Arc<RootBuffer>)> {
        match self.rows {
            LoadedRows::Memory(of, buffer) if of == tree => Ok((self.codecs, buffer)),
            LoadedRows::Memory(..) => Err(Error::TreeMismatch { tree, reason: OTHER_TREE }),
            LoadedRows::Extents(_) => Err(Error::WrongTreeKind { tree, kind: tree.kind() }),
        }
    }

    /// Number of rows.
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

    /// The range from the first to the last key; `None` if there are no rows.
    pub fn range(&self) -> Option<KeyRange> {
        let (first, last) = match &self.rows {
            LoadedRows::Extents(extents) => (extents.first()?.meta.first.clone(), extents.last()?.meta.last.clone()),
            LoadedRows::Memory(_, buffer) => buffer.ends()?,
        };
        Some(KeyRange { start: Bound::Included(first.to_vec()), end: Bound::Included(last.to_vec()) })
    }

    /// A view of these rows only, for a loader that reads them before they become part of a tree. The view keeps the
    /// rows from being freed.
    pub fn view(&self, store: &Store, tree: TreeId, schema: &Schema) -> TreeView {
        let codecs = Arc::new(Codecs::new(schema.clone()));
        let version = match &self.rows {
            LoadedRows::Extents(extents) => {
                let bounds = ValueBounds::new(self.bounds.clone());
                TreeVersion::new(codecs, Arc::new(root_of(extents)), RowCounts::new(0, Some(self.rows())), bounds)
            }
            LoadedRows::Memory(_, buffer) => TreeVersion::in_memory(codecs, buffer.clone()),
        };
        let registration = tree.is_memory().then(|| Arc::new(store.shared.snapshots.enter(|| 0)));
        TreeView {
            tree,
            sequence: 0,
            version: Arc::new(version),
            files: store.files().clone(),
            locator: None,
            registration,
            own: None,
            reads: None,
            ignores_cache: false,
        }
    }
}

/// A root node with these extents as leaves.
fn root_of(extents: &[Arc<Extent>]) -> InnerNode {
    if extents.is_empty() {
        return InnerNode::empty();
    }
    let pivots = extents[1..].iter().map(|extent| extent.meta.first.clone()).collect();
    let leaves = extents.iter().map(|extent| Arc::new(Node::Leaf(Some(extent.clone()))));
    InnerNode::new(pivots, leaves.collect(), Vec::new())
}

impl Store {
    /// A writer of sorted rows for tree `tree`, which need not exist before [`Store::install`].
    pub fn bulk_writer(&self, tree: TreeId, schema: &Schema) -> BulkWriter {
        let codecs = Arc::new(Codecs::new(schema.clone()));
        let options = self.options();
        let writer = || ExtentWriter::new(tree, &codecs, self.files(), options.page_bytes, options.leaf_bytes);
        BulkWriter::new(codecs.clone(), writer)
    }
}
